//! What the transport holds of the double: the provider, devices and queue pairs.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::super::abi::{
    PORT_ACTIVE, PortAttr, QPS_ERR, QPS_INIT, QPS_RESET, QPS_RTR, QPS_RTS, QpAttr, Wc, mask,
};
use super::super::counters::PortCounts;
use super::super::error::{Notice, VerbsError, registration_hint};
use super::super::gid::{Gid, Table};
use super::super::provider::{
    Action, CHAIN_MAX, INLINE_BYTES_MAX, Nic, Payload, Plant, Provider, Qp, Remote, Request,
};
use super::Shared;
use super::queue_pair::{Content, Pair};
use super::state::{Opened, State};
use crate::eventfd::silence;
use crate::region::{OutOfRegion, Region};

/// Where a region seems to lie.
const BASE: u64 = 0x7f00_0000_0000;
/// The number of a port that carries nothing.
const PORT_DOWN: u32 = 1;
/// The path MTU of 4096 bytes.
const MTU_4096: u32 = 5;
/// A try again after 4.096 µs × 2^this.
const TIMEOUT_UNIT: u64 = 4096;
/// A step of time while somebody waits and nothing happens.
const PAUSE: Duration = Duration::from_millis(1);

/// The devices of one rank.
pub(super) struct Host {
    shared: Arc<Shared>,
    rank: usize,
}

impl Host {
    pub(super) fn new(shared: Arc<Shared>, rank: usize) -> Self {
        Self { shared, rank }
    }
}

impl Provider for Host {
    fn gids(&self) -> Result<Table, VerbsError> {
        let state = self.shared.lock();
        let own = state.devices.iter().filter(|device| device.rank == self.rank && !device.gone);
        let gids = own.flat_map(|device| {
            device.gids.iter().map(|(&index, &value)| Gid {
                device: device.name.clone(),
                port: 1,
                index,
                value,
            })
        });
        Ok(Table::of(gids.collect()))
    }

    fn open(
        &self,
        name: &str,
        port: u8,
        region: &Arc<Region>,
        completions: u32,
    ) -> Result<Arc<dyn Nic>, VerbsError> {
        let failed =
            |what, hint, source| VerbsError::Device { device: name.to_owned(), what, source, hint };
        let bell = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map(Arc::new)
                .map_err(|errno| failed("make a bell", String::new(), errno.into()))
        };
        let (bell, events_bell) = (bell()?, bell()?);
        let mut state = self.shared.lock();
        let found = state.devices.iter().position(|it| it.name == name && !it.gone);
        let Some(device) = found else {
            return Err(failed("be found", String::new(), io::ErrorKind::NotFound.into()));
        };
        if let Some(errno) = state.devices[device].refuses {
            let source = io::Error::from_raw_os_error(errno);
            let hint = registration_hint(&source, region.len(), None);
            return Err(failed("register the region", hint, source));
        }
        let key = state.open(Opened {
            device,
            region: Arc::clone(region),
            base: BASE,
            completions: std::collections::VecDeque::new(),
            room: completions as usize,
            armed: false,
            bell: Arc::clone(&bell),
            events: std::collections::VecDeque::new(),
            events_bell: Arc::clone(&events_bell),
            dead: false,
            unreadable: false,
        });
        drop(state);
        let shared = Arc::clone(&self.shared);
        let name = name.to_owned();
        Ok(Arc::new(DoubleNic { shared, name, port, key, bell, events_bell }))
    }

    fn now(&self) -> Instant {
        self.shared.origin + Duration::from_nanos(self.shared.lock().now)
    }

    fn random(&self) -> io::Result<u32> {
        // The high half is as good as the low one.
        Ok((self.shared.lock().rng.bits() >> 32) as u32)
    }

    fn pause(&self) {
        let mut state = self.shared.lock();
        if !state.step() {
            state.advance(PAUSE);
        }
    }

    fn plant(&self) -> Option<Plant> {
        self.shared.planted.map(Plant::from)
    }
}

struct DoubleNic {
    shared: Arc<Shared>,
    name: String,
    port: u8,
    key: u32,
    bell: Arc<OwnedFd>,
    events_bell: Arc<OwnedFd>,
}

impl DoubleNic {
    /// Calls with what is known about this opened device, unless the device is gone.
    fn with<T>(&self, call: impl FnOnce(&mut Opened) -> T) -> io::Result<T> {
        let mut state = self.shared.lock();
        let opened = state.opened.get_mut(&self.key).filter(|opened| !opened.dead);
        opened.map(call).ok_or_else(|| Errno::IO.into())
    }
}

impl Nic for DoubleNic {
    fn name(&self) -> &str {
        &self.name
    }

    fn port(&self) -> u8 {
        self.port
    }

    /// What all devices of the double counted together, by the names of soft RoCE.
    fn counts(&self) -> PortCounts {
        let counters = self.shared.lock().counters;
        PortCounts::of(&[
            ("completer_retry_err", counters.resent),
            ("retry_exceeded_err", counters.failed),
        ])
    }

