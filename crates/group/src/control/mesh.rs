//! The thin edge of the control plane: one thread for the state machine, one reader for each peer.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::beacon::{Beacon, BeaconCell};
use crate::control::core::{ControlCore, HEARTBEAT, Output};
use crate::control::send_queue::SendQueue;
use crate::control::view::{CableNames, ClusterView, LinkReport, SupervisorNote};
use crate::control::wire::{CONTROL, Message, RailMessage};
use crate::patience::Patience;
use crate::verdict::{Proposal, Reason, Verdict};

/// How often the state machine looks at the time while a verdict is being made.
const TICK: Duration = Duration::from_millis(50);
/// Inputs that may wait for the state machine; a reader that finds no room waits, a caller does not.
const INPUTS: usize = 1024;
/// Bytes that may wait for one peer.
const SEND_BYTES: usize = 512 * 1024;
/// Words about rails that may wait for [`Control::take_rail_messages`].
const RAIL_MESSAGES: usize = 256;
/// How long goodbyes may take to leave.
const GOODBYE: Duration = Duration::from_millis(200);

/// Something worth a line in a log or a flight recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlEvent {
    /// The connection to a peer ended.
    PeerClosed {
        /// Which rank.
        rank: usize,
        /// Whether it had said goodbye.
        orderly: bool,
        /// As the system put it.
        why: String,
    },
    /// A peer reads too slowly: a message for it was dropped.
    PeerSlow {
        /// Which rank.
        rank: usize,
    },
    /// The verdict of this epoch.
    Verdict(Arc<Verdict>),
}

type EventSink = Box<dyn Fn(ControlEvent) + Send>;
type VerdictCallback = Box<dyn Fn(&Arc<Verdict>) + Send>;

/// What a control plane needs to start.
pub struct ControlOptions {
    /// Epoch of the group.
    pub epoch: u32,
    /// This rank.
    pub rank: usize,
    /// Authenticated connections, one to each other rank.
    pub streams: Vec<(usize, TcpStream)>,
    /// Name of each rank's machine, by rank; its length is the group's size.
    pub hosts: Vec<String>,
    /// What people call the cables.
    pub cables: CableNames,
    /// The patience in force.
    pub patience: Arc<Patience>,
    /// This rank's beacon.
    pub beacon: Arc<BeaconCell>,
    /// Receives events, on the control thread; it must neither block nor wait for this control plane.
    pub events: EventSink,
}

impl fmt::Debug for ControlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlOptions")
            .field("epoch", &self.epoch)
            .field("rank", &self.rank)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Why a control plane did not start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is not exactly one connection to each other rank.
    #[error(
        "control of rank {rank}: need one connection to each of ranks {expected:?}, have {got:?}"
    )]
    Streams {
        /// This rank.
        rank: usize,
        /// All other ranks.
        expected: Vec<usize>,
        /// Ranks that connections were given for.
        got: Vec<usize>,
    },
    /// The system refused.
    #[error("control of rank {rank}: cannot {what}: {source}")]
    System {
        /// This rank.
        rank: usize,
        /// What was tried.
        what: &'static str,
        /// As the system put it.
        source: io::Error,
    },
}

enum Input {
    Message { from: usize, epoch: u32, message: Message },
    Closed { peer: usize, why: String },
    Propose(Reason),
    Submit(Proposal),
    Link(LinkReport),
    Note(SupervisorNote),
    Rail { to: usize, message: RailMessage },
    OnVerdict(VerdictCallback),
    Wake,
}

struct Shared {
    failed: AtomicBool,
    closing: AtomicBool,
    verdict: OnceLock<Arc<Verdict>>,
    core: Mutex<ControlCore>,
    rail_messages: Mutex<VecDeque<(usize, RailMessage)>>,
    origin: Instant,
    rank: usize,
}

