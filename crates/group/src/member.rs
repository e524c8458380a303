//! A process that is a rank, from epoch to epoch.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fabric::auth::Token;
use fabric::verbs::VerbsSettings;
use fabric::{
    Cable, DataAddresses, EndpointSettings, Fabric, OutOfRegion, Sizes, Topology, TopologyError,
    Transport, Waiting, Wiring, WiringError, WiringSettings,
};

use crate::beacon::{BeaconCell, Phase, operation};
use crate::collective::{Collectives, ScheduleTable};
use crate::control::mesh::{Control, ControlError, ControlEvent, ControlOptions};
use crate::control::view::CableNames;
use crate::group::Group;
use crate::paths::{Demotions, ForwardWitness, Paths, Round, RuleHits};
use crate::patience::{Patience, PatienceKey};
use crate::pulse::Pulse;
use crate::rendezvous::{self, Host, HostOptions, JoinError, JoinRequest, Joined, MemberInfo};
use crate::telemetry::Telemetry;
use crate::verdict::Verdict;
use crate::watch::ControlWatch;

/// Longest time for one round of wiring: connecting, and proving.
const WIRING_LIMIT: Duration = Duration::from_secs(10);
/// How often cables may turn out broken before forming is given up.
const ROUNDS_MAX: usize = 8;
/// The number before the first operation: close to the wrap, so that every run goes through it.
const FIRST_SEQUENCE: u32 = u32::MAX - 31;

/// What carries the bytes, or that the group may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportChoice {
    /// Shared memory when all ranks run on one machine, else RDMA when all of them can, else TCP.
    Auto,
    /// This one.
    Only(Transport),
}

/// What carries the bytes of an epoch, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carrier {
    /// What carries them.
    pub transport: Transport,
    /// Why, in one line.
    pub why: String,
}

/// Everything a rank brings along.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub size: usize,
    /// Where rank 0 hosts the rendezvous.
    pub master: SocketAddr,
    /// The group's secret.
    pub token: Token,
    /// Name of this machine.
    pub host_name: String,
    /// What tells this machine from others.
    pub host_id: String,
    /// Address of this machine that the others can reach.
    pub address: IpAddr,
    /// Addresses of this machine for data.
    pub data_addresses: DataAddresses,
    /// How the machines are cabled, and how distant ranks are reached. What is forwarded there is
    /// so with RDMA only, and relayed otherwise.
    pub topology: Topology,
    /// Whether it is an error that a rail which is to be forwarded cannot be.
    pub forward_required: bool,
    /// Sees what this host's rules pass on, where it passes on anything.
    pub forward_witness: Option<Arc<dyn ForwardWitness>>,
    /// Why this host cannot use RDMA, in one line; none where it can.
    pub no_rdma: Option<String>,
    /// Parameters of queue pairs.
    pub verbs: VerbsSettings,
    /// What people call the cables; verdicts use these names.
    pub cable_names: CableNames,
    /// What carries the bytes.
    pub transport: TransportChoice,
    /// Sizes of regions.
    pub sizes: Sizes,
    /// How puts are cut.
    pub endpoint: EndpointSettings,
    /// Whether frames carry checksums.
    pub crc: bool,
    /// How the worker waits.
    pub waiting: Waiting,
    /// Which schedule is used when.
    pub table: ScheduleTable,
    /// How long waits may last; can be changed while the group works.
    pub patience: Arc<Patience>,
    /// More that must be equal on all ranks, such as the model served.
    pub config: BTreeMap<String, String>,
}

