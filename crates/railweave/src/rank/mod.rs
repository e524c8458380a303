//! The work of one rank: its part of the model, its place in the group, its HTTP.

mod comm;
mod host;
mod routes;
mod telling;

pub(crate) use routes::PROMOTE_PATH;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use engine::api::{Api, ApiKey, ApiSettings};
use engine::model::{KV_BLOCK_TOKENS, KvLimits, Model, ModelFile, Split};
use engine::serving::{FaultHook, Lead, Limits, RequestQueue, follow};
use engine::tokenizer::Tokenizer;
use fabric::auth::Token;
use fabric::verbs::VerbsSettings;
use fabric::{DataAddresses, EndpointSettings, Sizes, Waiting};
use group::control::CableNames;
use group::patience::{Patience, PatienceKey, PatienceValues};
use group::verdict::Verdict;
use group::{Member, MemberOptions, Telemetry, TransportChoice};
use observe::http::{Exposure, ServerHandle, ServerState};
use observe::{Health, Identity, Metrics, Recorder, RecorderConfig};

use crate::events::{Event, EventSink, Note};
use crate::placement::Placement;
use crate::process::{RankError, RankLaunch};
use crate::rule_hits::RuleWitness;
use crate::settings::{PatienceSettings, QueuePairSettings, Settings, Spin, Topology, Transport};

use comm::{Current, GroupCommunicator};
use routes::{Controls, Faults};
use telling::{Telling, verdict_event};

