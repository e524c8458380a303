//! The answers.

use std::time::Instant;

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State as Shared};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::json;

use super::{Limits, ServerState};
use crate::health::Status;
use crate::metrics::CONTENT_TYPE;

pub(super) fn router(state: ServerState, extra: Router) -> Router {
    let limits = state.limits;
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/progress", get(progress))
        .with_state(state)
        .merge(extra)
        .layer(from_fn_with_state(limits, bounded_body))
}

async fn metrics(Shared(state): Shared<ServerState>) -> Response {
    let text = state.metrics.encode();
    if text.is_empty() {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be encoded\n")
            .into_response();
    }
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

/// The process lives and its HTTP thread answers; whether it moves forward is `/progress`.
async fn healthz(Shared(state): Shared<ServerState>) -> Response {
    let identity = state.health.identity();
    let body = json!({"alive": true, "rank": identity.rank, "host": identity.host});
    fresh(StatusCode::OK, Json(body))
}

async fn readyz(Shared(state): Shared<ServerState>) -> Response {
    let now = Instant::now();
    let ready = state.health.is_ready(now);
    let progress = state.health.progress(now);
    let why = match (ready, &progress.verdict) {
        (true, _) => None,
        (false, Some(verdict)) => Some(verdict.summary.clone()),
        (false, None) if progress.status == Status::Stalled => Some("no progress".to_owned()),
        (false, None) => Some("no token has crossed every rank yet".to_owned()),
    };
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    fresh(code, Json(json!({"ready": ready, "state": progress.state, "why": why})))
}

async fn progress(Shared(state): Shared<ServerState>) -> Response {
    let progress = state.health.progress(Instant::now());
    let code = match progress.status {
        Status::Ok | Status::Idle => StatusCode::OK,
        Status::Stalled => StatusCode::SERVICE_UNAVAILABLE,
    };
    fresh(code, Json(progress))
}

/// An answer about this moment that no cache may keep.
fn fresh(code: StatusCode, body: impl IntoResponse) -> Response {
    (code, [(header::CACHE_CONTROL, "no-store")], body).into_response()
}

/// Reads the whole body before the handler runs, within the limits of size and time, so that no
/// handler can be held by a client that sends slowly or for ever.
async fn bounded_body(Shared(limits): Shared<Limits>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let too_large = || {
        let message = format!("the body is larger than {} bytes", limits.body_bytes);
        (StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    // What a client announces is refused before it is sent.
    if body.size_hint().lower() > limits.body_bytes as u64 {
        return refuse(too_large());
    }
    let whole = Limited::new(body, limits.body_bytes).collect();
    let refused = match tokio::time::timeout(limits.body_time, whole).await {
        Ok(Ok(collected)) => {
            let request = Request::from_parts(parts, Body::from(collected.to_bytes()));
            return next.run(request).await;
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => too_large(),
        Ok(Err(error)) => (StatusCode::BAD_REQUEST, format!("the body could not be read: {error}")),
        Err(_) => (
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not come within {:.1} s", limits.body_time.as_secs_f64()),
        ),
    };
    refuse(refused)
}

fn refuse((code, message): (StatusCode, String)) -> Response {
    let body = Json(json!({"error": {"message": message, "type": "invalid_request_error"}}));
    (code, [(header::CONNECTION, "close")], body).into_response()
}
