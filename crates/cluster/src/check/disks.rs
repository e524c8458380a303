//! Drives.

use super::{Code, Findings, Level, Room, Section, view};
use crate::inventory::Seen;

const SECTION: Section = Section::Disks;

const SLOW: Code = Code {
    id: "RW-DSK-01",
    level: Level::Warning,
    section: SECTION,
    title: "a drive reads more slowly than the model needs",
};

pub(super) const CODES: &[Code] = &[SLOW];

/// Compares each drive's measured rate with the rate that was asked for. A drive's own health report does not show
/// this: only a timed read does.
pub(super) fn look(room: &Room<'_>, to: &mut Findings) {
    for rank in &room.plan.ranks {
        let Some(state) = view::host(room, rank.rank) else { continue };
        let drives = match &state.drives {
            Seen::Known(drives) => drives,
            Seen::NotMeasured(why) => {
                to.not_measured(SECTION, Some(&rank.host), "drives", why.as_str());
                continue;
            }
        };
        for drive in drives {
            let what = || format!("whether {} is fast enough", drive.name);
            let measured = match &drive.reads_per_second {
                Seen::Known(measured) => *measured,
                Seen::NotMeasured(why) => {
                    to.not_measured(SECTION, Some(&rank.host), what(), why.as_str());
                    continue;
                }
            };
            let Some(needed) = room.reads_per_second else {
                let why = format!(
                    "it does {measured} random reads of 4 KiB a second, and how many are needed was not said"
                );
                to.not_measured(SECTION, Some(&rank.host), what(), why);
                continue;
            };
            if measured >= needed {
                to.looked(SECTION, 1, "drives: fast enough for the rate asked for");
                continue;
            }
            let model = drive.model.as_deref().unwrap_or("model not known");
            to.find(
                &SLOW,
                Some(&rank.host),
                Some(&drive.name),
                format!("does {measured} random reads of 4 KiB a second; {needed} are needed"),
                vec![
                    format!(
                        "{} ({model}, {} bytes): {measured} reads/s",
                        drive.name, drive.size_bytes
                    ),
                    format!("needed: {needed} reads/s"),
                ],
                None,
            );
        }
    }
}
