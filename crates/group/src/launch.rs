//! Which rank this process is, from the environment of whatever started it: torchrun, Slurm, Open MPI, or another MPI.
//!
//! Pure: the environment comes in as a map. A launcher's variables count only when all that it needs are there; values
//! that contradict each other are errors, never a guess.

use std::collections::BTreeMap;
use std::fmt;

use crate::beacon::MAX_RANKS;

/// Where the numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// `RANK` and `WORLD_SIZE`: torchrun and those that follow it.
    Torchrun,
    /// `SLURM_PROCID` and `SLURM_NTASKS`.
    Slurm,
    /// `OMPI_COMM_WORLD_RANK` and `OMPI_COMM_WORLD_SIZE`.
    OpenMpi,
    /// `PMI_RANK` and `PMI_SIZE`: MPICH and its kin.
    Pmi,
    /// `PMIX_RANK`, with the size from `PMIX_SIZE` or another launcher's variable.
    Pmix,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun (RANK, WORLD_SIZE)",
            Self::Slurm => "Slurm (SLURM_PROCID, SLURM_NTASKS)",
            Self::OpenMpi => "Open MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE)",
            Self::Pmi => "PMI (PMI_RANK, PMI_SIZE)",
            Self::Pmix => "PMIx (PMIX_RANK)",
        })
    }
}

/// What the environment says of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// This rank.
    pub rank: usize,
    /// Ranks of the group.
    pub size: usize,
    /// Number among the ranks of this machine, where the launcher says it.
    pub local_rank: Option<usize>,
    /// Host name or address of rank 0, and port, where the launcher says them.
    pub master: Master,
    /// Who said it.
    pub source: Source,
}

/// Where rank 0 is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Master {
    /// Host name or address.
    pub host: Option<String>,
    /// Port.
    pub port: Option<u16>,
}

/// Why an environment makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// Not a number of the expected kind.
    #[error("{variable}={value:?} is not a whole number from {least} to {most}")]
    Number {
        /// Which variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// Least value.
        least: usize,
        /// Greatest value.
        most: usize,
    },
    /// One of a pair is missing.
    #[error("{present} is set and {missing} is not; set both, or neither")]
    Incomplete {
        /// What is there.
        present: &'static str,
        /// What is not.
        missing: &'static str,
    },
    /// The rank is not one of the group's.
    #[error("{rank_variable}={rank} is not a rank of a group of {size} ({size_variable})")]
    RankOutOfRange {
        /// Variable of the rank.
        rank_variable: &'static str,
        /// Its value.
        rank: usize,
        /// Variable of the size.
        size_variable: &'static str,
        /// Its value.
        size: usize,
    },
    /// Two variables that mean one thing differ.
    #[error(
        "{a}={a_value} and {b}={b_value} contradict each other; unset the one that is left over from another launcher"
    )]
    Contradiction {
        /// One variable.
        a: &'static str,
        /// Its value.
        a_value: String,
        /// The other.
        b: &'static str,
        /// Its value.
        b_value: String,
    },
    /// A list of nodes that cannot be read.
    #[error("{variable}={value:?} is not a list of nodes, such as \"n[1-4],login\"")]
    NodeList {
        /// Which variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
}

struct Launcher {
    source: Source,
    rank: &'static str,
    sizes: &'static [&'static str],
    local_rank: &'static str,
}

/// In the order of preference: what a user sets by hand before what the machine sets.
const LAUNCHERS: [Launcher; 5] = [
    Launcher {
        source: Source::Torchrun,
        rank: "RANK",
        sizes: &["WORLD_SIZE"],
        local_rank: "LOCAL_RANK",
    },
    Launcher {
        source: Source::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        sizes: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    },
    Launcher {
        source: Source::Pmi,
        rank: "PMI_RANK",
        sizes: &["PMI_SIZE"],
        local_rank: "MPI_LOCALRANKID",
    },
    Launcher {
        source: Source::Slurm,
        rank: "SLURM_PROCID",
        sizes: &["SLURM_NTASKS", "SLURM_NPROCS"],
        local_rank: "SLURM_LOCALID",
    },
    Launcher {
        source: Source::Pmix,
        rank: "PMIX_RANK",
        sizes: &["PMIX_SIZE", "SLURM_NTASKS"],
        local_rank: "PMIX_LOCAL_RANK",
    },
];

