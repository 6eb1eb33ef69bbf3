// SPDX-License-Identifier: MIT OR Apache-2.0
//! INIT: which abilities are switched on, and why.
use crate::options::Options;
use outrigger_core::{Abilities, Identity, OpCode};
use outrigger_proto_fuse::{DecodeError, Dialect, InitFlags, InitIn, InitOut, MINOR, Negotiation, negotiate};

/// What server and kernel have agreed on. INIT happens once in the life of a mount: a process that resumes a
/// session needs this from the one that began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated(InitOut);

/// Size of a page; requests are counted in pages.
const PAGE: u32 = 4096;

impl Negotiated {
    /// For safe keeping.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        self.0.encode().to_vec()
    }

    /// From safe keeping.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are not from [`Negotiated::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let out = InitOut::decode(bytes)?;
        if out.minor > MINOR || out.max_write < PAGE {
            return Err(DecodeError::Version { major: 7, minor: out.minor });
        }
        Ok(Self(out))
    }

    /// Minor version of the protocol in use.
    #[must_use]
    pub fn minor(&self) -> u32 {
        self.0.minor
    }

    /// Whether an ability is in force.
    #[must_use]
    pub fn has(&self, ability: InitFlags) -> bool {
        self.0.flags.contains(ability)
    }

    /// Whether the kernel can be made to send unanswered requests again (Linux 6.9 and newer).
    #[must_use]
    pub fn sends_again(&self) -> bool {
        self.has(InitFlags::HAS_RESEND)
    }

    /// Names of the abilities in force.
    #[must_use]
    pub fn abilities(&self) -> Vec<&'static str> {
        self.0.flags.iter_names().map(|(name, _)| name).collect()
    }

    /// Largest write request in bytes.
    #[must_use]
    pub fn max_write(&self) -> u32 {
        self.0.max_write
    }

    pub(crate) fn dialect(&self) -> Dialect {
        Dialect { minor: self.0.minor, flags: self.0.flags }
    }

    pub(crate) fn reply(&self) -> InitOut {
        self.0
    }
}

/// Answers INIT; `None` when the kernel has to ask again in our major version.
///
/// # Errors
/// [`DecodeError::Version`] when there is no common version.
pub(crate) fn agree(
    init: &InitIn,
    options: &Options,
    abilities: &Abilities,
    idmap: bool,
) -> Result<Option<Negotiated>, DecodeError> {
    let wanted = wanted(options, abilities, idmap);
    let Negotiation::Use(dialect) = negotiate(init, wanted)? else { return Ok(None) };
    let mut flags = dialect.flags;
    if !flags.contains(InitFlags::MAX_PAGES) {
        flags -= InitFlags::PASSTHROUGH;
    }
    let background = options.max_background;
    let largest = options.max_write.min(abilities.max_io).max(PAGE);
    let pages = if flags.contains(InitFlags::MAX_PAGES) { largest.div_ceil(PAGE) } else { 32 };
    let out = InitOut {
        minor: dialect.minor,
        max_readahead: options.max_readahead.unwrap_or(init.max_readahead).min(init.max_readahead),
        flags,
        max_background: background,
        congestion_threshold: (background / 4 * 3).max(1),
        max_write: largest.min(pages * PAGE),
        time_gran: 1,
        max_pages: pages as u16,
        max_stack_depth: u32::from(flags.contains(InitFlags::PASSTHROUGH)),
        request_timeout: options.request_timeout.unwrap_or(0),
    };
    Ok(Some(Negotiated(out)))
}

