// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operation table: the only place where an operation is described.
//!
//! Each row gives an operation its stable number (never reused), its [`Class`], its name, its fields, its reply and its effects
//! ([`Effect`]), in words of [`crate::effects`].
//! From the table come [`Request`], one struct per operation, typed calls ([`Op`], [`crate::ask`]), the two driver
//! traits, the adapters' dispatch, and the [`Wire`] encoding.
//!
//! The rows follow what Linux's VFS asks of a file system; where a rule of POSIX or of a Linux system call applies,
//! the row says which.

use crate::attr::{AttrFields, FileKind, SetAttrs};
use crate::cx::Cx;
use crate::effects::{Effect, Effects, Opening, Synced, words};
use crate::error::{Errno, Error, Result};
use crate::name::{Name, Target, XattrName};
use crate::node::{Generation, Handle, LockOwner, Node};
use crate::notify::Notify;
use crate::payload::Payload;
use crate::reply::{
    Attrs, Count, Created, Data, Dirents, DirentsPlus, Done, Entries, Entry, Events, FsStat, Granted,
    IoctlDone, LockState, Names, Offset, Opened, Reply, Value,
};
use crate::service::{Abilities, Answer, Recalled};
use crate::wire::{Input, Layout, Malformed, layout_of};
use crate::{Traverse, Wire};
use bitflags::bitflags;
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;

/// Whether an operation changes the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It has no effect on the tree (or one that repeating does not add to): may be replayed freely.
    Query,
    /// It changes the tree: journalled before it starts, never dropped once started, its reply remembered.
    Change,
}

/// One operation: a struct of its arguments, tied to the type of its reply.
pub trait Op: Into<Request> {
    /// What a successful reply holds.
    type Out;
    /// Its number.
    const CODE: OpCode;

    /// Takes the typed result out of a reply.
    ///
    /// # Errors
    /// The error the reply carries; `EPROTO` when the reply belongs to another operation.
    fn result(reply: Reply) -> Result<Self::Out>;
}

