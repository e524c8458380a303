//! The structures of libibverbs that this transport touches, as `infiniband/verbs.h` of rdma-core
//! lays them out. They belong to the stable interface `IBVERBS_1.1` and have not moved since it
//! was made; a test compiles a C program against the installed header and compares every size and
//! offset.
//!
//! Structures that only the library makes, such as a queue pair, are declared up to the last
//! field read here and never made or copied.

use std::ffi::{c_int, c_uint, c_void};

/// What the library hands out and takes back without a look inside.
#[repr(C)]
pub(super) struct Opaque {
    _private: [u8; 0],
}

/// `struct ibv_context_ops`: what a driver does itself. The rest is reached through symbols.
#[repr(C)]
pub(super) struct ContextOps {
    before_poll: [*mut c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    between: [*mut c_void; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub(super) post_recv:
        Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    after: [*mut c_void; 5],
}

/// The start of `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    device: *mut Opaque,
    pub(super) ops: ContextOps,
    cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// The start of `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompChannel {
    context: *mut Context,
    pub(super) fd: c_int,
}

/// The start of `struct ibv_cq`.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// The start of `struct ibv_qp`.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    qp_context: *mut c_void,
    pd: *mut Opaque,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    srq: *mut Opaque,
    handle: u32,
    pub(super) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut Opaque,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`; of its unions only the members that an RDMA write has.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// Network byte order.
    pub(super) imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) rest: [u64; 9],
}

impl SendWr {
    pub(super) const fn empty() -> Self {
        Self {
            wr_id: 0,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
            opcode: 0,
            send_flags: 0,
            imm_data: 0,
            remote_addr: 0,
            rkey: 0,
            rest: [0; 9],
        }
    }
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`: a work completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    byte_len: u32,
    /// Network byte order.
    pub(super) imm_data: u32,
    qp_num: u32,
    src_qp: u32,
    wc_flags: c_uint,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Opaque,
    pub(super) cap: QpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GlobalRoute {
    /// Two words, so that it is aligned as in C.
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// The part of `struct ibv_port_attr` that every version of the call fills, and room behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortAttr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    gid_tbl_len: c_int,
    port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    rest: [u32; 16],
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AsyncEvent {
    /// A pointer, or a port number in its first four bytes.
    pub(super) element: u64,
    pub(super) event_type: c_uint,
}

/// Opcodes of send work requests.
pub(super) const WR_RDMA_WRITE: c_uint = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(super) const WR_SEND_WITH_IMM: c_uint = 3;

/// Flags of send work requests.
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const SEND_INLINE: c_uint = 1 << 3;

/// The completion of an immediate value that came with a write. Others are those of a send.
pub(super) const WC_RECV_RDMA_WITH_IMM: c_uint = (1 << 7) + 1;

/// States of a queue pair.
pub(super) const QPS_RESET: c_uint = 0;
pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;
pub(super) const QPS_ERR: c_uint = 6;

/// Reliable connections.
pub(super) const QPT_RC: c_uint = 2;

/// What may be done with registered memory.
pub(super) const ACCESS_LOCAL_WRITE: c_uint = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_uint = 1 << 1;

/// A port that carries traffic.
pub(super) const PORT_ACTIVE: c_uint = 4;

/// Which attributes a change of a queue pair sets.
pub(super) mod mask {
    use std::ffi::c_int;

    pub(in crate::verbs) const STATE: c_int = 1;
    pub(in crate::verbs) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(in crate::verbs) const PKEY_INDEX: c_int = 1 << 4;
    pub(in crate::verbs) const PORT: c_int = 1 << 5;
    pub(in crate::verbs) const AV: c_int = 1 << 7;
    pub(in crate::verbs) const PATH_MTU: c_int = 1 << 8;
    pub(in crate::verbs) const TIMEOUT: c_int = 1 << 9;
    pub(in crate::verbs) const RETRY_CNT: c_int = 1 << 10;
    pub(in crate::verbs) const RNR_RETRY: c_int = 1 << 11;
    pub(in crate::verbs) const RQ_PSN: c_int = 1 << 12;
    pub(in crate::verbs) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(in crate::verbs) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(in crate::verbs) const SQ_PSN: c_int = 1 << 16;
    pub(in crate::verbs) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(in crate::verbs) const DEST_QPN: c_int = 1 << 20;
}

#[cfg(test)]
#[path = "abi_tests.rs"]
mod tests;
