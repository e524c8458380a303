//! The optional key of the API.

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::Shared;
use super::error::ApiError;

/// A key that clients must know; kept as a digest and never printed.
#[derive(Clone)]
pub struct ApiKey([u8; 32]);

impl ApiKey {
    /// The key `key`.
    pub fn new(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Whether `key` is this key. How long it takes does not depend on how much of it is right: digests are compared,
    /// all 32 bytes of them.
    fn matches(&self, key: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(key).into();
        let difference = self.0.iter().zip(given).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        difference == 0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(hidden)")
    }
}

/// Lets a request pass if no key is set or it carries the key.
pub(super) async fn check(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    if let Some(key) = &shared.api.settings.key {
        let value = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        match value.and_then(bearer) {
            Some(given) if key.matches(given) => {}
            Some(_) => return ApiError::unauthorized("Incorrect API key.").into_response(),
            None => {
                let message = "You must provide an API key as 'Authorization: Bearer KEY'.";
                return ApiError::unauthorized(message).into_response();
            }
        }
    }
    next.run(request).await
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_matches() {
        let key = ApiKey::new("secret");
        assert!(key.matches(b"secret"));
        assert!(!key.matches(b"secre") && !key.matches(b"secretx") && !key.matches(b""));
        assert_eq!(format!("{key:?}"), "ApiKey(hidden)");
    }

    #[test]
    fn the_scheme_is_bearer_in_any_case() {
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        assert_eq!(bearer(b"Basic abc"), None);
        assert_eq!(bearer(b"Bear"), None);
    }
}
