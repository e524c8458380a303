//! What is read on a host: one table, and the one POSIX shell script made from it.
//!
//! The same script runs locally, over SSH and in a network namespace, so nothing has to be installed on a host. It
//! only reads. What it prints is a stream of frames, `KIND NAME LENGTH`, a newline, that many bytes and a newline;
//! `frames` reads it back.
//!
//! In a [`super::Recording`] files and links go by their absolute paths. Tools go by the names in [`TOOLS`]; a tool
//! that is run for each netdev or PCI function has that after a dot: `tc-filter.enp1s0f1np1`,
//! `devlink-eswitch.0000:01:00.1`.

pub use super::frames::{CaptureError, parse};
pub use super::script::{rules_script, script};

/// The first line of what the script prints.
pub const HEADER: &str = "railweave-capture/1";

/// Bytes read of one file, and of one tool's output.
pub const FILE_LIMIT_BYTES: usize = 256 * 1024;

/// Bytes of one capture in all.
pub const TOTAL_LIMIT_BYTES: usize = 16 * 1024 * 1024;

/// Seconds one tool may take.
pub const TOOL_LIMIT_S: u32 = 5;

/// Where a host's own copy of the cluster file is looked for.
pub const CLUSTER_FILE: &str = "/etc/railweave/cluster.toml";

/// Files, as shell patterns. Of a pattern followed by a prefix only the lines with that prefix are kept: the rest of
/// such a file is long, or nobody's business.
pub const FILES: &[(&str, Option<&str>)] = &[
    ("/sys/class/net/*/address", None),
    ("/sys/class/net/*/mtu", None),
    ("/sys/class/net/*/operstate", None),
    ("/sys/class/net/*/carrier", None),
    ("/sys/class/net/*/speed", None),
    ("/sys/class/net/*/ifindex", None),
    ("/sys/class/net/*/flags", None),
    ("/sys/class/net/*/phys_port_name", None),
    ("/sys/class/net/*/phys_port_id", None),
    ("/sys/class/net/*/statistics/rx_bytes", None),
    ("/sys/class/net/*/statistics/tx_bytes", None),
    ("/sys/class/net/*/device/current_link_speed", None),
    ("/sys/class/net/*/device/current_link_width", None),
    ("/sys/class/net/*/device/max_link_speed", None),
    ("/sys/class/net/*/device/max_link_width", None),
    ("/sys/class/infiniband/*/fw_ver", None),
    ("/sys/class/infiniband/*/ports/*/state", None),
    ("/sys/class/infiniband/*/ports/*/phys_state", None),
    ("/sys/class/infiniband/*/ports/*/link_layer", None),
    ("/sys/class/infiniband/*/ports/*/rate", None),
    ("/sys/class/infiniband/*/ports/*/gids/*", None),
    ("/sys/class/infiniband/*/ports/*/gid_attrs/types/*", None),
    ("/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*", None),
    ("/sys/class/infiniband/*/ports/*/counters/*", None),
    ("/sys/class/infiniband/*/ports/*/hw_counters/*", None),
    ("/sys/class/dmi/id/product_name", None),
    ("/sys/class/dmi/id/bios_version", None),
    ("/sys/class/dmi/id/bios_date", None),
    ("/sys/block/*/size", None),
    ("/sys/block/*/device/model", None),
    ("/var/lib/railweave/drives/*/reads_per_second", None),
    ("/proc/cmdline", None),
    ("/proc/sys/net/ipv4/ip_forward", None),
    ("/proc/sys/kernel/osrelease", None),
    ("/proc/sys/kernel/hostname", None),
    ("/proc/sys/kernel/random/boot_id", None),
    ("/proc/sys/kernel/io_uring_disabled", None),
    ("/proc/meminfo", Some("Cma")),
    ("/proc/self/limits", Some("Max locked memory")),
    ("/proc/self/status", Some("Seccomp")),
    ("/proc/net/snmp", Some("Ip:")),
];

