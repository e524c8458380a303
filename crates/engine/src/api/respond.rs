//! The shapes of answers, whole or in pieces.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::error::ApiError;
use super::parse::Route;
use crate::serving::{End, Event, FinishReason, RequestId, Usage};

/// What is the same in all pieces of one answer.
pub(super) struct Shape {
    route: Route,
    id: String,
    created_s: u64,
    model: String,
}

impl Shape {
    /// `started_s` keeps ids of one process apart from those of the one before.
    pub(super) fn new(
        route: Route,
        id: RequestId,
        started_s: u64,
        created_s: u64,
        model: String,
    ) -> Self {
        let prefix = match route {
            Route::Completion => "cmpl",
            Route::Chat => "chatcmpl",
        };
        Self { route, id: format!("{prefix}-{started_s:x}-{}", id.0), created_s, model }
    }

    fn envelope(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created_s, "model": self.model,
            "system_fingerprint": null, "choices": choices,
        })
    }

    fn whole(&self, text: &str, reason: FinishReason, usage: Usage) -> Value {
        let (object, mut choice) = match self.route {
            Route::Completion => ("text_completion", json!({"text": text})),
            Route::Chat => {
                let message = json!({"role": "assistant", "content": text, "refusal": null});
                ("chat.completion", json!({"message": message}))
            }
        };
        complete(&mut choice, Some(reason));
        let mut answer = self.envelope(object, json!([choice]));
        answer["usage"] = usage_json(usage);
        answer
    }

    /// The first piece of a chat says who speaks.
    pub(super) fn opening(&self) -> Option<Value> {
        (self.route == Route::Chat)
            .then(|| self.chat_piece(&json!({"role": "assistant", "content": ""}), None))
    }

    pub(super) fn piece(&self, text: &str) -> Value {
        match self.route {
            Route::Completion => self.completion_piece(text, None),
            Route::Chat => self.chat_piece(&json!({"content": text}), None),
        }
    }

    pub(super) fn closing(&self, reason: FinishReason) -> Value {
        match self.route {
            Route::Completion => self.completion_piece("", Some(reason)),
            Route::Chat => self.chat_piece(&json!({}), Some(reason)),
        }
    }

    /// The piece after the last that says what the request took.
    pub(super) fn usage(&self, usage: Usage) -> Value {
        let mut piece = self.envelope(self.piece_object(), json!([]));
        piece["usage"] = usage_json(usage);
        piece
    }

    fn piece_object(&self) -> &'static str {
        match self.route {
            Route::Completion => "text_completion",
            Route::Chat => "chat.completion.chunk",
        }
    }

    fn completion_piece(&self, text: &str, reason: Option<FinishReason>) -> Value {
        let mut choice = json!({"text": text});
        complete(&mut choice, reason);
        self.envelope(self.piece_object(), json!([choice]))
    }

    fn chat_piece(&self, delta: &Value, reason: Option<FinishReason>) -> Value {
        let mut choice = json!({"delta": delta});
        complete(&mut choice, reason);
        self.envelope(self.piece_object(), json!([choice]))
    }
}

fn complete(choice: &mut Value, reason: Option<FinishReason>) {
    choice["index"] = json!(0);
    choice["logprobs"] = Value::Null;
    choice["finish_reason"] = match reason {
        None => Value::Null,
        Some(FinishReason::Stop) => json!("stop"),
        Some(FinishReason::Length) => json!("length"),
    };
}

fn usage_json(usage: Usage) -> Value {
    let (prompt, completion) = (usage.prompt_tokens, usage.completion_tokens);
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    })
}

/// Waits for the whole text.
pub(super) async fn whole(
    shape: &Shape,
    mut events: Receiver<Event>,
    patience: Duration,
) -> Result<Response, ApiError> {
    let mut text = String::new();
    loop {
        match timeout(patience, events.recv()).await.map_err(|_| out_of_patience(patience))? {
            Some(Event::Text(more)) => text.push_str(&more),
            Some(Event::End(End::Finished { reason, usage })) => {
                return Ok(axum::Json(shape.whole(&text, reason, usage)).into_response());
            }
            Some(Event::End(End::Failed { message })) => return Err(ApiError::internal(message)),
            None => return Err(engine_stopped()),
        }
    }
}

pub(super) fn out_of_patience(patience: Duration) -> ApiError {
    let message = format!(
        "No text came for {} s: the server is overloaded or its ranks cannot work together. See /progress.",
        patience.as_secs_f64()
    );
    ApiError::unavailable(message, "no_progress")
}

pub(super) fn engine_stopped() -> ApiError {
    ApiError::unavailable("The server is shutting down.", "shutting_down")
}
