use std::collections::BTreeMap;

use super::*;

fn printed(name: &str, text: &str) -> Recording {
    let tools = BTreeMap::from([(name.into(), ToolOutput::Printed(text.into()))]);
    Recording { tools, ..Recording::default() }
}

fn after(name: &str, text: &str) -> String {
    redacted(&printed(name, text)).printed(name).unwrap().to_owned()
}

#[test]
fn secrets_of_every_kind_are_gone() {
    let line = "root=/dev/sda1 HF_TOKEN=hf_planted --api-key planted1 --api-key=planted2 wg.private-key=planted3 \
                password: planted4 wifi_psk=planted5 AWS_SECRET_ACCESS_KEY=planted6 quiet\n";
    let mut recording = printed(
        "markers",
        "pid 7\narg x\narg --auth-token\narg planted7\narg --device\narg mlx5_0\n",
    );
    recording.files.insert("/proc/cmdline".into(), line.into());
    recording
        .tools
        .insert("environment".into(), ToolOutput::Printed("RAY_PASSWORD=planted8\n".into()));
    let copy = redacted(&recording);
    let everything = format!("{copy:?}");
    assert!(!everything.contains("planted"), "{everything}");
    assert_eq!(
        copy.printed("markers").unwrap(),
        "pid 7\narg x\narg --auth-token\narg [left out]\narg --device\narg mlx5_0\n"
    );
    assert!(
        copy.files["/proc/cmdline"]
            .starts_with("root=/dev/sda1 HF_TOKEN=[left out] --api-key [left out] ")
    );
    assert!(copy.files["/proc/cmdline"].ends_with("quiet\n"));
}

#[test]
fn public_addresses_are_gone_and_private_ones_stay() {
    let text = r#"[{"dst":"default","gateway":"203.0.114.9"},{"dst":"8.8.8.0/24"},{"local":"2a02:810d:1::5"},{"x":"9.9.9.9:53"}]"#;
    assert_eq!(
        after("ip-route", text),
        r#"[{"dst":"default","gateway":"[left out]"},{"dst":"[left out]/24"},{"local":"[left out]"},{"x":"[left out]:53"}]"#
    );
    let kept = r#"[{"dst":"10.10.2.2","lladdr":"4c:bb:47:00:01:10"},{"a":"192.168.1.1"},{"b":"fe80::4ebb:47ff:fe00:1"},{"c":"127.0.0.1"},{"d":"169.254.3.3"},{"e":"100.64.0.1"}]"#;
    assert_eq!(after("ip-neigh", kept), kept);
}

#[test]
fn versions_devices_and_clocks_are_no_addresses() {
    for text in [
        "6.17.0-1014-nvidia",
        "28.45.4028",
        "rocep1s0f0",
        "1793620800000000000",
        "0000:01:00.0",
        "v1.2.3.4-x",
    ] {
        assert_eq!(after("ibv_devinfo", text), text);
    }
    let gid = "0000:0000:0000:0000:0000:ffff:0a0a:0001";
    assert_eq!(after("x", gid), gid);
    assert_eq!(after("x", "0000:0000:0000:0000:0000:ffff:0808:0808"), LEFT_OUT);
}

#[test]
fn json_stays_json() {
    let text = r#"[{"gateway":"1.1.1.1","metric":100}]"#;
    let value: serde_json::Value = serde_json::from_str(&after("ip-route", text)).unwrap();
    assert_eq!(value[0]["metric"], 100);
}
