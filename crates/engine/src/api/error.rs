//! Errors in the shape that clients of OpenAI's API read.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::serving::SubmitError;

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    retry_after_s: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, kind, message, param: None, code: None, retry_after_s: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The field `name` is wrong.
    pub(super) fn field(name: &str, message: impl Into<String>) -> Self {
        Self { param: Some(name.to_owned()), ..Self::bad_request(message) }
    }

    /// The field `name` asks for something this server does not do.
    pub(super) fn unsupported(name: &str, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(name, message) }
    }

    pub(super) fn unknown_model(asked: &str, served: &str) -> Self {
        let message =
            format!("The model '{asked}' does not exist here; this server has '{served}'.");
        Self {
            status: StatusCode::NOT_FOUND,
            code: Some("model_not_found"),
            ..Self::field("model", message)
        }
    }

    pub(super) fn unknown_path(method: &str, path: &str) -> Self {
        let message = format!("Unknown request URL: {method} {path}.");
        let code = Some("unknown_url");
        Self { status: StatusCode::NOT_FOUND, code, ..Self::bad_request(message) }
    }

    pub(super) fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path} does not take {method}.");
        let code = Some("method_not_supported");
        Self { status: StatusCode::METHOD_NOT_ALLOWED, code, ..Self::bad_request(message) }
    }

    pub(super) fn body_too_large(limit_bytes: usize) -> Self {
        let message = format!("The request body may have at most {limit_bytes} bytes.");
        let code = Some("request_too_large");
        Self { status: StatusCode::PAYLOAD_TOO_LARGE, code, ..Self::bad_request(message) }
    }

    pub(super) fn unauthorized(message: &str) -> Self {
        let code = Some("invalid_api_key");
        Self { status: StatusCode::UNAUTHORIZED, code, ..Self::bad_request(message) }
    }

    pub(super) fn context_exceeded(param: &str, message: String) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub(super) fn unavailable(message: impl Into<String>, code: &'static str) -> Self {
        Self {
            code: Some(code),
            retry_after_s: Some(5),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
        }
    }

    /// A request the step loop did not take; `prompt` names the field its prompt came from.
    pub(super) fn submit(error: SubmitError, prompt: &str) -> Self {
        match error {
            SubmitError::Full { .. } => Self {
                code: Some("rate_limit_exceeded"),
                retry_after_s: Some(1),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", error.to_string())
            },
            SubmitError::TooLong { .. } => Self::context_exceeded(prompt, error.to_string()),
            SubmitError::Empty => Self::field(prompt, error.to_string()),
            SubmitError::Closed => Self::unavailable(error.to_string(), "shutting_down"),
        }
    }

    /// The body of the response, also sent as an event where a stream has already begun.
    pub(super) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}
