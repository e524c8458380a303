//! A queue pair and what is posted on it.

use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use super::super::abi;
use super::super::error::VerbsError;
use super::super::provider::{Action, CHAIN_MAX, INLINE_BYTES_MAX, Payload, Qp, Remote, Request};
use super::nic::KernelNic;
use super::{Owned, answered};

/// A reliable connection's end.
pub(super) struct KernelQp {
    qp: Owned<abi::Qp>,
    nic: Arc<KernelNic>,
    post_send: unsafe extern "C" fn(*mut abi::Qp, *mut abi::SendWr, *mut *mut abi::SendWr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut abi::Qp, *mut abi::RecvWr, *mut *mut abi::RecvWr) -> c_int,
    lkey: u32,
}

// SAFETY: it owns what it points to, and the library's calls may come from any thread.
unsafe impl Send for KernelQp {}

impl KernelQp {
    /// Makes a queue pair for so many outstanding requests.
    pub(super) fn new(nic: &Arc<KernelNic>, sends: u32, receives: u32) -> Result<Self, VerbsError> {
        let failed = |source| VerbsError::Device {
            device: nic.name.clone(),
            what: "make a queue pair",
            source,
            hint: String::new(),
        };
        let mut wanted = abi::QpInitAttr {
            send_cq: nic.cq.as_ptr(),
            recv_cq: nic.cq.as_ptr(),
            cap: abi::QpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: INLINE_BYTES_MAX as u32,
            },
            ..empty_init()
        };
        // SAFETY: domain and queue belong to the device, which the value made here keeps open.
        let made = unsafe { (nic.library.ibv_create_qp)(nic.pd.as_ptr(), &raw mut wanted) };
        let qp = Owned::new(made, nic.library.ibv_destroy_qp).map_err(failed)?;
        // SAFETY: the queue pair was made just now; its context is the open device's.
        let ops = unsafe { &(*(*qp.as_ptr()).context).ops };
        let (post_send, post_recv) = ops
            .post_send
            .zip(ops.post_recv)
            .ok_or_else(|| failed(io::ErrorKind::Unsupported.into()))?;
        // SAFETY: the registration lives as long as the device.
        let lkey = unsafe { (*nic.mr.as_ptr()).lkey };
        Ok(Self { qp, nic: Arc::clone(nic), post_send, post_recv, lkey })
    }
}

impl Qp for KernelQp {
    fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`.
        unsafe { (*self.qp.as_ptr()).qp_num }
    }

    fn modify(&mut self, attributes: &abi::QpAttr, mask: c_int) -> io::Result<()> {
        let mut attributes = *attributes;
        // SAFETY: the queue pair lives, and the structure is whole; the device checks its values.
        answered(unsafe {
            (self.nic.library.ibv_modify_qp)(self.qp.as_ptr(), &raw mut attributes, mask)
        })
    }

    fn query(&self, mask: c_int) -> io::Result<abi::QpAttr> {
        let mut attributes = abi::QpAttr::default();
        let mut first = empty_init();
        // SAFETY: the queue pair lives, and both structures are whole for the call to fill.
        answered(unsafe {
            (self.nic.library.ibv_query_qp)(
                self.qp.as_ptr(),
                &raw mut attributes,
                mask,
                &raw mut first,
            )
        })?;
        Ok(attributes)
    }

    fn post(&mut self, remote: &Remote, requests: &[Request<'_>]) -> io::Result<()> {
        let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if requests.is_empty() || requests.len() > CHAIN_MAX {
            return refuse("a chain of no or too many requests");
        }
        let mut sges = [abi::Sge::default(); CHAIN_MAX];
        let mut chain = [abi::SendWr::empty(); CHAIN_MAX];
        let mut next: *mut abi::SendWr = null_mut();
        // From the last to the first, so that each knows its successor.
        let places = sges.iter_mut().zip(&mut chain).take(requests.len()).rev();
        for (request, (sge, wr)) in requests.iter().rev().zip(places) {
            let (opcode, payload, to, number) = match request.action {
                Action::Write { payload, to } => (abi::WR_RDMA_WRITE, Some(payload), to, 0),
                Action::WriteTelling { payload, to, number } => {
                    (abi::WR_RDMA_WRITE_WITH_IMM, Some(payload), to, number)
                }
                Action::Tell { number } => (abi::WR_SEND_WITH_IMM, None, 0, number),
            };
            let mut flags = if request.signalled { abi::SEND_SIGNALED } else { 0 };
            match payload {
                Some(Payload::Inline(bytes)) if bytes.len() <= INLINE_BYTES_MAX => {
                    sge.addr = bytes.as_ptr() as u64;
                    sge.length = bytes.len() as u32;
                    flags |= abi::SEND_INLINE;
                }
                Some(Payload::Region(span)) => {
                    let start = self.nic.region.pointer(span.offset, span.len);
                    sge.addr = start.map_err(io::Error::other)? as u64;
                    let Ok(length) = u32::try_from(span.len) else {
                        return refuse("a longer request than its length can say");
                    };
                    sge.length = length;
                    sge.lkey = self.lkey;
                }
                Some(Payload::Inline(_)) => return refuse("too many bytes to go inline"),
                None => {}
            }
            let len = u64::from(sge.length);
            if to.checked_add(len).is_none_or(|end| end > remote.bytes) {
                return refuse("a write outside of the peer's region");
            }
            *wr = abi::SendWr {
                wr_id: request.id,
                next,
                sg_list: sge,
                num_sge: c_int::from(len > 0),
                opcode,
                send_flags: flags,
                imm_data: number.to_be(),
                remote_addr: remote.address.wrapping_add(to),
                rkey: remote.key,
                ..abi::SendWr::empty()
            };
            next = wr;
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair lives; the chain and its places live until the call is over, and
        // the device keeps no pointer to them. Inline bytes are copied by the call; others lie in
        // the region, which stays registered and mapped as long as the device.
        answered(unsafe { (self.post_send)(self.qp.as_ptr(), next, &raw mut bad) })
    }

    fn post_receives(&mut self, id: u64, count: usize) -> io::Result<()> {
        let mut left = count;
        while left > 0 {
            let mut chain =
                [abi::RecvWr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
                    CHAIN_MAX];
            let batch = left.min(CHAIN_MAX);
            let mut next = null_mut();
            for wr in chain.iter_mut().take(batch).rev() {
                wr.next = next;
                next = wr;
            }
            let mut bad = null_mut();
            // SAFETY: the queue pair lives, and the chain lives until the call is over.
            answered(unsafe { (self.post_recv)(self.qp.as_ptr(), next, &raw mut bad) })?;
            left -= batch;
        }
        Ok(())
    }
}

fn empty_init() -> abi::QpInitAttr {
    abi::QpInitAttr {
        qp_context: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        cap: abi::QpCap::default(),
        qp_type: abi::QPT_RC,
        sq_sig_all: 0,
    }
}
