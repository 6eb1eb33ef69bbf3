// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identities: numbers of users and groups here and at the server (`idmap=`).
//!
//! With `idmap=file`, files say which numbers the users and groups of this system have at the server. They are read once, when
//! the tree is opened, and noted for processes that take it over: no file changes its owner when a map is edited while the
//! tree is mounted. A number that no line has is an error in both directions, so that nothing is shown as, or given to,
//! somebody else; with `nomap=ignore` it stays what it is.

use crate::options::{IdMap, NoMap, Options};
use nix::unistd::{Group, User};
use outrigger_core::survive::{Area, Layout, Stored, Word};
use outrigger_core::{Errno, Error, Keep, Result, SetAttrs};
use outrigger_proto_sftp::Owner;
use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The longest file, in bytes, and how many numbers it may name.
const FILE_MAX: u64 = 4 << 20;
const PAIRS_MAX: usize = 1 << 16;

outrigger_core::fields! {
    /// What is noted of users or groups for later processes.
    struct Words {
        /// One more than the pairs are; 0 as long as they are not known.
        count: u64,
        /// Each as the number here and the one there.
        pairs: [u64; PAIRS_MAX],
    }
}

/// Users or groups.
#[derive(Debug)]
struct Kind {
    what: &'static str,
    option: &'static str,
    /// The number that the user database of this system has for a name.
    find: fn(&str) -> nix::Result<Option<u32>>,
}

static USERS: Kind = Kind {
    what: "user",
    option: "uidfile",
    find: |name| Ok(User::from_name(name)?.map(|user| user.uid.as_raw())),
};

static GROUPS: Kind = Kind {
    what: "group",
    option: "gidfile",
    find: |name| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw())),
};

/// How owners are translated.
#[derive(Debug)]
pub(crate) struct People {
    idmap: IdMap,
    users: Ids,
    groups: Ids,
    /// The user at the server, if known.
    there: Option<Owner>,
}

impl People {
    /// What `options` say, with what a former process has noted in `keep`.
    ///
    /// # Errors
    /// A sentence about options that do not go together, or about a line of a file.
    pub(crate) fn open(options: &Options, keep: Option<&dyn Keep>) -> Result<Self> {
        let files = [options.uidfile.as_deref(), options.gidfile.as_deref()];
        let (is_file, given) = (options.idmap == IdMap::File, files.iter().any(Option::is_some));
        if is_file != given {
            let why = "idmap=file takes uidfile=FILE, gidfile=FILE or both, and they take idmap=file";
            return Err(Errno::EINVAL.because(why));
        }
        let mut notes = match keep.filter(|_| is_file) {
            Some(keep) => Some(Layout::of("sftp-ids").attach(keep, 2 * Words::WORDS)?.area),
            None => None,
        };
        let mut open = |kind, file: Option<&Path>| {
            let notes = notes.as_mut().map(|notes| notes.take_for::<Words<'_>>()).transpose()?;
            match file {
                Some(file) => Ids::open(kind, file, options.nomap == NoMap::Error, notes.as_ref()),
                None => Ok(Ids::new(kind, false)),
            }
        };
        let (users, groups) = (open(&USERS, files[0])?, open(&GROUPS, files[1])?);
        Ok(People { idmap: options.idmap, users, groups, there: None })
    }

    /// The same, where it is known who we are.
    pub(crate) fn between(mut self, there: Option<Owner>, here: Owner) -> Self {
        self.there = there;
        if let Some(there) = there.filter(|_| self.idmap == IdMap::User) {
            self.users.add(here.uid, there.uid);
            self.groups.add(here.gid, there.gid);
        }
        self
    }

    /// The user at the server, if known.
    pub(crate) fn there(&self) -> Option<Owner> {
        self.there
    }

    /// The owner that is shown for one at the server.
    ///
    /// # Errors
    /// `EPERM` for an owner without a number here.
    pub(crate) fn shown(&self, owner: Owner) -> Result<Owner> {
        Ok(Owner { uid: self.users.shown(owner.uid)?, gid: self.groups.shown(owner.gid)? })
    }

    /// Attributes with the owner at the server whom the one to be set means.
    ///
    /// # Errors
    /// `EPERM` for an owner without a number there.
    pub(crate) fn meant(&self, attrs: &SetAttrs) -> Result<SetAttrs> {
        let uid = attrs.uid.map(|uid| self.users.meant(uid)).transpose()?;
        let gid = attrs.gid.map(|gid| self.groups.meant(gid)).transpose()?;
        Ok(SetAttrs { uid, gid, ..attrs.clone() })
    }

    /// Whether what is made can be shown: it belongs to the user at the server.
    ///
    /// # Errors
    /// As [`People::shown`].
    pub(crate) fn can_own(&self) -> Result<()> {
        self.there.map_or(Ok(()), |there| self.shown(there).map(drop))
    }
}

/// Numbers of users or of groups, here and there.
#[derive(Debug)]
struct Ids {
    kind: &'static Kind,
    /// Those here, by those there.
    here: HashMap<u32, u32>,
    /// Those there, by those here.
    there: HashMap<u32, u32>,
    /// Others are nobody's, and not what they are.
    strict: bool,
}

impl Ids {
    fn new(kind: &'static Kind, strict: bool) -> Self {
        Ids { kind, here: HashMap::new(), there: HashMap::new(), strict }
    }

