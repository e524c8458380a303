//! The API over real loopback sockets, with a model that has no weights.
#![allow(clippy::unwrap_used)]

mod api_server;

use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use api_server::serving_fakes::Says;
use api_server::{chat, quick, read, server};
use engine::api::{ApiKey, ApiSettings};
use engine::serving::Outcome;
use serde_json::{Value, json};

#[test]
fn the_model_is_listed() {
    let server = quick(Says::Text("hello"));
    let answer = server.request("GET", "/v1/models", "", "");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["data"][0]["id"], "fake/model");
    assert_eq!(server.request("GET", "/v1/models/fake/model", "", "").json()["object"], "model");
    let error = server.request("GET", "/v1/models/other", "", "").error();
    assert_eq!(error, (404, json!("model_not_found")));
    assert_eq!(server.request("GET", "/healthz", "", "").body, "ok");
}

#[test]
fn a_chat_is_answered_whole() {
    let answer = quick(Says::Text("Hällo 🙂")).chat(json!({}));
    assert_eq!(answer.status, 200);
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let expected = json!({"role": "assistant", "content": "Hällo 🙂", "refusal": null});
    assert_eq!(body["choices"][0]["message"], expected);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    // "user: hi\n" is 9 tokens, the text 11 bytes and its end.
    let expected = json!({"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21});
    assert_eq!(body["usage"], expected);
}

#[test]
fn a_chat_is_streamed() {
    let server = quick(Says::Text("Hä🙂"));
    let pieces =
        server.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).pieces();
    assert_eq!(pieces[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(pieces[0]["object"], "chat.completion.chunk");
    let text: Vec<&str> = pieces
        .iter()
        .filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, ["", "H", "ä", "🙂"]);
    let last = &pieces[pieces.len() - 2];
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert!(
        pieces[..pieces.len() - 1]
            .iter()
            .all(|piece| piece["usage"] == Value::Null && piece.get("usage").is_some())
    );
    let usage = &pieces[pieces.len() - 1];
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(17)));
    let plain = server.chat(json!({"stream": true})).pieces();
    assert!(plain.iter().all(|piece| piece.get("usage").is_none()));
}

