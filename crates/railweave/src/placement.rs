//! Where a rank sits in the machine room: what the cluster file and its plan say of this host.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cluster::address::Mac;
use cluster::file::{ClusterFile, FileError, Forward, MAX_BYTES};
use cluster::plan::{FunctionRef, PathKind, PathPlan, Plan, PlanError, PlanOptions, Rail};
use fabric::verbs::Forwarded;
use fabric::{Cable, DataAddresses, MAX_RAILS, Topology, TopologyError, Way};
use group::control::CableNames;

use crate::local;

/// Where rank 0's host lets the ranks meet, unless `master` says otherwise.
const MASTER_PORT: u16 = 29_400;

/// Why a rank does not find its place.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The host has no address on the management network.
    #[error(
        "{path}: host {host} has no control address, so the ranks cannot meet there; add control = \
         \"ADDRESS\" to it, or set master = HOST:PORT"
    )]
    Control {
        /// The file.
        path: PathBuf,
        /// The host of rank 0.
        host: String,
    },
    /// The file is not valid.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<FileError>,
    },
    /// A function has no address.
    #[error(
        "{path}: {function} has no address, so no bytes can go to rank {peer}; run `railweave \
         discover --assign-addresses` and `railweave apply --apply --set-addresses`"
    )]
    NoAddress {
        /// The file.
        path: PathBuf,
        /// The function.
        function: String,
        /// Where its rail leads.
        peer: usize,
    },
    /// No paths follow from the file.
    #[error("{path}: {source}")]
    Plan {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<PlanError>,
    },
    /// The cables do not join all ranks.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A launcher gave this process another rank than the file.
    #[error(
        "{path}: host {host} is rank {rank} by the order of hosts, but the launcher says {launched}; \
         order the hosts as the launcher does"
    )]
    OtherRank {
        /// The file.
        path: PathBuf,
        /// This host.
        host: String,
        /// Its rank in the file.
        rank: usize,
        /// Its rank by the launcher.
        launched: u32,
    },
    /// The file names no such host, or no host that this could be.
    #[error("{path}: {why}; set host = NAME, one of {names}")]
    UnknownHost {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
        /// The hosts there are.
        names: String,
    },
    /// The file cannot be read.
    #[error("cannot read the cluster file {path}: {source}; `railweave discover` writes one")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The place of this rank.
#[derive(Debug, Clone)]
pub struct Placement {
    path: PathBuf,
    plan: Plan,
    rank: usize,
}

