//! How long a wait may last, by what the awaited rank is doing.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::beacon::{RankSet, operation};
use crate::control::trace::{Root, Waiter, trace};
use crate::control::view::ClusterView;

/// One entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatienceKey {
    /// The awaited rank starts.
    Start,
    /// It computes, or has not begun the operation.
    Compute,
    /// It reads table rows.
    Rows,
    /// It is inside the operation.
    Wire,
    /// A relay holds the bytes.
    Relay,
    /// It sends no heartbeat.
    Silent,
}

impl PatienceKey {
    /// Every key.
    pub const ALL: [Self; 6] =
        [Self::Start, Self::Compute, Self::Rows, Self::Wire, Self::Relay, Self::Silent];

    /// The word after `patience.` in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Compute => "compute",
            Self::Rows => "rows",
            Self::Wire => "wire",
            Self::Relay => "relay",
            Self::Silent => "silent",
        }
    }

    /// Least and greatest value. Silence is told by missed heartbeats, so its patience exceeds the second after which a
    /// rank counts as unheard.
    pub fn range(self) -> (Duration, Duration) {
        let least = match self {
            Self::Silent => Duration::from_millis(1500),
            _ => Duration::from_millis(100),
        };
        (least, Duration::from_secs(24 * 60 * 60))
    }

    fn default_value(self) -> Duration {
        Duration::from_secs(match self {
            Self::Start => 600,
            Self::Compute | Self::Rows => 60,
            Self::Wire | Self::Relay => 5,
            Self::Silent => 10,
        })
    }
}

impl fmt::Display for PatienceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a patience was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatienceError {
    /// No such key.
    #[error("unknown key {key:?}; patience has start, compute, rows, wire, relay and silent")]
    UnknownKey {
        /// As given.
        key: String,
    },
    /// Not a duration.
    #[error("patience.{key}: {value:?} is not a duration; write for example \"20s\", \"500ms\" or \"2m\" ({} to {})",
        print_duration(key.range().0), print_duration(key.range().1))]
    Malformed {
        /// Which entry.
        key: PatienceKey,
        /// As given.
        value: String,
    },
    /// Out of range.
    #[error("patience.{key}: {} is out of range; it can be {} to {}", print_duration(*value),
        print_duration(key.range().0), print_duration(key.range().1))]
    OutOfRange {
        /// Which entry.
        key: PatienceKey,
        /// As given.
        value: Duration,
    },
}

/// Reads `20s`, `500ms`, `1.5s`, `2m` or `1h`. `None` when it is none of these.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    let value = Duration::try_from_secs_f64(number * factor).ok()?;
    // Settings are exact to the millisecond: a sum of binary fractions is not shown to people.
    Some(Duration::from_millis(
        u64::try_from((value + Duration::from_micros(500)).as_millis()).ok()?,
    ))
}

/// The shortest text that [`parse_duration`] reads back: whole hours, minutes, seconds or milliseconds.
pub fn print_duration(value: Duration) -> String {
    let ms = value.as_millis();
    match ms {
        0 => "0s".to_owned(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

/// All entries at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatienceValues([Duration; 6]);

impl Default for PatienceValues {
    fn default() -> Self {
        Self(PatienceKey::ALL.map(PatienceKey::default_value))
    }
}

impl PatienceValues {
    /// The value of `key`.
    pub fn get(&self, key: PatienceKey) -> Duration {
        self.0[key as usize]
    }

    /// The same table with another value for `key`, whatever it is: bounds are the table's matter.
    #[must_use]
    pub fn with(mut self, key: PatienceKey, value: Duration) -> Self {
        self.0[key as usize] = value;
        self
    }

    /// All entries but silence together: the longest a rank that goes through every phase may take.
    pub fn sum(&self) -> Duration {
        PatienceKey::ALL
            .into_iter()
            .filter(|key| *key != PatienceKey::Silent)
            .fold(Duration::ZERO, |sum, key| sum.saturating_add(self.get(key)))
    }
}

/// The table of a running rank; changes take effect at the next judgement, in waits that last already as well.
#[derive(Debug)]
pub struct Patience {
    millis: [AtomicU64; 6],
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(PatienceValues::default())
    }
}

impl Patience {
    /// A table that starts with `values`, each moved into its range.
    pub fn new(values: PatienceValues) -> Self {
        let millis = PatienceKey::ALL.map(|key| {
            let (least, most) = key.range();
            AtomicU64::new(to_millis(values.get(key).clamp(least, most)))
        });
        Self { millis }
    }

    /// The value of `key`.
    pub fn get(&self, key: PatienceKey) -> Duration {
        Duration::from_millis(self.millis[key as usize].load(Ordering::Relaxed))
    }

    /// All values.
    pub fn values(&self) -> PatienceValues {
        PatienceValues(PatienceKey::ALL.map(|key| self.get(key)))
    }

    /// Changes one entry.
    ///
    /// # Errors
    /// A value out of range.
    pub fn set(&self, key: PatienceKey, value: Duration) -> Result<(), PatienceError> {
        let (least, most) = key.range();
        if value < least || value > most {
            return Err(PatienceError::OutOfRange { key, value });
        }
        self.millis[key as usize].store(to_millis(value), Ordering::Relaxed);
        Ok(())
    }

    /// Changes one entry by name and text, as `compute` and `20s`; the name may start with `patience.`.
    ///
    /// # Errors
    /// An unknown key, a text that is no duration, a value out of range.
    pub fn set_text(&self, key: &str, value: &str) -> Result<(), PatienceError> {
        let name = key.strip_prefix("patience.").unwrap_or(key);
        let key = PatienceKey::ALL
            .into_iter()
            .find(|candidate| candidate.name() == name)
            .ok_or_else(|| PatienceError::UnknownKey { key: key.to_owned() })?;
        let parsed = parse_duration(value)
            .ok_or_else(|| PatienceError::Malformed { key, value: value.to_owned() })?;
        self.set(key, parsed)
    }
}

fn to_millis(value: Duration) -> u64 {
    u64::try_from(value.as_millis()).unwrap_or(u64::MAX)
}

/// A wait that outlasted the patience for what it came down to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overdue {
    /// Who and what the wait came down to, and which patience ran out.
    pub root: Root,
    /// How long the waiting rank has waited.
    pub waited: Duration,
}

/// Whether rank `me`, which has waited `waited` for `waits_for`, has waited too long. The answer follows the waits-for
/// edges of the beacons to the ranks that wait for nobody and applies the patience for what those do, counted from the
/// later of their entering the phase and the start of this wait. A rank without heartbeat is judged by its silence alone.
pub fn overdue(
    view: &ClusterView,
    patience: &PatienceValues,
    me: usize,
    waits_for: RankSet,
    waited: Duration,
    now: Duration,
) -> Option<Overdue> {
    let beacon = view.ranks.get(me).and_then(|rank| rank.beacon);
    let waiter = Waiter {
        rank: me,
        position: beacon
            .filter(|beacon| beacon.operation != operation::NONE)
            .map(|beacon| (beacon.operation, beacon.sequence)),
        waits_for: waits_for.without(me),
        via: beacon.map_or(RankSet::EMPTY, |beacon| beacon.waits_via),
        since: now.saturating_sub(waited),
    };
    if waiter.waits_for.is_empty() {
        return None;
    }
    let root = trace(view, patience, &[waiter], now).into_iter().next()?;
    (root.deadline <= now).then_some(Overdue { root, waited })
}

#[cfg(test)]
#[path = "patience_tests.rs"]
mod tests;
