//! NCCL: which devices, which of their addresses, and which algorithm the cables allow.

use std::net::Ipv4Addr;

use super::{Engine, EngineError, Environment, host, joined, paths_of, rdma, used_functions};
use crate::plan::{FunctionRef, Plan};

/// The most devices NCCL uses, by its documentation.
const MOST_DEVICES: usize = 32;

pub(super) fn fill(
    plan: &Plan,
    rank: usize,
    control_netdev: Option<&str>,
    environment: &mut Environment,
) -> Result<(), EngineError> {
    let functions = used_functions(plan, rank);
    let mut devices = Vec::new();
    for function in &functions {
        devices.push(format!("{}:1", rdma(Engine::Nccl, function)?));
    }
    if devices.len() > MOST_DEVICES {
        return Err(EngineError::Devices {
            engine: Engine::Nccl,
            host: host(plan, rank),
            have: devices.len(),
            most: MOST_DEVICES,
        });
    }
    environment.set(
        "NCCL_NET",
        "IB",
        "verbs or an error: without it NCCL falls back to TCP without a word",
    );
    environment.set(
        "NCCL_IB_HCA",
        format!("={}", devices.join(",")),
        "the RDMA devices of the plan's rails of this rank; '=' matches whole names, ':1' is a RoCE device's only port",
    );
    environment.set(
        "NCCL_IB_ADDR_FAMILY",
        "AF_INET",
        "the plan's addresses are IPv4; NCCL finds the GID by content",
    );
    environment.set("NCCL_IB_ROCE_VERSION_NUM", "2", "the GID must be RoCE v2");
    match range(plan) {
        Ok(range) => environment.set(
            "NCCL_IB_ADDR_RANGE",
            range,
            "the smallest network with all addresses of the plan in it; GIDs of other addresses are passed over",
        ),
        Err(why) => environment.note(format!("NCCL_IB_ADDR_RANGE is not set: {why}")),
    }
    environment.note("NCCL_IB_GID_INDEX is not set on purpose: an index moves; what is above finds the GID by content");
    socket(plan, rank, control_netdev, environment);
    if plan.cables.iter().all(|cable| cable.switch.is_none()) {
        cabled(plan, &functions, environment)?;
    }
    Ok(())
}

fn socket(plan: &Plan, rank: usize, control_netdev: Option<&str>, environment: &mut Environment) {
    let control = plan.ranks.get(rank).and_then(|rank| rank.control.as_deref());
    match (control_netdev, control) {
        (Some(netdev), control) => {
            let whose = control.map_or_else(String::new, |address| format!(" ({address})"));
            environment.set(
                "NCCL_SOCKET_IFNAME",
                format!("={netdev}"),
                format!("the netdev with this host's control address{whose}: start-up must not depend on a cable"),
            );
        }
        (None, Some(address)) => environment.note(format!(
            "NCCL_SOCKET_IFNAME is not set: nobody looked which netdev has the control address {address}"
        )),
        (None, None) => environment.note(
            "NCCL_SOCKET_IFNAME is not set: the cluster file gives this host no `control` address",
        ),
    }
}

/// What only cables without a switch need.
fn cabled(
    plan: &Plan,
    functions: &[&FunctionRef],
    environment: &mut Environment,
) -> Result<(), EngineError> {
    if functions.len() > 1 {
        environment.set(
            "NCCL_IB_SUBNET_AWARE_ROUTING",
            "1",
            "each function reaches one network only; without it NCCL pairs devices that no cable joins (NCCL 2.30 on)",
        );
    }
    let rank = environment.rank;
    let next: Vec<usize> =
        plan.ranks.get(rank).map(|rank| rank.neighbours.clone()).unwrap_or_default();
    if next.len() > 1 {
        environment.set(
            "NCCL_IB_MERGE_NICS",
            "0",
            "ports of this host lead to different hosts; merged, they would look like one device that reaches both",
        );
    }
    let distant = plan.paths.iter().any(|path| !joined(plan, path.from, path.to));
    if !distant {
        return Ok(());
    }
    let ranks = plan.ranks.len();
    for a in 0..ranks {
        let b = (a + 1) % ranks;
        if !joined(plan, a, b) {
            return Err(EngineError::Order {
                engine: Engine::Nccl,
                a,
                host_a: host(plan, a),
                b,
                host_b: host(plan, b),
            });
        }
    }
    let far: Vec<String> = paths_of(plan, rank)
        .filter(|path| !joined(plan, path.from, path.to))
        .map(|path| host(plan, path.to))
        .collect();
    let why = match far.as_slice() {
        [] => "some ranks have no cable in common".to_owned(),
        far => format!("no cable leads to {}", far.join(", ")),
    };
    environment.set("NCCL_ALGO", "Ring", format!("{why}: only the ring keeps to neighbours"));
    environment.set(
        "NCCL_RUNTIME_CONNECT",
        "1",
        "connect when first used, so that no tree is tried at start",
    );
    environment.set("NCCL_CUMEM_ENABLE", "1", "connecting at first use needs it");
    environment.set("NCCL_PAT_ENABLE", "0", "PAT connects ranks that no cable joins");
    environment.note(
        "some NCCL versions connect a tree at start all the same and fail (ibv_modify_qp, 110): those need a build \
         that is ring-only",
    );
    environment
        .note("send, receive and all-to-all between distant ranks do not work over NCCL here");
    Ok(())
}

/// The smallest network that has every address of the plan in it.
fn range(plan: &Plan) -> Result<String, String> {
    let mut all: Vec<Ipv4Addr> = Vec::new();
    for rank in 0..plan.ranks.len() {
        for function in used_functions(plan, rank) {
            match function.ip {
                Some(ip) => all.push(ip),
                None => {
                    return Err(format!("{} has no address in the cluster file", function.label()));
                }
            }
        }
    }
    let (Some(low), Some(high)) = (all.iter().min(), all.iter().max()) else {
        return Err("the plan has no addresses".to_owned());
    };
    let (low, high) = (u32::from(*low), u32::from(*high));
    let prefix = (low ^ high).leading_zeros();
    let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
    let network = Ipv4Addr::from(low & mask);
    if prefix < 8 {
        return Err(format!("the plan's addresses have no network in common ({network}/{prefix})"));
    }
    let inside = |address: &str| {
        address.parse().is_ok_and(|ip: Ipv4Addr| u32::from(ip) & mask == low & mask)
    };
    if let Some(control) =
        plan.ranks.iter().filter_map(|rank| rank.control.as_deref()).find(|text| inside(text))
    {
        return Err(format!(
            "{network}/{prefix} would take in the control address {control} as well"
        ));
    }
    Ok(format!("{network}/{prefix}"))
}
