// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the codec: messages written by hand, messages of any kind, and messages of another implementation.

mod oracle;
mod round_trip;
mod same_values;
mod support;
mod vectors;