impl Shared {
    fn core(&self) -> MutexGuard<'_, ControlCore> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rail_messages(&self) -> MutexGuard<'_, VecDeque<(usize, RailMessage)>> {
        self.rail_messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running control plane of one rank in one epoch.
pub struct Control {
    shared: Arc<Shared>,
    inputs: SyncSender<Input>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("rank", &self.shared.rank)
            .field("failed", &self.failed())
            .finish_non_exhaustive()
    }
}

impl Control {
    /// Starts the control plane over connected, authenticated streams.
    ///
    /// # Errors
    /// Streams that are not one to each other rank; threads or descriptors the system refuses.
    pub fn start(options: ControlOptions) -> Result<Self, ControlError> {
        let ControlOptions { epoch, rank, streams, hosts, cables, patience, beacon, events } =
            options;
        let size = hosts.len();
        let mut got: Vec<usize> = streams.iter().map(|(peer, _)| *peer).collect();
        got.sort_unstable();
        let expected: Vec<usize> = (0..size).filter(|peer| *peer != rank).collect();
        if got != expected {
            return Err(ControlError::Streams { rank, expected, got });
        }
        let system = |what| move |source| ControlError::System { rank, what, source };
        let shared = Arc::new(Shared {
            failed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            verdict: OnceLock::new(),
            core: Mutex::new(
                ControlCore::new(epoch, rank, hosts, Duration::ZERO).with_cables(cables),
            ),
            rail_messages: Mutex::default(),
            origin: Instant::now(),
            rank,
        });
        let (inputs, receiver) = sync_channel(INPUTS);
        let mut readers = Vec::new();
        let mut peers: Vec<Option<Peer>> = (0..size).map(|_| None).collect();
        for (peer, stream) in streams {
            stream.set_read_timeout(None).map_err(system("make a connection blocking"))?;
            stream.set_nonblocking(false).map_err(system("make a connection blocking"))?;
            stream.set_nodelay(true).map_err(system("set TCP_NODELAY"))?;
            readers.push((peer, stream.try_clone().map_err(system("share a connection"))?));
            peers[peer] = Some(Peer { stream, queue: SendQueue::new(SEND_BYTES) });
        }
        // Made before any thread, so that an error below ends those that were started already.
        let control = Self { shared, inputs, threads: Mutex::new(Vec::new()) };
        let worker = Worker {
            shared: Arc::clone(&control.shared),
            epoch,
            peers,
            patience,
            beacon,
            events,
            callbacks: Vec::new(),
        };
        control.spawn(format!("control-{rank}"), move || worker.run(&receiver))?;
        for (peer, stream) in readers {
            let inputs = control.inputs.clone();
            let shared = Arc::clone(&control.shared);
            control.spawn(format!("control-{rank}-from-{peer}"), move || {
                read_peer(peer, stream, &shared, &inputs);
            })?;
        }
        Ok(control)
    }

