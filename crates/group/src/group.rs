//! A formed group: the operations of one rank in one epoch, for a blocking caller.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fabric::{Buffer, Element, Fabric, Reduction, bytes_of, bytes_of_mut};

use crate::beacon::Phase;
use crate::collective::{CollectiveError, Collectives, Data, Operation, Schedule, ScheduleTable};
use crate::control::mesh::Control;
use crate::control::view::{ClusterView, SupervisorNote};
use crate::member::Carrier;
use crate::pulse::Pulse;
use crate::rendezvous::MemberInfo;
use crate::telemetry::Telemetry;
use crate::verdict::{Reason, Verdict};
use crate::watch::ControlWatch;

/// Largest operation whose time is taken from the first look after its bytes were sent on: what
/// comes before is shorter than the metrics can tell.
const CLOCK_LATER_BYTES_MAX: u64 = 256;

/// The ranks of one epoch, as one of them has it.
///
/// After an operation failed with [`CollectiveError::Stopped`] every further one fails at once
/// with the same verdict; the [`Member`](crate::Member) forms the next epoch.
#[derive(Debug)]
pub struct Group {
    // Dropped in this order: the thread that uses the parts below ends first.
    _pulse: Pulse,
    collectives: Collectives<ControlWatch>,
    fabric: Arc<Fabric>,
    control: Arc<Control>,
    epoch: u32,
    carrier: Carrier,
    members: Vec<MemberInfo>,
    telemetry: Telemetry,
    interrupted: Arc<AtomicBool>,
}

impl Group {
    pub(crate) fn new(
        pulse: Pulse,
        collectives: Collectives<ControlWatch>,
        control: Arc<Control>,
        epoch: u32,
        carrier: Carrier,
        members: Vec<MemberInfo>,
        telemetry: Telemetry,
    ) -> Self {
        Self {
            _pulse: pulse,
            fabric: Arc::clone(collectives.fabric()),
            collectives,
            control,
            epoch,
            carrier,
            members,
            telemetry,
            interrupted: Arc::default(),
        }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.collectives.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.collectives.size()
    }

    /// The epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// What carries the bytes, and why.
    pub fn carrier(&self) -> &Carrier {
        &self.carrier
    }

    /// The ranks and their hosts.
    pub fn members(&self) -> &[MemberInfo] {
        &self.members
    }

    /// The bytes below.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// What this rank knows of all ranks.
    pub fn view(&self) -> ClusterView {
        self.control.view()
    }

    /// Why the group stopped, if it did.
    pub fn verdict(&self) -> Option<Arc<Verdict>> {
        self.control.verdict()
    }

    /// A handle for other threads: what a supervisor says, and failing on purpose.
    pub fn informant(&self) -> Informant {
        Informant { control: Arc::downgrade(&self.control) }
    }

    /// Waits end with [`CollectiveError::Interrupted`] once the switch is on. Wake the
    /// [`Fabric`] after it was thrown; the group cannot be used afterwards.
    pub fn interrupt_on(&mut self, switch: Arc<AtomicBool>) {
        self.interrupted = switch;
    }

    /// Says what this rank does until its next operation; others' patience with it depends on it.
    pub fn enter(&self, phase: Phase) {
        self.collectives.watch().enter(phase);
    }

    /// Replaces the table of schedules. All ranks must do so between the same two operations.
    pub fn set_table(&mut self, table: ScheduleTable) {
        self.collectives.set_table(table);
    }

    /// Registered memory for operations without copies; see [`Fabric::alloc`].
    ///
    /// # Errors
    /// When the heap is full.
    pub fn alloc(&self, bytes: u64) -> Result<Buffer, fabric::HeapFull> {
        self.fabric().alloc(bytes)
    }

