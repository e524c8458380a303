//! From a request body to what is asked for.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, wrong};
use crate::serving::Sampling;
use crate::tokenizer::ChatMessage;

const MAX_STOPS: usize = 4;
const MAX_STOP_BYTES: usize = 1024;
const MAX_MESSAGES: usize = 4096;

/// Tokens that `/v1/completions` generates when it is not told how many.
const DEFAULT_COMPLETION_TOKENS: usize = 16;

/// Which of the two ways to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Completion,
    Chat,
}

impl Route {
    /// The field that holds the prompt.
    pub(super) fn prompt_field(self) -> &'static str {
        match self {
            Self::Completion => "prompt",
            Self::Chat => "messages",
        }
    }
}

/// The prompt as it was given.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Chat(Vec<ChatMessage>),
}

/// A request body, checked.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) prompt: Prompt,
    /// Absent: up to the end of the context.
    pub(super) max_tokens: Option<usize>,
    pub(super) stops: Vec<String>,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) seed: Option<u64>,
    pub(super) stream: bool,
    /// A stream ends with what the request took.
    pub(super) include_usage: bool,
}

impl Asked {
    pub(super) fn parse(body: &[u8], route: Route, model: &str) -> Result<Self, ApiError> {
        let fields = Fields::parse(body)?;
        match fields.string("model")? {
            None => return Err(ApiError::field("model", "You must provide a 'model' parameter.")),
            Some(asked) if asked != model => return Err(ApiError::unknown_model(asked, model)),
            Some(_) => {}
        }
        refuse_unsupported(&fields)?;
        let prompt = match route {
            Route::Completion => completion_prompt(&fields)?,
            Route::Chat => Prompt::Chat(messages(&fields)?),
        };
        let max_tokens = match (route, fields.count("max_completion_tokens")?) {
            (Route::Chat, Some(tokens)) => Some(tokens),
            (Route::Chat, None) => fields.count("max_tokens")?,
            (Route::Completion, _) => {
                Some(fields.count("max_tokens")?.unwrap_or(DEFAULT_COMPLETION_TOKENS))
            }
        };
        let stream = fields.bool("stream")?.unwrap_or(false);
        Ok(Self {
            prompt,
            max_tokens,
            stops: stops(&fields)?,
            temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0),
            seed: fields.seed("seed")?,
            stream,
            include_usage: include_usage(&fields, stream)?,
        })
    }

    pub(super) fn sampling(&self, otherwise: u64) -> Sampling {
        let seed = self.seed.unwrap_or(otherwise);
        Sampling { temperature: self.temperature, top_p: self.top_p, seed }
    }
}

/// Refuses what would change the answer and is not done here: an answer that silently ignores it would be wrong.
fn refuse_unsupported(fields: &Fields) -> Result<(), ApiError> {
    for (name, only) in [("n", 1), ("best_of", 1)] {
        if fields.count(name)?.is_some_and(|count| count != only) {
            return Err(ApiError::unsupported(name, format!("'{name}' can only be 1 here.")));
        }
    }
    if fields.get("logprobs").is_some_and(|value| *value != Value::Bool(false)) {
        return Err(ApiError::unsupported("logprobs", "'logprobs' are not given here."));
    }
    if fields.get("top_logprobs").is_some() {
        return Err(ApiError::unsupported("top_logprobs", "'top_logprobs' are not given here."));
    }
    if fields.bool("echo")? == Some(true) {
        return Err(ApiError::unsupported("echo", "'echo' is not done here."));
    }
    for name in ["presence_penalty", "frequency_penalty"] {
        if fields.number(name, -2.0..=2.0)?.is_some_and(|penalty| penalty != 0.0) {
            return Err(ApiError::unsupported(name, format!("'{name}' can only be 0 here.")));
        }
    }
    for name in ["logit_bias", "tools", "functions", "suffix", "audio"] {
        let empty = match fields.get(name) {
            None => true,
            Some(Value::Object(entries)) => entries.is_empty(),
            Some(Value::Array(entries)) => entries.is_empty(),
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        };
        if !empty {
            return Err(ApiError::unsupported(name, format!("'{name}' is not done here.")));
        }
    }
    match fields.get("response_format") {
        None => Ok(()),
        Some(format) if format.get("type").and_then(Value::as_str) == Some("text") => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            "response_format",
            "'response_format' can only be of type 'text' here.",
        )),
    }
}

