//! A small HTTP client for the commands that talk to a running server.

use std::io::{BufRead, BufReader, Read as _};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

/// Largest answer that is read whole, in bytes.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// Longest line of a stream, in bytes.
const MAX_STREAM_LINE_BYTES: u64 = 1 << 20;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Answer {
    /// What the server says is wrong, in a readable line.
    pub(crate) fn problem(&self) -> String {
        let said = match &self.body {
            Value::Object(body) => body.get("error").map(|error| match error {
                Value::Object(error) => error.get("message").unwrap_or(&Value::Null),
                other => other,
            }),
            other => Some(other),
        };
        match said.and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty()) {
            Some(text) => format!("{text} (HTTP {})", self.status),
            None => format!("HTTP {}", self.status),
        }
    }
}

/// No answer came.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach http://{address}{path}: {reason}")]
pub(crate) struct Unreachable {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    pub(crate) reason: String,
}

/// A client with one patience and one key.
#[derive(Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    bearer: Option<String>,
}

impl Client {
    /// A client that waits `patience` for a connection and, except for streams, for the whole answer.
    pub(crate) fn new(patience: Duration, api_key: &str) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_connect(Some(patience))
            .timeout_recv_response(Some(patience))
            .build()
            .new_agent();
        let bearer = (!api_key.is_empty()).then(|| format!("Bearer {api_key}"));
        Self { agent, bearer }
    }

    pub(crate) fn get(&self, address: SocketAddr, path: &str) -> Result<Answer, Unreachable> {
        let mut request = self.agent.get(format!("http://{address}{path}"));
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        whole(request.call(), address, path)
    }

    pub(crate) fn post(
        &self,
        address: SocketAddr,
        path: &str,
        body: &Value,
    ) -> Result<Answer, Unreachable> {
        whole(self.send(address, path, body), address, path)
    }

    fn send(
        &self,
        address: SocketAddr,
        path: &str,
        body: &Value,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let mut request = self
            .agent
            .post(format!("http://{address}{path}"))
            .header("content-type", "application/json");
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        request.send(body.to_string())
    }

    /// Posts, and calls `take` with the data of each server-sent event until the stream ends. An answer that is not
    /// a success comes back whole, as the inner error.
    pub(crate) fn post_stream(
        &self,
        address: SocketAddr,
        path: &str,
        body: &Value,
        take: &mut dyn FnMut(&str),
    ) -> Result<Result<(), Answer>, Unreachable> {
        let response =
            self.send(address, path, body).map_err(|e| unreachable(&e, address, path))?;
        if !response.status().is_success() {
            return Ok(Err(whole(Ok(response), address, path)?));
        }
        let body = BufReader::new(response.into_body().into_reader());
        events(body, take).map(Ok).map_err(|e| Unreachable {
            address,
            path: path.to_owned(),
            reason: e.to_string(),
        })
    }
}

fn unreachable(error: &ureq::Error, address: SocketAddr, path: &str) -> Unreachable {
    Unreachable { address, path: path.to_owned(), reason: error.to_string() }
}

fn whole(
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    address: SocketAddr,
    path: &str,
) -> Result<Answer, Unreachable> {
    let mut response = response.map_err(|e| unreachable(&e, address, path))?;
    let status = response.status().as_u16();
    let text = response
        .body_mut()
        .with_config()
        .limit(MAX_ANSWER_BYTES)
        .read_to_string()
        .map_err(|e| unreachable(&e, address, path))?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Answer { status, body })
}

/// Reads server-sent events up to `[DONE]` or the end.
fn events(mut body: impl BufRead, take: &mut dyn FnMut(&str)) -> std::io::Result<()> {
    loop {
        let mut line = String::new();
        if (&mut body).take(MAX_STREAM_LINE_BYTES).read_line(&mut line)? == 0 {
            return Err(std::io::Error::other("the stream ended early"));
        }
        match line.trim_end().strip_prefix("data:").map(str::trim_start) {
            Some("[DONE]") => return Ok(()),
            Some(data) => take(data),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_end_with_done_and_not_before() {
        let mut seen = Vec::new();
        let stream = ": hi\ndata: {\"a\":1}\n\ndata:b\n\ndata: [DONE]\n\ndata: late\n";
        events(stream.as_bytes(), &mut |data| seen.push(data.to_owned())).unwrap();
        assert_eq!(seen, ["{\"a\":1}", "b"]);
        assert!(events("data: x\n".as_bytes(), &mut |_| {}).is_err());
    }

    #[test]
    fn a_problem_is_readable_in_every_shape() {
        let problem = |body: Value| Answer { status: 429, body }.problem();
        assert_eq!(problem(serde_json::json!({"error":{"message":"full"}})), "full (HTTP 429)");
        assert_eq!(problem(serde_json::json!({"error":"full"})), "full (HTTP 429)");
        assert_eq!(problem(Value::String("busy\n".into())), "busy (HTTP 429)");
        assert_eq!(problem(serde_json::json!([1])), "HTTP 429");
    }
}
