//! Engines that write into peers' memory themselves and are told the device of each path.

use std::collections::BTreeMap;

use super::{
    Engine, EngineError, Environment, host, joined, outs, paths_of, rdma, relayed, used_functions,
};
use crate::file::TagKind;
use crate::plan::{FunctionRef, PathKind, PathPlan, Plan};

/// The most devices one rank of these engines uses: two ports of two functions.
const MOST_DEVICES: usize = 4;

fn few_devices(plan: &Plan, engine: Engine, rank: usize) -> Result<Vec<&FunctionRef>, EngineError> {
    let functions = used_functions(plan, rank);
    if functions.len() > MOST_DEVICES {
        return Err(EngineError::Devices {
            engine,
            host: host(plan, rank),
            have: functions.len(),
            most: MOST_DEVICES,
        });
    }
    Ok(functions)
}

fn rails_error(plan: &Plan, engine: Engine, path: &PathPlan, need: &'static str) -> EngineError {
    EngineError::Rails {
        engine,
        need,
        from: host(plan, path.from),
        to: host(plan, path.to),
        have: path.rails.len(),
    }
}

/// RoCEnante: devices by their place in a list, two for each peer, one map for each rank.
pub(super) fn b12x(
    plan: &Plan,
    rank: usize,
    environment: &mut Environment,
) -> Result<(), EngineError> {
    let engine = Engine::B12x;
    let ranks = plan.ranks.len();
    if ranks > 16 {
        return Err(EngineError::Ranks { engine, need: "serves at most 16 ranks", have: ranks });
    }
    for path in &plan.paths {
        relayed(plan, engine, path)?;
        if path.kind != PathKind::Forwarded {
            continue;
        }
        if ranks != 4 {
            return Err(EngineError::Ranks {
                engine,
                need: "reaches distant ranks through NICs on a ring of exactly 4 only",
                have: ranks,
            });
        }
        // It sets the tag's flow label for the rank two further on and for no other.
        if (path.to + 4 - path.from) % 4 != 2 {
            return Err(EngineError::Order {
                engine,
                a: path.from,
                host_a: host(plan, path.from),
                b: path.to,
                host_b: host(plan, path.to),
            });
        }
    }
    let mut maps = Vec::new();
    for from in 0..ranks {
        let functions = few_devices(plan, engine, from)?;
        let place = |function: &FunctionRef| {
            functions.iter().position(|known| known.device_number == function.device_number)
        };
        let mut entries = Vec::new();
        for path in paths_of(plan, from) {
            let places: Vec<String> =
                outs(path).filter_map(place).map(|place| place.to_string()).collect();
            let distinct = places.first() != places.get(1);
            if places.len() != 2 || !distinct {
                return Err(rails_error(
                    plan,
                    engine,
                    path,
                    "needs two rails over two devices for each peer",
                ));
            }
            entries.push(format!("{}={}", path.to, places.join("/")));
        }
        maps.push(entries.join(","));
    }
    let mut devices = Vec::new();
    for function in used_functions(plan, rank) {
        devices.push(rdma(engine, function)?);
    }
    environment.set(
        "B12X_ROCE_HCA",
        devices.join(","),
        "the RDMA devices of the plan's rails of this rank; the maps count them from 0",
    );
    environment.set(
        "B12X_ROCE_PEER_HCA_MAPS",
        maps.join(";"),
        "one map for each rank: peer=device/device, in the order of the plan's rails, which both ends share",
    );
    environment.note(
        "B12X_ROCE_GID_INDEX is one number for all devices of a rank (3 if unset), so it cannot be found by content; \
         `railweave check` tells the index of each device",
    );
    environment.note("two paths for each peer need a build that reads B12X_ROCE_PEER_HCA_MAPS; b12x itself has none");
    Ok(())
}

/// Ring sessions of sparkring: devices by name, as many for each peer.
pub(super) fn sircl(
    plan: &Plan,
    rank: usize,
    environment: &mut Environment,
) -> Result<(), EngineError> {
    let engine = Engine::Sircl;
    let ranks = plan.ranks.len();
    if ranks > 8 {
        return Err(EngineError::Ranks { engine, need: "serves at most 8 ranks", have: ranks });
    }
    let mut lanes = 2;
    for path in &plan.paths {
        relayed(plan, engine, path)?;
        if path.kind == PathKind::Forwarded && plan.tag != TagKind::Destination {
            return Err(EngineError::Tag { engine });
        }
        if path.rails.is_empty() {
            return Err(rails_error(plan, engine, path, "needs one or two rails for each peer"));
        }
        if let Some(rail) = path.rails.iter().find(|rail| rail.hops.len() > 5) {
            return Err(EngineError::Shape {
                engine,
                need: format!(
                    "passes through at most 3 hosts, and the path from {} to {} passes through {}",
                    host(plan, path.from),
                    host(plan, path.to),
                    rail.hops.len().saturating_sub(2)
                ),
            });
        }
        lanes = lanes.min(path.rails.len());
    }
    few_devices(plan, engine, rank)?;
    let mut entries = Vec::new();
    let mut unused = 0;
    for path in paths_of(plan, rank) {
        let mut devices: Vec<&str> = Vec::new();
        for function in outs(path).take(lanes) {
            let device = rdma(engine, function)?;
            if devices.contains(&device) {
                return Err(rails_error(
                    plan,
                    engine,
                    path,
                    "needs a device of its own for each rail to a peer",
                ));
            }
            devices.push(device);
        }
        unused += path.rails.len().saturating_sub(lanes);
        entries.push(format!("{}={}", path.to, devices.join("/")));
    }
    environment.set(
        "SIRCL_PEER_ROUTES",
        entries.join(","),
        "the device of each rail to each rank, in the order of the plan's rails, which both ends share",
    );
    if unused > 0 {
        environment.note(format!(
            "{unused} rails of this rank are left out: every peer must have the same number of rails, here {lanes}"
        ));
    }
    environment.note(
        "SIRCL_LAYOUT is not set: with it, sparkring derives rails of its own and refuses others; without it, nothing \
         is compared with a layout",
    );
    environment
        .note("SIRCL_GID_INDEX is not set on purpose: it finds the GID of each device by content");
    Ok(())
}

