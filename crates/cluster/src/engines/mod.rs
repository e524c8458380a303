//! Environment variables that other engines need for the same paths.
//!
//! Every name and every form of a value here is one that the engine's own documentation or source gives;
//! `docs/operate/engines.md` says which. What a plan says and an engine cannot follow is an error, never a guess.

mod nccl;
mod oneshot;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::Serialize;

use crate::inventory::HostState;
use crate::inventory::host_state::Netdev;
use crate::plan::{FunctionRef, PathKind, PathPlan, Plan};
use crate::text::quoted;

/// An engine whose environment is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// NVIDIA's collective library.
    Nccl,
    /// RoCEnante with two paths for each peer, as in b12x and what grew from it.
    B12x,
    /// Ring sessions of sparkring.
    Sircl,
    /// One-shot collectives of dgx-spark-networking.
    Sparknet,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nccl, Self::B12x, Self::Sircl, Self::Sparknet];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::B12x => "b12x",
            Self::Sircl => "sircl",
            Self::Sparknet => "sparknet",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        Self::ALL
            .into_iter()
            .find(|engine| engine.name() == text)
            .ok_or_else(|| EngineError::Unknown(text.to_owned()))
    }
}

/// Why a plan has no form in an engine's environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is no such engine.
    #[error("{0:?} is no engine whose environment is known: use nccl, b12x, sircl or sparknet")]
    Unknown(String),
    /// The plan has no such rank.
    #[error("there is no rank {rank}: the plan has ranks 0 to {last}")]
    NoRank {
        /// As asked.
        rank: usize,
        /// The last one.
        last: usize,
    },
    /// It cannot serve so many or so few ranks.
    #[error("{engine} {need}, and the plan has {have} ranks")]
    Ranks {
        /// Which engine.
        engine: Engine,
        /// What it needs.
        need: &'static str,
        /// Ranks of the plan.
        have: usize,
    },
    /// A function of a path has no RDMA device.
    #[error(
        "{engine}: {function} ({netdev}) has no RDMA device in the cluster file, so {engine} cannot use it; run \
         `railweave discover` again once the device is there"
    )]
    NoRdma {
        /// Which engine.
        engine: Engine,
        /// `host.port.number`.
        function: String,
        /// Its netdev.
        netdev: String,
    },
    /// A path has the wrong number of rails.
    #[error(
        "{engine} {need}, and the path from {from} to {to} has {have}; add a `[[route]]` that names the rails"
    )]
    Rails {
        /// Which engine.
        engine: Engine,
        /// What it needs.
        need: &'static str,
        /// Source host.
        from: String,
        /// Destination host.
        to: String,
        /// Rails of the path.
        have: usize,
    },
    /// A path is relayed, and the engine has no relays.
    #[error(
        "{engine} has no relays, and the path from {from} to {to} is relayed{}; plan with `--forward required`, or \
         use an engine that relays",
        .reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default()
    )]
    Relayed {
        /// Which engine.
        engine: Engine,
        /// Source host.
        from: String,
        /// Destination host.
        to: String,
        /// Why the plan relays it.
        reason: Option<String>,
    },
    /// Ranks that the engine takes for neighbours have no cable.
    #[error(
        "{engine} takes ranks {a} ({host_a}) and {b} ({host_b}) for neighbours, and no cable joins them; put the \
         hosts into the cluster file in the order of the cables"
    )]
    Order {
        /// Which engine.
        engine: Engine,
        /// A rank.
        a: usize,
        /// Its host.
        host_a: String,
        /// Another.
        b: usize,
        /// Its host.
        host_b: String,
    },
    /// It tells forwarded packets in another way.
    #[error(
        "{engine} leaves flow labels 0, so forwarded packets must be told by destination: plan with `--tag destination`"
    )]
    Tag {
        /// Which engine.
        engine: Engine,
    },
    /// A rank has more devices than it can use.
    #[error(
        "{engine} uses at most {most} RDMA devices of a rank, and the paths of {host} use {have}"
    )]
    Devices {
        /// Which engine.
        engine: Engine,
        /// The host.
        host: String,
        /// Devices its paths use.
        have: usize,
        /// The limit.
        most: usize,
    },
    /// Hosts are joined in a way it has no word for.
    #[error("{engine} {need}")]
    Shape {
        /// Which engine.
        engine: Engine,
        /// What it needs.
        need: String,
    },
}

/// A variable, with why it has this value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Name.
    pub name: &'static str,
    /// Value, without quotes.
    pub value: String,
    /// Where the value comes from.
    pub why: String,
}

/// What one rank of an engine needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// For which engine.
    pub engine: Engine,
    /// For which rank.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The variables, in the order they are printed.
    pub variables: Vec<Variable>,
    /// What is left to the user, and why.
    pub notes: Vec<String>,
}