    fn attributes(&self) -> io::Result<PortAttr> {
        let device = self.with(|opened| opened.device)?;
        let carrier = self.shared.lock().devices[device].carrier;
        let mut attributes = PortAttr::default();
        attributes.state = if carrier { PORT_ACTIVE } else { PORT_DOWN };
        (attributes.max_mtu, attributes.active_mtu) = (MTU_4096, MTU_4096);
        attributes.max_msg_sz = 1 << 30;
        Ok(attributes)
    }

    fn remote_access(&self) -> Result<(u64, u32), OutOfRegion> {
        Ok((BASE, self.key))
    }

    fn make_queue_pair(
        self: Arc<Self>,
        sends: u32,
        receives: u32,
    ) -> Result<Box<dyn Qp>, VerbsError> {
        let device = self.with(|opened| opened.device).map_err(|source| VerbsError::Device {
            device: self.name.clone(),
            what: "make a queue pair",
            source,
            hint: String::new(),
        })?;
        let mut state = self.shared.lock();
        let number = state.take_number();
        let ids = (number, device, self.key);
        state.pairs.insert(number, Pair::new(ids, sends as usize, receives as usize));
        drop(state);
        Ok(Box::new(DoubleQp { nic: self, number }))
    }

    fn poll(&self, room: &mut [Wc]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        // The queue lies in this process's memory, so what came can be read when the device is
        // gone.
        let opened = state.opened.get_mut(&self.key).filter(|opened| !opened.unreadable);
        opened.map_or_else(
            || Err(Errno::IO.into()),
            |opened| {
                let count = room.len().min(opened.completions.len());
                for (place, (_, wc)) in room.iter_mut().zip(opened.completions.drain(..count)) {
                    *place = wc;
                }
                Ok(count)
            },
        )
    }

    fn arm(&self) -> bool {
        self.with(|opened| !std::mem::replace(&mut opened.armed, true)).unwrap_or(false)
    }

    fn disarm(&self) {
        silence(&self.bell);
        let _ = self.with(|opened| opened.armed = false);
    }

    fn event(&self) -> Option<Notice> {
        let mut state = self.shared.lock();
        let event = state.opened.get_mut(&self.key)?.events.pop_front();
        if event.is_none() {
            silence(&self.events_bell);
        }
        event.map(Notice::of_event)
    }

    fn completions_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn events_fd(&self) -> BorrowedFd<'_> {
        self.events_bell.as_fd()
    }
}

impl Drop for DoubleNic {
    fn drop(&mut self) {
        self.shared.lock().opened.remove(&self.key);
    }
}

struct DoubleQp {
    nic: Arc<DoubleNic>,
    number: u32,
}

fn invalid<T>() -> io::Result<T> {
    Err(Errno::INVAL.into())
}

/// What a change of state must name, as the specification's table says for reliable connections.
fn required(from: u32, to: u32) -> Option<c_int> {
    match (from, to) {
        (QPS_RESET, QPS_INIT) => Some(mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS),
        (QPS_INIT, QPS_RTR) => Some(
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | mask::MAX_DEST_RD_ATOMIC
                | mask::MIN_RNR_TIMER,
        ),
        (QPS_RTR, QPS_RTS) => Some(
            mask::TIMEOUT
                | mask::RETRY_CNT
                | mask::RNR_RETRY
                | mask::SQ_PSN
                | mask::MAX_QP_RD_ATOMIC,
        ),
        (_, QPS_ERR | QPS_RESET) => Some(0),
        _ => None,
    }
}

impl DoubleQp {
    fn locked<T>(&self, call: impl FnOnce(&mut State, u32) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.nic.shared.lock();
        if state.opened.get(&self.nic.key).is_none_or(|opened| opened.dead) {
            return Err(Errno::IO.into());
        }
        call(&mut state, self.number)
    }
}

fn change(state: &mut State, number: u32, to: &QpAttr) -> io::Result<()> {
    let Some(pair) = state.pairs.get(&number) else { return invalid() };
    let device = &state.devices[pair.device];
    match to.qp_state {
        QPS_RTR => {
            let grh = &to.ah_attr.grh;
            if !device.gids.contains_key(&grh.sgid_index) {
                return Err(Errno::NODATA.into());
            }
            if !device.carrier {
                return Err(Errno::TIMEDOUT.into());
            }
            let mut gid = [0; 16];
            for (half, bytes) in grh.dgid.iter().zip(gid.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&half.to_ne_bytes());
            }
            let Some(pair) = state.pairs.get_mut(&number) else { return invalid() };
            pair.peer = Some((to.dest_qp_num, gid.into()));
            pair.label = grh.flow_label;
            pair.expected = to.rq_psn.into();
        }
        QPS_RTS => {
            let Some(pair) = state.pairs.get_mut(&number) else { return invalid() };
            pair.timeout = TIMEOUT_UNIT << to.timeout.min(31);
            (pair.retries, pair.rnr_retries) = (to.retry_cnt, to.rnr_retry);
            pair.start_sending(to.sq_psn.into());
        }
        QPS_ERR => {
            state.flush(number, 5, 0);
            return Ok(());
        }
        QPS_RESET => {
            state.settle_bytes(number);
            let Some(old) = state.pairs.get(&number) else { return invalid() };
            let ids = (number, old.device, old.key);
            let fresh = Pair::new(ids, old.sends_max, old.receives_max);
            state.pairs.insert(number, fresh);
            return Ok(());
        }
        _ => {}
    }
    if let Some(pair) = state.pairs.get_mut(&number) {
        pair.state = to.qp_state;
    }
    Ok(())
}