/// How long an orderly end may take before the process ends without it.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// The body of a rank's process.
///
/// # Errors
/// Whatever keeps this rank from serving: a setting, a port, the model, the group.
pub fn body(launch: RankLaunch) -> Result<(), RankError> {
    let RankLaunch { settings, seat, placement, model: found, events, notes, stop } = launch;
    let placement = placement.as_ref();
    let (rank, size) = (seat.rank as usize, seat.ranks as usize);
    observe::log::init(&settings.log).map_err(never)?;

    let identity = Identity::new(seat.rank, host_name(placement));
    let metrics = Metrics::new(&identity);
    let health = Health::new(identity.clone(), &metrics);
    let recorder = Arc::new(Recorder::new(identity, RecorderConfig::default()));

    let file = ModelFile::open(&found.path).map_err(never)?;
    let patience = Arc::new(Patience::new(patience_values(&settings.patience)));
    let serving = engine::serving::Settings::new(
        settings.prefill_chunk_tokens as usize,
        settings.max_concurrency as usize,
    );
    let faults = FaultHook::default();
    let serving =
        if settings.faults.enabled { serving.with_faults(faults.clone()) } else { serving };

    let flights = settings.flight_directory();
    if !settings.flight_dir.is_empty() {
        // Better refused now than missed after a failure.
        std::fs::create_dir_all(&flights)
            .and_then(|()| {
                rustix::fs::access(&flights, rustix::fs::Access::WRITE_OK).map_err(Into::into)
            })
            .map_err(|source| never(FlightDir { path: flights.clone(), source }))?;
    }
    let told = events.clone();
    let telemetry = Telemetry {
        metrics: Some(metrics.clone()),
        health: Some(health.clone()),
        recorder: Some(recorder),
        flight_dir: Some(flights),
    };
    let on_verdict = move |verdict: &Arc<Verdict>| told.send(&verdict_event(verdict));
    let options = member_options(&settings, &seat, placement, &file, &patience)?;
    let member = Member::new(options, telemetry, on_verdict).map_err(never)?;

    let current = Current::default();
    let controls = Arc::new(Controls {
        settings: Mutex::new(settings.clone()),
        patience,
        serving: serving.clone(),
        events: events.clone(),
        demotions: member.demotions(),
        current: current.clone(),
        faults: settings.faults.enabled.then(|| Faults {
            cut_rails: member.cut_rails(),
            compute: faults,
            current: current.clone(),
        }),
    });
    let state = server_state(&settings, &metrics, &health);
    let own =
        serve_at(settings.metrics_of_rank(seat.rank), state.clone(), routes::router(controls))?;

    let limits = KvLimits {
        slots: settings.max_concurrency as usize,
        max_tokens_per_slot: match settings.context_tokens {
            0 => usize::MAX,
            tokens => tokens as usize,
        },
        // Ranks share the limit as they share the cache.
        max_bytes: settings.kv_bytes.0 / size as u64,
    };
    let total_bytes = std::fs::metadata(&found.path).map_or(0, |data| data.len());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = settings.threads_of_rank(cores, seat.local_ranks.unwrap_or(1));
    let split = Split::of(file.config(), rank, size).map_err(never)?;
    let mut model = Model::load(&file, split, limits, threads, &mut |done, total| {
        let done_bytes = total_bytes * done as u64 / total.max(1) as u64;
        events.send(&Event::Loading { done_bytes, total_bytes });
    })
    .map_err(never)?;

    let stopping = Arc::new(AtomicBool::new(false));
    let limits = Limits::of(&model);
    if limits.request_tokens() < 2 {
        return Err(never(CacheTooSmall { kv_bytes: settings.kv_bytes.0, ranks: size }));
    }
    let queue = Arc::new(RequestQueue::new(settings.queue_limit as usize, limits.request_tokens()));
    stop_in_order(stop.clone(), &stopping, &queue, &events, &current)?;

    // From before there is a group: what was said of earlier processes is about no rank of it.
    pass_notes(notes, current.clone())?;
    events.send(&Event::Rendezvous { present: 1, after: None });
    let mut group = GroupCommunicator::form(
        member,
        (rank, size),
        current.clone(),
        Arc::clone(&stopping),
        events.clone(),
        health.clone(),
    )
    .map_err(|error| RankError { retry: !error.is_final(), source: Box::new(error) })?;
    events.send(&Event::Proof { proven: 1, total: 1 });
    let telling = Arc::new(Telling {
        metrics: metrics.clone(),
        health,
        events: events.clone(),
        epoch: Arc::new(AtomicU32::new(group.epoch())),
        leads: rank == 0,
        kv_token_bytes: settings.kv_bytes.0 / limits.kv_tokens.max(1) as u64,
        kv_limit_bytes: settings.kv_bytes.0,
        announced: AtomicBool::new(false),
    });
    let served = if rank == 0 {
        metrics.serves_requests();
        let vocabulary = Arc::new(Tokenizer::from_file(&file).map_err(never)?);
        let key = settings.api_key.is_set().then(|| ApiKey::new(settings.api_key.reveal()));
        let api = engine::api::router(Api {
            model: found.name,
            queue: Arc::clone(&queue),
            vocabulary: vocabulary.clone(),
            observer: telling.clone(),
            settings: ApiSettings { key, ..ApiSettings::default() },
        })
        .fallback(engine::api::not_found);
        // Beyond loopback a key is required; on it, web pages must not use a browser's way in.
        let api = if settings.allow_remote { api } else { routes::for_this_machine(api) };
        let api = serve_at(settings.listen, state, api)?;
        let address = api.address();
        events.send(&Event::Listening { metrics: own.address(), api: Some(address) });
        let lead =
            Lead { queue: &queue, vocabulary, limits, settings: &serving, observer: &*telling };
        let served = lead.run(&mut model, &mut group);
        api.stop();
        served
    } else {
        events.send(&Event::Listening { metrics: own.address(), api: None });
        follow(&mut model, &mut group, &serving, &*telling)
    };
    drop(group);
    own.stop();
    served.map_err(|error| RankError { source: Box::new(error), retry: true })
}

/// A cache in which no request fits.
#[derive(Debug, thiserror::Error)]
#[error(
    "kv_bytes is {kv_bytes} bytes over {ranks} ranks, which holds no block of {KV_BLOCK_TOKENS} \
     tokens of this model; raise it, to 64MiB for example"
)]
struct CacheTooSmall {
    kv_bytes: u64,
    ranks: usize,
}

/// Flight records cannot be written where they were asked for.
#[derive(Debug, thiserror::Error)]
#[error("flight_dir is {path}, which cannot be written: {source}; choose another, or leave it out")]
struct FlightDir {
    path: std::path::PathBuf,
    source: std::io::Error,
}

/// A fault that starting the rank again does not cure.
fn never(error: impl std::error::Error + Send + Sync + 'static) -> RankError {
    RankError { source: Box::new(error), retry: false }
}

