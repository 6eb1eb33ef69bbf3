// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages: one table of requests and replies.

use crate::field::{DecodeError, Dialect, Field, Input, List, Output, Text};
use crate::types::{Attrs, Lock, Qid, SetAttrs, Space, Stat};
use crate::{AttrMask, HEAD};
use bytes::{Bytes, BytesMut};

/// A request, tied to its reply.
pub trait Call: Into<Request> {
    /// What a server answers when it does it.
    type Reply: Into<Reply>;

    /// The reply, where it is one to such a request; otherwise it is given back.
    ///
    /// # Errors
    /// Another reply, such as an error.
    fn reply(reply: Reply) -> Result<Self::Reply, Box<Reply>>;
}

/// A whole message: `fill` appends the fields.
fn message(kind: u8, tag: u16, dialect: Dialect, fill: impl FnOnce(&mut Output)) -> BytesMut {
    let mut out = Output { bytes: BytesMut::with_capacity(64), dialect };
    0_u32.put(&mut out);
    kind.put(&mut out);
    tag.put(&mut out);
    fill(&mut out);
    let len = out.bytes.len() as u32;
    out.bytes[..4].copy_from_slice(&len.to_le_bytes());
    out.bytes
}

/// What goes before `len` bytes of content in a [`Twrite`]: together they are the whole message.
pub fn write_head(tag: u16, fid: u32, offset: u64, len: u32) -> BytesMut {
    let mut head = Request::from(Twrite { fid, offset, data: Bytes::new() }).encode(tag, Dialect::Linux);
    let (whole, at) = (head.len() as u32 + len, head.len() - 4);
    head[..4].copy_from_slice(&whole.to_le_bytes());
    head[at..].copy_from_slice(&len.to_le_bytes());
    head
}

