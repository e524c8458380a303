//! How one value is read from text and written back: every type a setting can have.
//!
//! A value has one text form, whichever place it came from, so that a file, a variable, a flag and the hand-over
//! to a rank all mean the same thing.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// What a key accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Valid {
    /// A whole number in a closed range.
    Number(u64, u64),
    /// A size in bytes in a closed range.
    Bytes(u64, u64),
    /// A duration in a closed range.
    Time(Duration, Duration),
    /// `auto`, or a duration in a closed range.
    TimeOrAuto(Duration, Duration),
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// An IP address and a port.
    Address,
    /// A host name or IP address and a port, or nothing.
    HostPort,
    /// Levels and `target=level` pairs.
    LogFilter,
    /// Text of a length in a closed range, without control characters.
    Text(usize, usize),
}

impl fmt::Display for Valid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(low, high) => write!(f, "a whole number from {low} to {high}"),
            Self::Bytes(low, high) => {
                write!(
                    f,
                    "a size from {} to {}, such as 64MiB",
                    show_bytes(*low),
                    show_bytes(*high)
                )
            }
            Self::Time(low, high) => {
                write!(
                    f,
                    "a duration from {} to {}, such as 20s",
                    show_time(*low),
                    show_time(*high)
                )
            }
            Self::TimeOrAuto(low, high) => write!(
                f,
                "auto, or a duration from {} to {}, such as 50us",
                show_time(*low),
                show_time(*high)
            ),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Flag => f.write_str("true or false"),
            Self::Address => f.write_str("an IP address and a port, such as 127.0.0.1:8000"),
            Self::HostPort => f.write_str("HOST:PORT, such as 10.0.0.1:29500, or nothing"),
            Self::LogFilter => f.write_str(
                "error, warn, info, debug, trace, off, or target=level, separated by commas",
            ),
            Self::Text(low, high) if *low == 0 => {
                write!(f, "text of at most {high} characters, or nothing")
            }
            Self::Text(low, high) => write!(f, "text of {low} to {high} characters"),
        }
    }
}

/// A type a setting can have.
///
/// `show` writes text that `parse` reads back to an equal value.
pub trait Field: Sized {
    /// Reads the value, or says what is wrong with it (without repeating what is valid).
    ///
    /// # Errors
    /// The text is not a value of this type, or lies outside `valid`.
    fn parse(text: &str, valid: &Valid) -> Result<Self, String>;

    /// The text form of the value.
    fn show(&self) -> String;
}

/// A word that stands for an enum's value.
pub trait Word: Copy + PartialEq + 'static {
    /// Every word with its value, in the order they are shown.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Word> Field for T {
    fn parse(text: &str, _valid: &Valid) -> Result<Self, String> {
        Self::WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(
            || match nearest(text, Self::WORDS.iter().map(|(word, _)| *word)) {
                Some(word) => format!("{text:?} is not a known word; the nearest is {word:?}"),
                None => format!("{text:?} is not a known word"),
            },
        )
    }

    fn show(&self) -> String {
        Self::WORDS
            .iter()
            .find(|(_, value)| value == self)
            .map(|(word, _)| (*word).to_owned())
            .unwrap_or_default()
    }
}

impl Field for bool {
    fn parse(text: &str, _valid: &Valid) -> Result<Self, String> {
        match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("{text:?} is neither true nor false")),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

fn whole(text: &str, valid: &Valid) -> Result<u64, String> {
    let number = text
        .replace('_', "")
        .parse::<u64>()
        .map_err(|_| format!("{text:?} is not a whole number"))?;
    match valid {
        Valid::Number(low, high) if number < *low || number > *high => {
            Err(format!("{number} is out of range"))
        }
        _ => Ok(number),
    }
}

impl Field for u32 {
    fn parse(text: &str, valid: &Valid) -> Result<Self, String> {
        Self::try_from(whole(text, valid)?).map_err(|_| format!("{text:?} is out of range"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Bytes(pub u64);

const BYTE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Field for Bytes {
    fn parse(text: &str, valid: &Valid) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let factor = if unit.is_empty() {
            1
        } else {
            BYTE_UNITS
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(unit))
                .map(|(_, factor)| *factor)
                .ok_or_else(|| format!("{text:?} has an unknown unit {unit:?}"))?
        };
        let bytes = scale(number, u128::from(factor))
            .and_then(|bytes| u64::try_from(bytes).ok())
            .ok_or_else(|| format!("{text:?} is not a whole number of bytes"))?;
        match valid {
            Valid::Bytes(low, high) if bytes < *low || bytes > *high => {
                Err(format!("{text:?} is out of range"))
            }
            _ => Ok(Self(bytes)),
        }
    }

    fn show(&self) -> String {
        show_bytes(self.0)
    }
}

/// Writes a size with the largest binary unit that keeps it whole.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    BYTE_UNITS[..4]
        .iter()
        .find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor))
        .map_or_else(|| format!("{bytes}B"), |(name, factor)| format!("{}{name}", bytes / factor))
}