macro_rules! operations {
    ($($(#[doc = $doc:literal])* $number:literal $class:ident $op:ident $method:ident
        { $($(#[doc = $field_doc:literal])* $field:ident: $type:ty),* $(,)? } -> $reply:ident
        [$($effect:ident($($argument:expr),*)),* $(,)?];)*) => {
        /// The stable number of an operation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum OpCode { $($(#[doc = $doc])* $op = $number),* }

        impl OpCode {
            /// Every operation, in the order of the table.
            pub const ALL: &'static [OpCode] = &[$(OpCode::$op),*];

            /// The largest number in use.
            pub const MAX: u16 = { let mut max = 0; $(if $number > max { max = $number; })* max };

            /// The name in lower case, as traces and fault patterns spell it.
            pub const fn name(self) -> &'static str {
                match self { $(OpCode::$op => stringify!($method)),* }
            }

            /// Whether the operation can change the tree; what its arguments make of that, [`Request::class`] says.
            pub const fn class(self) -> Class {
                match self { $(OpCode::$op => Class::$class),* }
            }

            /// One paragraph on what it does.
            pub const fn doc(self) -> &'static str {
                match self { $(OpCode::$op => concat!($($doc, "\n"),*).trim_ascii()),* }
            }

            /// The name of the reply's variant.
            pub const fn reply(self) -> &'static str {
                match self { $(OpCode::$op => stringify!($reply)),* }
            }

            /// A number for how the request and its reply are encoded (see [`Layout`]).
            pub const fn layout(self) -> u32 {
                match self { $(OpCode::$op => layout_of(&[<$op as Layout>::LAYOUT, <$reply as Layout>::LAYOUT])),* }
            }

            /// The names and types of the arguments, in the order in which they are encoded.
            pub const fn fields(self) -> &'static [(&'static str, &'static str)] {
                match self { $(OpCode::$op => &[$((stringify!($field), stringify!($type))),*]),* }
            }

            /// The words in which its row states effects.
            const fn words(self) -> &'static [&'static str] {
                match self { $(OpCode::$op => &[$(stringify!($effect)),*]),* }
            }

            /// The operation with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                OpCode::ALL.iter().copied().find(|op| op.name() == name)
            }
        }

        $($(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Traverse, Wire)]
        pub struct $op { $($(#[doc = $field_doc])* pub $field: $type),* }

        impl From<$op> for Request {
            fn from(op: $op) -> Request { Request::$op(op) }
        }

        impl Op for $op {
            type Out = $reply;
            const CODE: OpCode = OpCode::$op;
            fn result(reply: Reply) -> Result<$reply> {
                match reply {
                    Reply::$reply(value) => Ok(value),
                    Reply::Error(error) => Err(error),
                    other => Err(mismatch(OpCode::$op, &other)),
                }
            }
        })*

        /// Any operation with its arguments.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request { $($(#[doc = $doc])* $op($op)),* }

        impl Request {
            /// The operation's number.
            pub const fn op(&self) -> OpCode {
                match self { $(Request::$op(_) => OpCode::$op),* }
            }

            /// What it does if it succeeds.
            #[allow(unused_variables, reason = "not every argument decides about an effect")]
            pub fn effects(&self) -> Effects<'_> {
                match self {
                    $(Request::$op($op { $($field),* }) => Effects::of([$(words::$effect($($argument),*)),*])),*
                }
            }
        }

        impl Traverse for Request {
            fn traverse(&mut self, visitor: &mut dyn crate::Visit) {
                match self { $(Request::$op(op) => op.traverse(visitor)),* }
            }
        }

        impl Wire for Request {
            fn put(&self, out: &mut Vec<u8>) {
                (self.op() as u16).put(out);
                match self { $(Request::$op(op) => op.put(out)),* }
            }
            fn get(input: &mut Input) -> Result<Self, Malformed> {
                match u16::get(input)? {
                    $($number => $op::get(input).map(Request::$op),)*
                    _ => Err(Malformed::new("Request")),
                }
            }
        }

        /// What the author of an asynchronous driver writes: one method per supported operation.
        ///
        /// [`crate::Serve`] makes it a [`crate::Service`].
        pub trait Driver: Send + Sync {
            /// What the driver can do. Every operation in its set has a method of its own.
            fn abilities(&self) -> Abilities;

            /// Called once before the first request with the place to send notices to.
            fn attach(&self, _notify: Arc<dyn Notify>) {}

            /// As [`Service::recall`](crate::Service::recall).
            ///
            /// # Errors
            /// Those of [`Service::recall`](crate::Service::recall).
            fn recall(&self, _dir: Node, _name: &Name, _kind: FileKind) -> Result<Recalled> {
                Err(Errno::ENOSYS.into())
            }

            $($(#[doc = $doc])*
            fn $method(&self, _cx: &Cx, _op: $op) -> impl Future<Output = Result<$reply>> + Send {
                std::future::ready(Err(Errno::ENOSYS.into()))
            })*
        }

        /// What the author of a driver over plain calls writes: one method per supported operation.
        ///
        /// [`crate::Pool`] makes it a [`crate::Service`] on threads where it may block; [`crate::Inline`] makes a
        /// [`crate::Prompt`] one a service that answers on the calling thread.
        pub trait BlockingDriver: Send + Sync {
            /// What the driver can do. Every operation in its set has a method of its own.
            fn abilities(&self) -> Abilities;

            /// Called once before the first request with the place to send notices to.
            fn attach(&self, _notify: Arc<dyn Notify>) {}

            $($(#[doc = $doc])*
            fn $method(&self, _cx: &Cx, _op: $op) -> Result<$reply> {
                Err(Errno::ENOSYS.into())
            })*
        }

        /// Calls the method of a plain driver that `request` names.
        pub(crate) fn call_blocking<D: BlockingDriver + ?Sized>(driver: &D, cx: &Cx, request: Request) -> Reply {
            match request { $(Request::$op(op) => driver.$method(cx, op).into()),* }
        }

        /// Calls the method of an asynchronous driver that `request` names.
        pub(crate) fn call_driver<'a, D: Driver>(driver: &'a D, cx: &'a Cx, request: Request) -> Answer<'a> {
            match request {
                $(Request::$op(op) => Answer::later(async move { driver.$method(cx, op).await.into() })),*
            }
        }
    };
}

impl OpCode {
    /// Whether it ends a handle: see [`Request::ends`].
    pub fn ends(self) -> bool {
        self.words().contains(&"ends")
    }

    /// Whether it returns references: see [`Request::returns`].
    pub fn returns(self) -> bool {
        self.words().contains(&"returns")
    }

    /// Whether its request brings content of a file.
    pub fn brings_content(self) -> bool {
        self.fields().iter().any(|(_, of_type)| *of_type == "Payload")
    }

    /// Whether its request or its reply has content of a file.
    pub fn has_content(self) -> bool {
        self.brings_content() || self.reply() == "Data"
    }

    /// Whether all that it does is to store what its request says, or what was written before: a device that has lost it can answer
    /// success all the same.
    pub fn only_stores(self) -> bool {
        let stores = ["allocates", "flushes", "syncs", "syncs_directory", "syncs_tree"];
        self.brings_content() || self.words().iter().any(|word| stores.contains(word))
    }
}

impl Request {
    /// Whether it changes the tree: an open that empties nothing does not.
    pub fn class(&self) -> Class {
        // Most requests are queries whatever their arguments are.
        match self.op().class() {
            Class::Change if self.effects().into_iter().any(Effect::changes) => Class::Change,
            _ => Class::Query,
        }
    }

    /// Whether it changes what the tree stores; locks live beside the tree.
    pub fn changes_tree(&self) -> bool {
        self.effects().into_iter().any(Effect::changes_tree)
    }

    /// Whether it changes the content of a file: writes, copies, cuts, reserves room, or may do any of these.
    pub fn changes_content(&self) -> bool {
        self.effects().into_iter().any(|effect| effect.content().is_some())
    }

    /// Whether what it does, or its reply, depends on the content of the files that it names: what was written to them has to be there.
    pub fn depends_on_content(&self) -> bool {
        let does_not =
            |effect| matches!(effect, Effect::Opens(_) | Effect::Returns { .. } | Effect::Locates { .. });
        self.changes_tree() || !self.effects().into_iter().any(does_not)
    }

    /// Whether it is refused where the tree cannot be changed.
    pub fn needs_changeable(&self) -> bool {
        self.effects().into_iter().any(|effect| effect.changes_tree() || effect == Effect::WantsToChange)
    }

    /// Whether its reply has a handle or references, which the caller has to give back ([`Asked`](crate::Asked)).
    pub fn hands_out(&self) -> bool {
        self.effects().into_iter().any(Effect::hands_out)
    }

    /// Whether it gives back a handle or references that were handed out. The caller does not ask twice: a layer that does not
    /// pass it on leaks what is below.
    pub fn gives_back(&self) -> bool {
        self.effects().into_iter().any(Effect::gives_back)
    }

    /// What it opens, and how.
    pub fn opens(&self) -> Option<Opening> {
        self.effects().into_iter().find_map(|effect| match effect {
            Effect::Opens(opening) => Some(opening),
            _ => None,
        })
    }

    /// The handle that it ends, and what that is a handle of.
    pub fn ends(&self) -> Option<(Node, Handle)> {
        self.effects().into_iter().find_map(|effect| match effect {
            Effect::Ends { node, handle } => Some((node, handle)),
            _ => None,
        })
    }

    /// The references that it returns: the node, and how many. Its reply says nothing, and no caller waits for it.
    pub fn returns(&self) -> Option<(Node, u64)> {
        self.effects().into_iter().find_map(|effect| match effect {
            Effect::Returns { node, count } => Some((node, count)),
            _ => None,
        })
    }

    /// What it puts on stable storage.
    pub fn syncs(&self) -> Option<Synced> {
        self.effects().into_iter().find_map(|effect| match effect {
            Effect::Syncs(synced) => Some(synced),
            _ => None,
        })
    }

    /// Whether it must end once it has begun, though no caller waits for its reply any more: it changes something, or what it hands out
    /// or gives back would be lost.
    pub fn must_end(&self) -> bool {
        self.class() == Class::Change || self.hands_out() || self.gives_back()
    }

    /// Whether it waits as long as it takes.
    pub fn waits(&self) -> bool {
        self.effects().into_iter().any(|effect| effect == Effect::Waits)
    }
}

#[cold]
fn mismatch(op: OpCode, reply: &Reply) -> Error {
    Errno::EPROTO.because(format!("{} was answered with {reply:?}", op.name()))
}

operations! {
    /// Finds `name` in the directory `dir`.
    ///
    /// Counts one reference to the node, returned by [`Forget`].
    1 Query Lookup lookup {
        /// The directory.
        dir: Node,
        /// The name to find.
        name: Name,
    } -> Entry [references(), searches(dir)];

    /// Finds several names one below the other, starting at `dir`, in one round trip (9P `Twalk`).
    ///
    /// Answers the entries found before the first failure; fails only when the first name fails.
    /// Counts one reference to each node answered.
    2 Query Walk walk {
        /// Where to start.
        dir: Node,
        /// The path, component by component.
        names: Vec<Name>,
    } -> Entries [references(), searches(dir)];

    /// Attributes of a node (stat(2), statx(2)).
    3 Query GetAttr getattr {
        /// The file.
        node: Node,
        /// An open handle of it, if the caller has one.
        handle: Option<Handle>,
    } -> Attrs [];

    /// Changes attributes, all or none (chmod(2), chown(2), truncate(2), utimensat(2)).
    4 Change SetAttr setattr {
        /// The file.
        node: Node,
        /// An open handle of it, if the caller has one (ftruncate(2)).
        handle: Option<Handle>,
        /// What to change.
        attrs: SetAttrs,
    } -> Attrs [sets(node, attrs), sizes(node, attrs), sizes_need(node, handle, attrs)];

    /// The target of a symbolic link.
    5 Query ReadLink readlink {
        /// The symbolic link.
        node: Node,
    } -> Target [];

    /// Makes a file of any kind but directory and symbolic link (mknod(2)).
    6 Change MkNod mknod {
        /// The directory.
        dir: Node,
        /// The new name.
        name: Name,
        /// Kind and permissions.
        mode: u32,
        /// The caller's umask(2), where the tree is to apply it ([`Abilities::acl`]): a default access list of the
        /// directory takes its place. Elsewhere `mode` has been masked already, and this is 0.
        umask: u32,
        /// Device number for device nodes.
        rdev: u32,
        /// What the new file has besides, all at once with its name: owner, group, times. Asked for only where
        /// [`Abilities::initial_attrs`] says so.
        initial: Option<Box<SetAttrs>>,
    } -> Entry [adds_node(dir, name, mode), references()];

    /// Makes a directory.
    7 Change MkDir mkdir {
        /// The parent.
        dir: Node,
        /// The new name.
        name: Name,
        /// Permissions.
        mode: u32,
        /// The caller's umask(2), where the tree is to apply it ([`Abilities::acl`]): a default access list of the
        /// directory takes its place. Elsewhere `mode` has been masked already, and this is 0.
        umask: u32,
        /// What the new file has besides, all at once with its name: owner, group, times. Asked for only where
        /// [`Abilities::initial_attrs`] says so.
        initial: Option<Box<SetAttrs>>,
    } -> Entry [adds(dir, name, FileKind::Directory), references()];

    /// Makes a symbolic link.
    8 Change SymLink symlink {
        /// The directory.
        dir: Node,
        /// The new name.
        name: Name,
        /// What it points to, verbatim.
        target: Target,
        /// What the new file has besides, all at once with its name: owner, group, times. Asked for only where
        /// [`Abilities::initial_attrs`] says so.
        initial: Option<Box<SetAttrs>>,
    } -> Entry [adds(dir, name, FileKind::Symlink), references()];

    /// Gives an existing file another name (link(2)).
    9 Change Link link {
        /// The file.
        node: Node,
        /// The directory of the new name.
        dir: Node,
        /// The new name.
        name: Name,
    } -> Entry [links(node, dir, name), attributes(node), references()];

    /// Removes a name that is not a directory; the file lives on while it has names or open handles.
    10 Change Unlink unlink {
        /// The directory.
        dir: Node,
        /// The name to remove.
        name: Name,
    } -> Done [removes(dir, name)];

    /// Removes an empty directory.
    11 Change RmDir rmdir {
        /// The parent.
        dir: Node,
        /// The directory's name.
        name: Name,
    } -> Done [removes_directory(dir, name)];

    /// Moves a name, replacing what has the new name unless a flag says otherwise (renameat2(2)).
    12 Change Rename rename {
        /// The old directory.
        dir: Node,
        /// The old name.
        name: Name,
        /// The new directory.
        to_dir: Node,
        /// The new name.
        to_name: Name,
        /// Refuse to replace, or exchange.
        flags: RenameFlags,
    } -> Done [moves((dir, name), (to_dir, to_name), flags)];

    /// Opens a file.
    ///
    /// With `TRUNC` among the flags it is also emptied: only then it is a change.
    13 Change Open open {
        /// The file.
        node: Node,
        /// Access mode and flags.
        flags: OpenFlags,
    } -> Opened [opens(node, flags), empties(node, flags), announces(flags)];

    /// Makes a regular file and opens it; opens an existing one unless `EXCL` is set.
    14 Change Create create {
        /// The directory.
        dir: Node,
        /// The name.
        name: Name,
        /// Permissions of a new file.
        mode: u32,
        /// The caller's umask(2), where the tree is to apply it ([`Abilities::acl`]): a default access list of the
        /// directory takes its place. Elsewhere `mode` has been masked already, and this is 0.
        umask: u32,
        /// Access mode and flags.
        flags: OpenFlags,
        /// What the new file has besides, all at once with its name: owner, group, times. Asked for only where
        /// [`Abilities::initial_attrs`] says so.
        initial: Option<Box<SetAttrs>>,
    } -> Created [adds_file(dir, name, flags), opens_new(flags), references()];

    /// Makes and opens a regular file without a name (`O_TMPFILE`); [`Link`] may name it later.
    15 Change TmpFile tmpfile {
        /// A directory of the tree the file belongs to.
        dir: Node,
        /// Permissions.
        mode: u32,
        /// The caller's umask(2), where the tree is to apply it ([`Abilities::acl`]): a default access list of the
        /// directory takes its place. Elsewhere `mode` has been masked already, and this is 0.
        umask: u32,
        /// Access mode and flags.
        flags: OpenFlags,
    } -> Created [makes(dir, flags), opens_new(flags), references()];

    /// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
    16 Query Read read {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// Where to start, in bytes.
        offset: u64,
        /// How much to read, in bytes.
        len: u32,
    } -> Data [reads(node, handle)];

    /// Writes `data` at `offset`; fewer bytes only when there is no room for the rest.
    17 Change Write write {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// Where to start, in bytes; ignored when the handle was opened with `APPEND` unless `cached`.
        offset: u64,
        /// The content.
        data: Payload,
        /// The kernel writes back its cache: the offset is exact, and the writer's identity unknown.
        cached: bool,
        /// Clear the set-id bits (FUSE `HANDLE_KILLPRIV_V2`).
        kill_setid: bool,
    } -> Count [writes(node, offset, data.len() as u64), appends(node, handle, data.len(), cached), needs_write(node, handle)];

    /// A descriptor of this open file was closed: the last chance to report a delayed write error to close(2).
    18 Query Flush flush {
        /// The file.
        node: Node,
        /// The open handle.
        handle: Handle,
        /// Whose POSIX locks end with the close.
        owner: LockOwner,
    } -> Done [flushes(node, handle)];

    /// Puts content, and unless `data_only` attributes too, on stable storage (fsync(2), fdatasync(2)).
    19 Query FSync fsync {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// Whether attributes that reading does not need may stay unwritten.
        data_only: bool,
    } -> Done [syncs(node)];

    /// Reserves, punches, zeroes, collapses or inserts a range (fallocate(2)).
    20 Change Fallocate fallocate {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// What to do.
        mode: FallocateMode,
    } -> Done [allocates(node, offset, mode), shifts(node, handle, len, mode), needs_write(node, handle)];

    /// Finds the next data or the next hole at or after `offset` (lseek(2) with `SEEK_DATA`, `SEEK_HOLE`).
    21 Query Seek lseek {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// Where to start, in bytes.
        offset: u64,
        /// What to look for.
        whence: Whence,
    } -> Offset [reads(node, handle)];

    /// Copies a range between two files of this tree without the bytes passing through (copy_file_range(2)).
    22 Change CopyRange copy_range {
        /// The source.
        node: Node,
        /// An open handle of the source.
        handle: Handle,
        /// Where to read, in bytes.
        offset: u64,
        /// The destination.
        to_node: Node,
        /// An open handle of the destination.
        to_handle: Handle,
        /// Where to write, in bytes.
        to_offset: u64,
        /// How much to copy, in bytes.
        len: u64,
    } -> Count [writes(to_node, to_offset, *len), reads(node, handle), needs_write(to_node, to_handle)];

    /// The last descriptor of an open file was closed.
    23 Query Release release {
        /// The file.
        node: Node,
        /// The handle that ends.
        handle: Handle,
        /// The flags it was opened with.
        flags: OpenFlags,
        /// Whose locks end.
        owner: LockOwner,
        /// Whether flock(2) locks of this handle end too.
        flock_release: bool,
    } -> Done [ends(node, handle)];

    /// Opens a directory for listing.
    24 Query OpenDir opendir {
        /// The directory.
        node: Node,
    } -> Opened [opens_directory(node)];

    /// Lists a directory from `cookie` on, without `.` and `..`.
    ///
    /// A cookie stays valid while the directory is open, whatever is added or removed meanwhile (see seekdir(3)).
    25 Query ReadDir readdir {
        /// The directory.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// 0 for the start, else the cookie of the last entry received.
        cookie: u64,
        /// Roughly how many bytes of entries are wanted, counting 24 and its name for each.
        size: u32,
    } -> Dirents [reads(node, handle)];

    /// As [`ReadDir`], with the entry of each name; counts one reference to each node answered.
    26 Query ReadDirPlus readdirplus {
        /// The directory.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// 0 for the start, else the cookie of the last entry received.
        cookie: u64,
        /// Roughly how many bytes of entries are wanted, counting 152 and its name for each.
        size: u32,
    } -> DirentsPlus [references(), reads(node, handle)];

    /// The last descriptor of an open directory was closed.
    27 Query ReleaseDir releasedir {
        /// The directory.
        node: Node,
        /// The handle that ends.
        handle: Handle,
    } -> Done [ends(node, handle)];

    /// Puts the names in a directory on stable storage.
    28 Query FSyncDir fsyncdir {
        /// The directory.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// Whether attributes may stay unwritten.
        data_only: bool,
    } -> Done [syncs_directory(node)];

    /// The value of an extended attribute (getxattr(2)); `ENODATA` when there is none.
    29 Query GetXattr getxattr {
        /// The file.
        node: Node,
        /// The attribute.
        name: XattrName,
    } -> Value [reads_xattr(node, name)];

    /// Sets an extended attribute (setxattr(2)).
    30 Change SetXattr setxattr {
        /// The file.
        node: Node,
        /// The attribute.
        name: XattrName,
        /// Its new value.
        value: Bytes,
        /// Whether it must or must not exist.
        flags: XattrFlags,
    } -> Done [sets_xattr(node, name, flags)];

    /// The names of all extended attributes the caller may see (listxattr(2)).
    31 Query ListXattr listxattr {
        /// The file.
        node: Node,
    } -> Names [];

    /// Removes an extended attribute; `ENODATA` when there is none.
    32 Change RemoveXattr removexattr {
        /// The file.
        node: Node,
        /// The attribute.
        name: XattrName,
    } -> Done [removes_xattr(node, name)];

    /// Which lock, if any, stands in the way of `lock` (fcntl(2) `F_GETLK`).
    33 Query GetLock getlk {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// The owner that would hold the lock.
        owner: LockOwner,
        /// The wanted lock.
        lock: Lock,
    } -> LockState [lock_needs(node, handle, lock)];

    /// Takes or releases a lock (fcntl(2) `F_SETLK`, `F_SETLKW`, flock(2)); `EAGAIN` when it is held and `wait` is not set.
    34 Change SetLock setlk {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// The owner that holds the lock.
        owner: LockOwner,
        /// The lock, or the range to release.
        lock: Lock,
        /// Whether to wait until it is free.
        wait: bool,
        /// A flock(2) lock of the whole handle instead of a POSIX lock of a range.
        flock: bool,
    } -> Done [locks(node, lock), waits(wait), lock_needs(node, handle, lock)];

    /// Size and free space of the tree (statvfs(3)).
    35 Query StatFs statfs {
        /// Any node of it.
        node: Node,
    } -> FsStat [];

    /// A device-specific command (ioctl(2)). Only commands whose data has the length their number states are passed.
    36 Change Ioctl ioctl {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// The command number.
        command: u32,
        /// The third argument as a number.
        argument: u64,
        /// Data the command reads.
        input: Bytes,
        /// The most data it may answer, in bytes.
        output_size: u32,
    } -> IoctlDone [anything(node)];

    /// Which I/O is possible now (poll(2)); with a key, a [`crate::Notice::Wake`] follows when that changes.
    37 Query Poll poll {
        /// The file.
        node: Node,
        /// An open handle of it.
        handle: Handle,
        /// The `POLL*` events of interest.
        events: u32,
        /// What to wake when one of them happens later.
        key: Option<u64>,
    } -> Events [];

    /// Returns `count` references to a node. Never fails; the answer is ignored.
    38 Query Forget forget {
        /// The node.
        node: Node,
        /// How many references.
        count: u64,
    } -> Done [returns(node, count)];

    /// Which of these permissions the caller has (access(2), NFS `ACCESS`); only asked where the door does not decide by
    /// itself.
    39 Query Access access {
        /// The file.
        node: Node,
        /// `R_OK`, `W_OK`, `X_OK` bits, or 0 for existence.
        mask: u32,
    } -> Granted [probes(mask)];

    /// Puts everything on stable storage (syncfs(2)).
    40 Query SyncFs syncfs {
        /// Any node of the tree.
        node: Node,
    } -> Done [syncs_tree()];

    /// One path of a node from the root, starting with `/`, as far as the driver knows. Drivers of trees of other hosts give the
    /// shortest one, by which the layer `contain` decides how far a symbolic link may climb.
    41 Query Locate locate {
        /// The node.
        node: Node,
    } -> Target [locates(node)];

    /// The directory that holds the directory `dir` (`..`): the root is its own. Counts one reference.
    ///
    /// For doors whose clients come with a handle of a directory and no path (NFS `LOOKUP` of `..`, name_to_handle_at(2)).
    42 Query Parent parent {
        /// The directory.
        dir: Node,
    } -> Entry [references(), searches(dir)];

    /// Finds the file that an earlier [`Entry`] had by its number and generation, also after a restart of the door, and counts one
    /// reference: from then on the number names this file. `ESTALE` when the number belongs to another file by now.
    ///
    /// For doors that give handles to their clients for ever (RFC 1813, section 2.3.3; name_to_handle_at(2)).
    43 Query Resolve resolve {
        /// The number.
        node: Node,
        /// The generation; `None` to take the file that has the number now (FUSE `LOOKUP` of `.`), whose generation the caller compares.
        generation: Option<Generation>,
    } -> Entry [references()];
}

bitflags! {
    /// Access mode and flags of open(2), with the numbers of Linux's generic ABI.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// Writing only (the access mode when neither this nor [`OpenFlags::READ_WRITE`] is set is reading only).
        const WRITE_ONLY = 0o1;
        /// Reading and writing.
        const READ_WRITE = 0o2;
        /// The file must not exist yet.
        const EXCL = 0o200;
        /// Empty the file.
        const TRUNC = 0o1000;
        /// Each write goes to the end.
        const APPEND = 0o2000;
        /// Do not wait.
        const NONBLOCK = 0o4000;
        /// Content is stable when a write returns.
        const DSYNC = 0o10000;
        /// Bypass the cache.
        const DIRECT = 0o40000;
        /// Do not update the access time.
        const NOATIME = 0o1000000;
        /// Of a layer, never of a program: the name is known not to exist, and the caller accepts predicted attributes of the new
        /// file. A tree that can predict them answers before the file was made, with [`crate::reply::OpenHow::PENDING_CREATE`].
        const ASYNC_CREATE = 1 << 31;
        // The kernel passes further bits through; keep them.
        const _ = !0;
    }

    /// Flags of renameat2(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` when the new name exists.
        const NOREPLACE = 1;
        /// Exchange the two names.
        const EXCHANGE = 2;
        /// Leave a whiteout at the old name.
        const WHITEOUT = 4;
    }

    /// Mode of fallocate(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct FallocateMode: u32 {
        /// The size does not grow.
        const KEEP_SIZE = 0x01;
        /// Make a hole.
        const PUNCH_HOLE = 0x02;
        /// Remove the range and close the gap.
        const COLLAPSE_RANGE = 0x08;
        /// Make the range read as zeroes.
        const ZERO_RANGE = 0x10;
        /// Open a gap.
        const INSERT_RANGE = 0x20;
        /// Give shared extents an own copy.
        const UNSHARE_RANGE = 0x40;
    }

    /// Flags of setxattr(2).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct XattrFlags: u32 {
        /// Fail with `EEXIST` when it exists.
        const CREATE = 1;
        /// Fail with `ENODATA` when it does not exist.
        const REPLACE = 2;
        /// An access list clears the set-group-id bit of its file: who sets it is not in the file's group (chmod(2)).
        const KILL_SGID = 1 << 31;
    }
}

