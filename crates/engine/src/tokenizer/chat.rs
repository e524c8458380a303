//! The chat template of a model, and how what was said is kept apart from what the template says.
//!
//! A message may spell the name of a control token, such as `<|im_end|>`. It must not become that token, or a user
//! could speak as somebody else. So before the template sees a message, every name of a token in it is broken by a mark
//! that no name contains, and the whole content stands between two marks: names are found only where the template alone
//! wrote them. Then the marks are taken out again, and the text between two control tokens is cut as a whole, just as
//! if there had been no marks.

use aho_corasick::{AhoCorasick, Input};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

/// Steps a template may take: far above any honest one, and a bound for the others.
const FUEL: u64 = 10_000_000;

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user`, `assistant`, or what else the model's template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// A compiled template.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    start: String,
    end: String,
}

const NAME: &str = "tokenizer.chat_template";

impl ChatTemplate {
    /// Compiles `source`; `start` and `end` are the names of the tokens that start and end a text.
    pub(super) fn new(source: String, start: String, end: String) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, reason))
        });
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment, start, end })
    }

    /// The prompt with marks in it; cut it at the names of control tokens, then [`unmark`] the parts.
    pub(super) fn render(
        &self,
        names: &AhoCorasick,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, Error> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| {
                Value::from_pairs([
                    // Templates build names such as `<|user|>` from the role, so only whole names in it are broken.
                    ("role", Value::from(mark(&message.role, names))),
                    ("content", Value::from(enclose(&message.content, names))),
                ])
            })
            .collect();
        self.environment.get_template(NAME)?.render(Value::from_pairs([
            ("messages", Value::from(messages)),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("bos_token", Value::from(self.start.as_str())),
            ("eos_token", Value::from(self.end.as_str())),
        ]))
    }
}

/// Stands where no name may go on. A noncharacter of Unicode, which no name of a token contains.
const BREAK: char = '\u{fdd0}';

/// Stands before a character that is meant as it is, though it looks like a mark.
const QUOTE: char = '\u{fdd1}';

/// `text` with every name in it broken after its first character.
fn mark(text: &str, names: &AhoCorasick) -> String {
    let mut marked = String::with_capacity(text.len());
    let mut next = names.find(text);
    for (at, character) in text.char_indices() {
        if matches!(character, BREAK | QUOTE) {
            marked.push(QUOTE);
        }
        marked.push(character);
        if next.is_some_and(|found| found.start() == at) {
            marked.push(BREAK);
            // Names may overlap: the search goes on inside the one found.
            next = names.find(Input::new(text).range(at + character.len_utf8()..));
        }
    }
    marked
}

/// `text` marked, and between two marks so that no name reaches into it; white space at its ends stays outside, where
/// a template that trims finds it.
fn enclose(text: &str, names: &AhoCorasick) -> String {
    let said = text.trim();
    if said.is_empty() {
        return text.to_owned();
    }
    let start = text.len() - text.trim_start().len();
    let (before, after) = (&text[..start], &text[start + said.len()..]);
    format!("{before}{BREAK}{}{BREAK}{after}", mark(said, names))
}

/// Takes the marks out of a part of a rendered prompt.
pub(super) fn unmark(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            BREAK => {}
            QUOTE => plain.extend(characters.next()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names() -> AhoCorasick {
        AhoCorasick::builder()
            .match_kind(aho_corasick::MatchKind::LeftmostLongest)
            .build(["<a>", "<a><b", "a><b>", "é<"])
            .unwrap()
    }

    #[test]
    fn overlapping_names_are_all_broken() {
        let marked = mark("x<a><b>é<a>", &names());
        assert_eq!(names().find(&marked), None, "{marked:?}");
        assert_eq!(unmark(&marked), "x<a><b>é<a>");
        assert_eq!(enclose(" \n hi ", &names()), format!(" \n {BREAK}hi{BREAK} "));
        assert_eq!(enclose(" ", &names()), " ");
    }

    proptest! {
        #[test]
        fn marks_break_every_name_and_leave_no_trace(
            before in "[<aé>b\u{fdd0}\u{fdd1} ]{0,12}", after in "[<aé>b\u{fdd0}\u{fdd1} ]{0,12}",
        ) {
            let both = enclose(&before, &names()) + &enclose(&after, &names());
            prop_assert_eq!(names().find(&both), None);
            prop_assert_eq!(unmark(&both), before + &after);
        }
    }

    #[test]
    fn a_template_sees_messages_prompt_and_token_names() {
        let source = "{% for message in messages %}\n{{ bos_token }}{{ message['role'] }}: \
             {{ message['content'] }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}?{% endif %}";
        let chat = ChatTemplate::new(source.into(), "<s>".into(), "</s>".into()).unwrap();
        let message = ChatMessage { role: "user".into(), content: "<b>".into() };
        let messages = [message.clone(), message];
        let rendered = chat.render(&names(), &messages, true).unwrap();
        assert_eq!(unmark(&rendered), "<s>user: <b></s>\n<s>user: <b></s>\n?");
        assert_eq!(chat.render(&names(), &[], false).unwrap(), "");
    }

    #[test]
    fn a_template_may_refuse_and_may_not_run_for_ever() {
        let refuse =
            ChatTemplate::new("{{ raise_exception('no') }}".into(), String::new(), String::new());
        assert!(
            refuse.unwrap().render(&names(), &[], true).unwrap_err().to_string().contains("no")
        );
        let long = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        let chat = ChatTemplate::new(long.into(), String::new(), String::new()).unwrap();
        assert_eq!(chat.render(&names(), &[], true).unwrap_err().kind(), ErrorKind::OutOfFuel);
    }
}
