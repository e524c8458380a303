//! Proving rails before anything serves: bytes cross each one and come back equal.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::bell::reached;
use crate::device::{FlagWrite, Span};
use crate::fabric::Fabric;
use crate::layout::{Channel, FIRST_VALUE, LINE_BYTES};
use crate::region::OutOfRegion;

/// A rail whose proof failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unproven {
    /// The neighbour.
    pub peer: usize,
    /// The rail.
    pub rail: usize,
    /// What was missing or wrong.
    pub why: &'static str,
}

const SENT: u32 = FIRST_VALUE.wrapping_add(1);
const ECHOED: u32 = FIRST_VALUE.wrapping_add(2);

#[derive(Debug)]
struct Probe {
    peer: usize,
    rail: usize,
    nonce: [u8; LINE_BYTES as usize],
    echoed: bool,
    why: Option<&'static str>,
}

impl Fabric {
    /// Sends random bytes over every rail to every neighbour, sends back what arrives, and
    /// compares. All ranks call it at the same time, after all of them are connected. Answers the
    /// rails that did not pass by the deadline; they carry nothing from then on.
    ///
    /// # Errors
    /// Never for a region that has its layout.
    pub fn prove(&self, epoch: u32, deadline: Instant) -> Result<Vec<Unproven>, OutOfRegion> {
        let mut probes = Vec::new();
        let rails = self.topology().rails();
        for peer in self.topology().neighbours(self.rank()) {
            for rail in 0..rails {
                let mut nonce = [0; LINE_BYTES as usize];
                // Without randomness the bytes still tell the path; only a stale echo of an
                // earlier epoch could pass, and the epoch is in them.
                let _ =
                    rustix::rand::getrandom(&mut nonce[8..], rustix::rand::GetRandomFlags::empty());
                nonce[..4].copy_from_slice(&epoch.to_le_bytes());
                nonce[4..8].copy_from_slice(&[self.rank() as u8, peer as u8, rail as u8, 0x52]);
                let place = self.layout().staging(0).offset + probes.len() as u64 * LINE_BYTES;
                self.region().write(place, &nonce)?;
                self.post_proof(peer, rail, place, false);
                probes.push(Probe {
                    peer,
                    rail,
                    nonce,
                    echoed: false,
                    why: Some("no bytes arrived"),
                });
            }
        }
        while probes.iter().any(|probe| probe.why.is_some()) && Instant::now() < deadline {
            self.poll();
            for probe in &mut probes {
                self.advance(probe)?;
            }
            std::thread::yield_now();
        }
        let failed: Vec<Unproven> = probes
            .iter()
            .filter_map(|probe| {
                Some(Unproven { peer: probe.peer, rail: probe.rail, why: probe.why? })
            })
            .collect();
        for rail in &failed {
            self.with_endpoint(|endpoint| endpoint.cut(rail.peer, rail.rail));
        }
        Ok(failed)
    }

    fn advance(&self, probe: &mut Probe) -> Result<(), OutOfRegion> {
        let layout = self.layout();
        let flag = self.region().flag(layout.flag(probe.peer, Channel::Proof, probe.rail))?;
        let value = flag.load(Ordering::Acquire);
        if !probe.echoed && reached(value, SENT) {
            probe.echoed = true;
            probe.why = Some("its bytes arrived and no echo of ours");
            let place = layout.proof(probe.peer, probe.rail, false);
            self.post_proof(probe.peer, probe.rail, place, true);
        }
        if probe.why.is_some() && reached(value, ECHOED) {
            let mut echo = [0; LINE_BYTES as usize];
            self.region().read(layout.proof(probe.peer, probe.rail, true), &mut echo)?;
            probe.why = (echo != probe.nonce).then_some("the echo differs from what was sent");
        }
        Ok(())
    }

    fn post_proof(&self, peer: usize, rail: usize, place: u64, echo: bool) {
        let to = self.layout().proof(self.rank(), rail, echo);
        let flag = FlagWrite {
            offset: self.layout().flag(self.rank(), Channel::Proof, rail),
            value: if echo { ECHOED } else { SENT },
        };
        let body = Span { offset: place, len: LINE_BYTES };
        self.with_endpoint(|endpoint| endpoint.put_on_rail(peer, rail, body, to, flag));
    }
}
