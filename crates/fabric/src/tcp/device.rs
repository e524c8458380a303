//! One rank's connections.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::parker::TcpParker;
use super::receive::{Receiver, Round};
use super::send::{Sender, To};
use crate::device::{Device, Event, Parker, PostError, Posted, RailFault, Write};
use crate::inbox::{INBOX_WINDOW, Inbox};
use crate::region::Region;
use crate::wire::Expect;

/// After this long without a word from the peer's kernel a connection is over.
pub(super) const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// Looks in vain after which a spinning worker sends acknowledgements that wait: about as long as
/// the timer lets them wait.
const QUIET_LOOKS: u32 = 500;

/// What all connections of a device need.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) epoch: u32,
    pub(super) crc: bool,
    pub(super) region: Arc<Region>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    sender: Sender,
    receiver: Receiver,
    /// The parker wakes when the socket has room.
    watches_room: bool,
}

#[derive(Debug)]
struct Peer {
    rank: usize,
    rails: Vec<Option<Connection>>,
    /// A bit for each rail without a connection.
    down: u8,
    inbox: Inbox,
    expect: Expect,
    corrupt: bool,
}

/// One rank's queue pairs over TCP.
#[derive(Debug)]
pub struct TcpDevice {
    shared: Shared,
    peers: Vec<Peer>,
    /// What happened outside of a poll.
    events: Vec<Event>,
    parker: Arc<TcpParker>,
    looks: u32,
    /// The next poll sends acknowledgements that are owed.
    hurried: bool,
}

impl TcpDevice {
    pub(super) fn new(shared: Shared, parker: Arc<TcpParker>) -> Self {
        Self { shared, peers: Vec::new(), events: Vec::new(), parker, looks: 0, hurried: false }
    }

    /// Adds a neighbour with a non-blocking socket for each rail.
    pub(super) fn add_peer(
        &mut self,
        rank: usize,
        sockets: Vec<OwnedFd>,
        first_number: u32,
    ) -> std::io::Result<()> {
        let region_bytes = self.shared.region.len();
        let mut rails = Vec::with_capacity(sockets.len());
        for socket in sockets {
            self.parker.watch(&socket)?;
            rails.push(Some(Connection {
                socket,
                sender: Sender::new(),
                receiver: Receiver::new(),
                watches_room: false,
            }));
        }
        self.peers.push(Peer {
            rank,
            rails,
            down: 0,
            inbox: Inbox::new(first_number),
            expect: Expect {
                epoch: self.shared.epoch,
                src: rank,
                dst: self.shared.rank,
                region_bytes,
                max_len: u32::try_from(region_bytes).unwrap_or(u32::MAX),
                crc: self.shared.crc,
            },
            corrupt: false,
        });
        Ok(())
    }
}

impl Peer {
    fn take_down(&mut self, rail: usize, fault: RailFault, events: &mut Vec<Event>) {
        if let Some(connection) = self.rails.get_mut(rail).and_then(Option::take) {
            // Bytes that were not sent must not be, so the peer hears of it at once. It may have
            // closed its end before, and then there is nobody left to tell.
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
            self.down |= 1 << rail;
            events.push(Event::RailDown { peer: self.rank, rail, fault });
        }
    }

    /// True while a new number would run further ahead than the peer's inbox allows.
    fn is_too_far_ahead(&self, number: u32) -> bool {
        let ahead = |oldest: u32| {
            let ahead = number.wrapping_sub(oldest);
            (INBOX_WINDOW..=u32::MAX / 2).contains(&ahead)
        };
        let mut senders = self.rails.iter().flatten().map(|connection| &connection.sender);
        if self.down == 0 {
            // In order on each rail, as nothing was posted twice.
            return senders.any(|sender| sender.outstanding().next().is_some_and(ahead));
        }
        senders.any(|sender| sender.outstanding().any(ahead))
    }

    /// Receives on one rail; answers whether anything came.
    fn receive(&mut self, rail: usize, shared: &Shared, events: &mut Vec<Event>) -> bool {
        let Some(connection) = &mut self.rails[rail] else { return false };
        let mut round = Round { known_down: self.down | 1 << rail, ..Round::default() };
        let Connection { socket, receiver, sender, .. } = connection;
        let received = receiver.receive(socket, shared, &self.expect, &mut self.inbox, &mut round);
        let acknowledged = match round.acked {
            Some(count) => sender.acknowledged(count),
            None => Ok(0),
        };
        if let Ok(done) = acknowledged {
            events.extend((0..done).map(|_| Event::Done { peer: self.rank, rail }));
        }
        for void in (0..self.rails.len()).filter(|void| round.void_rails >> void & 1 == 1) {
            self.take_down(void, RailFault::PeerClosed, events);
        }
        if let Err(fault) = acknowledged.map(|_| ()).and(received) {
            self.take_down(rail, fault, events);
            return true;
        }
        round.moved
    }

