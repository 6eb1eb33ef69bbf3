// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of a fixed number of words.

use crate::error::Errno;
use crate::node::{Handle, Node};

/// What fits into a word. Each word means something: memory may be damaged.
pub trait AsWord: Copy {
    /// The word.
    fn to_word(self) -> u64;
    /// What it stands for.
    fn from_word(word: u64) -> Self;
}

macro_rules! as_word {
    ($($type:ty: $to:expr, $from:expr;)+) => {$(
        impl AsWord for $type {
            fn to_word(self) -> u64 {
                $to(self)
            }
            fn from_word(word: u64) -> Self {
                $from(word)
            }
        }
    )+};
}

as_word! {
    u64: u64::from, u64::from;
    u32: u64::from, |word| word as u32;
    i64: i64::cast_unsigned, u64::cast_signed;
    i32: |number: i32| number.cast_unsigned().into(), |word| word as i32;
    Node: |node: Node| node.0, Node;
    Handle: |handle: Handle| handle.0, Handle;
    Errno: |errno: Errno| errno.0.to_word(), |word| Errno(i32::from_word(word));
}

/// A value of a fixed number of words; [`record!`](crate::record) makes one of a struct.
pub trait Record: Sized {
    /// The words: an array.
    type Words: AsRef<[u64]> + AsMut<[u64]>;
    /// How many.
    const WORDS: usize;
    /// As many words, all zero.
    const EMPTY: Self::Words;
    /// The words of this value.
    fn encode(&self) -> Self::Words;
    /// The value that has these words.
    fn decode(words: &Self::Words) -> Self;
}

impl<const N: usize> Record for [u64; N] {
    type Words = [u64; N];
    const WORDS: usize = N;
    const EMPTY: [u64; N] = [0; N];
    fn encode(&self) -> [u64; N] {
        *self
    }
    fn decode(words: &[u64; N]) -> Self {
        *words
    }
}

/// Declares a struct that is a [`Record`](crate::survive::Record): each field has one word.
///
/// ```
/// use outrigger_core::Handle;
/// use outrigger_core::survive::Record;
///
/// outrigger_core::record! {
///     /// An open file.
///     #[derive(Debug, PartialEq)]
///     struct Open { handle: Handle, opens: u32 }
/// }
///
/// let open = Open { handle: Handle(7), opens: 1 };
/// assert_eq!(Open::decode(&open.encode()), open);
/// ```
#[macro_export]
macro_rules! record {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $fvis:vis $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$about])* $fvis $field: $type),+
        }

        impl $crate::survive::Record for $name {
            type Words = [u64; [$(stringify!($field)),+].len()];
            const WORDS: usize = [$(stringify!($field)),+].len();
            const EMPTY: Self::Words = [0; <Self as $crate::survive::Record>::WORDS];
            #[inline]
            fn encode(&self) -> Self::Words {
                [$($crate::survive::AsWord::to_word(self.$field)),+]
            }
            #[inline]
            fn decode(words: &Self::Words) -> Self {
                let mut words = words.iter().copied();
                $name { $($field: $crate::survive::AsWord::from_word(words.next().unwrap_or(0))),+ }
            }
        }
    };
}