/// What the environment says of this process; `None` when no launcher is recognised.
///
/// # Errors
/// Values that are malformed, incomplete, or contradict each other; the variables are named.
pub fn detect(environment: &BTreeMap<String, String>) -> Result<Option<Launch>, LaunchError> {
    let mut found: Option<(Launch, &'static str, &'static str)> = None;
    for launcher in &LAUNCHERS {
        let Some((rank, size, size_variable)) = numbers(environment, launcher)? else { continue };
        if let Some((first, rank_of, size_of)) = &found {
            agree((rank_of, first.rank), (launcher.rank, rank))?;
            agree((size_of, first.size), (size_variable, size))?;
            continue;
        }
        let most = size - 1;
        let local_rank = number(environment, launcher.local_rank, 0, most)?;
        let launch = Launch {
            rank,
            size,
            local_rank,
            master: master(environment)?,
            source: launcher.source,
        };
        found = Some((launch, launcher.rank, size_variable));
    }
    Ok(found.map(|(launch, ..)| launch))
}

fn agree(a: (&'static str, usize), b: (&'static str, usize)) -> Result<(), LaunchError> {
    if a.1 == b.1 {
        return Ok(());
    }
    Err(LaunchError::Contradiction {
        a: a.0,
        a_value: a.1.to_string(),
        b: b.0,
        b_value: b.1.to_string(),
    })
}

type Numbers = Option<(usize, usize, &'static str)>;

fn numbers(
    environment: &BTreeMap<String, String>,
    launcher: &Launcher,
) -> Result<Numbers, LaunchError> {
    let rank = number(environment, launcher.rank, 0, MAX_RANKS - 1)?;
    let mut size = None;
    for variable in launcher.sizes {
        if let Some(value) = number(environment, variable, 1, MAX_RANKS)? {
            size = Some((value, *variable));
            break;
        }
    }
    match (rank, size) {
        (Some(rank), Some((size, size_variable))) if rank >= size => {
            let rank_variable = launcher.rank;
            Err(LaunchError::RankOutOfRange { rank_variable, rank, size_variable, size })
        }
        (Some(rank), Some((size, variable))) => Ok(Some((rank, size, variable))),
        // `salloc` and `sbatch` set the size without a rank; some MPI daemons set PMIX_RANK for themselves.
        (Some(_), None) if launcher.source == Source::Pmix => Ok(None),
        (Some(_), None) => {
            Err(LaunchError::Incomplete { present: launcher.rank, missing: launcher.sizes[0] })
        }
        (None, Some((_, variable)))
            if matches!(launcher.source, Source::Torchrun | Source::OpenMpi | Source::Pmi) =>
        {
            Err(LaunchError::Incomplete { present: variable, missing: launcher.rank })
        }
        (None, _) => Ok(None),
    }
}

fn number(
    environment: &BTreeMap<String, String>,
    variable: &'static str,
    least: usize,
    most: usize,
) -> Result<Option<usize>, LaunchError> {
    let Some(value) = environment.get(variable) else { return Ok(None) };
    let parsed = value.trim().parse().ok().filter(|number| (least..=most).contains(number));
    match parsed {
        Some(number) => Ok(Some(number)),
        None => Err(LaunchError::Number { variable, value: value.clone(), least, most }),
    }
}

fn master(environment: &BTreeMap<String, String>) -> Result<Master, LaunchError> {
    let port = number(environment, "MASTER_PORT", 1, usize::from(u16::MAX))?
        .and_then(|port| u16::try_from(port).ok());
    if let Some(host) = environment.get("MASTER_ADDR").filter(|host| !host.trim().is_empty()) {
        return Ok(Master { host: Some(host.trim().to_owned()), port });
    }
    for variable in ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"] {
        if let Some(value) = environment.get(variable) {
            let host = first_node(value)
                .ok_or_else(|| LaunchError::NodeList { variable, value: value.clone() })?;
            return Ok(Master { host: Some(host), port });
        }
    }
    Ok(Master { host: None, port })
}

