//! Runs the command line over fake ranks.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for anything.
const LIMIT: Duration = Duration::from_secs(20);

/// The program: cargo builds examples before it runs tests.
pub(crate) fn program() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().unwrap().parent().unwrap().join("examples/fake_ranks");
    assert!(built.exists(), "build it with `cargo build -p railweave --example fake_ranks`");
    built
}

/// A command whose result does not depend on the machine's own settings.
pub(crate) fn command(arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).env("XDG_CONFIG_HOME", "/nonexistent").stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        let launcher = ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];
        if name.starts_with("RAILWEAVE_") || launcher.contains(&name.as_str()) {
            command.env_remove(name);
        }
    }
    command.envs(environment.iter().copied());
    command
}

pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
    let output = command(arguments, environment).output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Waits until something holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "waited {LIMIT:?} for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn state(pid: u64) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim().chars().next()
}

/// Waits until no process of these ids runs. A zombie without a parent that reaps it does not run.
pub(crate) fn expect_gone(pids: &[u64]) {
    wait_until("every rank to be gone", || {
        pids.iter().all(|pid| state(*pid).is_none_or(|state| state == 'Z'))
    });
}

/// The first of this many free ports in a row: a restarted rank keeps its port.
pub(crate) fn free_ports(count: u16) -> u16 {
    for _ in 0..100 {
        let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if first < u16::MAX - count && (first..first + count).all(free) {
            return first;
        }
    }
    panic!("no free ports in a row");
}

/// A server of fake ranks. Dropping it kills it, and its ranks with it.
pub(crate) struct Server {
    child: Child,
    pub(crate) api: String,
    pub(crate) metrics: Vec<String>,
    stderr: std::sync::mpsc::Receiver<String>,
    model: PathBuf,
}

impl Server {
    pub(crate) fn start(name: &str, ranks: u32, environment: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir();
        let model = folder.join(format!("railweave-fake-{}-{name}.gguf", std::process::id()));
        std::fs::write(&model, "fake").unwrap();
        let base = free_ports(ranks as u16);
        let arguments = [
            "serve",
            "--model",
            model.to_str().unwrap(),
            "--ranks",
            &ranks.to_string(),
            "--listen",
            "127.0.0.1:0",
            "--metrics-listen",
            &format!("127.0.0.1:{base}"),
        ];
        let mut child = command(&arguments, environment)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = String::new();
        let (send, stderr) = channel();
        let mut errors = child.stderr.take().unwrap();
        thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            let _ = send.send(text);
        });
        let (line, summary) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for text in output.lines().map_while(Result::ok) {
                let _ = line.send(text);
            }
        });
        let mut server = Self { child, api: String::new(), metrics: Vec::new(), stderr, model };
        loop {
            let Ok(text) = summary.recv_timeout(LIMIT) else {
                let _ = server.child.kill();
                panic!("no summary: {lines}{}", server.stderr.recv().unwrap_or_default());
            };
            lines.push_str(&text);
            lines.push('\n');
            let address = |text: &str| {
                text.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned()
            };
            match text.split_whitespace().next() {
                Some("API") => server.api = address(&text),
                Some("rank") => server.metrics.push(address(&text)),
                Some("stop") => return server,
                _ => {}
            }
        }
    }

    /// The ranks' addresses for `--at`.
    pub(crate) fn at(&self) -> String {
        self.metrics.join(",")
    }

    fn get(&self, rank: usize, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.metrics[rank]).ok()?;
        stream.set_read_timeout(Some(LIMIT)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text.split("\r\n\r\n").nth(1)?.to_owned())
    }

    pub(crate) fn progress(&self, rank: usize) -> serde_json::Value {
        serde_json::from_str(&self.get(rank, "/progress").unwrap()).unwrap()
    }

    pub(crate) fn try_pid(&self, rank: usize) -> Option<u64> {
        let text = self.get(rank, "/progress")?;
        serde_json::from_str::<serde_json::Value>(&text).ok()?["pid"].as_u64()
    }

    pub(crate) fn pid(&self, rank: usize) -> u64 {
        self.try_pid(rank).unwrap()
    }

    pub(crate) fn pids(&self) -> Vec<u64> {
        (0..self.metrics.len()).map(|rank| self.pid(rank)).collect()
    }

    /// Asks a fake rank for a path, whatever comes of it.
    pub(crate) fn poke(&self, rank: usize, path: &str) {
        let _ = self.get(rank, path);
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end: the exit code, and everything from standard error.
    pub(crate) fn wait(&mut self, limit: Duration) -> (Option<i32>, String) {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let text = self.stderr.recv_timeout(LIMIT).unwrap_or_default();
                return (status.code(), text);
            }
            assert!(Instant::now() < end, "the server did not end within {limit:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Interrupts it, and checks that it ends in time with this code and leaves no process and no listener. Gives how
    /// long it took.
    pub(crate) fn interrupt_and_expect(mut self, code: i32, limit: Duration) -> Duration {
        let pids: Vec<_> = (0..self.metrics.len()).filter_map(|rank| self.try_pid(rank)).collect();
        let begun = Instant::now();
        self.signal("INT");
        let (ended, stderr) = self.wait(limit);
        let took = begun.elapsed();
        assert_eq!(ended, Some(code), "{stderr}");
        for pid in pids {
            assert_eq!(state(pid), None, "a rank is left: {stderr}");
        }
        for address in self.metrics.iter().chain([&self.api]) {
            assert!(TcpStream::connect(address).is_err(), "{address} still listens");
        }
        took
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.model);
    }
}
