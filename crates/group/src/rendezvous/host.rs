//! The meeting point's edge: one listener, a reader for each connection, one thread that decides.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::auth::{Handshake, Identity, Purpose, Role, Token, authenticate, nonce};
use crate::control::send_queue::SendQueue;
use crate::rendezvous::core::{ConnectionId, HostCore, HostOutput};
use crate::rendezvous::message::{TO_HOST, TO_MEMBER, ToHost};

/// Connections at a time, strangers included.
const MAX_CONNECTIONS: usize = 64;
/// How long a stranger has to prove that it belongs, and a rank to say what it wants.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// How long a closing connection has to take what was sent to it.
const FAREWELL: Duration = Duration::from_secs(2);
const EVENTS: usize = 256;
const BUSY_TICK: Duration = Duration::from_millis(20);
/// How long a meeting point that refused the group stays for ranks that have not come yet.
const LINGER: Duration = Duration::from_secs(4);
/// Time between two lines that say who is not there.
const REMIND: Duration = Duration::from_secs(10);
const IDLE_TICK: Duration = Duration::from_millis(500);

/// What the meeting point needs.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The group's secret.
    pub token: Token,
    /// Ranks of the group.
    pub size: usize,
}

enum Event {
    Opened { connection: ConnectionId, stream: TcpStream },
    Message { connection: ConnectionId, rank: u8, message: ToHost },
    Closed { connection: ConnectionId },
    Stop,
}

/// The running meeting point. It listens until it is dropped, so that ranks can join again.
#[derive(Debug)]
pub struct Host {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    stopping: Arc<AtomicBool>,
    /// A refusal of the whole group that some ranks have not heard yet.
    owes: Arc<AtomicBool>,
    events: SyncSender<Event>,
    threads: Vec<JoinHandle<()>>,
}

impl Host {
    /// Listens and serves. The address can be taken again at once after a predecessor died.
    ///
    /// # Errors
    /// The address is not to be had, or the system refuses a thread.
    pub fn start(options: HostOptions) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind(options.listen)?);
        let (events, inbox) = sync_channel(EVENTS);
        let mut host = Self {
            address: listener.local_addr()?,
            listener: Arc::clone(&listener),
            stopping: Arc::new(AtomicBool::new(false)),
            owes: Arc::new(AtomicBool::new(false)),
            events: events.clone(),
            threads: Vec::new(),
        };
        let decider = Decider::new(options.size, Arc::clone(&host.owes));
        host.threads
            .push(Builder::new().name("rendezvous".to_owned()).spawn(move || decider.run(&inbox))?);
        let stopping = Arc::clone(&host.stopping);
        let token = options.token;
        host.threads.push(
            Builder::new()
                .name("rendezvous-accept".to_owned())
                .spawn(move || accept(&listener, &token, &events, &stopping))?,
        );
        Ok(host)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Whoever comes late must learn why there is no group, not find nobody.
        let deadline = Instant::now() + LINGER;
        while self.owes.load(Ordering::Acquire) && Instant::now() < deadline {
            std::thread::sleep(BUSY_TICK);
        }
        self.stopping.store(true, Ordering::Release);
        // Wakes the accepting thread: on Linux a listener that is shut down refuses and returns.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        let _ = self.events.send(Event::Stop);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!(address = %self.address, "a rendezvous thread panicked");
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    token: &Token,
    events: &SyncSender<Event>,
    stopping: &AtomicBool,
) {
    let open = Arc::new(AtomicUsize::new(0));
    let mut next: ConnectionId = 0;
    while !stopping.load(Ordering::Acquire) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !stopping.load(Ordering::Acquire) {
                    // Out of descriptors, for example: others may be closed meanwhile.
                    tracing::warn!(%error, "rendezvous: a connection was not accepted");
                    std::thread::sleep(Duration::from_millis(50));
                }
                continue;
            }
        };
        if open.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
            tracing::warn!(
                limit = MAX_CONNECTIONS,
                "rendezvous: too many connections, one was refused"
            );
            continue;
        }
        next += 1;
        let (connection, token, events) = (next, token.clone(), events.clone());
        let count = Counted::new(&open);
        let started = Builder::new().name(format!("rendezvous-{connection}")).spawn(move || {
            serve(connection, stream, token, &events);
            drop(count);
        });
        if let Err(error) = started {
            tracing::warn!(%error, "rendezvous: no thread for a connection");
        }
    }
}

/// Counts one open connection until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn serve(
    connection: ConnectionId,
    mut stream: TcpStream,
    token: Token,
    events: &SyncSender<Event>,
) {
    let peer = stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |peer| peer.to_string());
    let identity = match introduce(&mut stream, token) {
        Ok(identity) => identity,
        Err(error) => {
            tracing::warn!(peer, %error, "rendezvous: a connection was refused");
            return;
        }
    };
    let Ok(writer) = stream.try_clone() else { return };
    if events.send(Event::Opened { connection, stream: writer }).is_err() {
        return;
    }
    if let Err(error) = read(connection, identity.rank, &mut stream, events) {
        tracing::warn!(peer, rank = identity.rank, error, "rendezvous: a connection was ended");
    }
    let _ = stream.shutdown(Shutdown::Both);
    let _ = events.send(Event::Closed { connection });
}