#[test]
fn a_completion_is_answered_whole_and_streamed() {
    let server = quick(Says::Forever("abcdefghij"));
    let ask = |more: Value| {
        let mut body = json!({"model": "fake/model", "temperature": 0, "prompt": "x"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/completions", &body)
    };
    let body = ask(json!({})).json();
    assert_eq!(
        (&body["object"], &body["choices"][0]["text"]),
        (&json!("text_completion"), &json!("abcdefghijabcdef"))
    );
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    // 120 is "x", 10 the newline after which the fake model starts.
    let body = ask(json!({"prompt": [120, 10], "max_tokens": 3})).json();
    assert_eq!(
        (&body["choices"][0]["text"], &body["usage"]["prompt_tokens"]),
        (&json!("abc"), &json!(2))
    );
    let pieces = ask(json!({"stream": true, "stop": ["gh", "zz"], "max_tokens": 50})).pieces();
    let text: String =
        pieces.iter().filter_map(|piece| piece["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "abcdef");
    assert_eq!(pieces.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let server = quick(Says::Hash);
    let ask = |seed: i64| {
        let body = server.chat(json!({"seed": seed, "temperature": 1.5, "max_tokens": 20})).json();
        body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask(-7), ask(-7));
    assert_ne!(ask(1), ask(2));
}

#[test]
fn errors_have_the_shape_and_status_of_the_api() {
    let settings = ApiSettings { body_limit_bytes: 2000, ..ApiSettings::default() };
    let server = server(Says::Text("hello"), Some(Duration::ZERO), settings);
    let path = "/v1/chat/completions";
    let post = |body: &str| server.request("POST", path, "", body).error();
    assert_eq!(post("{"), (400, Value::Null));
    assert_eq!(post("[]"), (400, Value::Null));
    assert_eq!(post("\u{1}"), (400, Value::Null));
    assert_eq!(post("{}"), (400, Value::Null));
    assert_eq!(post(&"[".repeat(1500)), (400, Value::Null));
    assert_eq!(post(r#"{"model":"gpt"}"#), (404, json!("model_not_found")));
    assert_eq!(post(&"x".repeat(2001)), (413, json!("request_too_large")));
    assert_eq!(server.chat(json!({"n": 2})).error(), (400, json!("unsupported_parameter")));
    assert_eq!(server.chat(json!({"max_tokens": "many"})).error(), (400, Value::Null));
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(100)}]});
    assert_eq!(server.chat(long).error(), (400, json!("context_length_exceeded")));
    let most = server.chat(json!({"max_tokens": 92}));
    assert_eq!(most.error(), (400, json!("context_length_exceeded")));
    assert_eq!(server.chat(json!({"max_tokens": 91})).status, 200);
    let zero = json!({"messages": [{"role": "user", "content": "\0"}]});
    assert_eq!(server.chat(zero).error(), (400, Value::Null));
    let unknown = json!({"model": "fake/model", "prompt": [257]});
    assert_eq!(server.post("/v1/completions", &unknown).error(), (400, Value::Null));
    let empty = json!({"model": "fake/model", "prompt": []});
    assert_eq!(server.post("/v1/completions", &empty).error(), (400, Value::Null));
    for (method, path, status, code) in [
        ("GET", path, 405, "method_not_supported"),
        ("POST", "/v1/models", 405, "method_not_supported"),
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/v1", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
    ] {
        let error = server.request(method, path, "", "").error();
        assert_eq!(error, (status, json!(code)), "{method} {path}");
    }
}

#[test]
fn a_full_queue_is_a_429_that_says_when_to_come_back() {
    let server = server(Says::Text("x"), None, ApiSettings::default());
    let waiting: Vec<TcpStream> = (0..2)
        .map(|_| server.send("POST", "/v1/chat/completions", "", &chat(json!({})).to_string()))
        .collect();
    let start = Instant::now();
    while server.queue.waiting() < 2 {
        assert!(start.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(5));
    }
    let answer = server.chat(json!({"stream": true}));
    assert_eq!(answer.error(), (429, json!("rate_limit_exceeded")));
    assert!(answer.headers.contains("retry-after: 1"), "{}", answer.headers);
    assert_eq!(server.seen.refused.load(Ordering::Relaxed), 1);
    // A client that leaves makes room.
    drop(waiting);
    let start = Instant::now();
    while server.queue.waiting() > 0 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "requests of clients that left still wait"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    for stream in [true, false] {
        let step = Some(Duration::from_millis(20));
        let server = server(Says::Forever("ab"), step, ApiSettings::default());
        let body = chat(json!({"stream": stream})).to_string();
        let mut connection = server.send("POST", "/v1/chat/completions", "", &body);
        if stream {
            connection.read_exact(&mut [0; 200]).unwrap();
        } else {
            thread::sleep(Duration::from_millis(60));
        }
        drop(connection);
        server.wait_for(Outcome::Cancelled);
    }
}

#[test]
fn patience_with_a_silent_engine_ends() {
    let settings = ApiSettings { patience: Duration::from_millis(50), ..ApiSettings::default() };
    let server = server(Says::Text("x"), None, settings);
    let answer = server.chat(json!({}));
    assert_eq!(answer.error(), (503, json!("no_progress")));
    assert!(answer.headers.contains("retry-after: "));
    let answer = server.chat(json!({"stream": true}));
    let last = answer.body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    let last: Value = serde_json::from_str(last.unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "no_progress");
    assert_eq!(server.queue.waiting(), 0);
}

#[test]
fn an_engine_that_ends_says_so() {
    let server = server(Says::Text("x"), None, ApiSettings::default());
    let waiting = server.send("POST", "/v1/chat/completions", "", &chat(json!({})).to_string());
    let start = Instant::now();
    while server.queue.waiting() < 1 {
        assert!(start.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(5));
    }
    server.queue.close();
    assert_eq!(read(waiting).error(), (503, json!("shutting_down")));
    assert_eq!(server.chat(json!({})).error(), (503, json!("shutting_down")));
}

#[test]
fn a_key_is_asked_for_where_one_is_set() {
    let settings = ApiSettings { key: Some(ApiKey::new("secret")), ..ApiSettings::default() };
    let server = server(Says::Text("x"), Some(Duration::ZERO), settings);
    let get = |headers: &str| server.request("GET", "/v1/models", headers, "");
    assert_eq!(get("").error(), (401, json!("invalid_api_key")));
    assert_eq!(get("Authorization: Bearer wrong\r\n").error(), (401, json!("invalid_api_key")));
    assert_eq!(get("Authorization: Bearer secret\r\n").status, 200);
    assert_eq!(server.request("GET", "/healthz", "", "").status, 200);
}

#[test]
fn many_clients_at_once_each_get_their_own_text() {
    let server = server(Says::Hash, Some(Duration::ZERO), ApiSettings::default());
    let ask = &|client: usize| {
        let content = format!("client {client}");
        let more = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 20});
        loop {
            let answer = server.chat(more.clone());
            if answer.status == 200 {
                return answer.json()["choices"][0]["message"]["content"].clone();
            }
            assert_eq!(answer.status, 429);
            thread::sleep(Duration::from_millis(5));
        }
    };
    let alone: Vec<Value> = (0..12).map(ask).collect();
    let together: Vec<Value> = thread::scope(|scope| {
        let clients: Vec<_> = (0..12).map(|client| scope.spawn(move || ask(client))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}
