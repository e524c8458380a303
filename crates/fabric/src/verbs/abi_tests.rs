//! Compares the layouts with those of the installed header.

use std::mem::{offset_of, size_of};
use std::process::Command;

use super::*;

const HEADER: &str = "/usr/include/infiniband/verbs.h";

/// What a C expression must give.
fn expected() -> Vec<(&'static str, usize)> {
    vec![
        ("offsetof(struct ibv_context, ops)", offset_of!(Context, ops)),
        ("sizeof(struct ibv_context_ops)", size_of::<ContextOps>()),
        ("offsetof(struct ibv_context_ops, poll_cq)", offset_of!(ContextOps, poll_cq)),
        ("offsetof(struct ibv_context_ops, req_notify_cq)", offset_of!(ContextOps, req_notify_cq)),
        ("offsetof(struct ibv_context_ops, post_send)", offset_of!(ContextOps, post_send)),
        ("offsetof(struct ibv_context_ops, post_recv)", offset_of!(ContextOps, post_recv)),
        ("offsetof(struct ibv_context, async_fd)", offset_of!(Context, async_fd)),
        ("offsetof(struct ibv_comp_channel, fd)", offset_of!(CompChannel, fd)),
        ("offsetof(struct ibv_cq, context)", offset_of!(Cq, context)),
        ("offsetof(struct ibv_qp, context)", offset_of!(Qp, context)),
        ("offsetof(struct ibv_qp, qp_num)", offset_of!(Qp, qp_num)),
        ("sizeof(struct ibv_mr)", size_of::<Mr>()),
        ("offsetof(struct ibv_mr, lkey)", offset_of!(Mr, lkey)),
        ("offsetof(struct ibv_mr, rkey)", offset_of!(Mr, rkey)),
        ("sizeof(struct ibv_sge)", size_of::<Sge>()),
        ("offsetof(struct ibv_sge, length)", offset_of!(Sge, length)),
        ("offsetof(struct ibv_sge, lkey)", offset_of!(Sge, lkey)),
        ("sizeof(struct ibv_send_wr)", size_of::<SendWr>()),
        ("offsetof(struct ibv_send_wr, next)", offset_of!(SendWr, next)),
        ("offsetof(struct ibv_send_wr, sg_list)", offset_of!(SendWr, sg_list)),
        ("offsetof(struct ibv_send_wr, num_sge)", offset_of!(SendWr, num_sge)),
        ("offsetof(struct ibv_send_wr, opcode)", offset_of!(SendWr, opcode)),
        ("offsetof(struct ibv_send_wr, send_flags)", offset_of!(SendWr, send_flags)),
        ("offsetof(struct ibv_send_wr, imm_data)", offset_of!(SendWr, imm_data)),
        ("offsetof(struct ibv_send_wr, wr.rdma.remote_addr)", offset_of!(SendWr, remote_addr)),
        ("offsetof(struct ibv_send_wr, wr.rdma.rkey)", offset_of!(SendWr, rkey)),
        ("sizeof(struct ibv_recv_wr)", size_of::<RecvWr>()),
        ("offsetof(struct ibv_recv_wr, next)", offset_of!(RecvWr, next)),
        ("offsetof(struct ibv_recv_wr, num_sge)", offset_of!(RecvWr, num_sge)),
        ("sizeof(struct ibv_wc)", size_of::<Wc>()),
        ("offsetof(struct ibv_wc, status)", offset_of!(Wc, status)),
        ("offsetof(struct ibv_wc, opcode)", offset_of!(Wc, opcode)),
        ("offsetof(struct ibv_wc, vendor_err)", offset_of!(Wc, vendor_err)),
        ("offsetof(struct ibv_wc, imm_data)", offset_of!(Wc, imm_data)),
        ("offsetof(struct ibv_wc, wc_flags)", offset_of!(Wc, wc_flags)),
        ("sizeof(struct ibv_qp_cap)", size_of::<QpCap>()),
        ("offsetof(struct ibv_qp_cap, max_inline_data)", offset_of!(QpCap, max_inline_data)),
        ("sizeof(struct ibv_qp_init_attr)", size_of::<QpInitAttr>()),
        ("offsetof(struct ibv_qp_init_attr, cap)", offset_of!(QpInitAttr, cap)),
        ("offsetof(struct ibv_qp_init_attr, qp_type)", offset_of!(QpInitAttr, qp_type)),
        ("offsetof(struct ibv_qp_init_attr, sq_sig_all)", offset_of!(QpInitAttr, sq_sig_all)),
        ("sizeof(struct ibv_global_route)", size_of::<GlobalRoute>()),
        ("offsetof(struct ibv_global_route, flow_label)", offset_of!(GlobalRoute, flow_label)),
        ("offsetof(struct ibv_global_route, sgid_index)", offset_of!(GlobalRoute, sgid_index)),
        ("offsetof(struct ibv_global_route, hop_limit)", offset_of!(GlobalRoute, hop_limit)),
        (
            "offsetof(struct ibv_global_route, traffic_class)",
            offset_of!(GlobalRoute, traffic_class),
        ),
        ("sizeof(struct ibv_ah_attr)", size_of::<AhAttr>()),
        ("offsetof(struct ibv_ah_attr, is_global)", offset_of!(AhAttr, is_global)),
        ("offsetof(struct ibv_ah_attr, port_num)", offset_of!(AhAttr, port_num)),
        ("sizeof(struct ibv_qp_attr)", size_of::<QpAttr>()),
        ("offsetof(struct ibv_qp_attr, path_mtu)", offset_of!(QpAttr, path_mtu)),
        ("offsetof(struct ibv_qp_attr, rq_psn)", offset_of!(QpAttr, rq_psn)),
        ("offsetof(struct ibv_qp_attr, dest_qp_num)", offset_of!(QpAttr, dest_qp_num)),
        ("offsetof(struct ibv_qp_attr, qp_access_flags)", offset_of!(QpAttr, qp_access_flags)),
        ("offsetof(struct ibv_qp_attr, ah_attr)", offset_of!(QpAttr, ah_attr)),
        (
            "offsetof(struct ibv_qp_attr, max_dest_rd_atomic)",
            offset_of!(QpAttr, max_dest_rd_atomic),
        ),
        ("offsetof(struct ibv_qp_attr, min_rnr_timer)", offset_of!(QpAttr, min_rnr_timer)),
        ("offsetof(struct ibv_qp_attr, port_num)", offset_of!(QpAttr, port_num)),
        ("offsetof(struct ibv_qp_attr, timeout)", offset_of!(QpAttr, timeout)),
        ("offsetof(struct ibv_qp_attr, retry_cnt)", offset_of!(QpAttr, retry_cnt)),
        ("offsetof(struct ibv_qp_attr, rnr_retry)", offset_of!(QpAttr, rnr_retry)),
        ("offsetof(struct ibv_port_attr, active_mtu)", offset_of!(PortAttr, active_mtu)),
        ("offsetof(struct ibv_port_attr, max_msg_sz)", offset_of!(PortAttr, max_msg_sz)),
        ("sizeof(struct ibv_async_event)", size_of::<AsyncEvent>()),
        ("offsetof(struct ibv_async_event, event_type)", offset_of!(AsyncEvent, event_type)),
        ("IBV_WR_RDMA_WRITE", WR_RDMA_WRITE as usize),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", WR_RDMA_WRITE_WITH_IMM as usize),
        ("IBV_WR_SEND_WITH_IMM", WR_SEND_WITH_IMM as usize),
        ("IBV_SEND_SIGNALED", SEND_SIGNALED as usize),
        ("IBV_SEND_INLINE", SEND_INLINE as usize),
        ("IBV_WC_RECV_RDMA_WITH_IMM", WC_RECV_RDMA_WITH_IMM as usize),
        ("IBV_QPS_INIT", QPS_INIT as usize),
        ("IBV_QPS_RTR", QPS_RTR as usize),
        ("IBV_QPS_RTS", QPS_RTS as usize),
        ("IBV_QPS_ERR", QPS_ERR as usize),
        ("IBV_QPT_RC", QPT_RC as usize),
        ("IBV_ACCESS_LOCAL_WRITE", ACCESS_LOCAL_WRITE as usize),
        ("IBV_ACCESS_REMOTE_WRITE", ACCESS_REMOTE_WRITE as usize),
        ("IBV_PORT_ACTIVE", PORT_ACTIVE as usize),
        ("IBV_QP_STATE", mask::STATE as usize),
        ("IBV_QP_ACCESS_FLAGS", mask::ACCESS_FLAGS as usize),
        ("IBV_QP_PKEY_INDEX", mask::PKEY_INDEX as usize),
        ("IBV_QP_PORT", mask::PORT as usize),
        ("IBV_QP_AV", mask::AV as usize),
        ("IBV_QP_PATH_MTU", mask::PATH_MTU as usize),
        ("IBV_QP_TIMEOUT", mask::TIMEOUT as usize),
        ("IBV_QP_RETRY_CNT", mask::RETRY_CNT as usize),
        ("IBV_QP_RNR_RETRY", mask::RNR_RETRY as usize),
        ("IBV_QP_RQ_PSN", mask::RQ_PSN as usize),
        ("IBV_QP_MAX_QP_RD_ATOMIC", mask::MAX_QP_RD_ATOMIC as usize),
        ("IBV_QP_MIN_RNR_TIMER", mask::MIN_RNR_TIMER as usize),
        ("IBV_QP_SQ_PSN", mask::SQ_PSN as usize),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", mask::MAX_DEST_RD_ATOMIC as usize),
        ("IBV_QP_DEST_QPN", mask::DEST_QPN as usize),
    ]
}

#[test]
fn layouts_are_those_of_the_installed_header() {
    if !std::path::Path::new(HEADER).exists() {
        eprintln!("SKIPPED: there is no {HEADER} (package libibverbs-dev) to compare with");
        return;
    }
    let expected = expected();
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\nint main(void){\n",
    );
    for (expression, _) in &expected {
        source.push_str(&format!("printf(\"%zu\\n\", (size_t)({expression}));\n"));
    }
    source.push_str("return 0; }\n");
    let folder = std::env::temp_dir().join(format!("railweave-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, program) = (folder.join("abi.c"), folder.join("abi"));
    std::fs::write(&file, source).unwrap();
    let compiled = match Command::new("cc").arg("-o").arg(&program).arg(&file).output() {
        Ok(compiled) => compiled,
        Err(error) => {
            eprintln!("SKIPPED: there is no C compiler to compare layouts with: {error}");
            return;
        }
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    let found: Vec<usize> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(found.len(), expected.len());
    for ((expression, ours), theirs) in expected.into_iter().zip(found) {
        assert_eq!(ours, theirs, "{expression}");
    }
    assert!(size_of::<PortAttr>() >= 52, "room for what newer versions of the call fill");
}