const TIME_UNITS: &[(&str, u128)] = &[
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split_unit(text);
    if unit.is_empty() && number != "0" {
        return Err(format!("{text:?} has no unit; add one of h, m, s, ms, us, ns"));
    }
    let unit = if unit.is_empty() { "s" } else { unit };
    let factor =
        TIME_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(
            || format!("{text:?} has an unknown unit {unit:?}; use one of h, m, s, ms, us, ns"),
        )?;
    scale(number, factor)
        .and_then(|nanos| u64::try_from(nanos).ok())
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("{text:?} is not a duration"))
}

fn check_time(text: &str, time: Duration, valid: &Valid) -> Result<Duration, String> {
    match valid {
        Valid::Time(low, high) | Valid::TimeOrAuto(low, high) if time < *low || time > *high => {
            Err(format!("{text:?} is out of range"))
        }
        _ => Ok(time),
    }
}

impl Field for Duration {
    fn parse(text: &str, valid: &Valid) -> Result<Self, String> {
        check_time(text, parse_time(text)?, valid)
    }

    fn show(&self) -> String {
        show_time(*self)
    }
}

/// Writes a duration with the largest unit that keeps it whole.
#[must_use]
pub fn show_time(time: Duration) -> String {
    let nanos = time.as_nanos();
    // Seconds are what people compare; only whole hours are longer than that.
    let (name, factor) = TIME_UNITS
        .iter()
        .filter(|(name, _)| *name != "m")
        .find(|(_, factor)| nanos > 0 && nanos.is_multiple_of(*factor))
        .copied()
        .unwrap_or(("s", 1_000_000_000));
    format!("{}{name}", nanos / factor)
}

/// How long a waiter spins before it yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spin {
    /// Chosen from the cores and the ranks of the machine.
    #[default]
    Auto,
    /// At most this long.
    For(Duration),
}

impl Field for Spin {
    fn parse(text: &str, valid: &Valid) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        check_time(text, parse_time(text)?, valid).map(Self::For)
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::For(time) => show_time(*time),
        }
    }
}

