//! The work of one rank.

use crate::process::{RankError, RankLaunch};

/// The body of a rank's process.
///
/// # Errors
/// Always: this build has no engine to run.
pub fn body(_launch: RankLaunch) -> Result<(), RankError> {
    Err(RankError { source: "this build of railweave has no engine".into(), retry: false })
}
