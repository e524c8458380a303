//! Proving rails before anything serves: bytes cross each one and come back equal.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::bell::reached;
use crate::device::{FlagWrite, Span};
use crate::fabric::Fabric;
use crate::layout::{Channel, FIRST_VALUE, LINE_BYTES, ProofBytes};
use crate::region::OutOfRegion;

/// A rail whose proof failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unproven {
    /// The rank at its other end.
    pub peer: usize,
    /// The rail.
    pub rail: usize,
    /// What was missing or wrong.
    pub why: String,
}

/// A proof under way: random bytes go over a rail, come back, and are compared. Both ends do so
/// at the same time, with the same number of the attempt.
#[derive(Debug)]
pub struct Probe {
    peer: usize,
    rail: usize,
    attempt: u32,
    nonce: [u8; LINE_BYTES as usize],
    echoed: bool,
    why: Option<&'static str>,
}

impl Probe {
    /// What is missing or wrong so far; none once both directions are proven and the peer has
    /// been answered.
    pub fn missing(&self) -> Option<&'static str> {
        self.why
    }

    /// The flag's value for the peer's bytes, and for the echo of the own.
    fn values(&self) -> (u32, u32) {
        let first = FIRST_VALUE.wrapping_add(self.attempt.wrapping_mul(2));
        (first.wrapping_add(1), first.wrapping_add(2))
    }
}

impl Fabric {
    /// Sends random bytes over every rail to every rank with queue pairs, sends back what arrives,
    /// and compares. All ranks call it at the same time, after all of them are connected. Answers
    /// the rails that did not pass by the deadline; they carry nothing from then on.
    ///
    /// # Errors
    /// Never for a region that has its layout.
    pub fn prove(&self, epoch: u32, deadline: Instant) -> Result<Vec<Unproven>, OutOfRegion> {
        let mut probes = Vec::new();
        for peer in self.topology().linked(self.rank()) {
            for rail in self.topology().link_rails(self.rank(), peer) {
                probes.push(self.probe(peer, rail, epoch, 0)?);
            }
        }
        let fault = |probe: &Probe| {
            self.look_at_endpoint(|endpoint| endpoint.rail_fault(probe.peer, probe.rail).cloned())
        };
        // A rail that is down proves nothing any more, so nobody waits for it.
        let open = |probe: &Probe| probe.why.is_some() && fault(probe).is_none();
        while probes.iter().any(open) && Instant::now() < deadline {
            self.poll();
            for probe in &mut probes {
                self.advance(probe)?;
            }
            std::thread::yield_now();
        }
        let failed: Vec<Unproven> = probes
            .iter()
            .filter_map(|probe| {
                let missing = probe.why?;
                let why = fault(probe).map_or(missing.to_owned(), |fault| fault.to_string());
                Some(Unproven { peer: probe.peer, rail: probe.rail, why })
            })
            .collect();
        for rail in &failed {
            self.with_endpoint(|endpoint| endpoint.cut(rail.peer, rail.rail));
        }
        Ok(failed)
    }

    /// Begins the proof of one rail. Attempts of an epoch are numbered from 0, which
    /// [`prove`](Self::prove) uses.
    ///
    /// # Errors
    /// Never for a region that has its layout.
    pub fn probe(
        &self,
        peer: usize,
        rail: usize,
        epoch: u32,
        attempt: u32,
    ) -> Result<Probe, OutOfRegion> {
        let mut nonce = [0; LINE_BYTES as usize];
        // Without randomness the bytes still tell the path; only a stale echo of an earlier epoch
        // could pass, and the epoch is in them.
        let _ = rustix::rand::getrandom(&mut nonce[12..], rustix::rand::GetRandomFlags::empty());
        nonce[..4].copy_from_slice(&epoch.to_le_bytes());
        nonce[4..8].copy_from_slice(&[self.rank() as u8, peer as u8, rail as u8, 0x52]);
        nonce[8..12].copy_from_slice(&attempt.to_le_bytes());
        let place = self.layout().proof(peer, rail, ProofBytes::Own);
        self.region().write(place, &nonce)?;
        let why = Some("no bytes arrived");
        let probe = Probe { peer, rail, attempt, nonce, echoed: false, why };
        self.post_proof(&probe, ProofBytes::Own);
        Ok(probe)
    }

    /// Takes a proof further. To be called again while [`Probe::missing`] answers something.
    ///
    /// # Errors
    /// Never for a region that has its layout.
    pub fn advance(&self, probe: &mut Probe) -> Result<(), OutOfRegion> {
        let layout = self.layout();
        let (peer, rail) = (probe.peer, probe.rail);
        let (sent, echoed) = probe.values();
        let flag = self.region().flag(layout.flag(peer, Channel::Proof, rail))?;
        let value = flag.load(Ordering::Acquire);
        if !probe.echoed && reached(value, sent) {
            probe.echoed = true;
            probe.why = Some("its bytes arrived and no echo of ours");
            self.post_proof(probe, ProofBytes::Peers);
        }
        if probe.why.is_some() && reached(value, echoed) {
            let mut echo = [0; LINE_BYTES as usize];
            self.region().read(layout.proof(peer, rail, ProofBytes::Echo), &mut echo)?;
            probe.why = (echo != probe.nonce).then_some("the echo differs from what was sent");
        }
        Ok(())
    }

    /// Posts the own bytes, or the peer's as their echo.
    fn post_proof(&self, probe: &Probe, what: ProofBytes) {
        let (peer, rail) = (probe.peer, probe.rail);
        let layout = self.layout();
        let (sent, echoed) = probe.values();
        let (there, value) = match what {
            ProofBytes::Own => (ProofBytes::Peers, sent),
            ProofBytes::Peers | ProofBytes::Echo => (ProofBytes::Echo, echoed),
        };
        let to = layout.proof(self.rank(), rail, there);
        let offset = layout.flag(self.rank(), Channel::Proof, rail);
        let body = Span { offset: layout.proof(peer, rail, what), len: LINE_BYTES };
        let flag = FlagWrite { offset, value };
        self.with_endpoint(|endpoint| endpoint.put_on_rail(peer, rail, body, to, flag));
    }
}
