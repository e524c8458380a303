//! Moving the bytes of a proof over TCP: from exactly one address to exactly one other, each byte compared.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::wire::{CHUNK_BYTES, Call, Fault, Pattern, SECRET_BYTES, Secret, Step, Terms};

/// How long calling may take of the whole time: a neighbour on a cable answers within milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long a caller may take to show the secret.
const GREET_LIMIT: Duration = Duration::from_secs(2);
/// What the system keeps for a reader, as far as its limits allow: a reader that compares every byte is slower than a
/// writer, and a window that is always nearly shut makes each of them wait for the other's timers.
const RECEIVE_BYTES: usize = 4 << 20;
/// Callers that may wait for a listener.
const BACKLOG: i32 = 16;
/// How often a listener looks for its caller.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Bytes that arrived, and how long they took from the first to the last.
pub(super) type Arrived = (u64, Duration);

/// When an order is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// From now.
    pub(super) fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    /// What is left; never zero, which sockets take for "for ever".
    pub(super) fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.at
    }

    fn fault(self, step: Step, error: &io::Error, offset: Option<u64>) -> Fault {
        let late = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let why = if late && self.is_over() {
            format!("nothing more within {} s", self.limit.as_secs_f64())
        } else {
            error.to_string()
        };
        Fault::new(step, why, offset, late)
    }
}

/// Listens at one address only, at a port the system chooses.
pub(super) fn listen(address: Ipv4Addr) -> Result<(TcpListener, u16), Fault> {
    let open = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        // Before listening: callers' connections inherit it.
        socket.set_recv_buffer_size(RECEIVE_BYTES)?;
        socket.bind(&SocketAddr::from(SocketAddrV4::new(address, 0)).into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    };
    open().map_err(|error: io::Error| {
        Fault::new(Step::Listen, format!("cannot listen at {address}: {error}"), None, false)
    })
}

/// Awaits the caller who knows the secret; others are turned away.
pub(super) fn accept(
    listener: &TcpListener,
    terms: &Terms,
    deadline: Deadline,
) -> Result<TcpStream, Fault> {
    let mut strangers = 0_u32;
    while !deadline.is_over() {
        match listener.accept() {
            Ok((stream, _)) => match greet_caller(stream, terms, deadline) {
                Ok(stream) => return Ok(stream),
                Err(_) => strangers = strangers.saturating_add(1),
            },
            // Also an error of one caller who left early.
            Err(_) => thread::sleep(LOOK_EVERY),
        }
    }
    let whom =
        if strangers > 0 { format!(", but {strangers} without the secret") } else { String::new() };
    let why = format!("nobody called within {} s{whom}", deadline.limit.as_secs_f64());
    Err(Fault::new(Step::Await, why, None, true))
}

fn greet_caller(mut stream: TcpStream, terms: &Terms, deadline: Deadline) -> io::Result<TcpStream> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(deadline.left().min(GREET_LIMIT)))?;
    stream.set_write_timeout(Some(deadline.left().min(GREET_LIMIT)))?;
    expect_secret(&mut stream, terms.call)?;
    stream.write_all(&terms.answer.0)?;
    Ok(stream)
}

fn expect_secret(stream: &mut TcpStream, secret: Secret) -> io::Result<()> {
    let mut seen = [0; SECRET_BYTES];
    stream.read_exact(&mut seen)?;
    if seen == secret.0 {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "something else answers there"))
    }
}

/// Calls from exactly one address.
pub(super) fn connect(call: Call, terms: &Terms, deadline: Deadline) -> Result<TcpStream, Fault> {
    let fault = |step, error: io::Error| {
        let mut fault = deadline.fault(step, &error, None);
        let what = match step {
            Step::Bind => format!("cannot call from {}", call.from),
            _ => format!("{} does not reach {}", call.from, call.to),
        };
        fault.why = format!("{what}: {}", fault.why);
        fault
    };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))
        .map_err(|e| fault(Step::Bind, e))?;
    let from = SocketAddr::from(SocketAddrV4::new(call.from, 0));
    socket
        .set_recv_buffer_size(RECEIVE_BYTES)
        .and_then(|()| socket.bind(&from.into()))
        .map_err(|error| fault(Step::Bind, error))?;
    socket
        .connect_timeout(&SocketAddr::from(call.to).into(), deadline.left().min(CONNECT_LIMIT))
        .map_err(|error| fault(Step::Connect, error))?;
    let mut stream = TcpStream::from(socket);
    let greet = |stream: &mut TcpStream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(deadline.left()))?;
        stream.set_write_timeout(Some(deadline.left()))?;
        stream.write_all(&terms.call.0)?;
        expect_secret(stream, terms.answer)
    };
    greet(&mut stream).map_err(|error| fault(Step::Greet, error))?;
    Ok(stream)
}

/// The far end: compares every byte with the pattern and sends it back.
pub(super) fn echo(
    mut stream: TcpStream,
    terms: &Terms,
    deadline: Deadline,
) -> Result<Arrived, Fault> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut expected = vec![0; CHUNK_BYTES];
    let mut clock = Clock::default();
    let mut offset = 0;
    while offset < terms.bytes {
        let size = chunk_size(terms.bytes - offset);
        let (chunk, expected) = (&mut chunk[..size], &mut expected[..size]);
        receive(&mut stream, chunk, offset, deadline)?;
        clock.tick();
        compare(terms.seed, offset, chunk, expected)?;
        send(&mut stream, chunk, offset, deadline)?;
        offset += size as u64;
    }
    Ok((offset, clock.elapsed()))
}

