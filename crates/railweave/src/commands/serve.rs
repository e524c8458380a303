//! `railweave serve`: the ranks of this machine under a supervisor, or this process as one rank under a launcher.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use super::{CommandError, CommandResult, FAILED, INTERRUPTED, rank};
use crate::cli::{AllKeys, SettingFlags};
use crate::launcher::{Launcher, Seat, detect};
use crate::model_store::{Found, ModelStore};
use crate::placement::{Placement, PlacementError};
use crate::process::{RankBody, begin_launched};
use crate::settings::{Effective, Forward, Place, Secret, Settings, expand};
use crate::supervisor::{Outcome, RankProgram, Screen, reserve_port, supervise};

/// Random bytes of a token that is made up.
const TOKEN_BYTES: usize = 32;

/// Arguments of `railweave serve`.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    settings: SettingFlags<AllKeys>,
}

/// Serves until someone asks for a stop or a rank cannot be kept alive.
///
/// # Errors
/// A setting is wrong, the model is not there, or the supervisor cannot work.
pub fn run(args: ServeArgs, body: RankBody) -> CommandResult {
    let effective = args.settings.resolve()?;
    let seat = detect(&|name| std::env::var(name).ok())?;
    if !effective.settings.cluster.is_empty() {
        return placed(effective, seat, body);
    }
    if let Some(seat) = seat {
        return launched(effective, seat, None, body);
    }
    let mut settings = effective.settings;
    let model = find_model(&settings)?;
    check_free(&settings)?;
    if !settings.token.is_set() {
        settings.token = make_token()?;
    }
    // Held until the end: the ranks meet here again after a failure.
    let reservation = if settings.master.is_empty() {
        let (reservation, address) = reserve_port()?;
        settings.master = address.to_string();
        Some(reservation)
    } else {
        None
    };
    let program = RankProgram {
        program: std::env::current_exe().map_err(|e| {
            CommandError::Failed(format!("cannot find this program's own file: {e}"))
        })?,
        arguments: vec!["rank".to_owned()],
    };
    let mut screen = Screen::new(settings.ranks, &model.name);
    let outcome = supervise(settings, &program, &mut screen)?;
    drop(reservation);
    Ok(match outcome {
        Outcome::Interrupted => ExitCode::from(INTERRUPTED),
        Outcome::Failed(_) => ExitCode::from(FAILED),
    })
}

/// Serves as the rank that the cluster file makes this host.
fn placed(effective: Effective, seat: Option<Seat>, body: RankBody) -> CommandResult {
    for key in ["topology", "rails", "data_addresses"] {
        let place = effective.place(key);
        if place != Place::Default {
            return Err(CommandError::Usage(format!(
                "{place}: {key} cannot be set beside cluster, whose plan decides it; leave one out"
            )));
        }
    }
    let settings = &effective.settings;
    let wrong = |error: PlacementError| CommandError::Usage(error.to_string());
    let forward = match settings.forward {
        Forward::Plan => None,
        Forward::Off => Some(cluster::file::Forward::Off),
        Forward::Auto => Some(cluster::file::Forward::Auto),
        Forward::Required => Some(cluster::file::Forward::Required),
    };
    let path = expand(&settings.cluster);
    let placement = Placement::read(&path, &settings.host, forward).map_err(wrong)?;
    if let Some(seat) = seat {
        placement.check_rank(seat.rank).map_err(wrong)?;
        return launched(effective, seat, Some(placement), body);
    }
    let master = match settings.master.is_empty() {
        true => Some(placement.master().map_err(wrong)?),
        false => None,
    };
    let seat = Seat {
        launcher: Launcher::ClusterFile,
        // A cluster file has at most 16 hosts.
        rank: placement.rank() as u32,
        ranks: placement.ranks() as u32,
        local_rank: Some(0),
        local_ranks: Some(1),
        master,
    };
    launched(effective, seat, Some(placement), body)
}

/// Serves as the one rank that a launcher made this process.
fn launched(
    effective: Effective,
    seat: Seat,
    placement: Option<Placement>,
    body: RankBody,
) -> CommandResult {
    let mut settings = effective.settings.clone();
    if settings.ranks != seat.ranks && effective.place("ranks") != Place::Default {
        return Err(CommandError::Usage(format!(
            "{}: ranks is {}, but {} started {}; leave ranks out under a launcher",
            effective.place("ranks"),
            settings.ranks,
            seat.launcher,
            seat.ranks
        )));
    }
    if seat.ranks > 8 {
        return Err(CommandError::Usage(format!(
            "{} started {} ranks; a group has at most 8",
            seat.launcher, seat.ranks
        )));
    }
    settings.ranks = seat.ranks;
    if settings.master.is_empty() {
        settings.master = seat.master.clone().ok_or_else(|| {
            CommandError::Usage(format!(
                "{} does not say where the ranks meet; set master = HOST:PORT (RAILWEAVE_MASTER) or \
                 MASTER_ADDR and MASTER_PORT",
                seat.launcher
            ))
        })?;
    }
    if !settings.token.is_set() && seat.ranks > 1 {
        return Err(CommandError::Usage(
            "the ranks of a launcher need a shared secret; set token in the file or RAILWEAVE_TOKEN \
             to the same value for every rank"
                .to_owned(),
        ));
    }
    let model = find_model(&settings)?;
    Ok(rank::work(begin_launched(settings, seat, placement, model)?, body))
}

fn find_model(settings: &Settings) -> Result<Found, CommandError> {
    let bar = ProgressBar::new(0);
    bar.set_style(
        // A constant template; a bad one would fall back to the default look.
        ProgressStyle::with_template("checking the model {bar:30} {bytes}/{total_bytes}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let found = ModelStore::of_user().resolve(&settings.model, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    Ok(found?)
}

/// Says early, once and with the key's name, that an address is taken: four ranks would say it later.
fn check_free(settings: &Settings) -> Result<(), CommandError> {
    let listen = std::iter::once(("listen", settings.listen));
    let metrics = (0..settings.ranks).map(|r| ("metrics_listen", settings.metrics_of_rank(r)));
    for (key, address) in listen.chain(metrics) {
        if let Err(error) = TcpListener::bind(address) {
            return Err(CommandError::Failed(format!(
                "cannot listen at {address}: {error}; choose another address with --{} (port 0 takes \
                 any free port)",
                key.replace('_', "-")
            )));
        }
    }
    Ok(())
}

fn make_token() -> Result<Secret, CommandError> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        filled +=
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
                .map_err(|e| CommandError::Failed(format!("cannot make up a token: {e}")))?;
    }
    let mut text = String::with_capacity(2 * TOKEN_BYTES);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(Secret::new(text))
}
