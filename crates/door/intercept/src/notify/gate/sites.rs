// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions of a program that call the system with a path: `mov eax, NUMBER; syscall`, and a comparison of the result with errors,
//! as the functions of glibc have it. The first instruction is replaced by a jump of the same length. The others stay: a thread that has
//! executed the first one already, or that jumps to the second one, calls the system as before.

use super::agent::CALLS;

/// The length of `mov eax, NUMBER`, and of a jump.
pub(super) const MOVE: usize = 5;
/// What stands behind it: `syscall`, with `mov rsi, rdi; mov edi, AT_FDCWD` before it or not.
const CALLS_SYSTEM: &[&[u8]] =
    &[&[0x0f, 0x05], &[0x48, 0x89, 0xfe, 0xbf, 0x9c, 0xff, 0xff, 0xff, 0x0f, 0x05]];
/// The length of all these instructions at most.
pub(super) const LENGTH_MAX: usize = MOVE + 10;
/// The length of `syscall`.
pub(super) const SYSCALL: usize = 2;
/// What stands behind them: `cmp rax, -4096`, `cmp rax, -4095`, or the same of `eax`.
const COMPARISONS: &[&[u8]] = &[
    &[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff],
    &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff],
    &[0x3d, 0x00, 0xf0, 0xff, 0xff],
    &[0x3d, 0x01, 0xf0, 0xff, 0xff],
];
/// A prefix (`REX`) makes a `mov` to another register of it.
const PREFIXES: std::ops::RangeInclusive<u8> = 0x40..=0x4f;
/// `call`.
const CALL: u8 = 0xe8;
/// How far behind a call that is a cancellation point the end of that is (`__pthread_disable_asynccancel`).
const CANCELLATION: usize = 24;

/// A place where the system is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Site {
    /// Where the `mov` is.
    pub(super) at: u64,
    number: u32,
    /// What stands behind that.
    then: &'static [u8],
}

impl Site {
    /// The place in memory, for one in code that begins at this address.
    pub(super) fn from(self, start: u64) -> Self {
        Site { at: start + self.at, ..self }
    }

    /// The instructions.
    pub(super) fn bytes(self) -> Vec<u8> {
        [&[0xb8], &self.number.to_le_bytes()[..], self.then].concat()
    }

    /// Those before `syscall`.
    pub(super) fn before(self) -> Vec<u8> {
        let mut bytes = self.bytes();
        bytes.truncate(bytes.len() - SYSCALL);
        bytes
    }

    /// The address behind them.
    pub(super) fn end(self) -> u64 {
        self.at + (MOVE + self.then.len()) as u64
    }

    /// What the `mov` is replaced with.
    pub(super) fn jump(self, to: u64) -> Option<[u8; MOVE]> {
        let next = self.at.wrapping_add(MOVE as u64);
        let [a, b, c, d] = i32::try_from(to.wrapping_sub(next).cast_signed()).ok()?.to_le_bytes();
        Some([0xe9, a, b, c, d])
    }
}

/// How much of the code before the end of `syscall` is looked at, and how much behind it.
pub(super) const AROUND: (usize, usize) = (1 + LENGTH_MAX, CANCELLATION);

/// The places in code; `at` is counted from its beginning.
pub(super) fn find(code: &[u8]) -> Vec<Site> {
    let ends = code.windows(SYSCALL).enumerate().filter(|(_, window)| *window == [0x0f, 0x05]);
    let at =
        |end: usize, then: &&'static [u8]| site(code, (end + SYSCALL).checked_sub(MOVE + then.len())?, then);
    ends.filter_map(|(end, _)| CALLS_SYSTEM.iter().find_map(|then| at(end, then))).collect()
}

/// The place whose `mov` begins there.
fn site(code: &[u8], at: usize, then: &'static [u8]) -> Option<Site> {
    let number = u32::from_le_bytes(code.get(at + 1..at + MOVE)?.try_into().ok()?);
    let site = Site { at: at as u64, number, then };
    let before = *code.get(at.checked_sub(1)?)?;
    let behind = code.get(site.end() as usize..)?;
    let is_one = code[at..].starts_with(&site.bytes())
        && CALLS.contains(&i64::from(number))
        && !PREFIXES.contains(&before)
        && COMPARISONS.iter().any(|comparison| behind.starts_with(comparison));
    // A thread that is cancelled in a call is unwound from there, which takes tables that the gate does not have.
    let opens = [libc::SYS_open, libc::SYS_openat].contains(&i64::from(number));
    let is_cancelled = opens && behind[..behind.len().min(CANCELLATION)].contains(&CALL);
    (is_one && !is_cancelled).then_some(site)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov eax, 4; syscall; cmp rax, -4096; ja`, behind an instruction.
    const STAT: &[u8] = b"\x75\x5d\xb8\x04\x00\x00\x00\x0f\x05\x48\x3d\x00\xf0\xff\xff\x77\x10\xc3";

    #[test]
    fn only_what_is_known_byte_for_byte_is_a_site() {
        assert_eq!(find(STAT), [Site { at: 2, number: 4, then: CALLS_SYSTEM[0] }]);
        // Each of the instructions is another one with any bit changed, but for the branch and what stands before.
        for at in 2..15 {
            for bit in 0..8 {
                let mut other = STAT.to_vec();
                other[at] ^= 1 << bit;
                let found = find(&other);
                let is_another = |site: &Site| site.at == 2 && CALLS.contains(&i64::from(site.number));
                let is_comparison = at == 11 && bit == 0;
                assert!(found.is_empty() || (at == 3 || is_comparison) && found.iter().all(is_another));
            }
        }
        let mut with_moves = STAT.to_vec();
        with_moves.splice(7..7, CALLS_SYSTEM[1][..8].iter().copied());
        assert_eq!(find(&with_moves), [Site { at: 2, number: 4, then: CALLS_SYSTEM[1] }]);
        with_moves[8] ^= 1;
        assert!(find(&with_moves).is_empty());
        let mut prefixed = STAT.to_vec();
        prefixed[1] = 0x41;
        assert!(find(&prefixed).is_empty());
        for length in 0..15 {
            assert!(find(&STAT[..length]).is_empty());
            assert!(find(&STAT[2..length.max(2)]).is_empty());
        }
    }

    #[test]
    fn cancellation_points_are_left_alone() {
        let mut open = STAT.to_vec();
        open[3..5].copy_from_slice(&[1, 1]);
        assert_eq!(find(&open), [Site { at: 2, number: 257, then: CALLS_SYSTEM[0] }]);
        open.splice(17..17, *b"\x44\x89\xc7\x89\x44\x24\x0c\xe8\xfc\xd7\xf8\xff");
        assert!(find(&open).is_empty());
    }

    #[test]
    fn a_jump_leads_two_gigabytes_far_at_most() {
        let site = Site { at: 0x1000, number: 4, then: CALLS_SYSTEM[0] };
        assert_eq!(site.jump(0x1005 + 0x7fff_ffff), Some([0xe9, 0xff, 0xff, 0xff, 0x7f]));
        assert_eq!(site.jump(0x1004), Some([0xe9, 0xff, 0xff, 0xff, 0xff]));
        assert_eq!(site.jump(0x1005 + 0x8000_0000), None);
    }
}
