// SPDX-License-Identifier: MIT OR Apache-2.0
//! A value of any size of which a kill leaves the old or the new.

use super::area::{Area, Stored};
use crate::error::Result;
use crate::keep::{HeapRegion, Region};
use std::marker::PhantomData;
use std::sync::Arc;

/// A value twice, and a number that says which one counts: the next one is prepared in the other place.
pub struct Twin<T, R: ?Sized = dyn Region> {
    number: Area<R>,
    halves: [Area<R>; 2],
    of: PhantomData<fn() -> T>,
}

impl<T: Stored, R: Region + ?Sized> Twin<T, R> {
    /// How many words it needs.
    pub const WORDS: usize = 1 + 2 * T::WORDS;

    /// The value at the start of `area`.
    ///
    /// # Errors
    /// `EUCLEAN` when there is no room.
    pub fn take(area: &mut Area<R>) -> Result<Self> {
        Ok(Twin::of(&area.take(Self::WORDS)?))
    }

    fn of(area: &Area<R>) -> Self {
        let halves = [1, 1 + T::WORDS].map(|start| area.part(start, T::WORDS));
        Twin { number: area.part(0, 1), halves, of: PhantomData }
    }

    fn half(&self, number: u64) -> T::View<'_, R> {
        self.halves[(number % 2) as usize].view::<T>()
    }

    /// How often the value was replaced.
    pub fn number(&self) -> u64 {
        self.number.view::<u64>().get()
    }

    /// The value with this number: the one that counts has [`Twin::number`]; the one before is what the next one replaces.
    pub fn at(&self, number: u64) -> T::View<'_, R> {
        self.half(number)
    }

    /// Replaces the value by what `prepare` makes of the memory of the one before it. One at a time may do so.
    pub fn replace(&self, prepare: impl FnOnce(T::View<'_, R>)) {
        let next = self.number().wrapping_add(1);
        prepare(self.half(next));
        self.number.view::<u64>().set(next);
    }
}

impl<T: Stored> Default for Twin<T> {
    /// A value that does not outlive the process.
    fn default() -> Self {
        Twin::of(&Area::whole(Arc::new(HeapRegion::new(Self::WORDS)) as Arc<dyn Region>))
    }
}

impl<T, R: Region + ?Sized> Clone for Twin<T, R> {
    fn clone(&self) -> Self {
        Twin { number: self.number.clone(), halves: self.halves.clone(), of: PhantomData }
    }
}
