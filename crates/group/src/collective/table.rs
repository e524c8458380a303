//! Which schedule carries an operation.

use std::fmt;
use std::str::FromStr;

/// How a collective moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Schedule {
    /// Everybody reads the others' registered buffers in place. One machine, every pair cabled.
    Mapped,
    /// Everybody sends everything to everybody and computes everything.
    OneShot,
    /// Slices go round the ring. Sums follow the ring, not the order of ranks: the bits differ
    /// from those of the other schedules, though all ranks still get the same ones. So it is used
    /// only where the table says so.
    Ring,
    /// Everybody computes one slice and sends it to everybody.
    TwoShot,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::OneShot, Self::TwoShot, Self::Mapped, Self::Ring];
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mapped => "mapped",
            Self::OneShot => "one-shot",
            Self::Ring => "ring",
            Self::TwoShot => "two-shot",
        })
    }
}

/// From which size on a schedule is used. All ranks have the same table, and the choice uses only
/// it, the size and what the group shares, so all ranks choose alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleTable {
    /// Largest vector of the one-shot schedule.
    pub one_shot_bytes_max: u64,
    /// Smallest vector that is read in place where that is possible.
    pub mapped_bytes_min: u64,
    /// Smallest vector of the ring schedule; none: it is never used.
    pub ring_bytes_min: Option<u64>,
}

impl Default for ScheduleTable {
    fn default() -> Self {
        Self { one_shot_bytes_max: 32 << 10, mapped_bytes_min: 4 << 10, ring_bytes_min: None }
    }
}

impl ScheduleTable {
    /// The built-in table of a group of this size. With two ranks the second exchange that reading
    /// in place needs is cheap; with more it costs what a few kibibytes do.
    pub fn for_ranks(ranks: usize) -> Self {
        if ranks > 2 {
            return Self { mapped_bytes_min: 8 << 10, ..Self::default() };
        }
        // Between two ranks one-shot sends no more than two-shot does, in half the exchanges.
        Self { mapped_bytes_min: 1 << 10, one_shot_bytes_max: 256 << 10, ..Self::default() }
    }

    /// The table that uses one schedule for everything, where it can be used.
    pub fn only(schedule: Schedule) -> Self {
        match schedule {
            Schedule::OneShot => Self {
                one_shot_bytes_max: u64::MAX,
                mapped_bytes_min: u64::MAX,
                ring_bytes_min: None,
            },
            Schedule::TwoShot => {
                Self { one_shot_bytes_max: 0, mapped_bytes_min: u64::MAX, ring_bytes_min: None }
            }
            Schedule::Mapped => {
                Self { one_shot_bytes_max: 0, mapped_bytes_min: 0, ring_bytes_min: None }
            }
            Schedule::Ring => {
                Self { one_shot_bytes_max: 0, mapped_bytes_min: u64::MAX, ring_bytes_min: Some(0) }
            }
        }
    }

    /// The schedule of an all-reduce of `bytes` bytes. `in_place` says that every rank can read
    /// the others' buffers.
    pub fn choose(&self, bytes: u64, in_place: bool) -> Schedule {
        if self.ring_bytes_min.is_some_and(|least| bytes >= least) {
            Schedule::Ring
        } else if in_place && bytes >= self.mapped_bytes_min {
            Schedule::Mapped
        } else if bytes <= self.one_shot_bytes_max {
            Schedule::OneShot
        } else {
            Schedule::TwoShot
        }
    }
}

impl fmt::Display for ScheduleTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one-shot<={} mapped>={}", self.one_shot_bytes_max, self.mapped_bytes_min)?;
        match self.ring_bytes_min {
            Some(least) => write!(f, " ring>={least}"),
            None => f.write_str(" ring=never"),
        }
    }
}

/// A table that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no schedule table; write it as \"one-shot<=32768 mapped>=4096 ring=never\"")]
pub struct TableError(String);

impl FromStr for ScheduleTable {
    type Err = TableError;

    fn from_str(text: &str) -> Result<Self, TableError> {
        let wrong = || TableError(text.to_owned());
        let mut table = Self::default();
        for part in text.split_whitespace() {
            let number = |digits: &str| digits.parse::<u64>().map_err(|_| wrong());
            if let Some(digits) = part.strip_prefix("one-shot<=") {
                table.one_shot_bytes_max = number(digits)?;
            } else if let Some(digits) = part.strip_prefix("mapped>=") {
                table.mapped_bytes_min = number(digits)?;
            } else if let Some(digits) = part.strip_prefix("ring>=") {
                table.ring_bytes_min = Some(number(digits)?);
            } else if part == "ring=never" {
                table.ring_bytes_min = None;
            } else {
                return Err(wrong());
            }
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_choose_the_schedule() {
        assert_eq!(ScheduleTable::for_ranks(2).choose(4096, true), Schedule::Mapped);
        assert_eq!(ScheduleTable::for_ranks(4).choose(4096, true), Schedule::OneShot);
        let table = ScheduleTable::default();
        assert_eq!(table.choose(8, true), Schedule::OneShot);
        assert_eq!(table.choose(48 << 10, true), Schedule::Mapped);
        assert_eq!(table.choose(48 << 10, false), Schedule::TwoShot);
        for schedule in Schedule::ALL {
            assert_eq!(ScheduleTable::only(schedule).choose(4096, true), schedule);
        }
    }

    #[test]
    fn a_table_reads_back_as_it_prints() {
        for schedule in Schedule::ALL {
            let table = ScheduleTable::only(schedule);
            assert_eq!(table.to_string().parse(), Ok(table));
        }
        assert!("one-shot<=x".parse::<ScheduleTable>().is_err());
        assert!("three-shot".parse::<ScheduleTable>().is_err());
    }
}
