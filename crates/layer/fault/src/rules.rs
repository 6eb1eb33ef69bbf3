// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules that hold now, and how often each has acted: both outlive the process where something keeps them.

use crate::power::Power;
use crate::rule::{self, Action, BadRule, Rule};
use outrigger_core::{HeapRegion, Keep, OpCode, Region, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The name of the region with the counts.
const COUNTS: &str = "fault";
/// The name of the region with the text of the rules.
const TEXT: &str = "fault-rules";
/// The most rules.
const RULES_MAX: usize = 1024;
/// The longest text of rules that is kept, in words of 8 bytes.
const TEXT_WORDS: usize = 8192;

/// Rules, and what their probabilities follow from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub(crate) list: Vec<Rule>,
    pub(crate) seed: u64,
}

impl Rules {
    pub(crate) fn new(list: Vec<Rule>, seed: u64) -> std::result::Result<Self, BadRule> {
        let rules = Rules { list, seed };
        if rules.list.len() > RULES_MAX || rules.to_string().len() > TEXT_WORDS * 8 {
            return Err(rule::too_many(RULES_MAX, TEXT_WORDS * 8));
        }
        Ok(rules)
    }

    /// Whether a rule cuts what is read.
    pub(crate) fn cuts_reads(&self) -> bool {
        self.list.iter().any(|rule| rule.has_op(OpCode::Read) && matches!(rule.action(), Action::Short(_)))
    }

    /// Whether a rule plays a power cut.
    pub(crate) fn cuts_power(&self) -> bool {
        self.list.iter().any(|rule| rule.action() == Action::Cut)
    }
}

impl FromStr for Rules {
    type Err = BadRule;

    fn from_str(text: &str) -> std::result::Result<Self, BadRule> {
        let (mut list, mut seed) = (Vec::new(), 0);
        for part in text.split(';').map(str::trim).filter(|_| !text.trim().is_empty()) {
            match part.strip_prefix("seed=") {
                Some(number) => seed = rule::number(part, number)?,
                None => list.push(part.parse()?),
            }
        }
        Rules::new(list, seed)
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed={}", self.seed)?;
        self.list.iter().try_for_each(|rule| write!(f, ";{rule}"))
    }
}

/// What the layer and its controls share.
pub(crate) struct State {
    rules: RwLock<Arc<Rules>>,
    counts: RwLock<Arc<dyn Region>>,
    /// Where the text of the rules is kept, if anywhere: its length plus one, then its bytes.
    text: RwLock<Option<Arc<dyn Region>>>,
    pub(crate) power: Arc<Power>,
}

fn read<T: Clone>(lock: &RwLock<T>) -> T {
    lock.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn write<T>(lock: &RwLock<T>, value: T) {
    *lock.write().unwrap_or_else(PoisonError::into_inner) = value;
}

impl State {
    pub(crate) fn new(rules: Rules) -> Self {
        State {
            rules: RwLock::new(Arc::new(rules)),
            counts: RwLock::new(Arc::new(HeapRegion::new(2 * RULES_MAX))),
            text: RwLock::new(None),
            power: Arc::default(),
        }
    }

    pub(crate) fn rules(&self) -> Arc<Rules> {
        read(&self.rules)
    }

    /// Goes on with the rules and counts in `keep`, if there are any.
    pub(crate) fn keep_in(&self, keep: &dyn Keep) -> Result<()> {
        let text = keep.region(TEXT, 1 + TEXT_WORDS)?;
        write(&self.counts, keep.region(COUNTS, 2 * RULES_MAX)?);
        if let Some(rules) = load(&*text).and_then(|text| text.parse().ok()) {
            write(&self.rules, Arc::new(rules));
        }
        write(&self.text, Some(text));
        let rules = self.rules();
        let has_cut = |(place, rule): (usize, &Rule)| rule.action() == Action::Cut && self.acted(place) > 0;
        self.power.switch(!rules.list.iter().enumerate().any(has_cut));
        Ok(())
    }

    /// Obeys `rules` from now on, whose counts begin at 0. The power is on again.
    fn replace(&self, rules: Rules) {
        if let Some(text) = read(&self.text) {
            store(&*text, &rules.to_string());
        }
        let counts = read(&self.counts);
        (0..2 * RULES_MAX).for_each(|index| counts.word(index).store(0, Ordering::Relaxed));
        write(&self.rules, Arc::new(rules));
        self.power.switch(true);
    }

    fn matched(&self, place: usize) -> u64 {
        read(&self.counts).word(2 * place).load(Ordering::Relaxed)
    }

    fn acted(&self, place: usize) -> u64 {
        read(&self.counts).word(2 * place + 1).load(Ordering::Relaxed)
    }

    /// Counts a match of rule number `place`; a random number when the rule acts on it.
    pub(crate) fn acts(&self, rules: &Rules, place: usize) -> Option<u64> {
        let counts = read(&self.counts);
        let count = |offset| -> &AtomicU64 { counts.word(2 * place + offset) };
        let rule = rules.list.get(place)?;
        let before = count(0).fetch_add(1, Ordering::Relaxed);
        let in_turn = before.checked_sub(rule.after()).is_some_and(|n| (n + 1).is_multiple_of(rule.every()));
        let seed = rules.seed ^ (place as u64).rotate_left(48) ^ before.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = fastrand::Rng::with_seed(seed);
        if !in_turn || rule.probability() < 1.0 && random.f64() >= rule.probability() {
            return None;
        }
        let limit = rule.times();
        let take = |acted: u64| (acted < limit).then_some(acted + 1);
        let taken = count(1).fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok().then(|| random.u64(..))
    }
}

/// The text kept in a region; none when no text was ever kept.
fn load(region: &dyn Region) -> Option<String> {
    let len = region.word(0).load(Ordering::Acquire).checked_sub(1)? as usize;
    let words = len.div_ceil(8).min(TEXT_WORDS);
    let bytes = (1..=words).flat_map(|index| region.word(index).load(Ordering::Relaxed).to_le_bytes());
    String::from_utf8(bytes.take(len).collect()).ok()
}

/// Keeps a text. A process that dies in the middle leaves none.
fn store(region: &dyn Region, text: &str) {
    region.word(0).store(0, Ordering::Release);
    for (index, bytes) in text.as_bytes().chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        region.word(1 + index).store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    region.word(0).store(text.len() as u64 + 1, Ordering::Release);
}

/// Changes the rules while the stack is in use.
#[derive(Clone)]
pub struct FaultControl(Arc<State>);

/// A rule and its counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acted {
    /// The rule, as it was given.
    pub rule: String,
    /// How many requests it matched.
    pub matched: u64,
    /// On how many of them it acted.
    pub acted: u64,
}

impl FaultControl {
    pub(crate) fn new(state: Arc<State>) -> Self {
        FaultControl(state)
    }

    /// Obeys the rules in `text` from now on instead of those before; their counts begin at 0, and after a power cut the power
    /// is on again, as soon as the cut has undone what it undoes. No text is no rule.
    ///
    /// # Errors
    /// [`BadRule`] names the part that cannot be understood; the rules before hold then.
    pub fn replace(&self, text: &str) -> std::result::Result<(), BadRule> {
        self.0.replace(text.parse()?);
        Ok(())
    }

    /// The rules that hold, and how often each has acted.
    pub fn rules(&self) -> Vec<Acted> {
        let (state, rules) = (&self.0, self.0.rules());
        let acted = |(place, rule): (usize, &Rule)| Acted {
            rule: rule.to_string(),
            matched: state.matched(place),
            acted: state.acted(place),
        };
        rules.list.iter().enumerate().map(acted).collect()
    }
}