/// The content of a payload, which must lie within the own region.
fn content(payload: Payload<'_>, region: &Region) -> io::Result<Content> {
    match payload {
        Payload::Inline(bytes) if bytes.len() <= INLINE_BYTES_MAX => {
            Ok(Content::Bytes(bytes.to_vec()))
        }
        Payload::Inline(_) => invalid(),
        Payload::Region(span) => {
            region.pointer(span.offset, span.len).map_err(io::Error::other)?;
            Ok(Content::Region(span))
        }
    }
}

impl Qp for DoubleQp {
    fn number(&self) -> u32 {
        self.number
    }

    fn modify(&mut self, attributes: &QpAttr, named: c_int) -> io::Result<()> {
        self.locked(|state, number| {
            let Some(pair) = state.pairs.get(&number) else { return invalid() };
            match required(pair.state, attributes.qp_state) {
                Some(required) if named == required | mask::STATE => {
                    change(state, number, attributes)
                }
                _ => invalid(),
            }
        })
    }

    fn query(&self, _named: c_int) -> io::Result<QpAttr> {
        self.locked(|state, number| {
            let Some(pair) = state.pairs.get(&number) else { return invalid() };
            let mut attributes = QpAttr { qp_state: pair.state, ..QpAttr::default() };
            attributes.ah_attr.grh.flow_label = state.label_of(pair);
            Ok(attributes)
        })
    }

    fn post(&mut self, remote: &Remote, requests: &[Request<'_>]) -> io::Result<()> {
        self.locked(|state, number| {
            let Some(pair) = state.pairs.get(&number) else { return invalid() };
            if requests.is_empty() || requests.len() > CHAIN_MAX {
                return invalid();
            }
            if pair.sends.len() + requests.len() > pair.sends_max {
                state.counters.refused += 1;
                return Err(Errno::NOMEM.into());
            }
            let (was, key) = (pair.state, pair.key);
            if was != QPS_RTS && was != QPS_ERR {
                return invalid();
            }
            let Some(opened) = state.opened.get(&key) else { return invalid() };
            let region = Arc::clone(&opened.region);
            for request in requests {
                let (payload, to, told) = match request.action {
                    Action::Write { payload, to } => (payload, Some(to), None),
                    Action::WriteTelling { payload, to, number } => {
                        (payload, Some(to), Some(number))
                    }
                    Action::Tell { number } => (Payload::Inline(&[]), None, Some(number)),
                };
                let place = to.map(|to| (remote.key, remote.address.wrapping_add(to)));
                let content = content(payload, &region)?;
                if was == QPS_ERR {
                    let mut wc = Wc::default();
                    (wc.wr_id, wc.status) = (request.id, 5);
                    state.complete(number, key, wc);
                    continue;
                }
                let message = State::message(request.id, request.signalled, content, place, told);
                state.request(number, message);
            }
            let (writes, bytes) = match state.pairs.get(&number) {
                Some(pair) => (pair.writes(), pair.on_their_way()),
                None => return invalid(),
            };
            let is_write = requests.iter().any(|it| !matches!(it.action, Action::Tell { .. }));
            if is_write && writes > requests.len() {
                state.note_on_their_way(number, bytes);
            }
            Ok(())
        })
    }

    fn post_receives(&mut self, id: u64, count: usize) -> io::Result<()> {
        self.locked(|state, number| {
            let Some(pair) = state.pairs.get_mut(&number) else { return invalid() };
            if pair.state == QPS_RESET {
                return invalid();
            }
            if pair.receives.len() + count > pair.receives_max {
                state.counters.refused += 1;
                return Err(Errno::NOMEM.into());
            }
            if pair.state == QPS_ERR {
                return Ok(());
            }
            pair.receives.extend(std::iter::repeat_n(id, count));
            Ok(())
        })
    }
}

impl Drop for DoubleQp {
    fn drop(&mut self) {
        let mut state = self.nic.shared.lock();
        state.settle_bytes(self.number);
        state.pairs.remove(&self.number);
    }
}
