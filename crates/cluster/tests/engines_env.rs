//! The environment of other engines, from one plan.

#![allow(clippy::unwrap_used, reason = "a fixture that fails is a test that fails")]

use std::collections::BTreeMap;

use cluster::engines::{Engine, EngineError, describe, environment};
use cluster::file::{ClusterFile, Forward, TagKind};
use cluster::plan::{Plan, PlanOptions};

fn ring4() -> ClusterFile {
    ClusterFile::parse(include_str!("../fixtures/gb10-ring4/cluster.toml")).unwrap()
}

fn plan(forward: Forward) -> Plan {
    Plan::of(&ring4(), &PlanOptions { forward: Some(forward), ..PlanOptions::default() }).unwrap()
}

fn variables(plan: &Plan, engine: Engine, rank: usize) -> BTreeMap<String, String> {
    environment(plan, engine, rank).unwrap().into_iter().collect()
}

#[test]
fn b12x_maps_are_the_same_on_all_ranks_and_pair_up() {
    let plan = plan(Forward::Required);
    let maps = "1=0/2,2=0/3,3=1/3;0=1/3,2=0/2,3=0/3;0=1/2,1=1/3,3=0/2;0=0/2,1=1/2,2=1/3";
    for rank in 0..4 {
        let found = variables(&plan, Engine::B12x, rank);
        assert_eq!(found["B12X_ROCE_PEER_HCA_MAPS"], maps);
        assert_eq!(found["B12X_ROCE_HCA"], "rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1");
        assert!(!found.contains_key("B12X_ROCE_GID_INDEX"));
    }
}

#[test]
fn nccl_keeps_to_the_ring_and_pins_no_index() {
    let plan = plan(Forward::Auto);
    let found = variables(&plan, Engine::Nccl, 0);
    assert_eq!(found["NCCL_IB_HCA"], "=rocep1s0f0:1,rocep1s0f1:1,roceP2p1s0f0:1,roceP2p1s0f1:1");
    assert_eq!(found["NCCL_IB_ADDR_RANGE"], "10.10.0.0/21");
    assert_eq!(found["NCCL_ALGO"], "Ring");
    assert_eq!(found["NCCL_IB_MERGE_NICS"], "0");
    assert!(!found.contains_key("NCCL_IB_GID_INDEX") && !found.contains_key("NCCL_SOCKET_IFNAME"));
    let described = describe(&plan, Engine::Nccl, 0, Some("it's")).unwrap();
    assert!(
        described.script().contains("export NCCL_SOCKET_IFNAME='=it'\\''s'\n"),
        "{}",
        described.script()
    );
}

#[test]
fn a_range_that_takes_in_a_control_address_is_not_set() {
    let mut file = ring4();
    file.hosts[2].control = Some("10.10.5.200".to_owned());
    let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
    let described = describe(&plan, Engine::Nccl, 0, None).unwrap();
    assert!(!described.variables.iter().any(|variable| variable.name == "NCCL_IB_ADDR_RANGE"));
    assert!(
        described.notes.iter().any(|note| note.contains("10.10.5.200")),
        "{:?}",
        described.notes
    );
}

#[test]
fn hosts_out_of_the_order_of_the_cables_are_refused_by_name() {
    let mut file = ring4();
    file.hosts.swap(1, 2);
    let plan = Plan::of(&file, &PlanOptions::default()).unwrap();
    let error = environment(&plan, Engine::Nccl, 0).unwrap_err();
    assert_eq!(
        error,
        EngineError::Order {
            engine: Engine::Nccl,
            a: 0,
            host_a: "spark0".to_owned(),
            b: 1,
            host_b: "spark2".to_owned(),
        }
    );
    assert!(matches!(environment(&plan, Engine::B12x, 0), Err(EngineError::Order { .. })));
    assert!(matches!(environment(&plan, Engine::Sparknet, 0), Err(EngineError::Order { .. })));
}

#[test]
fn relays_suit_sparknet_and_no_other() {
    let plan = plan(Forward::Off);
    let found = variables(&plan, Engine::Sparknet, 1);
    assert_eq!(found["SPARKNET_ROCE_TOPOLOGY"], "ring4");
    let peers: BTreeMap<String, Vec<String>> =
        serde_json::from_str(&found["SPARKNET_ROCE_PEER_HCAS"]).unwrap();
    assert_eq!(peers.keys().collect::<Vec<_>>(), ["0", "2"]);
    assert_eq!(peers["0"], ["rocep1s0f1", "roceP2p1s0f1"]);
    for engine in [Engine::B12x, Engine::Sircl] {
        assert!(
            matches!(environment(&plan, engine, 0), Err(EngineError::Relayed { .. })),
            "{engine}"
        );
    }
}

#[test]
fn sircl_names_devices_and_needs_tags_by_destination() {
    let found = variables(&plan(Forward::Required), Engine::Sircl, 0);
    let routes = "1=rocep1s0f0/roceP2p1s0f0,2=rocep1s0f0/roceP2p1s0f1,3=rocep1s0f1/roceP2p1s0f1";
    assert_eq!(found["SIRCL_PEER_ROUTES"], routes);
    let options = PlanOptions {
        forward: Some(Forward::Required),
        tag: Some(TagKind::SourcePort),
        ..PlanOptions::default()
    };
    let by_port = Plan::of(&ring4(), &options).unwrap();
    assert_eq!(
        environment(&by_port, Engine::Sircl, 0),
        Err(EngineError::Tag { engine: Engine::Sircl })
    );
}

#[test]
fn what_cannot_be_is_told() {
    let mut file = ring4();
    file.hosts[0].ports[0].functions[1].rdma = None;
    let bare = Plan::of(&file, &PlanOptions::default()).unwrap();
    for engine in Engine::ALL {
        let error = environment(&bare, engine, 0).unwrap_err().to_string();
        assert!(error.contains("spark0.p0.1") || error.contains("relayed"), "{engine}: {error}");
    }
    assert_eq!(environment(&bare, Engine::Nccl, 4), Err(EngineError::NoRank { rank: 4, last: 3 }));
    assert!(
        "ucx".parse::<Engine>().unwrap_err().to_string().contains("nccl, b12x, sircl or sparknet")
    );
}