macro_rules! side {
    ($(#[doc = $doc:literal])* $side:ident { $($number:literal $message:ident: $about:literal { $($field:ident: $type:ty),* })* }) => {
        $(
            #[doc = $about]
            #[derive(Debug, Clone, PartialEq, Eq)]
            #[allow(missing_docs, reason = "fields are called as in the protocol")]
            pub struct $message { $(pub $field: $type),* }

            impl From<$message> for $side {
                fn from(message: $message) -> $side {
                    $side::$message(message)
                }
            }
        )*

        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $side { $(#[doc = $about] $message($message)),* }

        impl $side {
            /// The number of its kind.
            pub const fn kind(&self) -> u8 {
                match self { $($side::$message(_) => $number),* }
            }

            /// The whole message.
            #[allow(unused_variables, reason = "some have no fields")]
            pub fn encode(&self, tag: u16, dialect: Dialect) -> BytesMut {
                message(self.kind(), tag, dialect, |out| match self {
                    $($side::$message($message { $($field),* }) => { $($field.put(out);)* })*
                })
            }

            /// Takes a whole message apart; gives its tag, too.
            ///
            /// # Errors
            /// Why it is none.
            pub fn decode(whole: &Bytes, dialect: Dialect) -> Result<(u16, Self), DecodeError> {
                let tag = crate::tag(whole).ok_or(DecodeError::Short)?;
                let input = &mut Input { rest: whole.slice(HEAD..), dialect };
                let message = match whole[4] {
                    $($number => { $(let $field = Field::get(input)?;)* $message { $($field),* }.into() })*
                    other => return Err(DecodeError::Kind(other)),
                };
                Ok((tag, message))
            }
        }
    };
}

impl Request {
    /// Whether only 9P2000.L has it: the other dialects begin with [`Tversion`].
    pub fn is_of_linux(&self) -> bool {
        self.kind() < 100
    }
}

impl Reply {
    /// The whole message in two parts, of which the second is content that is not copied: that of [`Rread`] and [`Rreaddir`].
    pub fn encode_parts(self, tag: u16, dialect: Dialect) -> (BytesMut, Bytes) {
        let kind = self.kind();
        let data = match self {
            Reply::Rread(Rread { data }) | Reply::Rreaddir(Rreaddir { data }) => data,
            other => return (other.encode(tag, dialect), Bytes::new()),
        };
        let mut head = message(kind, tag, dialect, |out| (data.len() as u32).put(out));
        let whole = (head.len() + data.len()) as u32;
        head[..4].copy_from_slice(&whole.to_le_bytes());
        (head, data)
    }
}

macro_rules! calls {
    ($($request:ident $reply:ident)*) => { $(
        impl Call for $request {
            type Reply = $reply;

            fn reply(reply: Reply) -> Result<$reply, Box<Reply>> {
                match reply { Reply::$reply(reply) => Ok(reply), other => Err(Box::new(other)) }
            }
        }
    )* };
}

side! {
    /// What a client asks.
    Request {
        8 Tstatfs: "The size of the file system, and how much is free (statfs(2))." { fid: u32 }
        12 Tlopen: "Opens a file or directory, with flags as open(2) has them." { fid: u32, flags: u32 }
        14 Tlcreate: "Makes a regular file in the directory `fid`, which stands for the open file then."
            { fid: u32, name: Text, flags: u32, mode: u32, gid: u32 }
        16 Tsymlink: "Makes a symbolic link." { dfid: u32, name: Text, target: Text, gid: u32 }
        18 Tmknod: "Makes a special file." { dfid: u32, name: Text, mode: u32, major: u32, minor: u32, gid: u32 }
        20 Trename: "Moves a file to another directory or name." { fid: u32, dfid: u32, name: Text }
        22 Treadlink: "The target of a symbolic link." { fid: u32 }
        24 Tgetattr: "Attributes (stat(2))." { fid: u32, mask: AttrMask }
        26 Tsetattr: "Changes attributes." { fid: u32, attrs: SetAttrs }
        30 Txattrwalk: "Makes `newfid` stand for the value of an extended attribute, or without a name for the names of all."
            { fid: u32, newfid: u32, name: Text }
        32 Txattrcreate: "Makes `fid` stand for the value of an extended attribute, which writes fill and [`Tclunk`] sets."
            { fid: u32, name: Text, size: u64, flags: u32 }
        40 Treaddir: "Lists a directory from `offset` on." { fid: u32, offset: u64, count: u32 }
        50 Tfsync: "Puts a file on stable storage." { fid: u32, data_only: u32 }
        52 Tlock: "Takes or releases a lock." { fid: u32, kind: u8, flags: u32, start: u64, length: u64, proc_id: u32, client_id: Text }
        54 Tgetlock: "Which lock stands in the way of this one." { fid: u32, lock: Lock }
        70 Tlink: "Gives a file another name." { dfid: u32, fid: u32, name: Text }
        72 Tmkdir: "Makes a directory." { dfid: u32, name: Text, mode: u32, gid: u32 }
        74 Trenameat: "Moves a name." { old_dfid: u32, old_name: Text, new_dfid: u32, new_name: Text }
        76 Tunlinkat: "Removes a name; with [`crate::UNLINK_DIRECTORY`] that of a directory." { dfid: u32, name: Text, flags: u32 }
        100 Tversion: "Begins a session." { msize: u32, version: Text }
        102 Tauth: "Begins a login." { afid: u32, uname: Text, aname: Text, n_uname: Option<u32> }
        104 Tattach: "Makes `fid` stand for the root of a tree." { fid: u32, afid: u32, uname: Text, aname: Text, n_uname: Option<u32> }
        108 Tflush: "The answer to an earlier request is not wanted any more." { oldtag: u16 }
        110 Twalk: "Makes `newfid` stand for what names lead to, one below the other." { fid: u32, newfid: u32, names: List<Text> }
        112 Topen: "Opens a file." { fid: u32, mode: u8 }
        114 Tcreate: "Makes a file, and opens it." { fid: u32, name: Text, perm: u32, mode: u8, extension: Option<Text> }
        116 Tread: "Reads content." { fid: u32, offset: u64, count: u32 }
        118 Twrite: "Writes content." { fid: u32, offset: u64, data: Bytes }
        120 Tclunk: "Gives a fid back." { fid: u32 }
        122 Tremove: "Removes a file, and gives its fid back." { fid: u32 }
        124 Tstat: "Attributes." { fid: u32 }
        126 Twstat: "Changes attributes." { fid: u32, len: u16, stat: Stat }
    }
}

side! {
    /// What a server answers.
    Reply {
        7 Rlerror: "Why a request of 9P2000.L was not done: a number of Linux." { ecode: u32 }
        9 Rstatfs: "Answers [`Tstatfs`]." { space: Space }
        13 Rlopen: "Answers [`Tlopen`]: how much content one message can have, or 0." { qid: Qid, iounit: u32 }
        15 Rlcreate: "Answers [`Tlcreate`]." { qid: Qid, iounit: u32 }
        17 Rsymlink: "Answers [`Tsymlink`]." { qid: Qid }
        19 Rmknod: "Answers [`Tmknod`]." { qid: Qid }
        21 Rrename: "Answers [`Trename`]." { }
        23 Rreadlink: "Answers [`Treadlink`]." { target: Text }
        25 Rgetattr: "Answers [`Tgetattr`]." { attrs: Attrs }
        27 Rsetattr: "Answers [`Tsetattr`]." { }
        31 Rxattrwalk: "Answers [`Txattrwalk`]: how long the value is." { size: u64 }
        33 Rxattrcreate: "Answers [`Txattrcreate`]." { }
        41 Rreaddir: "Answers [`Treaddir`]: [`crate::entries`]." { data: Bytes }
        51 Rfsync: "Answers [`Tfsync`]." { }
        53 Rlock: "Answers [`Tlock`]: [`crate::LockStatus`]." { status: u8 }
        55 Rgetlock: "Answers [`Tgetlock`]." { lock: Lock }
        71 Rlink: "Answers [`Tlink`]." { }
        73 Rmkdir: "Answers [`Tmkdir`]." { qid: Qid }
        75 Rrenameat: "Answers [`Trenameat`]." { }
        77 Runlinkat: "Answers [`Tunlinkat`]." { }
        101 Rversion: "Answers [`Tversion`]: what is spoken." { msize: u32, version: Text }
        103 Rauth: "Answers [`Tauth`]." { aqid: Qid }
        105 Rattach: "Answers [`Tattach`]." { qid: Qid }
        107 Rerror: "Why a request of 9P2000 and 9P2000.u was not done; in the latter with a number." { ename: Text, errno: Option<u32> }
        109 Rflush: "Answers [`Tflush`]: no reply to the other request follows." { }
        111 Rwalk: "Answers [`Twalk`]: with fewer files than there were names, `newfid` stands for nothing." { qids: List<Qid> }
        113 Ropen: "Answers [`Topen`]." { qid: Qid, iounit: u32 }
        115 Rcreate: "Answers [`Tcreate`]." { qid: Qid, iounit: u32 }
        117 Rread: "Answers [`Tread`]; nothing at the end." { data: Bytes }
        119 Rwrite: "Answers [`Twrite`]." { count: u32 }
        121 Rclunk: "Answers [`Tclunk`]." { }
        123 Rremove: "Answers [`Tremove`]." { }
        125 Rstat: "Answers [`Tstat`]." { len: u16, stat: Stat }
        127 Rwstat: "Answers [`Twstat`]." { }
    }
}

calls! {
    Tstatfs Rstatfs Tlopen Rlopen Tlcreate Rlcreate Tsymlink Rsymlink Tmknod Rmknod Trename Rrename
    Treadlink Rreadlink Tgetattr Rgetattr Tsetattr Rsetattr Txattrwalk Rxattrwalk Txattrcreate Rxattrcreate
    Treaddir Rreaddir Tfsync Rfsync Tlock Rlock Tgetlock Rgetlock Tlink Rlink Tmkdir Rmkdir
    Trenameat Rrenameat Tunlinkat Runlinkat Tversion Rversion Tauth Rauth Tattach Rattach Tflush Rflush
    Twalk Rwalk Topen Ropen Tcreate Rcreate Tread Rread Twrite Rwrite Tclunk Rclunk Tremove Rremove
    Tstat Rstat Twstat Rwstat
}
