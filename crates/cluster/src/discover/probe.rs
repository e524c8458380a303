//! Who is at the other end: a question to all on the wire, without addresses.
//!
//! Every host with IPv6 answers an echo request to `ff02::1` (all nodes of the link) from its link-local address.
//! Asking each of these once makes the kernel learn the hardware address behind it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::address::Mac;
use crate::inventory::Seen;

/// Most bytes of answers that are read.
const MOST_BYTES: usize = 1 << 20;
/// Most netdevs, and most answers of one.
const MOST: usize = 256;

/// Who answered on one netdev.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The netdev that asked.
    pub netdev: String,
    /// The hardware addresses that answered, or why nobody could be asked.
    pub macs: Seen<BTreeSet<Mac>>,
}

/// A POSIX shell script that asks on each of the netdevs, all at once, within 3 seconds; see [`parse_probes`] for
/// what it prints. It needs `ping` and `ip`, changes nothing but the kernel's table of neighbours, and says why where
/// it could not ask.
pub fn probe_script(netdevs: &[String]) -> String {
    let list: Vec<String> = netdevs
        .iter()
        .filter(|netdev| !netdev.is_empty() && !netdev.contains(['/', '\n', '\0']))
        .take(MOST)
        .map(|netdev| format!("'{}'", netdev.replace('\'', r"'\''")))
        .collect();
    format!("set -- {}\n{SCRIPT}", list.join(" "))
}

const SCRIPT: &str = r#"LC_ALL=C; export LC_ALL
limit=
command -v timeout >/dev/null 2>&1 && limit='timeout 3'
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
# One netdev: all nodes of the link first, then each that answered, so that its hardware address is learnt.
ask() {
    answers=$($limit ping -6 -n -c 2 -w 1 -I "$1" ff02::1 2>&1)
    status=$?
    if [ "$status" -gt 1 ]; then
        printf '!! ping ended with %s: %s\n' "$status" "$(printf '%s' "$answers" | tail -n 1)"
        return
    fi
    from=$(printf '%s\n' "$answers" | sed -n 's/^[0-9]* bytes from \(fe80:[0-9a-f:]*\).*/\1/p' | sed 's/:$//' |
        sort -u | head -n 64)
    for address in $from; do
        printf '>> %s\n' "$address"
        $limit ping -6 -n -q -c 1 -w 1 -I "$1" "$address" >/dev/null 2>&1 &
    done
    wait
    $limit ip -6 -j neigh show dev "$1" 2>&1
    printf '\n.. %s\n' "$?"
}
number=0
for netdev; do
    number=$((number + 1))
    if ! command -v ping >/dev/null 2>&1; then
        echo '!! there is no ping' >"$folder/$number"
    elif ! command -v ip >/dev/null 2>&1; then
        echo '!! there is no ip' >"$folder/$number"
    elif [ ! -d "/proc/sys/net/ipv6/conf/$netdev" ]; then
        echo '!! the netdev has no IPv6' >"$folder/$number"
    elif [ "$(cat "/proc/sys/net/ipv6/conf/$netdev/disable_ipv6")" != 0 ]; then
        echo '!! IPv6 is disabled on the netdev' >"$folder/$number"
    else
        ask "$netdev" >"$folder/$number" &
    fi
done
wait
number=0
for netdev; do
    number=$((number + 1))
    printf '== %s\n' "$netdev"
    cat "$folder/$number"
done
"#;

/// What the script printed: `== netdev` before each, `>> address` for each that answered, the kernel's neighbours as
/// JSON, `.. status` after them, and `!! reason` where nobody could be asked. A neighbour counts only if it answered:
/// the kernel remembers those of other cables.
pub fn parse_probes(output: &str) -> Vec<Probe> {
    let mut probes = Vec::new();
    let mut part: Option<Part> = None;
    let mut end = output.len().min(MOST_BYTES);
    while !output.is_char_boundary(end) {
        end -= 1;
    }
    let cut = end < output.len();
    for line in output.get(..end).unwrap_or_default().lines() {
        if let Some(netdev) = line.strip_prefix("== ") {
            probes.extend(part.take().map(Part::probe));
            if probes.len() >= MOST {
                return probes;
            }
            part = Some(Part::new(netdev));
        } else if let Some(part) = &mut part {
            part.line(line);
        }
    }
    if let (Some(part), true) = (&mut part, cut) {
        part.why.get_or_insert_with(|| "there was more output than is read".to_owned());
    }
    probes.extend(part.map(Part::probe));
    probes
}

struct Part {
    netdev: String,
    answered: BTreeSet<String>,
    table: String,
    why: Option<String>,
    done: bool,
}

/// One entry of `ip -j neigh`.
#[derive(Deserialize)]
struct Entry {
    dst: String,
    lladdr: Option<String>,
}

impl Part {
    fn new(netdev: &str) -> Self {
        Self {
            netdev: netdev.to_owned(),
            answered: BTreeSet::new(),
            table: String::new(),
            why: None,
            done: false,
        }
    }

    fn line(&mut self, line: &str) {
        if let Some(address) = line.strip_prefix(">> ") {
            if self.answered.len() < MOST {
                self.answered.insert(address.trim().to_owned());
            }
        } else if let Some(why) = line.strip_prefix("!! ") {
            self.why = Some(why.chars().take(200).collect());
        } else if let Some(status) = line.strip_prefix(".. ") {
            self.done = true;
            if status.trim() != "0" {
                let said: String = self.table.trim().chars().take(200).collect();
                self.why = Some(format!("`ip -6 -j neigh` ended with {}: {said}", status.trim()));
            }
        } else {
            self.table.push_str(line);
            self.table.push('\n');
        }
    }

    fn probe(self) -> Probe {
        let macs = match self.macs() {
            Ok(macs) => Seen::Known(macs),
            Err(why) => Seen::NotMeasured(why),
        };
        Probe { netdev: self.netdev, macs }
    }

    fn macs(&self) -> Result<BTreeSet<Mac>, String> {
        if let Some(why) = &self.why {
            return Err(why.clone());
        }
        if !self.done {
            return Err("the probe ended early".to_owned());
        }
        let text = self.table.trim();
        let entries: Vec<Entry> = if text.is_empty() {
            Vec::new()
        } else {
            serde_json::from_str(text)
                .map_err(|error| format!("`ip -6 -j neigh` printed no JSON: {error}"))?
        };
        let answered = |entry: &&Entry| self.answered.contains(&entry.dst);
        Ok(entries
            .iter()
            .filter(answered)
            .filter_map(|entry| entry.lladdr.as_deref()?.parse().ok())
            .take(MOST)
            .collect())
    }
}
