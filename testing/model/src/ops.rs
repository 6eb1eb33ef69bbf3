// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random operations.

use crate::model::Model;
use outrigger_core::ops::{FallocateMode, RenameFlags, XattrFlags};
use proptest::prelude::*;

/// Names that files get: few, so that they meet.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Offsets and lengths stay below this: a few pages of every usual size.
const EXTENT: u32 = 20_000;

/// A path, chosen by wrapping indexes.
#[derive(Debug, Clone, Copy)]
pub struct Pick {
    /// One that exists rather than a name in a directory that exists.
    exists: bool,
    index: u8,
    name: u8,
}

impl Pick {
    /// The path this stands for in the present state.
    pub fn path(self, model: &Model) -> String {
        let paths: Vec<String> = model.paths().into_keys().collect();
        if self.exists && !paths.is_empty() {
            return paths[usize::from(self.index) % paths.len()].clone();
        }
        let mut dirs: Vec<String> = paths.into_iter().filter(|path| model.names(path).is_ok()).collect();
        dirs.push(String::new());
        let (dir, name) =
            (&dirs[usize::from(self.index) % dirs.len()], NAMES[usize::from(self.name) % NAMES.len()]);
        if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
    }
}

/// Bytes of an open file, which is chosen by a wrapping index.
#[derive(Debug, Clone, Copy)]
pub struct Range {
    /// Which of the open files.
    pub file: u8,
    /// Start in bytes.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// One operation.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "each is the system call of its name")]
pub enum Op {
    Create(Pick, u32),
    MkDir(Pick, u32),
    SymLink(Pick),
    MkFifo(Pick),
    Link(Pick, Pick),
    Unlink(Pick),
    RmDir(Pick),
    Rename(Pick, Pick, RenameFlags),
    Chmod(Pick, u32),
    Open(Pick),
    Close(u8),
    Write(Range, u8),
    Read(Range),
    Truncate(u8, u32),
    Fallocate(Range, FallocateMode),
    Copy(Range, u8, u32),
    SetXattr(Pick, u8, u8, XattrFlags),
    GetXattr(Pick, u8),
    RemoveXattr(Pick, u8),
}

fn pick() -> impl Strategy<Value = Pick> {
    (any::<bool>(), any::<u8>(), any::<u8>()).prop_map(|(exists, index, name)| Pick { exists, index, name })
}

/// A path at which something may be made: mostly one that is free.
fn free() -> impl Strategy<Value = Pick> {
    (any::<u8>(), any::<u8>()).prop_map(|(index, name)| Pick { exists: false, index, name })
}

fn existing() -> impl Strategy<Value = Pick> {
    any::<u8>().prop_map(|index| Pick { exists: true, index, name: 0 })
}

/// A place in a file: often at or next to a border of a page.
fn place() -> impl Strategy<Value = u32> {
    prop_oneof![0..EXTENT, (0..5_u32, 0..3_u32).prop_map(|(page, by)| (page * 4096 + by).saturating_sub(1))]
}

fn range() -> impl Strategy<Value = Range> {
    (any::<u8>(), place(), place()).prop_map(|(file, offset, len)| Range { file, offset, len })
}

fn mode() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0o644), Just(0o755), Just(0o600), Just(0o777)]
}

fn rename_flags() -> impl Strategy<Value = RenameFlags> {
    prop_oneof![
        3 => Just(RenameFlags::empty()),
        1 => Just(RenameFlags::NOREPLACE),
        1 => Just(RenameFlags::EXCHANGE),
    ]
}

fn fallocate_mode() -> impl Strategy<Value = FallocateMode> {
    use FallocateMode as Mode;
    prop_oneof![
        Just(Mode::empty()),
        Just(Mode::KEEP_SIZE),
        Just(Mode::PUNCH_HOLE | Mode::KEEP_SIZE),
        Just(Mode::ZERO_RANGE),
        Just(Mode::ZERO_RANGE | Mode::KEEP_SIZE),
    ]
}

fn xattr_flags() -> impl Strategy<Value = XattrFlags> {
    prop_oneof![Just(XattrFlags::empty()), Just(XattrFlags::CREATE), Just(XattrFlags::REPLACE)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (free(), mode()).prop_map(|(at, mode)| Op::Create(at, mode)),
        6 => (free(), mode()).prop_map(|(at, mode)| Op::MkDir(at, mode)),
        1 => free().prop_map(Op::SymLink),
        1 => free().prop_map(Op::MkFifo),
        3 => (existing(), free()).prop_map(|(old, new)| Op::Link(old, new)),
        3 => existing().prop_map(Op::Unlink),
        2 => existing().prop_map(Op::RmDir),
        8 => (existing(), pick(), rename_flags()).prop_map(|(old, new, flags)| Op::Rename(old, new, flags)),
        2 => (existing(), mode()).prop_map(|(at, mode)| Op::Chmod(at, mode)),
        5 => existing().prop_map(Op::Open),
        2 => any::<u8>().prop_map(Op::Close),
        8 => (range(), any::<u8>()).prop_map(|(range, byte)| Op::Write(range, byte)),
        3 => range().prop_map(Op::Read),
        3 => (any::<u8>(), place()).prop_map(|(file, size)| Op::Truncate(file, size)),
        4 => (range(), fallocate_mode()).prop_map(|(range, mode)| Op::Fallocate(range, mode)),
        4 => (range(), any::<u8>(), place()).prop_map(|(range, to, offset)| Op::Copy(range, to, offset)),
        3 => (existing(), 0..3_u8, any::<u8>(), xattr_flags())
            .prop_map(|(at, name, value, flags)| Op::SetXattr(at, name, value, flags)),
        1 => (existing(), 0..3_u8).prop_map(|(at, name)| Op::GetXattr(at, name)),
        1 => (existing(), 0..3_u8).prop_map(|(at, name)| Op::RemoveXattr(at, name)),
    ]
}

/// Lists of up to `most` operations.
pub fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(), 1..most)
}
