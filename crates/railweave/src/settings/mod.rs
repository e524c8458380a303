//! Settings: one table of keys, and the effective value of each from file, environment and flags.

mod error;
mod file;
mod layers;
mod schedules;
mod show;
mod table;
mod value;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::{Place, SettingsError};
pub use file::{from_handover, to_handover};
pub use layers::{Layers, MAX_FILE_BYTES};
pub use schedules::Schedules;
pub use show::{CONFIG_SCHEMA, config_json, config_table};
pub use table::{ENV_PREFIX, KEYS, Key, find};
pub use value::{Bytes, Field, Secret, Spin, Valid, Word, nearest, show_bytes, show_time};

/// Which ranks are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// Each rank has two neighbours, and the last is a neighbour of the first.
    #[default]
    Ring,
    /// Every two ranks are neighbours.
    Full,
    /// Like a ring, without the cable between the last and the first.
    Path,
}

impl Word for Topology {
    const WORDS: &'static [(&'static str, Self)] =
        &[("ring", Self::Ring), ("full", Self::Full), ("path", Self::Path)];
}

/// What carries bytes between neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Shared memory on one machine, TCP otherwise.
    #[default]
    Auto,
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA.
    Verbs,
}

impl Word for Transport {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("shm", Self::Shm), ("tcp", Self::Tcp), ("verbs", Self::Verbs)];
}

/// Whether NICs pass packets to distant ranks on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Forward {
    /// As the cluster file says.
    #[default]
    Plan,
    /// Never.
    Off,
    /// Where it is proven.
    Auto,
    /// Everywhere, or the group does not form.
    Required,
}

impl Word for Forward {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("plan", Self::Plan),
        ("off", Self::Off),
        ("auto", Self::Auto),
        ("required", Self::Required),
    ];
}

/// Parameters of queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QueuePairSettings {
    /// The exponent of the time after which a packet is sent again.
    pub timeout: u32,
    /// How often it is sent again.
    pub retry_count: u32,
    /// The traffic class.
    pub traffic_class: u32,
    /// How many routers a packet may pass.
    pub hop_limit: u32,
    /// How long a write may have neither completion nor error.
    pub stall: Duration,
}

/// Settings of the fabric.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FabricSettings {
    /// Whether received frames are checked by CRC-32C.
    pub crc: bool,
    /// Size of one receive slot.
    pub slot_bytes: Bytes,
    /// Size of a rank's registered buffers.
    pub heap_bytes: Bytes,
    /// Most bytes a relay passes on at once.
    pub relay_chunk_bytes: Bytes,
    /// How long a wait spins before it yields.
    pub spin: Spin,
}

/// How long a wait may last, for each phase of the awaited peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PatienceSettings {
    /// The peer is starting.
    pub start: Duration,
    /// The peer computes.
    pub compute: Duration,
    /// The peer reads table rows.
    pub rows: Duration,
    /// Bytes are on a direct path.
    pub wire: Duration,
    /// Bytes are on a relayed path.
    pub relay: Duration,
    /// The peer sends no heartbeat.
    pub silent: Duration,
}

/// Settings of planned misbehaviour.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultSettings {
    /// Whether orders to misbehave are accepted.
    pub enabled: bool,
}

/// The effective value of every key. [`Settings::default`] gives the defaults; [`KEYS`] says what each means.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of keys says what each is")]
pub struct Settings {
    pub model: String,
    pub ranks: u32,
    pub cluster: String,
    pub host: String,
    pub topology: Topology,
    pub transport: Transport,
    pub forward: Forward,
    pub listen: SocketAddr,
    pub allow_remote: bool,
    pub api_key: Secret,
    pub prefill_chunk_tokens: u32,
    pub max_concurrency: u32,
    pub queue_limit: u32,
    pub kv_bytes: Bytes,
    pub context_tokens: u32,
    pub threads: u32,
    pub metrics_listen: SocketAddr,
    pub token: Secret,
    pub master: String,
    pub address: String,
    pub data_addresses: String,
    pub rails: u32,
    pub schedule_table: Schedules,
    pub fabric: FabricSettings,
    pub verbs: QueuePairSettings,
    pub patience: PatienceSettings,
    pub flight_dir: String,
    pub log: String,
    pub faults: FaultSettings,
    pub restart: bool,
    pub restart_limit: u32,
}