/// Symbolic links: where they lead is kept.
pub const LINKS: &[&str] = &["/sys/class/net/*/device", "/sys/class/infiniband/*/device"];

/// Folders whose presence says something; each is kept as an empty file.
pub const PRESENT: &[&str] = &["/sys/class/net/*/wireless", "/sys/class/net/*/bridge"];

/// For what a tool is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Each {
    /// Once.
    Host,
    /// For each netdev with a parent device; `@` stands for its name.
    Device,
    /// For each netdev that has an ingress queueing discipline; `@` stands for its name.
    Ingress,
    /// For each PCI function with an RDMA device; `@` stands for its address.
    Function,
}

/// A tool whose output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Its name in a recording.
    pub name: &'static str,
    /// For what it is run.
    pub each: Each,
    /// The program and its arguments; or a function of the script, where no program does it.
    pub command: &'static [&'static str],
}

const fn tool(name: &'static str, each: Each, command: &'static [&'static str]) -> Tool {
    Tool { name, each, command }
}

/// Programs that mark packets, by the name the kernel keeps of them (its first 15 bytes).
pub const MARKERS: &[&str] =
    &["mlx5-rdma-tx-rewrite-probe", "mesh_marker", "ring8-mesh-marker", "railweave-mark"];

/// Variables of the environment that say where ranks meet and which devices they use. No others are read.
pub const VARIABLES: &[&str] = &[
    "MASTER_ADDR",
    "MASTER_PORT",
    "RAILWEAVE_MEET",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "VLLM_HOST_IP",
    "RAY_ADDRESS",
    "B12X_ROCE_HCA",
    "B12X_ROCE_GID_INDEX",
];

/// All tools, in the order they are run. The clock comes first: the reader takes the time at which its answer arrives.
///
/// `ip -N` prints protocols and scopes as numbers, so that the names in a host's `/etc/iproute2` play no part.
pub const TOOLS: &[Tool] = &[
    tool("clock", Each::Host, &["date", "+%s%N"]),
    tool("ip-address", Each::Host, &["ip", "-j", "-d", "address", "show"]),
    tool("ip-route", Each::Host, &["ip", "-4", "-N", "-j", "route", "show", "table", "all"]),
    tool("ip-neigh", Each::Host, &["ip", "-4", "-N", "-j", "neigh", "show"]),
    tool("tc-qdisc", Each::Host, &["tc", "-j", "qdisc", "show"]),
    tool("tc-filter", Each::Ingress, &["tc", "-j", "-s", "filter", "show", "dev", "@", "ingress"]),
    tool("tc-egress", Each::Ingress, &["tc", "-j", "-s", "filter", "show", "dev", "@", "egress"]),
    tool("devlink-param", Each::Host, &["devlink", "-j", "dev", "param", "show"]),
    tool("devlink-eswitch", Each::Function, &["devlink", "-j", "dev", "eswitch", "show", "pci/@"]),
    tool("ethtool-features", Each::Device, &["ethtool", "-k", "@"]),
    tool("rdma-link", Each::Host, &["rdma", "-j", "link"]),
    tool("ibv_devinfo", Each::Host, &["ibv_devinfo"]),
    tool("iptables-FORWARD", Each::Host, &["iptables", "-S", "FORWARD"]),
    tool("iptables-DOCKER-USER", Each::Host, &["iptables", "-S", "DOCKER-USER"]),
    tool("lldpcli", Each::Host, &["lldpcli", "-f", "json", "show", "neighbors"]),
    tool("networkctl-lldp", Each::Host, &["networkctl", "lldp", "--json=short"]),
    tool("machine-id", Each::Host, &["sha256sum", "/etc/machine-id"]),
    tool("binary", Each::Host, &["binary"]),
    tool("cluster-file", Each::Host, &["sha256sum", CLUSTER_FILE]),
    tool("environment", Each::Host, &["variables"]),
    tool("markers", Each::Host, &["markers"]),
];

/// A tool's name in a recording, for one netdev or PCI function.
pub fn name_for(tool: &str, of: &str) -> String {
    format!("{tool}.{of}")
}
