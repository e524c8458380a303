//! The setting that says which schedule carries collectives of which size.

use group::collective::ScheduleTable;

use super::value::{Field, Valid};

/// A table of schedules, or the one built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Schedules(Option<ScheduleTable>);

impl Schedules {
    /// The table in force in a group of this size.
    #[must_use]
    pub fn table(&self, ranks: usize) -> ScheduleTable {
        self.0.unwrap_or_else(|| ScheduleTable::for_ranks(ranks))
    }
}

impl Field for Schedules {
    fn parse(text: &str, _valid: &Valid) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        text.parse().map(|table| Self(Some(table))).map_err(|error| format!("{error}"))
    }

    fn show(&self) -> String {
        self.0.map(|table| table.to_string()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_back_and_nothing_is_the_built_in_one() {
        let valid = Valid::Text(0, 256);
        let text = "one-shot<=8192 mapped>=4096 ring=never";
        let schedules = Schedules::parse(text, &valid).unwrap();
        assert_eq!(schedules.show(), text);
        assert_eq!(schedules.table(4).one_shot_bytes_max, 8192);
        let built_in = Schedules::parse("", &valid).unwrap();
        assert_eq!(built_in.table(4), ScheduleTable::for_ranks(4));
        assert!(Schedules::parse("fastest", &valid).is_err());
    }
}
