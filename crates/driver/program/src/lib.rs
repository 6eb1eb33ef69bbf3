// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that a program in any language serves: it gets the messages of the core as `docs/PROTOCOL.md` describes them, on a
//! socket that is its standard input and output.
//!
//! # What is agreed at the start
//! Each side sends the magic and the version 0, which says that messages are agreed on one by one. Then this side sends an
//! [`Offer`]: the operations it may ask for, each with the number of its encoding
//! ([`OpCode::layout`](outrigger_core::OpCode::layout)). The program answers with an [`Answer`]: those it does, with its own
//! numbers. An operation whose numbers differ is not asked for. So a program that was written for one release works with
//! every other one that encodes the operations it does in the same way.
//!
//! # What a program need not care about
//! * **Dying.** A program that ends is started again. A request that changes nothing, or that was not sent, is asked again; a
//!   change whose reply did not come fails with `EIO`, because it may have been made. Files are opened again when their handle
//!   is used next. All this needs node numbers that mean the same file in every process of the program; one that says
//!   otherwise ([`Answer::persistent`]) is not started a second time.
//! * **Handles.** All opens of a file with the same access mode share one handle of the program, which is released when the
//!   last of them is closed.
//!
//! # Limits
//! Locks, poll and ioctl are not passed on, nor are notices of the program: what others change shows when the door's or the
//! cache's time has passed. Copies between two files of the tree are made by reads and writes.
#![forbid(unsafe_code)]

mod greeting;
mod handles;
mod life;
mod listing;
mod options;
mod place;

pub use greeting::{Answer, Offer};
pub use options::{DRIVER, OPTIONS, Options};

use handles::Handles;
use life::{Life, Lives, Lost, Starter};
use listing::Listings;
use outrigger_core::registry::Site;
use outrigger_core::reply::FsStat;
use outrigger_core::supervise::Suspect;
use outrigger_core::{
    Abilities, Answer as Later, Attr, Class, Cx, DriverClass, Errno, Error, Identity, Keep, Notify, OpCode,
    OpSet, Reply, Request, Result, Service, Traverse, Visit,
};
use place::Place;
use std::ffi::OsString;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Operations that are not passed on: see the limits above.
const NOT_PASSED_ON: OpSet =
    OpSet::of(&[OpCode::GetLock, OpCode::SetLock, OpCode::Poll, OpCode::Ioctl, OpCode::CopyRange]);

/// The size of a block of a program that does not say.
const BLOCK: u32 = 4096;

/// The driver.
pub struct Program {
    lives: Lives,
    handles: Handles,
    listings: Listings,
    abilities: Abilities,
    /// Held by the request that may be what the program dies of.
    alone: Mutex<()>,
}

impl Program {
    /// Starts `command`, a program and its arguments, and has it serve `location`.
    ///
    /// # Errors
    /// Why it cannot be started, or what it says about the location.
    pub fn start(
        command: Vec<OsString>,
        location: &[u8],
        options: Options,
        site: &Site<'_>,
    ) -> impl Future<Output = Result<Self>> + Send + use<> {
        let ops = OpSet::all().without(NOT_PASSED_ON);
        let offer = Offer::new(location, &options.passed, ops);
        let (max_listing, patience) = (options.max_listing, (options.timeout, site.hold));
        let (keep, runtime) = (site.keep.cloned(), Arc::clone(site.runtime));
        let place = Place::new(site.keep.map(|keep| &**keep));
        let starter = place.map(|place| Starter::new(command, offer, patience, place, runtime));
        async move { Program::serve(starter?, keep, ops, max_listing).await }
    }

