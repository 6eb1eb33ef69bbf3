// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules that hold now, and how often each has acted: both outlive the process where something keeps them.

use crate::power::Power;
use crate::rule::{self, Action, BadRule, Rule};
use outrigger_core::survive::{Layout, Text, Twin};
use outrigger_core::{Keep, Result, lock};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The region with the rules and their counts.
const LAYOUT: Layout = Layout::of("fault-generations");
/// The most rules.
const RULES_MAX: usize = 1024;
/// The longest text of rules that is kept, in words of 8 bytes.
const TEXT_WORDS: usize = 8192;

outrigger_core::fields! {
    /// How many requests a rule matched, and on how many it acted.
    struct Counts {
        matched: u64,
        acted: u64,
    }
}

outrigger_core::fields! {
    /// What is kept of one generation of rules.
    struct Generation {
        /// The rules; none when they are those that the process was started with.
        text: Text<'static, TEXT_WORDS>,
        counts: [Counts<'static>; RULES_MAX],
    }
}

type Generations = Twin<Generation<'static>>;

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
        self.list.iter().any(Rule::cuts_reads)
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

/// One generation of rules with its counts.
#[derive(Clone)]
struct Kept {
    generations: Generations,
    number: u64,
}

impl Kept {
    /// The one that holds.
    fn of(generations: Generations) -> Self {
        Kept { number: generations.number(), generations }
    }

    fn counts(&self, place: usize) -> Counts<'_> {
        self.generations.at(self.number).counts().at(place)
    }

    /// The text of the rules; none when they are those that the process was started with.
    fn text(&self) -> Option<String> {
        let text = self.generations.at(self.number).text().get()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// The next generation, of `rules`, with counts of 0. It holds from the last store on: a process that dies before leaves
    /// these rules and their counts as they are.
    fn followed_by(&self, rules: &Rules) -> Kept {
        self.generations.replace(|next| {
            let kept = next.text().set(rules.to_string().as_bytes());
            debug_assert!(kept.is_ok(), "rules that are too long are refused");
            for counts in next.counts().iter().take(rules.list.len()) {
                counts.matched().set(0);
                counts.acted().set(0);
            }
        });
        Kept::of(self.generations.clone())
    }
}

/// The rules that hold at a time, and their counts.
pub(crate) struct Current {
    pub(crate) rules: Rules,
    kept: Kept,
}

impl Current {
    /// Which generation of rules they are.
    pub(crate) fn number(&self) -> u64 {
        self.kept.number
    }

    /// Counts a match of rule number `place`; a random number when the rule acts on it.
    pub(crate) fn acts(&self, place: usize) -> Option<u64> {
        let rule = self.rules.list.get(place)?;
        let before = self.kept.counts(place).matched().increase(1);
        let in_turn = before.checked_sub(rule.after()).is_some_and(|n| (n + 1).is_multiple_of(rule.every()));
        let seed =
            self.rules.seed ^ (place as u64).rotate_left(48) ^ before.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = fastrand::Rng::with_seed(seed);
        if !in_turn || rule.probability() < 1.0 && random.f64() >= rule.probability() {
            return None;
        }
        let limit = rule.times();
        let take = |acted: u64| (acted < limit).then_some(acted + 1);
        let taken = self.kept.counts(place).acted().atomic().fetch_update(Relaxed, Relaxed, take);
        taken.is_ok().then(|| random.u64(..))
    }

    /// The rules, and how often each has acted.
    fn acted(&self) -> Vec<Acted> {
        let acted = |(place, rule): (usize, &Rule)| Acted {
            rule: rule.to_string(),
            matched: self.kept.counts(place).matched().get(),
            acted: self.kept.counts(place).acted().get(),
        };
        self.rules.list.iter().enumerate().map(acted).collect()
    }

    /// Whether one of the rules has cut the power.
    fn has_cut(&self) -> bool {
        let acted = |place| self.kept.counts(place).acted().get() > 0;
        let mut rules = self.rules.list.iter().enumerate();
        rules.any(|(place, rule)| rule.action() == Action::Cut && acted(place))
    }
}

/// What the layer and its controls share.
pub(crate) struct State {
    current: RwLock<Current>,
    /// One replacement at a time: each fills the one that does not hold.
    replacing: Mutex<()>,
    pub(crate) power: Arc<Power>,
}

impl State {
    pub(crate) fn new(rules: Rules) -> Self {
        let current = RwLock::new(Current { rules, kept: Kept::of(Generations::default()) });
        State { current, replacing: Mutex::default(), power: Arc::default() }
    }

    /// Does something with the rules that hold. They are not replaced before it ends, so what it counts is counted for them;
    /// it must not ask for them again.
    pub(crate) fn with_rules<T>(&self, f: impl FnOnce(&Current) -> T) -> T {
        f(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn hold(&self, current: Current) {
        let on = !current.has_cut();
        let mut holds = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *holds = current;
        // A cut by the new rules, which may act as soon as the lock is gone, is not to be taken back.
        self.power.switch(on);
    }

    /// Goes on with the rules and counts in `keep`, if there are any.
    pub(crate) fn keep_in(&self, keep: &dyn Keep) -> Result<()> {
        let kept = Kept::of(Generations::take(&mut LAYOUT.attach(keep, Generations::WORDS)?.area)?);
        let _one_at_a_time = lock(&self.replacing);
        let own = self.with_rules(|current| current.rules.clone());
        let current = match kept.text().map(|text| text.parse()) {
            None => Current { rules: own, kept },
            Some(Ok(rules)) => Current { rules, kept },
            Some(Err(error)) => {
                tracing::warn!(%error, "rules of a former process cannot be understood, so those of the start hold");
                Current { kept: kept.followed_by(&own), rules: own }
            }
        };
        self.hold(current);
        Ok(())
    }

    /// Obeys `rules` from now on, whose counts begin at 0. The power is on again.
    fn replace(&self, rules: Rules) {
        let _one_at_a_time = lock(&self.replacing);
        // Meanwhile requests go on by the rules before and count in their generation.
        let kept = self.with_rules(|current| current.kept.clone()).followed_by(&rules);
        self.hold(Current { rules, kept });
    }
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
        self.0.with_rules(Current::acted)
    }
}
