//! A group whose ranks are threads of one process.

use crate::communicator::{
    Activity, Communicator, CommunicatorError, check_all_gather, check_broadcast,
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(120);

/// One rank of a group of threads. Dropping it closes the group for the others.
#[derive(Debug)]
pub struct ThreadCommunicator {
    rank: usize,
    size: usize,
    values: Arc<Exchange<f32>>,
    bytes: Arc<Exchange<u8>>,
}

/// The ranks of a group of `size`, each to be moved to its own thread.
#[must_use]
pub fn communicators(size: usize) -> Vec<ThreadCommunicator> {
    let (values, bytes) = (Arc::new(Exchange::new(size)), Arc::new(Exchange::new(size)));
    (0..size)
        .map(|rank| {
            let (values, bytes) = (values.clone(), bytes.clone());
            ThreadCommunicator { rank, size, values, bytes }
        })
        .collect()
}

#[derive(Debug)]
struct Exchange<T> {
    state: Mutex<State<T>>,
    turned: Condvar,
}

#[derive(Debug)]
struct State<T> {
    arrived: Vec<Option<Vec<T>>>,
    round: u64,
    closed: bool,
    result: Arc<Vec<Vec<T>>>,
}

impl<T> Exchange<T> {
    fn new(size: usize) -> Self {
        let arrived = (0..size).map(|_| None).collect();
        let state = State { arrived, round: 0, closed: false, result: Arc::default() };
        Self { state: Mutex::new(state), turned: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands in `mine`; returns what every rank handed in.
    fn run(&self, rank: usize, mine: Vec<T>) -> Result<Arc<Vec<Vec<T>>>, CommunicatorError> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        let round = state.round;
        state.arrived[rank] = Some(mine);
        if state.arrived.iter().all(Option::is_some) {
            state.result = Arc::new(state.arrived.iter_mut().filter_map(Option::take).collect());
            state.round += 1;
            self.turned.notify_all();
        }
        while state.round == round {
            if state.closed {
                return Err(CommunicatorError::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let summary = format!("rank {rank} waited {PATIENCE:?} for the other threads");
                return Err(CommunicatorError::Failed { summary });
            }
            state = self.turned.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state.result.clone())
    }

    fn close(&self) {
        self.lock().closed = true;
        self.turned.notify_all();
    }
}

impl Drop for ThreadCommunicator {
    fn drop(&mut self) {
        self.values.close();
        self.bytes.close();
    }
}

impl Communicator for ThreadCommunicator {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce_sum(&mut self, values: &mut [f32]) -> Result<(), CommunicatorError> {
        let all = self.values.run(self.rank, values.to_vec())?;
        for (index, value) in values.iter_mut().enumerate() {
            let column = all.iter().map(|rank| rank.get(index).copied().unwrap_or(f32::NAN));
            *value = column.reduce(|sum, next| sum + next).unwrap_or(*value);
        }
        Ok(())
    }

    fn all_gather(
        &mut self,
        mine: &[f32],
        lengths: &[usize],
        out: &mut [f32],
    ) -> Result<(), CommunicatorError> {
        check_all_gather(self.rank, self.size, mine.len(), lengths, out.len())?;
        let all = self.values.run(self.rank, mine.to_vec())?.concat();
        check_all_gather(self.rank, self.size, mine.len(), lengths, all.len())?;
        out.copy_from_slice(&all);
        Ok(())
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), CommunicatorError> {
        check_broadcast(self.rank, self.size, bytes.len(), root)?;
        let all = self.bytes.run(self.rank, std::mem::take(bytes))?;
        bytes.clone_from(&all[root]);
        Ok(())
    }

    fn enter(&mut self, _activity: Activity) {}

    fn reform(&mut self) -> Result<(), CommunicatorError> {
        Err(CommunicatorError::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn sums_go_in_rank_order_and_gathers_keep_it() {
        let handles: Vec<_> = communicators(3)
            .into_iter()
            .map(|mut comm| {
                thread::spawn(move || {
                    let rank = comm.rank();
                    let mut sum = [[1e8, -1e8, 1.0][rank]];
                    comm.all_reduce_sum(&mut sum).unwrap();
                    let mine = vec![rank as f32; rank];
                    let mut out = [0.0; 3];
                    comm.all_gather(&mine, &[0, 1, 2], &mut out).unwrap();
                    let mut bytes = vec![rank as u8];
                    comm.broadcast(&mut bytes, 2).unwrap();
                    (sum, out, bytes)
                })
            })
            .collect();
        for handle in handles {
            assert_eq!(handle.join().unwrap(), ([1.0], [1.0, 2.0, 2.0], vec![2]));
        }
    }

    #[test]
    fn a_rank_that_leaves_closes_the_group() {
        let mut group = communicators(2);
        drop(group.pop());
        let error = group[0].all_reduce_sum(&mut [0.0]).unwrap_err();
        assert!(matches!(error, CommunicatorError::Closed), "{error}");
    }
}
