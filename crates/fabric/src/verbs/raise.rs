//! Bringing a queue pair from made to ready, and holding its packets' source port against the tags.

use std::io;

use cluster::source_port::{TAG_SOURCE_PORT, queue_pair_port, safe_flow_label};

use super::abi::{
    ACCESS_REMOTE_WRITE, AhAttr, GlobalRoute, QPS_INIT, QPS_RESET, QPS_RTR, QPS_RTS, QpAttr, mask,
};
use super::connect::Forwarded;

use super::gid::Gid;
use super::provider::{Plant, Qp};
use super::queue_pair;
use super::settings::VerbsSettings;
use super::told::Told;
use super::word::Tag;

/// The wait that a receiver which is not ready asks for: 0.64 ms, by the specification's table.
const RNR_TIMER: u8 = 12;
/// How many flow labels are tried to get a neighbour's queue pair off the tag port. One is enough
/// where the device follows the label; where it does not, no label helps.
const LABELS_TRIED: u32 = 4;

/// What a queue pair needs to be raised.
pub(super) struct Raise<'a> {
    pub(super) gid: &'a Gid,
    pub(super) own: &'a Told,
    pub(super) peer: &'a Told,
    pub(super) settings: &'a VerbsSettings,
    pub(super) forwarded: Option<&'a Forwarded>,
    pub(super) plant: Option<Plant>,
    pub(super) tag: Tag,
}

/// Why a queue pair did not become ready.
#[derive(Debug)]
pub(super) enum NotRaised {
    /// The device refused a state.
    State { state: &'static str, source: io::Error },
    /// Its packets leave from a port that they must not leave from.
    Port { seen: u16, wanted: Option<u16> },
}

/// Brings a new queue pair to init and fills its receive queue.
pub(super) fn initialise(qp: &mut dyn Qp, port: u8, tag: Tag) -> io::Result<()> {
    let init = QpAttr {
        qp_state: QPS_INIT,
        port_num: port,
        qp_access_flags: ACCESS_REMOTE_WRITE,
        ..QpAttr::default()
    };
    qp.modify(&init, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)?;
    queue_pair::fill(qp, tag)
}

/// Brings a queue pair from init to ready: to receive, then to send. Between them its source port
/// is checked, before its first packet.
pub(super) fn raise(qp: &mut dyn Qp, with: &Raise<'_>) -> Result<(), NotRaised> {
    let refused = |state| move |source| NotRaised::State { state, source };
    let mut label = with.forwarded.map_or(with.settings.flow_label, |it| it.flow_label);
    for tried in 1.. {
        to_receive(qp, label, with).map_err(refused("ready to receive"))?;
        let seen = port_of(qp, label, with.peer.number);
        let wanted = with.forwarded.and_then(|it| it.source_port);
        match (with.forwarded, wanted) {
            _ if with.plant == Some(Plant::NoPortCheck) => break,
            (Some(_), Some(wanted)) if seen != wanted => {
                return Err(NotRaised::Port { seen, wanted: Some(wanted) });
            }
            (None, _) if seen == TAG_SOURCE_PORT && tried == LABELS_TRIED => {
                return Err(NotRaised::Port { seen, wanted: None });
            }
            (None, _) if seen == TAG_SOURCE_PORT => {
                label = safe_flow_label(label + 1);
                let again = QpAttr { qp_state: QPS_RESET, ..QpAttr::default() };
                qp.modify(&again, mask::STATE)
                    .and_then(|()| initialise(qp, with.gid.port, with.tag))
                    .map_err(refused("initialised again"))?;
            }
            _ => break,
        }
    }
    to_send(qp, with).map_err(refused("ready to send"))
}

/// The UDP source port of the queue pair's packets. It follows from the label that the device
/// says it uses, or was given if it does not say.
fn port_of(qp: &dyn Qp, given: u32, peer_number: u32) -> u16 {
    let used = qp.query(mask::AV).map(|attributes| attributes.ah_attr.grh.flow_label);
    queue_pair_port(used.unwrap_or(given), qp.number(), peer_number)
}

fn to_receive(qp: &mut dyn Qp, label: u32, with: &Raise<'_>) -> io::Result<()> {
    let Raise { gid, own, peer, settings, .. } = with;
    let octets = peer.gid.octets();
    let half = |start: usize| {
        let mut half = [0; 8];
        half.copy_from_slice(&octets[start..start + 8]);
        u64::from_ne_bytes(half)
    };
    let receive = QpAttr {
        qp_state: QPS_RTR,
        path_mtu: own.mtu.min(peer.mtu),
        rq_psn: peer.psn,
        dest_qp_num: peer.number,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RNR_TIMER,
        ah_attr: AhAttr {
            grh: GlobalRoute {
                dgid: [half(0), half(8)],
                flow_label: label,
                sgid_index: gid.index,
                hop_limit: settings.hop_limit,
                traffic_class: settings.traffic_class,
            },
            is_global: 1,
            port_num: gid.port,
            ..AhAttr::default()
        },
        ..QpAttr::default()
    };
    let receive_mask = mask::STATE
        | mask::AV
        | mask::PATH_MTU
        | mask::DEST_QPN
        | mask::RQ_PSN
        | mask::MAX_DEST_RD_ATOMIC
        | mask::MIN_RNR_TIMER;
    qp.modify(&receive, receive_mask)
}

fn to_send(qp: &mut dyn Qp, with: &Raise<'_>) -> io::Result<()> {
    let settings = with.settings;
    let send = QpAttr {
        qp_state: QPS_RTS,
        sq_psn: with.own.psn,
        max_rd_atomic: 1,
        timeout: settings.timeout,
        retry_cnt: settings.retry_count,
        rnr_retry: settings.rnr_retry,
        ..QpAttr::default()
    };
    let send_mask = mask::STATE
        | mask::SQ_PSN
        | mask::TIMEOUT
        | mask::RETRY_CNT
        | mask::RNR_RETRY
        | mask::MAX_QP_RD_ATOMIC;
    qp.modify(&send, send_mask)
}
