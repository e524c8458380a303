//! A rank's way into the group.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::auth::{AuthError, Handshake, Identity, Purpose, Role, Token, authenticate, nonce};
use crate::rendezvous::host::keep_alive;
use crate::rendezvous::message::{Join, TO_MEMBER, ToHost, ToMember};
use crate::rendezvous::{JoinError, JoinRequest, MAX_AGREE_BYTES, MAX_BLOB_BYTES, MemberInfo};

/// Longest wait for one connection to be accepted or proven.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest time for the control mesh, once all ranks are welcome.
const MESH: Duration = Duration::from_secs(5);
/// The meeting point answers at the deadline; its answer may be so much later.
const GRACE: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Strangers that may try the control listener at a time.
const MAX_STRANGERS: usize = 32;

/// A formed group, as one rank has it.
pub struct Joined {
    /// Its epoch.
    pub epoch: u32,
    /// This rank.
    pub rank: usize,
    /// All ranks, in order.
    pub members: Vec<MemberInfo>,
    /// Authenticated connections for the control plane, one to each other rank.
    pub streams: Vec<(usize, TcpStream)>,
    connection: Connection,
    round: u32,
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined")
            .field("epoch", &self.epoch)
            .field("rank", &self.rank)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Joined {
    /// Gives `bytes` to all ranks and returns what each gave, by rank. All ranks call it equally often.
    ///
    /// # Errors
    /// A member left, the meeting point is gone, the time is over, or `bytes` are too many.
    pub fn agree(&mut self, bytes: &[u8], limit: Duration) -> Result<Vec<Vec<u8>>, JoinError> {
        if bytes.len() > MAX_AGREE_BYTES {
            return Err(JoinError::Request {
                rank: self.rank,
                what: format!(
                    "an agreement takes at most {MAX_AGREE_BYTES} bytes, got {}",
                    bytes.len()
                ),
            });
        }
        let deadline = Instant::now() + limit;
        let round = self.round;
        let message = ToHost::Agree { round, bytes: bytes.to_vec() };
        self.connection.send(&message, deadline)?;
        let answer = self.connection.receive(deadline)?;
        match answer {
            ToMember::Agreed { round: got, parts }
                if got == round && parts.len() == self.members.len() =>
            {
                self.round = self.round.wrapping_add(1);
                Ok(parts)
            }
            ToMember::MemberLeft { rank, host } => {
                Err(JoinError::MemberLeft { left: usize::from(rank), host, epoch: self.epoch })
            }
            ToMember::Refused(refusal) => Err(JoinError::Refused { rank: self.rank, refusal }),
            _ => Err(self.connection.error("an answer that does not belong to this agreement")),
        }
    }
}

/// What one attempt came to, when it is not a group.
enum Failed {
    /// Trying again may help.
    Retry(String),
    /// It does not.
    Final(JoinError),
}

impl From<JoinError> for Failed {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Connection { what, .. } => Self::Retry(what),
            JoinError::MemberLeft { left, host, .. } => {
                Self::Retry(format!("rank {left} (host {host}) left during set-up"))
            }
            error => Self::Final(error),
        }
    }
}

