//! The proof: what was shown, when, and with which counters.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::plan::PathKind;
use serde::{Deserialize, Serialize};

use super::coverage::Coverage;
use super::judge::Moved;
use super::lost::Lost;
use super::promote::Promotion;

/// Version of the shape of a proof.
pub(super) const PROOF_SCHEMA: &str = "railweave-proof/1";

/// Bytes that went one way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Way {
    /// How many arrived and were right.
    pub(super) bytes: u64,
    /// From the first to the last of them.
    pub(super) seconds: f64,
    /// Their rate, in 10^6 bytes a second. Both ways run at the same time, over TCP: no measure of the cable.
    pub(super) mb_per_s: f64,
}

impl Way {
    /// Of bytes that took this many seconds.
    pub(super) fn new(bytes: u64, seconds: f64) -> Self {
        // A clock too coarse for few bytes must not make an endless rate.
        Self { bytes, seconds, mb_per_s: bytes as f64 / 1e6 / seconds.max(1e-6) }
    }
}

/// What came out for one rail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// All bytes crossed both ways, came back equal, and moved the counters of the planned functions.
    Proven {
        /// From the first rank to the second.
        there: Way,
        /// And back.
        back: Way,
        /// One for each cable.
        counters: Vec<Moved>,
    },
    /// They did not.
    Failed {
        /// The host that saw it.
        who: String,
        /// The cable, the function whose address is missing, or the whole way if nobody knows which.
        r#where: String,
        /// What was seen.
        why: String,
        /// What a person does next.
        next: String,
    },
    /// It was not shown, nor its contrary.
    NotProven {
        /// The host that keeps it from being decided, if it is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        r#where: Option<String>,
        /// Why not.
        why: String,
    },
}

impl Outcome {
    /// Whether it is proven.
    pub(super) fn is_proven(&self) -> bool {
        matches!(self, Self::Proven { .. })
    }
}

/// One rail of one path, and what came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RailProof {
    /// Source rank.
    pub(super) from: usize,
    /// Destination rank.
    pub(super) to: usize,
    /// The hosts visited, both ends included.
    pub(super) hosts: Vec<String>,
    /// Kind of the path.
    pub(super) kind: PathKind,
    /// The rail's number; none for a path without rails.
    pub(super) rail: Option<usize>,
    /// Cables crossed, in order.
    pub(super) cables: Vec<String>,
    /// When it was looked at, in seconds since 1970.
    pub(super) unix_seconds: u64,
    /// What carried the bytes, and what covered them on the way; none where nothing was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) coverage: Option<Coverage>,
    /// What came out.
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

/// A host as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostProof {
    /// Its rank.
    pub(super) rank: usize,
    /// Its name.
    pub(super) host: String,
    /// Changes with every boot; none if it is not known.
    pub(super) boot_id: Option<String>,
    /// Why it could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) not_measured: Option<String>,
    /// Why nothing, or nothing more, could be proven over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<Lost>,
}

/// What was shown about a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Proof {
    /// [`PROOF_SCHEMA`].
    pub(super) schema: String,
    /// Version of the program.
    pub(super) version: String,
    /// When it was written, as RFC 3339 in UTC.
    pub(super) time: String,
    /// The same, in seconds since 1970.
    pub(super) unix_seconds: u64,
    /// Digest of the plan.
    pub(super) plan: String,
    /// Bytes sent each way on each rail.
    pub(super) bytes: u64,
    /// How long all of it took.
    pub(super) seconds: f64,
    /// Hosts, by rank.
    pub(super) hosts: Vec<HostProof>,
    /// Rails, by source, destination and number.
    pub(super) results: Vec<RailProof>,
    /// How many rails are proven.
    pub(super) proven: usize,
    /// How many failed.
    pub(super) failed: usize,
    /// How many are neither.
    pub(super) not_proven: usize,
    /// What a group that serves said about taking forwarded rails back; none if none was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) promotion: Option<Promotion>,
}

