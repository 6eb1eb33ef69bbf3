// SPDX-License-Identifier: MIT OR Apache-2.0
//! What fields of messages consist of.

use crate::field::{DecodeError, Dialect, Field, Input, Output};
use crate::{AttrMask, QidKind, SetMask, Text};
use bytes::BytesMut;

macro_rules! fields {
    ($(#[doc = $doc:literal])* $name:ident { $($(#[doc = $each:literal])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name { $($(#[doc = $each])* pub $field: $type,)* }

        impl Field for $name {
            fn get(input: &mut Input) -> Result<Self, DecodeError> {
                $(let $field = Field::get(input)?;)*
                Ok($name { $($field),* })
            }

            fn put(&self, out: &mut Output) {
                $(self.$field.put(out);)*
            }
        }
    };
}

macro_rules! bits {
    ($($flags:ident: $bits:ident),*) => { $(
        impl Field for $flags {
            fn get(input: &mut Input) -> Result<Self, DecodeError> {
                $bits::get(input).map($flags::from_bits_retain)
            }
            fn put(&self, out: &mut Output) {
                self.bits().put(out);
            }
        }
    )* };
}

bits!(QidKind: u8, AttrMask: u64, SetMask: u32);

/// The identity of a file at the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Qid {
    /// What kind of file.
    pub kind: QidKind,
    /// Changes with the content, where the server counts that.
    pub version: u32,
    /// Another one for each file.
    pub path: u64,
}

impl Field for Qid {
    fn get(input: &mut Input) -> Result<Self, DecodeError> {
        Ok(Qid { kind: Field::get(input)?, version: Field::get(input)?, path: Field::get(input)? })
    }

    fn put(&self, out: &mut Output) {
        self.kind.put(out);
        self.version.put(out);
        self.path.put(out);
    }
}

fields! {
    /// A point in time since 1970.
    Timespec {
        /// Whole seconds; a server on Linux sends those before 1970 as the two's complement.
        secs: u64,
        /// Nanoseconds.
        nanos: u64,
    }
}

fields! {
    /// Attributes, as [`crate::Rgetattr`] has them.
    Attrs {
        /// Which of them count.
        valid: AttrMask,
        /// The file.
        qid: Qid,
        /// Kind and permissions.
        mode: u32,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
        /// How many names it has.
        nlink: u64,
        /// Of a device, which one.
        rdev: u64,
        /// How many bytes it has.
        size: u64,
        /// What reads and writes like, in bytes.
        blksize: u64,
        /// How many blocks of 512 bytes it takes.
        blocks: u64,
        /// When it was read.
        atime: Timespec,
        /// When its content was changed.
        mtime: Timespec,
        /// When it was changed.
        ctime: Timespec,
        /// When it was made.
        btime: Timespec,
        /// The generation of its inode.
        generation: u64,
        /// Changes with the content.
        data_version: u64,
    }
}

fields! {
    /// What to set, as [`crate::Tsetattr`] has it.
    SetAttrs {
        /// Which of them count.
        valid: SetMask,
        /// Permissions.
        mode: u32,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
        /// The size.
        size: u64,
        /// The time of the last access.
        atime: Timespec,
        /// The time of the last modification.
        mtime: Timespec,
    }
}

fields! {
    /// The size of a file system, as [`crate::Rstatfs`] has it.
    Space {
        /// Its type, as statfs(2) tells it.
        kind: u32,
        /// How large a block is, in bytes.
        bsize: u32,
        /// Blocks.
        blocks: u64,
        /// Free blocks.
        bfree: u64,
        /// Those that users can have.
        bavail: u64,
        /// Files that there can be.
        files: u64,
        /// Files that there can be more.
        ffree: u64,
        /// Which file system.
        fsid: u64,
        /// How long names can be.
        namelen: u32,
    }
}

fields! {
    /// A range of a file that is locked, or free.
    Lock {
        /// What kind of lock: [`crate::LockType`].
        kind: u8,
        /// The first byte.
        start: u64,
        /// How many bytes; 0 for all up to the end.
        length: u64,
        /// The process that holds it, at its client.
        proc_id: u32,
        /// The client that holds it.
        client_id: Text,
    }
}

/// Attributes of 9P2000 and 9P2000.u, after their length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the fields are called as in stat(5) of Plan 9")]
pub struct Stat {
    pub kind: u16,
    pub dev: u32,
    pub qid: Qid,
    pub mode: u32,
    pub atime: u32,
    pub mtime: u32,
    pub length: u64,
    pub name: Text,
    pub uid: Text,
    pub gid: Text,
    pub muid: Text,
    pub extension: Option<Text>,
    pub n_uid: Option<u32>,
    pub n_gid: Option<u32>,
    pub n_muid: Option<u32>,
}

impl Stat {
    /// The file that says "leave it alone" in each of its fields, for [`crate::Twstat`].
    pub fn untouched() -> Self {
        let (none, nothing) = (Some(u32::MAX), Text::default());
        let qid = Qid { kind: QidKind::all(), version: u32::MAX, path: u64::MAX };
        Stat {
            kind: u16::MAX,
            dev: u32::MAX,
            qid,
            mode: u32::MAX,
            atime: u32::MAX,
            mtime: u32::MAX,
            length: u64::MAX,
            name: nothing.clone(),
            uid: nothing.clone(),
            gid: nothing.clone(),
            muid: nothing.clone(),
            extension: Some(nothing),
            n_uid: none,
            n_gid: none,
            n_muid: none,
        }
    }

    /// The bytes that it is in the content of a directory (read(5) of Plan 9).
    pub fn encode(&self, dialect: Dialect) -> BytesMut {
        let mut out = Output { bytes: BytesMut::new(), dialect };
        self.put(&mut out);
        out.bytes
    }

    fn put_fields(&self, out: &mut Output) {
        self.kind.put(out);
        self.dev.put(out);
        self.qid.put(out);
        self.mode.put(out);
        self.atime.put(out);
        self.mtime.put(out);
        self.length.put(out);
        [&self.name, &self.uid, &self.gid, &self.muid].into_iter().for_each(|text| text.put(out));
        self.extension.put(out);
        [self.n_uid, self.n_gid, self.n_muid].into_iter().for_each(|id| id.put(out));
    }
}

impl Field for Stat {
    fn get(input: &mut Input) -> Result<Self, DecodeError> {
        let len = u16::get(input)?;
        let input = &mut Input { rest: input.take(len.into())?, dialect: input.dialect };
        Ok(Stat {
            kind: Field::get(input)?,
            dev: Field::get(input)?,
            qid: Field::get(input)?,
            mode: Field::get(input)?,
            atime: Field::get(input)?,
            mtime: Field::get(input)?,
            length: Field::get(input)?,
            name: Field::get(input)?,
            uid: Field::get(input)?,
            gid: Field::get(input)?,
            muid: Field::get(input)?,
            extension: Field::get(input)?,
            n_uid: Field::get(input)?,
            n_gid: Field::get(input)?,
            n_muid: Field::get(input)?,
        })
    }

    fn put(&self, out: &mut Output) {
        let start = out.bytes.len();
        0_u16.put(out);
        self.put_fields(out);
        let len = (out.bytes.len() - start - 2) as u16;
        out.bytes[start..start + 2].copy_from_slice(&len.to_le_bytes());
    }
}
