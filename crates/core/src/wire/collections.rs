// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodings of what the standard library collects values in, for processes of one release.

use super::{Input, Malformed, Wire, put_len};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;

impl Wire for usize {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u64).put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        u64::get(input)?.try_into().map_err(|_| Malformed::new("usize"))
    }
}

/// Sets are encoded as the sequence of their items, maps as that of pairs.
macro_rules! collections {
    ($($type:ident: $first:ident $(+ $more:ident)*;)+) => {$(
        impl<K: Wire + $first $(+ $more)*, V: Wire> Wire for $type<K, V> {
            fn put(&self, out: &mut Vec<u8>) {
                put_len(self.len(), out);
                for (key, value) in self {
                    key.put(out);
                    value.put(out);
                }
            }
            fn get(input: &mut Input) -> Result<Self, Malformed> {
                Ok(Vec::get(input)?.into_iter().collect())
            }
        }
    )+};
    ($($type:ident of $first:ident $(+ $more:ident)*;)+) => {$(
        impl<T: Wire + $first $(+ $more)*> Wire for $type<T> {
            fn put(&self, out: &mut Vec<u8>) {
                put_len(self.len(), out);
                self.iter().for_each(|item| item.put(out));
            }
            fn get(input: &mut Input) -> Result<Self, Malformed> {
                Ok(Vec::get(input)?.into_iter().collect())
            }
        }
    )+};
}
collections! { BTreeMap: Ord; HashMap: Eq + Hash; }
collections! { BTreeSet of Ord; HashSet of Eq + Hash; }

impl<T: Wire> Wire for Range<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.start.put(out);
        self.end.put(out);
    }
    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Ok(T::get(input)?..T::get(input)?)
    }
}