macro_rules! flags_in_messages {
    ($($type:ty),*) => {
        $(impl Traverse for $type { fn traverse(&mut self, _: &mut dyn crate::Visit) {} }

        impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) { self.bits().put(out) }
            fn get(input: &mut Input) -> Result<Self, Malformed> {
                <$type>::from_bits(u32::get(input)?).ok_or(Malformed::new(stringify!($type)))
            }
        }

        impl Layout for $type {
            // A peer refuses flags that it does not know.
            const LAYOUT: u32 = layout_of(&[u32::LAYOUT, <$type>::all().bits()]);
        })*
    };
}
flags_in_messages!(OpenFlags, RenameFlags, FallocateMode, XattrFlags, AttrFields);

impl OpenFlags {
    /// Whether the access mode permits reading.
    pub fn reads(self) -> bool {
        !self.contains(OpenFlags::WRITE_ONLY)
    }

    /// Whether the access mode permits writing.
    pub fn writes(self) -> bool {
        self.intersects(OpenFlags::WRITE_ONLY.union(OpenFlags::READ_WRITE))
    }
}

/// What [`Seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub enum Whence {
    /// The next byte that is not in a hole.
    #[wire(3)]
    Data,
    /// The next hole; the end of the file counts as one.
    #[wire(4)]
    Hole,
}

