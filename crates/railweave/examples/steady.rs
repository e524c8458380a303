//! One rank of a group under steady load, for fault drills: all-reduces one after the other, each checked, and a line of
//! JSON for whatever happens. After a verdict it forms the group again, as a server does.
//!
//! `steady FILE HOST TOKEN SECONDS [KEY=VALUE …]`: the cluster file, this host's name in it, the shared secret, how long,
//! and settings of `railweave serve`; besides these `bytes` (of a vector, 65536) and `pause_ms` (between two, 0).
//!
//! Lines: `{"event": "formed" | "rails" | "steps" | "verdict" | "failed" | "done", "at_s": …, …}`. Times count from the
//! start of the process; `steps` comes once a second.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fabric::auth::Token;
use fabric::verbs::VerbsSettings;
use fabric::{EndpointSettings, Reduction, Sizes, Waiting};
use group::collective::{CollectiveError, ScheduleTable};
use group::patience::{Patience, PatienceKey, PatienceValues};
use group::{Group, Member, MemberOptions, Telemetry, TransportChoice};
use railweave::placement::Placement;
use railweave::settings::{KEYS, Settings, Transport};
use serde_json::{Value, json};

/// How long after a failed attempt the group is formed again.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Least payload of a region, in bytes.
const HEAP_BYTES: u64 = 1 << 20;

struct Worker {
    began: Instant,
    until: Instant,
    rank: usize,
    ranks: usize,
    values: Vec<f32>,
    pause: Duration,
    steps: u64,
    told: Instant,
    rails: String,
}

impl Worker {
    fn say(&self, event: &str, more: Value) {
        let mut line = json!({"event": event, "at_s": round(self.began.elapsed())});
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
        }
        println!("{line}");
    }

    /// Sums until time is over or the group fails.
    fn work(&mut self, group: &mut Group) -> Result<(), CollectiveError> {
        while Instant::now() < self.until {
            for (index, value) in self.values.iter_mut().enumerate() {
                *value = ((self.rank + 1) * (index % 7 + 1)) as f32;
            }
            group.all_reduce(Reduction::Sum, &mut self.values)?;
            let factor = self.ranks * (self.ranks + 1) / 2;
            let wrong = self
                .values
                .iter()
                .enumerate()
                .find(|(index, got)| **got != (factor * (index % 7 + 1)) as f32);
            if let Some((index, got)) = wrong {
                self.say("wrong", json!({"index": index, "got": got}));
            }
            self.steps += 1;
            if self.told.elapsed() >= Duration::from_secs(1) {
                self.told = Instant::now();
                self.say("steps", json!({"steps": self.steps, "epoch": group.epoch()}));
                self.tell_rails(group);
            }
            thread::sleep(self.pause);
        }
        // All end together, or the last ones would take the others for dead.
        group.barrier()
    }

    /// Which rails work, if that has changed.
    fn tell_rails(&mut self, group: &Group) {
        let fabric = group.fabric();
        let topology = fabric.topology();
        let mut peers = Vec::new();
        for peer in topology.linked(self.rank) {
            for rail in topology.link_rails(self.rank, peer) {
                let fault = fabric.look_at_endpoint(|endpoint| {
                    endpoint.rail_fault(peer, rail).map(|fault| format!("{fault:?}"))
                });
                let kind =
                    if topology.are_neighbours(self.rank, peer) { "direct" } else { "forwarded" };
                peers.push(json!({"peer": peer, "rail": rail, "kind": kind, "fault": fault}));
            }
        }
        let relayed: Vec<_> = (0..self.ranks)
            .filter(|peer| *peer != self.rank)
            .filter(|peer| topology.lanes(self.rank, *peer).iter().any(|lane| !lane.is_direct()))
            .collect();
        let state = json!({"rails": peers, "relayed_to": relayed});
        let text = state.to_string();
        if text != self.rails {
            self.rails = text;
            self.say("rails", state);
        }
    }
}

fn round(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

fn resolve(text: &str) -> Result<SocketAddr, Box<dyn Error>> {
    text.to_socket_addrs()?.next().ok_or_else(|| format!("{text} has no address").into())
}

/// The settings given as `KEY=VALUE`, and the worker's own.
fn settings(words: &[String]) -> Result<(Settings, BTreeMap<String, u64>), Box<dyn Error>> {
    let mut settings = Settings::default();
    let mut own = BTreeMap::from([("bytes".to_owned(), 65_536), ("pause_ms".to_owned(), 0)]);
    for word in words {
        let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} sets nothing"))?;
        if let Some(own) = own.get_mut(name) {
            *own = value.parse()?;
            continue;
        }
        let key =
            KEYS.iter().find(|key| key.name == name).ok_or_else(|| format!("no key {name}"))?;
        key.parse(&mut settings, value)?;
    }
    Ok((settings, own))
}

