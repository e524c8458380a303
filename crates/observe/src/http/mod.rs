//! The HTTP server of a rank: `/metrics`, `/healthz`, `/readyz`, `/progress`, and whatever routes
//! the caller adds.

mod routes;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::health::Health;
use crate::metrics::Metrics;

/// Who may reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Exposure {
    /// Only this machine: a listener on another address is refused.
    #[default]
    LoopbackOnly,
    /// Any address: the user asked for it.
    AnyAddress,
}

/// The bounds of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; one more is answered 503 and closed.
    pub connections: usize,
    /// A request's line and headers together, in bytes. At least 8192.
    pub header_bytes: usize,
    /// A request's headers.
    pub headers: usize,
    /// A request's body, in bytes; more is answered 413.
    pub body_bytes: usize,
    /// The longest a connection may take to send its next request's headers; also how long an
    /// idle one stays open.
    pub header_time: Duration,
    /// The longest a request's body may take, else 408.
    pub body_time: Duration,
    /// How long a client may leave sent bytes unread before its connection is dropped.
    pub unread_time: Duration,
    /// How long [`ServerHandle::stop`] lets running requests finish.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            header_bytes: 32 << 10,
            headers: 64,
            body_bytes: 2 << 20,
            header_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            unread_time: Duration::from_secs(30),
            grace: Duration::from_secs(2),
        }
    }
}

/// What the server serves, and to whom.
#[derive(Debug, Clone)]
pub struct ServerState {
    /// Served at `/metrics`.
    pub metrics: Metrics,
    /// Served at `/healthz`, `/readyz` and `/progress`.
    pub health: Health,
    /// Who may connect.
    pub exposure: Exposure,
    /// The bounds.
    pub limits: Limits,
}

impl ServerState {
    /// Serves this machine only, with the default limits.
    pub fn new(metrics: Metrics, health: Health) -> Self {
        Self { metrics, health, exposure: Exposure::default(), limits: Limits::default() }
    }
}

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The listener is reachable from other machines and nobody asked for that.
    #[error(
        "rank {rank} would serve HTTP on {address}, which other machines can reach without a \
         password; bind 127.0.0.1, or allow any address explicitly"
    )]
    Exposed {
        /// The rank.
        rank: u32,
        /// The address.
        address: SocketAddr,
    },
    /// The operating system refused.
    #[error("rank {rank}: cannot {doing}: {source}; check the limits of threads and open files")]
    System {
        /// The rank.
        rank: u32,
        /// What failed.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct ServerHandle {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl ServerHandle {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, lets running requests finish for at most [`Limits::grace`], closes every
    /// connection and joins the thread.
    pub fn stop(mut self) {
        self.stop_and_join();
    }

    fn stop_and_join(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(address = %self.address, "the HTTP thread panicked");
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop_and_join();
    }
}

/// Serves `state` and `extra` on `listener` from a thread of its own. `extra` must not hold a
/// route of the four above.
pub fn serve(
    listener: TcpListener,
    state: ServerState,
    extra: Router,
) -> Result<ServerHandle, HttpError> {
    let rank = state.health.identity().rank;
    let failed = |doing| move |source| HttpError::System { rank, doing, source };
    let address = listener.local_addr().map_err(failed("read the listener's address"))?;
    if state.exposure == Exposure::LoopbackOnly && !address.ip().to_canonical().is_loopback() {
        return Err(HttpError::Exposed { rank, address });
    }
    listener.set_nonblocking(true).map_err(failed("make the listener non-blocking"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()
        .map_err(failed("start the HTTP runtime"))?;
    let limits = state.limits;
    let router = routes::router(state, extra);
    let (stop, stopped) = watch::channel(false);
    let listener = {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener).map_err(failed("watch the listener"))?
    };
    let thread = std::thread::Builder::new()
        .name("http".into())
        .spawn(move || {
            runtime.block_on(accept(listener, router, limits, stopped));
            // Blocking handlers that outlast the grace must not hold the caller of stop.
            runtime.shutdown_timeout(limits.grace);
        })
        .map_err(failed("start the HTTP thread"))?;
    Ok(ServerHandle { address, stop, thread: Some(thread) })
}

async fn accept(
    listener: tokio::net::TcpListener,
    router: Router,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => {
                    let stopped = stopped.clone();
                    connections.spawn(connection(stream, router.clone(), limits, stopped, permit));
                }
                Err(_) => refuse(&stream),
            },
            // Out of descriptors, or a connection that died in the queue. Trying again at once
            // would spin as long as it lasts.
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.grace, all).await.is_err() {
        tracing::debug!("HTTP connections outlasted the grace and are closed");
    }
}

/// Says 503 if the socket takes it at once; this connection gets no memory and no task.
fn refuse(stream: &TcpStream) {
    const ANSWER: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 21\r\n\
        retry-after: 1\r\nconnection: close\r\n\r\ntoo many connections\n";
    let _ = stream.try_write(ANSWER);
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true);
    let unread_millis = u32::try_from(limits.unread_time.as_millis()).unwrap_or(u32::MAX);
    if let Err(error) = rustix::net::sockopt::set_tcp_user_timeout(&stream, unread_millis) {
        tracing::debug!(%error, "no limit on unread bytes for an HTTP connection");
    }
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_headers(limits.headers)
        .max_header_size(limits.header_bytes)
        // Hyper refuses a smaller buffer.
        .max_buf_size(limits.header_bytes.max(8192))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let stop = async {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let ended = tokio::select! {
        ended = served.as_mut() => Some(ended),
        () = stop => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection ended early");
    }
}