/// One-shot collectives of dgx-spark-networking: devices by name as JSON, and a word for the cabling.
pub(super) fn sparknet(
    plan: &Plan,
    rank: usize,
    environment: &mut Environment,
) -> Result<(), EngineError> {
    let engine = Engine::Sparknet;
    let ranks = plan.ranks.len();
    if ranks > 16 {
        return Err(EngineError::Ranks { engine, need: "serves at most 16 ranks", have: ranks });
    }
    let functions = few_devices(plan, engine, rank)?;
    let distant = |path: &&PathPlan| path.kind != PathKind::Direct;
    let topology = match plan.paths.iter().find(distant) {
        None => "direct",
        Some(path) => {
            if ranks != 4 {
                return Err(EngineError::Ranks {
                    engine,
                    need: "reaches distant ranks on a ring of exactly 4 only",
                    have: ranks,
                });
            }
            for a in 0..ranks {
                let b = (a + 1) % ranks;
                if !joined(plan, a, b) {
                    return Err(EngineError::Order {
                        engine,
                        a,
                        host_a: host(plan, a),
                        b,
                        host_b: host(plan, b),
                    });
                }
            }
            let kind = path.kind;
            if plan.paths.iter().any(|path| path.kind != PathKind::Direct && path.kind != kind) {
                return Err(EngineError::Shape {
                    engine,
                    need: "either relays all distant pairs or has NICs forward all of them; this plan does both: \
                           use `--forward off` or `--forward required`"
                        .to_owned(),
                });
            }
            if kind == PathKind::Forwarded { "mesh4" } else { "ring4" }
        }
    };
    environment.set(
        "SPARKNET_ROCE_TOPOLOGY",
        topology,
        match topology {
            "direct" => "every rank is a neighbour of every other",
            "mesh4" => "NICs of the hosts between pass packets on to the distant rank",
            _ => "a rank between relays to the distant rank",
        },
    );
    if plan.cables.iter().any(|cable| cable.switch.is_some()) {
        let mut devices = Vec::new();
        for function in functions {
            devices.push(rdma(engine, function)?);
        }
        environment.set(
            "SPARKNET_ROCE_HCA",
            devices.join(","),
            "behind a switch the same devices reach every rank",
        );
    } else {
        environment.set(
            "SPARKNET_ROCE_PEER_HCAS",
            peers(plan, rank, topology == "ring4")?,
            "the device of each rail to each rank, in the order of the plan's rails, which both ends share",
        );
    }
    environment.note(
        "SPARKNET_ROCE_GID_INDEX is one number for all devices of a rank (that of NCCL_IB_GID_INDEX, or 3, if unset), \
         so it cannot be found by content; `railweave check` tells the index of each device",
    );
    Ok(())
}

fn peers(plan: &Plan, rank: usize, neighbours_only: bool) -> Result<String, EngineError> {
    let mut peers: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    let mut lanes = None;
    for path in paths_of(plan, rank) {
        if neighbours_only && path.kind != PathKind::Direct {
            continue;
        }
        let need = "needs one or two rails for each peer, as many for all";
        if !(1..=2).contains(&path.rails.len())
            || *lanes.get_or_insert(path.rails.len()) != path.rails.len()
        {
            return Err(rails_error(plan, Engine::Sparknet, path, need));
        }
        for function in outs(path) {
            peers.entry(path.to).or_default().push(rdma(Engine::Sparknet, function)?);
        }
    }
    // Keys in the order of ranks; names of devices hold no characters that JSON would escape into anything long.
    let entries: Vec<String> = peers
        .iter()
        .map(|(peer, devices)| {
            let devices: Vec<String> =
                devices.iter().map(|device| serde_json::Value::from(*device).to_string()).collect();
            format!("\"{peer}\":[{}]", devices.join(","))
        })
        .collect();
    Ok(format!("{{{}}}", entries.join(",")))
}