impl Placement {
    /// Reads the file and finds this host in it: by `host`, or by the hardware addresses of its functions. `forward`
    /// is used instead of what the file says.
    ///
    /// # Errors
    /// See [`PlacementError`].
    pub fn read(path: &Path, host: &str, forward: Option<Forward>) -> Result<Self, PlacementError> {
        let text = local::read_text(path, MAX_BYTES as u64)
            .map_err(|source| PlacementError::Unreadable { path: path.to_owned(), source })?;
        let file = ClusterFile::parse(&text).map_err(|source| PlacementError::File {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let options = PlanOptions { forward, ..PlanOptions::default() };
        let plan = Plan::of(&file, &options).map_err(|source| PlacementError::Plan {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        let rank = find_rank(&plan, host, &local::own_macs()).map_err(|why| {
            PlacementError::UnknownHost {
                path: path.to_owned(),
                why,
                names: plan
                    .ranks
                    .iter()
                    .map(|rank| rank.host.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            }
        })?;
        Ok(Self { path: path.to_owned(), plan, rank })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.plan.ranks.len()
    }

    /// This host.
    #[must_use]
    pub fn host(&self) -> &str {
        self.plan.ranks.get(self.rank).map_or("", |rank| &rank.host)
    }

    /// What all ranks must have the same of.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.plan.digest
    }

    /// This host's address on the management network, if the file has one.
    #[must_use]
    pub fn control(&self) -> Option<&str> {
        self.plan.ranks.get(self.rank)?.control.as_deref()
    }

    /// Where the ranks meet: at the control address of rank 0's host.
    ///
    /// # Errors
    /// The file has no such address.
    pub fn master(&self) -> Result<String, PlacementError> {
        let first = self.plan.ranks.first();
        let control = first.and_then(|rank| rank.control.as_deref());
        let control = control.ok_or_else(|| PlacementError::Control {
            path: self.path.clone(),
            host: first.map_or(String::new(), |rank| rank.host.clone()),
        })?;
        Ok(match control.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{MASTER_PORT}"),
            _ => format!("{control}:{MASTER_PORT}"),
        })
    }

    /// That a launcher's rank is the one of the file.
    ///
    /// # Errors
    /// It is another.
    pub fn check_rank(&self, launched: u32) -> Result<(), PlacementError> {
        if usize::try_from(launched) == Ok(self.rank) {
            return Ok(());
        }
        Err(PlacementError::OtherRank {
            path: self.path.clone(),
            host: self.host().to_owned(),
            rank: self.rank,
            launched,
        })
    }

    /// What follows from the file.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The cables between ranks, each of which has as many rails as every one of them has, and the ways to distant
    /// ranks.
    ///
    /// # Errors
    /// More ranks than a group can have.
    pub fn topology(&self) -> Result<Topology, PlacementError> {
        let direct = || self.plan.paths.iter().filter(|path| path.kind == PathKind::Direct);
        let cables = direct().map(|path| Cable::between(path.from, path.to)).collect();
        let rails = direct().map(|path| path.rails.len()).min().unwrap_or(1).min(MAX_RAILS);
        let distant = self.plan.paths.iter();
        let distant = distant.filter(|path| path.kind != PathKind::Direct && path.from < path.to);
        let ways = distant.flat_map(|path| {
            let forwarded = path.kind == PathKind::Forwarded;
            let rails = path.rails.iter().take(MAX_RAILS).enumerate();
            rails.map(move |(rail, of)| Way { hops: of.hops.clone(), rail, forwarded })
        });
        Ok(Topology::of_cables(self.ranks(), rails, cables)?.with_ways(ways.collect())?)
    }

    /// This host's addresses towards each rank that it exchanges packets with, by rail.
    ///
    /// # Errors
    /// A function that carries a rail has none.
    pub fn data_addresses(&self) -> Result<DataAddresses, PlacementError> {
        let mut addresses = DataAddresses::default();
        for path in self.plan.paths.iter().filter(|path| path.from == self.rank) {
            let rails = path.rails.iter();
            match path.kind {
                PathKind::Direct => {
                    let list =
                        rails.map(|rail| self.address(path, rail)).collect::<Result<_, _>>()?;
                    addresses.towards.insert(path.to, list);
                }
                PathKind::Forwarded => {
                    for (number, rail) in rails.take(MAX_RAILS).enumerate() {
                        let forwarded = Forwarded {
                            flow_label: rail.tag.as_ref().map_or(0, |tag| tag.flow_label),
                            source_port: rail.tag.as_ref().and_then(|tag| tag.source_port),
                            window_bytes: self.plan.forward_window_bytes(path, number),
                        };
                        let address = self.address(path, rail)?;
                        addresses.forwarded.insert((path.to, number), (address, forwarded));
                    }
                }
                PathKind::Relayed => {}
            }
        }
        Ok(addresses)
    }

    /// The address that a rail leaves from.
    fn address(&self, path: &PathPlan, rail: &Rail) -> Result<IpAddr, PlacementError> {
        let out = rail.crossings.first().map(|crossing| &crossing.out);
        out.and_then(|out| out.ip).map(IpAddr::V4).ok_or_else(|| PlacementError::NoAddress {
            path: self.path.clone(),
            function: out.map_or_else(String::new, FunctionRef::label),
            peer: path.to,
        })
    }

    /// What people call the cables, for verdicts.
    #[must_use]
    pub fn cable_names(&self) -> CableNames {
        let mut names = CableNames::new();
        for path in &self.plan.paths {
            let crossing = path.rails.first().and_then(|rail| rail.crossings.first());
            if path.kind == PathKind::Direct
                && let Some(cable) = crossing.and_then(|at| self.plan.cables.get(at.cable))
                && let (Ok(from), Ok(to)) = (u8::try_from(path.from), u8::try_from(path.to))
            {
                names.insert((from.min(to), from.max(to)), cable.name.clone());
            }
        }
        names
    }
}

fn find_rank(plan: &Plan, host: &str, own: &[Mac]) -> Result<usize, String> {
    if !host.is_empty() {
        let found = plan.ranks.iter().find(|rank| rank.host == host);
        return found.map(|rank| rank.rank).ok_or_else(|| format!("there is no host {host:?}"));
    }
    let mine = |rank: &&cluster::plan::RankPlan| {
        rank.functions.iter().any(|function| own.contains(&function.mac))
    };
    let found: Vec<_> = plan.ranks.iter().filter(mine).collect();
    match found[..] {
        [rank] => Ok(rank.rank),
        [] => Err("no host has a function with a hardware address of this machine".to_owned()),
        _ => Err("several hosts have functions with hardware addresses of this machine".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/fixtures/gb10-ring4/cluster.toml")
    }

    #[test]
    fn a_host_of_a_ring_finds_its_addresses_and_cables() {
        let place = Placement::read(&fixture(), "spark1", None).unwrap();
        assert_eq!((place.rank(), place.ranks(), place.host()), (1, 4, "spark1"));
        assert_eq!(place.master().unwrap(), "192.168.1.10:29400");
        let ways = "0>1>2 0>3>2 1>2>3 1>0>3";
        assert_eq!(place.topology().unwrap().to_string(), format!("0-1 0-3 1-2 2-3 {ways}"));
        assert_eq!(place.topology().unwrap().rails(), 2);
        let addresses = place.data_addresses().unwrap().towards;
        let text = |peer: usize| {
            addresses[&peer].iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text(0), "10.10.0.2 10.10.1.2");
        assert_eq!(text(2), "10.10.2.1 10.10.3.1");
        assert!(!addresses.contains_key(&3), "no cable");
        let names = place.cable_names();
        assert_eq!(names.len(), 4);
        assert!(names[&(0, 1)].contains("spark0.p0") && names[&(0, 1)].contains("spark1.p1"));
        assert!(place.check_rank(1).is_ok());
        let other = place.check_rank(2).unwrap_err().to_string();
        assert!(other.contains("spark1 is rank 1"), "{other}");
    }

    #[test]
    fn both_ends_of_a_cable_number_its_rails_alike() {
        let towards = |host: &str, peer: usize| {
            let place = Placement::read(&fixture(), host, None).unwrap();
            place.data_addresses().unwrap().towards[&peer].clone()
        };
        for (a, b) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
            let near = towards(&format!("spark{a}"), b);
            let far = towards(&format!("spark{b}"), a);
            assert_eq!(near.len(), far.len());
            for (near, far) in near.iter().zip(&far) {
                let network = |ip: &IpAddr| match ip {
                    IpAddr::V4(ip) => [ip.octets()[0], ip.octets()[1], ip.octets()[2]],
                    IpAddr::V6(_) => [0; 3],
                };
                assert_eq!(network(near), network(far), "{a}-{b}");
            }
        }
    }

    #[test]
    fn forwarded_paths_have_addresses_labels_and_windows() {
        let place = Placement::read(&fixture(), "spark0", Some(Forward::Required)).unwrap();
        let topology = place.topology().unwrap();
        assert_eq!(topology.to_string(), "0-1 0-3 1-2 2-3 0>1>2 0>3>2 1>2>3 1>0>3");
        let forwarded = place.data_addresses().unwrap().forwarded;
        let rails: Vec<_> = forwarded
            .iter()
            .map(|(end, (address, of))| (*end, address.to_string(), of.flow_label, of.window_bytes))
            .collect();
        // Two ports, so two rails, by way of each neighbour; the two share no function that passes packets on.
        assert_eq!(
            rails,
            [
                ((2, 0), "10.10.0.1".to_owned(), 0, 393_216),
                ((2, 1), "10.10.7.2".to_owned(), 0, 393_216),
            ]
        );
    }

    #[test]
    fn a_host_is_found_by_its_hardware_addresses() {
        let plan = Placement::read(&fixture(), "spark0", None).unwrap().plan;
        let mac: Mac = "4c:bb:47:00:02:11".parse().unwrap();
        let stranger: Mac = "02:00:00:00:00:01".parse().unwrap();
        assert_eq!(find_rank(&plan, "", &[stranger, mac]), Ok(2));
        assert!(find_rank(&plan, "", &[stranger]).is_err());
        assert!(find_rank(&plan, "spark9", &[mac]).unwrap_err().contains("spark9"));
        let both = ["4c:bb:47:00:00:00".parse().unwrap(), mac];
        assert!(find_rank(&plan, "", &both).unwrap_err().contains("several"));
    }

    #[test]
    fn a_file_that_is_not_there_says_how_to_make_one() {
        let error = Placement::read(Path::new("/no/such/cluster.toml"), "", None).unwrap_err();
        assert!(error.to_string().contains("railweave discover"), "{error}");
    }
}
