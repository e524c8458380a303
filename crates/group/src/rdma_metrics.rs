//! What the RDMA devices in use counted, once a second, for `/metrics`.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use fabric::Fabric;
use fabric::verbs::{CounterGroup, DEVICES_ROOT, DevicePort, PortCounts};
use observe::{Metrics, RdmaCount, RdmaPort};

use crate::telemetry::Telemetry;

const EVERY: Duration = Duration::from_secs(1);

/// Reads as long as it lives. It has a thread of its own because a device that hangs answers
/// late: neither beacons nor the end of an epoch may wait for that.
#[derive(Debug)]
pub(crate) struct RdmaMetrics {
    _stop: Option<Sender<()>>,
}

impl RdmaMetrics {
    /// Without metrics, and where there are no devices, there is nothing to read.
    pub(crate) fn start(fabric: &Fabric, telemetry: &Telemetry) -> io::Result<Self> {
        let Some(metrics) = telemetry.metrics.clone() else { return Ok(Self { _stop: None }) };
        let ports = fabric.devices().to_vec();
        if ports.is_empty() {
            // Those of an earlier epoch are not in use any more.
            metrics.rdma(Vec::new());
            return Ok(Self { _stop: None });
        }
        let (stop, stopped) = channel();
        std::thread::Builder::new()
            .name(format!("rdma-counts-{}", fabric.rank()))
            .spawn(move || run(Path::new(DEVICES_ROOT), &ports, &metrics, &stopped))?;
        Ok(Self { _stop: Some(stop) })
    }
}

fn run(root: &Path, ports: &[DevicePort], metrics: &Metrics, stopped: &Receiver<()>) {
    loop {
        let read = ports.iter().map(|port| shown(port, &PortCounts::read(root, port))).collect();
        // It may have taken long, and others may be in use by now.
        if stopped.try_recv() == Err(TryRecvError::Disconnected) {
            return;
        }
        metrics.rdma(read);
        if stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// A reading in the words of `observe`.
fn shown(port: &DevicePort, counts: &PortCounts) -> RdmaPort {
    let count = |it: &fabric::verbs::Count| RdmaCount {
        counter: it.name.into(),
        group: it.group.as_str(),
        value: it.value,
    };
    let missing = CounterGroup::ALL.into_iter().filter(|group| !counts.measures(*group));
    RdmaPort {
        device: port.device.clone(),
        port: port.port,
        counts: counts.counts().iter().map(count).collect(),
        not_measured: missing.map(CounterGroup::as_str).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_shows_its_counters_and_the_groups_it_lacks_until_it_is_stopped() {
        let root = std::env::temp_dir().join(format!("rw-rdma-metrics-{}", std::process::id()));
        let folder = root.join("n0r/ports/1/hw_counters");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, value) in [("sent_pkts", "41\n"), ("retry_exceeded_err", "0\n")] {
            std::fs::write(folder.join(name), value).unwrap();
        }
        let metrics = Metrics::new(&observe::Identity::new(3, "spark-d"));
        let ports = [DevicePort { device: "n0r".to_owned(), port: 1 }];
        let (stop, stopped) = channel();
        std::thread::scope(|scope| {
            let (root, ports, metrics) = (&root, &ports, &metrics);
            scope.spawn(move || run(root, ports, metrics, &stopped));
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while !metrics.encode().contains("rdma") && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(stop);
        });
        std::fs::remove_dir_all(&root).unwrap();
        let text = metrics.encode();
        let has = |line: &str| {
            let line = line.replace('@', r#"rank="3",host="spark-d",device="n0r",port="1""#);
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        };
        has(r#"railweave_rdma_counter_total{@,group="progress",counter="sent_pkts"} 41"#);
        has(r#"railweave_rdma_counter_total{@,group="fatal",counter="retry_exceeded_err"} 0"#);
        has(r#"railweave_rdma_not_measured_info{@,group="loss"} 1"#);
        has(r#"railweave_rdma_not_measured_info{@,group="congestion"} 1"#);
        assert_eq!(text.matches("railweave_rdma_counter_total{").count(), 2, "{text}");
        assert_eq!(text.matches("railweave_rdma_not_measured_info{").count(), 2, "{text}");
    }
}