/// The near end: sends the pattern and compares what comes back.
pub(super) fn send_and_compare(
    stream: TcpStream,
    terms: &Terms,
    deadline: Deadline,
) -> Result<Arrived, Fault> {
    let error = |error: io::Error| deadline.fault(Step::Send, &error, None);
    let mut back = stream.try_clone().map_err(error)?;
    let mut stream = stream;
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut chunk = vec![0; CHUNK_BYTES];
            let mut expected = vec![0; CHUNK_BYTES];
            let mut clock = Clock::default();
            let mut offset = 0;
            let mut read = || -> Result<Arrived, Fault> {
                while offset < terms.bytes {
                    let size = chunk_size(terms.bytes - offset);
                    let (chunk, expected) = (&mut chunk[..size], &mut expected[..size]);
                    receive(&mut back, chunk, offset, deadline)?;
                    clock.tick();
                    compare(terms.seed, offset, chunk, expected)?;
                    offset += size as u64;
                }
                Ok((offset, clock.elapsed()))
            };
            let result = read();
            if result.is_err() {
                // The sender must not wait for a window that nobody empties.
                let _ = back.shutdown(Shutdown::Both);
            }
            result
        });
        let mut sent = || -> Result<(), Fault> {
            let mut chunk = vec![0; CHUNK_BYTES];
            let mut offset = 0;
            while offset < terms.bytes {
                let size = chunk_size(terms.bytes - offset);
                let chunk = &mut chunk[..size];
                Pattern(terms.seed).fill(offset, chunk);
                send(&mut stream, chunk, offset, deadline)?;
                offset += size as u64;
            }
            Ok(())
        };
        let sent = sent();
        let received = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (sent, received) {
            (_, Ok(arrived)) => Ok(arrived),
            // What was wrong with the bytes tells more than that the connection broke afterwards.
            (_, Err(fault)) if fault.step == Step::Compare => Err(fault),
            (Err(fault), _) if fault.late => Err(fault),
            (_, Err(fault)) => Err(fault),
        }
    })
}

/// The middle: passes bytes on both ways, in small chunks.
pub(super) fn pass_on(
    near: TcpStream,
    far: TcpStream,
    terms: &Terms,
    deadline: Deadline,
) -> Result<Arrived, Fault> {
    let error = |error: io::Error| deadline.fault(Step::Begin, &error, None);
    let near_back = near.try_clone().map_err(error)?;
    let far_back = far.try_clone().map_err(error)?;
    thread::scope(|scope| {
        let back = scope.spawn(|| pump(far_back, near_back, terms.bytes, deadline));
        let there = pump(near, far, terms.bytes, deadline);
        let back = back.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        there.and_then(|arrived| back.map(|_| arrived))
    })
}

fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    bytes: u64,
    deadline: Deadline,
) -> Result<Arrived, Fault> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut clock = Clock::default();
    let mut offset = 0;
    let mut pump = || -> Result<Arrived, Fault> {
        while offset < bytes {
            let size = chunk_size(bytes - offset);
            let chunk = &mut chunk[..size];
            receive(&mut from, chunk, offset, deadline)?;
            clock.tick();
            send(&mut to, chunk, offset, deadline)?;
            offset += size as u64;
        }
        Ok((offset, clock.elapsed()))
    };
    let result = pump();
    if result.is_err() {
        // Both neighbours hear at once that nothing more will come.
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
    result
}

/// The time since the first chunk was there.
#[derive(Default)]
struct Clock(Option<Instant>);

impl Clock {
    fn tick(&mut self) {
        self.0.get_or_insert_with(Instant::now);
    }

    fn elapsed(&self) -> Duration {
        self.0.map(|first| first.elapsed()).unwrap_or_default()
    }
}

/// At most [`CHUNK_BYTES`].
fn chunk_size(left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES)
}

fn receive(
    stream: &mut TcpStream,
    chunk: &mut [u8],
    offset: u64,
    deadline: Deadline,
) -> Result<(), Fault> {
    let mut filled = 0;
    while let Some(room) = chunk.get_mut(filled..).filter(|room| !room.is_empty()) {
        let at = Some(offset + filled as u64);
        let read = stream.set_read_timeout(Some(deadline.left())).and_then(|()| stream.read(room));
        match read {
            Ok(0) => {
                let why = "the other end closed the connection".to_owned();
                return Err(Fault::new(Step::Receive, why, at, false));
            }
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(deadline.fault(Step::Receive, &error, at)),
        }
        if deadline.is_over() && filled < chunk.len() {
            let error = io::ErrorKind::TimedOut.into();
            return Err(deadline.fault(Step::Receive, &error, at));
        }
    }
    Ok(())
}

fn send(
    stream: &mut TcpStream,
    chunk: &[u8],
    offset: u64,
    deadline: Deadline,
) -> Result<(), Fault> {
    stream
        .set_write_timeout(Some(deadline.left()))
        .and_then(|()| stream.write_all(chunk))
        .map_err(|error| deadline.fault(Step::Send, &error, Some(offset)))
}

/// Compares a chunk with the pattern, for which `expected` has room.
pub(super) fn compare(
    seed: u64,
    offset: u64,
    chunk: &[u8],
    expected: &mut [u8],
) -> Result<(), Fault> {
    Pattern(seed).fill(offset, expected);
    if chunk == expected {
        return Ok(());
    }
    let wrong =
        chunk.iter().zip(expected.iter()).enumerate().find(|(_, (seen, right))| seen != right);
    match wrong {
        None => Ok(()),
        Some((index, (seen, right))) => {
            let at = offset + index as u64;
            let why = format!("byte {at} arrived as {seen:#04x} and was sent as {right:#04x}");
            Err(Fault::new(Step::Compare, why, Some(at), false))
        }
    }
}
