//! The whole command line and supervisor over fake ranks: start, ask, set, kill, restart, stop, and nothing left.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{Server, run, wait_until};

#[test]
fn a_server_starts_answers_and_is_seen_on_every_rank() {
    let server = Server::start("answers", 3, &[]);
    assert_eq!(server.metrics.len(), 3);

    let asked = run(&["ask", "Capital of France?", "--listen", &server.api], &[]);
    assert_eq!((asked.code, asked.stdout.as_str()), (0, "Paris.\n"), "{}", asked.stderr);
    assert!(asked.stderr.contains("2 tokens"), "{}", asked.stderr);

    let status = run(&["status", "--at", &server.at(), "--wait", "5s"], &[]);
    assert_eq!(status.code, 0, "{}", status.stderr);
    assert_eq!(status.stdout.lines().filter(|line| line.contains("idle")).count(), 3);

    let json = run(&["status", "--json", "--at", &server.at()], &[]);
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["ranks"][2]["progress"]["sequence"], 7);

    server.interrupt_and_expect(130, Duration::from_secs(4));
}

#[test]
fn a_setting_is_changed_on_every_rank_and_outlives_a_restart() {
    let server = Server::start("settings", 2, &[]);
    let set = run(&["set", "patience.compute=20s", "--at", &server.at()], &[]);
    assert_eq!(set.code, 0, "{}", set.stderr);
    assert_eq!(
        set.stdout,
        "rank 0: patience.compute was 60s, is 20s\nrank 1: patience.compute was 60s, is 20s\n"
    );
    let set = run(&["set", "prefill_chunk=256", "--rank", "1", "--at", &server.at()], &[]);
    assert_eq!(set.stdout, "rank 1: prefill_chunk was 512, is 256\n");
    let set = run(&["set", "patience.compte=1s", "--at", &server.at()], &[]);
    assert_eq!(set.code, 2);
    assert!(set.stderr.contains("did you mean patience.compute?"), "{}", set.stderr);

    let before = server.pid(1);
    server.poke(1, "/abort");
    wait_until("rank 1 to be restarted", || server.try_pid(1).is_some_and(|after| after != before));
    let set = run(&["set", "patience.compute=30s", "--rank", "1", "--at", &server.at()], &[]);
    assert_eq!(set.stdout, "rank 1: patience.compute was 20s, is 30s\n", "{}", set.stderr);
    server.interrupt_and_expect(130, Duration::from_secs(4));
}

#[test]
fn a_rank_that_aborts_is_restarted_alone_and_the_others_are_told_why() {
    let server = Server::start("restart", 3, &[]);
    let before: Vec<_> = (0..3).map(|rank| server.pid(rank)).collect();
    server.poke(1, "/abort");
    wait_until("rank 1 to be restarted", || {
        server.try_pid(1).is_some_and(|after| after != before[1])
    });
    assert_eq!((server.pid(0), server.pid(2)), (before[0], before[2]));
    for rank in [0, 2] {
        wait_until("the others to be told", || {
            let notes = server.progress(rank)["notes"].to_string();
            notes.contains(r#"{\"signal\":6}"#) && notes.contains("restarted")
        });
    }
    server.interrupt_and_expect(130, Duration::from_secs(4));
}

#[test]
fn a_failure_that_a_restart_cannot_help_ends_everything() {
    let mut server = Server::start("hopeless", 2, &[]);
    let pids = server.pids();
    server.poke(1, "/fail");
    let (code, stderr) = server.wait(Duration::from_secs(8));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the fake model is gone"), "{stderr}");
    common::expect_gone(&pids);
}

#[test]
fn a_rank_that_ignores_the_stop_is_killed_after_five_seconds() {
    let server = Server::start("deaf", 2, &[]);
    server.poke(1, "/deaf");
    let took = server.interrupt_and_expect(130, Duration::from_secs(8));
    assert!(took > Duration::from_millis(4900), "{took:?}");
}

#[test]
fn a_second_interrupt_does_not_wait() {
    let server = Server::start("second", 2, &[]);
    server.poke(1, "/deaf");
    server.signal("INT");
    std::thread::sleep(Duration::from_millis(300));
    server.interrupt_and_expect(130, Duration::from_secs(3));
}

#[test]
fn ranks_die_with_a_supervisor_that_is_killed() {
    let mut server = Server::start("orphans", 3, &[]);
    let pids = server.pids();
    server.poke(2, "/deaf");
    server.signal("KILL");
    let (code, _) = server.wait(Duration::from_secs(5));
    assert_eq!(code, None);
    common::expect_gone(&pids);
}

#[test]
fn secrets_are_in_no_command_line_and_no_environment_of_a_rank() {
    let server = Server::start("secrets", 1, &[("RAILWEAVE_TOKEN", "s3cret-token")]);
    let pid = server.pid(0);
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.is_empty() && !text.contains("s3cret-token"), "{file}: {text}");
    }
    server.interrupt_and_expect(130, Duration::from_secs(4));
}

#[test]
fn under_a_launcher_the_process_is_the_rank_itself() {
    let metrics = common::free_ports(2);
    let model =
        std::env::temp_dir().join(format!("railweave-launched-{}.gguf", std::process::id()));
    std::fs::write(&model, "fake").unwrap();
    let arguments = [
        "serve",
        "--model",
        model.to_str().unwrap(),
        "--metrics-listen",
        &format!("127.0.0.1:{metrics}"),
    ];
    let seat = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29500"),
    ];
    let refused = run(&arguments, &seat);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("RAILWEAVE_TOKEN"), "{}", refused.stderr);

    let mut environment = seat.to_vec();
    environment.push(("RAILWEAVE_TOKEN", "shared"));
    let mut child = common::command(&arguments, &environment).spawn().unwrap();
    let address = format!("127.0.0.1:{}", metrics + 1);
    wait_until("the rank to answer", || run(&["status", "--at", &address], &[]).code == 0);
    let status = run(&["status", "--json", "--at", &address], &[]);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["ranks"][0]["progress"]["rank"], 1);
    assert_eq!(status["ranks"][0]["progress"]["pid"], u64::from(child.id()));
    let kill = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    std::fs::remove_file(model).unwrap();
}
