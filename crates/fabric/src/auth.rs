//! Both ends of a connection prove that they know the group's token, without sending it.
//!
//! Each end sends a hello (role, purpose, rank, epoch, rail, whom it means, a fresh nonce); the dialler then proves itself with an HMAC-SHA256
//! over both hellos, and only after checking it does the listener prove itself the same way. A recorded proof is worth
//! nothing, since both nonces are in it; a reflected one neither, since the roles are. The bytes that follow are not
//! encrypted or signed: the token keeps strangers out, it does not make an untrusted network trustworthy.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

const MAGIC: [u8; 4] = *b"RWau";
const VERSION: u8 = 1;
const CONTEXT: &[u8] = b"railweave connection proof 1";
const NONCE_BYTES: usize = 32;
const HELLO_BYTES: usize = 16 + NONCE_BYTES;
const PROOF_BYTES: usize = 1 + 32;
const AT_RAIL: usize = 12;
const AT_MEANT: usize = 13;
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;

/// The secret all ranks of a group share. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// Fewest bytes a token has.
    pub const MIN_BYTES: usize = 8;

    /// A token of these bytes.
    ///
    /// # Errors
    /// Fewer than [`Self::MIN_BYTES`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, AuthError> {
        let bytes = bytes.into();
        if bytes.len() < Self::MIN_BYTES {
            return Err(AuthError::ShortToken { got: bytes.len() });
        }
        Ok(Self(bytes))
    }

    /// A fresh token of 32 random bytes, as hexadecimal text.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> Result<Self, AuthError> {
        Ok(Self(nonce()?.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()))
    }

    /// The secret itself, to hand it to a rank that is started.
    pub fn secret(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It connected.
    Dialler = 1,
    /// It accepted.
    Listener = 2,
}

/// What the connection is for: a proof for one purpose is none for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Joining a group.
    Rendezvous = 1,
    /// The control mesh.
    Control = 2,
    /// A rail of the fabric.
    Fabric = 3,
}

/// Who is at one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its rank.
    pub rank: u8,
    /// Its epoch.
    pub epoch: u32,
}

/// Why an end was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// Not a connection of this protocol, version, purpose or direction.
    #[error("authentication: {what}")]
    Protocol {
        /// What was wrong.
        what: &'static str,
    },
    /// The peer does not know the token.
    #[error(
        "authentication: the peer's proof is wrong: it has another token; give all ranks the same token"
    )]
    WrongProof,
    /// The peer did not accept this end's proof.
    #[error(
        "authentication: refused by the peer: it has another token; give all ranks the same token"
    )]
    Refused,
    /// The peer took too long.
    #[error("authentication: the peer did not answer within {:.1} s", limit.as_secs_f64())]
    Timeout {
        /// The time it had.
        limit: Duration,
    },
    /// The connection failed.
    #[error("authentication: the connection failed: {source}")]
    Connection {
        /// As the system put it.
        #[from]
        source: io::Error,
    },
    /// The token is too short to be one.
    #[error("the token has {got} bytes, at least {} are needed", Token::MIN_BYTES)]
    ShortToken {
        /// Its bytes.
        got: usize,
    },
    /// No randomness to be had.
    #[error("the system gives no random bytes: {source}")]
    Randomness {
        /// As the system put it.
        source: io::Error,
    },
}

/// 32 fresh random bytes.
///
/// # Errors
/// The system has none.
pub fn nonce() -> Result<[u8; NONCE_BYTES], AuthError> {
    let mut bytes = [0u8; NONCE_BYTES];
    let mut filled = 0;
    while filled < NONCE_BYTES {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(AuthError::Randomness { source: error.into() }),
        }
    }
    Ok(bytes)
}

/// What a step of the handshake asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Bytes to send now.
    pub send: Vec<u8>,
    /// Bytes to read next; 0 when the handshake is over.
    pub read: usize,
    /// What is settled after `send` has left, when it is over: the peer, or that it was refused.
    pub result: Option<Result<Identity, Refusal>>,
}

