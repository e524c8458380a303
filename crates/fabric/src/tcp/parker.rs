//! Sleeping until a socket has something.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::device::Parker;
use crate::eventfd::{ring, silence, timespec};

/// How long an acknowledgement waits for a write that takes it along.
const ACK_DELAY: Duration = Duration::from_micros(300);

const SOCKETS: u64 = 0;
const BELL: u64 = 1;
const TIMER: u64 = 2;

/// How the threads of a rank sleep while its bytes travel over TCP.
///
/// All sockets are in one epoll set, which the worker waits on. The progress thread waits on a
/// second set that holds the first one; while the worker moves bytes itself, the first set is
/// disarmed there and arrivals leave the progress thread asleep.
#[derive(Debug)]
pub struct TcpParker {
    sockets: OwnedFd,
    worker_bell: OwnedFd,
    progress: OwnedFd,
    progress_bell: OwnedFd,
    timer: OwnedFd,
    timer_runs: AtomicBool,
    acks_due: AtomicBool,
    worker_drives: AtomicBool,
    worker_sleeps: AtomicBool,
}

impl TcpParker {
    pub(super) fn new() -> io::Result<Self> {
        let sockets = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let progress = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (worker_bell, progress_bell) = (bell()?, bell()?);
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        for (fd, tag) in [(&sockets, SOCKETS), (&progress_bell, BELL), (&timer, TIMER)] {
            epoll::add(&progress, fd, epoll::EventData::new_u64(tag), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            sockets,
            worker_bell,
            progress,
            progress_bell,
            timer,
            timer_runs: AtomicBool::new(false),
            acks_due: AtomicBool::new(false),
            worker_drives: AtomicBool::new(false),
            worker_sleeps: AtomicBool::new(false),
        })
    }

    /// Watches a socket; it leaves by itself when it is closed.
    pub(super) fn watch(&self, socket: impl AsFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        Ok(epoll::add(&self.sockets, socket, data, epoll::EventFlags::IN)?)
    }

    /// Watches a socket for room to write too, or no more.
    pub(super) fn watch_room(&self, socket: impl AsFd, room: bool) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, room);
        Ok(epoll::modify(&self.sockets, socket, epoll::EventData::new_u64(0), flags)?)
    }

    /// Whether acknowledgements have waited long enough; asking resets it.
    pub(super) fn take_acks_due(&self) -> bool {
        // The load alone is what nearly every look costs.
        self.acks_due.load(Ordering::Relaxed) && self.acks_due.swap(false, Ordering::Relaxed)
    }

    /// Has the progress thread look at acknowledgements in a moment, unless the worker spins and
    /// so looks itself.
    pub(super) fn acks_wait(&self) {
        let spins =
            self.worker_drives.load(Ordering::SeqCst) && !self.worker_sleeps.load(Ordering::SeqCst);
        if spins || self.timer_runs.swap(true, Ordering::SeqCst) {
            return;
        }
        let once =
            Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(ACK_DELAY) };
        if timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_err() {
            self.timer_runs.store(false, Ordering::SeqCst);
        }
    }

    fn arm_progress(&self, armed: bool) {
        let flags = if armed { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(SOCKETS);
        // Both descriptors are this value's own and the entry was made in `new`, so this cannot
        // fail; if it did, the progress thread would look at its own interval.
        let _ = epoll::modify(&self.progress, &self.sockets, data, flags);
    }
}

impl Parker for TcpParker {
    fn prepare(&self) -> u32 {
        self.worker_sleeps.store(true, Ordering::SeqCst);
        0
    }

    fn park(&self, _ticket: u32, timeout: Duration) {
        let mut fds = [
            PollFd::new(&self.sockets, PollFlags::IN),
            PollFd::new(&self.worker_bell, PollFlags::IN),
        ];
        // An interrupted sleep is a short one; the caller looks again.
        let _ = poll(&mut fds, Some(&timespec(timeout)));
        self.worker_sleeps.store(false, Ordering::SeqCst);
        if fds[1].revents().contains(PollFlags::IN) {
            silence(&self.worker_bell);
        }
    }

    fn cancel(&self) {
        self.worker_sleeps.store(false, Ordering::SeqCst);
    }

    fn wake(&self) {
        if self.worker_sleeps.swap(false, Ordering::SeqCst) {
            ring(&self.worker_bell);
        }
    }

    fn worker_enters(&self) {
        if !self.worker_drives.swap(true, Ordering::SeqCst) {
            self.arm_progress(false);
        }
    }

    fn worker_leaves(&self) {
        if self.worker_drives.swap(false, Ordering::SeqCst) {
            self.arm_progress(true);
        }
    }

    fn park_progress(&self, timeout: Duration) {
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); 3];
        let Ok((events, _)) = epoll::wait(&self.progress, &mut room, Some(&timespec(timeout)))
        else {
            return;
        };
        for event in events {
            match event.data.u64() {
                BELL => silence(&self.progress_bell),
                TIMER => {
                    silence(&self.timer);
                    self.acks_due.store(true, Ordering::Relaxed);
                    self.timer_runs.store(false, Ordering::SeqCst);
                }
                _ => {}
            }
        }
    }

    fn wake_progress(&self) {
        ring(&self.progress_bell);
    }
}