    async fn serve(
        starter: Starter,
        keep: Option<Arc<dyn Keep>>,
        ops: OpSet,
        max_listing: usize,
    ) -> Result<Self> {
        let (lives, answer) = Lives::begin(starter).await?;
        if let Some(keep) = &keep {
            place::is_taken_over(&**keep, answer.persistent)?;
        }
        let spoken = greeting::spoken(ops, &answer);
        has_needed(spoken, &answer)?;
        let abilities = Abilities {
            identity: if answer.persistent { Identity::Persistent } else { Identity::ByPath },
            class: DriverClass::PassThrough,
            read_only: answer.read_only,
            stateless_files: !spoken.has(OpCode::Open),
            stateless_dirs: !spoken.has(OpCode::OpenDir),
            max_io: answer.max_io.clamp(4 << 10, 1 << 20),
            ..Abilities::new("program", String::from_utf8_lossy(&answer.tree), spoken)
        };
        let (handles, listings) = (Handles::new(spoken), Listings::new(max_listing));
        Ok(Program { lives, handles, listings, abilities, alone: Mutex::default() })
    }

    async fn ask(&self, cx: &Cx, request: Request) -> Result<Reply> {
        let mut suspect = Suspect::default();
        loop {
            let _alone = if suspect.is_suspicious() { Some(self.alone.lock().await) } else { None };
            let life = self.lives.current().await?;
            let lost = match self.attempt(&life, cx, &request).await {
                Ok(reply) => return Ok(reply),
                Err(lost) => lost,
            };
            suspect.lost(lost.sent);
            if suspect.is_poisonous() || !may_repeat(&request, &lost) {
                return Err(lost_during(&request, &lost));
            }
        }
    }

    /// Asks once, with handles of this life of the program.
    async fn attempt(&self, life: &Life, cx: &Cx, request: &Request) -> Result<Reply, Lost> {
        let mut request = request.clone();
        if request.ends().is_some() {
            return self.close(life, cx, request).await;
        }
        if let Err(reply) = self.handles.translate(life, cx, &mut request).await? {
            return Ok(reply);
        }
        let reply = with_blocks(fits(&request, life.ask(cx, request.clone()).await?));
        let reply = self.listings.bounded(&request, reply);
        Ok(self.handles.opened(life, cx, &request, reply).await)
    }

    /// One of those who share a handle closes it; the last one does so in the program.
    async fn close(&self, life: &Life, cx: &Cx, mut request: Request) -> Result<Reply, Lost> {
        match self.handles.close(life, &mut request) {
            true => life.ask(cx, request).await,
            false => Ok(Reply::Done(())),
        }
    }
}

/// Whether the program does what no tree can be without.
///
/// # Errors
/// `EPROTO` that names the first operation which is missing, or is encoded differently.
fn has_needed(spoken: OpSet, answer: &Answer) -> Result<()> {
    let needed = [OpCode::Lookup, OpCode::GetAttr, OpCode::ReadDir];
    let lists = spoken.has(OpCode::ReadDirPlus);
    let is_missing = |op: &OpCode| !(spoken.has(*op) || *op == OpCode::ReadDir && lists);
    let Some(missing) = needed.into_iter().find(is_missing) else { return Ok(()) };
    let (name, layout) = (missing.name(), missing.layout());
    let other = answer.operations.iter().find(|(number, _)| *number == missing as u16);
    Err(Errno::EPROTO.because(match other {
        Some((_, other)) => {
            format!("the program encodes {name} as {other:#010x}, this release as {layout:#010x}")
        }
        None => format!("the program does not do {name}"),
    }))
}

/// The longest reason of a program that is shown, in characters.
const REASON: usize = 1000;

/// The reason of a program as one line: a line break in it would look like another message.
pub(crate) fn in_one_line(error: &Error) -> Error {
    let shown = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    let reason =
        error.reason.as_ref().map(|reason| reason.chars().take(REASON).map(shown).collect::<String>().into());
    Error { errno: error.errno, reason }
}

/// The size of a file in a message that is larger than any file can be.
struct TooLarge(Option<u64>);

impl Visit for TooLarge {
    fn attr(&mut self, attr: &mut Attr) {
        if i64::try_from(attr.size).is_err() {
            self.0 = Some(attr.size);
        }
    }
}

