// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tree of a server that has files by path and takes them as a whole: all of a driver but the server's own protocol.
//!
//! A [`FileTree`] has nodes, open files, listings with the cookies that another process goes on with, reads that follow one
//! transfer, and staged writes; a [`FileServer`] answers what it asks by path.

mod inner;
mod names;
mod ops;
mod read;
mod upload;
mod write;

pub use read::{Readings, Version};
pub use upload::changed_by_others;

use crate::diagnosis::parent;
use crate::fault::{Fault, Refusal};
use crate::inode_table::{InodeTable, join};
use crate::open_files::OpenFiles;
use crate::options::FileOptions;
use crate::silly_rename::SillyNames;
use crate::staging::{Staged, Staging};
use crate::transport::{Stream, receive_lines};
use bytes::{Bytes, BytesMut};
use inner::Inner;
use outrigger_core::{Errno, FileKind, Keep, Parallel, Result, Runtime, Time};
use read::Versions;
use std::future::Future;
use std::num::NonZero;
use std::sync::{Arc, Mutex, OnceLock};

/// What a server says about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The name; of no use where a path was asked for.
    pub name: Bytes,
    /// What it leads to.
    pub kind: FileKind,
    /// The size in bytes, where the server says.
    pub size: Option<u64>,
    /// The time of change in seconds since 1970, where the server says.
    pub modified: Option<i64>,
    /// The time of change is rounded: it is not the one that the server tells together with content.
    pub is_rounded: bool,
    /// Permissions, where the server says.
    pub mode: Option<u32>,
    /// Where a symbolic link leads, if the server says so along with the rest.
    pub target: Option<Bytes>,
    /// A hash of the mark that the server gives to the content of a file, as an entity tag.
    pub tag: Option<u64>,
}

impl Found {
    /// Something of which no more is known.
    pub fn new(kind: FileKind) -> Self {
        Found {
            name: Bytes::new(),
            kind,
            size: None,
            modified: None,
            is_rounded: false,
            mode: None,
            target: None,
            tag: None,
        }
    }
}

/// The names in a directory, without the one itself and the one above.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// What can be asked for.
    pub names: Vec<Found>,
    /// The first thing that the server has listed and that makes no sense, or is no name: something may be missing.
    pub odd: Option<String>,
}

impl Listing {
    /// What is listed of the last name of a path.
    ///
    /// # Errors
    /// `ENOENT` when nothing is, and `EIO` when it may stand in what makes no sense.
    pub fn find(self, path: &[u8]) -> Result<Found> {
        let name = &path[path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)..];
        self.names.into_iter().find(|found| found.name == name).ok_or_else(|| match self.odd {
            None => Errno::ENOENT.into(),
            Some(line) => Errno::EIO.because(format!("the server lists '{line}', which makes no sense")),
        })
    }
}

/// What is at a path of a server that tells it in listings only, of a tree that begins at `base`.
///
/// # Errors
/// Those of [`FileServer::list`] and [`Listing::find`].
pub async fn find_by_listing<S: FileServer>(server: &S, path: &[u8], base: &[u8]) -> Asked<Found, S> {
    match server.list(parent(path)).await {
        Ok(listing) => Ok(listing.find(path)?),
        // The directory above the tree may be closed to us.
        Err(_) if path == base => Ok(Found::new(FileKind::Directory)),
        Err(fault) => Err(fault),
    }
}

/// The names in a listing that comes as lines of at most `line_max` bytes, which `read` understands: `None` for one without a name.
///
/// # Errors
/// Those of [`receive_lines`].
pub async fn receive_listing<E, R>(
    stream: &mut Box<dyn Stream>,
    options: &FileOptions,
    line_max: usize,
    read: impl Fn(&[u8]) -> Result<Option<Found>, E>,
) -> Result<Listing, Fault<R>> {
    let mut listing = Listing::default();
    let take = |line: &[u8]| match read(line) {
        Ok(found) => listing.names.extend(found),
        Err(_) => {
            _ = listing.odd.get_or_insert_with(|| line[..line.len().min(100)].escape_ascii().to_string())
        }
    };
    let most = (options.max_listing, "max_listing");
    receive_lines(stream, (options.timeout, line_max), most, take).await?;
    Ok(listing)
}

/// How content is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// In place of what there is.
    Whole,
    /// After what there is.
    Append,
}

