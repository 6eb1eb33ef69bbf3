// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mount whose process dies where a test wants, over a driver whose tree survives.
//!
//! [`World`] stands for the kernel and the keeper: it numbers requests, keeps the region of the journal, starts a new
//! process when one died, and sends it the requests that were not answered, under the same ids. What it answers and what
//! its tree looks like afterwards ([`snapshot`]) must equal a world without deaths.
//!
//! A process dies when it is about to hand its n-th request to the driver, when that has been done, or when its reply was
//! noted but not delivered ([`Death`]). Requests below the journal include what it looks at beforehand and what it asks to
//! judge a repetition, so every step of it is a place to die. Death between two stores of the journal itself is tested
//! beside its code.
#![forbid(unsafe_code)]

mod essence;
mod mortal;
mod world;

pub use essence::{essence, snapshot};
pub use mortal::Death;
pub use world::World;
