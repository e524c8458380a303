//! Recognises the launchers people already use by their environment: torchrun, Slurm, Open MPI, MPICH.

use std::fmt;

/// Who started this process as one rank of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, or anything that sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// `srun`.
    Slurm,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH, Intel MPI, or anything that speaks PMI.
    Pmi,
    /// The cluster file says which rank this host is.
    ClusterFile,
    /// Our own supervisor.
    Supervisor,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm",
            Self::OpenMpi => "Open MPI",
            Self::Pmi => "PMI",
            Self::ClusterFile => "the cluster file",
            Self::Supervisor => "railweave serve",
        })
    }
}

/// A process's place in its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Who started the process.
    pub launcher: Launcher,
    /// Its rank.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// Its number among the ranks of this machine, if known.
    pub local_rank: Option<u32>,
    /// How many ranks this machine runs, if known.
    pub local_ranks: Option<u32>,
    /// Where the ranks meet, if the launcher says so.
    pub master: Option<String>,
}

/// A launcher's environment makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LauncherError {
    /// A variable is missing.
    #[error("{launcher} set {present} but not {missing}; start railweave with the launcher itself")]
    Missing {
        /// The launcher.
        launcher: Launcher,
        /// What is there.
        present: &'static str,
        /// What is not.
        missing: &'static str,
    },
    /// A variable is not a number in range.
    #[error("environment {name}: {value:?} is not a number from 0 to 4294967295")]
    NotANumber {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The rank is not below the number of ranks.
    #[error("{launcher} says this is rank {rank} of {ranks}; ranks are numbered from 0")]
    OutOfRange {
        /// The launcher.
        launcher: Launcher,
        /// The rank.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
    },
}

struct Variables {
    launcher: Launcher,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    local_ranks: &'static str,
}

/// In this order: a launcher that was started inside another one is the nearer.
const KNOWN: &[Variables] = &[
    Variables {
        launcher: Launcher::Torchrun,
        rank: "RANK",
        ranks: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_ranks: "LOCAL_WORLD_SIZE",
    },
    Variables {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_ranks: "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    Variables {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        ranks: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_ranks: "MPI_LOCALNRANKS",
    },
    Variables {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        ranks: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_ranks: "SLURM_NTASKS_PER_NODE",
    },
];

/// Finds this process's seat, if a launcher gave it one. `get` reads an environment variable.
///
/// # Errors
/// A launcher's variables contradict each other.
pub fn detect(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Seat>, LauncherError> {
    let Some(names) = KNOWN.iter().find(|names| get(names.rank).is_some()) else {
        return Ok(None);
    };
    let number = |name: &'static str| {
        get(name)
            .map(|value| {
                value.parse::<u32>().map_err(|_| LauncherError::NotANumber { name, value })
            })
            .transpose()
    };
    let launcher = names.launcher;
    let missing = |missing| LauncherError::Missing { launcher, present: names.rank, missing };
    let rank = number(names.rank)?.ok_or_else(|| missing(names.rank))?;
    let ranks = number(names.ranks)?.ok_or_else(|| missing(names.ranks))?;
    if rank >= ranks {
        return Err(LauncherError::OutOfRange { launcher, rank, ranks });
    }
    let master = match (get("MASTER_ADDR"), get("MASTER_PORT")) {
        (Some(host), Some(port)) if host.contains(':') => Some(format!("[{host}]:{port}")),
        (Some(host), Some(port)) => Some(format!("{host}:{port}")),
        _ => None,
    };
    Ok(Some(Seat {
        launcher,
        rank,
        ranks,
        local_rank: number(names.local_rank)?,
        // A mixed job has text such as "2(x3)" here; then it is simply not known.
        local_ranks: number(names.local_ranks).unwrap_or(None),
        master,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seat(pairs: &[(&str, &str)]) -> Result<Option<Seat>, LauncherError> {
        detect(&|name| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn no_launcher_no_seat() {
        assert_eq!(seat(&[("MASTER_ADDR", "x")]), Ok(None));
    }

    #[test]
    fn each_launcher_gives_its_seat() {
        let torchrun = seat(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
        ]);
        assert_eq!(
            torchrun,
            Ok(Some(Seat {
                launcher: Launcher::Torchrun,
                rank: 3,
                ranks: 4,
                local_rank: Some(1),
                local_ranks: Some(2),
                master: Some("10.0.0.1:29500".to_owned()),
            }))
        );
        for (rank, ranks, launcher) in [
            ("SLURM_PROCID", "SLURM_NTASKS", Launcher::Slurm),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", Launcher::OpenMpi),
            ("PMI_RANK", "PMI_SIZE", Launcher::Pmi),
        ] {
            let seat = seat(&[(rank, "1"), (ranks, "2")]).unwrap().unwrap();
            assert_eq!((seat.launcher, seat.rank, seat.ranks), (launcher, 1, 2));
            assert_eq!((seat.local_rank, seat.master), (None, None));
        }
    }

    #[test]
    fn mpirun_inside_a_slurm_job_counts_as_mpirun() {
        let seat = seat(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ]);
        assert_eq!(seat.unwrap().unwrap().launcher, Launcher::OpenMpi);
    }

    #[test]
    fn nonsense_is_an_error_that_names_the_variable() {
        assert!(seat(&[("RANK", "1")]).unwrap_err().to_string().contains("WORLD_SIZE"));
        assert!(
            seat(&[("RANK", "x"), ("WORLD_SIZE", "2")]).unwrap_err().to_string().contains("RANK")
        );
        assert!(seat(&[("RANK", "2"), ("WORLD_SIZE", "2")]).is_err());
    }
}