/// Joins the group, trying again until `limit` is over while rank 0 is not there, restarts, or a member dies half-way.
///
/// # Errors
/// See [`JoinError`]: refusals are final and typed.
pub fn join(request: &JoinRequest, limit: Duration) -> Result<Joined, JoinError> {
    check(request)?;
    let started = Instant::now();
    let deadline = started + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        let last = match attempt(request, deadline) {
            Ok(joined) => return Ok(joined),
            Err(Failed::Final(error)) => return Err(error),
            Err(Failed::Retry(last)) => last,
        };
        if Instant::now() + pause >= deadline {
            return Err(JoinError::Timeout {
                rank: request.rank,
                address: request.address,
                waited: started.elapsed(),
                last,
            });
        }
        tracing::debug!(rank = request.rank, last, "joining again");
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn check(request: &JoinRequest) -> Result<(), JoinError> {
    let wrong = |what| Err(JoinError::Request { rank: request.rank, what });
    if request.size == 0 || request.size > crate::beacon::MAX_RANKS || request.rank >= request.size
    {
        let most = crate::beacon::MAX_RANKS;
        return wrong(format!(
            "rank {} of {}: a group has 1 to {most} ranks",
            request.rank, request.size
        ));
    }
    if request.blob.len() > MAX_BLOB_BYTES {
        return wrong(format!(
            "set-up data has {} bytes, at most {MAX_BLOB_BYTES}",
            request.blob.len()
        ));
    }
    Ok(())
}

fn attempt(request: &JoinRequest, deadline: Instant) -> Result<Joined, Failed> {
    let me = narrow(request.rank);
    let rank = request.rank;
    let listener = TcpListener::bind((request.ip, 0)).map_err(|error| {
        Failed::Final(JoinError::Request {
            rank,
            what: format!(
                "cannot listen on {}: {error}; advertise an address of this machine",
                request.ip
            ),
        })
    })?;
    let port = listener.local_addr().map_err(|error| Failed::Retry(error.to_string()))?.port();
    let identity = Identity { rank: me, epoch: request.last_epoch.unwrap_or(0) };
    let stream = dial(request.address, Purpose::Rendezvous, identity, &request.token, deadline)
        .map_err(|error| final_or_retry(request, error))?
        .0;
    let mut connection = Connection { stream, buffer: Vec::new(), rank, address: request.address };
    let left = deadline.saturating_duration_since(Instant::now());
    let message = ToHost::Join(Box::new(Join {
        rank: me,
        size: request.size,
        last_epoch: request.last_epoch,
        instance: request.instance,
        host_name: request.host_name.clone(),
        host_id: request.host_id.clone(),
        ip: request.ip,
        port,
        config: request.config.clone(),
        wait_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        blob: request.blob.clone(),
    }));
    connection.send(&message, deadline)?;
    let (epoch, members) = match connection.receive(deadline + GRACE)? {
        ToMember::Welcome { epoch, members } => (epoch, members),
        ToMember::Refused(refusal) => {
            return Err(Failed::Final(JoinError::Refused { rank, refusal }));
        }
        _ => return Err(connection.error("an answer that is not to a request to join").into()),
    };
    if members.iter().map(|member| member.rank).ne(0..request.size) {
        return Err(connection.error("a list of members that is not the group's").into());
    }
    let mesh = Mesh { me: Identity { rank: me, epoch }, token: &request.token, members: &members };
    let mesh = mesh.connect(&listener, Instant::now() + MESH);
    let (streams, failure) = match mesh {
        Ok(streams) => (streams, String::new()),
        Err(failure) => (Vec::new(), format!("rank {rank}: {failure}")),
    };
    let mut joined = Joined { epoch, rank, members, streams, connection, round: 0 };
    // Nobody goes on unless everybody's mesh is complete.
    let reports = joined.agree(failure.as_bytes(), MESH + GRACE)?;
    let failures: Vec<String> = reports
        .iter()
        .filter(|report| !report.is_empty())
        .map(|report| String::from_utf8_lossy(report).into_owned())
        .collect();
    if failures.is_empty() {
        Ok(joined)
    } else {
        Err(Failed::Final(JoinError::Mesh { epoch, failures }))
    }
}

fn final_or_retry(request: &JoinRequest, error: AuthError) -> Failed {
    let (rank, address) = (request.rank, request.address);
    match error {
        AuthError::WrongProof | AuthError::Refused => {
            Failed::Final(JoinError::WrongToken { rank, address, source: error })
        }
        AuthError::Protocol { .. }
        | AuthError::Randomness { .. }
        | AuthError::ShortToken { .. } => {
            Failed::Final(JoinError::Protocol { rank, address, source: error })
        }
        AuthError::Timeout { .. } | AuthError::Connection { .. } => {
            Failed::Retry(error.to_string())
        }
    }
}

fn dial(
    address: SocketAddr,
    purpose: Purpose,
    me: Identity,
    token: &Token,
    deadline: Instant,
) -> Result<(TcpStream, Identity), AuthError> {
    let left = || deadline.saturating_duration_since(Instant::now()).clamp(FIRST_PAUSE, CONNECT);
    let mut stream = TcpStream::connect_timeout(&address, left())?;
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    let handshake = Handshake::new(token.clone(), Role::Dialler, purpose, me, nonce()?);
    let peer = authenticate(&mut stream, handshake, left())?;
    Ok((stream, peer))
}

/// The connection to the meeting point.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    rank: usize,
    address: SocketAddr,
}

impl Connection {
    fn error(&self, what: impl Into<String>) -> JoinError {
        JoinError::Connection { rank: self.rank, address: self.address, what: what.into() }
    }

    fn send(&mut self, message: &ToHost, deadline: Instant) -> Result<(), JoinError> {
        let bytes = message.encode()?;
        let mut sent = 0;
        while sent < bytes.len() {
            let left = self.left(deadline)?;
            let result = self.stream.set_write_timeout(Some(left));
            match result.and_then(|()| self.stream.write(&bytes[sent..])) {
                Ok(0) => return Err(self.error("closed by rank 0")),
                Ok(count) => sent += count,
                Err(error) => self.tolerate(&error)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, deadline: Instant) -> Result<ToMember, JoinError> {
        let mut chunk = [0u8; 16 * 1024];
        loop {
            if let Some((frame, used)) = TO_MEMBER.decode(&self.buffer)? {
                self.buffer.drain(..used);
                return Ok(ToMember::decode(&frame)?);
            }
            let left = self.left(deadline)?;
            let result = self.stream.set_read_timeout(Some(left));
            match result.and_then(|()| self.stream.read(&mut chunk)) {
                Ok(0) => return Err(self.error("closed by rank 0")),
                Ok(count) => self.buffer.extend_from_slice(&chunk[..count]),
                Err(error) => self.tolerate(&error)?,
            }
        }
    }

    fn left(&self, deadline: Instant) -> Result<Duration, JoinError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.error("no answer in time")) } else { Ok(left) }
    }

    fn tolerate(&self, error: &io::Error) -> Result<(), JoinError> {
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                Ok(())
            }
            _ => Err(self.error(error.to_string())),
        }
    }
}

