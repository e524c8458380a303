//! Why nothing is changed on a host: what is in the way, who made it, and what its owner may do.

use std::net::Ipv4Addr;

use serde::Serialize;

use crate::address::{Interface, Mac, Pci};

/// Something in the way. While there is one, nothing is changed on that host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", tag = "refused")]
#[non_exhaustive]
pub enum Refusal {
    /// The plan has no such rank.
    #[error("the plan has ranks 0 to {last}, and rank {rank} is none of them")]
    NoSuchRank {
        /// As asked for.
        rank: usize,
        /// The last there is.
        last: usize,
    },
    /// The plan contradicts itself.
    #[error(
        "the plan of {path} cannot be turned into rules: {what}; make the plan again from the cluster file"
    )]
    BrokenPlan {
        /// The path.
        path: String,
        /// How.
        what: String,
    },
    /// Packets would get there and nothing would come back.
    #[error(
        "{path} is forwarded, but the way back is not the same rail in reverse, so no acknowledgement would arrive; \
         route both directions alike or neither"
    )]
    OneWay {
        /// The path.
        path: String,
    },
    /// A function without an address cannot be an end of a forwarded path.
    #[error(
        "{path} needs an address at {function}, and the cluster file gives it none; add `address`"
    )]
    NoAddress {
        /// The path.
        path: String,
        /// The function.
        function: String,
    },
    /// One address, two ways.
    #[error(
        "{ip} would be reached in two ways, by {first} and by {second}, and a host has one route to an address; \
         take one of the two rails out with a [[route]]"
    )]
    TwoWays {
        /// The address.
        ip: Ipv4Addr,
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// A relay could not tell two paths apart.
    #[error(
        "{function} would have to pass on packets of {source_function} with EtherType {ether_type:#06x} in two \
         different ways, for {first} and for {second}; relay one of the two with a [[route]]"
    )]
    Ambiguous {
        /// Where they arrive.
        function: String,
        /// Where they come from.
        source_function: String,
        /// Their tag.
        ether_type: u16,
        /// The one path.
        first: String,
        /// The other.
        second: String,
    },
    /// More than the numbers set aside.
    #[error("{what} would need more than {most}; relay some of the paths with a [[route]]")]
    TooMany {
        /// What.
        what: String,
        /// How many there may be.
        most: usize,
    },
    /// A function that the host does not have.
    #[error(
        "{function} is not on this host: no netdev has MAC {mac} (it was {netdev} when the file was written); \
         if the NIC was replaced or the function is off, mend that, then run `railweave discover` again"
    )]
    NoNetdev {
        /// The function.
        function: String,
        /// Its MAC.
        mac: Mac,
        /// Its netdev, by the file.
        netdev: String,
    },
    /// No RDMA device to mark packets on.
    #[error(
        "{function} ({netdev}) has no RDMA device to mark packets on; is its RDMA driver loaded? See `rdma link`"
    )]
    NoRdma {
        /// The function.
        function: String,
        /// Its netdev.
        netdev: String,
    },
    /// A netdev that is to pass packets on is not a PCI function's.
    #[error(
        "{function} ({netdev}) should pass packets on in hardware and is not a PCI function; for a link in \
         software (soft-RoCE) say marker = \"tc\" in the cluster file, otherwise forward = \"off\""
    )]
    NoPci {
        /// The function.
        function: String,
        /// Its netdev.
        netdev: String,
    },
    /// The driver has no such setting.
    #[error(
        "the driver of pci/{pci} ({netdev}) has no parameter {parameter}, so the NIC cannot pass packets on; \
         set forward = \"off\", or take a kernel whose mlx5 driver has it"
    )]
    NoParameter {
        /// The function.
        pci: Pci,
        /// Its netdev.
        netdev: String,
        /// The parameter.
        parameter: String,
    },
    /// The eswitch belongs to somebody's virtual functions.
    #[error(
        "the eswitch of pci/{pci} ({netdev}) is in mode {mode}, which somebody set for virtual functions; forwarding \
         needs legacy, and changing it takes their netdevs away: if nobody needs them, \
         `devlink dev eswitch set pci/{pci} mode legacy`"
    )]
    Eswitch {
        /// The function.
        pci: Pci,
        /// Its netdev.
        netdev: String,
        /// The mode it is in.
        mode: String,
    },
    /// The address is not there.
    #[error(
        "{netdev} ({function}) should have {wanted} and has {has}; set it where this host's addresses are set \
         (netplan, systemd-networkd), or let `railweave apply --set-addresses` add it until the next boot"
    )]
    AddressMissing {
        /// The netdev.
        netdev: String,
        /// The function.
        function: String,
        /// What it should have.
        wanted: Interface,
        /// What it has.
        has: String,
    },
    /// The address is somewhere else, or another address is in its place.
    #[error(
        "{wanted} belongs on {netdev}, and {other} has {found}; remove that first, or put it right in the cluster file: \
         `ip address del {found} dev {other}`"
    )]
    AddressInTheWay {
        /// What should be.
        wanted: Interface,
        /// Where.
        netdev: String,
        /// The netdev that is in the way.
        other: String,
        /// The address it has.
        found: Interface,
    },
    /// The link is set down.
    #[error(
        "{netdev} ({function}) is set down; `ip link set {netdev} up`, or `railweave apply --set-addresses`"
    )]
    LinkDown {
        /// The netdev.
        netdev: String,
        /// The function.
        function: String,
    },
    /// Somebody's route.
    #[error(
        "there is a route to {to} on {netdev} of {made_by}, which Railweave did not make; if nothing needs it: \
         `ip route del {to} dev {netdev}`"
    )]
    ForeignRoute {
        /// Where it leads.
        to: Interface,
        /// By which netdev.
        netdev: String,
        /// Who made it.
        made_by: String,
    },
    /// Somebody's neighbour.
    #[error(
        "there is a permanent neighbour {ip} at {mac} on {netdev} of {made_by}, which Railweave did not make; packets \
         have to go to {wanted}: if nothing needs it, `ip neigh del {ip} dev {netdev}`"
    )]
    ForeignNeighbour {
        /// The address.
        ip: Ipv4Addr,
        /// The netdev.
        netdev: String,
        /// Where it leads now.
        mac: String,
        /// Where it should lead.
        wanted: Mac,
        /// Who made it.
        made_by: String,
    },
    /// Somebody's filter.
    #[error(
        "{netdev} has an ingress filter with preference {preference} and handle {handle} that Railweave did not make: \
         {what}; if nothing needs it: `tc filter del dev {netdev} ingress pref {preference}`"
    )]
    ForeignFilter {
        /// The netdev.
        netdev: String,
        /// Its preference.
        preference: u32,
        /// Its handle.
        handle: u32,
        /// Why it is in the way.
        what: String,
    },
    /// Somebody's egress filter.
    #[error(
        "{netdev} has an egress filter with preference {preference} and handle {handle}, a preference of Railweave's \
         and not the look of its filters; if nothing needs it: `tc filter del dev {netdev} egress pref {preference}`"
    )]
    ForeignMark {
        /// The netdev.
        netdev: String,
        /// Its preference.
        preference: u32,
        /// Its handle.
        handle: u32,
    },
}

/// Who makes routes with a protocol number, for those that are met on such hosts.
pub(super) fn maker(protocol: &str) -> String {
    let name = match protocol {
        "2" | "kernel" => "the kernel",
        "3" | "boot" => "somebody who typed `ip`",
        "4" | "static" => "somebody's configuration",
        "16" | "dhcp" => "a DHCP client",
        "12" | "bird" => "BIRD",
        "82" => "sparkring",
        "11" | "zebra" | "186" | "bgp" | "187" | "isis" | "188" | "ospf" | "189" | "rip" => {
            "a routing daemon"
        }
        _ => return format!("protocol {protocol}"),
    };
    format!("{name} (protocol {protocol})")
}
