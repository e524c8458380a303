use std::net::{TcpListener, TcpStream};

use super::*;

/// Runs `/bin/sh` as every rank. The script gets its rank as `$1`, and the hand-over on standard input.
fn shell(script: &str) -> RankProgram {
    RankProgram {
        program: "/bin/sh".into(),
        arguments: vec!["-c".to_owned(), script.to_owned(), "rank".to_owned()],
    }
}

fn settings(ranks: u32, restart_limit: u32) -> Settings {
    Settings { ranks, restart_limit, ..Settings::default() }
}

fn run(settings: Settings, script: &str) -> Outcome {
    let mut screen = Screen::new(settings.ranks, "test");
    supervise(settings, &shell(script), &mut screen).unwrap()
}

#[test]
fn a_rank_that_keeps_dying_ends_everything_with_its_last_words() {
    let script = r#"echo '{"event":"failed","error":"no such model","retry":true}'; exit 1"#;
    let Outcome::Failed(reason) = run(settings(1, 1), script) else { panic!("it should fail") };
    assert!(reason.contains("rank 0") && reason.contains("no such model"), "{reason}");
    assert!(reason.contains("restarted 1 times"), "{reason}");
}

#[test]
fn a_signal_is_named_and_living_ranks_are_told_and_stopped() {
    let folder = std::env::temp_dir().join(format!("railweave-edge-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let seen = folder.join("seen");
    // Rank 0 copies what it is told to a file until its input ends; rank 1 dies by a signal once rank 0 has begun.
    let script = format!(
        r#"if [ "$1" = 0 ]; then trap '' TERM; cat > {0}; else
             while [ ! -s {0} ]; do sleep 0.02; done; kill -SEGV $$; fi"#,
        seen.display()
    );
    let Outcome::Failed(reason) = run(settings(2, 0), &script) else { panic!("it should fail") };
    assert!(reason.contains("SIGSEGV"), "{reason}");
    let told = std::fs::read_to_string(&seen).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(told.starts_with("settings "), "{told}");
    assert!(told.contains(r#"{"note":"exited","rank":1,"exit":{"signal":11}}"#), "{told}");
}

#[test]
fn a_program_that_is_missing_is_a_clear_failure() {
    let mut screen = Screen::new(1, "test");
    let missing = RankProgram { program: "/nonexistent/rank".into(), arguments: Vec::new() };
    let Outcome::Failed(reason) = supervise(settings(1, 0), &missing, &mut screen).unwrap() else {
        panic!("it should fail")
    };
    assert!(reason.contains("/nonexistent/rank"), "{reason}");
}

#[test]
fn a_reserved_port_can_be_listened_on_again_and_again() {
    let (reservation, address) = reserve_port().unwrap();
    assert!(TcpStream::connect(address).is_err());
    for _ in 0..2 {
        let listener = TcpListener::bind(address).unwrap();
        assert!(TcpStream::connect(address).is_ok());
        drop(listener);
    }
    drop(reservation);
}
