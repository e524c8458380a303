//! Making the connections of an epoch.
//!
//! Of two neighbours the lower rank listens and the higher one connects, so nobody waits for
//! somebody who waits for him. All connections are made and proven at once, on one thread, so a
//! stranger who connects and says nothing holds up nobody.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::device::{PEER_TIMEOUT, Shared, TcpDevice};
use super::error::ConnectError;
use super::parker::TcpParker;
use crate::auth::{AuthError, Handshake, Identity, Purpose, Refusal, Role, Step, Token, nonce};
use crate::region::Region;

/// Longest time for one handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(3);
/// Pause before a failed connection is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Most incoming connections that have not proven themselves; the oldest makes room.
const STRANGERS_MAX: usize = 64;

/// Where a neighbour listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// Its rank.
    pub rank: usize,
    /// Its address for each rail.
    pub addresses: Vec<SocketAddr>,
    /// Where this rank waits for it, by rail, if it is the one that connects.
    pub own: Vec<SocketAddr>,
}

/// What [`connect`] needs.
#[derive(Debug)]
pub struct TcpSetup {
    /// This rank.
    pub rank: usize,
    /// The epoch of the group.
    pub epoch: u32,
    /// The ranks on the other ends of this rank's cables.
    pub neighbours: Vec<PeerEndpoint>,
    /// How many rails each cable has.
    pub rails: usize,
    /// The group's secret.
    pub token: Token,
    /// Whether frames carry checksums; the same on all ranks.
    pub crc: bool,
    /// The own region; all ranks' regions have one size.
    pub region: Arc<Region>,
    /// Where this rank listens.
    pub listeners: Vec<TcpListener>,
    /// The number of the first write between any two ranks, the same on all ranks.
    pub first_number: u32,
    /// When to give up.
    pub deadline: Instant,
}

/// Connects to all neighbours on all rails.
///
/// # Errors
/// The first connection that is missing at the deadline, or that was refused for good.
pub fn connect(setup: TcpSetup) -> Result<(TcpDevice, Arc<TcpParker>), ConnectError> {
    let rank = setup.rank;
    let system = |what| move |source| ConnectError::System { rank, what, source };
    let mut meeting = Meeting::new(&setup)?;
    meeting.run()?;
    let parker = Arc::new(TcpParker::new().map_err(system("make its epoll sets"))?);
    let Meeting { slots, .. } = meeting;
    let shared =
        Shared { rank, epoch: setup.epoch, crc: setup.crc, region: Arc::clone(&setup.region) };
    let mut device = TcpDevice::new(shared, Arc::clone(&parker));
    let mut sockets = slots.into_iter().filter_map(|slot| slot.socket);
    for neighbour in &setup.neighbours {
        let sockets = sockets.by_ref().take(setup.rails).collect();
        device
            .add_peer(neighbour.rank, sockets, setup.first_number)
            .map_err(system("watch its sockets"))?;
    }
    Ok((device, parker))
}

/// A connection to be made.
#[derive(Debug)]
struct Slot {
    peer: usize,
    rail: usize,
    /// The neighbour's address, or the own one where the neighbour connects.
    address: SocketAddr,
    socket: Option<OwnedFd>,
    /// None while an attempt runs.
    next_try: Option<Instant>,
    /// What happened last, or the last that tells more than that a connection failed.
    cause: Option<Cause>,
}

#[derive(Clone, Debug)]
struct Cause {
    what: String,
    is_telling: bool,
}

impl Cause {
    fn of(error: &AuthError, what: String) -> Self {
        let is_telling = !matches!(error, AuthError::Connection { .. } | AuthError::Timeout { .. });
        Self { what, is_telling }
    }
}

impl Slot {
    fn note(&mut self, cause: Cause) {
        if cause.is_telling || self.cause.as_ref().is_none_or(|last| !last.is_telling) {
            self.cause = Some(cause);
        }
    }
}

/// A connection that has yet to prove itself.
#[derive(Debug)]
struct Attempt {
    socket: OwnedFd,
    handshake: Handshake,
    step: Step,
    sent: usize,
    read: Vec<u8>,
    until: Instant,
    /// The slot it is for, if this rank connected.
    slot: Option<usize>,
}

impl Attempt {
    fn new(socket: OwnedFd, handshake: Handshake, until: Instant, slot: Option<usize>) -> Self {
        let step = handshake.start();
        Self { socket, handshake, step, sent: 0, read: Vec::new(), until, slot }
    }

