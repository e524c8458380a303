//! The one table of every key: what it is called, what it accepts, and where it lives in [`Settings`].

use std::fmt;
use std::time::Duration;

use super::Settings;
use super::value::{Field, Valid};

/// One key.
pub struct Key {
    /// Its name, as in a file: `patience.compute`.
    pub name: &'static str,
    /// What it accepts.
    pub valid: Valid,
    /// Its default, as text.
    pub default: &'static str,
    /// One sentence for `--help` and `railweave config`.
    pub help: &'static str,
    /// Whether every rank of a group must have the same value.
    pub shared: bool,
    /// Whether it may be changed while serving.
    pub live: bool,
    /// Whether its value is hidden wherever it would be printed. A secret has no flag: a command line is public.
    pub secret: bool,
    parse: fn(&mut Settings, &str, &Valid) -> Result<(), String>,
    show: fn(&Settings) -> String,
}

impl Key {
    /// Its environment variable: `RAILWEAVE_PATIENCE_COMPUTE`.
    #[must_use]
    pub fn env(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.to_ascii_uppercase().replace('.', "_"))
    }

    /// Its flag without the dashes: `patience-compute`. None for a secret.
    #[must_use]
    pub fn flag(&self) -> Option<String> {
        (!self.secret).then(|| self.name.replace(['.', '_'], "-"))
    }

    /// Reads a value into the settings.
    ///
    /// # Errors
    /// What is wrong with the text, without repeating what is valid.
    pub fn parse(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        (self.parse)(settings, text, &self.valid)
    }

    /// The value's text form; a secret's too.
    #[must_use]
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }

    /// The value as it may be printed.
    #[must_use]
    pub fn show_public(&self, settings: &Settings) -> String {
        let shown = self.show(settings);
        match (self.secret, shown.is_empty()) {
            (_, true) => "(not set)".to_owned(),
            (true, false) => "(hidden)".to_owned(),
            (false, false) => shown,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What every environment variable of a setting starts with.
pub const ENV_PREFIX: &str = "RAILWEAVE_";

/// What a key may be besides its type: bits for the table's third column.
const LOCAL: u8 = 0;
const SHARED: u8 = 1;
const LIVE: u8 = 2;
const SECRET: u8 = 4;

macro_rules! keys {
    ($($name:literal = $default:literal, $valid:expr, $kind:expr, $($field:ident).+, $help:literal;)*) => {
        /// Every key, in the order they are printed.
        pub static KEYS: &[Key] = &[$(Key {
            name: $name,
            valid: $valid,
            default: $default,
            help: $help,
            shared: $kind & SHARED != 0,
            live: $kind & LIVE != 0,
            secret: $kind & SECRET != 0,
            parse: |settings, text, valid| {
                settings.$($field).+ = Field::parse(text, valid)?;
                Ok(())
            },
            show: |settings| Field::show(&settings.$($field).+),
        },)*];
    };
}

/// The ranges of `group::patience`.
const PATIENCE: Valid = Valid::Time(Duration::from_millis(100), Duration::from_secs(86_400));
const SILENCE: Valid = Valid::Time(Duration::from_millis(1500), Duration::from_secs(86_400));
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

keys! {
    "model" = "smollm2-135m", Valid::Text(1, 4096), LOCAL, model,
        "The model: smollm2-135m, or the path of a GGUF file";
    "ranks" = "4", Valid::Number(1, 8), SHARED, ranks,
        "How many ranks the model is split over";
    "cluster" = "", Valid::Text(0, 4096), LOCAL, cluster,
        "The cluster file: this process is then the rank of this host, and cables and addresses follow from its plan";
    "host" = "", Valid::Text(0, 256), LOCAL, host,
        "This host's name in the cluster file; empty finds it by its hardware addresses";
    "topology" = "ring", Valid::Word(&["ring", "full", "path"]), SHARED, topology,
        "Which ranks are neighbours; distant ranks are reached by relays";
    "transport" = "auto", Valid::Word(&["auto", "shm", "tcp", "verbs"]), SHARED, transport,
        "What carries bytes; auto takes shm on one machine, else verbs where every host has RDMA devices, else tcp";
    "forward" = "plan", Valid::Word(&["plan", "off", "auto", "required"]), SHARED, forward,
        "Whether NICs pass packets to distant ranks on, with verbs; plan takes what the cluster file says";
    "listen" = "127.0.0.1:8000", Valid::Address, LOCAL, listen,
        "Where rank 0 serves the OpenAI API; port 0 takes any free port";
    "allow_remote" = "false", Valid::Flag, LOCAL, allow_remote,
        "Allow addresses other than loopback; they then need api_key";
    "api_key" = "", Valid::Text(0, 512), SECRET, api_key,
        "Key that clients must send as a bearer token";
    "prefill_chunk" = "512", Valid::Number(1, 65_536), LIVE, prefill_chunk_tokens,
        "Most prompt tokens worked on in one step";
    "max_concurrency" = "32", Valid::Number(1, 1024), SHARED, max_concurrency,
        "Most requests generated at the same time";
    "queue_limit" = "256", Valid::Number(0, 65_536), LOCAL, queue_limit,
        "Most requests waiting; beyond it a client gets 429";
    "kv_bytes" = "1GiB", Valid::Bytes(MIB, TIB), SHARED, kv_bytes,
        "Most memory of the key-value cache, over all ranks";
    "context_tokens" = "0", Valid::Number(0, 1_048_576), SHARED, context_tokens,
        "Longest prompt with answer; 0 takes the model's";
    "threads" = "0", Valid::Number(0, 1024), LOCAL, threads,
        "Threads that compute, for each rank; 0 shares the cores among the ranks";
    "metrics_listen" = "127.0.0.1:9400", Valid::Address, LOCAL, metrics_listen,
        "Base of the ranks' own addresses: rank r serves at port + r; port 0 takes any free ports";
    "token" = "", Valid::Text(0, 512), SECRET, token,
        "Secret the ranks of a group share; made up when the ranks are started here";
    "master" = "", Valid::HostPort, LOCAL, master,
        "Where the ranks meet; from the launcher's environment if empty";
    "address" = "", Valid::Text(0, 64), LOCAL, address,
        "Address of this machine that other ranks reach; empty takes the interface towards master";
    "data_addresses" = "", Valid::Text(0, 512), LOCAL, data_addresses,
        "Addresses for data, one for each rail, separated by commas; empty takes address";
    "rails" = "2", Valid::Number(1, 4), SHARED, rails,
        "Rails of the path between two neighbours";
    "schedule_table" = "", Valid::Text(0, 256), SHARED, schedule_table,
        "Which schedule carries all-reduces of which size, as railweave tune prints it; empty takes the built-in one";
    "fabric.crc" = "false", Valid::Flag, SHARED, fabric.crc,
        "Check every received frame's CRC-32C";
    "fabric.slot_bytes" = "256KiB", Valid::Bytes(4 * KIB, 64 * MIB), SHARED, fabric.slot_bytes,
        "Size of one receive slot";
    "fabric.heap_bytes" = "64MiB", Valid::Bytes(MIB, 16 << 30), SHARED, fabric.heap_bytes,
        "Size of a rank's registered buffers";
    "fabric.relay_chunk_bytes" = "64KiB", Valid::Bytes(KIB, 16 * MIB), SHARED, fabric.relay_chunk_bytes,
        "Most bytes a relay passes on at once";
    "fabric.spin" = "auto", Valid::TimeOrAuto(Duration::ZERO, Duration::from_secs(1)), LOCAL, fabric.spin,
        "How long a wait spins before it yields";
    "verbs.timeout" = "14", Valid::Number(1, 31), SHARED, verbs.timeout,
        "A packet without acknowledgement is sent again after 4.096 us x 2^this";
    "verbs.retry_count" = "6", Valid::Number(0, 6), SHARED, verbs.retry_count,
        "How often a packet is sent again before its rail fails";
    "verbs.traffic_class" = "0", Valid::Number(0, 255), SHARED, verbs.traffic_class,
        "Traffic class of packets: priority and congestion marks";
    "verbs.hop_limit" = "64", Valid::Number(1, 255), SHARED, verbs.hop_limit,
        "How many routers a packet may pass";
    "verbs.stall" = "5s", Valid::Time(Duration::from_millis(100), Duration::from_secs(600)), SHARED, verbs.stall,
        "How long a write may have neither completion nor error before its rail fails";
    "patience.start" = "600s", PATIENCE, LIVE, patience.start,
        "How long to wait for a rank that is starting";
    "patience.compute" = "60s", PATIENCE, LIVE, patience.compute,
        "How long to wait for a rank that computes";
    "patience.rows" = "60s", PATIENCE, LIVE, patience.rows,
        "How long to wait for a rank that reads table rows";
    "patience.wire" = "5s", PATIENCE, LIVE, patience.wire,
        "How long to wait for bytes on a direct path";
    "patience.relay" = "5s", PATIENCE, LIVE, patience.relay,
        "How long to wait for bytes on a relayed path";
    "patience.silent" = "10s", SILENCE, LIVE, patience.silent,
        "How long a rank may send no heartbeat";
    "flight_dir" = "", Valid::Text(0, 4096), LOCAL, flight_dir,
        "Where flight records are written; empty takes the state directory";
    "log" = "warn", Valid::LogFilter, LOCAL, log,
        "Log filter: error, warn, info, debug, trace, or target=level pairs";
    "faults.enabled" = "false", Valid::Flag, SHARED, faults.enabled,
        "Accept orders to misbehave, for tests of failure";
    "restart" = "true", Valid::Flag, LOCAL, restart,
        "Start a rank again that died";
    "restart_limit" = "5", Valid::Number(0, 1000), LOCAL, restart_limit,
        "Most restarts of one rank within ten minutes";
}

/// Finds a key by its name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_default_is_valid_and_reads_back() {
        let mut settings = Settings::default();
        for key in KEYS {
            key.parse(&mut settings, key.default).unwrap_or_else(|e| panic!("{}: {e}", key.name));
            assert_eq!(key.show(&settings), key.default, "{}", key.name);
        }
    }

    #[test]
    fn names_variables_and_flags_are_unique() {
        let names: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
        let variables: BTreeSet<_> = KEYS.iter().map(Key::env).collect();
        let flags: BTreeSet<_> = KEYS.iter().filter_map(Key::flag).collect();
        assert_eq!(names.len(), KEYS.len());
        assert_eq!(variables.len(), KEYS.len());
        assert_eq!(flags.len(), KEYS.iter().filter(|key| !key.secret).count());
    }

    #[test]
    fn secrets_have_no_flag_and_are_hidden() {
        let mut settings = Settings::default();
        let key = find("api_key").unwrap();
        key.parse(&mut settings, "hunter2").unwrap();
        assert_eq!(key.flag(), None);
        assert_eq!(key.show_public(&settings), "(hidden)");
        assert_eq!(key.show(&settings), "hunter2");
    }

    #[test]
    fn words_of_the_table_are_the_words_of_the_types() {
        for key in KEYS {
            if let Valid::Word(words) = key.valid {
                let mut settings = Settings::default();
                for word in words {
                    key.parse(&mut settings, word).unwrap();
                    assert_eq!(key.show(&settings), *word);
                }
                assert!(key.parse(&mut settings, "other").is_err());
            }
        }
    }
}
