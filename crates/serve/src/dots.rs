// SPDX-License-Identifier: MIT OR Apache-2.0
//! `.` and `..` in listings, for protocols whose servers list them: a listing begins with them.

use outrigger_core::reply::COOKIE_MAX;

/// The cookie of `.`.
pub const DOT: u64 = COOKIE_MAX + 1;
/// The cookie of `..`.
pub const DOT_DOT: u64 = COOKIE_MAX + 2;

/// The names before those of the tree that are still to be listed after `cookie`, with their own cookies.
pub fn dots(cookie: u64) -> &'static [(&'static [u8], u64)] {
    const DOTS: &[(&[u8], u64)] = &[(b".", DOT), (b"..", DOT_DOT)];
    match cookie {
        0 => DOTS,
        DOT => &DOTS[1..],
        _ => &[],
    }
}

/// The tree's cookie.
pub fn below(cookie: u64) -> u64 {
    if cookie > COOKIE_MAX { 0 } else { cookie }
}
