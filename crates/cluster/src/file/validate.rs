//! What makes a cluster file valid.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::error::{FileError, NAME_TAKES, nearest};
use super::{
    CableEntry, ClusterFile, Function, Host, MAX_FUNCTIONS, MAX_HOSTS, MAX_MTU_BYTES, MAX_NAME,
    MAX_PORTS, MAX_ROUTES, MAX_SWITCHES, MIN_MTU_BYTES, SCHEMA,
};

/// The end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// A port: the number of the host, and of the port on it.
    Port(usize, usize),
    /// A switch, by its number.
    Switch(usize),
}

/// A function with its place, for messages.
pub(super) struct Placed<'a> {
    pub(super) host: usize,
    pub(super) port: usize,
    pub(super) label: String,
    pub(super) function: &'a Function,
}

impl CableEntry {
    /// `a–b`, as it stands in messages.
    pub(crate) fn label(&self) -> String {
        format!("{}–{}", self.a, self.b)
    }
}

impl ClusterFile {
    /// Refuses a file whose parts do not fit together: unknown or repeated names, ports in two cables, addresses whose
    /// network is not at exactly the two ends of a cable (or at one switch), and values out of range.
    ///
    /// # Errors
    ///
    /// The first fault found, with its place and what would make it valid.
    pub fn validate(&self) -> Result<(), FileError> {
        if self.schema != SCHEMA {
            return Err(FileError::UnknownSchema { found: self.schema.chars().take(80).collect() });
        }
        if !(MIN_MTU_BYTES..=MAX_MTU_BYTES).contains(&self.mtu_bytes) {
            return Err(FileError::Mtu { mtu_bytes: self.mtu_bytes });
        }
        if self.hosts.is_empty() || self.hosts.len() > MAX_HOSTS {
            return Err(FileError::HostCount { count: self.hosts.len() });
        }
        if self.switches.len() > MAX_SWITCHES {
            return Err(FileError::switches(self.switches.len()));
        }
        if self.cables.len() > MAX_HOSTS * MAX_PORTS {
            return Err(FileError::cables(self.cables.len()));
        }
        if self.routes.len() > MAX_ROUTES {
            return Err(FileError::routes(self.routes.len()));
        }
        self.check_names()?;
        for host in &self.hosts {
            check_host(host)?;
        }
        let functions = self.placed();
        check_identities(&functions)?;
        let ends = self.ends()?;
        self.check_ports(&ends)?;
        self.check_networks(&functions, &ends)?;
        self.check_routes()
    }

    fn check_names(&self) -> Result<(), FileError> {
        let hosts =
            self.hosts.iter().enumerate().map(|(rank, host)| (&host.name, format!("host {rank}")));
        let switches = self
            .switches
            .iter()
            .enumerate()
            .map(|(i, switch)| (&switch.name, format!("switch {i}")));
        let mut seen: BTreeMap<&str, String> = BTreeMap::new();
        for (name, what) in hosts.chain(switches) {
            check_name("name", name, &what, true)?;
            if let Some(first) = seen.insert(name, what.clone()) {
                return Err(FileError::DuplicateHost { name: name.clone(), first, second: what });
            }
        }
        Ok(())
    }