fn include_usage(fields: &Fields, stream: bool) -> Result<bool, ApiError> {
    match fields.get("stream_options") {
        None => Ok(false),
        Some(_) if !stream => Err(ApiError::field(
            "stream_options",
            "'stream_options' is only allowed together with 'stream'.",
        )),
        Some(Value::Object(options)) => match options.get("include_usage") {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(include)) => Ok(*include),
            Some(other) => Err(wrong("stream_options.include_usage", "a boolean", other)),
        },
        Some(other) => Err(wrong("stream_options", "an object", other)),
    }
}

fn stops(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let stops = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(stops)) => {
            let strings = stops.iter().map(|stop| stop.as_str().map(str::to_owned));
            let strings: Option<Vec<String>> = strings.collect();
            strings.ok_or_else(|| ApiError::field("stop", "'stop' must hold only strings."))?
        }
        Some(other) => return Err(wrong("stop", "a string or a list of strings", other)),
    };
    if stops.len() > MAX_STOPS {
        let message = format!("'stop' may hold at most {MAX_STOPS} strings, not {}.", stops.len());
        return Err(ApiError::field("stop", message));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        let message = format!("Every 'stop' string must have 1 to {MAX_STOP_BYTES} bytes.");
        return Err(ApiError::field("stop", message));
    }
    Ok(stops)
}

fn completion_prompt(fields: &Fields) -> Result<Prompt, ApiError> {
    const EXPECTED: &str = "a string, a list of token ids, or a list of one of these";
    let Some(value) = fields.get("prompt") else {
        return Err(ApiError::field("prompt", "You must provide a 'prompt' parameter."));
    };
    // A list of one prompt is that prompt.
    let value = match value {
        Value::Array(prompts) if prompts.iter().any(|prompt| !prompt.is_number()) => {
            let [prompt] = prompts.as_slice() else {
                return Err(ApiError::unsupported(
                    "prompt",
                    "'prompt' can only hold one prompt here.",
                ));
            };
            prompt
        }
        other => other,
    };
    match value {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(tokens) => {
            let ids = tokens.iter().map(|token| u32::try_from(token.as_u64()?).ok());
            let ids: Option<Vec<u32>> = ids.collect();
            Ok(Prompt::Tokens(ids.ok_or_else(|| wrong("prompt", EXPECTED, value))?))
        }
        other => Err(wrong("prompt", EXPECTED, other)),
    }
}

fn messages(fields: &Fields) -> Result<Vec<ChatMessage>, ApiError> {
    let messages = match fields.get("messages") {
        None => {
            return Err(ApiError::field("messages", "You must provide a 'messages' parameter."));
        }
        Some(Value::Array(messages)) => messages,
        Some(other) => return Err(wrong("messages", "a list of messages", other)),
    };
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let message = format!("'messages' must hold 1 to {MAX_MESSAGES} messages.");
        return Err(ApiError::field("messages", message));
    }
    messages.iter().enumerate().map(|(at, value)| message(at, value)).collect()
}

fn message(at: usize, value: &Value) -> Result<ChatMessage, ApiError> {
    let Value::Object(fields) = value else {
        return Err(wrong(&format!("messages[{at}]"), "an object", value));
    };
    let role_name = format!("messages[{at}].role");
    let role = match fields.get("role").unwrap_or(&Value::Null) {
        Value::String(role) => match role.as_str() {
            // The newer name for the same thing; models' templates know the older one.
            "developer" => "system".to_owned(),
            "system" | "user" | "assistant" => role.clone(),
            _ => {
                let message = format!(
                    "'{role_name}' must be one of 'system', 'developer', 'user', 'assistant'."
                );
                return Err(ApiError::field(&role_name, message));
            }
        },
        other => return Err(wrong(&role_name, "a string", other)),
    };
    let content = content(at, fields, role == "assistant")?;
    Ok(ChatMessage { role, content })
}

