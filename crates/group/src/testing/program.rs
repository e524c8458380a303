//! The program of a rank: the steps of the plan, each checked against what must come of it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fabric::{Buffer, FabricError, Scalar, Span, bytes_of, bytes_of_mut};

use super::seat::{Seat, SimWatch};
use super::steps::{Book, Case, Memory, Step};
use crate::collective::{CollectiveError, Collectives, Data, Schedule};
use crate::verdict::Verdict;

/// How a program ended before its last step was done.
#[derive(Debug)]
pub(super) enum Stop {
    /// With the verdict of the group.
    Verdict(Arc<Verdict>),
    /// With a result or an error that must not be.
    Wrong { invariant: &'static str, what: String },
}

/// What one rank runs.
pub(super) struct Program {
    pub(super) group: Collectives<SimWatch>,
    pub(super) seat: Rc<Seat>,
    pub(super) book: Rc<Book>,
    /// How long the rank computes before each step.
    pub(super) computes: Vec<Duration>,
    pub(super) registered_bytes: u64,
}

impl Program {
    pub(super) async fn run(mut self) -> Result<(), Stop> {
        let mut buffers = self.buffers()?;
        for index in self.seat.completed.get()..self.book.steps.len() {
            self.seat.compute(self.computes[index]).await;
            self.seat.started.set(index + 1);
            match self.step(index, &mut buffers).await {
                Ok(()) => {}
                Err(Failure::Collective(CollectiveError::Stopped(verdict))) => {
                    return Err(Stop::Verdict(verdict));
                }
                Err(Failure::Collective(CollectiveError::Fabric(FabricError::LinkDown {
                    ..
                }))) => {
                    return Err(Stop::Verdict(self.seat.until_verdict().await));
                }
                Err(Failure::Collective(error)) => {
                    return Err(Stop::Wrong { invariant: "EXACT", what: error.to_string() });
                }
                Err(Failure::Wrong(invariant, what)) => {
                    return Err(Stop::Wrong { invariant, what });
                }
            }
            self.seat.completed.set(index + 1);
        }
        self.seat.beacon.set_phase(crate::beacon::Phase::Idle);
        Ok(())
    }

    fn buffers(&self) -> Result<[Buffer; 2], Stop> {
        let take = || {
            self.group
                .fabric()
                .alloc(self.registered_bytes)
                .map_err(|full| Stop::Wrong { invariant: "EXACT", what: full.to_string() })
        };
        Ok([take()?, take()?])
    }

    async fn step(&mut self, index: usize, buffers: &mut [Buffer; 2]) -> Result<(), Failure> {
        let book = Rc::clone(&self.book);
        let step = &book.steps[index];
        let schedule = self.schedule(step, buffers);
        let case = book.case(index, schedule);
        let found = self.carry_out(step, &case, buffers).await.map_err(Failure::Collective)?;
        let rank = self.group.rank();
        let expected = book.expected(index, &case, rank);
        if found == expected {
            return Ok(());
        }
        let at = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        let invariant = match step {
            Step::AllReduce { .. } | Step::ReduceScatter { .. } => "SAME-BITS",
            _ => "EXACT",
        };
        let what = format!(
            "rank {rank}, step {index} ({step:?}, {schedule}): {} bytes for {}, the first wrong one at {at:?}",
            found.len(),
            expected.len()
        );
        Err(Failure::Wrong(invariant, what))
    }

    fn schedule(&self, step: &Step, buffers: &[Buffer; 2]) -> Schedule {
        let Step::AllReduce { scalar, count, memory, .. } = step else { return Schedule::OneShot };
        let mut plain = vec![0; count * scalar.bytes()];
        let span = Span { offset: buffers[0].span().offset, len: plain.len() as u64 };
        let data = match memory {
            Memory::Plain => Data::Plain(&mut plain),
            Memory::InPlace | Memory::Apart => Data::Registered { input: span, output: span },
        };
        self.group.schedule_for(&data)
    }

    async fn carry_out(
        &mut self,
        step: &Step,
        case: &Case,
        buffers: &mut [Buffer; 2],
    ) -> Result<Vec<u8>, CollectiveError> {
        let rank = self.group.rank();
        let input = &case.inputs[rank];
        match step {
            Step::AllGather { lengths } => {
                let mut output = vec![0; lengths.iter().sum()];
                self.group.all_gather(input, lengths, &mut output).await?;
                Ok(output)
            }
            Step::AllToAll { share } => {
                let mut output = vec![0; share * self.group.size()];
                self.group.all_to_all(input, &mut output).await?;
                Ok(output)
            }
            Step::Barrier => {
                self.group.barrier().await?;
                Ok(Vec::new())
            }
            Step::Broadcast { root, len } => {
                let mut bytes = if *root == rank { input.clone() } else { vec![0; *len] };
                self.group.broadcast(&mut bytes, *root).await?;
                Ok(bytes)
            }
            Step::BroadcastAny { root, .. } => {
                let mut bytes = if *root == rank { input.clone() } else { vec![7; 3] };
                self.group.broadcast_any(&mut bytes, *root).await?;
                Ok(bytes)
            }
            Step::ReduceScatter { scalar, how, count } => {
                let len = count * scalar.bytes();
                let mut output = aligned(len);
                let bytes = &mut bytes_of_mut(&mut output)[..len];
                self.group.reduce_scatter(*scalar, *how, input, bytes).await?;
                Ok(bytes_of(&output)[..len].to_vec())
            }
            Step::AllReduce { scalar, how, memory: Memory::Plain, .. } => {
                let mut values = aligned(input.len());
                let bytes = &mut bytes_of_mut(&mut values)[..input.len()];
                bytes.copy_from_slice(input);
                self.group.all_reduce(*scalar, *how, Data::Plain(bytes)).await?;
                Ok(bytes_of(&values)[..input.len()].to_vec())
            }
            Step::AllReduce { scalar, how, memory, .. } => {
                let apart = usize::from(*memory == Memory::Apart);
                let len = input.len();
                buffers[0].as_mut_slice::<u8>()[..len].copy_from_slice(input);
                let span = |buffer: &Buffer| Span { len: len as u64, ..buffer.span() };
                let data =
                    Data::Registered { input: span(&buffers[0]), output: span(&buffers[apart]) };
                self.group.all_reduce(*scalar, *how, data).await?;
                Ok(buffers[apart].as_slice::<u8>()[..len].to_vec())
            }
        }
    }
}

enum Failure {
    Collective(CollectiveError),
    Wrong(&'static str, String),
}

/// Memory for `len` bytes of any element.
fn aligned(len: usize) -> Vec<i32> {
    vec![0; len.div_ceil(Scalar::I32.bytes())]
}
