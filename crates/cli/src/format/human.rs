// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes: in units of a block size, or scaled for people (`-h`, `--si`, `--block-size`).

use std::env;

/// The unit sizes are shown in. Sizes are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Scaled to one of K, M, G...
    Scaled {
        /// 1024 or 1000.
        base: u32,
    },
    /// A fixed number of bytes.
    Fixed {
        /// The number of bytes.
        bytes: u64,
        /// What is written after the number.
        suffix: Suffix,
    },
}

/// What is written after a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suffix {
    /// Nothing.
    None,
    /// A letter, as in `K`.
    Letter {
        /// Which power of `base`.
        power: usize,
        /// 1024 or 1000.
        base: u32,
        /// Whether `B` or `iB` follows.
        bytes: bool,
    },
}

const LETTERS: [&str; 9] = ["", "K", "M", "G", "T", "P", "E", "Z", "Y"];

impl Unit {
    /// Scaled by powers of 1024 (`-h`).
    pub const HUMAN: Unit = Unit::Scaled { base: 1024 };
    /// Scaled by powers of 1000 (`--si`).
    pub const SI: Unit = Unit::Scaled { base: 1000 };

    /// A number of bytes, written without a suffix.
    pub const fn bytes(bytes: u64) -> Unit {
        Unit::Fixed { bytes, suffix: Suffix::None }
    }

    /// Parses the argument of `--block-size`: `1M`, `MB`, `KiB`, `human-readable`, `si`...; `None` when it is none.
    pub fn parse(text: &str) -> Option<Unit> {
        let text = text.strip_prefix('\'').unwrap_or(text);
        if !text.is_empty() && "human-readable".starts_with(text) {
            return Some(Unit::HUMAN);
        }
        if text == "s" || text == "si" {
            return Some(Unit::SI);
        }
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let count = if digits == 0 { 1 } else { text[..digits].parse::<u64>().ok()? };
        let mut tail = text[digits..].chars();
        let power = match tail.next() {
            None if digits > 0 => 0,
            None => return None,
            Some(letter) => 1 + "KMGTPEZY".find(letter.to_ascii_uppercase())?,
        };
        let (base, bytes) = match tail.as_str() {
            "" => (1024, false),
            "iB" => (1024, true),
            "B" | "D" => (1000, true),
            _ => return None,
        };
        let bytes_in_unit = u64::from(base).checked_pow(power as u32)?.checked_mul(count)?;
        let suffix = if digits > 0 { Suffix::None } else { Suffix::Letter { power, base, bytes } };
        (bytes_in_unit > 0).then_some(Unit::Fixed { bytes: bytes_in_unit, suffix })
    }

    /// What the first of the environment variables `names` that is set asks for, else what `BLOCK_SIZE` or
    /// `BLOCKSIZE` does, else 1024 bytes (512 with `POSIXLY_CORRECT`).
    pub fn of_environment(names: &[&str]) -> Unit {
        let set = names.iter().chain(&["BLOCK_SIZE", "BLOCKSIZE"]).find_map(|name| env::var(name).ok());
        let default = if env::var_os("POSIXLY_CORRECT").is_some() { 512 } else { 1024 };
        set.and_then(|text| Unit::parse(&text)).unwrap_or(Unit::bytes(default))
    }

    /// `count` things of `size` bytes each in this unit.
    pub fn show(self, count: u64, size: u64) -> String {
        let total = u128::from(count) * u128::from(size);
        match self {
            Unit::Scaled { base } => scaled(total, base),
            Unit::Fixed { bytes, suffix } => {
                format!("{}{}", total.div_ceil(u128::from(bytes.max(1))), suffix.text())
            }
        }
    }
}

impl Suffix {
    /// The suffix as it is written.
    pub fn text(self) -> String {
        match self {
            Suffix::None | Suffix::Letter { power: 0, .. } => String::new(),
            Suffix::Letter { power, base, bytes } => {
                let tail = match (bytes, base) {
                    (true, 1024) => "iB",
                    (true, _) => "B",
                    _ => "",
                };
                format!("{}{tail}", letter(power, base))
            }
        }
    }
}

fn letter(power: usize, base: u32) -> &'static str {
    if power == 1 && base == 1000 { "k" } else { LETTERS[power.min(LETTERS.len() - 1)] }
}

/// One digit after the point below ten, none above, rounded up.
fn scaled(total: u128, base: u32) -> String {
    let step = u128::from(base);
    let (mut unit, mut power) = (1_u128, 0);
    while total / unit >= step && power + 1 < LETTERS.len() {
        unit *= step;
        power += 1;
    }
    if power == 0 {
        return total.to_string();
    }
    let tenths = (total * 10).div_ceil(unit);
    if tenths < 100 {
        return format!("{}.{}{}", tenths / 10, tenths % 10, letter(power, base));
    }
    match total.div_ceil(unit) {
        whole if whole == step && power + 1 < LETTERS.len() => format!("1.0{}", letter(power + 1, base)),
        whole => format!("{whole}{}", letter(power, base)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_rounds_up() {
        let cases = [
            (0, "0", "0"),
            (999, "999", "999"),
            (1000, "1000", "1.0k"),
            (1023, "1023", "1.1k"),
            (1024, "1.0K", "1.1k"),
            (10_137, "9.9K", "11k"),
            (10_240, "10K", "11k"),
            (10_241, "11K", "11k"),
            (1_048_575, "1.0M", "1.1M"),
            (999_999, "977K", "1.0M"),
            (u64::MAX, "16E", "19E"),
        ];
        for (size, human, si) in cases {
            assert_eq!(Unit::HUMAN.show(size, 1), human);
            assert_eq!(Unit::SI.show(size, 1), si);
        }
    }

    #[test]
    fn block_sizes() {
        let cases = [
            ("1", 5000, Some("5000")),
            ("K", 5000, Some("5K")),
            ("1K", 5000, Some("5")),
            ("KB", 5000, Some("5kB")),
            ("KiB", 5000, Some("5KiB")),
            ("2M", 5000, Some("1")),
            ("si", 5000, Some("5.0k")),
            ("0", 5000, None),
            ("x", 5000, None),
            ("", 5000, None),
            ("99999999999999999999", 5000, None),
            ("9999999999Y", 5000, None),
        ];
        for (text, size, expected) in cases {
            assert_eq!(Unit::parse(text).map(|unit| unit.show(size, 1)).as_deref(), expected, "{text}");
        }
    }
}
