// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a region is, said in its first words.

use super::area::{Area, Stored};
use super::layouts::ALL;
use crate::error::{Errno, Error, Result};
use crate::hash::fnv1a;
use crate::keep::{Keep, Region};
use std::sync::Arc;

/// "ORRegion": the header is complete.
const MARK: u64 = u64::from_be_bytes(*b"ORRegion");

crate::fields! {
    struct Header {
        mark: u64,
        /// Hash of the name of its kind.
        kind: u64,
        version: u64,
        words: u64,
    }
}

/// The layout of a kind of region, as this build writes it, and the older ones that it reads.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    kind: &'static str,
    version: u32,
    oldest: u32,
}

/// Which versions of a kind of region a build reads: the kind, the oldest version and the newest.
pub type Reads = (String, u32, u32);

/// A region whose header is in order.
pub struct Opened<R: ?Sized = dyn Region> {
    /// What comes after the header.
    pub area: Area<R>,
    /// The version of the layout that it has.
    pub version: u32,
    /// Whether it has just been made: all of the area is zero.
    pub is_new: bool,
    header: Area<R>,
}

impl Layout {
    /// The layout of regions called `kind`, as this build's list has it.
    ///
    /// # Panics
    /// When it is not in the list; a constant does not compile then.
    pub const fn of(kind: &'static str) -> Self {
        let mut index = 0;
        while index < ALL.len() {
            if is_same(ALL[index].kind.as_bytes(), kind.as_bytes()) {
                return ALL[index];
            }
            index += 1;
        }
        panic!("this kind of region is missing in core/src/survive/layouts.rs")
    }

    /// What this build reads, sent to a mount that another build serves: see [`is_read_by`].
    pub fn all_read() -> Vec<Reads> {
        ALL.iter().map(|layout| (layout.kind.to_owned(), layout.oldest, layout.version)).collect()
    }

    /// Version `version` of the layout of regions called `kind`. Other versions are refused.
    pub const fn new(kind: &'static str, version: u32) -> Self {
        Layout { kind, version, oldest: version }
    }

    /// The same for a build that also reads what builds since version `oldest` have left: [`Opened::version`] tells which one
    /// it is, and [`Opened::convert`] makes it the current one.
    pub const fn reading(self, oldest: u32) -> Self {
        Layout { oldest, ..self }
    }

    /// Words of a region that has `content` words after its header.
    pub const fn words(content: usize) -> usize {
        <Header<'_> as Stored>::WORDS.saturating_add(content)
    }

    /// The region of this kind in `keep`, made with room for `content` words if there was none.
    ///
    /// # Errors
    /// Those of [`Keep::region`] and [`Layout::open`].
    pub fn attach(&self, keep: &dyn Keep, content: usize) -> Result<Opened> {
        self.open(keep.region(self.kind, Layout::words(content))?)
    }

    /// Opens `region`. One that is all zero becomes an empty one of this layout.
    ///
    /// # Errors
    /// `EPROTO` for another version of the layout, with both versions in the reason; `EUCLEAN` for what is of another kind or size.
    pub fn open<R: Region + ?Sized>(&self, region: Arc<R>) -> Result<Opened<R>> {
        self.open_region(region, true)
    }

    /// Opens `region`, which belongs to another process.
    ///
    /// # Errors
    /// Those of [`Layout::open`]; `EUCLEAN` as well when it is all zero.
    pub fn look<R: Region + ?Sized>(&self, region: Arc<R>) -> Result<Opened<R>> {
        self.open_region(region, false)
    }

    fn open_region<R: Region + ?Sized>(&self, region: Arc<R>, may_make: bool) -> Result<Opened<R>> {
        let words = region.words() as u64;
        let mut area = Area::whole(region);
        let header = area.take_for::<Header<'_>>().map_err(|_| self.refuse("is too small"))?;
        let fields = header.view::<Header<'_>>();
        let kind = fnv1a(self.kind.bytes());
        let is_new = may_make && fields.mark().get() == 0;
        if is_new {
            fields.kind().set(kind);
            fields.version().set(self.version.into());
            fields.words().set(words);
            fields.mark().set(MARK);
        }
        if (fields.mark().get(), fields.kind().get()) != (MARK, kind) {
            return Err(self.refuse("holds something else"));
        }
        let version = fields.version().get();
        let read = u64::from(self.oldest)..=u64::from(self.version);
        if !read.contains(&version) {
            return Err(self.refuse_version(version));
        }
        if fields.words().get() != words {
            return Err(self.refuse("has another size than it was made with"));
        }
        Ok(Opened { area, version: version as u32, is_new, header })
    }

    fn refuse(&self, why: &str) -> Error {
        Errno::EUCLEAN.because(format!("the memory region '{}' {why}", self.kind))
    }

    fn refuse_version(&self, version: u64) -> Error {
        let Layout { kind, oldest, .. } = self;
        let read = match self.version {
            newest if newest == *oldest => format!("version {newest}"),
            newest => format!("versions {oldest} to {newest}"),
        };
        Errno::EPROTO.because(format!(
            "the memory region '{kind}' was left in layout version {version} by another build of this program, and this one \
             reads {read}: go on with that build, or unmount with it and mount anew"
        ))
    }
}

/// `==` for constants.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// Whether a build that reads `layouts` can go on with `region`, which is called `name`.
///
/// # Errors
/// `EPROTO` with what it cannot read.
pub fn is_read_by<R: Region + ?Sized>(name: &str, region: Arc<R>, layouts: &[Reads]) -> Result<()> {
    let header = Area::whole(region).take_for::<Header<'_>>()?;
    let fields = header.view::<Header<'_>>();
    let (mark, kind, version) = (fields.mark().get(), fields.kind().get(), fields.version().get());
    let read = layouts.iter().find(|(read, ..)| fnv1a(read.bytes()) == kind);
    let reads = match read {
        // A process that died had only begun to make it.
        _ if mark == 0 => return Ok(()),
        _ if mark != MARK => {
            return Err(Errno::EPROTO.because(format!("'{name}' is kept in no layout that is known")));
        }
        Some((_, oldest, newest)) if (u64::from(*oldest)..=u64::from(*newest)).contains(&version) => {
            return Ok(());
        }
        Some((_, oldest, newest)) => format!("versions {oldest} to {newest}"),
        None => "none".to_owned(),
    };
    let why = format!("'{name}' is kept in layout version {version}, and that program reads {reads}");
    Err(Errno::EPROTO.because(why))
}

impl<R: Region + ?Sized> Opened<R> {
    /// Brings the content to the version of `layout`: `work` gets the version that it has, and must come to the same again after
    /// a kill at any point of it.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn convert(&mut self, layout: Layout, work: impl FnOnce(&Area<R>, u32) -> Result<()>) -> Result<()> {
        if self.version != layout.version {
            work(&self.area, self.version)?;
            self.header.view::<Header<'_>>().version().set(layout.version.into());
            self.version = layout.version;
        }
        Ok(())
    }
}
