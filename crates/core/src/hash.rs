// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hash that never changes: for numbers that other processes, other builds and other machines must find again.

/// SipHash-1-3 of `bytes` under a key of zeroes (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, with one
/// round for each word and three at the end).
pub fn siphash13(bytes: &[u8]) -> u64 {
    let mut state =
        [0x736f_6d65_7073_6575, 0x646f_7261_6e64_6f6d, 0x6c79_6765_6e65_7261, 0x7465_6462_7974_6573];
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        take(&mut state, word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    }
    let rest = words.remainder().iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    take(&mut state, (bytes.len() as u64) << 56 | rest);
    state[2] ^= 0xff;
    (0..3).for_each(|_| round(&mut state));
    state.into_iter().fold(0, |hash, word| hash ^ word)
}

/// FNV-1a, 64 bits (draft-eastlake-fnv) over bytes, or over larger numbers in their place: for names and checksums where a
/// collision only costs work.
pub fn fnv1a(numbers: impl IntoIterator<Item = impl Into<u64>>) -> u64 {
    let mix = |hash: u64, number: u64| (hash ^ number).wrapping_mul(0x0100_0000_01b3);
    numbers.into_iter().map(Into::into).fold(0xcbf2_9ce4_8422_2325, mix)
}

fn take(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    state[0] ^= word;
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_what_they_always_were() {
        let long = [&19_u64.to_le_bytes()[..], b"the quick brown fox"].concat();
        assert_eq!(siphash13(&0_u64.to_le_bytes()), 0xbd60_acb6_58c7_9e45);
        assert_eq!(siphash13(&long), 0x6868_ee30_7cfa_9b6d);
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(siphash13(b"\x07\0\0\0\0\0\0\0again\xff"), 0xb5f0_5bae_1f72_2a8b);
    }
}
