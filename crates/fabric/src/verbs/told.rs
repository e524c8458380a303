//! What the two ends of a queue pair tell each other, and what they must have alike.

use std::net::Ipv6Addr;

use super::connect::Forwarded;
use super::settings::VerbsSettings;

/// Longest text that a rank may tell about its ends.
const BLOB_BYTES_MAX: usize = 64 << 10;
/// Packet sequence numbers have 24 bits.
pub(super) const PSN_MASK: u32 = 0xff_ffff;

/// What one end tells the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) device: String,
    pub(super) gid: Ipv6Addr,
    pub(super) number: u32,
    pub(super) psn: u32,
    /// Path MTU by its number in `enum ibv_mtu`; the smaller of both ends is used.
    pub(super) mtu: u32,
    pub(super) key: u32,
    pub(super) address: u64,
    /// How often this end was made again.
    pub(super) round: u32,
    pub(super) agreed: Agreed,
}

/// What must be the same at both ends, in the order of [`KEYS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed([u64; KEYS.len()]);

const KEYS: [&str; 11] = [
    "the region's bytes",
    "verbs.flow_label",
    "verbs.traffic_class",
    "verbs.hop_limit",
    "verbs.timeout",
    "verbs.retry_count",
    "verbs.rnr_retry",
    "forwarded (1 if the rail is)",
    "the forwarded rail's flow label",
    "the forwarded rail's tag port (0 with destination tags)",
    "the forwarded rail's window in bytes",
];

/// A value that the two ends do not have alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) key: &'static str,
    pub(super) own: u64,
    pub(super) theirs: u64,
}

impl Agreed {
    pub(super) fn new(bytes: u64, settings: &VerbsSettings, forwarded: Option<&Forwarded>) -> Self {
        let [is_forwarded, label, port, window] = forwarded.map_or([0; 4], |it| {
            [1, it.flow_label.into(), it.source_port.unwrap_or(0).into(), it.window_bytes]
        });
        Self([
            bytes,
            settings.flow_label.into(),
            settings.traffic_class.into(),
            settings.hop_limit.into(),
            settings.timeout.into(),
            settings.retry_count.into(),
            settings.rnr_retry.into(),
            is_forwarded,
            label,
            port,
            window,
        ])
    }

    /// Bytes of the region.
    pub(super) fn bytes(&self) -> u64 {
        self.0[0]
    }

    /// The first value that the other end has otherwise.
    pub(super) fn difference(&self, theirs: &Self) -> Option<Difference> {
        let mut values = KEYS.iter().zip(self.0.iter().zip(&theirs.0));
        let (key, (&own, &theirs)) = values.find(|(_, (own, theirs))| own != theirs)?;
        Some(Difference { key, own, theirs })
    }
}

impl Told {
    pub(super) fn text(&self) -> String {
        let Self { device, gid, number, psn, mtu, key, address, round, agreed } = self;
        let agreed: Vec<_> = agreed.0.iter().map(ToString::to_string).collect();
        format!("{device} {gid} {number} {psn} {mtu} {key} {address} {round} {}", agreed.join(" "))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut told = Self {
            device: words.next().filter(|name| !name.is_empty() && name.len() < 64)?.to_owned(),
            gid: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
            psn: words.next()?.parse().ok().filter(|psn| *psn <= PSN_MASK)?,
            mtu: words.next()?.parse().ok().filter(|mtu| (1..=5).contains(mtu))?,
            key: words.next()?.parse().ok()?,
            address: words.next()?.parse().ok()?,
            round: words.next()?.parse().ok()?,
            agreed: Agreed([0; KEYS.len()]),
        };
        for value in &mut told.agreed.0 {
            *value = words.next()?.parse().ok()?;
        }
        words.next().is_none().then_some(told)
    }
}

/// `1/0=n0r ::ffff:10.0.0.1 17 …;1/1=…`: what is told to each neighbour, by rail.
pub(super) fn blob_of<'a>(ends: impl Iterator<Item = (usize, usize, &'a Told)>) -> Vec<u8> {
    let of_end =
        |(peer, rail, told): (usize, usize, &Told)| format!("{peer}/{rail}={}", told.text());
    ends.map(of_end).collect::<Vec<_>>().join(";").into_bytes()
}

