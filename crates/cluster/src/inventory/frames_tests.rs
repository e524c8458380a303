use proptest::prelude::*;

use super::*;

const WHOLE: &str = "railweave-capture/1\nT clock 3\n123\nF /a/b 4\none\n\nL /a/c 5\n../..\nX rdma 4\ngone\nZ end 0\n\n";

#[test]
fn a_whole_capture_is_read() {
    let recording = parse(WHOLE.as_bytes()).unwrap();
    assert_eq!(recording.files["/a/b"], "one\n");
    assert_eq!(recording.links["/a/c"], "../..");
    assert_eq!(recording.tools["clock"], ToolOutput::Printed("123".into()));
    assert_eq!(recording.tools["rdma"], ToolOutput::Failed("gone".into()));
}

#[test]
fn content_that_looks_like_a_frame_is_content() {
    let text = "railweave-capture/1\nF /a 14\nF /etc/x 1\nz\n\n\nZ end 0\n\n";
    let recording = parse(text.as_bytes()).unwrap();
    assert_eq!(recording.files.len(), 1);
    assert_eq!(recording.files["/a"], "F /etc/x 1\nz\n\n");
}

#[test]
fn a_capture_that_was_cut_off_is_no_capture() {
    for length in 0..WHOLE.len() - 1 {
        let error = parse(&WHOLE.as_bytes()[..length]).unwrap_err();
        let fits = match error {
            CaptureError::NotACapture { .. } => length < 20,
            CaptureError::CutOff { .. } => length >= 20,
            _ => false,
        };
        assert!(fits, "{length}: {error}");
    }
}

#[test]
fn a_login_shell_that_talks_is_named() {
    let error = parse(b"Welcome!\nrailweave-capture/1\n").unwrap_err();
    assert!(error.to_string().contains("Welcome!"), "{error}");
    assert!(error.to_string().contains("login shell"), "{error}");
}

#[test]
fn hostile_frames_are_refused_with_their_place() {
    for (frame, word) in [
        ("F /../etc/passwd 0\n\n", ".."),
        ("F /a/../../b 0\n\n", ".."),
        ("F etc/passwd 0\n\n", "absolute"),
        ("L //a 0\n\n", "empty part"),
        ("F /a\u{1}b 0\n\n", "control"),
        ("T ../x 0\n\n", "name of a tool"),
        ("T .hidden 0\n\n", "name of a tool"),
        ("X a/b 0\n\n", "name of a tool"),
        ("Q a 0\n\n", "kind of frame"),
        ("F /a\n", "KIND NAME LENGTH"),
        ("F /a -1\n", "KIND NAME LENGTH"),
        ("F /a 18446744073709551615\n", "more than"),
        ("F /a 99999999999999999999999\n", "KIND NAME LENGTH"),
    ] {
        let error = parse(format!("{HEADER}\n{frame}Z end 0\n\n").as_bytes()).unwrap_err();
        let CaptureError::Frame { at, what } = &error else { panic!("{frame:?}: {error}") };
        assert_eq!(*at, HEADER.len() + 1, "{frame:?}");
        assert!(what.contains(word), "{frame:?}: {what}");
    }
}

#[test]
fn what_is_no_text_is_read_all_the_same() {
    let mut output = format!("{HEADER}\nF /a 2\n").into_bytes();
    output.extend([0xff, 0x00]);
    output.extend(b"\nZ end 0\n\n");
    assert_eq!(parse(&output).unwrap().files["/a"], "\u{fffd}\0");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(tail in prop::collection::vec(any::<u8>(), 0..400), cut in 0..WHOLE.len()) {
        let mut output = WHOLE.as_bytes()[..cut].to_vec();
        output.extend(tail);
        drop(parse(&output));
    }
}
