//! A verdict as it is published, recorded and printed.

use serde::{Deserialize, Serialize};

use crate::words::{Cause, Operation, Phase};

/// A stall explained: who, where, why, with evidence. The same JSON in `/progress`, in dumps and
/// on the control channel. `None` (JSON `null`) means not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictRecord {
    /// Why.
    pub cause: Cause,
    /// The rank to blame.
    pub rank: Option<u32>,
    /// The host of the blamed rank.
    pub host: Option<String>,
    /// The other end, where the cause lies between two ranks.
    pub peer: Option<u32>,
    /// What the blamed rank was doing.
    pub phase: Option<Phase>,
    /// For how long, in seconds.
    pub seconds: Option<f64>,
    /// The epoch the stall happened in.
    pub epoch: u64,
    /// The sequence of the collective that stalled.
    pub sequence: Option<u64>,
    /// The collective that stalled.
    pub operation: Option<Operation>,
    /// One line for a person.
    pub summary: String,
    /// What the judgement rests on, one fact each.
    pub evidence: Vec<String>,
    /// What a person should do next.
    pub next_step: String,
    /// The rank that judged.
    pub judged_by: u32,
}

/// The most facts of evidence a dump carries.
pub(crate) const MAX_EVIDENCE: usize = 32;
/// The longest text of a verdict in a dump, in bytes of UTF-8.
pub(crate) const MAX_TEXT_BYTES: usize = 512;

impl VerdictRecord {
    /// A copy whose JSON is bounded, so that a dump's first line always fits the reader's limit.
    pub(crate) fn bounded(&self) -> Self {
        let mut copy = self.clone();
        let evidence = copy.evidence.len();
        copy.evidence.truncate(MAX_EVIDENCE);
        if evidence > MAX_EVIDENCE {
            copy.evidence.push(format!("{} more facts left out", evidence - MAX_EVIDENCE));
        }
        let texts = copy.evidence.iter_mut().chain([&mut copy.summary, &mut copy.next_step]);
        for text in texts.chain(copy.host.as_mut()) {
            bound_text(text);
        }
        copy
    }
}

/// Cuts `text` at a character border at or before [`MAX_TEXT_BYTES`].
pub(crate) fn bound_text(text: &mut String) {
    if text.len() > MAX_TEXT_BYTES {
        let cut = text.floor_char_boundary(MAX_TEXT_BYTES);
        text.truncate(cut);
        text.push('…');
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn stalled_in_compute() -> VerdictRecord {
        VerdictRecord {
            cause: Cause::PeerStalled,
            rank: Some(2),
            host: Some("spark-c".into()),
            peer: None,
            phase: Some(Phase::Compute),
            seconds: Some(60.25),
            epoch: 3,
            sequence: Some(481),
            operation: Some(Operation::AllReduce),
            summary: "rank 2 (spark-c) has been in compute for 60.3 s".into(),
            evidence: vec!["heartbeat 0.1 s old".into(), "ranks 0, 1, 3 wait for rank 2".into()],
            next_step: "look at rank 2's log and its CPU".into(),
            judged_by: 0,
        }
    }

    #[test]
    fn json_round_trip_keeps_null_for_unknown() {
        let verdict = stalled_in_compute();
        let json = serde_json::to_value(&verdict).unwrap();
        assert_eq!(json["cause"], "peer-stalled");
        assert_eq!(json["phase"], "compute");
        assert_eq!(json["operation"], "all-reduce");
        assert!(json["peer"].is_null(), "not known is null, not left out and not 0");
        assert_eq!(serde_json::from_value::<VerdictRecord>(json).unwrap(), verdict);
    }

    #[test]
    fn a_bounded_verdict_has_bounded_json() {
        let mut verdict = stalled_in_compute();
        verdict.evidence = vec!["\u{1}é".repeat(10_000); 1000];
        verdict.summary = "x".repeat(1_000_000);
        let bounded = verdict.bounded();
        assert_eq!(bounded.evidence.len(), MAX_EVIDENCE + 1);
        assert!(bounded.evidence[MAX_EVIDENCE].contains("968 more"));
        // A control character takes six bytes in JSON: the worst growth there is.
        let limit = (MAX_EVIDENCE + 4) * (MAX_TEXT_BYTES + 8) * 6;
        assert!(serde_json::to_string(&bounded).unwrap().len() < limit);
    }
}
