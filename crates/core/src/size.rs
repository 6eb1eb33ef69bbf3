// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers as options have them.

/// A number, perhaps followed by `k`, `m`, `g` or `t`, in units of 1024, 1024², 1024³ or 1024⁴; nothing when it is none or too large.
///
/// ```
/// assert_eq!(outrigger_core::parse_size("3k"), Some(3072));
/// assert_eq!(outrigger_core::parse_size("2T"), Some(2 << 40));
/// assert_eq!(outrigger_core::parse_size("k"), None);
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    let shift = match text.chars().last()?.to_ascii_lowercase() {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}