    /// Combines the ranks' vectors in place, in the order of ranks: all get the same bits.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    pub fn all_reduce<T: Element>(
        &mut self,
        how: Reduction,
        values: &mut [T],
    ) -> Result<(), CollectiveError> {
        self.all_reduce_data::<T>(how, Data::Plain(bytes_of_mut(values)))
    }

    /// As [`all_reduce`](Self::all_reduce), for the first `count` elements of registered buffers.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`], and a count that does not fit the buffers.
    pub fn all_reduce_registered<T: Element>(
        &mut self,
        how: Reduction,
        input: &Buffer,
        output: &mut Buffer,
        count: usize,
    ) -> Result<(), CollectiveError> {
        let output = self.part::<T>(output, count)?;
        let data = Data::Registered { input: self.part::<T>(input, count)?, output };
        self.all_reduce_data::<T>(how, data)
    }

    /// As [`all_reduce_registered`](Self::all_reduce_registered), the result replacing the input.
    ///
    /// # Errors
    /// As above.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        how: Reduction,
        buffer: &mut Buffer,
        count: usize,
    ) -> Result<(), CollectiveError> {
        let span = self.part::<T>(buffer, count)?;
        self.all_reduce_data::<T>(how, Data::Registered { input: span, output: span })
    }

    fn part<T: Element>(
        &self,
        buffer: &Buffer,
        count: usize,
    ) -> Result<fabric::Span, CollectiveError> {
        let mut span = buffer.span();
        let bytes = count as u64 * size_of::<T>() as u64;
        if bytes > span.len {
            return Err(CollectiveError::Argument {
                rank: self.rank(),
                what: format!("{count} elements do not fit a buffer of {} bytes", span.len),
            });
        }
        span.len = bytes;
        Ok(span)
    }

    fn all_reduce_data<T: Element>(
        &mut self,
        how: Reduction,
        data: Data<'_>,
    ) -> Result<(), CollectiveError> {
        let (bytes, schedule) = (data.len(), self.collectives.schedule_for(&data));
        self.timed(Operation::AllReduce, schedule, bytes, async |collectives| {
            collectives.all_reduce(T::SCALAR, how, data).await
        })
    }

    /// Combines the ranks' vectors; rank `r` gets elements `r * output.len()` and on.
    ///
    /// # Errors
    /// As [`Collectives::reduce_scatter`].
    pub fn reduce_scatter<T: Element>(
        &mut self,
        how: Reduction,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        let bytes = size_of_val(input) as u64;
        self.timed(Operation::ReduceScatter, Schedule::OneShot, bytes, async |collectives| {
            let (input, output) = (bytes_of(input), bytes_of_mut(output));
            collectives.reduce_scatter(T::SCALAR, how, input, output).await
        })
    }

    /// Concatenates the ranks' parts, of `lengths` elements each, in the order of ranks.
    ///
    /// # Errors
    /// As [`Collectives::all_gather`].
    pub fn all_gather<T: Element>(
        &mut self,
        input: &[T],
        lengths: &[usize],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        let bytes = size_of_val(output) as u64;
        let lengths: Vec<usize> = lengths.iter().map(|len| len * size_of::<T>()).collect();
        self.timed(Operation::AllGather, Schedule::OneShot, bytes, async |collectives| {
            collectives.all_gather(bytes_of(input), &lengths, bytes_of_mut(output)).await
        })
    }

    /// Gives part `d` of the input to rank `d`; part `s` of the output comes from rank `s`.
    ///
    /// # Errors
    /// As [`Collectives::all_to_all`].
    pub fn all_to_all<T: Element>(
        &mut self,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CollectiveError> {
        let bytes = size_of_val(input) as u64;
        self.timed(Operation::AllToAll, Schedule::OneShot, bytes, async |collectives| {
            collectives.all_to_all(bytes_of(input), bytes_of_mut(output)).await
        })
    }

    /// Gives the root's elements to every rank.
    ///
    /// # Errors
    /// As [`Collectives::broadcast`].
    pub fn broadcast<T: Element>(
        &mut self,
        values: &mut [T],
        root: usize,
    ) -> Result<(), CollectiveError> {
        let bytes = size_of_val(values) as u64;
        self.timed(Operation::Broadcast, Schedule::OneShot, bytes, async |collectives| {
            collectives.broadcast(bytes_of_mut(values), root).await
        })
    }

    /// Gives the root's bytes, of a length that only it knows, to every rank.
    ///
    /// # Errors
    /// As [`Collectives::broadcast_any`].
    pub fn broadcast_any(
        &mut self,
        bytes: &mut Vec<u8>,
        root: usize,
    ) -> Result<(), CollectiveError> {
        let len = bytes.len() as u64;
        self.timed(Operation::Broadcast, Schedule::OneShot, len, async |collectives| {
            collectives.broadcast_any(bytes, root).await
        })
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Collectives::barrier`].
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.timed(Operation::Barrier, Schedule::OneShot, 0, Collectives::barrier)
    }

    fn timed<'a>(
        &'a mut self,
        operation: Operation,
        schedule: Schedule,
        bytes: u64,
        run: impl AsyncFnOnce(&'a mut Collectives<ControlWatch>) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let (fabric, telemetry) = (&self.fabric, &self.telemetry);
        let (epoch, sequence) = (self.epoch, self.collectives.sequence().wrapping_add(1));
        // Few bytes are on their way sooner than a clock is read, so it is read while they are.
        let mut begun = (bytes > CLOCK_LATER_BYTES_MAX).then(Instant::now);
        let (control, interrupted) = (&self.control, &self.interrupted);
        let mut running = pin!(run(&mut self.collectives));
        let mut context = Context::from_waker(Waker::noop());
        let result = fabric.wait(|| match running.as_mut().poll(&mut context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => {
                begun.get_or_insert_with(Instant::now);
                interrupted.load(Ordering::Relaxed).then_some(Err(CollectiveError::Interrupted))
            }
        });
        let result = match result {
            // A path that is gone stops the whole group, with one verdict for all.
            Err(CollectiveError::Fabric(error)) => Err(stop(control, &error)),
            other => other,
        };
        let ended = Instant::now();
        let took = (begun.unwrap_or(ended), ended);
        telemetry.collective(operation, schedule, bytes, (epoch, sequence), took, result.is_ok());
        result
    }
}

/// Asks for a verdict and waits for it: the collector answers within half a second.
fn stop(control: &Control, error: &fabric::FabricError) -> CollectiveError {
    control.propose(Reason::Failed { what: error.to_string() });
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        if let Some(verdict) = control.verdict() {
            return CollectiveError::Stopped(verdict);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    CollectiveError::Fabric(error.clone())
}

/// How long a group that ends well waits for its last bytes to leave.
const LEAVING_LIMIT: Duration = Duration::from_secs(1);

impl Drop for Group {
    fn drop(&mut self) {
        // The last operation may be over here before its bytes have left.
        let deadline = Instant::now() + LEAVING_LIMIT;
        let fabric = self.collectives.fabric();
        if !self.control.failed() && !self.interrupted.load(Ordering::Relaxed) {
            fabric.wait(|| (fabric.is_drained() || Instant::now() > deadline).then_some(()));
        }
        self.control.close();
    }
}

/// What other threads may tell a group.
#[derive(Clone, Debug)]
pub struct Informant {
    control: std::sync::Weak<Control>,
}

impl Informant {
    /// Passes on what the supervisor of this machine knows of a process.
    pub fn note(&self, note: SupervisorNote) {
        if let Some(control) = self.control.upgrade() {
            control.note(note);
        }
    }

    /// Has the group form again, for what a person or a program asked: `have paths proven again`.
    pub fn request(&self, what: String) {
        if let Some(control) = self.control.upgrade() {
            control.propose(Reason::Requested { what });
        }
    }

    /// Stops the group: every rank gets a verdict that says what happened here.
    pub fn fail(&self, what: String) {
        if let Some(control) = self.control.upgrade() {
            control.propose(Reason::Failed { what });
        }
    }
}
