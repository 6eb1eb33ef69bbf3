// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of operations.

use crate::ops::OpCode;
use std::fmt;

/// Which operations a driver supports.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct OpSet(u64);

// A stable operation number doubles as its bit here.
const _: () = assert!(OpCode::MAX < 64, "operation numbers outgrew the bits of an OpSet");

impl OpSet {
    /// No operation.
    pub const NONE: OpSet = OpSet(0);

    /// These operations.
    pub const fn of(ops: &[OpCode]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < ops.len() {
            bits |= 1 << ops[i] as u64;
            i += 1;
        }
        OpSet(bits)
    }

    /// Every operation.
    pub const fn all() -> Self {
        OpSet::of(OpCode::ALL)
    }

    /// Whether `op` is in the set.
    pub const fn has(self, op: OpCode) -> bool {
        self.0 & (1 << op as u64) != 0
    }

    /// The operations in either set.
    pub const fn union(self, other: OpSet) -> Self {
        OpSet(self.0 | other.0)
    }

    /// The operations in this set but not in `other`.
    pub const fn without(self, other: OpSet) -> Self {
        OpSet(self.0 & !other.0)
    }

    /// The operations in the set, by number.
    pub fn iter(self) -> impl Iterator<Item = OpCode> {
        OpCode::ALL.iter().copied().filter(move |&op| self.has(op))
    }
}

impl fmt::Debug for OpSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_add_and_subtract() {
        let set = OpSet::of(&[OpCode::Read, OpCode::Write]);
        assert!(set.has(OpCode::Read) && !set.has(OpCode::Lookup));
        assert_eq!(set.without(OpSet::of(&[OpCode::Write])), OpSet::of(&[OpCode::Read]));
        assert_eq!(OpSet::all().iter().count(), OpCode::ALL.len());
    }
}
