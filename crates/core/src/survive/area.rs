// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of a region, and words in them by name.

use crate::error::{Errno, Result};
use crate::keep::Region;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};

/// Some words of a region.
pub struct Area<R: ?Sized = dyn Region> {
    region: Arc<R>,
    start: usize,
    words: usize,
}

impl<R: Region + ?Sized> Area<R> {
    /// All of `region`.
    pub fn whole(region: Arc<R>) -> Self {
        let words = region.words();
        Area { region, start: 0, words }
    }

    /// How many words there are.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Where in its region it starts.
    pub(super) fn start(&self) -> usize {
        self.start
    }

    /// Takes the first `words` words off.
    ///
    /// # Errors
    /// `EUCLEAN` when there are fewer.
    pub fn take(&mut self, words: usize) -> Result<Self> {
        if words > self.words {
            let left = self.words;
            return Err(Errno::EUCLEAN.because(format!("a region with {left} words left for {words}")));
        }
        let taken = self.part(0, words);
        self.start += words;
        self.words -= words;
        Ok(taken)
    }

    /// Some words of it, which are there.
    pub(super) fn part(&self, start: usize, words: usize) -> Self {
        Area { region: Arc::clone(&self.region), start: self.start + start, words }
    }

    /// Takes the words off that a `T` has.
    ///
    /// # Errors
    /// `EUCLEAN` when there are fewer.
    pub fn take_for<T: Stored>(&mut self) -> Result<Self> {
        self.take(T::WORDS)
    }

    /// The first words of the area, as a `T`.
    ///
    /// # Panics
    /// When it has fewer words than a `T`.
    pub fn view<T: Stored>(&self) -> T::View<'_, R> {
        assert!(T::WORDS <= self.words, "an area of {} words is too small", self.words);
        T::view(Part { region: &*self.region, at: self.start })
    }

    /// As many `T` as there is room for, one after the other.
    #[inline]
    pub fn row<T: Stored>(&self) -> Row<'_, T, R> {
        Row {
            part: Part { region: &*self.region, at: self.start },
            len: self.words / T::WORDS,
            of: PhantomData,
        }
    }

    /// The word at `index`, for users with an arrangement of their own.
    ///
    /// # Panics
    /// When `index` is not below [`Area::words`].
    #[inline]
    pub fn word(&self, index: usize) -> Word<'_> {
        assert!(index < self.words, "word {index} of an area of {} words", self.words);
        Part { region: &*self.region, at: self.start + index }.word()
    }
}

impl<R: Region + ?Sized> Area<R> {
    /// Replaces the words from `index` on.
    ///
    /// # Panics
    /// When there are not so many.
    #[inline]
    pub fn fill(&self, index: usize, words: impl ExactSizeIterator<Item = u64>) {
        assert!(index.checked_add(words.len()).is_some_and(|end| end <= self.words), "words beyond an area");
        for (at, word) in (self.start + index..).zip(words) {
            self.region.word(at).store(word, Release);
        }
    }
}

impl<R: ?Sized> Clone for Area<R> {
    fn clone(&self) -> Self {
        Area { region: Arc::clone(&self.region), ..*self }
    }
}

impl<R: ?Sized> fmt::Debug for Area<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Area of {} words", self.words)
    }
}

/// Where something starts in a region; what [`Stored::view`] is made from.
pub struct Part<'a, R: ?Sized = dyn Region> {
    region: &'a R,
    at: usize,
}

impl<R: ?Sized> Clone for Part<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: ?Sized> Copy for Part<'_, R> {}

impl<'a, R: Region + ?Sized> Part<'a, R> {
    /// What starts `words` words later.
    #[inline]
    pub fn after(self, words: usize) -> Self {
        Part { at: self.at + words, ..self }
    }

    #[inline]
    fn word(self) -> Word<'a> {
        Word { word: self.region.word(self.at), at: self.at }
    }
}

/// What has a fixed number of words in a region: `u64`, arrays, [`Text`], and what [`fields!`](crate::fields) declares.
pub trait Stored {
    /// How many.
    const WORDS: usize;
    /// Access to it.
    type View<'a, R: Region + ?Sized + 'a>;
    /// Access to one that starts at `part`.
    fn view<'a, R: Region + ?Sized>(part: Part<'a, R>) -> Self::View<'a, R>;
}

/// A word in a region.
///
/// No store passes an earlier one, and nothing that the program does later happens before it.
#[derive(Clone, Copy)]
pub struct Word<'a> {
    word: &'a AtomicU64,
    at: usize,
}

impl<'a> Word<'a> {
    /// What it is.
    #[inline]
    pub fn get(self) -> u64 {
        self.word.load(Acquire)
    }

    /// Replaces it.
    #[inline]
    pub fn set(self, value: u64) {
        self.word.store(value, Release);
        // A kill cuts the stores in the order of the program, so it is the compiler alone that must not move them.
        compiler_fence(SeqCst);
    }

    /// Replaces it by part of what a later [`Word::set`] switches to: such stores may change places with each other.
    #[inline]
    pub fn prepare(self, value: u64) {
        self.word.store(value, Relaxed);
    }

    /// Adds to it, also while others do; gives what it was.
    #[inline]
    pub fn increase(self, more: u64) -> u64 {
        self.word.fetch_add(more, AcqRel)
    }

    /// The word itself.
    pub fn atomic(self) -> &'a AtomicU64 {
        self.word
    }

    /// Where in its region it is.
    pub(super) fn at(self) -> usize {
        self.at
    }
}