    fn placed(&self) -> Vec<Placed<'_>> {
        let mut placed = Vec::new();
        for (h, host) in self.hosts.iter().enumerate() {
            for (p, port) in host.ports.iter().enumerate() {
                for (number, function) in port.functions.iter().enumerate() {
                    let label = format!("{}.{}.{number}", host.name, port.name);
                    placed.push(Placed { host: h, port: p, label, function });
                }
            }
        }
        placed
    }

    /// Both ends of each cable, `a`'s first.
    ///
    /// # Errors
    ///
    /// If an end is not written as one, or names what is not there.
    pub(crate) fn ends(&self) -> Result<Vec<(End, End)>, FileError> {
        self.cables
            .iter()
            .map(|cable| {
                let a = self.end(cable, &cable.a)?;
                if matches!(a, End::Switch(_)) {
                    return Err(self.no_end(cable, &cable.a, true));
                }
                Ok((a, self.end(cable, &cable.b)?))
            })
            .collect()
    }

    fn no_end(&self, cable: &CableEntry, end: &str, switch: bool) -> FileError {
        let example = self
            .hosts
            .iter()
            .find_map(|host| Some(format!("{}.{}", host.name, host.ports.first()?.name)));
        FileError::EndForm {
            cable: cable.label(),
            end: end.to_owned(),
            example: example.unwrap_or_else(|| "spark0.p0".to_owned()),
            switch,
        }
    }

    fn end(&self, cable: &CableEntry, text: &str) -> Result<End, FileError> {
        if let Some(switch) = self.switches.iter().position(|switch| switch.name == text) {
            return Ok(End::Switch(switch));
        }
        // Names of hosts may have dots, those of ports not.
        let Some((host_name, port_name)) = text.rsplit_once('.') else {
            let names = self.switches.iter().map(|switch| switch.name.as_str());
            return Err(match nearest(text, names) {
                Some(name) if !self.hosts.iter().any(|host| host.name == text) => {
                    FileError::UnknownHost {
                        cable: cable.label(),
                        host: text.to_owned(),
                        nearest: Some(name),
                    }
                }
                _ => self.no_end(cable, text, false),
            });
        };
        let Some(h) = self.hosts.iter().position(|host| host.name == host_name) else {
            let names = self.hosts.iter().map(|host| host.name.as_str());
            return Err(FileError::UnknownHost {
                cable: cable.label(),
                host: host_name.to_owned(),
                nearest: nearest(host_name, names),
            });
        };
        let ports = self.hosts.get(h).map(|host| host.ports.as_slice()).unwrap_or_default();
        let Some(p) = ports.iter().position(|port| port.name == port_name) else {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            return Err(FileError::UnknownPort {
                cable: cable.label(),
                host: host_name.to_owned(),
                port: port_name.to_owned(),
                nearest: nearest(port_name, names.iter().copied()),
                ports: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            });
        };
        Ok(End::Port(h, p))
    }

    fn check_ports(&self, ends: &[(End, End)]) -> Result<(), FileError> {
        let mut used: BTreeMap<End, &CableEntry> = BTreeMap::new();
        for (cable, &(a, b)) in self.cables.iter().zip(ends) {
            if a == b {
                return Err(FileError::SamePort { cable: cable.label(), port: cable.a.clone() });
            }
            for (end, name) in [(a, &cable.a), (b, &cable.b)] {
                let End::Port(..) = end else { continue };
                if let Some(first) = used.insert(end, cable) {
                    return Err(FileError::PortTwice {
                        port: name.clone(),
                        first: first.label(),
                        second: cable.label(),
                    });
                }
            }
            if let (End::Port(h, _), End::Port(other, _)) = (a, b)
                && h == other
                && let Some(host) = self.hosts.get(h)
            {
                return Err(FileError::SameHost { cable: cable.label(), host: host.name.clone() });
            }
        }
        Ok(())
    }

    fn check_routes(&self) -> Result<(), FileError> {
        for route in &self.routes {
            self.check_route(route)?;
        }
        Ok(())
    }

    /// Refuses a route that names unknown hosts, or that no cabling could make right.
    pub(crate) fn check_route(&self, route: &super::RouteEntry) -> Result<(), FileError> {
        for name in [&route.from, &route.to].into_iter().chain(&route.via) {
            if !self.hosts.iter().any(|host| host.name == *name) {
                return Err(FileError::RouteHost {
                    route: route.to_string(),
                    host: name.clone(),
                    nearest: nearest(name, self.hosts.iter().map(|host| host.name.as_str())),
                });
            }
        }
        route.check_form()
    }
}