/// Everything we would switch on if the kernel has it.
fn wanted(options: &Options, abilities: &Abilities, idmap: bool) -> InitFlags {
    let ops = abilities.ops;
    // Always of use: parallel and large requests, expiry, repetition after a crash. A changed
    // mtime or size drops cached pages, because most trees can change without the mount. O_TRUNC stays a request of
    // its own, which carries the order to clear set-id bits.
    let mut wanted = InitFlags::ASYNC_READ
        | InitFlags::BIG_WRITES
        | InitFlags::SPLICE_WRITE
        | InitFlags::SPLICE_MOVE
        | InitFlags::SPLICE_READ
        | InitFlags::AUTO_INVAL_DATA
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::ABORT_ERROR
        | InitFlags::MAX_PAGES
        | InitFlags::NO_OPEN_SUPPORT
        | InitFlags::NO_OPENDIR_SUPPORT
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::SETXATTR_EXT
        | InitFlags::HAS_EXPIRE_ONLY
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::HAS_RESEND;
    // Locks end with the close, which a driver without opens does not see: the kernel keeps them instead.
    let locks = ops.has(OpCode::SetLock) && !abilities.stateless_files;
    wanted.set(InitFlags::POSIX_LOCKS, locks && ops.has(OpCode::GetLock));
    wanted.set(InitFlags::FLOCK_LOCKS, locks);
    // The kernel passes on what a program with CAP_DAC_READ_SEARCH has made up, too.
    let resolves = ops.has(OpCode::Resolve) && ops.has(OpCode::Parent) && abilities.resolves_inside;
    wanted.set(InitFlags::EXPORT_SUPPORT, resolves && abilities.identity == Identity::Persistent);
    // The kernel keeps a target also when a directory above the link is moved.
    wanted.set(InitFlags::CACHE_SYMLINKS, !abilities.targets_by_place);
    wanted.set(InitFlags::HAS_IOCTL_DIR, ops.has(OpCode::Ioctl));
    // The kernel asks so for the first names of each directory, whether a program wants attributes or not.
    let plus = ops.has(OpCode::ReadDirPlus) && ops.has(OpCode::ReadDir) && !abilities.plus_asks_each;
    wanted.set(InitFlags::DO_READDIRPLUS | InitFlags::READDIRPLUS_AUTO, plus);
    wanted.set(InitFlags::WRITEBACK_CACHE, options.writeback && !abilities.read_only);
    wanted.set(InitFlags::PASSTHROUGH, options.passthrough && !options.writeback);
    wanted.set(InitFlags::POSIX_ACL, options.obeys_acl(abilities.acl));
    // A default access list takes the place of the umask, so the driver has to know both.
    wanted.set(InitFlags::DONT_MASK, abilities.acl);
    // The kernel fails the whole mount when asked for this without checking permissions itself.
    wanted.set(InitFlags::ALLOW_IDMAP, idmap);
    wanted.set(InitFlags::REQUEST_TIMEOUT, options.request_timeout.is_some());
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::OpSet;

    fn kernel(minor: u32) -> InitIn {
        InitIn { major: 7, minor, max_readahead: 131_072, flags: InitFlags::all() }
    }

    #[test]
    fn abilities_follow_driver_and_options() {
        let abilities = Abilities::new("test", "", OpSet::of(&[OpCode::SetLock]));
        let plain = agree(&kernel(45), &Options::default(), &abilities, false).unwrap().unwrap();
        for (ability, on) in [
            (InitFlags::PASSTHROUGH, true),
            (InitFlags::WRITEBACK_CACHE, false),
            (InitFlags::FLOCK_LOCKS, true),
            (InitFlags::POSIX_LOCKS, false),
            (InitFlags::DO_READDIRPLUS, false),
            (InitFlags::ALLOW_IDMAP, false),
            (InitFlags::OVER_IO_URING, false),
            (InitFlags::HAS_RESEND, true),
            (InitFlags::CACHE_SYMLINKS, true),
        ] {
            assert_eq!(plain.has(ability), on, "{ability:?}");
        }
        assert_eq!((plain.max_write(), plain.0.max_pages, plain.0.max_stack_depth), (1 << 20, 256, 1));
        let options = Options { writeback: true, ..Options::default() };
        let writeback = agree(&kernel(45), &options, &abilities, false).unwrap().unwrap();
        assert!(writeback.has(InitFlags::WRITEBACK_CACHE) && !writeback.has(InitFlags::PASSTHROUGH));
        let by_place = Abilities { targets_by_place: true, ..abilities };
        let asked = agree(&kernel(45), &Options::default(), &by_place, false).unwrap().unwrap();
        assert!(!asked.has(InitFlags::CACHE_SYMLINKS));
    }

    #[test]
    fn locks_of_a_stateless_driver_stay_in_the_kernel() {
        let mut abilities = Abilities::new("test", "", OpSet::all());
        let locks = InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS;
        let agreed = |abilities: &Abilities| agree(&kernel(45), &Options::default(), abilities, false);
        assert!(agreed(&abilities).unwrap().unwrap().has(locks));
        abilities.stateless_files = true;
        assert!(!agreed(&abilities).unwrap().unwrap().0.flags.intersects(locks));
    }

    #[test]
    fn old_kernels_get_what_they_know() {
        let abilities = Abilities::new("test", "", OpSet::NONE);
        let init = InitIn { flags: InitFlags::ASYNC_READ | InitFlags::BIG_WRITES, ..kernel(31) };
        let agreed = agree(&init, &Options::default(), &abilities, false).unwrap().unwrap();
        assert_eq!((agreed.minor(), agreed.max_write()), (31, 128 << 10));
        assert!(agree(&kernel(30), &Options::default(), &abilities, false).is_err());
        assert_eq!(
            agree(&InitIn { major: 8, ..kernel(0) }, &Options::default(), &abilities, false),
            Ok(None)
        );
    }

    #[test]
    fn the_state_survives_safe_keeping() {
        let abilities = Abilities::new("test", "", OpSet::all());
        let agreed = agree(&kernel(45), &Options::default(), &abilities, true).unwrap().unwrap();
        assert_eq!(Negotiated::from_bytes(&agreed.to_bytes()), Ok(agreed));
        assert!(Negotiated::from_bytes(&[0; 64]).is_err());
    }
}