fn member_options(
    settings: &Settings,
    seat: &crate::launcher::Seat,
    placement: Option<&Placement>,
    file: &ModelFile,
    patience: &Arc<Patience>,
) -> Result<MemberOptions, RankError> {
    let master = seat.master.as_deref().unwrap_or(&settings.master);
    let master = host::resolve(master).map_err(never)?;
    let control = placement.and_then(Placement::control).unwrap_or_default();
    let set = if settings.address.is_empty() { control } else { &settings.address };
    let address = host::own_address(set, master).map_err(never)?;
    let Cabling { topology, cable_names, data_addresses } =
        cabling(settings, seat, placement, address)?;
    let mut config: BTreeMap<String, String> =
        settings.shared_values().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    config.insert("model.sha256".to_owned(), file.fingerprint().to_owned());
    if let Some(placement) = placement {
        config.insert("cluster.plan".to_owned(), placement.digest().to_owned());
    }
    let (forward_required, no_rdma) = rdma(settings, placement, &data_addresses);
    let local = seat.local_ranks.unwrap_or(1) as usize;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut waiting = Waiting::for_host(local, cores);
    if let Spin::For(spin) = settings.fabric.spin {
        waiting.spin = spin;
    }
    Ok(MemberOptions {
        rank: seat.rank as usize,
        size: seat.ranks as usize,
        master,
        token: token(settings).map_err(never)?,
        host_name: host_name(placement),
        host_id: host::id(),
        address,
        data_addresses,
        topology,
        forward_required,
        forward_witness: placement.and_then(witness),
        no_rdma,
        verbs: queue_pairs(&settings.verbs),
        cable_names,
        transport: match settings.transport {
            Transport::Auto => TransportChoice::Auto,
            Transport::Shm => TransportChoice::Only(fabric::Transport::Shm),
            Transport::Tcp => TransportChoice::Only(fabric::Transport::Tcp),
            Transport::Verbs => TransportChoice::Only(fabric::Transport::Verbs),
        },
        sizes: Sizes {
            slot_bytes: settings.fabric.slot_bytes.0,
            heap_bytes: settings.fabric.heap_bytes.0,
            relay_chunk_bytes: settings.fabric.relay_chunk_bytes.0,
        },
        endpoint: EndpointSettings::default(),
        crc: settings.fabric.crc,
        waiting,
        table: settings.schedule_table.table(seat.ranks as usize),
        patience: Arc::clone(patience),
        config,
    })
}

/// Whether rails that are planned to be forwarded must be, and why this host cannot use RDMA if it cannot.
fn rdma(
    settings: &Settings,
    placement: Option<&Placement>,
    addresses: &DataAddresses,
) -> (bool, Option<String>) {
    let required = placement
        .is_some_and(|placement| placement.plan().forward == cluster::file::Forward::Required);
    // Looking for devices loads the library: only where the answer matters.
    let no_rdma = match settings.transport {
        Transport::Auto => fabric::verbs::available(addresses.all()).err(),
        Transport::Shm | Transport::Tcp | Transport::Verbs => None,
    };
    (required, no_rdma.map(|error| error.to_string()))
}

/// Sees what this host's rules pass on, if it passes on anything.
fn witness(placement: &Placement) -> Option<Arc<dyn group::ForwardWitness>> {
    let plan = Arc::new(placement.plan().clone());
    let witness = RuleWitness::new(plan, placement.rank())?;
    Some(Arc::new(witness))
}

/// Numbers that the table of keys keeps within a byte.
fn queue_pairs(settings: &QueuePairSettings) -> VerbsSettings {
    let byte = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    VerbsSettings {
        timeout: byte(settings.timeout),
        retry_count: byte(settings.retry_count),
        traffic_class: byte(settings.traffic_class),
        hop_limit: byte(settings.hop_limit),
        stall_limit: settings.stall,
        ..VerbsSettings::default()
    }
}

fn host_name(placement: Option<&Placement>) -> String {
    placement.map_or_else(host::name, |placement| placement.host().to_owned())
}

/// How the machines are cabled: as the plan of the cluster file has it, else as the settings have it.
struct Cabling {
    topology: fabric::Topology,
    cable_names: CableNames,
    data_addresses: DataAddresses,
}

