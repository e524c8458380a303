//! The OpenAI-compatible HTTP API of rank 0: `/v1/models`, `/v1/completions` and `/v1/chat/completions`.
//!
//! [`router`] gives a plain [`axum::Router`] that the caller may merge with other routes and serve.

mod auth;
mod error;
mod fields;
mod parse;
mod respond;
mod stream;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{Method, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde_json::{Value, json};

pub use auth::ApiKey;
pub use error::ApiError;

use crate::serving::{Observer, Request, RequestQueue, SubmitError, TextError, Ticket, Vocabulary};
use parse::{Asked, Prompt, Route};
use respond::Shape;

/// Prompts of more bytes are turned into tokens on a thread of their own, so that other requests are not held up.
const LONG_PROMPT_BYTES: usize = 4096;

/// What the API answers with.
#[derive(Clone)]
pub struct Api {
    /// The name of the model, which requests must give.
    pub model: String,
    /// Where requests go.
    pub queue: Arc<RequestQueue>,
    /// Turns prompts into tokens.
    pub vocabulary: Arc<dyn Vocabulary>,
    /// Told of refused requests.
    pub observer: Arc<dyn Observer>,
    /// What may be set.
    pub settings: ApiSettings,
}

/// What may be set about the API.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// The key every request must carry as `Authorization: Bearer KEY`, if one is set.
    pub key: Option<ApiKey>,
    /// The largest request body.
    pub body_limit_bytes: usize,
    /// How long a client waits for the next piece of its text, also while the request is queued or the group is
    /// re-formed. Then it gets an error and its request is cancelled.
    pub patience: Duration,
}

impl Default for ApiSettings {
    /// No key, 4 MiB, 10 minutes.
    fn default() -> Self {
        let patience = Duration::from_secs(600);
        Self { key: None, body_limit_bytes: 4 << 20, patience }
    }
}

struct Shared {
    api: Api,
    /// When the API came up, in seconds since 1970.
    started_s: u64,
}

/// The routes under `/v1`. Unknown paths below it and wrong methods give errors in OpenAI's shape; for the rest of the
/// caller's paths see [`not_found`].
pub fn router(api: Api) -> Router {
    let limit = DefaultBodyLimit::max(api.settings.body_limit_bytes);
    let shared = Arc::new(Shared { api, started_s: now_s() });
    Router::new()
        .route("/v1/models", get(models).fallback(wrong_method))
        .route("/v1/models/{*model}", get(model).fallback(wrong_method))
        .route("/v1/completions", post(completions).fallback(wrong_method))
        .route("/v1/chat/completions", post(chat_completions).fallback(wrong_method))
        .route("/v1", any(not_found))
        .route("/v1/{*rest}", any(not_found))
        .layer(limit)
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), auth::check))
        .with_state(shared)
}

/// Answers a path that does not exist, in OpenAI's shape.
pub async fn not_found(method: Method, uri: Uri) -> Response {
    ApiError::unknown_path(method.as_str(), uri.path()).into_response()
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    ApiError::wrong_method(method.as_str(), uri.path()).into_response()
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    axum::Json(json!({"object": "list", "data": [shared.describe_model()]})).into_response()
}

async fn model(State(shared): State<Arc<Shared>>, Path(asked): Path<String>) -> Response {
    if asked == shared.api.model {
        axum::Json(shared.describe_model()).into_response()
    } else {
        ApiError::unknown_model(&asked, &shared.api.model).into_response()
    }
}

async fn completions(
    State(shared): State<Arc<Shared>>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    shared.answer(body, Route::Completion).await.unwrap_or_else(IntoResponse::into_response)
}

async fn chat_completions(
    State(shared): State<Arc<Shared>>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    shared.answer(body, Route::Chat).await.unwrap_or_else(IntoResponse::into_response)
}

impl Shared {
    fn describe_model(&self) -> Value {
        let (id, created) = (&self.api.model, self.started_s);
        json!({"id": id, "object": "model", "created": created, "owned_by": "railweave"})
    }

    async fn answer(
        &self,
        body: Result<Bytes, BytesRejection>,
        route: Route,
    ) -> Result<Response, ApiError> {
        let body = body.map_err(|rejection| self.unreadable(&rejection))?;
        let asked = Asked::parse(&body, route, &self.api.model)?;
        drop(body);
        let (stream, include_usage) = (asked.stream, asked.include_usage);
        let ticket = self.submit(asked, route).await?;
        let shape = Shape::new(route, ticket.id, self.started_s, now_s(), self.api.model.clone());
        let patience = self.api.settings.patience;
        if stream {
            Ok(stream::respond(shape, ticket.events, include_usage, patience))
        } else {
            respond::whole(&shape, ticket.events, patience).await
        }
    }

    fn unreadable(&self, rejection: &BytesRejection) -> ApiError {
        match rejection {
            BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_)) => {
                ApiError::body_too_large(self.api.settings.body_limit_bytes)
            }
            other => ApiError::bad_request(format!("The request body could not be read: {other}.")),
        }
    }

    async fn submit(&self, mut asked: Asked, route: Route) -> Result<Ticket, ApiError> {
        let field = route.prompt_field();
        let sampling = asked.sampling(random());
        let given = std::mem::replace(&mut asked.prompt, Prompt::Tokens(Vec::new()));
        let prompt = self.tokens(given, field).await?;
        let limit = self.api.queue.request_tokens();
        let room = limit.saturating_sub(prompt.len());
        let max_tokens = match asked.max_tokens {
            Some(tokens) if room > 0 && tokens > room => {
                let message = format!(
                    "This model's maximum context length is {limit} tokens, but {} were asked for: {} in \
                     '{field}' and {tokens} to generate. Shorten one of them.",
                    prompt.len().saturating_add(tokens),
                    prompt.len(),
                );
                return Err(ApiError::context_exceeded(field, message));
            }
            Some(tokens) => tokens,
            // A prompt that leaves no room is refused by the queue.
            None => room.max(1),
        };
        let request = Request { prompt, max_tokens, stops: asked.stops, sampling };
        self.api.queue.submit(request).map_err(|error| {
            if matches!(error, SubmitError::Full { .. }) {
                self.api.observer.refused();
            }
            ApiError::submit(error, field)
        })
    }

    async fn tokens(&self, prompt: Prompt, field: &str) -> Result<Vec<u32>, ApiError> {
        let vocabulary = Arc::clone(&self.api.vocabulary);
        let bytes = match &prompt {
            Prompt::Text(text) => text.len(),
            Prompt::Chat(messages) => messages.iter().map(|message| message.content.len()).sum(),
            Prompt::Tokens(_) => 0,
        };
        let size = vocabulary.size();
        let encode = move || match prompt {
            Prompt::Text(text) => vocabulary.encode(&text),
            Prompt::Chat(messages) => vocabulary.encode_chat(&messages),
            Prompt::Tokens(tokens) => Ok(tokens),
        };
        let encoded: Result<Vec<u32>, TextError> = if bytes > LONG_PROMPT_BYTES {
            let encoding = tokio::task::spawn_blocking(encode).await;
            encoding.map_err(|error| {
                ApiError::internal(format!("Reading the prompt failed: {error}."))
            })?
        } else {
            encode()
        };
        let tokens = encoded.map_err(|error| ApiError::field(field, error.to_string()))?;
        match tokens.iter().find(|&&token| token as usize >= size) {
            None => Ok(tokens),
            Some(token) => Err(ApiError::field(
                field,
                format!("Token {token} does not exist; the model has tokens 0 to {}.", size - 1),
            )),
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A seed for a request that gave none: the standard library keys every hasher state anew.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
