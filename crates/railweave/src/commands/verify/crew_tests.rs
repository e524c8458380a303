use super::*;

const LIMIT: Duration = Duration::from_secs(5);

/// An agent that is a shell script.
fn script(text: &str) -> Agent {
    let mut command = Command::new("sh");
    command.args(["-c", text]);
    Agent::start("h2", command).unwrap()
}

const HERE: &str =
    r#"echo '{"said":"here","schema":"railweave-agent/2","version":"0","boot_id":null}'; "#;

#[test]
fn what_is_printed_before_the_greeting_is_shown_tame_and_short() {
    let mut agent = script(r"printf 'hello\033[2J\000\342\200\256'; printf '%0500d\n' 0; cat");
    let error = agent.greet(LIMIT).unwrap_err().to_string();
    let head = r"the agent on h2 said what makes no sense: hello\u{1b}[2J\u{0}\u{202e}0000";
    assert!(error.starts_with(head) && error.ends_with("000…"), "{error}");
    assert!(error.chars().count() < 170, "{error}");
}

#[test]
fn text_within_an_answer_is_tame() {
    let mut agent = script(&format!(
        "{HERE} read order; echo '{}'; cat",
        r#"{"said":"failed","id":7,"fault":{"step":"begin","why":"a\u001b[31mb\u202ec","offset":null,"late":false}}"#
    ));
    agent.greet(LIMIT).unwrap();
    agent.give(&Order::Counters { id: 7 }).unwrap();
    let Said::Failed { fault, .. } = agent.answer(7, LIMIT).unwrap() else { panic!() };
    assert_eq!(fault.why, r"a\u{1b}[31mb\u{202e}c");
}

#[test]
fn how_it_ended_and_what_it_printed_last_are_told() {
    for (end, told) in [
        ("kill -9 $$", "the agent on h2 ended (signal: 9 (SIGKILL))"),
        ("exit 0", "the agent on h2 ended (exit status: 0)"),
        (
            r"printf 'no\033[2J such\nhost\n' >&2; exit 3",
            r"the agent on h2 ended (exit status: 3): no\u{1b}[2J such; host",
        ),
    ] {
        let mut agent = script(&format!("{HERE} sleep 0.1; {end}"));
        agent.greet(LIMIT).unwrap();
        assert_eq!(agent.answer(1, LIMIT).unwrap_err().to_string(), told);
    }
}

#[test]
fn one_that_is_stopped_is_late_and_is_ended_at_once() {
    let mut agent = script(&format!("{HERE} kill -STOP $$; cat"));
    agent.greet(LIMIT).unwrap();
    agent.give(&Order::Counters { id: 1 }).unwrap();
    let limit = Duration::from_millis(200);
    let began = Instant::now();
    let error = agent.answer(1, limit).unwrap_err();
    assert_eq!(error, AgentError::Late { host: "h2".to_owned(), limit });
    agent.abandon();
    assert!(began.elapsed() < END_LIMIT, "{:?}", began.elapsed());
}