/// A transfer of a file that has begun.
#[derive(Debug)]
pub struct Begun<T> {
    /// What brings the content; `None` where the file ends.
    pub transfer: Option<T>,
    /// Where in the file it begins: at 0 where the server cannot begin elsewhere.
    pub at: u64,
    /// What the file is, where the server says.
    pub version: Version,
}

/// The answer of a server.
pub type Asked<T, S> = Result<T, Fault<<S as FileServer>::Refusal>>;

/// A server with files by path: what its protocol says, and nothing about what follows from that.
///
/// One that is [only read](FileServer::READ_ONLY) is complete without the methods that change something, which follow those that read.
pub trait FileServer: Send + Sync + 'static {
    /// Whether nothing is changed at the server: the tree answers `EROFS` and does not ask.
    const READ_ONLY: bool = false;
    /// Whether the protocol says with each transfer where in the file it begins. Else that is tried out with the last byte of a file, once
    /// for a server.
    const TELLS_PLACES: bool = false;
    /// Whether each transfer tells exactly which content it is of. What is read of an open file is then of one version, also by a process
    /// that takes over: `ESTALE` where the server has another one by now.
    const TELLS_VERSIONS: bool = false;
    /// Whether there may be files in directories that the server does not show, as at the paths of URLs: of several names in a row
    /// the last one is asked for first.
    const HIDES_DIRECTORIES: bool = false;
    /// Whether listings may leave names out, of which the server has the files all the same.
    const HIDES_NAMES: bool = false;
    /// Whether [`FileServer::send`] replaces a file as a whole or not at all, and only one that still is what [`StagedState`] says of it.
    /// Then nothing goes to a temporary name, and nothing is looked at before.
    ///
    /// [`StagedState`]: crate::StagedState
    const STORES_IF_UNCHANGED: bool = false;
    /// Whether the server can append to a file.
    const APPENDS: bool = true;
    /// What is worth asking at once.
    const PARALLEL: Parallel = Parallel { reads: 1, listings: 1 };

    /// A file that is being received.
    type Transfer: Send + 'static;
    /// The words in which it refuses.
    type Refusal: Refusal;

    /// The name of the driver.
    fn driver(&self) -> &'static str;

    /// What is served, without a password.
    fn shown(&self) -> String;

    /// Whether what is cached of a file is looked at when the file is opened.
    fn is_asked_at_open(&self) -> bool {
        Self::STORES_IF_UNCHANGED
    }

    /// The transfers that go on when the next piece is asked for: a server that needs their connections ends some.
    fn readings(&self) -> &Readings<Self::Transfer>;

    /// Whether the server can be asked about such a path.
    ///
    /// # Errors
    /// `EINVAL` when it cannot.
    fn check(&self, _path: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Whether the server gives what it stores, makes or renames exactly this name.
    ///
    /// # Errors
    /// `EINVAL` when it would be another name, which another file may have.
    fn keeps_name(&self, _path: &[u8]) -> Result<()> {
        Ok(())
    }

    /// What is at a path.
    fn stat(&self, path: &[u8]) -> impl Future<Output = Asked<Found, Self>> + Send;

    /// The names in a directory.
    fn list(&self, path: &[u8]) -> impl Future<Output = Asked<Listing, Self>> + Send;

    /// Where a symbolic link leads whose target [`FileServer::stat`] does not tell.
    fn target(&self, _path: &[u8]) -> impl Future<Output = Asked<Bytes, Self>> + Send {
        async { Err(Errno::EINVAL.because("the server has no symbolic links").into()) }
    }

    /// Size and time of change of a file, where the server tells them more exactly than [`FileServer::stat`] does; else `None`.
    fn exact_version(&self, _path: &[u8]) -> impl Future<Output = Asked<Option<Version>, Self>> + Send {
        async { Ok(None) }
    }

    /// Begins to receive a file from `offset` on.
    fn begin(
        &self,
        path: &[u8],
        offset: u64,
    ) -> impl Future<Output = Asked<Begun<Self::Transfer>, Self>> + Send;

    /// Receives more to the end of `buffer`: how much, 0 at the end of the file.
    fn receive(
        &self,
        transfer: &mut Self::Transfer,
        buffer: &mut BytesMut,
    ) -> impl Future<Output = Asked<usize, Self>> + Send;

    /// Ends a transfer that came to the end of the file: whether the server says that it was all.
    fn finish(&self, _transfer: Self::Transfer) -> impl Future<Output = Asked<(), Self>> + Send {
        async { Ok(()) }
    }

    /// Sends a staged file from `from` on.
    fn send(
        &self,
        _path: &[u8],
        _how: Put,
        _staged: &Arc<Staged>,
        _from: u64,
    ) -> impl Future<Output = Asked<(), Self>> + Send {
        read_only()
    }

    /// Renames, and replaces a file where the server does; gives it these permissions as far as the server can. What has the new
    /// name then, where the server tells that along with it.
    fn rename(
        &self,
        _from: &[u8],
        _to: &[u8],
        _mode: Option<u32>,
    ) -> impl Future<Output = Asked<Option<Version>, Self>> + Send {
        read_only()
    }

    /// Renames to a name that nothing has, as far as the server can see to that.
    fn rename_new(&self, from: &[u8], to: &[u8]) -> impl Future<Output = Asked<(), Self>> + Send {
        async { self.rename(from, to, None).await.map(drop) }
    }

    /// Makes a directory, with these permissions as far as the server can.
    fn make_dir(&self, _path: &[u8], _mode: u32) -> impl Future<Output = Asked<(), Self>> + Send {
        read_only()
    }

    /// Removes an empty directory.
    fn remove_dir(&self, _path: &[u8]) -> impl Future<Output = Asked<(), Self>> + Send {
        read_only()
    }

    /// Removes a file.
    fn remove(&self, _path: &[u8]) -> impl Future<Output = Asked<(), Self>> + Send {
        read_only()
    }

    /// Changes permissions.
    fn set_mode(&self, _path: &[u8], _mode: u32) -> impl Future<Output = Asked<(), Self>> + Send {
        read_only()
    }

    /// False once it is known that the server cannot change times of files.
    fn sets_times(&self) -> bool {
        false
    }

    /// How many bytes there is room for, where the server tells: none where nothing can be stored.
    fn free_space(&self, _path: &[u8]) -> impl Future<Output = Asked<Option<u64>, Self>> + Send {
        async { Ok(Self::READ_ONLY.then_some(0)) }
    }

    /// Changes the time of change. `EOPNOTSUPP` where the server cannot for any file.
    fn set_time(&self, _path: &[u8], _time: Time) -> impl Future<Output = Asked<(), Self>> + Send {
        read_only()
    }
}