/// What a blob tells rank `me` about a rail.
pub(super) fn told_to(me: usize, rail: usize, blob: &[u8]) -> Option<Told> {
    let text = std::str::from_utf8(blob).ok().filter(|text| text.len() <= BLOB_BYTES_MAX)?;
    let mut ends = text.split(';').filter_map(|end| end.split_once('='));
    let wanted = format!("{me}/{rail}");
    ends.find(|(end, _)| *end == wanted).and_then(|(_, told)| Told::parse(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARDED: Forwarded =
        Forwarded { flow_label: 16383, source_port: Some(65535), window_bytes: 131_072 };

    fn told(number: u32) -> Told {
        Told {
            device: "n0r".to_owned(),
            gid: std::net::Ipv4Addr::new(198, 18, 0, 1).to_ipv6_mapped(),
            number,
            psn: 0xff_ffff,
            mtu: 5,
            key: u32::MAX,
            address: u64::MAX,
            round: 3,
            agreed: Agreed::new(4096, &VerbsSettings::default(), Some(&FORWARDED)),
        }
    }

    #[test]
    fn each_neighbour_finds_what_it_is_told() {
        let ends = [(1, 0, told(17)), (1, 1, told(18)), (3, 0, told(19))];
        let blob = blob_of(ends.iter().map(|(peer, rail, told)| (*peer, *rail, told)));
        for (rank, rail, number) in [(1, 0, 17), (1, 1, 18), (3, 0, 19)] {
            assert_eq!(told_to(rank, rail, &blob), Some(told(number)));
        }
        assert_eq!(told_to(3, 1, &blob), None);
        assert_eq!(told_to(0, 0, &blob), None);
    }

    #[test]
    fn what_cannot_be_is_not_read() {
        let good = told(1).text();
        assert!(Told::parse(&good).is_some());
        for bad in [
            String::new(),
            format!("{good} 1"),
            good.replace(" 131072", ""),
            good.replace(" 5 ", " 6 "),
            good.replace("16777215", "16777216"),
            good.replace("n0r", ""),
            good.replace("::ffff:198.18.0.1", "x"),
        ] {
            assert_eq!(Told::parse(&bad), None, "{bad}");
        }
        assert_eq!(told_to(1, 0, &[0xff; 10]), None);
    }

    #[test]
    fn every_difference_has_its_name_and_both_values() {
        let settings = VerbsSettings::default();
        let own = Agreed::new(4096, &settings, Some(&FORWARDED));
        assert_eq!(own.difference(&own), None);
        let with = |settings| Agreed::new(4096, &settings, Some(&FORWARDED));
        let passed_on = |forwarded| Agreed::new(4096, &settings, Some(&forwarded));
        for (theirs, key, values) in [
            (Agreed::new(8192, &settings, Some(&FORWARDED)), "region", (4096, 8192)),
            (with(VerbsSettings { timeout: 15, ..settings }), "verbs.timeout", (14, 15)),
            (with(VerbsSettings { retry_count: 5, ..settings }), "verbs.retry_count", (6, 5)),
            (with(VerbsSettings { traffic_class: 104, ..settings }), "traffic_class", (0, 104)),
            (Agreed::new(4096, &settings, None), "forwarded", (1, 0)),
            (passed_on(Forwarded { flow_label: 0, ..FORWARDED }), "flow label", (16383, 0)),
            (passed_on(Forwarded { source_port: None, ..FORWARDED }), "tag port", (65535, 0)),
            (passed_on(Forwarded { window_bytes: 1, ..FORWARDED }), "window", (131_072, 1)),
        ] {
            let Some(found) = own.difference(&theirs) else { panic!("{key}: nothing found") };
            assert!(found.key.contains(key), "{found:?} is not {key}");
            assert_eq!((found.own, found.theirs), values, "{key}");
        }
    }
}
