//! Handing memory to neighbours.
//!
//! Every rank listens on an abstract Unix socket whose random name it tells the others at the
//! rendezvous. Whoever connects says which rank it is and gets the descriptor of the region.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::region::Region;

/// Longest wait for a single answer of a connected neighbour.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
const GREETING: &[u8; 8] = b"RWshm\x01\0\0";

/// Why neighbours of one machine could not share memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// The own region could not be made.
    #[error("rank {rank} cannot make a shared region of {bytes} bytes: {source}")]
    Region {
        /// This rank.
        rank: usize,
        /// The size asked for.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A neighbour did not hand over its region in time.
    #[error(
        "rank {rank} got no region from rank {peer}: {source}; do both run on one machine, and as one user?"
    )]
    Peer {
        /// This rank.
        rank: usize,
        /// The neighbour.
        peer: usize,
        /// What happened.
        source: io::Error,
    },
    /// Neighbours that never asked for the region.
    #[error("rank {rank} waited {waited:?}, and ranks {missing:?} did not ask for its region")]
    Missing {
        /// This rank.
        rank: usize,
        /// Who is missing.
        missing: Vec<usize>,
        /// How long it waited.
        waited: Duration,
    },
}

/// The own region, ready to be handed over.
#[derive(Debug)]
pub struct Handover {
    rank: usize,
    region: Arc<Region>,
    fd: OwnedFd,
    listener: UnixListener,
    name: [u8; 16],
}

impl Handover {
    /// Makes the region and listens for neighbours that want it.
    ///
    /// # Errors
    /// What the system says when it has no memory, descriptor or socket left.
    pub fn new(rank: usize, bytes: u64) -> Result<Self, HandoverError> {
        let make = || {
            let (region, fd) = Region::shared(bytes)?;
            let mut name = [0; 16];
            rustix::rand::getrandom(&mut name, rustix::rand::GetRandomFlags::empty())?;
            let listener = UnixListener::bind_addr(&address(&name)?)?;
            listener.set_nonblocking(true)?;
            Ok(Self { rank, region: Arc::new(region), fd, listener, name })
        };
        make().map_err(|source| HandoverError::Region { rank, bytes, source })
    }

    /// The own region.
    pub fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// What neighbours need to ask for the region. Whoever knows it can: tell it to members only.
    pub fn name(&self) -> [u8; 16] {
        self.name
    }

    /// Gives the region to all neighbours and gets theirs: by rank, none for the others.
    ///
    /// # Errors
    /// The first neighbour that did not answer by the deadline, by rank.
    pub fn exchange(
        self,
        epoch: u32,
        names: &[Option<[u8; 16]>],
        deadline: Instant,
    ) -> Result<Vec<Option<Arc<Region>>>, HandoverError> {
        let mut regions: Vec<Option<Arc<Region>>> = vec![None; names.len()];
        let mut owed: Vec<usize> =
            (0..names.len()).filter(|&peer| names[peer].is_some() && peer != self.rank).collect();
        let started = Instant::now();
        // Asking needs the other side to serve, so both are done in turns on one thread: a request
        // is written first and its answer read later.
        let mut asked = Vec::new();
        for (peer, name) in names.iter().enumerate() {
            let Some(name) = name.filter(|_| peer != self.rank) else { continue };
            let stream = self
                .ask(epoch, &name, deadline)
                .map_err(|source| HandoverError::Peer { rank: self.rank, peer, source })?;
            asked.push((peer, stream));
        }
        while !owed.is_empty() {
            self.serve(epoch, &mut owed);
            if Instant::now() > deadline {
                let waited = started.elapsed();
                return Err(HandoverError::Missing { rank: self.rank, missing: owed, waited });
            }
        }
        for (peer, stream) in asked {
            let region = receive(&stream, self.region.len())
                .map_err(|source| HandoverError::Peer { rank: self.rank, peer, source })?;
            regions[peer] = Some(Arc::new(region));
        }
        Ok(regions)
    }

    fn ask(&self, epoch: u32, name: &[u8; 16], deadline: Instant) -> io::Result<UnixStream> {
        let mut stream = UnixStream::connect_addr(&address(name)?)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let wait = Some(left.max(Duration::from_millis(1)));
        stream.set_read_timeout(wait)?;
        stream.set_write_timeout(wait)?;
        let mut request = [0; 16];
        request[..8].copy_from_slice(GREETING);
        request[8..12].copy_from_slice(&epoch.to_le_bytes());
        // Ranks are at most 16.
        request[12] = self.rank as u8;
        stream.write_all(&request)?;
        Ok(stream)
    }

    /// Serves one request if there is one; a bad one is dropped without effect.
    fn serve(&self, epoch: u32, owed: &mut Vec<usize>) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if let Ok(Some(peer)) = self.answer(epoch, stream) {
                    owed.retain(|&other| other != peer);
                }
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    fn answer(&self, epoch: u32, mut stream: UnixStream) -> io::Result<Option<usize>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        stream.set_write_timeout(Some(ANSWER_WAIT))?;
        let credentials = rustix::net::sockopt::socket_peercred(&stream)?;
        if credentials.uid != rustix::process::geteuid() {
            return Ok(None);
        }
        let mut request = [0; 16];
        stream.read_exact(&mut request)?;
        if request[..8] != *GREETING || request[8..12] != epoch.to_le_bytes() {
            return Ok(None);
        }
        let fds = [std::os::fd::AsFd::as_fd(&self.fd)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        rustix::net::sendmsg(
            &stream,
            &[IoSlice::new(GREETING)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(Some(usize::from(request[12])))
    }
}

fn address(name: &[u8; 16]) -> io::Result<SocketAddr> {
    let mut text = String::from("railweave-");
    for byte in name {
        text.push_str(&format!("{byte:02x}"));
    }
    SocketAddr::from_abstract_name(text)
}

fn receive(stream: &UnixStream, bytes: u64) -> io::Result<Region> {
    let mut greeting = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut greeting)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Region::map(fd, bytes);
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection without an answer"))
}