    /// Goes as far as it can without waiting; answers who the peer is, once proven.
    fn advance(&mut self) -> Result<Option<Identity>, AuthError> {
        loop {
            while let Some(rest) = self.step.send.get(self.sent..).filter(|rest| !rest.is_empty()) {
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                match rustix::net::send(&self.socket, rest, flags) {
                    Ok(count) => self.sent += count,
                    Err(Errno::AGAIN) => return Ok(None),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(io::Error::from(errno).into()),
                }
            }
            match self.step.result {
                Some(Ok(identity)) => return Ok(Some(identity)),
                Some(Err(Refusal::WrongProof)) => return Err(AuthError::WrongProof),
                Some(Err(Refusal::Refused)) => return Err(AuthError::Refused),
                None => {}
            }
            // Exactly what the handshake asks for: frames may follow it at once.
            let mut room = [0; 256];
            let want = (self.step.read - self.read.len()).min(room.len());
            match rustix::net::recv(&self.socket, &mut room[..want], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
                }
                Ok((count, _)) => self.read.extend_from_slice(&room[..count.min(want)]),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            if self.read.len() == self.step.read {
                self.step = self.handshake.feed(&self.read)?;
                self.read.clear();
                self.sent = 0;
            }
        }
    }
}

#[derive(Debug)]
struct Meeting<'a> {
    setup: &'a TcpSetup,
    slots: Vec<Slot>,
    attempts: Vec<Attempt>,
    started: Instant,
}

impl<'a> Meeting<'a> {
    fn new(setup: &'a TcpSetup) -> Result<Self, ConnectError> {
        let rank = setup.rank;
        let started = Instant::now();
        let mut slots = Vec::new();
        for neighbour in &setup.neighbours {
            let peer = neighbour.rank;
            let wrong = |what| Err(ConnectError::Setup { rank, peer, what });
            if peer == rank {
                return wrong("no rank is its own neighbour".to_owned());
            }
            if neighbour.addresses.len() != setup.rails {
                let found = neighbour.addresses.len();
                return wrong(format!("{found} addresses are given for {} rails", setup.rails));
            }
            for (rail, &address) in neighbour.addresses.iter().enumerate() {
                let address = match neighbour.own.get(rail) {
                    _ if rank > peer => address,
                    Some(own) if !setup.listeners.is_empty() => *own,
                    _ => return wrong("it connects to us and we do not listen".to_owned()),
                };
                let next_try = (rank > peer).then_some(started);
                slots.push(Slot { peer, rail, address, socket: None, next_try, cause: None });
            }
        }
        for listener in &setup.listeners {
            listener.set_nonblocking(true).map_err(|source| ConnectError::System {
                rank,
                what: "prepare its listener",
                source,
            })?;
        }
        Ok(Self { setup, slots, attempts: Vec::new(), started })
    }

    fn run(&mut self) -> Result<(), ConnectError> {
        loop {
            let now = Instant::now();
            self.dial(now)?;
            self.accept(now)?;
            self.advance(now)?;
            if self.slots.iter().all(|slot| slot.socket.is_some()) {
                return Ok(());
            }
            if now >= self.setup.deadline {
                return Err(self.missing());
            }
            self.wait();
        }
    }