fn cabling(
    settings: &Settings,
    seat: &crate::launcher::Seat,
    placement: Option<&Placement>,
    address: IpAddr,
) -> Result<Cabling, RankError> {
    if let Some(placement) = placement {
        return Ok(Cabling {
            topology: placement.topology().map_err(never)?,
            cable_names: placement.cable_names(),
            data_addresses: placement.data_addresses().map_err(never)?,
        });
    }
    let shape = match settings.topology {
        Topology::Ring => fabric::Shape::Ring,
        Topology::Full => fabric::Shape::Full,
        Topology::Path => fabric::Shape::Path,
    };
    let (ranks, rails) = (seat.ranks as usize, settings.rails as usize);
    let mut any = host::addresses(&settings.data_addresses).map_err(never)?;
    if any.is_empty() {
        any.push(address);
    }
    Ok(Cabling {
        topology: fabric::Topology::new(shape, ranks, rails).map_err(never)?,
        cable_names: CableNames::new(),
        data_addresses: DataAddresses { any, ..DataAddresses::default() },
    })
}

/// The group's secret; a rank alone needs none.
fn token(settings: &Settings) -> Result<Token, host::AddressError> {
    let made = if settings.token.is_set() {
        Token::new(settings.token.reveal().as_bytes())
    } else {
        Token::random()
    };
    made.map_err(host::AddressError::Token)
}

fn patience_values(settings: &PatienceSettings) -> PatienceValues {
    PatienceValues::default()
        .with(PatienceKey::Start, settings.start)
        .with(PatienceKey::Compute, settings.compute)
        .with(PatienceKey::Rows, settings.rows)
        .with(PatienceKey::Wire, settings.wire)
        .with(PatienceKey::Relay, settings.relay)
        .with(PatienceKey::Silent, settings.silent)
}

fn server_state(settings: &Settings, metrics: &Metrics, health: &Health) -> ServerState {
    let mut state = ServerState::new(metrics.clone(), health.clone());
    if settings.allow_remote {
        state.exposure = Exposure::AnyAddress;
    }
    state
}

fn serve_at(
    address: SocketAddr,
    state: ServerState,
    extra: axum::Router,
) -> Result<ServerHandle, RankError> {
    let listener = TcpListener::bind(address).map_err(|source| {
        never(host::AddressError::Listen { address: address.to_string(), source })
    })?;
    observe::http::serve(listener, state, extra).map_err(never)
}

/// On the order to stop: no more requests, waits end, and where that does not help in time the
/// process ends. Shared memory has no name and connections close with the process.
fn stop_in_order(
    stop: crate::process::Stop,
    stopping: &Arc<AtomicBool>,
    queue: &Arc<RequestQueue>,
    events: &EventSink,
    current: &Current,
) -> Result<(), RankError> {
    let (stopping, queue) = (Arc::clone(stopping), Arc::clone(queue));
    let (events, current) = (events.clone(), current.clone());
    let wait = move || {
        while !stop.wait_timeout(Duration::from_secs(3600)) {}
        stopping.store(true, Ordering::Relaxed);
        queue.close();
        current.with(|fabric, _| fabric.wake());
        thread::sleep(STOP_LIMIT);
        events.send(&Event::Stopped);
        std::process::exit(0);
    };
    thread::Builder::new().name("stop".to_owned()).spawn(wait).map(drop).map_err(never)
}

/// What the supervisor says of other ranks becomes evidence.
fn pass_notes(notes: std::sync::mpsc::Receiver<Note>, current: Current) -> Result<(), RankError> {
    let pass = move || {
        for note in notes {
            if let Note::Exited { rank, exit } = note {
                let note = group::control::view::SupervisorNote {
                    rank: u8::try_from(rank).unwrap_or(u8::MAX),
                    ended: true,
                    text: format!("its process ended: {exit}"),
                };
                current.with(|_, informant| informant.note(note));
            }
        }
    };
    thread::Builder::new().name("notes".to_owned()).spawn(pass).map(drop).map_err(never)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::find;

    #[test]
    fn settings_and_the_group_accept_the_same_patience() {
        for key in PatienceKey::ALL {
            let name = format!("patience.{}", key.name());
            let (least, most) = key.range();
            let setting = find(&name).unwrap();
            for (value, valid) in [
                (least, true),
                (most, true),
                (least - Duration::from_millis(1), false),
                (most + Duration::from_secs(1), false),
            ] {
                let text = format!("{}ms", value.as_millis());
                let read = setting.parse(&mut Settings::default(), &text);
                assert_eq!(read.is_ok(), valid, "{name} = {text}: {read:?}");
            }
        }
    }
}