    /// What a file says, or said when it was read by a former process.
    fn open(kind: &'static Kind, file: &Path, strict: bool, notes: Option<&Area>) -> Result<Self> {
        let mut ids = Ids::new(kind, strict);
        let Some(words) = notes.map(|notes| notes.view::<Words<'_>>()) else {
            ids.read(file)?;
            return Ok(ids);
        };
        if let Some(count) = words.count().get().checked_sub(1) {
            for pair in words.pairs().iter().take(count as usize).map(Word::get) {
                ids.add((pair >> 32) as u32, pair as u32);
            }
            return Ok(ids);
        }
        ids.read(file)?;
        for (word, (&here, &there)) in words.pairs().iter().zip(&ids.there) {
            word.set(u64::from(here) << 32 | u64::from(there));
        }
        words.count().set(1 + ids.there.len() as u64);
        Ok(ids)
    }

    fn read(&mut self, path: &Path) -> Result<()> {
        let about =
            |why: String| Errno::EINVAL.because(format!("{}={}{why}", self.kind.option, path.display()));
        let text = trusted(path).map_err(|error| {
            let why = error.reason.as_deref().map_or_else(|| error.errno.to_string(), str::to_owned);
            about(format!(": {why}"))
        })?;
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let taken = self.take(line);
            taken.map_err(|why| about(format!(", line {}: {why}", index + 1)))?;
        }
        Ok(())
    }

    /// Takes in `NAME:NUMBER`, or a line of passwd(5) or group(5). Names that do not exist here are left out.
    fn take(&mut self, line: &[u8]) -> Result<(), String> {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(());
        }
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b':').collect();
        let ([name, there] | [name, _, there, ..]) = fields[..] else {
            return Err("NAME:NUMBER is needed, or a line of passwd(5) or group(5)".into());
        };
        let there = str::from_utf8(there).ok().and_then(number);
        let there = there.ok_or("a number is needed behind the name")?;
        let Kind { what, find, .. } = self.kind;
        let name = str::from_utf8(name).map_err(|_| format!("the name of the {what} is not UTF-8"))?.trim();
        let found = find(name).map_err(|errno| format!("the {what} {name} cannot be looked up: {errno}"))?;
        let Some(here) = found.or_else(|| number(name)) else {
            tracing::info!(name, there, "is nobody here");
            return Ok(());
        };
        if !self.add(here, there) {
            return Err(format!("{what} {here} here is {there} there, but an earlier line says otherwise"));
        }
        match self.there.len() {
            ..=PAIRS_MAX => Ok(()),
            _ => Err(format!("more than {PAIRS_MAX} {what}s")),
        }
    }

    /// Two numbers mean the same; false when one of them means another one already.
    fn add(&mut self, here: u32, there: u32) -> bool {
        *self.there.entry(here).or_insert(there) == there && *self.here.entry(there).or_insert(here) == here
    }

    fn shown(&self, there: u32) -> Result<u32> {
        let unknown = || self.unknown(there, "there", "here");
        self.here.get(&there).copied().or((!self.strict).then_some(there)).ok_or_else(unknown)
    }

    fn meant(&self, here: u32) -> Result<u32> {
        let unknown = || self.unknown(here, "here", "there");
        self.there.get(&here).copied().or((!self.strict).then_some(here)).ok_or_else(unknown)
    }

    fn unknown(&self, id: u32, from: &str, to: &str) -> Error {
        let Kind { what, option, .. } = self.kind;
        Errno::EPERM.because(format!(
            "{what} {id} {from} is nobody {to}, by {option}; nomap=ignore leaves such numbers as they are"
        ))
    }
}