/// The answer of a server that is only read to what changes something.
async fn read_only<T, R>() -> Result<T, Fault<R>> {
    Err(Errno::EROFS.into())
}

/// A tree of a server.
pub struct FileTree<S>(Arc<Inner<S>>);

impl<S> Clone for FileTree<S> {
    fn clone(&self) -> Self {
        FileTree(Arc::clone(&self.0))
    }
}

impl<S: FileServer> FileTree<S> {
    /// The tree below `base`. Tasks run on `runtime`. With `keep`, nodes, open files and what is staged outlive this process.
    ///
    /// # Errors
    /// `EUCLEAN` when `keep` has something else.
    pub fn open(
        server: S,
        base: Vec<u8>,
        options: FileOptions,
        runtime: Arc<dyn Runtime>,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Self> {
        let inodes = InodeTable::open(keep.as_deref(), join(base, b"")?.into())?;
        let mut versions = Versions::default();
        let open = OpenFiles::open(keep.as_deref(), |_, was, _| {
            versions.of_handles.extend(NonZero::new(was.own[0]).map(|version| (was.handle, version)));
            was.flags
        })?;
        let silly = SillyNames::open(keep.as_deref())?;
        for node in silly.given(inodes.table()) {
            open.mark_removed(node);
        }
        let staging = Staging::open(options.spool_dir.clone(), options.spool, keep)?;
        let inner = Arc::new(Inner {
            server,
            options,
            inodes,
            open,
            versions: Mutex::new(versions),
            notify: OnceLock::new(),
            silly,
            staging,
            locks: Default::default(),
            dirs: Default::default(),
            no_appends: (!S::APPENDS).into(),
            begins_anywhere: Default::default(),
            runtime: Arc::clone(&runtime),
        });
        runtime.spawn(Box::pin(Arc::clone(&inner).settle()));
        Ok(FileTree(inner))
    }
}