/// How a handshake fails once both hellos are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// This end refuses the peer.
    WrongProof,
    /// The peer refuses this end.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Hello,
    Proof,
    Over,
}

/// The handshake without sockets: feed it what it asks for, send what it gives.
#[derive(Debug)]
pub struct Handshake {
    token: Token,
    role: Role,
    purpose: Purpose,
    own: [u8; HELLO_BYTES],
    peer: [u8; HELLO_BYTES],
    stage: Stage,
}

impl Handshake {
    /// One end's handshake. `nonce` must be fresh: see [`nonce`].
    pub fn new(
        token: Token,
        role: Role,
        purpose: Purpose,
        me: Identity,
        nonce: [u8; NONCE_BYTES],
    ) -> Self {
        let mut own = [0u8; HELLO_BYTES];
        own[..4].copy_from_slice(&MAGIC);
        own[4..8].copy_from_slice(&[VERSION, role as u8, purpose as u8, me.rank]);
        own[8..12].copy_from_slice(&me.epoch.to_le_bytes());
        own[16..].copy_from_slice(&nonce);
        Self { token, role, purpose, own, peer: [0; HELLO_BYTES], stage: Stage::Hello }
    }

    /// Says which rail a connection of [`Purpose::Fabric`] is. The listener may leave it open and
    /// ask [`rail`](Self::rail).
    #[must_use]
    pub fn on_rail(mut self, rail: u8) -> Self {
        self.own[AT_RAIL] = rail;
        self
    }

    /// Says which rank a dialler expects at the other end: any other refuses it.
    #[must_use]
    pub fn meant_for(mut self, rank: u8) -> Self {
        self.own[AT_MEANT] = rank.saturating_add(1);
        self
    }

    /// The rail that the peer says the connection is; proven once the handshake has succeeded.
    pub fn rail(&self) -> u8 {
        self.peer[AT_RAIL]
    }

    /// What to do first. The listener speaks second, so that a stranger learns nothing of it by connecting.
    pub fn start(&self) -> Step {
        let send = if self.role == Role::Dialler { self.own.to_vec() } else { Vec::new() };
        Step { send, read: HELLO_BYTES, result: None }
    }