impl Default for Settings {
    /// The default of every key.
    fn default() -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut settings = Self {
            model: String::new(),
            ranks: 1,
            cluster: String::new(),
            host: String::new(),
            topology: Topology::default(),
            transport: Transport::default(),
            forward: Forward::default(),
            listen: nowhere,
            allow_remote: false,
            api_key: Secret::default(),
            prefill_chunk_tokens: 0,
            max_concurrency: 0,
            queue_limit: 0,
            kv_bytes: Bytes::default(),
            context_tokens: 0,
            threads: 0,
            metrics_listen: nowhere,
            token: Secret::default(),
            master: String::new(),
            address: String::new(),
            data_addresses: String::new(),
            rails: 0,
            schedule_table: Schedules::default(),
            fabric: FabricSettings::default(),
            verbs: QueuePairSettings::default(),
            patience: PatienceSettings::default(),
            flight_dir: String::new(),
            log: String::new(),
            faults: FaultSettings::default(),
            restart: false,
            restart_limit: 0,
        };
        for key in KEYS {
            let read = key.parse(&mut settings, key.default);
            debug_assert!(read.is_ok(), "the table's default of {} is not valid", key.name);
        }
        settings
    }
}

impl Settings {
    /// The keys every rank must agree on, with their values as text, in the table's order.
    #[must_use]
    pub fn shared_values(&self) -> Vec<(&'static str, String)> {
        KEYS.iter().filter(|key| key.shared).map(|key| (key.name, key.show(self))).collect()
    }

    /// Compute threads of one rank on a machine with `cores` cores that runs `local_ranks` ranks; at least 1.
    #[must_use]
    pub fn threads_of_rank(&self, cores: usize, local_ranks: u32) -> usize {
        match self.threads {
            0 => (cores / local_ranks.max(1) as usize).max(1),
            threads => threads as usize,
        }
    }

    /// Where a rank serves its own metrics and health; port 0 means any free port.
    #[must_use]
    pub fn metrics_of_rank(&self, rank: u32) -> SocketAddr {
        let mut address = self.metrics_listen;
        if address.port() != 0 {
            // The check of the layers keeps the highest rank's port within range.
            let port = u32::from(address.port()).saturating_add(rank);
            address.set_port(u16::try_from(port).unwrap_or(u16::MAX));
        }
        address
    }

    /// Where flight records are written.
    #[must_use]
    pub fn flight_directory(&self) -> PathBuf {
        if !self.flight_dir.is_empty() {
            return expand(&self.flight_dir);
        }
        user_directory("XDG_STATE_HOME", ".local/state").join("railweave").join("flight")
    }
}

/// Replaces a leading `~/` by the home directory.
#[must_use]
pub(crate) fn expand(text: &str) -> PathBuf {
    match (text.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(text),
    }
}

/// A base directory of the user: the variable's if it is an absolute path, else below the home directory.
#[must_use]
pub(crate) fn user_directory(variable: &str, below_home: &str) -> PathBuf {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(below_home)))
        .unwrap_or_else(std::env::temp_dir)
}

/// The effective settings, and where each value came from.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The values.
    pub settings: Settings,
    /// The place each key's value came from, by the key's name.
    pub places: BTreeMap<&'static str, Place>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_cores_and_never_reach_zero() {
        let mut settings = Settings::default();
        assert_eq!(settings.threads_of_rank(8, 4), 2);
        assert_eq!(settings.threads_of_rank(2, 4), 1);
        settings.threads = 3;
        assert_eq!(settings.threads_of_rank(2, 4), 3);
    }

    #[test]
    fn ranks_serve_metrics_beside_each_other_or_anywhere() {
        let mut settings = Settings::default();
        assert_eq!(settings.metrics_of_rank(3).port(), 9403);
        settings.metrics_listen.set_port(0);
        assert_eq!(settings.metrics_of_rank(3).port(), 0);
    }

    #[test]
    fn what_is_shared_says_nothing_secret_or_local() {
        let shared = Settings::default().shared_values();
        let names: Vec<_> = shared.iter().map(|(name, _)| *name).collect();
        assert!(names.contains(&"ranks") && names.contains(&"fabric.slot_bytes"));
        assert!(!names.contains(&"token") && !names.contains(&"threads"));
    }
}