fn introduce(stream: &mut TcpStream, token: Token) -> Result<Identity, crate::auth::AuthError> {
    stream.set_nodelay(true)?;
    keep_alive(stream)?;
    let me = Identity { rank: 0, epoch: 0 };
    let handshake = Handshake::new(token, Role::Listener, Purpose::Rendezvous, me, nonce()?);
    authenticate(stream, handshake, INTRODUCTION)
}

/// A machine that lost its power sends no farewell; its rank's number must become free again all the same.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(3))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

fn read(
    connection: ConnectionId,
    rank: u8,
    stream: &mut TcpStream,
    events: &SyncSender<Event>,
) -> Result<(), String> {
    let first_by = Instant::now() + INTRODUCTION;
    let mut first = true;
    let mut buffer = Vec::new();
    let mut chunk = [0u8; 16 * 1024];
    loop {
        let limit = if first {
            let left = first_by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("no request came".to_owned());
            }
            Some(left)
        } else {
            None
        };
        stream.set_read_timeout(limit).map_err(|error| error.to_string())?;
        let count = match stream.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut => continue,
                io::ErrorKind::ConnectionReset => return Ok(()),
                _ => return Err(error.to_string()),
            },
        };
        buffer.extend_from_slice(&chunk[..count]);
        while let Some((frame, used)) =
            TO_HOST.decode(&buffer).map_err(|error| error.to_string())?
        {
            buffer.drain(..used);
            let message = ToHost::decode(&frame).map_err(|error| error.to_string())?;
            first = false;
            if events.send(Event::Message { connection, rank, message }).is_err() {
                return Ok(());
            }
        }
    }
}

struct Connection {
    stream: TcpStream,
    queue: SendQueue,
    /// Set once the core closes it: no later than then it is cut.
    closing: Option<Instant>,
    /// Its sending side was closed, and the other end has seen or will see that.
    finished: bool,
}

struct Decider {
    core: HostCore,
    connections: HashMap<ConnectionId, Connection>,
    origin: Instant,
    owes: Arc<AtomicBool>,
}

impl Decider {
    fn new(size: usize, owes: Arc<AtomicBool>) -> Self {
        let (core, connections) = (HostCore::new(size), HashMap::new());
        Self { core, connections, origin: Instant::now(), owes }
    }

    fn run(mut self, inbox: &Receiver<Event>) {
        let mut out = Vec::new();
        let mut remind_at = REMIND;
        loop {
            let unsent =
                self.connections.values().any(|c| !c.queue.is_empty() || c.closing.is_some());
            let tick = if unsent || self.core.is_busy() { BUSY_TICK } else { IDLE_TICK };
            match inbox.recv_timeout(tick) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.take(event, &mut out),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = self.origin.elapsed();
            self.core.tick(now, &mut out);
            match self.core.missing(now) {
                Some((missing, waited)) if waited >= REMIND && now >= remind_at => {
                    remind_at = now + REMIND;
                    tracing::warn!(%missing, waited_s = waited.as_secs(), "waiting for ranks to come");
                }
                _ => {}
            }
            // Before rank 0 itself hears of it, and may go.
            self.owes.store(self.core.owes_refusals(), Ordering::Release);
            self.carry_out(&mut out);
        }
        for connection in self.connections.values() {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
    }

    fn take(&mut self, event: Event, out: &mut Vec<HostOutput>) {
        match event {
            Event::Opened { connection, stream } => {
                let queue = SendQueue::new(2 * TO_MEMBER.max_bytes);
                self.connections.insert(
                    connection,
                    Connection { stream, queue, closing: None, finished: false },
                );
            }
            Event::Message { connection, rank, message } => {
                let now = self.origin.elapsed();
                let open = self.connections.get(&connection).is_some_and(|c| c.closing.is_none());
                if open {
                    self.core.on_message(now, connection, rank, message, out);
                }
            }
            Event::Closed { connection } => {
                self.connections.remove(&connection);
                self.core.on_closed(connection, out);
            }
            Event::Stop => {}
        }
    }

    fn carry_out(&mut self, out: &mut Vec<HostOutput>) {
        for output in out.drain(..) {
            match output {
                HostOutput::Send(to, message) => {
                    let Some(connection) = self.connections.get_mut(&to) else { continue };
                    let sent = match message.encode() {
                        Ok(bytes) => connection.queue.push(bytes, false),
                        Err(error) => {
                            tracing::error!(%error, "rendezvous: a message was not sent");
                            false
                        }
                    };
                    // A member that lacks a message cannot go on; it learns so from the end of the connection.
                    if !sent {
                        let _ = connection.stream.shutdown(Shutdown::Both);
                    }
                }
                HostOutput::Close(to) => {
                    if let Some(connection) = self.connections.get_mut(&to) {
                        connection.closing.get_or_insert(Instant::now() + FAREWELL);
                    }
                }
            }
        }
        for connection in self.connections.values_mut() {
            let _ = connection.queue.flush(&connection.stream);
            let Some(until) = connection.closing else { continue };
            if Instant::now() >= until {
                let _ = connection.stream.shutdown(Shutdown::Both);
            } else if connection.queue.is_empty() && !connection.finished {
                connection.finished = true;
                // Only the sending side: cutting both could destroy what the other end has not read yet.
                let _ = connection.stream.shutdown(Shutdown::Write);
            }
        }
    }
}