fn options(
    placement: &Placement,
    settings: &Settings,
    token: &str,
    bytes: u64,
) -> Result<MemberOptions, Box<dyn Error>> {
    let master =
        if settings.master.is_empty() { placement.master()? } else { settings.master.clone() };
    let address: IpAddr = placement.control().ok_or("this host has no control address")?.parse()?;
    let byte = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    let mut waiting = Waiting::for_host(1, 1);
    // Emulated processors are shared by all hosts: a spinning rank takes its peers' time.
    waiting.spin = Duration::ZERO;
    Ok(MemberOptions {
        rank: placement.rank(),
        size: placement.ranks(),
        master: resolve(&master)?,
        token: Token::new(token)?,
        host_name: placement.host().to_owned(),
        // Each host is one of its own, also where several are one machine.
        host_id: placement.host().to_owned(),
        address,
        data_addresses: placement.data_addresses()?,
        topology: placement.topology()?,
        forward_required: placement.plan().forward == cluster::file::Forward::Required,
        forward_witness: None,
        no_rdma: None,
        verbs: VerbsSettings {
            timeout: byte(settings.verbs.timeout),
            retry_count: byte(settings.verbs.retry_count),
            traffic_class: byte(settings.verbs.traffic_class),
            hop_limit: byte(settings.verbs.hop_limit),
            stall_limit: settings.verbs.stall,
            ..VerbsSettings::default()
        },
        cable_names: placement.cable_names(),
        transport: match settings.transport {
            Transport::Tcp => TransportChoice::Only(fabric::Transport::Tcp),
            _ => TransportChoice::Only(fabric::Transport::Verbs),
        },
        sizes: Sizes {
            slot_bytes: settings.fabric.slot_bytes.0,
            heap_bytes: HEAP_BYTES.max(2 * bytes),
            relay_chunk_bytes: settings.fabric.relay_chunk_bytes.0,
        },
        endpoint: EndpointSettings::default(),
        crc: settings.fabric.crc,
        waiting,
        table: ScheduleTable::for_ranks(placement.ranks()),
        patience: Arc::new(Patience::new(patience(settings))),
        config: BTreeMap::from([("cluster.plan".to_owned(), placement.digest().to_owned())]),
    })
}

fn patience(settings: &Settings) -> PatienceValues {
    let set = &settings.patience;
    PatienceValues::default()
        .with(PatienceKey::Start, set.start)
        .with(PatienceKey::Compute, set.compute)
        .with(PatienceKey::Wire, set.wire)
        .with(PatienceKey::Relay, set.relay)
        .with(PatienceKey::Silent, set.silent)
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [file, host, token, seconds, words @ ..] = arguments else {
        return Err("usage: steady FILE HOST TOKEN SECONDS [KEY=VALUE …]".into());
    };
    let (settings, own) = settings(words)?;
    let placement = Placement::read(Path::new(file), host, None)?;
    let bytes = own.get("bytes").copied().unwrap_or_default();
    let options = options(&placement, &settings, token, bytes)?;
    let began = Instant::now();
    let mut worker = Worker {
        began,
        until: began + Duration::from_secs_f64(seconds.parse()?),
        rank: options.rank,
        ranks: options.size,
        values: vec![0.0; bytes as usize / size_of::<f32>()],
        pause: Duration::from_millis(own.get("pause_ms").copied().unwrap_or_default()),
        steps: 0,
        told: began,
        rails: String::new(),
    };
    let mut member = Member::new(options, Telemetry::default(), |_| {})?;
    while Instant::now() < worker.until {
        let mut group = match member.form() {
            Ok(group) => group,
            Err(error) => {
                worker.say("failed", json!({"why": chain(&error), "final": error.is_final()}));
                if error.is_final() {
                    return Err(error.into());
                }
                thread::sleep(AGAIN_AFTER);
                continue;
            }
        };
        worker.say(
            "formed",
            json!({"epoch": group.epoch(), "transport": group.carrier().transport.to_string()}),
        );
        worker.tell_rails(&group);
        match worker.work(&mut group) {
            Ok(()) => break,
            Err(CollectiveError::Stopped(verdict)) => worker.say(
                "verdict",
                json!({
                    "text": verdict.to_string(),
                    "cause": serde_json::to_value(&verdict.cause)?,
                    "rank": verdict.rank,
                    "peer": verdict.peer,
                    "lasted_s": verdict.seconds(),
                    "evidence": verdict.evidence,
                    "next_step": verdict.next_step,
                    "epoch": verdict.epoch,
                    "steps": worker.steps,
                }),
            ),
            Err(error) => worker.say("failed", json!({"why": chain(&error), "final": false})),
        }
    }
    worker.say("done", json!({"steps": worker.steps}));
    Ok(())
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steady: {}", chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
