//! From what was read to what it means.

use crate::text::quoted;

use super::{
    HostState, Recording, parse_filters, parse_netdevs, parse_rdma, parse_system, parse_tables,
    parse_tools,
};

impl HostState {
    /// What a recording says of its host. Never fails: what is missing, or is not as it should be, is
    /// [`super::Seen::NotMeasured`] with the reason, or an entry less.
    pub fn of(recording: &Recording) -> Self {
        let (netdevs, addresses) = parse_netdevs::netdevs(recording);
        Self {
            name: recording.file("/proc/sys/kernel/hostname").unwrap_or("(no name)").to_owned(),
            system: parse_system::system(recording),
            netdevs,
            addresses,
            rdma: parse_rdma::devices(recording),
            routes: parse_tables::routes(recording),
            neighbours: parse_tables::neighbours(recording),
            filters: parse_filters::filters(recording),
            egress: parse_filters::egress(recording),
            devlink: parse_tools::devlink(recording),
            eswitch: parse_tools::eswitch(recording),
            lldp: parse_tools::lldp(recording),
            markers: parse_tools::markers(recording),
            firewall: parse_tools::firewall(recording),
            drives: parse_system::drives(recording),
        }
    }
}

/// A tool's output as JSON.
///
/// # Errors
///
/// Why there is none.
pub(super) fn json(recording: &Recording, tool: &str) -> Result<serde_json::Value, String> {
    let text = recording.printed(tool)?;
    // Some tools print nothing at all instead of an empty list.
    if text.trim().is_empty() {
        return Ok(serde_json::Value::Array(Vec::new()));
    }
    serde_json::from_str(text).map_err(|wrong| format!("{tool}: printed no JSON: {wrong}"))
}

/// The entries of a list; of anything else none.
pub(super) fn entries(value: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    value.as_array().into_iter().flatten()
}

/// A field that is text.
pub(super) fn text<'a>(value: &'a serde_json::Value, field: &str) -> Option<&'a str> {
    value.get(field)?.as_str()
}

/// A field that is a number.
pub(super) fn number(value: &serde_json::Value, field: &str) -> Option<u64> {
    value.get(field)?.as_u64()
}

/// The parts of paths below a folder, up to the next slash: names of netdevs, devices, ports. Sorted, each once. One that
/// a shell would act on is left out: names go into commands that people copy, and no driver gives such a name.
pub(super) fn names_below<'a>(recording: &'a Recording, folder: &'a str) -> Vec<&'a str> {
    let within = |path: &'a String| path.strip_prefix(folder)?.split('/').next();
    let plain = |name: &&str| quoted(name) == **name;
    let from = || folder.to_owned()..;
    let files = recording.files.range(from()).map_while(|(path, _)| within(path));
    let links = recording.links.range(from()).map_while(|(path, _)| within(path));
    files
        .chain(links)
        .filter(plain)
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect()
}
