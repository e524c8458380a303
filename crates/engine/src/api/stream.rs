//! Answers in pieces, as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::response::sse::{Event as Piece, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, Sleep, sleep};

use super::error::ApiError;
use super::respond::{Shape, engine_stopped, out_of_patience};
use crate::serving::{End, Event};

/// What tells a client that its stream has come to its end.
const DONE: &str = "[DONE]";

/// The response that passes `events` on as they come. When the client leaves, the stream is dropped and `events` with
/// it, which cancels the request.
pub(super) fn respond(
    shape: Shape,
    events: Receiver<Event>,
    include_usage: bool,
    patience: Duration,
) -> Response {
    let opening = shape.opening();
    let mut pieces = Pieces {
        shape,
        events,
        include_usage,
        patience,
        deadline: Box::pin(sleep(patience)),
        ready: VecDeque::new(),
        ended: false,
    };
    if let Some(opening) = opening {
        pieces.add(opening);
    }
    Sse::new(pieces).keep_alive(KeepAlive::default()).into_response()
}

struct Pieces {
    shape: Shape,
    events: Receiver<Event>,
    include_usage: bool,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
    ready: VecDeque<String>,
    ended: bool,
}

impl Pieces {
    fn add(&mut self, mut piece: Value) {
        // With the usage asked for, every piece has the field, and only the last one a value.
        if self.include_usage && piece.get("usage").is_none() {
            piece["usage"] = Value::Null;
        }
        self.ready.push_back(piece.to_string());
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(error.body().to_string());
        self.ended = true;
        self.events.close();
    }

    fn take(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Text(text)) => self.add(self.shape.piece(&text)),
            Some(Event::End(End::Finished { reason, usage })) => {
                self.add(self.shape.closing(reason));
                if self.include_usage {
                    self.add(self.shape.usage(usage));
                }
                self.ready.push_back(DONE.to_owned());
                self.ended = true;
            }
            Some(Event::End(End::Failed { message })) => self.fail(&ApiError::internal(message)),
            None => self.fail(&engine_stopped()),
        }
    }
}

impl Stream for Pieces {
    type Item = Result<Piece, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Piece::default().data(piece))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            if let Poll::Ready(event) = self.events.poll_recv(cx) {
                let deadline = Instant::now() + self.patience;
                self.deadline.as_mut().reset(deadline);
                self.take(event);
            } else {
                ready!(self.deadline.as_mut().poll(cx));
                let error = out_of_patience(self.patience);
                self.fail(&error);
            }
        }
    }
}
