//! A model, a vocabulary and a group without weights or sockets, that check how they are used.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use engine::communicator::{Activity, Communicator, CommunicatorError};
use engine::model::{ModelError, StepPlan};
use engine::serving::{Stepper, TextError, TokenDecoder, Vocabulary};
use engine::tokenizer::ChatMessage;

/// The token that ends a text; those below it are bytes.
pub const END: u32 = 256;

/// Text is its bytes, and a prompt ends with a newline.
pub struct Bytes;

impl Vocabulary for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        if text.contains('\0') {
            return Err(TextError("the text holds a zero byte".into()));
        }
        Ok(text.bytes().chain([b'\n']).map(u32::from).collect())
    }

    fn encode_chat(&self, messages: &[ChatMessage]) -> Result<Vec<u32>, TextError> {
        let lines: Vec<String> = messages
            .iter()
            .map(|message| format!("{}: {}", message.role, message.content))
            .collect();
        self.encode(&lines.join("\n"))
    }

    fn decoder(&self) -> Box<dyn TokenDecoder> {
        Box::new(ByteDecoder(Vec::new()))
    }

    fn is_end(&self, token: u32) -> bool {
        token == END
    }

    fn size(&self) -> usize {
        257
    }
}

struct ByteDecoder(Vec<u8>);

impl TokenDecoder for ByteDecoder {
    fn push(&mut self, token: u32) -> String {
        self.0.push(token as u8);
        match String::from_utf8(self.0.clone()) {
            Ok(text) => {
                self.0.clear();
                text
            }
            Err(error) if error.utf8_error().error_len().is_none() => String::new(),
            Err(_) => self.finish(),
        }
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// What the model says.
#[derive(Clone)]
pub enum Says {
    /// Something that depends on every token before.
    Hash,
    /// This text after the last newline, then the end.
    Text(&'static str),
    /// This text over and over.
    Forever(&'static str),
}

/// A model whose next token depends on all tokens of its slot and on nothing else. Panics at a plan that a real model
/// would refuse.
pub struct FakeModel {
    pub says: Says,
    pub slots: Vec<Vec<u32>>,
    pub context: usize,
    pub kv_tokens: usize,
    pub block: usize,
    pub step_takes: Duration,
}

impl FakeModel {
    pub fn new(says: Says, slots: usize, context: usize, kv_tokens: usize) -> Self {
        let slots = vec![Vec::new(); slots];
        Self { says, slots, context, kv_tokens, block: 1, step_takes: Duration::ZERO }
    }

    pub fn run(&mut self, plan: &StepPlan) -> Vec<Vec<f32>> {
        let plan = StepPlan::decode(&plan.encode().unwrap()).unwrap();
        for &slot in &plan.release {
            self.slots[slot as usize].clear();
        }
        let mut logits = Vec::new();
        for entry in &plan.entries {
            let slot = &mut self.slots[entry.slot as usize];
            assert_eq!(slot.len(), entry.position as usize, "slot {} is not continued", entry.slot);
            slot.extend(&entry.tokens);
            assert!(slot.len() <= self.context, "slot {} grew beyond the context", entry.slot);
            if entry.want_logits {
                logits.push(row(&self.says, slot));
            }
        }
        let held: usize =
            self.slots.iter().map(|slot| slot.len().next_multiple_of(self.block)).sum();
        assert!(held <= self.kv_tokens, "the cache holds {held} tokens");
        logits
    }
}

impl Stepper for FakeModel {
    fn forward(
        &mut self,
        plan: &StepPlan,
        comm: &mut dyn Communicator,
    ) -> Result<Vec<Vec<f32>>, ModelError> {
        std::thread::sleep(self.step_takes);
        let logits = self.run(plan);
        if !plan.entries.is_empty() {
            comm.all_reduce_sum(&mut [0.0])?;
        }
        Ok(logits)
    }

    fn reset(&mut self) {
        self.slots.iter_mut().for_each(Vec::clear);
    }
}

fn row(says: &Says, history: &[u32]) -> Vec<f32> {
    let start = history.iter().rposition(|&token| token == u32::from(b'\n')).map_or(0, |at| at + 1);
    let said = history.len() - start;
    let mut logits = vec![-20.0f32; 257];
    match says {
        Says::Text(text) => {
            logits[text.as_bytes().get(said).map_or(END as usize, |&byte| byte as usize)] = 20.0;
        }
        Says::Forever(text) => logits[text.as_bytes()[said % text.len()] as usize] = 20.0,
        Says::Hash => {
            let mut hash = history.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &token| {
                (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3)
            });
            for token in (97..123).chain([END]) {
                hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                logits[token as usize] = (hash >> 40) as f32 / (1u32 << 22) as f32;
            }
        }
    }
    logits
}

/// One rank of a group of threads in which every collective is a barrier, and planned ones fail on all ranks.
pub struct FakeGroup {
    rank: usize,
    shared: Arc<Shared>,
}

struct Shared {
    size: usize,
    fail_at: HashSet<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    round: u64,
    /// Rounds without those that re-form the group.
    collectives: u64,
    failed: bool,
    closed: bool,
    message: Vec<u8>,
}

impl FakeGroup {
    /// A group of `size` ranks; of all its collectives those numbered `fail_at` (from 1) fail.
    pub fn of(size: usize, fail_at: impl IntoIterator<Item = u64>) -> Vec<Self> {
        let fail_at = fail_at.into_iter().collect();
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { size, fail_at, state, changed });
        (0..size).map(|rank| Self { rank, shared: Arc::clone(&shared) }).collect()
    }

    /// Something to end the group with.
    pub fn closer(&self) -> impl Fn() + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move || {
            shared.state.lock().unwrap().closed = true;
            shared.changed.notify_all();
        }
    }

    fn meet(&self, message: Option<&[u8]>, may_fail: bool) -> Result<Vec<u8>, CommunicatorError> {
        let mut state = self.shared.state.lock().unwrap();
        if let Some(message) = message {
            state.message = message.to_vec();
        }
        state.arrived += 1;
        let round = state.round;
        if state.arrived == self.shared.size {
            state.arrived = 0;
            state.round += 1;
            state.collectives += u64::from(may_fail);
            state.failed = may_fail && self.shared.fail_at.contains(&state.collectives);
            self.shared.changed.notify_all();
        }
        let waits = |state: &mut State| state.round == round && !state.closed;
        let state = self.shared.changed.wait_while(state, waits).unwrap();
        if state.closed {
            return Err(CommunicatorError::Closed);
        }
        if state.failed {
            return Err(CommunicatorError::Failed {
                summary: format!("planned, number {}", state.collectives),
            });
        }
        Ok(state.message.clone())
    }
}

impl Communicator for FakeGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn all_reduce_sum(&mut self, _values: &mut [f32]) -> Result<(), CommunicatorError> {
        self.meet(None, true).map(drop)
    }

    fn all_gather(
        &mut self,
        _mine: &[f32],
        _lengths: &[usize],
        _out: &mut [f32],
    ) -> Result<(), CommunicatorError> {
        self.meet(None, true).map(drop)
    }

    fn broadcast(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<(), CommunicatorError> {
        *bytes = self.meet((self.rank == root).then_some(&bytes[..]), true)?;
        Ok(())
    }

    fn enter(&mut self, _activity: Activity) {}

    fn reform(&mut self) -> Result<(), CommunicatorError> {
        self.meet(None, false).map(drop)
    }
}