/// The mesh of control connections: a rank dials those below it and is dialled by those above.
struct Mesh<'a> {
    me: Identity,
    token: &'a Token,
    members: &'a [MemberInfo],
}

impl Mesh<'_> {
    fn connect(
        &self,
        listener: &TcpListener,
        deadline: Instant,
    ) -> Result<Vec<(usize, TcpStream)>, String> {
        let me = usize::from(self.me.rank);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| self.accept(listener, deadline, &stop));
            let mut streams = Vec::new();
            let mut failure = None;
            for member in &self.members[..me] {
                match self.dial(member, deadline) {
                    Ok(stream) => streams.push((member.rank, stream)),
                    Err(error) => {
                        failure = Some(error);
                        stop.store(true, Ordering::Relaxed);
                        break;
                    }
                }
            }
            let accepted =
                accepting.join().unwrap_or_else(|_| Err("the accepting thread failed".to_owned()));
            if let Some(failure) = failure {
                return Err(failure);
            }
            streams.extend(accepted?);
            Ok(streams)
        })
    }

    fn dial(&self, member: &MemberInfo, deadline: Instant) -> Result<TcpStream, String> {
        let name =
            format!("rank {} (host {}) at {}", member.rank, member.host_name, member.address);
        loop {
            match dial(member.address, Purpose::Control, self.me, self.token, deadline) {
                Ok((stream, peer))
                    if usize::from(peer.rank) == member.rank && peer.epoch == self.me.epoch =>
                {
                    return Ok(stream);
                }
                Ok((_, peer)) => {
                    return Err(format!(
                        "{name} answers as rank {} of epoch {}",
                        peer.rank, peer.epoch
                    ));
                }
                Err(error) => {
                    if Instant::now() + LONGEST_PAUSE >= deadline {
                        return Err(format!("cannot reach {name}: {error}"));
                    }
                }
            }
            std::thread::sleep(FIRST_PAUSE);
        }
    }

    fn accept(
        &self,
        listener: &TcpListener,
        deadline: Instant,
        stop: &AtomicBool,
    ) -> Result<Vec<(usize, TcpStream)>, String> {
        listener.set_nonblocking(true).map_err(|error| format!("cannot listen: {error}"))?;
        let me = usize::from(self.me.rank);
        let mut missing: Vec<usize> = (me + 1..self.members.len()).collect();
        let mut streams = Vec::new();
        let (proven, arrivals) = channel();
        std::thread::scope(|scope| {
            let mut strangers = 0usize;
            while !missing.is_empty() {
                if stop.load(Ordering::Relaxed) {
                    return Err("another connection failed".to_owned());
                }
                if Instant::now() >= deadline {
                    return Err(format!(
                        "ranks {missing:?} did not connect within {} s",
                        MESH.as_secs()
                    ));
                }
                if strangers < MAX_STRANGERS
                    && let Ok((stream, _)) = listener.accept()
                {
                    strangers += 1;
                    let proven = proven.clone();
                    // A stranger that says nothing holds up nobody else.
                    scope.spawn(move || proven.send(self.prove(stream, deadline)));
                    continue;
                }
                while let Ok(arrival) = arrivals.try_recv() {
                    strangers -= 1;
                    if let Some((rank, stream)) = arrival
                        && let Some(index) = missing.iter().position(|other| *other == rank)
                    {
                        missing.swap_remove(index);
                        streams.push((rank, stream));
                    }
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        })?;
        Ok(streams)
    }

    fn prove(&self, mut stream: TcpStream, deadline: Instant) -> Option<(usize, TcpStream)> {
        stream.set_nonblocking(false).ok()?;
        stream.set_nodelay(true).ok()?;
        keep_alive(&stream).ok()?;
        let limit =
            deadline.saturating_duration_since(Instant::now()).min(CONNECT).max(FIRST_PAUSE);
        let handshake = Handshake::new(
            self.token.clone(),
            Role::Listener,
            Purpose::Control,
            self.me,
            nonce().ok()?,
        );
        let peer = authenticate(&mut stream, handshake, limit).ok()?;
        (peer.epoch == self.me.epoch).then_some((usize::from(peer.rank), stream))
    }
}

fn narrow(rank: usize) -> u8 {
    u8::try_from(rank).unwrap_or(u8::MAX)
}
