//! What can be asked of a running rank beyond metrics and health: changes of settings and, where
//! that is enabled, faults.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use engine::serving::FaultHook;
use group::patience::Patience;
use group::{CutRails, Demotions};
use serde::Deserialize;
use serde_json::json;

use super::comm::Current;
use crate::commands::set::{Change, SETTINGS_PATH};
use crate::events::{Event, EventSink};
use crate::settings::Settings;

/// Where forwarded paths that failed are given another try.
pub(crate) const PROMOTE_PATH: &str = "/paths/promote";

/// What a change or a fault acts on.
pub(super) struct Controls {
    pub(super) settings: Mutex<Settings>,
    pub(super) patience: Arc<Patience>,
    pub(super) serving: engine::serving::Settings,
    pub(super) events: EventSink,
    pub(super) faults: Option<Faults>,
    pub(super) demotions: Arc<Demotions>,
    pub(super) current: Current,
}

/// What misbehaves on order.
pub(super) struct Faults {
    pub(super) cut_rails: Arc<CutRails>,
    pub(super) compute: FaultHook,
    pub(super) current: Current,
}

/// An order to misbehave.
#[derive(Debug, Deserialize)]
#[serde(tag = "fault", rename_all = "kebab-case", deny_unknown_fields)]
enum Fault {
    /// Takes a rail to a neighbour out of service, in later epochs too.
    CutRail { peer: usize, rail: usize },
    /// Lasts this much longer in the next step.
    DelayCompute { seconds: f64 },
    /// Flips a bit of the next frame to a neighbour.
    FlipBit { peer: usize },
    /// Stops passing on what is meant for others, or goes on.
    HoldRelays { held: bool },
    /// Lets cut rails work again from the next epoch on.
    Mend,
}

pub(super) fn router(controls: Arc<Controls>) -> Router {
    let mut router =
        Router::new().route(SETTINGS_PATH, post(change)).route(PROMOTE_PATH, post(promote));
    if controls.faults.is_some() {
        router = router.route("/faults", post(misbehave));
    }
    for_this_machine(router.with_state(controls))
}

/// Refuses what a web page makes a browser send: requests by a name that is not this machine's,
/// and requests that come from a page of another origin.
pub(super) fn for_this_machine(router: Router) -> Router {
    router.layer(middleware::from_fn(only_local))
}

async fn only_local(request: Request, next: Next) -> Response {
    match refusal(request.headers()) {
        Some(message) => refuse(StatusCode::FORBIDDEN, message),
        None => next.run(request).await,
    }
}

fn refusal(headers: &HeaderMap) -> Option<&'static str> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if !text(header::HOST).is_some_and(is_local) {
        return Some("ask by address, such as 127.0.0.1, or as localhost");
    }
    let origin = text(header::ORIGIN).map(|origin| origin.split_once("://").map_or("", |o| o.1));
    if origin.is_some_and(|origin| !is_local(origin)) {
        return Some("pages of other sites may not use this server");
    }
    None
}

/// Whether HOST or HOST:PORT is an address or localhost, and so no name that a page could choose.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || bare.parse::<std::net::IpAddr>().is_ok()
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": { "message": message } }))).into_response()
}

async fn change(State(controls): State<Arc<Controls>>, Json(change): Json<Change>) -> Response {
    let mut settings = controls.settings.lock().unwrap_or_else(PoisonError::into_inner);
    let mut changed_settings = settings.clone();
    let (key, changed) = match change.apply(&mut changed_settings) {
        Ok(applied) => applied,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if let Some(name) = key.name.strip_prefix("patience.") {
        if let Err(error) = controls.patience.set_text(name, &changed.new) {
            return refuse(StatusCode::BAD_REQUEST, &error.to_string());
        }
    } else {
        controls.serving.set_prefill_chunk(changed_settings.prefill_chunk_tokens as usize);
    }
    *settings = changed_settings;
    controls.events.send(&Event::Setting { key: changed.key.clone(), value: changed.new.clone() });
    Json(changed).into_response()
}

/// Has the group form again, and prove what it uses: cables that were out of use, and forwarded rails that were relayed.
async fn promote(State(controls): State<Arc<Controls>>) -> Response {
    let promoted: Vec<String> =
        controls.demotions.promote().iter().map(ToString::to_string).collect();
    let what = "have paths proven again".to_owned();
    controls.current.with(|_, informant| informant.request(what));
    Json(json!({ "promoted": promoted })).into_response()
}

async fn misbehave(State(controls): State<Arc<Controls>>, Json(fault): Json<Fault>) -> Response {
    let Some(faults) = &controls.faults else {
        return refuse(StatusCode::NOT_FOUND, "faults are not enabled");
    };
    tracing::warn!(?fault, "misbehaving on order");
    let done = match fault {
        Fault::CutRail { peer, rail } => {
            faults.cut_rails.cut(peer, rail);
            faults.current.with(|fabric, _| fabric.with_endpoint(|end| end.cut(peer, rail)));
            true
        }
        Fault::DelayCompute { seconds } => match Duration::try_from_secs_f64(seconds) {
            Ok(delay) => {
                faults.compute.delay_compute(delay);
                true
            }
            Err(_) => false,
        },
        Fault::FlipBit { peer } => faults
            .current
            .with(|fabric, _| fabric.with_endpoint(|end| end.corrupt_next(peer)))
            .unwrap_or(false),
        Fault::HoldRelays { held } => {
            faults.current.with(|fabric, _| fabric.with_endpoint(|end| end.hold_relays(held)));
            true
        }
        Fault::Mend => {
            faults.cut_rails.mend();
            true
        }
    };
    if done {
        Json(json!({ "done": true })).into_response()
    } else {
        refuse(StatusCode::CONFLICT, "this rank cannot do that now")
    }
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_addresses_and_localhost_are_local() {
        for host in ["127.0.0.1", "127.0.0.1:9400", "localhost:80", "[::1]:80", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["evil.example", "evil.example:9400", "", "localhost.evil.example", "null"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