fn content(
    at: usize,
    fields: &Map<String, Value>,
    may_be_absent: bool,
) -> Result<String, ApiError> {
    let name = format!("messages[{at}].content");
    match fields.get("content").unwrap_or(&Value::Null) {
        Value::String(text) => Ok(text.clone()),
        Value::Null if may_be_absent => Ok(String::new()),
        Value::Array(parts) => parts
            .iter()
            .enumerate()
            .map(|(index, part)| match (part.get("type"), part.get("text")) {
                (Some(Value::String(kind)), Some(Value::String(text))) if kind == "text" => {
                    Ok(text.as_str())
                }
                _ => {
                    let name = format!("{name}[{index}]");
                    Err(ApiError::field(&name, format!("'{name}' must be a part of type 'text'.")))
                }
            })
            .collect(),
        other => Err(wrong(&name, "a string or a list of text parts", other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(rest: &str) -> Result<Asked, ApiError> {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{rest}}}"#);
        Asked::parse(body.as_bytes(), Route::Chat, "m")
    }

    fn completion(fields: &str) -> Result<Asked, ApiError> {
        Asked::parse(format!(r#"{{"model":"m",{fields}}}"#).as_bytes(), Route::Completion, "m")
    }

    fn param<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        result.unwrap_err().body()["error"]["param"].as_str().unwrap().to_owned()
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let asked = chat("").unwrap();
        assert_eq!((asked.max_tokens, asked.temperature, asked.top_p), (None, 1.0, 1.0));
        assert!(!asked.stream && !asked.include_usage && asked.stops.is_empty());
        assert_eq!(completion(r#""prompt":"a""#).unwrap().max_tokens, Some(16));
    }

    #[test]
    fn a_prompt_may_be_text_tokens_or_a_list_of_one() {
        let prompt =
            |json: &str| completion(&format!(r#""prompt":{json}"#)).map(|asked| asked.prompt);
        assert_eq!(prompt(r#""a""#).unwrap(), Prompt::Text("a".into()));
        assert_eq!(prompt(r#"["a"]"#).unwrap(), Prompt::Text("a".into()));
        assert_eq!(prompt("[1,2]").unwrap(), Prompt::Tokens(vec![1, 2]));
        assert_eq!(prompt("[[1,2]]").unwrap(), Prompt::Tokens(vec![1, 2]));
        for bad in
            [r#"["a","b"]"#, "[[1],[2]]", "[-1]", "[1.5]", "[4294967296]", "7", "{}", "[[[1]]]"]
        {
            assert_eq!(param(prompt(bad)), "prompt", "{bad}");
        }
    }

    #[test]
    fn content_may_be_parts_and_roles_are_known() {
        let parse = |message: &str| {
            let body = format!(r#"{{"model":"m","messages":[{message}]}}"#);
            Asked::parse(body.as_bytes(), Route::Chat, "m").map(|asked| asked.prompt)
        };
        let parts = r#"{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
        let expected = ChatMessage { role: "system".into(), content: "ab".into() };
        assert_eq!(parse(parts).unwrap(), Prompt::Chat(vec![expected]));
        assert_eq!(param(parse(r#"{"role":"cat","content":"a"}"#)), "messages[0].role");
        assert_eq!(param(parse(r#"{"role":"user"}"#)), "messages[0].content");
        assert_eq!(
            param(parse(r#"{"role":"user","content":[{"type":"image_url"}]}"#)),
            "messages[0].content[0]"
        );
        assert_eq!(param(parse("3")), "messages[0]");
    }

    #[test]
    fn what_is_not_done_is_refused_by_name_and_harmless_values_pass() {
        for (field, value) in [
            ("n", "2"),
            ("n", "0"),
            ("logprobs", "true"),
            ("logprobs", "1"),
            ("top_logprobs", "2"),
            ("echo", "true"),
            ("presence_penalty", "0.5"),
            ("logit_bias", r#"{"1":2}"#),
            ("tools", r#"[{"type":"function"}]"#),
            ("response_format", r#"{"type":"json_object"}"#),
            ("temperature", "2.1"),
            ("temperature", r#""hot""#),
            ("top_p", "-0.1"),
            ("seed", "1.5"),
            ("max_tokens", "0"),
            ("max_tokens", "-1"),
            ("stream", "1"),
            ("stop", "3"),
            ("stop", r#"["a",1]"#),
            ("stop", r#""""#),
            ("stop", r#"["a","b","c","d","e"]"#),
            ("stream_options", "{}"),
            ("max_completion_tokens", "1.5"),
        ] {
            assert_eq!(param(chat(&format!(r#","{field}":{value}"#))), field, "{field}: {value}");
        }
        let harmless = r#","n":1,"logprobs":false,"echo":false,"presence_penalty":0,"logit_bias":{},
            "tools":[],"response_format":{"type":"text"},"seed":-1,"stop":null,"user":"u","new_field":[1]"#;
        assert_eq!(chat(harmless).unwrap().seed, Some(u64::MAX));
    }

    #[test]
    fn the_newer_limit_counts_before_the_older() {
        let asked = chat(r#","max_tokens":5,"max_completion_tokens":3"#).unwrap();
        assert_eq!(asked.max_tokens, Some(3));
    }
}
