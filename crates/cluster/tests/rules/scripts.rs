//! The script that carries changes out: readable, safe to read back, and it names the step that fails.

use std::process::Command;

use cluster::address::Pci;
use cluster::rules::{Change, MarkerProgram, diff, script, unit};

fn link(netdev: &str) -> Change {
    Change::LinkUp { netdev: netdev.to_owned() }
}

#[test]
fn nothing_to_change_is_a_script_that_does_nothing() {
    let text = script(&[]);
    assert_eq!(text, "#!/bin/sh\n# Railweave: nothing to change.\nset -eu\n");
    assert_eq!(diff(&[]), "");
}

#[test]
fn hostile_names_stay_words_and_comments() {
    let evil = "x; rm -rf '$HOME' `id`\nreboot";
    let text = script(&[link(evil), link("enp1s0f0np0")]);
    // The shell sees one word where there was one.
    let text = text.replace("ip link set dev", "printf '<%s>'");
    let out = Command::new("sh").arg("-c").arg(&text).output().unwrap();
    assert!(out.status.success());
    assert_eq!(String::from_utf8(out.stdout).unwrap(), format!("<{evil}><up><enp1s0f0np0><up>"));
    assert!(!diff(&[link(evil)]).trim_end().contains('\n'));
}

#[test]
fn the_step_that_fails_is_named_and_later_ones_are_not_tried() {
    let text = script(&[link("a"), link("b"), link("c")]);
    let text = text
        .replace("ip link set dev a up", "echo one")
        .replace("ip link set dev b up", "false")
        .replace("ip link set dev c up", "echo three");
    let out = Command::new("sh").arg("-c").arg(&text).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(String::from_utf8(out.stdout).unwrap(), "one\n");
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(said, "railweave: step 2 of 3 failed; later steps were not tried\n");
}

#[test]
fn a_marker_that_is_not_ours_is_not_stopped() {
    let stop = Change::StopMarker {
        device: "rocep1s0f0".to_owned(),
        pid: 77,
        rules: None,
        program: Some(MarkerProgram::default()),
    };
    // A systemctl that says the unit's process is the first argument of the test, and records what it is told to stop.
    let run = |main_pid: u32| {
        let fake = format!(
            "systemctl() {{ case $1 in show) echo {main_pid};; *) echo \"$@\";; esac; }}\n"
        );
        let argv = stop.argv();
        assert_eq!(argv[..2], ["sh".to_owned(), "-c".to_owned()]);
        let text = format!("{fake}{}", argv[2]);
        Command::new("sh").arg("-c").arg(text).args(&argv[3..]).output().unwrap()
    };
    let ours = run(77);
    assert!(ours.status.success());
    assert_eq!(ours.stdout, b"stop railweave-mark-rocep1s0f0.service\n");
    let foreign = run(78);
    assert!(!foreign.status.success());
    assert_eq!(foreign.stdout, b"");
}

#[test]
fn a_unit_takes_odd_paths_and_refuses_worse() {
    let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let text = unit(
        "/opt/rail weave/bin",
        "/etc/100%/c$x.toml",
        "spark1",
        &words(&["--forward", "auto"]),
        &words(&["--set-mtu", "--marker", "/opt/a b"]),
    )
    .unwrap();
    for line in [
        "ExecStart=\"/opt/rail weave/bin\" apply --apply --set-mtu --marker \"/opt/a b\" --forward auto --host spark1 \
         /etc/100%%/c$$x.toml\n",
        "ExecStart=\"/opt/rail weave/bin\" check --forward auto --host spark1 /etc/100%%/c$$x.toml\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    for (binary, file, host) in [
        ("railweave", "/etc/c.toml", "a"),
        ("/bin/railweave", "c.toml", "a"),
        ("/bin/railweave", "/etc/c.toml", ""),
        ("/bin/railweave", "/etc/c.toml\nExecStart=/bin/sh", "a"),
    ] {
        assert!(unit(binary, file, host, &[], &[]).is_err(), "{binary} {file} {host}");
    }
}

#[test]
fn commands_are_those_that_iproute2_and_devlink_read() {
    let pci: Pci = "0000:01:00.1".parse().unwrap();
    let reload = Change::Reload { pci, netdev: "enp1s0f1np1".to_owned() };
    assert_eq!(reload.argv().join(" "), "devlink dev reload pci/0000:01:00.1 action driver_reinit");
    assert_eq!(reload.undo(), None);
    assert!(reload.disturbs());
    let address = Change::AddAddress {
        netdev: "enp1s0f1np1".to_owned(),
        address: "10.10.0.2/24".parse().unwrap(),
    };
    assert_eq!(address.argv().join(" "), "ip address replace 10.10.0.2/24 dev enp1s0f1np1");
    assert!(!address.disturbs());
}
