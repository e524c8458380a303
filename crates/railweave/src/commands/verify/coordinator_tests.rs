use std::io::{BufReader, PipeReader, PipeWriter, pipe};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::commands::verify::agent::serve;
use crate::commands::verify::steps::items;
use crate::commands::verify::testing::{plan, ring4};
use crate::commands::verify::traffic::{self, Deadline};
use crate::commands::verify::wire::{AGENT_SCHEMA, NetdevCount, Step};

const BYTES: u64 = 300_000;
const LIMIT: Duration = Duration::from_secs(3);
/// Counters that move by more than is sent at every look, as if all went well.
static TICKS: AtomicU64 = AtomicU64::new(0);

fn random(room: &mut [u8]) -> std::io::Result<()> {
    let ticks = TICKS.fetch_add(1, Ordering::Relaxed) as u8;
    room.iter_mut()
        .enumerate()
        .for_each(|(index, byte)| *byte = ticks.wrapping_mul(31) ^ index as u8);
    Ok(())
}

fn moving(host: usize, per_look: u64) -> Vec<NetdevCount> {
    let value = TICKS.fetch_add(1, Ordering::Relaxed) * per_look;
    let netdev = |port: usize, function: usize| NetdevCount {
        mac: format!("02:00:00:{host:02x}:{port:02x}:{function:02x}").parse().unwrap(),
        name: format!("p{port}f{function}"),
        rx_bytes: value,
        tx_bytes: value,
        rdma_bytes: None,
    };
    (0..2).flat_map(|port| (0..2).map(move |function| netdev(port, function))).collect()
}

/// An agent at the end of two pipes, played by `play`.
fn agent(host: &str, play: impl FnOnce(PipeReader, PipeWriter) + Send + 'static) -> Agent {
    let (order_out, order_in) = pipe().unwrap();
    let (said_out, said_in) = pipe().unwrap();
    thread::spawn(move || play(order_out, said_in));
    let mut agent = Agent::over(host, order_in, said_out).unwrap();
    agent.greet(LIMIT).unwrap();
    agent
}

fn real(host: usize, per_look: u64) -> Seat {
    Ok(agent(&format!("h{host}"), move |orders, said| {
        serve(BufReader::new(orders), said, move || moving(host, per_look)).unwrap();
    }))
}

fn seats(hosts: usize) -> BTreeMap<usize, Seat> {
    (0..hosts).map(|host| (host, real(host, BYTES * 2))).collect()
}

fn pair() -> Plan {
    plan(2, &[("h0.p0", "h1.p0")], "off")
}

/// The first rail of the plan, proven by these agents.
fn first(plan: &Plan, agents: BTreeMap<usize, Seat>) -> Outcome {
    Coordinator::new(plan, agents, BYTES, LIMIT, random).prove(items(plan, &[])[0])
}

