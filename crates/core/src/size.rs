// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers as options have them.

/// A number, perhaps with `k`, `m` or `g` behind it, in units of 1024, 1024² or 1024³; nothing when it is none or too large.
///
/// ```
/// assert_eq!(outrigger_core::parse_size("3k"), Some(3072));
/// assert_eq!(outrigger_core::parse_size("k"), None);
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    let shift = match text.chars().last()?.to_ascii_lowercase() {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        _ => return text.parse().ok(),
    };
    text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}
