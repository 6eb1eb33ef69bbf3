// SPDX-License-Identifier: MIT OR Apache-2.0
//! How names, sizes, times, owners and modes are written, the way GNU coreutils writes them.
//!
//! | module | what it writes |
//! |---|---|
//! | [`quote`] | file names with odd bytes |
//! | [`locale`] | which bytes are characters, and how wide they are |
//! | [`human`] | sizes in blocks, or scaled for people |
//! | [`time`] | moments, with strftime(3) formats |
//! | [`mode`] | `drwxr-xr-x` |
//! | [`owner`] | names of users and groups |
//! | [`colour`] | the colours of `LS_COLORS` |
//! | [`directive`] | formats like `%-10s` |
//! | [`record`] | a file as a JSON object |
//! | [`openmetrics`] | the state of mounts for monitoring |
//! | [`glob`] | patterns as fnmatch(3) has them |

pub mod colour;
pub mod directive;
pub mod glob;
pub mod human;
pub mod locale;
pub mod mode;
pub mod openmetrics;
pub mod owner;
pub mod quote;
pub mod record;
pub mod time;
