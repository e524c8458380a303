use super::*;

fn way(text: &str) -> Result<Way, ReachError> {
    Reach::parse("h", text).map(|reach| reach.way)
}

fn words(text: &str, argv: &[&str]) -> Vec<String> {
    let command = Reach::parse("h", text).unwrap().command(argv).unwrap();
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    all.map(|word| word.to_str().unwrap().to_owned()).collect()
}

#[test]
fn the_four_ways_are_read() {
    assert_eq!(way("local").unwrap(), Way::Local);
    assert_eq!(way("ssh:me@spark0").unwrap(), Way::Ssh { target: "me@spark0".into() });
    assert_eq!(way("netns:rw-h0").unwrap(), Way::Netns { name: "rw-h0".into() });
    assert_eq!(way("recorded:a/b").unwrap(), Way::Recorded { folder: "a/b".into() });
    let reach = Reach::parse_in("h", "recorded:a", Path::new("/base")).unwrap();
    assert_eq!(reach.way, Way::Recorded { folder: "/base/a".into() });
}

#[test]
fn what_could_be_taken_for_something_else_is_refused() {
    for text in [
        "",
        "Local",
        "ssh:",
        "ssh:-oProxyCommand=x",
        "ssh:a b",
        "ssh:a;b",
        "ssh:$(x)",
        "netns:",
        "netns:-x",
        "netns:../x",
        "netns:.x",
        "netns:a/b",
        "recorded:",
        "ftp:x",
    ] {
        let error = way(text).unwrap_err();
        assert!(matches!(error, ReachError::Unknown(_)), "{text}");
        assert!(error.to_string().contains("ssh:TARGET"), "{error}");
    }
}

#[test]
fn words_reach_the_other_side_whole() {
    let argv = ["tool", "a b", "it's", "$HOME;`x`", "", "plain-1.2/x"];
    let over = words("ssh:spark0", &argv);
    assert_eq!(over[..6], ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--"]);
    assert_eq!(over[6], "spark0");
    assert_eq!(over.len(), 8);
    // A shell reads the one word back as the words it was made from.
    let shell =
        format!("show() {{ for word; do printf '%s|' \"$word\"; done; }}; show {}", over[7]);
    let output = Command::new("sh").args(["-c", &shell]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "tool|a b|it's|$HOME;`x`||plain-1.2/x|");
    assert_eq!(words("netns:rw-x", &["ip", "a b"]), ["ip", "netns", "exec", "rw-x", "ip", "a b"]);
    assert_eq!(words("local", &["ip", "a b"]), ["ip", "a b"]);
}

#[test]
fn a_recording_is_loaded_and_never_changed() {
    let folder = concat!("recorded:", env!("CARGO_MANIFEST_DIR"), "/fixtures/gb10-ring4/spark2");
    let reach = Reach::parse("spark2", folder).unwrap();
    let recording = reach.capture(Duration::from_secs(1)).unwrap();
    assert_eq!(recording.files["/proc/sys/kernel/hostname"], "spark2\n");
    let error = reach.run(&["true"], b"", Duration::from_secs(1)).unwrap_err();
    assert!(matches!(error, ReachError::ReadOnly { .. }), "{error}");
    assert!(reach.command(&["true"]).is_err());
    let gone = Reach::parse("spark9", "recorded:/nowhere")
        .unwrap()
        .capture(Duration::from_secs(1))
        .unwrap_err();
    assert!(gone.to_string().starts_with("spark9: /nowhere holds no recording"), "{gone}");
}
