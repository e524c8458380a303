use std::path::PathBuf;

use super::*;

/// A folder of its own for one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rw-recording-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&path));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn with(self, path: &str, content: &str) -> Self {
        let at = self.0.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, content).unwrap();
        self
    }

    fn refusal(&self) -> String {
        Recording::load(&self.0).unwrap_err().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn example() -> Recording {
    Recording {
        files: BTreeMap::from([("/sys/class/net/a/mtu".into(), "1500\n".into())]),
        links: BTreeMap::from([("/sys/class/net/a/device".into(), "../0000:01:00.0".into())]),
        tools: BTreeMap::from([
            ("ip-route".into(), ToolOutput::Printed("[]".into())),
            ("devlink-eswitch.0000:01:00.0".into(), ToolOutput::Failed("not installed".into())),
        ]),
    }
}

#[test]
fn a_recording_reads_back_as_it_was_written() {
    let folder = Folder::new("round");
    example().save(&folder.0).unwrap();
    assert_eq!(Recording::load(&folder.0).unwrap(), example());
    // A tool that failed before and prints now leaves only what it prints.
    let mut changed = example();
    changed.tools.insert("devlink-eswitch.0000:01:00.0".into(), ToolOutput::Printed("{}".into()));
    changed.save(&folder.0).unwrap();
    assert_eq!(Recording::load(&folder.0).unwrap(), changed);
}

#[test]
fn what_is_no_recording_is_refused() {
    let empty = Folder::new("empty");
    assert!(empty.refusal().contains("holds no recording"), "{}", empty.refusal());
    let odd = Folder::new("odd").with("tools/ip-route.txt", "");
    assert!(odd.refusal().contains(".out or .err"), "{}", odd.refusal());
    let both = Folder::new("both").with("tools/a.out", "").with("tools/a.err", "");
    assert!(both.refusal().contains("both a.out and a.err"), "{}", both.refusal());
    let deep = Folder::new("deep").with("tools/a/b.out", "");
    assert!(deep.refusal().contains("name of a tool"), "{}", deep.refusal());
}

#[test]
fn links_out_of_a_recording_are_not_followed() {
    let folder = Folder::new("link").with("files/proc/cmdline", "quiet");
    std::os::unix::fs::symlink("/etc/hostname", folder.0.join("files/proc/secret")).unwrap();
    assert!(folder.refusal().contains("only files and folders"), "{}", folder.refusal());
}

#[test]
fn what_is_too_large_is_refused() {
    let folder = Folder::new("large").with("files/a", &"x".repeat(FILE_LIMIT_BYTES + 1));
    assert!(folder.refusal().contains("more than 262144 bytes"), "{}", folder.refusal());
    let nested = format!("files/{}x", "d/".repeat(DEPTH_LIMIT + 2));
    let folder = Folder::new("nested").with(&nested, "");
    assert!(folder.refusal().contains("folders within folders"), "{}", folder.refusal());
}

#[test]
fn names_that_lead_out_are_never_written() {
    let folder = Folder::new("out");
    for path in ["/../x", "x", "/a/../../x", "//x"] {
        let recording = Recording {
            files: BTreeMap::from([(path.into(), "x".into())]),
            ..Recording::default()
        };
        assert!(
            matches!(recording.save(&folder.0.join("r")), Err(RecordingError::Name { .. })),
            "{path}"
        );
        let recording = Recording {
            links: BTreeMap::from([(path.into(), "x".into())]),
            ..Recording::default()
        };
        assert!(
            matches!(recording.save(&folder.0.join("r")), Err(RecordingError::Name { .. })),
            "{path}"
        );
    }
    for name in ["../x", "a/b", "", ".x", "a b"] {
        let tools = BTreeMap::from([(name.into(), ToolOutput::Printed("x".into()))]);
        let recording = Recording { tools, ..Recording::default() };
        assert!(
            matches!(recording.save(&folder.0.join("r")), Err(RecordingError::Name { .. })),
            "{name}"
        );
    }
    assert!(!folder.0.join("x").exists());
}
