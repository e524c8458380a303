//! What one step does, as rank 0 decides it and every rank receives it.
//!
//! The bytes are a version, the releases and the entries; every number is an unsigned LEB128 in its shortest form, so
//! that one plan has exactly one encoding.

/// The most entries of one plan.
pub const MAX_ENTRIES: usize = 4096;

/// The most slots one plan releases.
pub const MAX_RELEASES: usize = 4096;

/// The most tokens one plan feeds to the model, over all its entries.
pub const MAX_TOKENS: usize = 65_536;

const VERSION: u8 = 1;

/// The next tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepEntry {
    /// Where the sequence keeps its keys and values; a slot occurs at most once in a plan.
    pub slot: u32,
    /// The number of tokens of the sequence fed before.
    pub position: u32,
    /// The tokens to feed, at least one.
    pub tokens: Vec<u32>,
    /// Whether the logits after the last of `tokens` are wanted.
    pub want_logits: bool,
}

/// One step: the slots that become free, then the tokens to feed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The sequences that go on, in the order their logits are returned.
    pub entries: Vec<StepEntry>,
    /// The slots emptied before any entry is run.
    pub release: Vec<u32>,
}

/// A plan that cannot be run, or bytes that are no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More of something than a plan may hold.
    #[error("a step plan may have at most {limit} {what}, this one has {found}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many are allowed.
        limit: usize,
    },
    /// An entry that feeds nothing.
    #[error("entry {entry} (slot {slot}) of the step plan feeds no token")]
    Empty {
        /// Which entry, from 0.
        entry: usize,
        /// Its slot.
        slot: u32,
    },
    /// Two entries for one slot.
    #[error("slot {slot} occurs twice in the step plan")]
    SlotTwice {
        /// The slot.
        slot: u32,
    },
    /// A position that leaves the number range.
    #[error("entry {entry} of the step plan ends beyond position {}", u32::MAX)]
    PositionTooLarge {
        /// Which entry, from 0.
        entry: usize,
    },
    /// The bytes end inside a value.
    #[error("the step plan ends inside {what} at byte {at}")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where, in bytes from the start.
        at: usize,
    },
    /// A value that no encoder writes.
    #[error("the step plan has a bad {what} at byte {at}")]
    BadValue {
        /// What was being read.
        what: &'static str,
        /// Where, in bytes from the start.
        at: usize,
    },
}

impl StepPlan {
    /// The number of tokens fed by all entries.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.entries.iter().map(|entry| entry.tokens.len()).sum()
    }

    /// Checks the limits and that no slot occurs twice.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&self) -> Result<(), PlanError> {
        at_most("entries", self.entries.len() as u64, MAX_ENTRIES)?;
        at_most("releases", self.release.len() as u64, MAX_RELEASES)?;
        at_most("tokens", self.tokens() as u64, MAX_TOKENS)?;
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.tokens.is_empty() {
                return Err(PlanError::Empty { entry: index, slot: entry.slot });
            }
            // The tokens are at most MAX_TOKENS, which fits.
            if entry.position.checked_add(entry.tokens.len() as u32).is_none() {
                return Err(PlanError::PositionTooLarge { entry: index });
            }
        }
        let mut slots: Vec<u32> = self.entries.iter().map(|entry| entry.slot).collect();
        slots.sort_unstable();
        match slots.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(PlanError::SlotTwice { slot: pair[0] }),
            None => Ok(()),
        }
    }

    /// The plan as bytes.
    ///
    /// # Errors
    /// When the plan fails its [`check`](Self::check).
    pub fn encode(&self) -> Result<Vec<u8>, PlanError> {
        self.check()?;
        let mut bytes = Vec::with_capacity(8 + 8 * self.entries.len() + 3 * self.tokens());
        bytes.push(VERSION);
        write(&mut bytes, self.release.len() as u32);
        for &slot in &self.release {
            write(&mut bytes, slot);
        }
        write(&mut bytes, self.entries.len() as u32);
        for entry in &self.entries {
            write(&mut bytes, entry.slot);
            write(&mut bytes, entry.position);
            bytes.push(u8::from(entry.want_logits));
            write(&mut bytes, entry.tokens.len() as u32);
            for &token in &entry.tokens {
                write(&mut bytes, token);
            }
        }
        Ok(bytes)
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// When `bytes` are not exactly one valid plan. Memory stays in proportion to the length of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.byte("version")? != VERSION {
            return Err(PlanError::BadValue { what: "version", at: 0 });
        }
        let releases = reader.count("releases", MAX_RELEASES)?;
        let release = (0..releases).map(|_| reader.number("release")).collect::<Result<_, _>>()?;
        let count = reader.count("entries", MAX_ENTRIES)?;
        let mut entries = Vec::new();
        let mut total = 0;
        for _ in 0..count {
            let slot = reader.number("slot")?;
            let position = reader.number("position")?;
            let at = reader.at;
            let want_logits = match reader.byte("flag")? {
                0 => false,
                1 => true,
                _ => return Err(PlanError::BadValue { what: "flag", at }),
            };
            let length = reader.count("tokens", MAX_TOKENS)?;
            total += length;
            at_most("tokens", total as u64, MAX_TOKENS)?;
            let tokens = (0..length).map(|_| reader.number("token")).collect::<Result<_, _>>()?;
            entries.push(StepEntry { slot, position, tokens, want_logits });
        }
        if reader.at != bytes.len() {
            return Err(PlanError::BadValue { what: "end", at: reader.at });
        }
        let plan = Self { entries, release };
        plan.check()?;
        Ok(plan)
    }
}

fn at_most(what: &'static str, found: u64, limit: usize) -> Result<(), PlanError> {
    if found > limit as u64 {
        return Err(PlanError::TooMany { what, found, limit });
    }
    Ok(())
}

fn write(bytes: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self, what: &'static str) -> Result<u8, PlanError> {
        let byte = *self.bytes.get(self.at).ok_or(PlanError::Truncated { what, at: self.at })?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self, what: &'static str) -> Result<u32, PlanError> {
        let start = self.at;
        let bad = PlanError::BadValue { what, at: start };
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.byte(what)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let overlong = byte == 0 && shift > 0;
                return u32::try_from(value).ok().filter(|_| !overlong).ok_or(bad);
            }
        }
        Err(bad)
    }

    fn count(&mut self, what: &'static str, limit: usize) -> Result<usize, PlanError> {
        let found = self.number(what)?;
        at_most(what, u64::from(found), limit)?;
        Ok(found as usize)
    }
}