/// Whether others could reach a host by this: an address that is one machine's, or what may be a name.
fn is_reachable(control: &str) -> bool {
    match control.parse::<IpAddr>() {
        Ok(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        Err(_) => {
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            control.starts_with(|c: char| c.is_ascii_alphanumeric())
                && control.chars().all(fine)
                && !control.chars().all(|c| c.is_ascii_digit() || c == '.')
        }
    }
}

fn check_host(host: &Host) -> Result<(), FileError> {
    let line = |what, text: &str, limit: usize| {
        if text.is_empty()
            || text.len() > limit
            || text.chars().any(|c| c.is_control() || c.is_whitespace())
        {
            return Err(FileError::Name {
                what,
                name: text.chars().take(limit).collect(),
                place: format!("host {}", host.name),
                takes: "text on one line without blanks, at most 512 bytes",
            });
        }
        Ok(())
    };
    line("reach", &host.reach, 512)?;
    if let Some(control) = &host.control {
        line("control", control, 512)?;
        if !is_reachable(control) {
            return Err(FileError::Name {
                what: "control",
                name: control.clone(),
                place: format!("host {}", host.name),
                takes: "an IP address of the management network, or a host name; no port",
            });
        }
    }
    if host.ports.len() > MAX_PORTS {
        return Err(FileError::PortCount { host: host.name.clone(), count: host.ports.len() });
    }
    for (p, port) in host.ports.iter().enumerate() {
        check_name("name", &port.name, &format!("port {p} of host {}", host.name), false)?;
        if host.ports.iter().take(p).any(|earlier| earlier.name == port.name) {
            return Err(FileError::DuplicatePort {
                host: host.name.clone(),
                port: port.name.clone(),
            });
        }
        if port.functions.is_empty() || port.functions.len() > MAX_FUNCTIONS {
            return Err(FileError::FunctionCount {
                port: format!("{}.{}", host.name, port.name),
                count: port.functions.len(),
            });
        }
        for (number, function) in port.functions.iter().enumerate() {
            let label = || format!("{}.{}.{number}", host.name, port.name);
            check_device("netdev", &function.netdev, 15, label)?;
            if let Some(rdma) = &function.rdma {
                check_device("rdma", rdma, 63, label)?;
            }
            // The lowest bit of the first byte marks addresses of groups.
            if function.mac.0[0] & 1 == 1 || function.mac.0 == [0; 6] {
                return Err(FileError::Mac { at: label(), mac: function.mac });
            }
        }
    }
    Ok(())
}

fn check_name(what: &'static str, name: &str, place: &str, dots: bool) -> Result<(), FileError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_') || (dots && c == '.');
    let starts = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if starts && name.len() <= MAX_NAME && name.chars().all(fits) {
        return Ok(());
    }
    let name = name.chars().take(MAX_NAME).collect();
    Err(FileError::Name { what, name, place: place.to_owned(), takes: NAME_TAKES })
}

/// Names of devices end up in commands, so they are made of letters no shell cares for. A netdev's name has at most
/// 15 bytes (IFNAMSIZ less the final zero), an RDMA device's 63 (IB_DEVICE_NAME_MAX less it).
fn check_device(
    what: &'static str,
    name: &str,
    limit: usize,
    label: impl Fn() -> String,
) -> Result<(), FileError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | ':');
    let starts = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    if starts && name.len() <= limit && name.chars().all(fits) {
        return Ok(());
    }
    Err(FileError::Name {
        what,
        name: name.chars().take(80).collect(),
        place: label(),
        takes: "letters, digits, '-', '_', '.', '@' and ':', at most 15 bytes for a netdev and 63 for an RDMA device",
    })
}

fn check_identities(functions: &[Placed<'_>]) -> Result<(), FileError> {
    let mut macs = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    let mut devices = BTreeMap::new();
    for placed in functions {
        let function = placed.function;
        if let Some(first) = macs.insert(function.mac, &placed.label) {
            let (first, second) = (first.clone(), placed.label.clone());
            return Err(FileError::DuplicateMac { mac: function.mac, first, second });
        }
        if let Some(address) = function.address
            && let Some(first) = addresses.insert(address.ip, &placed.label)
        {
            let (first, second) = (first.clone(), placed.label.clone());
            return Err(FileError::DuplicateAddress { ip: address.ip, first, second });
        }
        let names = [
            ("netdev", Some(function.netdev.clone())),
            ("rdma", function.rdma.clone()),
            ("pci", function.pci.map(|pci| pci.to_string())),
        ];
        for (what, name) in names {
            let Some(name) = name else { continue };
            if let Some(first) = devices.insert((placed.host, what, name.clone()), &placed.label) {
                let (first, second) = (first.clone(), placed.label.clone());
                return Err(FileError::DuplicateDevice { what, name, first, second });
            }
        }
    }
    Ok(())
}