impl Field for SocketAddr {
    fn parse(text: &str, _valid: &Valid) -> Result<Self, String> {
        if let Some(port) = text.strip_prefix("localhost:") {
            return format!("127.0.0.1:{port}")
                .parse()
                .map_err(|_| format!("{text:?} has no valid port"));
        }
        text.parse().map_err(|_| format!("{text:?} is not an IP address and a port"))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Field for String {
    fn parse(text: &str, valid: &Valid) -> Result<Self, String> {
        if text.chars().any(char::is_control) {
            return Err("it contains a control character".to_owned());
        }
        match valid {
            Valid::Text(low, high) => {
                let length = text.chars().count();
                if length < *low || length > *high {
                    return Err(format!("it has {length} characters"));
                }
            }
            Valid::HostPort if !text.is_empty() => check_host_port(text)?,
            Valid::LogFilter => observe::log::check(text).map_err(|error| error.to_string())?,
            _ => {}
        }
        Ok(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

fn check_host_port(text: &str) -> Result<(), String> {
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("{text:?} has no port"));
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(format!("{text:?} has no host"));
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Ok(()),
        _ => Err(format!("{text:?} has no valid port")),
    }
}

/// A value that is never printed. Empty means: not set.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself, for the one place that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_set() { "Secret(set)" } else { "Secret(not set)" })
    }
}

impl Field for Secret {
    fn parse(text: &str, valid: &Valid) -> Result<Self, String> {
        // The text is not repeated in the error: it is a secret even when it is a bad one.
        String::parse(text, valid).map(Self)
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Multiplies a decimal number by a factor exactly, or not at all.
fn scale(number: &str, factor: u128) -> Option<u128> {
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((number.as_str(), ""));
    // Nine digits are finer than any unit here, and keep every product below within u128.
    if whole.is_empty() || whole.len() > 20 || fraction.len() > 9 {
        return None;
    }
    let whole = whole.parse::<u128>().ok()?.checked_mul(factor)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().ok()?.checked_mul(factor)?;
    if part % divisor != 0 {
        return None;
    }
    whole.checked_add(part / divisor)
}

/// The candidate that is closest to what was written, if any is close enough to have been meant.
#[must_use]
pub fn nearest<'a>(written: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (written.chars().count() / 3).max(2);
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(written, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANY_TIME: Valid = Valid::Time(Duration::ZERO, Duration::from_secs(86_400));
    const ANY_SIZE: Valid = Valid::Bytes(0, u64::MAX);

    #[test]
    fn durations_are_exact_and_need_a_unit() {
        let parse = |text| Duration::parse(text, &ANY_TIME);
        assert_eq!(parse("20s"), Ok(Duration::from_secs(20)));
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse("250 ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        assert!(parse("20").is_err_and(|e| e.contains("no unit")));
        assert!(parse("20sec").is_err_and(|e| e.contains("unknown unit")));
        assert!(parse("-1s").is_err());
        assert!(parse("1..5s").is_err());
        assert!(parse("25h").is_err_and(|e| e.contains("out of range")));
        assert!(parse("999999999999999999h").is_err());
        assert_eq!(show_time(Duration::from_secs(600)), "600s");
        assert_eq!(show_time(Duration::from_secs(7200)), "2h");
    }

    #[test]
    fn sizes_know_binary_and_decimal_units() {
        let parse = |text| Bytes::parse(text, &ANY_SIZE).map(|bytes| bytes.0);
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse("1MB"), Ok(1_000_000));
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("18446744073709551615B"), Ok(u64::MAX));
        assert!(parse("0.3B").is_err());
        assert!(parse("64MiX").is_err_and(|e| e.contains("\"MiX\"")));
        assert!(parse("99999999TiB").is_err());
        assert_eq!(show_bytes(1 << 30), "1GiB");
        assert_eq!(show_bytes(1000), "1000B");
        assert_eq!(show_bytes(0), "0B");
    }

    #[test]
    fn a_bad_secret_is_not_repeated_and_a_good_one_not_printed() {
        let error = Secret::parse("hunter2\n", &Valid::Text(0, 64)).unwrap_err();
        assert!(!error.contains("hunter2"));
        assert!(!format!("{:?}", Secret::new("hunter2".to_owned())).contains("hunter2"));
    }

    #[test]
    fn host_and_port_are_checked() {
        let parse = |text| String::parse(text, &Valid::HostPort);
        assert!(parse("").is_ok());
        assert!(parse("node1:29500").is_ok());
        assert!(parse("[::1]:29500").is_ok());
        for bad in ["node1", ":29500", "node1:0", "node1:65536", "a b:1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_nearest_word_must_be_near() {
        let words = ["ranks", "rails", "listen"];
        assert_eq!(nearest("rank", words.into_iter()), Some("ranks"));
        assert_eq!(nearest("lsiten", words.into_iter()), Some("listen"));
        assert_eq!(nearest("frobnicate", words.into_iter()), None);
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(nanos in 0_u64..86_400_000_000_000, bytes: u64) {
            let time = Duration::from_nanos(nanos);
            prop_assert_eq!(Duration::parse(&time.show(), &ANY_TIME), Ok(time));
            prop_assert_eq!(Bytes::parse(&Bytes(bytes).show(), &ANY_SIZE), Ok(Bytes(bytes)));
        }

        #[test]
        fn no_text_makes_a_reader_panic(text in "\\PC{0,40}") {
            let _ = Duration::parse(&text, &ANY_TIME);
            let _ = Bytes::parse(&text, &ANY_SIZE);
            let _ = Spin::parse(&text, &ANY_TIME);
            let _ = SocketAddr::parse(&text, &Valid::Address);
            let _ = String::parse(&text, &Valid::HostPort);
        }
    }
}
