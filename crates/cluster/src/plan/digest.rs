//! One number for a whole plan, so that ranks can tell whether they have the same.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::error::PlanError;
use super::{FunctionRef, Load, PathKind, Plan, RankPlan, Shape, Tag};
use crate::file::{Forward, MarkerKind, TagKind};

/// A function of [`Plan::ranks`]: its rank, and its number among all of the host.
type Place = (usize, usize);

/// What is hashed: all of the plan, but a function in full only in the list of its rank, which is most of the text.
#[derive(Serialize)]
struct Content<'a> {
    schema: &'a str,
    shape: Shape,
    forward: Forward,
    tag: TagKind,
    #[serde(skip_serializing_if = "MarkerKind::is_nic")]
    marker: MarkerKind,
    mtu_bytes: u32,
    ranks: &'a [RankPlan],
    cables: Vec<CableContent<'a>>,
    paths: Vec<PathContent<'a>>,
    loads: &'a [Load],
}

#[derive(Serialize)]
struct CableContent<'a> {
    name: &'a str,
    a: &'a (usize, String),
    b: Option<&'a (usize, String)>,
    switch: Option<&'a str>,
    pairs: Vec<(Place, Place)>,
}

#[derive(Serialize)]
struct PathContent<'a> {
    from: usize,
    to: usize,
    kind: PathKind,
    instead: Option<&'a str>,
    chosen: bool,
    rails: Vec<RailContent<'a>>,
}

#[derive(Serialize)]
struct RailContent<'a> {
    hops: &'a [usize],
    crossings: Vec<(usize, Place, Place)>,
    tag: Option<&'a Tag>,
}

fn place(function: &FunctionRef) -> Place {
    (function.rank, function.device_number)
}

impl Plan {
    /// The digest of the plan's content, whatever its `digest` says: SHA-256, in hexadecimal, of canonical JSON in which
    /// rails and cables name functions by rank and device number. Equal for equal plans, and for no others, as long as
    /// functions of rails are those of [`Plan::ranks`], as [`Plan::of`] makes them.
    ///
    /// # Errors
    ///
    /// If the plan cannot be written as JSON.
    pub fn computed_digest(&self) -> Result<String, PlanError> {
        let cables = self.cables.iter().map(|cable| CableContent {
            name: &cable.name,
            a: &cable.a,
            b: cable.b.as_ref(),
            switch: cable.switch.as_deref(),
            pairs: cable.pairs.iter().map(|(a, b)| (place(a), place(b))).collect(),
        });
        let paths = self.paths.iter().map(|path| PathContent {
            from: path.from,
            to: path.to,
            kind: path.kind,
            instead: path.instead.as_deref(),
            chosen: path.chosen,
            rails: path
                .rails
                .iter()
                .map(|rail| RailContent {
                    hops: &rail.hops,
                    crossings: rail
                        .crossings
                        .iter()
                        .map(|crossing| {
                            (crossing.cable, place(&crossing.out), place(&crossing.into))
                        })
                        .collect(),
                    tag: rail.tag.as_ref(),
                })
                .collect(),
        });
        let content = Content {
            schema: &self.schema,
            shape: self.shape,
            forward: self.forward,
            tag: self.tag,
            marker: self.marker,
            mtu_bytes: self.mtu_bytes,
            ranks: &self.ranks,
            cables: cables.collect(),
            paths: paths.collect(),
            loads: &self.loads,
        };
        let hash = Sha256::digest(serde_json::to_vec(&content)?);
        Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}
