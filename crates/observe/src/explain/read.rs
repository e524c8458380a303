//! Reading dumps that may be damaged, cut off, huge or not dumps at all. Everything is bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde_json::{Map, Value};

use super::Problem;
use crate::flight::{FILE_PREFIX, FILE_SUFFIX, Header, RecorderConfig, SCHEMA};

/// Dumps looked at in one directory.
const MAX_FILES: usize = 1024;
const MAX_FILE_BYTES: u64 = 64 << 20;
/// A bounded verdict in JSON escapes stays below this.
pub(super) const MAX_LINE_BYTES: usize = 256 << 10;
/// Damaged lines named one by one in a file; the rest are counted.
const MAX_PROBLEMS_A_FILE: usize = 8;

/// A dump whose first line was read.
#[derive(Debug)]
pub(super) struct HeaderRead {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) header: Header,
}

/// An event's line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EventLine {
    pub(super) wall_ns: u64,
    pub(super) event: String,
    pub(super) fields: Map<String, Value>,
}

/// The headers of all dumps in `dir`, and what was wrong with the others.
pub(super) fn headers(dir: &Path) -> io::Result<(Vec<HeaderRead>, Vec<Problem>)> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(FILE_PREFIX) && name.ends_with(FILE_SUFFIX) {
            names.push(name);
        }
    }
    names.sort();
    let mut problems = Vec::new();
    if names.len() > MAX_FILES {
        problems.push(Problem {
            file: dir.display().to_string(),
            line: None,
            what: format!("{} dumps, only {MAX_FILES} looked at", names.len()),
        });
        names.truncate(MAX_FILES);
    }
    let mut found = Vec::new();
    for name in names {
        let path = dir.join(&name);
        match open(&path).and_then(header) {
            Ok(header) => found.push(HeaderRead { name, path, header }),
            Err(error) => problems.push(Problem {
                file: name,
                line: Some(1),
                what: format!("left out: {error}"),
            }),
        }
    }
    Ok((found, problems))
}

/// Opens a regular file, without following a link or waiting for a pipe's writer.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other(format!(
            "{} bytes, more than the {MAX_FILE_BYTES} a dump may have",
            metadata.len()
        )));
    }
    Ok(file)
}

pub(super) fn header(input: impl Read) -> io::Result<Header> {
    let mut lines = Lines::new(input.take(MAX_FILE_BYTES));
    match lines.next()? {
        Some(Text::Line(line)) => parse_header(&line).map_err(io::Error::other),
        Some(Text::TooLong) => Err(io::Error::other("the header line is too long")),
        None => Err(io::Error::other("the file is empty")),
    }
}

fn parse_header(line: &[u8]) -> Result<Header, String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| format!("no JSON header: {e}"))?;
    match value.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => {}
        Some(other) => {
            let other: String = other.chars().take(64).collect();
            return Err(format!("its schema is `{other}`, this reader knows {SCHEMA}"));
        }
        None => return Err("the first line is no dump header".into()),
    }
    serde_json::from_value(value).map_err(|e| format!("a damaged header: {e}"))
}

/// The events of a dump, at most `limit`.
pub(super) fn events(
    read: &HeaderRead,
    limit: usize,
    problems: &mut Vec<Problem>,
) -> Vec<EventLine> {
    let problem = |what: String| Problem { file: read.name.clone(), line: None, what };
    match open(&read.path) {
        Ok(file) => {
            let limit = limit.min(RecorderConfig::MAX_EVENTS);
            parse_events(file.take(MAX_FILE_BYTES), &read.name, &read.header, limit, problems)
        }
        Err(error) => {
            problems.push(problem(format!("left out: {error}")));
            Vec::new()
        }
    }
}

pub(super) fn parse_events(
    input: impl Read,
    name: &str,
    header: &Header,
    limit: usize,
    problems: &mut Vec<Problem>,
) -> Vec<EventLine> {
    let mut lines = Lines::new(input);
    let mut events = Vec::new();
    let mut damaged = 0;
    let mut number = 0;
    let problem = |line, what: String| Problem { file: name.to_owned(), line, what };
    let end = loop {
        let text = match lines.next() {
            Ok(Some(text)) => text,
            Ok(None) => break None,
            Err(error) => break Some(format!("reading stopped: {error}")),
        };
        number += 1;
        if number == 1 {
            continue;
        }
        if events.len() == limit {
            break Some(format!("events after the first {limit} left out"));
        }
        let parsed = match text {
            Text::Line(line) => parse_event(&line),
            Text::TooLong => Err(format!("longer than {MAX_LINE_BYTES} bytes")),
        };
        match parsed {
            Ok(event) => events.push(event),
            Err(what) => {
                damaged += 1;
                if damaged <= MAX_PROBLEMS_A_FILE {
                    problems.push(problem(Some(number), format!("left out: {what}")));
                }
            }
        }
    };
    if damaged > MAX_PROBLEMS_A_FILE {
        let more = damaged - MAX_PROBLEMS_A_FILE;
        problems.push(problem(None, format!("{more} more damaged lines left out")));
    }
    problems.extend(end.map(|what| problem(Some(number), what)));
    if events.len() + damaged < usize::try_from(header.events).unwrap_or(usize::MAX)
        && events.len() < limit
    {
        let promised = header.events;
        let what = format!("cut off: {} events, its header promises {promised}", events.len());
        problems.push(problem(None, what));
    }
    events
}

