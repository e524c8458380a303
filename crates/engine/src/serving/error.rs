//! Why a step loop ended, and what a failed step means for it.

use super::scheduler::LogitsMismatch;
use crate::communicator::CommunicatorError;
use crate::model::{ModelError, PlanError};

/// Why a step loop ended although nobody closed it. The process should end too, so that it is started again.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The group cannot be healed by this rank.
    #[error("rank {rank} cannot serve any longer")]
    Group {
        /// This rank.
        rank: usize,
        /// What happened to the group.
        #[source]
        source: CommunicatorError,
    },
    /// The model refused a step: ranks disagree on limits or on the model, or this is a defect.
    #[error("rank {rank} cannot run a step: check that all ranks have the same model and settings")]
    Model {
        /// This rank.
        rank: usize,
        /// What the model said.
        #[source]
        source: ModelError,
    },
    /// The step that rank 0 sent makes no sense.
    #[error(
        "rank {rank} cannot read the step that rank 0 sent: check that all ranks run one version"
    )]
    Plan {
        /// This rank.
        rank: usize,
        /// What is wrong with it.
        #[source]
        source: PlanError,
    },
    /// The model gave other logits than were asked for.
    #[error(
        "rank {rank} got logits that do not belong to its step, which is a defect of the model"
    )]
    Logits {
        /// This rank.
        rank: usize,
        /// What came.
        #[source]
        source: LogitsMismatch,
    },
}

/// What ends a turn of a step loop.
pub(super) enum Stop {
    /// The group failed and may be re-formed; the verdict in one line.
    Failed(String),
    /// The group was closed.
    Closed,
    /// Nothing can be done here.
    Fatal(ServingError),
}

impl Stop {
    pub(super) fn from_group(source: CommunicatorError, rank: usize) -> Self {
        match source {
            CommunicatorError::Failed { summary } => Self::Failed(summary),
            CommunicatorError::Closed => Self::Closed,
            source @ CommunicatorError::Fatal { .. } => {
                Self::Fatal(ServingError::Group { rank, source })
            }
        }
    }

    pub(super) fn from_model(source: ModelError, rank: usize) -> Self {
        match source {
            ModelError::Communicator(source) => Self::from_group(source, rank),
            source => Self::Fatal(ServingError::Model { rank, source }),
        }
    }
}