fn failed(outcome: Outcome) -> (String, String, String, String) {
    match outcome {
        Outcome::Failed { who, r#where, why, next } => (who, r#where, why, next),
        other => panic!("{other:?}"),
    }
}

#[test]
fn direct_and_relayed_rails_are_proven_both_ways() {
    let plan = ring4("off");
    let mut coordinator = Coordinator::new(&plan, seats(4), BYTES, LIMIT, random);
    let items = items(&plan, &[]);
    for item in &items {
        let outcome = coordinator.prove(*item);
        let Outcome::Proven { there, back, counters } = outcome else {
            panic!("{item:?}: {outcome:?}")
        };
        assert_eq!((there.bytes, back.bytes), (BYTES, BYTES));
        assert_eq!(counters.len(), item.rail.crossings.len());
    }
    assert!(items.iter().any(|item| item.rail.hops.len() == 3));
    assert!(coordinator.boots().values().all(|boot| matches!(boot, Ok(Some(_)))));
}

#[test]
fn bytes_that_arrive_without_moving_the_counters_prove_nothing() {
    let plan = pair();
    let agents = [(0, real(0, BYTES * 2)), (1, real(1, 1))].into();
    let (who, place, why, next) = failed(first(&plan, agents));
    assert_eq!((who.as_str(), place.as_str()), ("h0", "h0.p0–h1.p0"));
    assert!(why.contains("did not cross cable h0.p0–h1.p0") && why.contains("h1.p0.0"), "{why}");
    assert!(next.contains("ip route get 127.77.0.2 from 127.77.0.1"), "{next}");
}

/// A far end that follows the orders but for what `echo` does with the connection.
fn bad_far_end(echo: impl Fn(TcpStream, &Terms) + Send + 'static) -> Seat {
    Ok(agent("h1", move |orders, mut said| {
        use std::io::{BufRead as _, Write as _};
        let mut say = |what: &Said| {
            let line = serde_json::to_string(what).unwrap() + "\n";
            let _ = said.write_all(line.as_bytes());
        };
        say(&Said::Here {
            schema: AGENT_SCHEMA.to_owned(),
            version: "0".to_owned(),
            boot_id: None,
        });
        for line in BufReader::new(orders).lines() {
            match serde_json::from_str(&line.unwrap()).unwrap() {
                Order::Counters { id } => {
                    say(&Said::Counters { id, netdevs: moving(1, BYTES * 2) });
                }
                Order::Listen { id, address, terms } => {
                    let (listener, port) = traffic::listen(address).unwrap();
                    say(&Said::Listening { id, port });
                    if let Ok(stream) = traffic::accept(&listener, &terms, Deadline::after(LIMIT)) {
                        echo(stream, &terms);
                    }
                    say(&Said::Done { id, bytes: BYTES, seconds: 1.0 });
                }
                other => panic!("{other:?}"),
            }
        }
    }))
}

#[test]
fn a_flipped_byte_is_found_at_its_offset() {
    use std::io::{Read as _, Write as _};
    let plan = pair();
    let flip = |mut stream: TcpStream, terms: &Terms| {
        let mut bytes = vec![0; terms.bytes as usize];
        // In pieces, since the near end waits for what comes back.
        for (index, piece) in bytes.chunks_mut(4096).enumerate() {
            if stream.read_exact(piece).is_err() {
                return;
            }
            if (index * 4096..index * 4096 + piece.len()).contains(&200_001) {
                piece[200_001 - index * 4096] ^= 0x10;
            }
            let _ = stream.write_all(piece);
        }
    };
    let agents = [(0, real(0, BYTES * 2)), (1, bad_far_end(flip))].into();
    let (who, place, why, next) = failed(first(&plan, agents));
    assert_eq!((who.as_str(), place.as_str()), ("h0", "h0.p0–h1.p0"));
    assert!(why.starts_with("byte 200001 arrived as 0x"), "{why}");
    assert!(next.contains("swap h0.p0–h1.p0"), "{next}");
}

#[test]
fn the_far_end_finds_a_flipped_byte_too() {
    use std::io::Write as _;
    let terms = Terms {
        call: Secret([1; 16]),
        answer: Secret([2; 16]),
        seed: 7,
        bytes: 200_000,
        limit_ms: 3000,
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    let mut bytes = vec![0; 200_000];
    super::super::wire::Pattern(7).fill(0, &mut bytes);
    bytes[70_000] ^= 1;
    let writer = thread::spawn(move || {
        let _ = near.write_all(&bytes);
        near
    });
    let fault: Fault = traffic::echo(far, &terms, Deadline::after(LIMIT)).unwrap_err();
    assert_eq!((fault.step, fault.offset), (Step::Compare, Some(70_000)));
    drop(writer.join());
}

#[test]
fn a_far_end_that_sends_less_is_no_proof() {
    let plan = pair();
    let agents = [(0, real(0, BYTES * 2)), (1, bad_far_end(|stream, _| drop(stream)))].into();
    let (who, place, why, _) = failed(first(&plan, agents));
    assert_eq!((who.as_str(), place.as_str()), ("h0", "h0.p0–h1.p0"));
    assert!(
        why.contains("closed the connection")
            || why.contains("reset")
            || why.contains("Broken pipe"),
        "{why}"
    );
}

/// An agent of `h1` that tells its counters, and does `listen` with an order to listen, which says whether it goes on.
fn ending(
    listen: impl Fn(u64, Ipv4Addr, Terms, &mut dyn FnMut(&Said)) -> bool + Send + 'static,
) -> Seat {
    Ok(agent("h1", move |orders, mut said| {
        use std::io::{BufRead as _, Write as _};
        let mut say =
            |what: &Said| writeln!(said, "{}", serde_json::to_string(what).unwrap()).unwrap();
        say(&Said::Here {
            schema: AGENT_SCHEMA.to_owned(),
            version: "0".to_owned(),
            boot_id: None,
        });
        for line in BufReader::new(orders).lines() {
            match serde_json::from_str(&line.unwrap()).unwrap() {
                Order::Counters { id } => {
                    say(&Said::Counters { id, netdevs: moving(1, BYTES * 2) });
                }
                Order::Listen { id, address, terms } => {
                    if !listen(id, address, terms, &mut say) {
                        return;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }))
}

/// Takes the caller's call and a part of what it sends.
fn take_part(id: u64, address: Ipv4Addr, terms: &Terms, say: &mut dyn FnMut(&Said)) -> TcpStream {
    use std::io::Read as _;
    let (listener, port) = traffic::listen(address).unwrap();
    say(&Said::Listening { id, port });
    let mut stream = traffic::accept(&listener, terms, Deadline::after(LIMIT)).unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    stream
}

/// Proves the whole ring with this agent of `h1`, and returns why it was lost. Whatever crosses `h1` is not proven for
/// its sake, and nothing is blamed on a cable.
fn lost_of_ring(h1: Seat, limit: Duration) -> Lost {
    let plan = ring4("off");
    let mut agents = seats(4);
    agents.insert(1, h1);
    let mut coordinator = Coordinator::new(&plan, agents, BYTES, Duration::from_secs(10), random);
    let began = Instant::now();
    for item in items(&plan, &[]) {
        let over = item.rail.hops.contains(&1);
        match coordinator.prove(item) {
            Outcome::Proven { .. } => assert!(!over, "{item:?}"),
            Outcome::NotProven { r#where, why } => {
                assert!(over, "{item:?}: {why}");
                assert_eq!(r#where.as_deref(), Some("h1"), "{why}");
                assert!(why.starts_with("its agent "), "{why}");
            }
            other => panic!("{item:?}: {other:?}"),
        }
    }
    // Waited for once, not once a rail.
    assert!(began.elapsed() < limit, "{:?}", began.elapsed());
    let mut lost = coordinator.lost();
    assert_eq!(lost.keys().copied().collect::<Vec<_>>(), [1]);
    lost.remove(&1).unwrap()
}

#[test]
fn an_agent_that_ends_leaves_its_rails_not_proven() {
    let at_once = ending(|_, _, _, _| false);
    let lost = lost_of_ring(at_once, Duration::from_secs(2));
    assert_eq!(lost.what, "its agent ended");
    assert!(lost.why.starts_with("the agent on h1 ended"), "{}", lost.why);
    assert!(lost.next.contains("whether h1 is up"), "{}", lost.next);
}

#[test]
fn an_agent_that_is_killed_amid_the_bytes_is_no_fault_of_a_cable() {
    // Its connection breaks at once, and what tells that it ended comes after the others were waited for.
    let amid = ending(|id, address, terms, say| {
        drop(take_part(id, address, &terms, say));
        thread::sleep(REST_LIMIT + Duration::from_millis(300));
        false
    });
    let lost = lost_of_ring(amid, Duration::from_secs(4));
    assert_eq!(lost.what, "its agent ended");
}

#[test]
fn an_agent_that_stops_amid_the_bytes_is_found_before_the_rail_is_late() {
    let amid = ending(|id, address, terms, say| {
        let _stream = take_part(id, address, &terms, say);
        thread::sleep(Duration::from_secs(8));
        false
    });
    let lost = lost_of_ring(amid, LOOK_EVERY + LOOK_LIMIT + Duration::from_secs(2));
    assert_eq!(lost.what, "its agent does not answer");
    assert_eq!(lost.why, "the agent on h1 said nothing within 3.0 s");
}

#[test]
fn an_agent_that_says_nothing_is_late_once() {
    let mute = agent("h1", |orders, mut said| {
        use std::io::{Read as _, Write as _};
        let here =
            Said::Here { schema: AGENT_SCHEMA.to_owned(), version: "0".to_owned(), boot_id: None };
        writeln!(said, "{}", serde_json::to_string(&here).unwrap()).unwrap();
        let mut orders = orders;
        let _ = orders.read_to_end(&mut Vec::new());
    });
    let lost = lost_of_ring(Ok(mute), ANSWER_LIMIT + Duration::from_secs(2));
    assert_eq!(lost.what, "its agent does not answer");
    assert_eq!(lost.why, "the agent on h1 said nothing within 5.0 s");
}

#[test]
fn an_agent_that_cannot_begin_is_no_fault_of_a_cable() {
    let full = ending(|id, _, _, say| {
        let fault = Fault::new(Step::Begin, "no threads".to_owned(), None, false);
        say(&Said::Failed { id, fault });
        true
    });
    assert_eq!(
        first(&pair(), [(0, real(0, BYTES)), (1, full)].into()),
        Outcome::NotProven { r#where: Some("h1".to_owned()), why: "no threads".to_owned() }
    );
}

#[test]
fn another_version_is_refused() {
    let (said_out, mut said_in) = pipe().unwrap();
    let (_keep, order_in) = pipe().unwrap();
    use std::io::Write as _;
    let here = Said::Here {
        schema: "railweave-agent/0".to_owned(),
        version: "9.9".to_owned(),
        boot_id: None,
    };
    writeln!(said_in, "{}", serde_json::to_string(&here).unwrap()).unwrap();
    let mut agent = Agent::over("h1", order_in, said_out).unwrap();
    let error = agent.greet(LIMIT).unwrap_err().to_string();
    assert!(
        error.contains("railweave-agent/0") && error.contains("9.9") && error.contains("h1"),
        "{error}"
    );
}

#[test]
fn a_stray_process_can_neither_call_nor_answer() {
    use std::io::{Read as _, Write as _};
    let plan = pair();
    // It answers without the secret.
    let stray = Ok(agent("h1", |orders, mut said| {
        use std::io::BufRead as _;
        let mut say =
            |what: &Said| writeln!(said, "{}", serde_json::to_string(what).unwrap()).unwrap();
        say(&Said::Here {
            schema: AGENT_SCHEMA.to_owned(),
            version: "0".to_owned(),
            boot_id: None,
        });
        for line in BufReader::new(orders).lines() {
            match serde_json::from_str(&line.unwrap()).unwrap() {
                Order::Counters { id } => say(&Said::Counters { id, netdevs: moving(1, BYTES) }),
                Order::Listen { id, address, .. } => {
                    let listener = TcpListener::bind((address, 0)).unwrap();
                    say(&Said::Listening { id, port: listener.local_addr().unwrap().port() });
                    let mut stream = listener.accept().unwrap().0;
                    let mut hello = [0; 16];
                    stream.read_exact(&mut hello).unwrap();
                    stream.write_all(&hello).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    }));
    let (_, _, why, _) = failed(first(&plan, [(0, real(0, BYTES)), (1, stray)].into()));
    assert!(why.contains("something else answers there"), "{why}");

    // It calls without the secret, before the right one does.
    let terms =
        Terms { call: Secret([1; 16]), answer: Secret([2; 16]), seed: 7, bytes: 8, limit_ms: 3000 };
    let (listener, port) = traffic::listen(Ipv4Addr::LOCALHOST).unwrap();
    let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stranger.write_all(&[9; 16]).unwrap();
    let call = Call { from: Ipv4Addr::LOCALHOST, to: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port) };
    let deadline = Deadline::after(LIMIT);
    let own = terms.clone();
    let caller = thread::spawn(move || traffic::connect(call, &own, deadline).map(|_| ()));
    traffic::accept(&listener, &terms, deadline).unwrap();
    caller.join().unwrap().unwrap();
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    assert!(rest.is_empty(), "the stranger got {rest:?}");
}

#[test]
fn an_address_that_is_not_there_is_named_and_no_cable() {
    let gone = Some(Ipv4Addr::new(10, 99, 98, 97));
    let mut caller = pair();
    caller.paths[0].rails[0].crossings[0].out.ip = gone;
    let mut called = pair();
    called.paths[0].rails[0].crossings[0].into.ip = gone;
    for (plan, host, function, what) in [
        (caller, "h0", "h0.p0.0", "cannot call from 10.99.98.97"),
        (called, "h1", "h1.p0.0", "cannot listen at 10.99.98.97"),
    ] {
        let (who, place, why, next) = failed(first(&plan, seats(2)));
        assert_eq!((who.as_str(), place.as_str()), (host, function));
        assert!(why.contains(what) && next.contains("railweave apply"), "{why} {next}");
    }
}

#[test]
fn a_relayed_rail_names_the_cable_that_failed_before() {
    let mut plan = ring4("off");
    // Where nobody listens: the second host's port 0 leads nowhere.
    let gone = Ipv4Addr::new(10, 99, 98, 97);
    for path in &mut plan.paths {
        for crossing in path.rails.iter_mut().flat_map(|rail| &mut rail.crossings) {
            if crossing.out.label() == "h1.p0.0" {
                crossing.out.ip = Some(gone);
                crossing.into.ip = Some(gone);
            }
        }
    }
    let mut coordinator = Coordinator::new(&plan, seats(4), BYTES, LIMIT, random);
    for item in items(&plan, &[]) {
        let crosses = item.rail.crossings.iter().any(|one| one.out.label() == "h1.p0.0");
        let outcome = coordinator.prove(item);
        assert_eq!(matches!(outcome, Outcome::Failed { .. }), crosses, "{item:?}: {outcome:?}");
    }
}