/// A read that brings more than was asked for is no answer to it, and no file is as large as some programs say.
fn fits(request: &Request, mut reply: Reply) -> Reply {
    let mut sizes = TooLarge(None);
    reply.traverse(&mut sizes);
    if let Some(size) = sizes.0 {
        let why = format!("the program says that a file has {size} bytes: no file has 2^63 bytes or more");
        return Reply::Error(Errno::EIO.because(why));
    }
    match (request, &reply) {
        (_, Reply::Error(error)) => Reply::Error(in_one_line(error)),
        (Request::Read(op), Reply::Data(data)) if data.len() > op.len as usize => {
            let why = format!("the program answered {} bytes where {} were asked for", data.len(), op.len);
            Reply::Error(Errno::EIO.because(why))
        }
        _ => reply,
    }
}

/// Whether a request whose reply did not come may be asked again.
fn may_repeat(request: &Request, lost: &Lost) -> bool {
    !lost.sent || request.class() == Class::Query
}

fn lost_during(request: &Request, lost: &Lost) -> Error {
    let (op, why) = (request.op().name(), &lost.why);
    let perhaps = if may_repeat(request, lost) { "" } else { "; it may have been done" };
    Errno::EIO.because(format!("the program was lost during {op}: {why}{perhaps}"))
}

/// A program may leave out the sizes of blocks, which programs that call statfs(2) divide by.
fn with_blocks(reply: Reply) -> Reply {
    match reply {
        Reply::FsStat(stat) => {
            let frsize =
                [stat.frsize, stat.bsize, BLOCK].into_iter().find(|&size| size != 0).unwrap_or(BLOCK);
            let bsize = if stat.bsize == 0 { frsize } else { stat.bsize };
            Reply::FsStat(FsStat { bsize, frsize, ..stat })
        }
        other => other,
    }
}

impl Service for Program {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Later<'a> {
        if !self.abilities.ops.has(request.op()) {
            return Later::error(Errno::ENOSYS);
        }
        Later::later(async move { self.ask(cx, request).await.unwrap_or_else(Reply::Error) })
    }

    fn abilities(&self) -> Abilities {
        self.abilities.clone()
    }

    fn attach(&self, notify: Arc<dyn Notify>) {
        self.lives.attach(notify);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Node;
    use outrigger_core::ops::StatFs;
    use outrigger_core::reply::{Attrs, Ttl};

    #[test]
    fn the_reason_of_a_program_is_one_short_line() {
        let said = format!("no\noutrigger: all is well\x1b[31m{}", "x".repeat(5000));
        let reply =
            fits(&Request::StatFs(StatFs { node: Node::ROOT }), Reply::Error(Errno::EIO.because(said)));
        let Reply::Error(Error { errno: Errno::EIO, reason: Some(shown) }) = reply else {
            panic!("{reply:?}")
        };
        assert!(shown.starts_with("no\\noutrigger: all is well\\u{1b}[31mxx"), "{shown}");
        assert!(shown.len() < 2 * REASON && !shown.contains(char::is_control));
    }

    #[test]
    fn a_size_that_no_file_can_have_is_refused() {
        let request = Request::StatFs(StatFs { node: Node::ROOT });
        let told = |size| {
            let attr = Attr { size, ..Attr::default() };
            fits(&request, Reply::Attrs(Attrs { attr, ttl: Ttl::NEVER }))
        };
        assert!(matches!(told(i64::MAX as u64), Reply::Attrs(_)));
        let Reply::Error(Error { errno: Errno::EIO, reason: Some(why) }) = told(1 << 63) else {
            panic!("2^63 bytes are served")
        };
        assert!(why.contains("9223372036854775808 bytes"), "{why}");
    }

    #[test]
    fn a_size_of_blocks_is_never_zero() {
        for ((bsize, frsize), expected) in [
            ((0, 0), (4096, 4096)),
            ((512, 0), (512, 512)),
            ((0, 1024), (1024, 1024)),
            ((512, 1024), (512, 1024)),
        ] {
            let reply = with_blocks(Reply::FsStat(FsStat { bsize, frsize, ..FsStat::default() }));
            assert_eq!(
                reply,
                Reply::FsStat(FsStat { bsize: expected.0, frsize: expected.1, ..FsStat::default() })
            );
        }
    }
}