/// Why a group was not formed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The control plane did not start.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A path that has to be forwarded cannot be.
    #[error(
        "rank {rank}: forward = required, and {what}; mend that (`railweave verify` tells more), or \
         take forward = auto"
    )]
    ForwardRequired {
        /// This rank.
        rank: usize,
        /// What cannot be forwarded, and why.
        what: String,
    },
    /// Rank 0 cannot host the rendezvous.
    #[error(
        "rank 0 cannot host the rendezvous at {address}: {source}; is it an address of this machine (master, or control in the cluster file), and the port free?"
    )]
    Host {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The rendezvous failed or refused.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// A region does not have its layout: a defect of this build.
    #[error(transparent)]
    Region(#[from] OutOfRegion),
    /// The system refused a thread.
    #[error("rank {rank} cannot start a thread: {source}")]
    Thread {
        /// This rank.
        rank: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The cables that work do not join all ranks.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Another rank cannot read or sent what cannot be read.
    #[error("rank {rank} cannot read what rank {peer} said while the group formed")]
    Unreadable {
        /// This rank.
        rank: usize,
        /// The other one.
        peer: usize,
    },
    /// Cables broke again and again.
    #[error("rank {rank} gave up after {ROUNDS_MAX} rounds in which cables {broken} failed")]
    Unstable {
        /// This rank.
        rank: usize,
        /// The cables.
        broken: String,
    },
    /// The own end of the fabric could not be made.
    #[error(transparent)]
    Wiring(#[from] WiringError),
}

impl FormError {
    /// True when a restart of this process with the same settings cannot help.
    pub fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Join(
                JoinError::Refused { .. }
                    | JoinError::WrongToken { .. }
                    | JoinError::Protocol { .. }
                    | JoinError::Request { .. }
            ) | Self::ForwardRequired { .. }
                | Self::Host { .. }
                | Self::Topology(_)
        )
    }
}

/// Rails that are cut on purpose and stay cut in later epochs: faults for tests.
#[derive(Debug, Default)]
pub struct CutRails(Mutex<Vec<(usize, usize)>>);

impl CutRails {
    /// Cuts a rail to a neighbour from now on.
    pub fn cut(&self, peer: usize, rail: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((peer, rail));
    }

    /// Mends all rails, from the next epoch on.
    pub fn mend(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn list(&self) -> Vec<(usize, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type VerdictHook = Arc<dyn Fn(&Arc<Verdict>) + Send + Sync>;

/// A process that is a rank of a group.
pub struct Member {
    options: MemberOptions,
    telemetry: Telemetry,
    on_verdict: VerdictHook,
    instance: [u64; 2],
    last_epoch: Option<u32>,
    host: Option<Host>,
    cut_rails: Arc<CutRails>,
    demotions: Arc<Demotions>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("rank", &self.options.rank)
            .field("last_epoch", &self.last_epoch)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// A rank that has been in no group yet. `on_verdict` is called once for each failed epoch.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn new(
        options: MemberOptions,
        telemetry: Telemetry,
        on_verdict: impl Fn(&Arc<Verdict>) + Send + Sync + 'static,
    ) -> Result<Self, fabric::auth::AuthError> {
        Ok(Self {
            instance: rendezvous::instance()?,
            options,
            telemetry,
            on_verdict: Arc::new(on_verdict),
            last_epoch: None,
            host: None,
            cut_rails: Arc::default(),
            demotions: Arc::default(),
        })
    }

    /// Rails that are cut on purpose.
    pub fn cut_rails(&self) -> Arc<CutRails> {
        Arc::clone(&self.cut_rails)
    }

    /// Forwarded rails that are relayed until they are promoted.
    pub fn demotions(&self) -> Arc<Demotions> {
        Arc::clone(&self.demotions)
    }

    /// Meets the others and forms the next epoch: agrees on the configuration, connects, and
    /// proves every rail. Waits for the others as long as the patience for `start` allows. The
    /// group before must have been dropped.
    ///
    /// # Errors
    /// See [`FormError`]; the same difference of configuration fails on every rank.
    pub fn form(&mut self) -> Result<Group, FormError> {
        let limit = self.options.patience.get(PatienceKey::Start);
        let deadline = Instant::now() + limit;
        if self.options.rank == 0 && self.host.is_none() {
            let address = self.options.master;
            let host = HostOptions {
                listen: address,
                token: self.options.token.clone(),
                size: self.options.size,
            };
            let host = Host::start(host).map_err(|source| FormError::Host { address, source })?;
            self.host = Some(host);
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut joined = rendezvous::join(&self.request(), left)?;
            self.last_epoch = Some(joined.epoch);
            match self.wire(&mut joined, deadline) {
                Ok((fabric, carrier)) => return self.assemble(joined, fabric, carrier),
                // Somebody left half-way; it is started again and everybody joins anew.
                Err(FormError::Join(
                    error @ (JoinError::MemberLeft { .. } | JoinError::Connection { .. }),
                )) if Instant::now() < deadline => {
                    tracing::info!(%error, "forming the group again");
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn request(&self) -> JoinRequest {
        let options = &self.options;
        let mut config = options.config.clone();
        let sizes = options.sizes.rounded();
        for (key, value) in [
            ("group.topology", options.topology.to_string()),
            ("group.rails", options.topology.rails().to_string()),
            ("group.transport", format!("{:?}", options.transport)),
            ("group.table", options.table.to_string()),
            ("group.forward_required", options.forward_required.to_string()),
            ("fabric.crc", options.crc.to_string()),
            ("fabric.slot_bytes", sizes.slot_bytes.to_string()),
            ("fabric.heap_bytes", sizes.heap_bytes.to_string()),
            ("fabric.relay_chunk_bytes", sizes.relay_chunk_bytes.to_string()),
            ("fabric.stripe_bytes_min", options.endpoint.stripe_bytes_min.to_string()),
            ("railweave.version", env!("CARGO_PKG_VERSION").to_owned()),
        ] {
            config.insert(key.to_owned(), value);
        }
        JoinRequest {
            rank: options.rank,
            size: options.size,
            address: options.master,
            token: options.token.clone(),
            instance: self.instance,
            last_epoch: self.last_epoch,
            host_name: options.host_name.clone(),
            host_id: options.host_id.clone(),
            ip: options.address,
            config,
            blob: options.no_rdma.clone().unwrap_or_default().into_bytes(),
        }
    }

    /// Connects and proves; what fails is left out, and all ranks try again without it.
    fn wire(&self, joined: &mut Joined, deadline: Instant) -> Result<(Fabric, Carrier), FormError> {
        let options = &self.options;
        let rank = options.rank;
        let carrier = choose(options.transport, &joined.members);
        let transport = carrier.transport;
        let planned = options.topology.relaying(|_| transport != Transport::Verbs);
        let hosts: Vec<_> = joined.members.iter().map(|member| member.host_name.clone()).collect();
        let mut paths =
            Paths::new(rank, planned.clone(), self.demotions(), options.forward_required);
        self.cut_cables(&planned).into_iter().for_each(|cable| paths.cut(cable));
        for _ in 0..ROUNDS_MAX {
            let topology = Arc::new(paths.topology()?);
            let settings = self.wiring_settings(transport);
            let wiring = Wiring::prepare(rank, Arc::clone(&topology), settings)?;
            let devices = wiring.devices();
            let round = paths.tell(wiring.blob(), Vec::new(), devices.clone());
            let rounds = self.agree(joined, round, deadline)?;
            if paths.merge(&rounds, &hosts) {
                continue;
            }
            let blobs: Vec<Vec<u8>> = rounds.into_iter().map(|round| round.blob).collect();
            let limit = deadline.min(Instant::now() + WIRING_LIMIT);
            let fabric = match wiring.connect(joined.epoch, &blobs, limit) {
                Ok(fabric) => Some(fabric),
                Err(error) => {
                    let Some(peer) = error.broken_peer() else { return Err(error.into()) };
                    tracing::warn!(%error, "a cable does not connect");
                    paths.cut(Cable::between(rank, peer));
                    None
                }
            };
            // Nobody puts before all are connected.
            let round = paths.tell(Vec::new(), Vec::new(), devices.clone());
            let rounds = self.agree(joined, round, deadline)?;
            if paths.merge(&rounds, &hosts) {
                continue;
            }
            let Some(fabric) = fabric else { continue };
            for (peer, rail) in self.cut_rails.list() {
                fabric.with_endpoint(|endpoint| endpoint.cut(peer, rail));
            }
            let hits = self.prove(&fabric, joined.epoch, deadline, &mut paths)?;
            let round = paths.tell(Vec::new(), hits, devices);
            let rounds = self.agree(joined, round, deadline)?;
            if !paths.merge(&rounds, &hosts) {
                self.report(&paths)?;
                return Ok((fabric, carrier));
            }
        }
        let broken = paths.cables().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        Err(FormError::Unstable { rank, broken })
    }

    /// Proves every rail. What failed is added to `paths`; answers what this host's rules passed
    /// on meanwhile.
    fn prove(
        &self,
        fabric: &Fabric,
        epoch: u32,
        deadline: Instant,
        paths: &mut Paths,
    ) -> Result<Vec<RuleHits>, FormError> {
        let options = &self.options;
        let forwards = fabric.topology().forwarded().next().is_some();
        let witness = options.forward_witness.as_ref().filter(|_| forwards);
        let before = witness.map(|witness| witness.look()).unwrap_or_default();
        let patience = options.patience.get(PatienceKey::Wire);
        let limit = deadline.min(Instant::now() + patience);
        let failed = fabric.prove(epoch, limit)?;
        let mut after = witness.map(|witness| witness.look()).unwrap_or_default();
        for hits in &mut after {
            let same =
                |one: &&RuleHits| (one.from, one.to, one.rail) == (hits.from, hits.to, hits.rail);
            let earlier = before.iter().find(same).and_then(|one| one.packets).unwrap_or(0);
            hits.packets = hits.packets.map(|now| now.saturating_sub(earlier));
        }
        for rail in failed {
            let (peer, number, why) = (rail.peer, rail.rail, &rail.why);
            tracing::warn!(peer, rail = number, why, "a rail failed its proof");
            let neighbours = fabric.topology().are_neighbours(options.rank, rail.peer);
            // A cable works as long as one of its rails does.
            let works = fabric.with_endpoint(|endpoint| endpoint.working_rails(rail.peer)) > 0;
            match (neighbours, works) {
                (true, true) => {}
                (true, false) => paths.cut(Cable::between(options.rank, rail.peer)),
                (false, _) => paths.failed(rail.peer, rail.rail, &rail.why),
            }
        }
        for peer in fabric.topology().neighbours(options.rank) {
            if fabric.with_endpoint(|endpoint| endpoint.working_rails(peer)) == 0 {
                paths.cut(Cable::between(options.rank, peer));
            }
        }
        Ok(after)
    }

    /// Tells what is out of use.
    fn report(&self, paths: &Paths) -> Result<(), FormError> {
        for cable in paths.cables() {
            tracing::warn!(%cable, "a cable is out of use; its ranks are relayed");
        }
        for (_, why) in paths.unproven() {
            tracing::warn!("{why}");
        }
        for rail in paths.demoted() {
            tracing::warn!("{rail} stay relayed until `railweave verify --again` has proven them");
        }
        let failed = paths.unproven().map(|(_, why)| why.clone());
        let demoted = paths.demoted().map(|rail| format!("{rail} failed in an earlier epoch"));
        let lost: Vec<_> = failed.chain(demoted).collect();
        if self.options.forward_required && !lost.is_empty() {
            let what = lost.join("; ");
            return Err(FormError::ForwardRequired { rank: self.options.rank, what });
        }
        Ok(())
    }

    fn cut_cables(&self, planned: &Topology) -> Vec<Cable> {
        let cut = self.cut_rails.list();
        planned
            .neighbours(self.options.rank)
            .filter(|&peer| (0..planned.rails()).all(|rail| cut.contains(&(peer, rail))))
            .map(|peer| Cable::between(self.options.rank, peer))
            .collect()
    }

    fn wiring_settings(&self, transport: Transport) -> WiringSettings {
        let options = &self.options;
        WiringSettings {
            transport,
            sizes: options.sizes,
            endpoint: options.endpoint,
            crc: options.crc,
            waiting: options.waiting,
            addresses: options.data_addresses.clone(),
            verbs: options.verbs,
            token: options.token.clone(),
        }
    }

    fn agree(
        &self,
        joined: &mut Joined,
        round: &Round,
        deadline: Instant,
    ) -> Result<Vec<Round>, FormError> {
        let rank = self.options.rank;
        let bytes =
            serde_json::to_vec(round).map_err(|_| FormError::Unreadable { rank, peer: rank })?;
        let limit = deadline.saturating_duration_since(Instant::now()).min(2 * WIRING_LIMIT);
        let answers = joined.agree(&bytes, limit)?;
        let parse = |(peer, bytes): (usize, &Vec<u8>)| {
            serde_json::from_slice(bytes).map_err(|_| FormError::Unreadable { rank, peer })
        };
        answers.iter().enumerate().map(parse).collect()
    }

    fn assemble(
        &self,
        joined: Joined,
        fabric: Fabric,
        carrier: Carrier,
    ) -> Result<Group, FormError> {
        let rank = self.options.rank;
        let Joined { epoch, members, streams, .. } = joined;
        let fabric = Arc::new(fabric);
        let beacon = Arc::new(BeaconCell::new(epoch));
        // Nobody may take a rank that has begun nothing for one that is ahead.
        beacon.begin_operation(operation::NONE, FIRST_SEQUENCE);
        beacon.set_phase(Phase::Start);
        let control = Arc::new(Control::start(ControlOptions {
            epoch,
            rank,
            streams,
            hosts: members.iter().map(|member| member.host_name.clone()).collect(),
            cables: self.options.cable_names.clone(),
            patience: Arc::clone(&self.options.patience),
            beacon: Arc::clone(&beacon),
            events: Box::new(|event| match event {
                ControlEvent::PeerClosed { rank, orderly, why } => {
                    tracing::info!(peer = rank, orderly, why, "a control connection ended");
                }
                ControlEvent::PeerSlow { rank } => tracing::warn!(peer = rank, "reads too slowly"),
                ControlEvent::Verdict(verdict) => tracing::warn!(%verdict, "the group stopped"),
            }),
        })?);
        let (telemetry, hook) = (self.telemetry.clone(), Arc::clone(&self.on_verdict));
        let woken = Arc::downgrade(&fabric);
        control.on_verdict(move |verdict| {
            if let Some(fabric) = woken.upgrade() {
                fabric.wake();
            }
            telemetry.verdict(verdict);
            hook(verdict);
        });
        let watch =
            ControlWatch::new(Arc::clone(&control), Arc::clone(&beacon), self.telemetry.clone());
        watch.enter(Phase::Compute);
        let collectives =
            Collectives::new(Arc::clone(&fabric), watch, self.options.table, FIRST_SEQUENCE);
        let (telemetry, demotions) = (self.telemetry.clone(), self.demotions());
        let pulse = Pulse::start(epoch, fabric, Arc::clone(&control), beacon, telemetry, demotions)
            .map_err(|source| FormError::Thread { rank, source })?;
        self.telemetry.formed(epoch, members.len());
        let telemetry = self.telemetry.clone();
        Ok(Group::new(pulse, collectives, control, epoch, carrier, members, telemetry))
    }
}

fn choose(choice: TransportChoice, members: &[MemberInfo]) -> Carrier {
    let (transport, why) = match choice {
        TransportChoice::Only(transport) => (transport, "as asked for".to_owned()),
        TransportChoice::Auto if on_one_machine(members) => {
            let own = members.iter().find(|member| !member.blob.is_empty());
            let rdma = own.map_or(String::new(), |member| {
                format!("; {}", String::from_utf8_lossy(&member.blob))
            });
            (Transport::Shm, format!("all ranks run on one machine{rdma}"))
        }
        TransportChoice::Auto => match members.iter().find(|member| !member.blob.is_empty()) {
            Some(without) => {
                let MemberInfo { rank, host_name, blob, .. } = without;
                let why = String::from_utf8_lossy(blob);
                (Transport::Tcp, format!("no RDMA on rank {rank} (host {host_name}): {why}"))
            }
            None => (Transport::Verbs, "every host has RDMA devices".to_owned()),
        },
    };
    Carrier { transport, why }
}

fn on_one_machine(members: &[MemberInfo]) -> bool {
    members.windows(2).all(|pair| pair[0].host_id == pair[1].host_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: usize, host: &str, no_rdma: &str) -> MemberInfo {
        MemberInfo {
            rank,
            host_name: host.to_owned(),
            host_id: host.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            blob: no_rdma.as_bytes().to_vec(),
        }
    }

    #[test]
    fn what_carries_the_bytes_is_chosen_with_a_reason_in_one_line() {
        let auto = |members: &[MemberInfo]| {
            let Carrier { transport, why } = choose(TransportChoice::Auto, members);
            (transport, why)
        };
        let none = "this host has no RDMA devices";
        assert_eq!(
            auto(&[member(0, "a", none), member(1, "a", none)]),
            (
                Transport::Shm,
                "all ranks run on one machine; this host has no RDMA devices".to_owned()
            )
        );
        assert_eq!(
            auto(&[member(0, "a", ""), member(1, "b", none)]),
            (
                Transport::Tcp,
                "no RDMA on rank 1 (host b): this host has no RDMA devices".to_owned()
            )
        );
        assert_eq!(auto(&[member(0, "a", ""), member(1, "b", "")]).0, Transport::Verbs);
        let only = choose(TransportChoice::Only(Transport::Tcp), &[member(0, "a", "")]);
        assert_eq!(only.transport, Transport::Tcp);
    }
}