impl Proof {
    /// Puts results in order, counts them and takes the time.
    pub(super) fn new(
        plan: &str,
        bytes: u64,
        took: Duration,
        hosts: Vec<HostProof>,
        mut results: Vec<RailProof>,
    ) -> Self {
        results.sort_by_key(|result| (result.from, result.to, result.rail));
        let count =
            |is: fn(&Outcome) -> bool| results.iter().filter(|one| is(&one.outcome)).count();
        let proven = count(Outcome::is_proven);
        let failed = count(|outcome| matches!(outcome, Outcome::Failed { .. }));
        let now = now();
        Self {
            schema: PROOF_SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: rfc3339(now),
            unix_seconds: now,
            plan: plan.to_owned(),
            bytes,
            seconds: took.as_secs_f64(),
            hosts,
            proven,
            failed,
            not_proven: results.len() - proven - failed,
            results,
            promotion: None,
        }
    }

    /// The rails that an earlier proof has shown and that need not be shown again: the plan is the same, and every
    /// host on the way has not been booted since.
    pub(super) fn still_proven(&self, plan: &str, boots: &[HostProof]) -> Vec<&RailProof> {
        let same_boot = |name: &String| {
            let of = |hosts: &[HostProof]| {
                hosts.iter().find(|host| host.host == *name).and_then(|host| host.boot_id.clone())
            };
            of(&self.hosts).is_some_and(|boot| of(boots).as_ref() == Some(&boot))
        };
        if self.plan != plan || self.schema != PROOF_SCHEMA {
            return Vec::new();
        }
        self.results
            .iter()
            .filter(|result| result.outcome.is_proven() && result.hosts.iter().all(same_boot))
            .collect()
    }
}

/// Seconds since 1970; 0 on a machine whose clock is before that.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A time as RFC 3339 in UTC. The date follows the proleptic Gregorian calendar, in eras of 400 years that begin on
/// the first of March, so that leap days come last.
fn rfc3339(unix_seconds: u64) -> String {
    const DAYS_OF_ERA: u64 = 146_097;
    // From the first of March of year 0 to 1970.
    const DAYS_BEFORE: u64 = 719_468;
    let days = unix_seconds / 86_400 + DAYS_BEFORE;
    let (era, day) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    let second = unix_seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day_of_month:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    fn host(rank: usize, boot_id: Option<&str>) -> HostProof {
        HostProof {
            rank,
            host: format!("h{rank}"),
            boot_id: boot_id.map(str::to_owned),
            not_measured: None,
            lost: None,
        }
    }

    fn result(to: usize, outcome: Outcome) -> RailProof {
        RailProof {
            from: 0,
            to,
            hosts: vec!["h0".to_owned(), format!("h{to}")],
            kind: PathKind::Direct,
            rail: Some(0),
            cables: vec![format!("h0.p0–h{to}.p1")],
            unix_seconds: 5,
            coverage: None,
            outcome,
        }
    }

    fn proven() -> Outcome {
        Outcome::Proven { there: Way::new(8, 1.0), back: Way::new(8, 1.0), counters: Vec::new() }
    }

    #[test]
    fn a_proof_holds_for_the_same_plan_and_boot_only() {
        let failed = Outcome::NotProven { r#where: None, why: "h3 is down".to_owned() };
        let hosts = vec![host(0, Some("a")), host(1, Some("b")), host(2, Some("c")), host(3, None)];
        let results = vec![result(3, failed), result(2, proven()), result(1, proven())];
        let proof = Proof::new("plan", 8, Duration::from_secs(1), hosts, results);
        assert_eq!((proof.proven, proof.failed, proof.not_proven), (2, 0, 1));
        assert_eq!(proof.results.iter().map(|one| one.to).collect::<Vec<_>>(), [1, 2, 3]);

        let text = serde_json::to_string_pretty(&proof).unwrap();
        assert_eq!(serde_json::from_str::<Proof>(&text).unwrap(), proof);

        let now = [host(0, Some("a")), host(1, Some("other")), host(2, Some("c")), host(3, None)];
        let still = proof.still_proven("plan", &now);
        assert_eq!(still.iter().map(|one| one.to).collect::<Vec<_>>(), [2]);
        assert!(proof.still_proven("another plan", &now).is_empty());
    }

    #[test]
    fn a_rate_is_finite() {
        assert!(Way::new(8, 0.0).mb_per_s.is_finite());
        assert_eq!(Way::new(8_000_000, 2.0).mb_per_s, 4.0);
    }
}
