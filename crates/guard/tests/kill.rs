// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that owns a node table is killed at random moments; the next owner finds what was acknowledged.
//!
//! The child is this program again, with the region as its standard input. It does operations that a seed decides,
//! counting each one done in a word beside the table, and writes a byte for every few of them. The parent reads a
//! random number of bytes, kills it, does the same operations on a copy of the table, and compares.

use outrigger_core::node_table::{FileKey, NodeTable};
use outrigger_core::{HeapRegion, Region};
use outrigger_core::{Name, Node};
use outrigger_guard::SharedRegion;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set for the child, to the seed of its operations.
const SEED: &str = "OUTRIGGER_KILL_TEST_SEED";
const ROUNDS: u64 = 150;
const WORDS: usize = 1 << 16;
/// Words before the table; the first counts operations.
const HEAD: usize = 8;
/// Operations per byte the child writes.
const BATCH: u64 = 4;
/// How long the child lingers at each word, in turns of a loop.
const LINGER: u32 = 100;

/// All of a region behind its head. The child lingers at each access, so that most kills strike inside a change.
struct Tail {
    region: Arc<SharedRegion>,
    linger: u32,
}

impl Tail {
    fn reopen(region: &Arc<SharedRegion>, linger: u32) -> NodeTable {
        let tail = Tail { region: Arc::clone(region), linger };
        NodeTable::attach(Arc::new(tail)).expect("a sound table")
    }
}

impl Region for Tail {
    fn words(&self) -> usize {
        WORDS - HEAD
    }
    fn word(&self, index: usize) -> &AtomicU64 {
        (0..self.linger).for_each(|_| std::hint::spin_loop());
        self.region.word(index + HEAD)
    }
}

/// xorshift64*: the same numbers in parent and child.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

/// Does operations on a table, each decided by the seed and what is held.
struct Actor {
    table: NodeTable,
    random: Random,
    held: Vec<Node>,
}

impl Actor {
    fn new(table: NodeTable, seed: u64) -> Self {
        let slots = 1..=(WORDS / 4) as u32;
        let held = slots.filter_map(|slot| table.at_slot(slot)).collect();
        Actor { table, random: Random(seed | 1), held }
    }

    fn node(&mut self) -> Node {
        self.held[self.random.below(self.held.len() as u64) as usize]
    }

    fn place(&mut self) -> (Node, Name) {
        let text = format!("{:x>1$}", self.random.below(4), 1 + 40 * self.random.below(3) as usize);
        (self.node(), Name::try_from(&*text).expect("a name"))
    }

    fn step(&mut self) {
        let (dir, name) = self.place();
        let (other_dir, other) = self.place();
        let choice = self.random.below(if self.held.len() > 200 { 20 } else { 10 });
        // Errors are part of the game: circles and stale numbers are refused.
        match choice {
            0..5 => {
                let key = FileKey::new(self.random.below(50));
                if let Ok(node) = self.table.found(dir, &name, key)
                    && !self.held.contains(&node)
                {
                    self.held.push(node);
                }
            }
            5 => drop(self.table.renamed((dir, &name), (other_dir, &other))),
            6 => drop(self.table.exchanged((dir, &name), (other_dir, &other))),
            7 => self.table.removed(dir, &name),
            8 => drop(self.table.linked(other_dir, dir, &name)),
            _ => {
                let node = self.node();
                self.table.forget(node, self.random.below(9));
                let table = &self.table;
                self.held.retain(|&node| node == Node::ROOT || table.references(node).is_some());
            }
        }
    }
}

fn child(seed: u64) {
    let fd = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input");
    let region = Arc::new(SharedRegion::open(fd).expect("the region"));
    let mut actor = Actor::new(Tail::reopen(&region, 0), seed);
    actor.table = Tail::reopen(&region, LINGER);
    let mut out = std::io::stdout();
    for done in 1.. {
        actor.step();
        region.word(0).store(done, Ordering::SeqCst);
        if done % BATCH == 0 && out.write_all(b".").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// A copy of the table as it is, in this process.
fn copy(region: &SharedRegion) -> NodeTable {
    let heap = HeapRegion::new(WORDS - HEAD);
    for index in 0..WORDS - HEAD {
        heap.word(index).store(region.word(index + HEAD).load(Ordering::Relaxed), Ordering::Relaxed);
    }
    NodeTable::attach(Arc::new(heap)).expect("a sound table")
}

/// Runs a child and kills it after some operations.
fn run_and_kill(region: &SharedRegion, seed: u64, batches: u64) {
    region.word(0).store(0, Ordering::SeqCst);
    let program = std::env::current_exe().expect("this program");
    let stdin = Stdio::from(region.fd().try_clone_to_owned().expect("dup"));
    let mut command = Command::new(program);
    command.env(SEED, seed.to_string()).stdin(stdin).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the child starts");
    let mut acks = child.stdout.take().expect("a pipe");
    let mut byte = [0];
    for _ in 0..batches {
        acks.read_exact(&mut byte).expect("the child works until it is killed");
    }
    // Not always at the same distance from the byte.
    (0..Random(seed).below(60_000)).for_each(|_| std::hint::spin_loop());
    child.kill().expect("kill");
    child.wait().expect("wait");
}

/// What can be observed of a node.
fn state(table: &NodeTable, node: Node) -> (Option<Vec<Name>>, Option<u32>) {
    (table.path(node).ok(), table.references(node))
}

fn round(region: &Arc<SharedRegion>, number: u64) {
    let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1);
    let (mut before, mut after) = (Actor::new(copy(region), seed), Actor::new(copy(region), seed));
    run_and_kill(region, seed, 1 + Random(seed).below(10));
    let done = region.word(0).load(Ordering::SeqCst);
    (0..done).for_each(|_| before.step());
    // The operation the child was killed in may have happened, wholly or not at all for each node.
    (0..=done).for_each(|_| after.step());
    let table = Tail::reopen(region, 0);
    for &node in &before.held {
        let (found, old, new) = (state(&table, node), state(&before.table, node), state(&after.table, node));
        let context = format!("round {number}, operation {done}, {node:?}");
        assert!(found.0 == old.0 || found.0 == new.0, "{context}: {found:?} is neither {old:?} nor {new:?}");
        assert!(found.1 == old.1 || found.1 == new.1, "{context}: {found:?} is neither {old:?} nor {new:?}");
    }
}

fn main() {
    if let Ok(seed) = std::env::var(SEED) {
        return child(seed.parse().expect("a number"));
    }
    let region = Arc::new(SharedRegion::create("test", WORDS).expect("memory"));
    let tail = Tail { region: Arc::clone(&region), linger: 0 };
    NodeTable::attach(Arc::new(tail)).expect("room");
    (0..ROUNDS).for_each(|number| round(&region, number));
}
