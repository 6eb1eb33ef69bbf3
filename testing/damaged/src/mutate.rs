// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random damage: the same number gives the same damage of the same image.

use crate::bytes::{BLOCK, Bytes};
use crate::seal::Seals;

/// Numbers at which programs go wrong.
const TELLING: [u64; 8] =
    [0, 1, 0x7f, 0x7fff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, 0xffff_ffff_ffff_ffff];

/// Blocks near the start, where formats keep what leads to everything else.
const FIRST: usize = 12;

/// Damages one to four places, and seals again what was sealed.
pub fn mutate(bytes: &Bytes, seals: Seals, seed: u64) -> Bytes {
    let (mut random, mut damaged) = (fastrand::Rng::with_seed(seed), bytes.clone());
    let used = bytes.used();
    if used.is_empty() {
        return damaged;
    }
    for _ in 0..random.u8(1..=4) {
        let most = if random.bool() { used.len().min(FIRST) } else { used.len() };
        let [offset, other] = [used[random.usize(..most)], used[random.usize(..used.len())]];
        let block = bytes.get(offset, BLOCK);
        let telling: Vec<usize> = (0..BLOCK).filter(|&at| block[at] != 0).collect();
        let place = |random: &mut fastrand::Rng| telling[random.usize(..telling.len())];
        match random.u8(..10) {
            0 => damaged.set(offset, &[random.u8(..); BLOCK]),
            // A block that is what another one should be, as after a write that went astray.
            1 => damaged.set(offset, &bytes.get(other, BLOCK)),
            2..=4 => {
                let (length, at) = (1 << random.u8(..4), place(&mut random));
                let number = TELLING[random.usize(..TELLING.len())];
                let at = (offset + at as u64) / length * length;
                damaged.set_number(at, length as usize, random.bool(), number);
            }
            // A number that leads elsewhere: one that is at another place.
            5 => {
                let [from, to] = [(); 2].map(|()| place(&mut random) & !3);
                let value = bytes.get(offset + from as u64, 4);
                damaged.set(offset + to as u64, &value);
            }
            _ => {
                for _ in 0..random.u8(1..=8) {
                    let at = offset + place(&mut random) as u64;
                    let byte = damaged.get(at, 1)[0] ^ 1 << random.u8(..8);
                    damaged.set(at, &[byte]);
                }
            }
        }
        seals.renew(bytes, &mut damaged, offset);
    }
    damaged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_is_the_same_damage() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), [7; 100_000]).expect("a write");
        let bytes = Bytes::of(file.path()).expect("it reads");
        let damaged = |seed| mutate(&bytes, Seals::NONE, seed).get(0, 100_000);
        assert!((0..50).all(|seed| damaged(seed) == damaged(seed)));
    }
}
