//! `railweave agent`: what runs on each host while paths are proven. It does what the lines on standard input say,
//! answers on standard output, and ends when standard input does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cluster::address::Mac;

use super::lost::beginning;
use super::pair;
use super::traffic::{self, Arrived, Deadline};
use super::wire::{AGENT_SCHEMA, Fault, LINE_BYTES_MAX, NetdevCount, Order, Said, Step, Word};
use crate::commands::{CommandError, CommandResult};
use crate::rule_hits::RulesState;

/// Orders that are worked on at the same time.
const ORDERS_MAX: usize = 64;
/// Longest time for one order.
const ORDER_LIMIT_MAX: Duration = Duration::from_secs(600);
/// Netdevs that are told.
const NETDEVS_MAX: usize = 1024;
/// Words to one end of a queue pair that may wait: it is told three in all.
const WORDS_WAITING: usize = 8;
/// Longest file of the kernel's that is read.
const FILE_BYTES_MAX: u64 = 4096;

/// Is an agent until standard input ends.
///
/// # Errors
/// Standard input is no orders. What goes wrong with an order is said to the coordinator.
pub(crate) fn run() -> CommandResult {
    serve(BufReader::new(io::stdin().lock()), io::stdout(), netdevs).map_err(|why| {
        CommandError::Failed(format!("agent: {why}; `railweave verify` starts agents itself"))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Does what the lines of `input` say until it ends. Orders under way end with the process, or at their deadlines.
///
/// # Errors
/// What was wrong with a line, on one line.
pub(super) fn serve(
    mut input: impl BufRead,
    output: impl Write + Send + 'static,
    counters: impl Fn() -> Vec<NetdevCount> + Send + Sync + 'static,
) -> Result<(), String> {
    let out = Out(Arc::new(Mutex::new(output)));
    let counters = Arc::new(counters);
    let under_way = Arc::new(AtomicUsize::new(0));
    let mut pairs: BTreeMap<u64, SyncSender<Word>> = BTreeMap::new();
    out.say(&Said::Here {
        schema: AGENT_SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: read(Path::new("/proc/sys/kernel/random/boot_id")),
    });
    for number in 1_u64.. {
        let mut line = Vec::new();
        match input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(format!("cannot read standard input: {error}")),
        }
        // Only our own coordinator, of the same version, has anything to say here.
        let order = serde_json::from_slice::<Order>(&line).map_err(|error| {
            format!(
                "line {number} of standard input is no order of {AGENT_SCHEMA}: {} ({})",
                beginning(&String::from_utf8_lossy(&line)),
                beginning(&error.to_string())
            )
        })?;
        let id = order.id();
        if let Order::Tell { word, .. } = order {
            let is_last = word == Word::Close;
            if let Some(pair) = pairs.get(&id) {
                // One that has ended needs no word.
                let _ = pair.try_send(word);
            }
            if is_last {
                pairs.remove(&id);
            }
            continue;
        }
        if under_way.fetch_add(1, Ordering::AcqRel) >= ORDERS_MAX {
            under_way.fetch_sub(1, Ordering::AcqRel);
            out.say(&Said::Failed {
                id,
                fault: refused(format!("more than {ORDERS_MAX} orders at once")),
            });
            continue;
        }
        let (own, counters, done) = (out.clone(), Arc::clone(&counters), Arc::clone(&under_way));
        let (speaker, words) = sync_channel(WORDS_WAITING);
        if matches!(order, Order::Pair { .. }) {
            pairs.insert(id, speaker);
        }
        let work = move || {
            match &order {
                Order::Pair { end, terms, .. } => {
                    let deadline = deadline(terms.limit_ms);
                    pair::be(id, end, terms, &words, deadline, |said| own.say(said));
                }
                order => own.say(&obey(order, &own, &*counters)),
            }
            done.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = thread::Builder::new().name(format!("order {id}")).spawn(work) {
            under_way.fetch_sub(1, Ordering::AcqRel);
            out.say(&Said::Failed {
                id,
                fault: refused(format!("cannot start a thread: {error}")),
            });
        }
    }
    Ok(())
}

fn refused(why: String) -> Fault {
    Fault::new(Step::Begin, why, None, false)
}

/// Where answers go; whole lines only.
struct Out<W>(Arc<Mutex<W>>);

impl<W> Clone for Out<W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<W: Write> Out<W> {
    fn say(&self, said: &Said) {
        let Ok(mut line) = serde_json::to_vec(said) else { return };
        line.push(b'\n');
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A coordinator that is gone closes standard input too, which ends this process.
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

fn obey<W: Write>(order: &Order, out: &Out<W>, counters: &impl Fn() -> Vec<NetdevCount>) -> Said {
    let id = order.id();
    let result = match order {
        Order::Counters { .. } => return Said::Counters { id, netdevs: counters() },
        Order::Rules { .. } => match RulesState::read() {
            Ok(state) => return Said::Rules { id, state: Box::new(state) },
            Err(why) => Err(refused(why)),
        },
        // These are seen to before.
        Order::Pair { .. } | Order::Tell { .. } => Err(refused("not now".to_owned())),
        Order::Listen { address, terms, .. } => {
            let deadline = deadline(terms.limit_ms);
            await_caller(id, out, *address, |listener| {
                traffic::echo(traffic::accept(listener, terms, deadline)?, terms, deadline)
            })
        }
        Order::Relay { address, next, terms, .. } => {
            let deadline = deadline(terms.limit_ms);
            await_caller(id, out, *address, |listener| {
                let near = traffic::accept(listener, terms, deadline)?;
                let far = traffic::connect(*next, terms, deadline)?;
                traffic::pass_on(near, far, terms, deadline)
            })
        }
        Order::Send { call, terms, .. } => {
            let deadline = deadline(terms.limit_ms);
            traffic::connect(*call, terms, deadline)
                .and_then(|stream| traffic::send_and_compare(stream, terms, deadline))
        }
    };
    match result {
        Ok((bytes, time)) => Said::Done { id, bytes, seconds: time.as_secs_f64() },
        Err(fault) => Said::Failed { id, fault },
    }
}

fn deadline(limit_ms: u64) -> Deadline {
    Deadline::after(Duration::from_millis(limit_ms).min(ORDER_LIMIT_MAX))
}

fn await_caller<W: Write>(
    id: u64,
    out: &Out<W>,
    address: std::net::Ipv4Addr,
    then: impl FnOnce(&std::net::TcpListener) -> Result<Arrived, Fault>,
) -> Result<Arrived, Fault> {
    let (listener, port) = traffic::listen(address)?;
    out.say(&Said::Listening { id, port });
    then(&listener)
}

/// The counters of this network namespace's netdevs. Netdevs that only borrow another one's hardware address, such as
/// a bridge or a VLAN, are left out.
fn netdevs() -> Vec<NetdevCount> {
    let Ok(entries) = fs::read_dir("/sys/class/net") else { return Vec::new() };
    let count = |entry: fs::DirEntry| {
        let folder = entry.path();
        if read(&folder.join("uevent")).is_none_or(|text| text.contains("DEVTYPE="))
            && !folder.join("device").exists()
        {
            return None;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        Some(NetdevCount {
            rdma_bytes: rdma_bytes(&folder),
            mac: read(&folder.join("address"))?.parse::<Mac>().ok()?,
            name,
            rx_bytes: read(&folder.join("statistics/rx_bytes"))?.parse().ok()?,
            tx_bytes: read(&folder.join("statistics/tx_bytes"))?.parse().ok()?,
        })
    };
    entries.flatten().take(NETDEVS_MAX).filter_map(count).collect()
}

/// Bytes received and sent by the RDMA device that shares a netdev's parent, which counts words of four bytes.
fn rdma_bytes(netdev: &Path) -> Option<(u64, u64)> {
    let device = fs::read_dir(netdev.join("device/infiniband")).ok()?.flatten().next()?.path();
    let count = |name: &str| {
        let words: u64 = read(&device.join("ports/1/counters").join(name))?.parse().ok()?;
        words.checked_mul(4)
    };
    Some((count("port_rcv_data")?, count("port_xmit_data")?))
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve_text(text: &[u8]) -> Result<(), String> {
        serve(text, io::sink(), Vec::new)
    }

    #[test]
    fn what_is_no_order_ends_it_and_is_told_on_one_line() {
        assert_eq!(serve_text(b""), Ok(()));
        let order = b"{\"order\":\"counters\",\"id\":1}\n";
        assert_eq!(serve_text(order), Ok(()));

        let why = serve_text(&[order, &b"ls -l\x1b[2J\0\n"[..]].concat()).unwrap_err();
        assert!(
            why.starts_with(
                "line 2 of standard input is no order of railweave-agent/2: ls -l\\u{1b}[2J\\u{0} ("
            ),
            "{why}"
        );
        for garbage in [
            &b"\n"[..],
            b"\xff\xfe",
            b"{}",
            b"{\"order\":\"halt\",\"id\":1}",
            b"{\"order\":\"counters\",\"id\":-1}\n",
            b"{\"order\":\"a\\u001b\\nb\",\"id\":1}\n",
            &vec![b'['; 1 << 20],
        ] {
            let why = serve_text(garbage).unwrap_err();
            assert!(!why.contains(char::is_control) && why.chars().count() < 400, "{why}");
        }
    }
}