impl Stored for u64 {
    const WORDS: usize = 1;
    type View<'a, R: Region + ?Sized + 'a> = Word<'a>;
    #[inline]
    fn view<'a, R: Region + ?Sized>(part: Part<'a, R>) -> Word<'a> {
        part.word()
    }
}

/// Several of one kind, one after the other.
pub struct Row<'a, T, R: ?Sized = dyn Region> {
    part: Part<'a, R>,
    len: usize,
    of: PhantomData<T>,
}

impl<'a, T: Stored, R: Region + ?Sized> Row<'a, T, R> {
    /// The one with this number.
    ///
    /// # Panics
    /// When there are not so many.
    #[inline]
    pub fn at(&self, index: usize) -> T::View<'a, R> {
        assert!(index < self.len, "number {index} of {}", self.len);
        T::view(self.part.after(index * T::WORDS))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = T::View<'a, R>> + use<'a, T, R> {
        let (part, len) = (self.part, self.len);
        (0..len).map(move |index| T::view(part.after(index * T::WORDS)))
    }
}

impl<R: Region + ?Sized> Row<'_, u64, R> {
    /// The first words.
    ///
    /// # Panics
    /// When there are not so many.
    #[inline]
    pub fn read<const N: usize>(&self) -> [u64; N] {
        assert!(N <= self.len, "{N} of {} words", self.len);
        std::array::from_fn(|index| self.part.after(index).word().get())
    }
}

impl<T: Stored, const N: usize> Stored for [T; N] {
    const WORDS: usize = N * T::WORDS;
    type View<'a, R: Region + ?Sized + 'a> = Row<'a, T, R>;
    #[inline]
    fn view<'a, R: Region + ?Sized>(part: Part<'a, R>) -> Row<'a, T, R> {
        Row { part, len: N, of: PhantomData }
    }
}

/// At most `8 * N` bytes, or none. A kill while they are replaced leaves none.
pub struct Text<'a, const N: usize, R: ?Sized = dyn Region>(Part<'a, R>);

impl<const N: usize> Stored for Text<'static, N> {
    const WORDS: usize = 1 + N;
    type View<'a, R: Region + ?Sized + 'a> = Text<'a, N, R>;
    fn view<'a, R: Region + ?Sized>(part: Part<'a, R>) -> Text<'a, N, R> {
        Text(part)
    }
}

impl<const N: usize, R: Region + ?Sized> Text<'_, N, R> {
    /// Replaces them.
    ///
    /// # Errors
    /// `ENAMETOOLONG` when they are too many.
    pub fn set(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > N * 8 {
            return Err(Errno::ENAMETOOLONG.because(format!("{} bytes are too many to keep", bytes.len())));
        }
        self.0.word().set(0);
        for (index, word) in to_words(bytes).enumerate() {
            self.0.after(1 + index).word().set(word);
        }
        self.0.word().set(bytes.len() as u64 + 1);
        Ok(())
    }

    /// What they are, if there are any.
    pub fn get(&self) -> Option<Vec<u8>> {
        let len = (self.0.word().get().checked_sub(1)? as usize).min(N * 8);
        let words = (0..len.div_ceil(8)).map(|index| self.0.after(1 + index).word().get());
        Some(to_bytes(words, len))
    }
}

/// Bytes as words, with zeroes at the end.
pub(super) fn to_words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> {
    let (whole, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    (0..bytes.len().div_ceil(8)).map(move |index| u64::from_le_bytes(*whole.get(index).unwrap_or(&last)))
}

/// The first `len` bytes in `words`.
pub(super) fn to_bytes(words: impl Iterator<Item = u64>, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(len);
    bytes
}

/// Declares words of a region by name, in their order: a type that is [`Stored`](crate::survive::Stored), with a method for
/// each field.
///
/// ```
/// use outrigger_core::survive::Area;
/// use outrigger_core::{HeapRegion, Region};
/// use std::sync::Arc;
///
/// outrigger_core::fields! {
///     /// What is counted.
///     struct Counts {
///         /// Requests.
///         requests: u64,
///         /// Errors, by errno.
///         errors: [u64; 134],
///     }
/// }
///
/// let region: Arc<dyn Region> = Arc::new(HeapRegion::new(200));
/// let area = Area::whole(region);
/// let counts = area.view::<Counts<'_>>();
/// counts.requests().increase(2);
/// counts.errors().at(5).set(1);
/// assert_eq!((counts.requests().get(), counts.errors().at(5).get()), (2, 1));
/// ```
#[macro_export]
macro_rules! fields {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $name<'a, R: ?Sized + 'a = dyn $crate::Region>($crate::survive::Part<'a, R>);

        const _: () = {
            use $crate::survive::{Part, Stored};

            #[allow(dead_code, missing_docs, clippy::missing_docs_in_private_items)]
            #[repr(C)]
            struct Shape {
                $($field: [u64; <$type as Stored>::WORDS]),+
            }

            impl<R: ?Sized> Clone for $name<'_, R> {
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl<R: ?Sized> Copy for $name<'_, R> {}

            impl Stored for $name<'_> {
                const WORDS: usize = size_of::<Shape>() / 8;
                type View<'a, R: $crate::Region + ?Sized + 'a> = $name<'a, R>;
                #[inline]
                fn view<'a, R: $crate::Region + ?Sized>(part: Part<'a, R>) -> $name<'a, R> {
                    $name(part)
                }
            }

            impl<'a, R: $crate::Region + ?Sized> $name<'a, R> {
                $($(#[$about])*
                #[inline]
                $vis fn $field(&self) -> <$type as Stored>::View<'a, R> {
                    <$type as Stored>::view(self.0.after(::core::mem::offset_of!(Shape, $field) / 8))
                })+
            }
        };
    };
}