    /// Starts the connections that are due.
    fn dial(&mut self, now: Instant) -> Result<(), ConnectError> {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.socket.is_some() || slot.next_try.is_none_or(|at| at > now) {
                continue;
            }
            match start_connection(slot.address) {
                Ok(socket) => {
                    slot.next_try = None;
                    // Ranks are below MAX_RANKS and rails below MAX_RAILS.
                    let (peer, rail) = (slot.peer as u8, slot.rail as u8);
                    let handshake = self.handshake(Role::Dialler)?.meant_for(peer).on_rail(rail);
                    let until = now + HANDSHAKE_LIMIT;
                    self.attempts.push(Attempt::new(socket, handshake, until, Some(index)));
                }
                Err(errno) => {
                    slot.next_try = Some(now + RETRY_PAUSE);
                    slot.note(Cause { what: errno.to_string(), is_telling: false });
                }
            }
        }
        Ok(())
    }

    fn handshake(&self, role: Role) -> Result<Handshake, ConnectError> {
        let TcpSetup { rank, epoch, token, .. } = self.setup;
        let nonce = nonce().map_err(|error| ConnectError::System {
            rank: *rank,
            what: "get random bytes",
            source: io::Error::other(error),
        })?;
        let me = Identity { rank: *rank as u8, epoch: *epoch };
        Ok(Handshake::new(token.clone(), role, Purpose::Fabric, me, nonce))
    }

    fn accept(&mut self, now: Instant) -> Result<(), ConnectError> {
        let setup = self.setup;
        for listener in &setup.listeners {
            // A failed accept concerns one connection, or passes when descriptors are free again.
            while let Ok((stream, _)) = listener.accept() {
                if stream.set_nonblocking(true).is_err() {
                    continue;
                }
                let strangers = self.attempts.iter().filter(|attempt| attempt.slot.is_none());
                if strangers.count() >= STRANGERS_MAX
                    && let Some(oldest) =
                        self.attempts.iter().position(|attempt| attempt.slot.is_none())
                {
                    self.attempts.remove(oldest);
                }
                let handshake = self.handshake(Role::Listener)?;
                let until = now + HANDSHAKE_LIMIT;
                self.attempts.push(Attempt::new(stream.into(), handshake, until, None));
            }
        }
        Ok(())
    }

    fn advance(&mut self, now: Instant) -> Result<(), ConnectError> {
        let mut index = 0;
        while let Some(attempt) = self.attempts.get_mut(index) {
            let outcome = match attempt.advance() {
                Ok(None) if now >= attempt.until => {
                    Err(AuthError::Timeout { limit: HANDSHAKE_LIMIT })
                }
                Ok(None) => {
                    index += 1;
                    continue;
                }
                Ok(Some(identity)) => Ok(identity),
                Err(error) => Err(error),
            };
            let attempt = self.attempts.remove(index);
            match (attempt.slot, outcome) {
                (slot, Ok(identity)) => self.proven(attempt, slot, identity, now)?,
                (Some(slot), Err(error)) => self.failed(slot, error, now)?,
                (None, Err(error)) => {
                    let what = format!("a connection was refused: {error}");
                    self.note(None, &Cause::of(&error, what));
                }
            }
        }
        Ok(())
    }

    /// Puts a proven connection in its slot.
    fn proven(
        &mut self,
        attempt: Attempt,
        slot: Option<usize>,
        identity: Identity,
        now: Instant,
    ) -> Result<(), ConnectError> {
        let (rank, epoch) = (self.setup.rank, self.setup.epoch);
        let peer = usize::from(identity.rank);
        let rail = usize::from(attempt.handshake.rail());
        let index = slot.or_else(|| {
            self.slots.iter().position(|slot| rank < peer && slot.peer == peer && slot.rail == rail)
        });
        let expected = index.map(|index| self.slots[index].peer);
        if expected != Some(peer) || identity.epoch != epoch {
            let what = format!(
                "the other end is rank {peer} of epoch {}, and this is rank {rank} of epoch {epoch}",
                identity.epoch
            );
            self.note(index, &Cause { what, is_telling: true });
            if let Some(slot) = slot {
                self.slots[slot].next_try = Some(now + RETRY_PAUSE);
            }
            return Ok(());
        }
        if let Some(index) = index {
            prepare(&attempt.socket).map_err(|source| ConnectError::System {
                rank,
                what: "set up its socket",
                source,
            })?;
            // A peer that connects again has given the first connection up.
            self.slots[index].socket = Some(attempt.socket);
        }
        Ok(())
    }

    fn failed(&mut self, slot: usize, error: AuthError, now: Instant) -> Result<(), ConnectError> {
        let slot = &mut self.slots[slot];
        if matches!(error, AuthError::WrongProof | AuthError::Refused) {
            return Err(ConnectError::Refused {
                rank: self.setup.rank,
                peer: slot.peer,
                rail: slot.rail,
                address: slot.address,
                source: error,
            });
        }
        slot.next_try = Some(now + RETRY_PAUSE);
        let what = error.to_string();
        slot.note(Cause::of(&error, what));
        Ok(())
    }

    /// Remembers what happened, for the slot it concerns or all that wait for a connection.
    fn note(&mut self, index: Option<usize>, cause: &Cause) {
        for (other, slot) in self.slots.iter_mut().enumerate() {
            let waits = index.is_none() && slot.socket.is_none() && slot.peer > self.setup.rank;
            if index == Some(other) || waits {
                slot.note(cause.clone());
            }
        }
    }

    fn missing(&self) -> ConnectError {
        let mut missing = self.slots.iter().filter(|slot| slot.socket.is_none());
        let count = missing.clone().count();
        // Called only while one is missing.
        let first = missing.next().or(self.slots.first());
        let cause = first.and_then(|slot| slot.cause.clone()).map_or_else(
            || "nobody connected; is that rank running?".to_owned(),
            |cause| cause.what,
        );
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        ConnectError::Missing {
            rank: self.setup.rank,
            peer: first.map_or(0, |slot| slot.peer),
            rail: first.map_or(0, |slot| slot.rail),
            address: first.map_or(unspecified, |slot| slot.address),
            waited: self.started.elapsed(),
            missing: count,
            cause,
        }
    }

    /// Sleeps until a socket can go on, or a retry is due.
    fn wait(&self) {
        let listeners =
            self.setup.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        let attempts = self.attempts.iter().map(|attempt| {
            let unsent = attempt.sent < attempt.step.send.len();
            let flags = if unsent { PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(attempt.socket.as_fd(), flags)
        });
        let mut fds: Vec<PollFd<'_>> = listeners.chain(attempts).collect();
        let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&pause));
    }
}

fn start_connection(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Frames leave at once, and a peer that is gone is noticed. Buffer sizes stay the kernel's to
/// tune: setting them would end that, and the limit for what can be set is below what it reaches.
fn prepare(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PEER_TIMEOUT / 3)?;
    sockopt::set_tcp_keepintvl(socket, PEER_TIMEOUT / 6)?;
    sockopt::set_tcp_keepcnt(socket, 4)?;
    // A few tens of thousands of milliseconds.
    sockopt::set_tcp_user_timeout(socket, PEER_TIMEOUT.as_millis() as u32)?;
    Ok(())
}