    fn spawn(
        &self,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), ControlError> {
        let rank = self.shared.rank;
        let thread = Builder::new()
            .name(name)
            .spawn(body)
            .map_err(|source| ControlError::System { rank, what: "start a thread", source })?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Whether this epoch has failed: one load, for the loop of a waiting worker.
    pub fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// The verdict of this epoch, once there is one.
    pub fn verdict(&self) -> Option<Arc<Verdict>> {
        self.shared.verdict.get().cloned()
    }

    /// What this rank knows of all ranks.
    pub fn view(&self) -> ClusterView {
        self.shared.core().view().clone()
    }

    /// Time on the clock of [`Self::view`].
    pub fn now(&self) -> Duration {
        self.shared.origin.elapsed()
    }

    /// Asks for a verdict, at the position of this rank's beacon. An overdue wait that the beacon tells of is proposed by
    /// the control thread itself.
    pub fn propose(&self, reason: Reason) {
        self.input(Input::Propose(reason));
    }

    /// Asks for a verdict at a position of the caller's naming.
    pub fn submit(&self, proposal: Proposal) {
        self.input(Input::Submit(proposal));
    }

    /// Tells all ranks of a rail that went down. Where no other path is left, propose [`Reason::LinkDown`] as well.
    pub fn report_link(&self, report: LinkReport) {
        self.input(Input::Link(report));
    }

    /// Tells all ranks what a supervisor said of a process.
    pub fn note(&self, note: SupervisorNote) {
        self.input(Input::Note(note));
    }

    /// Sends a word about a rail to the rank at its other end. It may be lost, and is after a verdict.
    pub fn send_rail(&self, to: usize, message: RailMessage) {
        self.input(Input::Rail { to, message });
    }

    /// Takes the words about rails that have come, each with its sender, oldest first.
    pub fn take_rail_messages(&self) -> VecDeque<(usize, RailMessage)> {
        std::mem::take(&mut *self.shared.rail_messages())
    }

    /// Takes in a beacon that `rank` put through the fabric. One read twice changes nothing.
    pub fn fabric_beacon(&self, rank: usize, beacon: Beacon) {
        self.shared.core().on_fabric_beacon(self.now(), rank, beacon);
    }

    /// Calls `callback` on the control thread when the verdict is adopted, at once if it is already.
    /// It must neither block nor call this control plane.
    pub fn on_verdict(&self, callback: impl Fn(&Arc<Verdict>) + Send + 'static) {
        self.input(Input::OnVerdict(Box::new(callback)));
    }

    fn input(&self, input: Input) {
        // Waits only for the control thread, which itself waits for nobody; fails only once that has ended.
        let _ = self.inputs.send(input);
    }

    /// Says goodbye to all peers, ends all connections and joins all threads. May be called again.
    pub fn close(&self) {
        let threads: Vec<_> = {
            let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.drain(..).collect()
        };
        if threads.is_empty() {
            return;
        }
        self.shared.closing.store(true, Ordering::Release);
        // Where the queue is full, the control thread is awake anyway.
        let _ = self.inputs.try_send(Input::Wake);
        let own = std::thread::current().id();
        for thread in threads {
            // A callback may hold the last reference and close from the control thread itself.
            if thread.thread().id() != own && thread.join().is_err() {
                tracing::error!(rank = self.shared.rank, "a control thread panicked");
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.close();
    }
}

fn read_peer(peer: usize, mut stream: TcpStream, shared: &Shared, inputs: &SyncSender<Input>) {
    let mut buffer = Vec::new();
    let mut chunk = [0u8; 16 * 1024];
    let why = 'connection: loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => break "closed by the peer (end of stream)".to_owned(),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => break error.to_string(),
        };
        buffer.extend_from_slice(&chunk[..count]);
        let mut used = 0;
        loop {
            match CONTROL.decode(&buffer[used..]) {
                Ok(Some((frame, length))) => {
                    used += length;
                    match Message::decode(&frame) {
                        // Most messages are heartbeats. They ask for nothing, so they do not wake the control thread.
                        Ok(message @ Message::Heartbeat(_)) => {
                            let now = shared.origin.elapsed();
                            shared.core().on_message(
                                now,
                                peer,
                                frame.epoch,
                                message,
                                &mut Vec::new(),
                            );
                        }
                        Ok(message) => {
                            let input = Input::Message { from: peer, epoch: frame.epoch, message };
                            if inputs.send(input).is_err() {
                                return;
                            }
                        }
                        Err(error) => break 'connection error.to_string(),
                    }
                }
                Ok(None) => break,
                Err(error) => break 'connection error.to_string(),
            }
        }
        buffer.drain(..used);
    };
    // A peer that sends garbage is not read any further.
    let _ = stream.shutdown(Shutdown::Both);
    let _ = inputs.send(Input::Closed { peer, why });
}

struct Peer {
    stream: TcpStream,
    queue: SendQueue,
}

struct Worker {
    shared: Arc<Shared>,
    epoch: u32,
    peers: Vec<Option<Peer>>,
    patience: Arc<Patience>,
    beacon: Arc<BeaconCell>,
    events: EventSink,
    callbacks: Vec<VerdictCallback>,
}

impl Worker {
    fn run(mut self, inputs: &Receiver<Input>) {
        let mut out = Vec::new();
        let mut next_tick = Duration::ZERO;
        while !self.shared.closing.load(Ordering::Acquire) {
            let now = self.shared.origin.elapsed();
            match inputs.recv_timeout(next_tick.saturating_sub(now)) {
                Ok(input) => {
                    self.take(input, &mut out);
                    // What has come is read before any decision: after a pause of this process there may be much of it.
                    inputs.try_iter().take(INPUTS).for_each(|input| self.take(input, &mut out));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = self.shared.origin.elapsed();
            if now >= next_tick {
                let own = self.beacon.heartbeat(now);
                let patience = self.patience.values();
                let mut core = self.shared.core();
                core.tick(now, own, &patience, &mut out);
                next_tick = now + if core.is_open() { TICK } else { HEARTBEAT };
            }
            self.carry_out(&mut out);
        }
        self.leave(out, inputs);
    }

    fn take(&mut self, input: Input, out: &mut Vec<Output>) {
        let now = self.shared.origin.elapsed();
        let mut core = self.shared.core();
        match input {
            Input::Message { from, epoch, message } => {
                core.on_message(now, from, epoch, message, out);
            }
            Input::Closed { peer, why } => {
                let orderly = core.view().ranks.get(peer).is_some_and(|view| {
                    view.control == crate::control::view::ControlState::Goodbye
                });
                core.on_closed(now, peer, &why, out);
                drop(core);
                (self.events)(ControlEvent::PeerClosed { rank: peer, orderly, why });
            }
            Input::Propose(reason) => {
                let own = self.beacon.snapshot(now);
                core.tick(now, own, &self.patience.values(), out);
                core.propose(now, reason, out);
            }
            Input::Submit(proposal) => core.submit(now, proposal, out),
            Input::Link(report) => core.report_link(report, out),
            Input::Note(note) => core.note(now, note, out),
            Input::Rail { to, message } => core.send_rail(to, message, out),
            Input::OnVerdict(callback) => {
                drop(core);
                match self.shared.verdict.get() {
                    Some(verdict) => callback(verdict),
                    None => self.callbacks.push(callback),
                }
            }
            Input::Wake => {}
        }
    }

    fn carry_out(&mut self, out: &mut Vec<Output>) {
        for output in out.drain(..) {
            match output {
                Output::Send { to, message } => self.send(to, &message),
                Output::Adopted(verdict) => {
                    let _ = self.shared.verdict.set(Arc::clone(&verdict));
                    self.shared.failed.store(true, Ordering::Release);
                    for callback in self.callbacks.drain(..) {
                        callback(&verdict);
                    }
                    (self.events)(ControlEvent::Verdict(verdict));
                }
                Output::Rail { from, message } => {
                    let mut waiting = self.shared.rail_messages();
                    // One that is lost is made good by the next attempt.
                    if waiting.len() < RAIL_MESSAGES {
                        waiting.push_back((from, message));
                    }
                }
            }
        }
        for peer in self.peers.iter_mut().flatten() {
            // The reader of this connection sees the error as well and tells of it.
            let _ = peer.queue.flush(&peer.stream);
        }
    }

    fn send(&mut self, to: usize, message: &Message) {
        let Some(Some(peer)) = self.peers.get_mut(to) else { return };
        match message.encode(self.epoch) {
            Ok(bytes) => {
                let heartbeat = matches!(message, Message::Heartbeat(_));
                let first = peer.queue.dropped() == 0;
                if !peer.queue.push(bytes, heartbeat) && first {
                    (self.events)(ControlEvent::PeerSlow { rank: to });
                }
            }
            Err(error) => {
                tracing::error!(rank = self.shared.rank, to, %error, "a control message was not sent");
            }
        }
    }

    fn leave(mut self, mut out: Vec<Output>, inputs: &Receiver<Input>) {
        self.shared.core().goodbye(&mut out);
        self.carry_out(&mut out);
        let until = Instant::now() + GOODBYE;
        let waits = |peer: &Peer| !peer.queue.is_empty();
        while self.peers.iter().flatten().any(waits) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            self.carry_out(&mut out);
        }
        for peer in self.peers.iter().flatten() {
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
        // Readers that wait for room in the queue find it, and end.
        while inputs.try_recv().is_ok() {}
    }
}
