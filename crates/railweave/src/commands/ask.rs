//! `railweave ask`: one question to a running server, the answer as it comes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{CommandError, CommandResult, print};
use crate::cli::{ReachKeys, SettingFlags};
use crate::http::Client;

/// How long the first token may take.
const FIRST_TOKEN_PATIENCE: Duration = Duration::from_secs(600);

/// Arguments of `railweave ask`.
#[derive(Debug, clap::Args)]
pub struct AskArgs {
    /// The question
    #[arg(value_name = "TEXT")]
    question: String,
    /// Most tokens of the answer
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    max_tokens: u32,
    /// 0 takes the likeliest token each time
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    temperature: f64,
    #[command(flatten)]
    settings: SettingFlags<ReachKeys>,
}

/// Asks, prints the answer to standard output as it comes, and the speed to standard error.
///
/// # Errors
/// The server cannot be reached or refuses, or its answer breaks off.
pub fn run(args: AskArgs) -> CommandResult {
    let settings = args.settings.resolve()?.settings;
    let client = Client::new(FIRST_TOKEN_PATIENCE, settings.api_key.reveal());
    let models = client
        .get(settings.listen, "/v1/models")
        .map_err(|error| CommandError::Unreachable(error.to_string()))?;
    let Some(model) = models.body["data"][0]["id"].as_str() else {
        return Err(CommandError::Failed(format!(
            "the server names no model: {}",
            models.problem()
        )));
    };
    let body = serde_json::json!({
        "model": model,
        "messages": [{"role": "user", "content": args.question}],
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let asked = Instant::now();
    let mut heard = Heard::default();
    let mut printed = Ok(());
    let answer = client.post_stream(settings.listen, "/v1/chat/completions", &body, &mut |data| {
        let text = heard.take(data, asked.elapsed());
        if printed.is_ok() && !text.is_empty() {
            printed = print(&text);
        }
    });
    let took = asked.elapsed();
    printed?;
    print("\n")?;
    match answer {
        Err(error) if heard.pieces == 0 => {
            return Err(CommandError::Unreachable(error.to_string()));
        }
        Err(error) => return Err(CommandError::Failed(format!("the answer broke off: {error}"))),
        Ok(Err(answer)) => {
            return Err(CommandError::Failed(format!("the server refused: {}", answer.problem())));
        }
        Ok(Ok(())) => {}
    }
    if let Some(error) = &heard.error {
        return Err(CommandError::Failed(format!("the server failed: {error}")));
    }
    if heard.pieces == 0 {
        return Err(CommandError::Failed("the server gave an empty answer".to_owned()));
    }
    eprintln!("{}", heard.speed(took));
    Ok(ExitCode::SUCCESS)
}

/// What came of the stream so far.
#[derive(Debug, Default)]
struct Heard {
    pieces: u64,
    first: Option<Duration>,
    tokens: Option<u64>,
    error: Option<String>,
}

impl Heard {
    /// Takes the data of one event, and gives the text to print.
    fn take(&mut self, data: &str, now: Duration) -> String {
        let Ok(chunk) = serde_json::from_str::<Value>(data) else {
            self.error = Some("it sent something that is not JSON".to_owned());
            return String::new();
        };
        if let Some(error) = chunk["error"]["message"].as_str() {
            self.error = Some(error.to_owned());
        }
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            self.tokens = Some(tokens);
        }
        let text = chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if !text.is_empty() {
            self.pieces += 1;
            self.first.get_or_insert(now);
        }
        text.to_owned()
    }

    fn speed(&self, took: Duration) -> String {
        let (Some(first), Some(tokens)) = (self.first, self.tokens) else {
            return "speed: not measured (the server counted no tokens)".to_owned();
        };
        let after_first = took.saturating_sub(first).as_secs_f64();
        if tokens < 2 || after_first <= 0.0 {
            return format!("{tokens} tokens, first after {:.3} s", first.as_secs_f64());
        }
        format!(
            "{tokens} tokens, first after {:.3} s, then {:.1} tokens/s",
            first.as_secs_f64(),
            (tokens - 1) as f64 / after_first
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_gives_text_counts_and_errors() {
        let mut heard = Heard::default();
        let second = Duration::from_secs(1);
        assert_eq!(heard.take(r#"{"choices":[{"delta":{"role":"assistant"}}]}"#, second), "");
        assert_eq!(heard.take(r#"{"choices":[{"delta":{"content":"Par"}}]}"#, 2 * second), "Par");
        assert_eq!(heard.take(r#"{"choices":[{"delta":{"content":"is"}}]}"#, 3 * second), "is");
        heard.take(r#"{"choices":[],"usage":{"completion_tokens":3}}"#, 4 * second);
        assert_eq!(heard.speed(4 * second), "3 tokens, first after 2.000 s, then 1.0 tokens/s");
        heard.take(r#"{"error":{"message":"rank 2 is silent"}}"#, 5 * second);
        assert_eq!(heard.error.as_deref(), Some("rank 2 is silent"));
    }

    #[test]
    fn a_speed_that_was_not_measured_is_not_a_number() {
        assert!(Heard::default().speed(Duration::from_secs(1)).contains("not measured"));
    }
}