    /// The next step, given exactly the bytes the last one asked for.
    ///
    /// # Errors
    /// Bytes that are not this protocol's.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Step, AuthError> {
        match self.stage {
            Stage::Hello => self.hello(bytes),
            Stage::Proof => self.proof(bytes),
            Stage::Over => {
                Err(AuthError::Protocol { what: "bytes after the end of the handshake" })
            }
        }
    }

    fn hello(&mut self, bytes: &[u8]) -> Result<Step, AuthError> {
        let wrong = |what| Err(AuthError::Protocol { what });
        let Ok(hello) = <[u8; HELLO_BYTES]>::try_from(bytes) else {
            return wrong("a hello of the wrong length");
        };
        let other = match self.role {
            Role::Dialler => Role::Listener,
            Role::Listener => Role::Dialler,
        };
        if hello[..4] != MAGIC {
            return wrong("the peer does not speak this protocol");
        }
        if hello[4] != VERSION {
            return wrong("the peer speaks another version; run one build on all ranks");
        }
        if hello[5] != other as u8 {
            return wrong("the peer claims this end's role");
        }
        if hello[6] != self.purpose as u8 {
            return wrong(
                "the peer wants a connection for another purpose: check the address and port",
            );
        }
        if hello[AT_MEANT] != 0 && hello[AT_MEANT] != self.own[7].saturating_add(1) {
            return wrong("the peer meant another rank: check the address and port");
        }
        self.peer = hello;
        self.stage = Stage::Proof;
        let send = match self.role {
            Role::Dialler => self.prove(),
            Role::Listener => self.own.to_vec(),
        };
        Ok(Step { send, read: PROOF_BYTES, result: None })
    }

    fn proof(&mut self, bytes: &[u8]) -> Result<Step, AuthError> {
        if bytes.len() != PROOF_BYTES {
            return Err(AuthError::Protocol { what: "a proof of the wrong length" });
        }
        self.stage = Stage::Over;
        let over = |send, result| Ok(Step { send, read: 0, result: Some(result) });
        if bytes[0] != ACCEPTED {
            return over(Vec::new(), Err(Refusal::Refused));
        }
        let peer = self.mac(&self.peer, &self.own);
        // Compares in constant time.
        let genuine = peer.verify_slice(&bytes[1..]).is_ok();
        let identity = Identity {
            rank: self.peer[7],
            epoch: u32::from_le_bytes([self.peer[8], self.peer[9], self.peer[10], self.peer[11]]),
        };
        match (self.role, genuine) {
            (Role::Dialler, true) => over(Vec::new(), Ok(identity)),
            (Role::Listener, true) => over(self.prove(), Ok(identity)),
            (Role::Dialler, false) => over(Vec::new(), Err(Refusal::WrongProof)),
            (Role::Listener, false) => {
                let mut refusal = vec![REFUSED];
                refusal.resize(PROOF_BYTES, 0);
                over(refusal, Err(Refusal::WrongProof))
            }
        }
    }

    fn prove(&self) -> Vec<u8> {
        let mut proof = vec![ACCEPTED];
        proof.extend_from_slice(&self.mac(&self.own, &self.peer).finalize().into_bytes());
        proof
    }

    fn mac(&self, prover: &[u8], other: &[u8]) -> Hmac<Sha256> {
        // HMAC hashes keys of any length, so this cannot fail; an empty key would only fail every proof.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.token.0)
            .unwrap_or_else(|_| Hmac::<Sha256>::new(&Default::default()));
        mac.update(CONTEXT);
        mac.update(prover);
        mac.update(other);
        mac
    }
}

/// A connection whose waits can be limited.
pub trait Limited: Read + Write {
    /// Limits each following read and write to `limit`, which is not zero.
    ///
    /// # Errors
    /// The system refuses.
    fn limit(&mut self, limit: Duration) -> io::Result<()>;
}

impl Limited for TcpStream {
    fn limit(&mut self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }
}

impl Limited for std::os::unix::net::UnixStream {
    fn limit(&mut self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))?;
        self.set_write_timeout(Some(limit))
    }
}

/// Carries out `handshake` over `stream`, whole within `limit`. The stream's time limits are left as the last step set
/// them: the caller sets its own.
///
/// # Errors
/// See [`AuthError`].
pub fn authenticate(
    stream: &mut impl Limited,
    mut handshake: Handshake,
    limit: Duration,
) -> Result<Identity, AuthError> {
    let deadline = Instant::now() + limit;
    let mut step = handshake.start();
    loop {
        let mut sent = 0;
        while sent < step.send.len() {
            sent += within(stream, deadline, limit, |stream| stream.write(&step.send[sent..]))?;
        }
        if let Some(result) = step.result {
            return result.map_err(|refusal| match refusal {
                Refusal::WrongProof => AuthError::WrongProof,
                Refusal::Refused => AuthError::Refused,
            });
        }
        let mut bytes = vec![0; step.read];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += within(stream, deadline, limit, |stream| stream.read(&mut bytes[filled..]))?;
        }
        step = handshake.feed(&bytes)?;
    }
}

/// One read or write that makes progress before `deadline`.
fn within<S: Limited>(
    stream: &mut S,
    deadline: Instant,
    limit: Duration,
    mut act: impl FnMut(&mut S) -> io::Result<usize>,
) -> Result<usize, AuthError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AuthError::Timeout { limit });
        }
        stream.limit(left)?;
        match act(stream) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => return Ok(count),
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut => {}
                _ => return Err(error.into()),
            },
        }
    }
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
