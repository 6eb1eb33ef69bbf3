// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much to read ahead of a reader that goes through a file from the front to the back.

/// Reads may arrive out of order by so many bytes: kernels send several at once.
const NEAR: u64 = 1 << 20;
/// The first window, in bytes.
const FIRST: u64 = 128 << 10;

/// Where one reader is, and how far ahead of it was read.
///
/// The window doubles whenever the reader had to wait, so it ends up as large as the line is long.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Readahead {
    /// Where the next read is expected.
    next: u64,
    /// Up to where was read.
    end: u64,
    /// How many bytes to be ahead.
    window: u64,
}

impl Readahead {
    /// The reader reads `offset..end`, and had to wait for it or not; answers the range to be asked for now, for a window of
    /// at most `most` bytes.
    pub(crate) fn advance(&mut self, offset: u64, end: u64, waited: bool, most: u64) -> Option<(u64, u64)> {
        if offset.abs_diff(self.next) > NEAR {
            *self = Readahead { next: end, end, window: 0 };
            return None;
        }
        self.next = self.next.max(end);
        self.end = self.end.max(self.next);
        self.window = match self.window {
            0 => FIRST.max(2 * (end - offset)),
            window if waited => window * 2,
            window => window,
        };
        self.window = self.window.min(most);
        // Half of the window at a time: fewer and larger requests.
        if self.end - self.next > self.window / 2 || self.window == 0 {
            return None;
        }
        let range = (self.end, self.next + self.window);
        self.end = range.1;
        (range.0 < range.1).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 4 << 20;

    #[test]
    fn the_window_grows_while_the_reader_waits() {
        let (mut ahead, mut reached, mut largest) = (Readahead::default(), 0, 0);
        for read in 0..400_u64 {
            let (start, end) = (read << 17, (read + 1) << 17);
            if let Some((from, to)) = ahead.advance(start, end, read < 100, MOST) {
                assert!(from >= reached && to > from, "nothing is asked for twice");
                (reached, largest) = (to, largest.max(to - end));
            }
        }
        assert_eq!(largest, MOST);
        assert!(reached >= (400 << 17) + MOST / 2);
    }

    #[test]
    fn a_reader_that_need_not_wait_gets_no_larger_window() {
        let mut ahead = Readahead::default();
        for read in 0..100_u64 {
            ahead.advance(read << 12, (read + 1) << 12, false, MOST);
        }
        assert_eq!(ahead.window, FIRST);
    }

    #[test]
    fn jumping_about_reads_nothing_ahead_until_it_goes_on_in_order() {
        let mut ahead = Readahead::default();
        for at in [9, 3, 7, 100, 1] {
            assert_eq!(ahead.advance(at << 24, (at << 24) + 4096, true, MOST), None);
        }
        assert!(ahead.advance((1 << 24) + 4096, (1 << 24) + 8192, true, MOST).is_some());
        let mut shuffled = Readahead::default();
        for read in [1_u64, 0, 3, 2, 5, 4] {
            shuffled.advance(read << 17, (read + 1) << 17, true, MOST);
        }
        assert!(shuffled.window > FIRST);
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut ahead = Readahead::default();
        for read in 0..10_u64 {
            assert_eq!(ahead.advance(read << 17, (read + 1) << 17, true, 0), None);
        }
    }
}
