use std::io::Write;
use std::process::{Command, Stdio};

use super::*;
use crate::inventory::capture::parse;

/// What a shell prints when it is given this script.
fn run(script: &str) -> Vec<u8> {
    let mut child = Command::new("sh")
        .arg("-s")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    child.wait_with_output().unwrap().stdout
}

#[test]
fn every_tool_of_the_table_is_in_the_script() {
    let script = script();
    for tool in TOOLS.iter().filter(|tool| tool.name != CLOCK) {
        let own = matches!(tool.command, ["binary" | "variables" | "markers"]);
        let line = match tool.each {
            Each::Host if own => format!("frame T {} ", tool.name),
            Each::Host => format!("  run {} {}\n", tool.name, tool.command.join(" ")),
            _ => format!("run \"{}.$each\" {}", tool.name, tool.command[0]),
        };
        assert!(script.contains(&line), "{line}");
    }
    assert!(!script.replace("\"$@\"", "").contains('@'), "a name was not put in");
    assert!(script.is_ascii());
}

#[test]
fn the_script_only_reads() {
    let script = script();
    assert!(script.contains(">/dev/null"));
    for (at, _) in script.match_indices('>') {
        let target = &script[at + 1..];
        let nowhere = ["/dev/null", "&1", "&2"].iter().any(|known| target.starts_with(known));
        assert!(nowhere, "{}", target.lines().next().unwrap());
    }
}

#[test]
fn a_script_cut_off_on_its_way_prints_nothing() {
    let script = script();
    let most = script.trim_end().rsplit_once('\n').unwrap().0;
    assert_eq!(run(most), b"");
}

#[test]
fn what_the_script_prints_here_reads_back() {
    let recording = parse(&run(&script())).unwrap();
    assert!(recording.files.contains_key("/proc/sys/kernel/hostname"));
    assert!(recording.files.contains_key("/sys/class/net/lo/mtu"));
    // Reading the speed of the loopback fails, which must not stop what comes after it.
    assert!(!recording.files.contains_key("/sys/class/net/lo/speed"));
    assert!(recording.files["/proc/net/snmp"].lines().all(|line| line.starts_with("Ip:")));
    assert!(recording.files["/proc/self/status"].lines().all(|line| line.starts_with("Seccomp")));
    for tool in TOOLS.iter().filter(|tool| tool.each == Each::Host) {
        assert!(recording.tools.contains_key(tool.name), "{}", tool.name);
    }
    let clock = recording.printed(CLOCK).unwrap();
    assert!(clock.parse::<u128>().unwrap() > 1_500_000_000_000_000_000, "{clock}");
}

#[test]
fn filters_are_asked_for_where_there_is_an_ingress_discipline() {
    let from = script();
    let list = r#"[{"kind":"noqueue","handle":"0:","dev":"lo","root":true,"refcnt":2,"options":{}},{"kind":"clsact","handle":"ffff:","dev":"v0","parent":"ffff:fff1","options":{}},{"kind":"ingress","handle":"ffff:","dev":"v1","parent":"ffff:fff1","options":{}}]"#;
    let start = from.find("  case $disciplines in").unwrap();
    let end = start + from[start..].find("  esac\n").unwrap() + "  esac\n".len();
    let part = format!("disciplines='{list}'\nrun() {{ echo \"$*\"; }}\n{}", &from[start..end]);
    let printed = String::from_utf8(run(&part)).unwrap();
    assert_eq!(
        printed,
        "tc-filter.v0 tc -j -s filter show dev v0 ingress\ntc-filter.v1 tc -j -s filter show dev v1 ingress\n"
    );
}