/// The kind of a [`Lock`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub enum LockKind {
    /// Shared.
    #[wire(0)]
    Read,
    /// Exclusive.
    #[wire(1)]
    Write,
    /// No lock: releases the range.
    #[wire(2)]
    Unlock,
}

/// An advisory lock of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Traverse, Wire)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` for the end of the file wherever it is.
    pub end: u64,
    /// Shared, exclusive or none.
    pub kind: LockKind,
    /// The process that holds it, as `F_GETLK` reports it.
    pub pid: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_stable() {
        let mut numbers: Vec<u16> = OpCode::ALL.iter().map(|&op| op as u16).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), OpCode::ALL.len());
        assert_eq!(OpCode::Lookup as u16, 1);
        assert_eq!(OpCode::SyncFs as u16, 40);
    }

    #[test]
    fn the_table_describes_itself() {
        for &op in OpCode::ALL {
            assert_eq!(OpCode::from_name(op.name()), Some(op));
            assert!(!op.doc().is_empty() && !op.fields().is_empty(), "{op:?}");
        }
    }

    #[test]
    fn access_modes() {
        assert!(OpenFlags::empty().reads() && !OpenFlags::empty().writes());
        assert!(!OpenFlags::WRITE_ONLY.reads() && OpenFlags::WRITE_ONLY.writes());
        assert!(OpenFlags::READ_WRITE.reads() && OpenFlags::READ_WRITE.writes());
    }
}
