//! Sleeping until a device has completions.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};

use super::provider::Nic;
use crate::device::Parker;
use crate::eventfd::{ring, silence, timespec};

const BELL: u64 = 0;
const DEVICES: u64 = 1;
const ASYNC: u64 = 2;

/// How the threads of a rank sleep while its bytes travel by RDMA.
///
/// Every flag that a peer raises has a completion here, so the completion channels of all devices
/// in one epoll set are what to sleep on. A channel speaks only of completions after it was armed:
/// a thread arms, looks once more, and then sleeps. The progress thread waits on a second set that
/// holds the first; while the worker moves bytes itself, the first is disarmed there.
pub struct VerbsParker {
    nics: Mutex<Vec<Arc<dyn Nic>>>,
    devices: OwnedFd,
    worker_bell: OwnedFd,
    progress: OwnedFd,
    progress_bell: OwnedFd,
    /// Asynchronous events wait to be read.
    events_due: AtomicBool,
    /// A thread slept since the device last looked after its queue pairs.
    slept: AtomicBool,
    worker_drives: AtomicBool,
    worker_sleeps: AtomicBool,
}

impl std::fmt::Debug for VerbsParker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerbsParker").field("devices", &self.nics().len()).finish_non_exhaustive()
    }
}

impl VerbsParker {
    pub(super) fn new(nics: Vec<Arc<dyn Nic>>) -> io::Result<Self> {
        let devices = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let progress = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (worker_bell, progress_bell) = (bell()?, bell()?);
        let input = epoll::EventFlags::IN;
        for nic in &nics {
            watch(&devices, &progress, &**nic)?;
        }
        epoll::add(&progress, &progress_bell, epoll::EventData::new_u64(BELL), input)?;
        epoll::add(&progress, &devices, epoll::EventData::new_u64(DEVICES), input)?;
        Ok(Self {
            nics: Mutex::new(nics),
            devices,
            worker_bell,
            progress,
            progress_bell,
            events_due: AtomicBool::new(false),
            slept: AtomicBool::new(false),
            worker_drives: AtomicBool::new(false),
            worker_sleeps: AtomicBool::new(false),
        })
    }

    fn nics(&self) -> MutexGuard<'_, Vec<Arc<dyn Nic>>> {
        self.nics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches one device more.
    pub(super) fn add(&self, nic: &Arc<dyn Nic>) -> io::Result<()> {
        let mut nics = self.nics();
        watch(&self.devices, &self.progress, &**nic)?;
        nics.push(Arc::clone(nic));
        Ok(())
    }

    /// Watches a device in the place of one that is gone.
    pub(super) fn replace(&self, old: &Arc<dyn Nic>, new: &Arc<dyn Nic>) -> io::Result<()> {
        let mut nics = self.nics();
        // Its descriptors may be closed already, and are not watched then.
        let _ = epoll::delete(&self.devices, old.completions_fd());
        let _ = epoll::delete(&self.progress, old.events_fd());
        nics.retain(|nic| !Arc::ptr_eq(nic, old));
        drop(nics);
        self.add(new)
    }

    /// Whether asynchronous events wait to be read; asking resets it.
    pub(super) fn take_events_due(&self) -> bool {
        // The load alone is what nearly every look costs.
        self.events_due.load(Ordering::Relaxed) && self.events_due.swap(false, Ordering::Relaxed)
    }

    /// Whether a thread slept since this was last asked.
    pub(super) fn take_slept(&self) -> bool {
        self.slept.load(Ordering::Relaxed) && self.slept.swap(false, Ordering::Relaxed)
    }

    /// Arms what is not armed; answers whether anything was not.
    fn arm(&self) -> bool {
        // All of them, so not the first that answers yes.
        self.nics().iter().filter(|nic| nic.arm()).count() > 0
    }

    fn disarm(&self) {
        self.nics().iter().for_each(|nic| nic.disarm());
    }

    fn watch_devices(&self, watched: bool) {
        let flags = if watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(DEVICES);
        // Both descriptors are this value's own and the entry was made in `new`, so this cannot
        // fail; if it did, the progress thread would look at its own interval.
        let _ = epoll::modify(&self.progress, &self.devices, data, flags);
    }
}

/// Adds a device to the two sets.
fn watch(devices: &OwnedFd, progress: &OwnedFd, nic: &dyn Nic) -> io::Result<()> {
    let input = epoll::EventFlags::IN;
    epoll::add(devices, nic.completions_fd(), epoll::EventData::new_u64(0), input)?;
    // Edge triggered: an event that nobody reads at once must not keep threads awake.
    let edge = input | epoll::EventFlags::ET;
    epoll::add(progress, nic.events_fd(), epoll::EventData::new_u64(ASYNC), edge)?;
    Ok(())
}

impl Parker for VerbsParker {
    fn prepare(&self) -> u32 {
        self.worker_sleeps.store(true, Ordering::SeqCst);
        self.arm();
        0
    }

    fn park(&self, _ticket: u32, timeout: Duration) {
        let mut fds = [
            PollFd::new(&self.devices, PollFlags::IN),
            PollFd::new(&self.worker_bell, PollFlags::IN),
        ];
        // An interrupted sleep is a short one; the caller looks again.
        let _ = poll(&mut fds, Some(&timespec(timeout)));
        self.worker_sleeps.store(false, Ordering::SeqCst);
        self.slept.store(true, Ordering::Relaxed);
        if fds[0].revents().contains(PollFlags::IN) {
            self.disarm();
        }
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
            self.watch_devices(false);
        }
    }

    fn worker_leaves(&self) {
        if self.worker_drives.swap(false, Ordering::SeqCst) {
            // Before the caller's last look, so that whatever comes after it ends a sleep.
            self.arm();
            self.watch_devices(true);
        }
    }

    fn park_progress(&self, timeout: Duration) {
        // What came before a channel was armed makes no event: look again before sleeping.
        if !self.worker_drives.load(Ordering::SeqCst) && self.arm() {
            return;
        }
        let mut room = [MaybeUninit::<epoll::Event>::uninit(); 8];
        let Ok((events, _)) = epoll::wait(&self.progress, &mut room, Some(&timespec(timeout)))
        else {
            return;
        };
        self.slept.store(true, Ordering::Relaxed);
        for event in events {
            match event.data.u64() {
                BELL => silence(&self.progress_bell),
                ASYNC => self.events_due.store(true, Ordering::Relaxed),
                _ => self.disarm(),
            }
        }
    }

    fn wake_progress(&self) {
        ring(&self.progress_bell);
    }
}