    /// Sends what waits on one rail; answers whether anything left.
    fn send(
        &mut self,
        rail: usize,
        shared: &Shared,
        parker: &TcpParker,
        acks: bool,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(connection) = &mut self.rails[rail] else { return false };
        let Connection { socket, sender, receiver, watches_room } = connection;
        let owed = &mut receiver.owed;
        let ack = acks || owed.is_pressing();
        let mut to = To { peer: self.rank, rails_down: self.down, corrupt: &mut self.corrupt };
        let sent = sender.flush(socket, shared, &mut to, owed, ack).and_then(|moved| {
            if *watches_room != sender.is_blocked() {
                parker.watch_room(&*socket, sender.is_blocked()).map_err(|error| {
                    RailFault::Io(format!("its socket cannot be watched: {error}"))
                })?;
                *watches_room = sender.is_blocked();
            }
            Ok(moved)
        });
        match sent {
            Ok(moved) => moved,
            Err(fault) => {
                self.take_down(rail, fault, events);
                true
            }
        }
    }
}

impl Device for TcpDevice {
    fn post(&mut self, peer: usize, rail: usize, write: &Write) -> Result<Posted, PostError> {
        let peer = self.peers.iter_mut().find(|other| other.rank == peer).ok_or(PostError::Down)?;
        let connection = peer.rails.get(rail).and_then(Option::as_ref).ok_or(PostError::Down)?;
        let blocked = connection.sender.is_blocked();
        if connection.sender.is_full() || peer.is_too_far_ahead(write.number) {
            return Err(PostError::Full);
        }
        if let Err(what) = check(write, &self.shared.region) {
            peer.take_down(rail, RailFault::Io(what), &mut self.events);
            self.announce();
            return Err(PostError::Down);
        }
        if let Some(connection) = &mut peer.rails[rail] {
            connection.sender.push(write);
        }
        // Where the socket is full, the next poll tries again.
        if !blocked {
            peer.send(rail, &self.shared, &self.parker, false, &mut self.events);
        }
        self.announce();
        Ok(Posted::Pending)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let Self { shared, peers, parker, .. } = self;
        let mut moved = !self.events.is_empty();
        events.append(&mut self.events);
        let mut received = false;
        for peer in &mut *peers {
            for rail in 0..peer.rails.len() {
                received |= peer.receive(rail, shared, events);
            }
        }
        self.looks = if received { 0 } else { self.looks.saturating_add(1) };
        let hurried = std::mem::take(&mut self.hurried);
        let acks = parker.take_acks_due() || hurried || self.looks >= QUIET_LOOKS;
        if acks {
            self.looks = 0;
        }
        let mut owes = false;
        for peer in peers {
            for rail in 0..peer.rails.len() {
                let Some(connection) = &peer.rails[rail] else { continue };
                let owed = &connection.receiver.owed;
                if connection.sender.is_blocked() || owed.is_pressing() || acks {
                    moved |= peer.send(rail, shared, parker, acks, events);
                }
                let owed = peer.rails[rail].as_ref().map(|connection| &connection.receiver.owed);
                owes |= owed.is_some_and(|owed| owed.frames() > 0);
            }
        }
        if owes {
            parker.acks_wait();
        }
        moved | received
    }

    fn hurry(&mut self) {
        self.hurried = true;
    }

    fn cut(&mut self, peer: usize, rail: usize) {
        if let Some(peer) = self.peers.iter_mut().find(|other| other.rank == peer) {
            peer.take_down(rail, RailFault::Cut, &mut self.events);
        }
        self.announce();
    }

    fn corrupt_next(&mut self, peer: usize) -> bool {
        match self.peers.iter_mut().find(|other| other.rank == peer) {
            Some(peer) => {
                peer.corrupt = true;
                true
            }
            None => false,
        }
    }
}

impl TcpDevice {
    /// What happened outside of a poll makes no socket readable: somebody must be told to look.
    fn announce(&self) {
        if !self.events.is_empty() {
            self.parker.wake();
            self.parker.wake_progress();
        }
    }
}

/// Why a write cannot be framed.
fn check(write: &Write, region: &Region) -> Result<(), String> {
    if u32::try_from(write.len()).is_err() {
        return Err(format!("a write of {} bytes is longer than a frame", write.len()));
    }
    region.lend(write.body, |_| ()).map_err(|outside| format!("the write's body: {outside}"))
}

pub(super) fn fault_of(errno: Errno) -> RailFault {
    match errno {
        Errno::CONNRESET | Errno::PIPE | Errno::CONNABORTED => RailFault::PeerClosed,
        Errno::TIMEDOUT => RailFault::Timeout(PEER_TIMEOUT),
        other => RailFault::Io(other.to_string()),
    }
}
