//! Commands that need no running server: what they print, and their exit codes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::run;

#[test]
fn config_prints_every_key_and_its_place() {
    let ran = run(&["config", "--ranks", "2"], &[("RAILWEAVE_PATIENCE_COMPUTE", "20s")]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let line = |key: &str| {
        let lines = ran.stdout.lines();
        lines.filter(|line| line.split_whitespace().next() == Some(key)).collect::<Vec<_>>()
    };
    assert!(line("ranks")[0].contains("flag --ranks"));
    assert!(line("patience.compute")[0].contains("environment RAILWEAVE_PATIENCE_COMPUTE"));
    assert!(line("rails")[0].contains("default"));

    let ran = run(&["config", "--json"], &[("RAILWEAVE_TOKEN", "hunter2")]);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["schema"], 1);
    assert!(!ran.stdout.contains("hunter2"));
}

#[test]
fn wrong_settings_exit_with_2_and_name_key_place_and_nearest() {
    for (arguments, environment, expected) in [
        (vec!["config", "--ranks", "9"], vec![], "flag --ranks"),
        (vec!["config"], vec![("RAILWEAVE_RANK", "2")], "did you mean RAILWEAVE_RANKS?"),
        (vec!["config", "--config", "/nonexistent.toml"], vec![], "/nonexistent.toml"),
        (vec!["config", "--rankz", "2"], vec![], "--rank"),
        (vec!["serve", "--topology", "rong"], vec![], "the nearest is \"ring\""),
        (vec!["serve", "--model", "smolm2-135m"], vec![], "did you mean smollm2-135m?"),
        (vec!["serve"], vec![("RANK", "1")], "WORLD_SIZE"),
        (vec!["serve", "--listen", "0.0.0.0:1"], vec![], "allow_remote"),
        (vec!["set", "patience.compute=1"], vec![], "no unit"),
        (vec!["set", "patience.compute"], vec![], "KEY=VALUE"),
        (vec!["status", "--metrics-listen", "127.0.0.1:0"], vec![], "--at"),
        (vec![], vec![], "Usage"),
    ] {
        let ran = run(&arguments, &environment);
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn no_server_is_exit_code_3() {
    // Port 1 needs a privilege to listen on, so nobody does by chance.
    for arguments in [
        vec!["status", "--at", "127.0.0.1:1"],
        vec!["status", "--at", "127.0.0.1:1", "--wait", "200ms"],
        vec!["set", "prefill_chunk=256", "--at", "127.0.0.1:1"],
        vec!["ask", "hi", "--listen", "127.0.0.1:1"],
    ] {
        let ran = run(&arguments, &[]);
        assert_eq!(ran.code, 3, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("127.0.0.1:1"), "{}", ran.stderr);
    }
}

#[test]
fn a_model_that_was_not_fetched_says_how_to_fetch_it() {
    let ran = run(&["serve"], &[("XDG_CACHE_HOME", "/nonexistent")]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("scripts/fetch-model"), "{}", ran.stderr);
}

#[test]
fn an_address_that_is_taken_is_named_with_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let model = std::env::temp_dir().join(format!("railweave-taken-{}.gguf", std::process::id()));
    std::fs::write(&model, "fake").unwrap();
    let ran = run(&["serve", "--listen", &address, "--model", model.to_str().unwrap()], &[]);
    std::fs::remove_file(model).unwrap();
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains(&address) && ran.stderr.contains("--listen"), "{}", ran.stderr);
}

#[test]
fn a_rank_without_a_supervisor_says_who_starts_it() {
    let ran = run(&["rank", "0"], &[]);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("railweave serve"), "{}", ran.stderr);
}