fn parse_event(line: &[u8]) -> Result<EventLine, String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let Value::Object(mut fields) = value else { return Err("no JSON object".into()) };
    let wall_ns = fields.remove("wall_ns").and_then(|v| v.as_u64());
    let wall_ns = wall_ns.ok_or("no wall_ns that is a whole number")?;
    fields.remove("mono_ns");
    let Some(Value::String(event)) = fields.remove("event") else {
        return Err("no event name".into());
    };
    Ok(EventLine { wall_ns, event, fields })
}

enum Text {
    Line(Vec<u8>),
    TooLong,
}

/// Lines of bounded length; a longer one is passed over without being held.
struct Lines<R> {
    input: BufReader<R>,
}

impl<R: Read> Lines<R> {
    fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(1 << 16, input) }
    }

    fn next(&mut self) -> io::Result<Option<Text>> {
        use std::io::BufRead;
        let mut line = Vec::new();
        let mut too_long = false;
        loop {
            let chunk = self.input.fill_buf()?;
            if chunk.is_empty() {
                let nothing = line.is_empty() && !too_long;
                return Ok((!nothing).then(|| Self::text(line, too_long)));
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            if line.len() + part.len() > MAX_LINE_BYTES {
                too_long = true;
                line.clear();
            }
            if !too_long {
                line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                return Ok(Some(Self::text(line, too_long)));
            }
        }
    }

    fn text(line: Vec<u8>, too_long: bool) -> Text {
        if too_long { Text::TooLong } else { Text::Line(line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_header() -> Header {
        Header {
            schema: SCHEMA.into(),
            rank: 1,
            host: "h".into(),
            pid: 7,
            epoch: 3,
            ranks: Some(2),
            mono_ns: 10,
            wall_ns: 1010,
            base_wall_ns: 1000,
            events: 2,
            overwritten: 0,
            verdict: None,
        }
    }

    fn good_dump() -> Vec<u8> {
        let mut bytes = serde_json::to_vec(&some_header()).unwrap();
        bytes.extend_from_slice(
            b"\n{\"mono_ns\":1,\"wall_ns\":1001,\"event\":\"note\",\"text\":\"a\"}\n\
              {\"mono_ns\":2,\"wall_ns\":1002,\"event\":\"step-end\",\"step\":4}\n",
        );
        bytes
    }

    fn parse(bytes: &[u8]) -> (Vec<EventLine>, Vec<Problem>) {
        let mut problems = Vec::new();
        let events = parse_events(bytes, "f", &some_header(), 100, &mut problems);
        (events, problems)
    }

    #[test]
    fn a_good_dump_has_no_problems() {
        assert_eq!(header(&good_dump()[..]).unwrap(), some_header());
        let (events, problems) = parse(&good_dump());
        assert_eq!(problems, []);
        assert_eq!(super::super::check_dump("f", &good_dump()), (2, vec![]));
        assert_eq!(events.len(), 2);
        assert_eq!((events[1].wall_ns, events[1].event.as_str()), (1002, "step-end"));
        assert_eq!(events[1].fields["step"], 4);
    }

    #[test]
    fn a_cut_dump_names_the_line_and_what_is_missing() {
        let whole = good_dump();
        let (events, problems) = parse(&whole[..whole.len() - 5]);
        assert_eq!(events.len(), 1);
        assert_eq!(problems[0].line, Some(3));
        assert!(problems[0].what.contains("EOF"), "{}", problems[0]);
        let first_line_end = whole.iter().position(|b| *b == b'\n').unwrap();
        let (_, problems) = parse(&whole[..=first_line_end]);
        assert_eq!(problems[0].what, "cut off: 0 events, its header promises 2");
    }

    #[test]
    fn long_lines_many_faults_and_other_schemas_are_told() {
        let mut bytes = good_dump();
        bytes.extend(std::iter::repeat_n(b'x', MAX_LINE_BYTES * 3));
        bytes.extend_from_slice(b"\n{}\n[]\nnull\n{\"wall_ns\":-1}\n");
        bytes.extend(b"{\"wall_ns\":1}\n".repeat(20));
        let (events, problems) = parse(&bytes);
        assert_eq!(events.len(), 2);
        assert_eq!(problems.len(), MAX_PROBLEMS_A_FILE + 1);
        assert_eq!((problems[0].line, problems[1].line), (Some(4), Some(5)));
        assert!(problems[0].what.contains("longer than"));
        assert!(problems[8].what.starts_with("17 more"), "{}", problems[8]);
        let other = br#"{"schema":"railweave-flight/2"}"#;
        assert!(header(&other[..]).unwrap_err().to_string().contains("railweave-flight/2"));
        assert!(header(&b""[..]).unwrap_err().to_string().contains("empty"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
            let (events, problems) = super::super::check_dump("f", &bytes);
            prop_assert!(events == 0 && problems.len() == 1, "garbage has no header");
            let (events, _) = parse(&bytes);
            prop_assert!(events.len() <= 100);
        }

        #[test]
        fn a_damaged_dump_loses_at_most_what_was_hit(
            hits in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 1..4),
        ) {
            let mut bytes = good_dump();
            for (place, byte) in hits {
                let at = (place * bytes.len() as f64) as usize;
                bytes[at] = byte;
            }
            let _ = header(&bytes[..]);
            let (events, problems) = parse(&bytes);
            prop_assert!(events.len() >= 2 || !problems.is_empty());
        }
    }
}