impl Environment {
    fn set(&mut self, name: &'static str, value: impl Into<String>, why: impl Into<String>) {
        self.variables.push(Variable { name, value: value.into(), why: why.into() });
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// As lines for a POSIX shell: each variable exported, its reason in a comment above it.
    pub fn script(&self) -> String {
        let mut text =
            format!("# {}: rank {} ({})\n", self.engine, self.rank, one_line(&self.host));
        for variable in &self.variables {
            text.push_str(&format!(
                "\n# {}\nexport {}={}\n",
                one_line(&variable.why),
                variable.name,
                quoted(&variable.value)
            ));
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("# note: {}\n", one_line(note)));
        }
        text
    }
}

/// The variables of one rank, as (name, value).
///
/// # Errors
///
/// See [`describe`].
pub fn environment(
    plan: &Plan,
    engine: Engine,
    rank: usize,
) -> Result<Vec<(String, String)>, EngineError> {
    let environment = describe(plan, engine, rank, None)?;
    Ok(environment
        .variables
        .into_iter()
        .map(|variable| (variable.name.to_owned(), variable.value))
        .collect())
}

/// The variables of one rank with their reasons. `control_netdev` is the netdev that carries the rank's control
/// address, if someone looked: see [`control_netdev`].
///
/// # Errors
///
/// If the rank is not in the plan, or the plan says what the engine cannot follow.
pub fn describe(
    plan: &Plan,
    engine: Engine,
    rank: usize,
    control_netdev: Option<&str>,
) -> Result<Environment, EngineError> {
    let Some(own) = plan.ranks.get(rank) else {
        return Err(EngineError::NoRank { rank, last: plan.ranks.len().saturating_sub(1) });
    };
    if plan.ranks.len() < 2 {
        return Err(EngineError::Ranks {
            engine,
            need: "needs two ranks or more",
            have: plan.ranks.len(),
        });
    }
    let mut environment = Environment {
        engine,
        rank,
        host: own.host.clone(),
        variables: Vec::new(),
        notes: Vec::new(),
    };
    match engine {
        Engine::Nccl => nccl::fill(plan, rank, control_netdev, &mut environment)?,
        Engine::B12x => oneshot::b12x(plan, rank, &mut environment)?,
        Engine::Sircl => oneshot::sircl(plan, rank, &mut environment)?,
        Engine::Sparknet => oneshot::sparknet(plan, rank, &mut environment)?,
    }
    Ok(environment)
}

/// The netdev of a host that has its control address; none if no netdev has it, or it is a name.
pub fn control_netdev<'a>(state: &'a HostState, control: &str) -> Option<&'a Netdev> {
    let ip: IpAddr = control.parse().ok()?;
    state.netdevs.iter().find(|netdev| match ip {
        IpAddr::V4(ip) => netdev.addresses.iter().any(|own| own.ip == ip),
        IpAddr::V6(ip) => netdev
            .ipv6
            .iter()
            .any(|own| own.split('/').next().and_then(|text| text.parse().ok()) == Some(ip)),
    })
}

/// The RDMA device of a function.
fn rdma(engine: Engine, function: &FunctionRef) -> Result<&str, EngineError> {
    function.rdma.as_deref().ok_or_else(|| EngineError::NoRdma {
        engine,
        function: function.label(),
        netdev: function.netdev.clone(),
    })
}

/// Paths that leave a rank, by destination.
fn paths_of(plan: &Plan, rank: usize) -> impl Iterator<Item = &PathPlan> {
    plan.paths.iter().filter(move |path| path.from == rank)
}

/// The functions a path's rails leave by, in their order.
fn outs(path: &PathPlan) -> impl Iterator<Item = &FunctionRef> {
    path.rails.iter().filter_map(|rail| rail.crossings.first()).map(|crossing| &crossing.out)
}

/// The functions of a rank that carry rails to its neighbours or further, each once: function numbers first, then
/// ports. On a GB10 that is port 0 and 1 of the first PCI domain, then of the second.
fn used_functions(plan: &Plan, rank: usize) -> Vec<&FunctionRef> {
    let mut functions: Vec<&FunctionRef> = Vec::new();
    for function in paths_of(plan, rank).flat_map(outs) {
        if !functions.iter().any(|known| known.device_number == function.device_number) {
            functions.push(function);
        }
    }
    functions.sort_by_key(|function| (function.number, function.device_number));
    functions
}

fn host(plan: &Plan, rank: usize) -> String {
    plan.ranks.get(rank).map_or_else(|| format!("rank {rank}"), |rank| rank.host.clone())
}

fn relayed(plan: &Plan, engine: Engine, path: &PathPlan) -> Result<(), EngineError> {
    if path.kind == PathKind::Relayed {
        return Err(EngineError::Relayed {
            engine,
            from: host(plan, path.from),
            to: host(plan, path.to),
            reason: path.instead.clone(),
        });
    }
    Ok(())
}

/// Whether a cable, or a switch, joins two ranks.
fn joined(plan: &Plan, a: usize, b: usize) -> bool {
    plan.path(a, b).is_some_and(|path| path.kind == PathKind::Direct)
        || plan.ranks.get(a).is_some_and(|rank| rank.neighbours.contains(&b))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
