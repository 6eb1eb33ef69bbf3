// SPDX-License-Identifier: MIT OR Apache-2.0
//! A range in pieces, each of which fits in one request.

/// Ranges of at most `each` bytes, one after the other: their beginnings, and lengths.
pub fn pieces(len: usize, each: u32) -> impl Iterator<Item = (usize, usize)> {
    let each = each.max(1) as usize;
    (0..len).step_by(each).map(move |at| (at, (len - at).min(each)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all() {
        assert_eq!(pieces(10, 4).collect::<Vec<_>>(), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(pieces(0, 4).count(), 0);
    }
}
