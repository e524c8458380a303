//! Groups of threads that meet, work, fail and meet again, over real transports.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use fabric::auth::Token;
use fabric::verbs::VerbsSettings;
use fabric::{
    DataAddresses, EndpointSettings, Reduction, Shape, Sizes, Topology, Transport, Waiting,
};
use group::collective::{CollectiveError, ScheduleTable};
use group::control::CableNames;
use group::patience::{Patience, PatienceKey, PatienceValues};
use group::verdict::{Cause, Verdict};
use group::{FormError, Group, Member, MemberOptions, Telemetry, TransportChoice};

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn member(rank: usize, size: usize, master: SocketAddr, transport: Transport) -> MemberOptions {
    let patience = PatienceValues::default()
        .with(PatienceKey::Start, Duration::from_secs(20))
        .with(PatienceKey::Compute, Duration::from_secs(1))
        .with(PatienceKey::Wire, Duration::from_secs(1));
    MemberOptions {
        rank,
        size,
        master,
        token: Token::new(b"a secret of sufficient length".to_vec()).unwrap(),
        host_name: format!("host-{rank}"),
        host_id: "one machine".to_owned(),
        address: Ipv4Addr::LOCALHOST.into(),
        data_addresses: DataAddresses::one(Ipv4Addr::LOCALHOST.into()),
        topology: Topology::new(Shape::Ring, size, 2).unwrap(),
        forward_required: false,
        forward_witness: None,
        no_rdma: None,
        verbs: VerbsSettings::default(),
        cable_names: CableNames::new(),
        transport: TransportChoice::Only(transport),
        sizes: Sizes { slot_bytes: 16 << 10, heap_bytes: 1 << 20, relay_chunk_bytes: 4 << 10 },
        endpoint: EndpointSettings::default(),
        crc: true,
        waiting: Waiting::for_host(size, 2),
        table: ScheduleTable::default(),
        patience: Arc::new(Patience::new(patience)),
        config: BTreeMap::new(),
    }
}

/// Runs a member on each of `size` threads.
fn with_members<T: Send>(
    size: usize,
    transport: Transport,
    change: impl Fn(usize, &mut MemberOptions) + Sync,
    work: impl Fn(usize, Member) -> T + Sync,
) -> Vec<T> {
    let master = free_address();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (change, work) = (&change, &work);
                scope.spawn(move || {
                    let mut options = member(rank, size, master, transport);
                    change(rank, &mut options);
                    let quiet = |_: &Arc<Verdict>| {};
                    work(rank, Member::new(options, Telemetry::default(), quiet).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn sum(group: &mut Group) -> Result<f32, CollectiveError> {
    let mut values = vec![group.rank() as f32 + 1.0; 1000];
    group.all_reduce(Reduction::Sum, &mut values)?;
    Ok(values[999])
}

fn verdict_of(result: Result<f32, CollectiveError>) -> Arc<Verdict> {
    match result {
        Err(CollectiveError::Stopped(verdict)) => verdict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_meet_and_work() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let sums = with_members(
            4,
            transport,
            |_, _| (),
            |_, mut member| {
                let mut group = member.form().unwrap();
                assert_eq!((group.epoch(), group.size()), (1, 4));
                let sum = sum(&mut group).unwrap();
                group.barrier().unwrap();
                sum
            },
        );
        assert_eq!(sums, [10.0; 4]);
    }
}

#[test]
fn a_pair_without_rails_is_named_and_then_relayed() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let results = with_members(
            4,
            transport,
            |_, _| (),
            |rank, mut member| {
                let cut = member.cut_rails();
                let mut group = member.form().unwrap();
                sum(&mut group).unwrap();
                if rank == 0 {
                    for rail in 0..2 {
                        cut.cut(1, rail);
                        group.fabric().with_endpoint(|endpoint| endpoint.cut(1, rail));
                    }
                }
                let started = Instant::now();
                let verdict = loop {
                    match sum(&mut group) {
                        Ok(sum) => assert_eq!(sum, 10.0),
                        failed => break verdict_of(failed),
                    }
                };
                assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
                drop(group);
                let mut group = member.form().unwrap();
                assert_eq!(group.epoch(), 2);
                assert!(!group.fabric().topology().are_neighbours(0, 1));
                let sum = sum(&mut group).unwrap();
                group.barrier().unwrap();
                (verdict, sum)
            },
        );
        for (verdict, sum) in &results {
            assert_eq!(*sum, 10.0);
            assert_eq!(verdict, &results[0].0, "one verdict for all");
            assert!(
                matches!(
                    verdict.cause,
                    Cause::PathBroken { from: 0, to: 1 } | Cause::PathBroken { from: 1, to: 0 }
                ),
                "{verdict}"
            );
        }
    }
}

#[test]
fn one_rail_less_stops_nobody() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let barrier = Barrier::new(4);
        with_members(
            4,
            transport,
            |_, _| (),
            |rank, mut member| {
                let mut group = member.form().unwrap();
                for round in 0..200 {
                    if rank == 2 && round == 50 {
                        group.fabric().with_endpoint(|endpoint| endpoint.cut(3, 0));
                    }
                    assert_eq!(sum(&mut group).unwrap(), 10.0);
                }
                barrier.wait();
                assert!(group.verdict().is_none());
                let working = group.fabric().with_endpoint(|endpoint| endpoint.working_rails(3));
                assert_eq!(
                    working,
                    match rank {
                        2 => 1,
                        0 => 2,
                        _ => 0,
                    }
                );
                barrier.wait();
            },
        );
    }
}

#[test]
fn a_rank_that_computes_too_long_is_named_by_all() {
    let verdicts = with_members(
        3,
        Transport::Shm,
        |_, _| (),
        |rank, mut member| {
            let mut group = member.form().unwrap();
            sum(&mut group).unwrap();
            if rank == 1 {
                std::thread::sleep(Duration::from_millis(2500));
            }
            let started = Instant::now();
            let verdict = verdict_of(sum(&mut group));
            assert!(started.elapsed() < Duration::from_millis(2300), "{:?}", started.elapsed());
            drop(group);
            assert_eq!(sum(&mut member.form().unwrap()).unwrap(), 6.0);
            verdict
        },
    );
    for verdict in &verdicts {
        assert_eq!(verdict, &verdicts[0]);
        assert_eq!(verdict.rank, Some(1), "{verdict}");
        assert!(matches!(verdict.cause, Cause::PeerStalled { .. }), "{verdict}");
    }
}

#[test]
fn different_settings_fail_on_every_rank_with_key_and_values() {
    let errors = with_members(
        3,
        Transport::Shm,
        |rank, options| {
            let value = if rank == 2 { "tcp" } else { "shm" };
            options.config.insert("wire".to_owned(), value.to_owned());
        },
        |_, mut member| {
            let started = Instant::now();
            let error = member.form().unwrap_err();
            assert!(started.elapsed() < Duration::from_secs(5));
            assert!(error.is_final());
            error
        },
    );
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, FormError::Join(_)));
        for part in ["wire", "\"shm\"", "rank 2", "\"tcp\""] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Whichever of the two that agree came first.
        assert!(text.contains("rank 0 has") || text.contains("rank 1 has"), "{text}");
    }
}
