//! How the engine sees the group: a few collectives, and what to do when one fails.
//!
//! The engine never sees sockets, regions or ranks' addresses. Whatever carries the bytes implements
//! [`Communicator`]; a model on one rank uses [`Solo`].

use std::error::Error;

/// The longest message [`Communicator::broadcast`] carries, in bytes (1 MiB).
pub const BROADCAST_LIMIT_BYTES: usize = 1 << 20;

/// What a rank is doing, as its beacon tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activity {
    /// Nothing to do: waiting for a request may last for ever.
    Idle,
    /// Working on a step: the others may expect this rank in a collective soon.
    Compute,
}

/// Why a collective gave no result.
#[derive(Debug, thiserror::Error)]
pub enum CommunicatorError {
    /// The collective failed on every rank, with one shared verdict. [`Communicator::reform`] may heal the group, and
    /// the step is then repeated.
    #[error("the collective failed: {summary}; re-form the group and repeat the step")]
    Failed {
        /// The verdict in one line: who, where, why.
        summary: String,
    },
    /// The group was shut down in good order; no collective will work again.
    #[error("the group is shut down")]
    Closed,
    /// The group cannot be healed by this process.
    #[error("the group is lost for this rank: {context}; restart this rank")]
    Fatal {
        /// What was being done.
        context: String,
        /// What went wrong underneath.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The collectives of one group, called by one thread of each rank.
///
/// Every rank calls the same operations in the same order with sizes that agree. A failed operation leaves the
/// contents of its output unspecified.
pub trait Communicator: Send {
    /// This rank's number, below [`size`](Self::size).
    fn rank(&self) -> usize;

    /// The number of ranks, at least 1.
    fn size(&self) -> usize;

    /// Replaces `values` with the element-wise sum over all ranks, added in rank order in f32: every rank gets the
    /// same bits, whatever carries them. `values` has one length on every rank.
    ///
    /// # Errors
    /// See [`CommunicatorError`].
    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommunicatorError>;

    /// Writes every rank's `mine` to `out`, one after the other in rank order.
    ///
    /// `lengths[r]` is the length rank `r` contributes and is the same on every rank; `mine` has length
    /// `lengths[rank]` and `out` their sum.
    ///
    /// # Errors
    /// See [`CommunicatorError`]; lengths that do not fit are [`CommunicatorError::Fatal`].
    fn all_gather(
        &mut self,
        mine: &[f32],
        lengths: &[usize],
        out: &mut [f32],
    ) -> Result<(), CommunicatorError>;

    /// Replaces `bytes` on every rank with the contents it has on rank `root`.
    ///
    /// # Errors
    /// See [`CommunicatorError`]; more than [`BROADCAST_LIMIT_BYTES`] is [`CommunicatorError::Fatal`].
    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), CommunicatorError>;

    /// Says what this rank does from now on.
    fn enter(&mut self, activity: Activity);

    /// After [`CommunicatorError::Failed`]: returns when the group works again.
    ///
    /// # Errors
    /// [`CommunicatorError::Closed`] or [`CommunicatorError::Fatal`] when it never will.
    fn reform(&mut self) -> Result<(), CommunicatorError>;
}

/// A misuse of a collective: a defect of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The lengths given to an all-gather contradict each other.
    #[error(
        "all-gather on rank {rank}: {mine} values and room for {out}, but the agreed lengths are {lengths:?}"
    )]
    Lengths {
        /// The calling rank.
        rank: usize,
        /// Values handed in.
        mine: usize,
        /// Room for the result.
        out: usize,
        /// The agreed lengths.
        lengths: Vec<usize>,
    },
    /// A broadcast from a rank that does not exist.
    #[error("broadcast from rank {root}, but the group has {size} ranks")]
    Root {
        /// The named root.
        root: usize,
        /// The size of the group.
        size: usize,
    },
    /// A broadcast above [`BROADCAST_LIMIT_BYTES`].
    #[error("broadcast of {bytes} bytes, but at most {BROADCAST_LIMIT_BYTES} are allowed")]
    TooLong {
        /// The size of the message.
        bytes: usize,
    },
}

impl From<Misuse> for CommunicatorError {
    fn from(misuse: Misuse) -> Self {
        Self::Fatal { context: "a collective was called wrongly".into(), source: Box::new(misuse) }
    }
}

/// Checks the arguments of an all-gather, for implementations of [`Communicator`].
///
/// # Errors
/// [`Misuse::Lengths`] when they contradict each other.
pub fn check_all_gather(
    rank: usize,
    size: usize,
    mine: usize,
    lengths: &[usize],
    out: usize,
) -> Result<(), Misuse> {
    let sum = lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
    if lengths.len() == size && lengths.get(rank) == Some(&mine) && sum == Some(out) {
        return Ok(());
    }
    Err(Misuse::Lengths { rank, mine, out, lengths: lengths.to_vec() })
}

/// Checks the arguments of a broadcast, for implementations of [`Communicator`]; `bytes` counts on the root only.
///
/// # Errors
/// [`Misuse::Root`] or [`Misuse::TooLong`].
pub fn check_broadcast(rank: usize, size: usize, bytes: usize, root: usize) -> Result<(), Misuse> {
    if root >= size {
        return Err(Misuse::Root { root, size });
    }
    if rank == root && bytes > BROADCAST_LIMIT_BYTES {
        return Err(Misuse::TooLong { bytes });
    }
    Ok(())
}

/// The group of one rank: every collective is already complete.
#[derive(Debug, Clone, Copy, Default)]
pub struct Solo;

impl Communicator for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce_sum(&mut self, _values: &mut [f32]) -> Result<(), CommunicatorError> {
        Ok(())
    }

    fn all_gather(
        &mut self,
        mine: &[f32],
        lengths: &[usize],
        out: &mut [f32],
    ) -> Result<(), CommunicatorError> {
        check_all_gather(0, 1, mine.len(), lengths, out.len())?;
        out.copy_from_slice(mine);
        Ok(())
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), CommunicatorError> {
        Ok(check_broadcast(0, 1, bytes.len(), root)?)
    }

    fn enter(&mut self, _activity: Activity) {}

    fn reform(&mut self) -> Result<(), CommunicatorError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solo_returns_what_it_was_given() {
        let mut solo = Solo;
        let mut values = [1.5, -2.0];
        solo.all_reduce_sum(&mut values).unwrap();
        assert_eq!(values, [1.5, -2.0]);
        let mut out = [0.0; 2];
        solo.all_gather(&values, &[2], &mut out).unwrap();
        assert_eq!(out, values);
    }

    #[test]
    fn wrong_lengths_and_roots_are_errors_that_name_them() {
        let mut out = [0.0; 3];
        let error = Solo.all_gather(&[1.0, 2.0], &[2], &mut out).unwrap_err();
        let CommunicatorError::Fatal { source, .. } = error else { panic!("{error}") };
        assert_eq!(
            source.to_string(),
            "all-gather on rank 0: 2 values and room for 3, but the agreed lengths are [2]"
        );
        assert_eq!(check_broadcast(0, 2, 1, 2), Err(Misuse::Root { root: 2, size: 2 }));
        let long = BROADCAST_LIMIT_BYTES + 1;
        assert_eq!(check_broadcast(1, 2, long, 1), Err(Misuse::TooLong { bytes: long }));
        assert_eq!(check_broadcast(0, 2, long, 1), Ok(()));
        assert!(check_all_gather(0, 2, 1, &[1, usize::MAX], 0).is_err());
    }
}
