//! Serving leaves nothing behind: memory stays where it was after many requests.
#![allow(clippy::unwrap_used)]

mod api_server;

use std::fs;
use std::io::Read;
use std::thread;
use std::time::Duration;

use api_server::serving_fakes::Says;
use api_server::{Server, chat, server};
use engine::api::ApiSettings;
use serde_json::json;

const REQUESTS: usize = 1000;

/// What a thousand requests may add, in bytes. A request that leaves 300 bytes behind is found; the allocator's own
/// swings are a few pages.
const ALLOWANCE_BYTES: u64 = 300 * REQUESTS as u64;

fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// A fifth of the requests each: whole, streamed, stopped by a string, refused, left by the client.
fn serve(server: &Server, requests: usize) {
    for number in 0..requests {
        let content = format!("request {number}");
        let messages = json!([{"role": "user", "content": content}]);
        let limit = 10;
        let more = match number % 5 {
            0 => json!({"messages": messages, "max_tokens": limit}),
            1 => json!({"messages": messages, "max_tokens": limit, "stream": true}),
            2 => json!({"messages": messages, "max_tokens": limit, "stop": ["c"]}),
            3 => json!({"messages": messages, "max_tokens": 1000}),
            _ => json!({"messages": messages, "stream": true}),
        };
        if number % 5 < 4 {
            let expected = if number % 5 == 3 { 400 } else { 200 };
            assert_eq!(server.chat(more).status, expected);
        } else {
            let body = chat(more).to_string();
            let mut stream = server.send("POST", "/v1/chat/completions", "", &body);
            stream.read_exact(&mut [0; 20]).unwrap();
        }
    }
}

#[test]
fn a_thousand_requests_leave_nothing_behind() {
    let server =
        server(Says::Forever("abcd"), Some(Duration::from_micros(50)), ApiSettings::default());
    serve(&server, REQUESTS / 2);
    let before = anonymous_bytes();
    serve(&server, REQUESTS);
    // Requests whose client left end with the next step.
    thread::sleep(Duration::from_millis(50));
    let after = anonymous_bytes();
    let grown = after.saturating_sub(before);
    println!("{before} bytes before, {after} after");
    assert!(grown <= ALLOWANCE_BYTES, "{REQUESTS} requests left {grown} bytes behind");
}