/// The first host of a Slurm list, such as `n[03-05,9],login` or `rack[1-2]n[1-4]`.
pub fn first_node(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while !rest.is_empty() {
        let end = rest.find(['[', ',', ']']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        match rest[end..].chars().next() {
            None | Some(',') => break,
            Some('[') => {
                let inside = &rest[end + 1..];
                let close = inside.find(']')?;
                let first = inside[..close].split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                rest = &inside[close + 1..];
            }
            Some(_) => return None,
        }
    }
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (!host.is_empty() && host.chars().all(valid)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_launcher_is_recognised() {
        type Row<'a> = (&'a [(&'a str, &'a str)], (usize, usize, Option<usize>, Source));
        let table: [Row<'_>; 6] = [
            (
                &[("RANK", "2"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")],
                (2, 4, Some(0), Source::Torchrun),
            ),
            (
                &[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "3"), ("SLURM_LOCALID", "1")],
                (1, 3, Some(1), Source::Slurm),
            ),
            (
                &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")],
                (0, 2, None, Source::OpenMpi),
            ),
            (&[("PMI_RANK", "3"), ("PMI_SIZE", "4")], (3, 4, None, Source::Pmi)),
            (&[("PMIX_RANK", "3"), ("PMIX_SIZE", "16")], (3, 16, None, Source::Pmix)),
            (&[("PMIX_RANK", "1"), ("SLURM_NTASKS", "2")], (1, 2, None, Source::Pmix)),
        ];
        for (pairs, expected) in table {
            let launch = detect(&env(pairs)).unwrap().unwrap();
            assert_eq!(
                (launch.rank, launch.size, launch.local_rank, launch.source),
                expected,
                "{pairs:?}"
            );
        }
        assert_eq!(detect(&env(&[("PATH", "/bin")])).unwrap(), None);
        // An allocation without a step is no launcher.
        assert_eq!(detect(&env(&[("SLURM_NTASKS", "4"), ("SLURM_NODELIST", "n1")])).unwrap(), None);
    }

    #[test]
    fn the_master_comes_from_its_variables_or_the_first_node() {
        let base =
            [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_NODELIST", "gpu[07-09,12]")];
        let launch = detect(&env(&base)).unwrap().unwrap();
        assert_eq!(launch.master, Master { host: Some("gpu07".into()), port: None });
        let mut given = base.to_vec();
        given.extend([("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")]);
        let launch = detect(&env(&given)).unwrap().unwrap();
        assert_eq!(launch.master, Master { host: Some("10.0.0.1".into()), port: Some(29500) });
    }

    #[test]
    fn what_makes_no_sense_names_the_variables() {
        let table: [(&[(&str, &str)], &str); 8] = [
            (&[("RANK", "x"), ("WORLD_SIZE", "4")], "RANK=\"x\""),
            (&[("RANK", "-1"), ("WORLD_SIZE", "4")], "RANK=\"-1\""),
            (
                &[("RANK", "4"), ("WORLD_SIZE", "4")],
                "RANK=4 is not a rank of a group of 4 (WORLD_SIZE)",
            ),
            (&[("RANK", "1")], "RANK is set and WORLD_SIZE is not"),
            (&[("WORLD_SIZE", "4")], "WORLD_SIZE is set and RANK is not"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "17")],
                "WORLD_SIZE=\"17\" is not a whole number from 1 to 16",
            ),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "4"), ("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4")],
                "RANK=1 and SLURM_PROCID=2 contradict",
            ),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_PORT", "99999")],
                "MASTER_PORT=\"99999\"",
            ),
        ];
        for (pairs, expected) in table {
            let error = detect(&env(pairs)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error} lacks {expected}");
        }
    }

    #[test]
    fn node_lists() {
        let table = [
            ("n1", Some("n1")),
            ("n1,n2", Some("n1")),
            ("n[1-4]", Some("n1")),
            ("n[003-010,12],login", Some("n003")),
            ("rack[1-2]n[5,7]", Some("rack1n5")),
            ("n[1-2].cluster.example", Some("n1.cluster.example")),
            ("", None),
            ("n[1-2", None),
            ("n[]", None),
            ("n[a-b]", None),
            ("n]1", None),
            ("a b", None),
            (",n1", None),
        ];
        for (list, expected) in table {
            assert_eq!(first_node(list).as_deref(), expected, "{list:?}");
        }
    }
}
