//! What the kernel says about this process, read at scrape time.

use rustix::time::{ClockId, clock_gettime};

/// One reading; `None` where the kernel did not tell.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Process {
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) threads: Option<u64>,
    pub(crate) open_fds: Option<u64>,
}

impl Process {
    pub(crate) fn read() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (threads, resident_pages) = parse_stat(&stat);
        // The clock counts nanoseconds; /proc counts ticks of 10 ms, too coarse to see that an
        // idle server uses less than 2 % of a core.
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            cpu_seconds: Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9),
            resident_bytes: resident_pages.map(|p| p * rustix::param::page_size() as u64),
            threads,
            // The listing holds one descriptor itself.
            open_fds: std::fs::read_dir("/proc/self/fd")
                .ok()
                .map(|entries| (entries.count() as u64).saturating_sub(1)),
        }
    }
}

/// Threads and resident pages of a `/proc/PID/stat` line. The second field, the command's name,
/// may hold spaces and brackets, so fields are counted from the last closing bracket.
fn parse_stat(stat: &str) -> (Option<u64>, Option<u64>) {
    let Some((_, rest)) = stat.rsplit_once(')') else { return (None, None) };
    let field = |n: usize| rest.split_ascii_whitespace().nth(n)?.parse().ok();
    (field(17), field(21))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields_survive_a_hostile_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 0 1 2 3 4 5 6 7 8 20 0 9 0 11 4096 321 0";
        assert_eq!(parse_stat(stat), (Some(9), Some(321)));
        assert_eq!(parse_stat(""), (None, None));
        assert_eq!(parse_stat("7 (a) S 1"), (None, None));
    }

    #[test]
    fn this_process_is_measured() {
        let process = Process::read();
        assert!(process.cpu_seconds.unwrap() > 0.0);
        assert!(process.resident_bytes.unwrap() > 100_000);
        assert!(process.threads.unwrap() >= 1);
        assert!(process.open_fds.unwrap() >= 3);
    }
}