/// A number of a user or group; the last one stands for none.
fn number(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|&number| number != u32::MAX)
}

/// The content of a file that no other user can write to: one who could would give files away.
fn trusted(path: &Path) -> Result<Vec<u8>> {
    // A pipe would be waited for.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    let why = if !meta.is_file() {
        "it is no regular file"
    } else if ![0, geteuid().as_raw()].contains(&meta.uid()) {
        "it belongs to another user, who could give files away with it"
    } else if meta.mode() & 0o022 != 0 {
        "others can write to it, and could give files away with it: chmod go-w helps"
    } else {
        let mut text = Vec::new();
        file.take(FILE_MAX + 1).read_to_end(&mut text)?;
        if text.len() as u64 <= FILE_MAX {
            return Ok(text);
        }
        "it is longer than 4 MiB"
    };
    Err(Errno::EINVAL.because(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    const THERE: Owner = Owner { uid: 1000, gid: 100 };
    const HERE: Owner = Owner { uid: 501, gid: 20 };

    fn options(idmap: &str) -> Options {
        let mut options = Options::default();
        options.set("idmap", idmap).expect("an option");
        options
    }

    /// A directory with a file of users in it, and options that name it.
    fn with_file(text: &[u8]) -> (TempDir, Options) {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("users");
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("permissions");
        (dir, Options { uidfile: Some(file), ..options("file") })
    }

    fn owned(uid: u32, gid: u32) -> SetAttrs {
        SetAttrs { uid: Some(uid), gid: Some(gid), ..SetAttrs::default() }
    }

    #[test]
    fn the_user_there_is_the_user_here_if_wanted() {
        let people =
            |idmap| People::open(&options(idmap), None).expect("no files").between(Some(THERE), HERE);
        let (mapped, plain, stranger) = (people("user"), people("none"), Owner { uid: 7, gid: 8 });
        assert_eq!(mapped.shown(THERE), Ok(HERE));
        assert_eq!(mapped.meant(&owned(501, 20)), Ok(owned(1000, 100)));
        assert_eq!((mapped.shown(stranger), mapped.meant(&owned(7, 8))), (Ok(stranger), Ok(owned(7, 8))));
        assert_eq!((plain.shown(THERE), plain.meant(&owned(501, 20))), (Ok(THERE), Ok(owned(501, 20))));
    }

    #[test]
    fn files_map_numbers_and_others_are_refused_unless_they_are_to_be_left_as_they_are() {
        let text =
            b"# users\n\n root : 0\r\n501:1000\nnobody-of-that-name:7\n77:x:1077:1:G\xe9cos:/:/bin/sh\n";
        let (_dir, mut options) = with_file(text);
        let strict = People::open(&options, None).expect("a file").between(Some(THERE), HERE);
        for (here, there) in [(0, 0), (501, 1000), (77, 1077)] {
            let (here, there) = (Owner { uid: here, gid: 5 }, Owner { uid: there, gid: 5 });
            assert_eq!(strict.shown(there), Ok(here));
            assert_eq!(strict.meant(&owned(here.uid, 5)), Ok(owned(there.uid, 5)));
        }
        for nobody in [7, 501, 77] {
            let error = strict.shown(Owner { uid: nobody, gid: 5 }).expect_err("a stranger");
            assert_eq!(error.errno, Errno::EPERM);
            assert!(error.reason.is_some_and(|why| why.contains(&format!("user {nobody} there"))));
        }
        assert_eq!(strict.meant(&owned(1000, 5)).expect_err("a stranger").errno, Errno::EPERM);
        assert_eq!(strict.meant(&SetAttrs::default()), Ok(SetAttrs::default()));
        assert_eq!(strict.can_own(), Ok(()));
        assert!(strict.between(Some(Owner { uid: 7, gid: 5 }), HERE).can_own().is_err());
        options.nomap = NoMap::Ignore;
        let lenient = People::open(&options, None).expect("a file");
        assert_eq!(lenient.shown(Owner { uid: 7, gid: 8 }), Ok(Owner { uid: 7, gid: 8 }));
        assert_eq!(lenient.meant(&owned(501, 8)), Ok(owned(1000, 8)));
    }

    #[test]
    fn a_file_that_cannot_be_meant_is_refused_by_name_and_line() {
        let many: String = (0..=PAIRS_MAX).map(|id| format!("{id}:{id}\n")).collect();
        for (text, expected) in [
            ("root", "line 1: NAME:NUMBER"),
            ("\nroot:x", "line 2: a number"),
            ("root:", "line 1: a number"),
            ("root:-1", "line 1: a number"),
            ("root:4294967295", "line 1: a number"),
            ("5:50\n6:60\n5:51", "line 3: user 5 here is 51 there"),
            ("5:50\n6:50", "line 2: user 6 here is 50 there"),
            (&many, "line 65537: more than 65536 users"),
            (&"#".repeat(FILE_MAX as usize + 1), "longer than 4 MiB"),
        ] {
            let (_dir, options) = with_file(text.as_bytes());
            let error = People::open(&options, None).expect_err(expected);
            let why = error.reason.expect("a reason");
            assert!(why.starts_with("uidfile=/") && why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_to_is_refused() {
        let (_dir, options) = with_file(b"root:0\n");
        let file = options.uidfile.as_deref().expect("a file");
        fs::set_permissions(file, Permissions::from_mode(0o664)).expect("permissions");
        let why =
            |options| People::open(&options, None).expect_err("it is refused").reason.expect("a reason");
        assert!(why(options.clone()).contains("chmod go-w"));
        let other = |path: &str| Options { uidfile: Some(path.into()), ..options.clone() };
        assert!(why(other("/dev/null")).contains("no regular file"));
        assert!(why(other("/nowhere/at/all")).contains("No such file"));
        let lacks = |options: Options| assert!(why(options).contains("idmap=file takes uidfile=FILE"));
        lacks(Options { uidfile: None, ..options.clone() });
        lacks(Options { idmap: IdMap::User, ..options.clone() });
    }

    #[test]
    fn a_later_process_believes_what_the_first_one_read() {
        let (dir, mut options) = with_file(b"501:1000\n");
        options.gidfile = Some(dir.path().join("groups"));
        fs::write(dir.path().join("groups"), "# nobody\n").expect("a file");
        let keep = HeapKeep::default();
        People::open(&options, Some(&keep)).expect("files");
        drop(dir);
        let later = People::open(&options, Some(&keep)).expect("notes");
        assert_eq!(
            later.meant(&SetAttrs { gid: None, ..owned(501, 0) }).map(|attrs| attrs.uid),
            Ok(Some(1000))
        );
        assert!(later.shown(Owner { uid: 1000, gid: 0 }).is_err(), "no group is anybody");
    }
}
