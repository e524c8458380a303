//! Operations of the whole group.
//!
//! Every operation is made of **exchanges**: each rank puts something, if only a flag, to every
//! other rank under one sequence number, and goes on when it has got theirs. So no rank can be two
//! exchanges ahead of another, and two slots for each source are enough: when a rank fills the
//! slot of exchange `s`, its owner has begun `s - 1` and is done with what lay there, `s - 2`.
//!
//! Operations are `async` so that one text runs on real transports, polled by a loop that spins,
//! yields and sleeps, and in the simulator, polled by a seeded scheduler. There is no runtime.

mod exchange;
mod moving;
mod reducing;
mod ring;
mod table;

use std::sync::Arc;

use fabric::{FIRST_VALUE, Fabric, FabricError, OutOfRegion, ReduceError};

use crate::beacon::{RankSet, operation};
use crate::verdict::Verdict;

pub use moving::BROADCAST_BYTES_MAX;
pub use reducing::Data;
pub use table::{Schedule, ScheduleTable};

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Concatenates what the ranks have.
    AllGather,
    /// Combines vectors; every rank gets the result.
    AllReduce,
    /// Every rank has a part for every rank.
    AllToAll,
    /// Nobody leaves before all have come.
    Barrier,
    /// One rank's bytes to all.
    Broadcast,
    /// Combines vectors; every rank gets its part of the result.
    ReduceScatter,
}

impl Operation {
    /// Its code in beacons.
    pub fn code(self) -> u8 {
        match self {
            Self::AllGather => operation::ALL_GATHER,
            Self::AllReduce => operation::ALL_REDUCE,
            Self::AllToAll => operation::ALL_TO_ALL,
            Self::Barrier => operation::BARRIER,
            Self::Broadcast => operation::BROADCAST,
            Self::ReduceScatter => operation::REDUCE_SCATTER,
        }
    }

    /// The operation with a code.
    pub fn from_code(code: u8) -> Option<Self> {
        use Operation::*;
        [AllGather, AllReduce, AllToAll, Barrier, Broadcast, ReduceScatter]
            .into_iter()
            .find(|operation| operation.code() == code)
    }
}

/// Why an operation failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Arguments that no group could carry out.
    #[error("rank {rank}: {what}")]
    Argument {
        /// The rank that called.
        rank: usize,
        /// What is wrong with the arguments.
        what: String,
    },
    /// Bytes could not be moved.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// This process wants to end.
    #[error("the operation was interrupted")]
    Interrupted,
    /// An access outside of registered memory.
    #[error(transparent)]
    Region(#[from] OutOfRegion),
    /// A vector that is no whole number of aligned elements.
    #[error(transparent)]
    Shape(#[from] ReduceError),
    /// The group stopped; every rank got the same verdict. Re-form it and repeat the step.
    #[error("{0}")]
    Stopped(Arc<Verdict>),
}

/// Whom an operation waits for, and the relays the missing bytes would come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// The ranks whose bytes are missing.
    pub ranks: RankSet,
    /// The relays between.
    pub via: RankSet,
}

/// Who looks after an operation: keeps the beacon, knows the patience, and stops it.
pub trait Watch {
    /// An operation begins.
    ///
    /// # Errors
    /// The verdict, if the group has stopped already.
    fn begin(&self, operation: Operation, sequence: u32) -> Result<(), Arc<Verdict>>;

    /// It waits for others; called at every look, so it must be cheap.
    ///
    /// # Errors
    /// The verdict, once there is one.
    fn waits(&self, waits: &mut dyn FnMut() -> Waits) -> Result<(), Arc<Verdict>>;

    /// A wait of the operation is over, or the operation is.
    fn goes_on(&self);

    /// The operation is over.
    fn end(&self);
}

/// The operations of one rank in one epoch.
#[derive(Debug)]
pub struct Collectives<W> {
    fabric: Arc<Fabric>,
    watch: W,
    rank: usize,
    size: usize,
    /// True when every other rank's region can be read in place.
    all_mapped: bool,
    table: ScheduleTable,
    /// The last operation.
    sequence: u32,
    /// The last exchange.
    exchange: u32,
    ring: ring::Steps,
}

impl<W: Watch> Collectives<W> {
    /// The operations of the rank whose fabric this is. `first` is the sequence number before the
    /// first operation: the same on all ranks.
    pub fn new(fabric: Arc<Fabric>, watch: W, table: ScheduleTable, first: u32) -> Self {
        let (rank, size) = (fabric.rank(), fabric.topology().ranks());
        Self {
            rank,
            size,
            all_mapped: (0..size).all(|peer| peer == rank || fabric.mapped(peer).is_some()),
            fabric,
            watch,
            table,
            sequence: first,
            exchange: FIRST_VALUE,
            ring: ring::Steps::default(),
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The number of the last operation. It wraps.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The bytes below.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// Which schedule is used when; shared by all ranks.
    pub fn table(&self) -> &ScheduleTable {
        &self.table
    }

    /// Replaces the table. All ranks must do so between the same two operations.
    pub fn set_table(&mut self, table: ScheduleTable) {
        self.table = table;
    }

    /// Who looks after the operations.
    pub fn watch(&self) -> &W {
        &self.watch
    }

    fn begin(&mut self, operation: Operation) -> Result<(), CollectiveError> {
        self.sequence = self.sequence.wrapping_add(1);
        self.watch.begin(operation, self.sequence).map_err(CollectiveError::Stopped)
    }

    fn argument(&self, what: String) -> CollectiveError {
        CollectiveError::Argument { rank: self.rank, what }
    }

    fn slot_bytes(&self) -> u64 {
        self.fabric.layout().sizes().slot_bytes
    }
}
