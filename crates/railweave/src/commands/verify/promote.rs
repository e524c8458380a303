//! Telling a group that serves which forwarded rails are proven again.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use cluster::file::ClusterFile;
use serde::{Deserialize, Serialize};

use crate::commands::reach::ANSWER_PATIENCE;
use crate::http::Client;
use crate::rank::PROMOTE_PATH;
use crate::settings::Settings;

/// Characters of an answer that are shown.
const SHOWN_MAX: usize = 300;

/// What a group said to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Promotion {
    /// Rank 0 as it was asked.
    pub(super) server: String,
    /// It takes the rails back.
    pub(super) accepted: bool,
    /// What it said, or why it said nothing.
    pub(super) said: String,
}

/// Asks rank 0 at the first address that answers. Without addresses of the user's, those that rank 0 may have are
/// tried, and it is no fault that nobody serves there.
pub(super) fn promote(
    file: &ClusterFile,
    servers: &[SocketAddr],
    settings: &Settings,
) -> Option<Promotion> {
    let asked = !servers.is_empty();
    let guessed = if asked { Vec::new() } else { likely(file, settings) };
    let client = Client::new(ANSWER_PATIENCE, settings.api_key.reveal());
    let mut unreached = None;
    for address in servers.iter().chain(&guessed) {
        let server = address.to_string();
        match client.post(*address, PROMOTE_PATH, &serde_json::json!({})) {
            Ok(answer) if answer.status == 200 => {
                let said = shown(&answer.body["promoted"].to_string());
                let said = format!("promoted at the next epoch: {said}");
                return Some(Promotion { server, accepted: true, said });
            }
            Ok(answer) if answer.status == 404 && !asked => {}
            Ok(answer) if answer.status == 404 => {
                let said = "it serves no forwarded paths".to_owned();
                return Some(Promotion { server, accepted: false, said });
            }
            Ok(answer) => {
                let said = shown(&answer.problem());
                return Some(Promotion { server, accepted: false, said });
            }
            Err(error) => {
                let said = shown(&error.to_string());
                unreached.get_or_insert(Promotion { server, accepted: false, said });
            }
        }
    }
    unreached.filter(|_| asked)
}

/// Where rank 0 of a group with this process's settings would answer: here, or at its control address.
fn likely(file: &ClusterFile, settings: &Settings) -> Vec<SocketAddr> {
    let port = settings.metrics_of_rank(0).port();
    let Some(first) = file.hosts.first().filter(|_| port != 0) else { return Vec::new() };
    let local = (first.reach == "local").then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let control = first.control.as_ref().and_then(|text| text.parse().ok());
    local.into_iter().chain(control).map(|ip| SocketAddr::new(ip, port)).collect()
}

fn shown(text: &str) -> String {
    cluster::text::clean(text).chars().take(SHOWN_MAX).collect()
}
