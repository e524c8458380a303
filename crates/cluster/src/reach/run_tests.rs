use super::*;

fn sh(script: &str, stdin: &[u8], limit: Duration) -> Result<Output, ReachError> {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    run("host", "true", command, stdin, limit)
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn input_outputs_and_status_are_all_there() {
    let output = sh("cat; echo wrong >&2; exit 3", b"words", LONG).unwrap();
    assert_eq!(
        (output.status, &output.stdout[..], &output.stderr[..]),
        (3, &b"words"[..], &b"wrong\n"[..])
    );
    assert!(output.first_byte.is_some());
    assert_eq!(sh("kill -TERM $$", b"", LONG).unwrap().status, 128 + 15);
    assert_eq!(sh("true", b"", LONG).unwrap().first_byte, None);
}

#[test]
fn a_command_that_reads_nothing_blocks_nobody() {
    let much = vec![b'x'; 1 << 20];
    assert_eq!(sh("exit 0", &much, LONG).unwrap().status, 0);
    // Both pipes are full before either is read to its end.
    let output = sh("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2", &much, LONG).unwrap();
    assert_eq!((output.stdout.len(), output.stderr.len()), (300_000, 300_000));
}

#[test]
fn what_takes_too_long_is_ended_with_all_it_started() {
    let mark = std::env::temp_dir().join(format!("rw-run-{}", std::process::id()));
    let script = format!("(sleep 2; touch {}) & sleep 60", mark.display());
    let start = Instant::now();
    let error = sh(&script, b"", Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, ReachError::Late { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    thread::sleep(Duration::from_millis(2500));
    assert!(!mark.exists(), "what it started lived on");
}

#[test]
fn a_command_that_closes_its_outputs_is_still_bounded() {
    let start = Instant::now();
    let error = sh("exec >&- 2>&-; sleep 60", b"", Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, ReachError::Late { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn output_without_end_is_refused() {
    let error = sh("cat /dev/zero", b"", LONG).unwrap_err();
    assert!(error.to_string().contains("more than 33554432 bytes"), "{error}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let error = run("host", "true", Command::new("no-such-program"), b"", LONG).unwrap_err();
    assert!(error.to_string().starts_with("host: cannot start no-such-program: "), "{error}");
}
