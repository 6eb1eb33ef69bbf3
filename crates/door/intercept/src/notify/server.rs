// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server: threads that wait for calls of programs, and answer them.

use super::apart::{Apart, Overlay};
use super::caught::{ByFilter, Caught};
use super::contents::Contents;
use super::decode::{Asked, At};
use super::gate::{Grafts, is_odd};
use super::listener::Listener;
use super::mirror::Mirror;
use super::names::{Found, How, Names, Where, above, as_path};
use super::open::Opening;
use super::place::{FormerRunDirectory, RunDirectory};
use super::process::Process;
use super::source::{Call, Source};
use super::turns::Turns;
use super::{COMMAND, say};
use crate::failed;
use crate::kept::{DETACH, STORED};
use crate::launch::Prefix;
use crate::urls::Urls;
use outrigger_client::{Asking, Client};
use outrigger_core::{Errno, Result, SetAttrs};
use rustix::process::geteuid;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::Duration;

/// How often it is looked whether programs have closed what they write.
const LOOK: Duration = Duration::from_millis(100);

/// What a call gets.
pub(crate) enum Reply {
    /// The kernel does it as it is.
    Pass,
    /// A number.
    Value(i64),
    /// A descriptor, and whether execve(2) closes it.
    File(OwnedFd, bool),
    /// It has been answered.
    Answered,
}

/// Answers calls of programs.
pub(crate) struct Server {
    pub(crate) source: Arc<dyn Source>,
    /// What calls take that come by a filter.
    filter: Option<ByFilter>,
    pub(crate) names: Names,
    urls: Urls,
    /// Whether the user knows that URLs with passwords are refused.
    told_of_passwords: Once,
    /// Whether the user knows that there are programs that cannot be looked at.
    told_of_unread: Once,
    pub(crate) told_of_another_root: Once,
    /// Whether the user knows that locks are those of one run.
    pub(crate) told_of_locks: Once,
    /// Whether the user knows that requests to open files are refused.
    pub(crate) told_of_requests: Once,
    pub(crate) mirror: Mirror,
    /// Whether programs have directories of trees.
    gave: AtomicBool,
    /// Threads that are about to begin a call again, and the path in the mirror that it has then.
    pub(crate) redirected: Mutex<HashMap<i32, Vec<u8>>>,
    pub(crate) user: u32,
    turns: Turns,
    /// How many calls have come.
    calls: AtomicU64,
    /// What is found when trees are shown no more.
    without_trees: Names,
    /// The same trees without anyone to ask: what leads there is `ENOTCONN`.
    closed_trees: Names,
    /// The copies of servers that were killed: nothing is stored from them.
    former: Vec<Names>,
    is_detached: AtomicBool,
    /// Takes what was found, and gives it back to the trees: these take their time for that, too.
    found: Sender<Vec<Where>>,
}

/// What programs see.
pub struct View<'a> {
    /// Where trees stand.
    pub prefixes: &'a [Prefix],
    /// Which URLs are names of files.
    pub urls: Urls,
    /// The trees.
    pub client: Client,
    /// Where changes of local files go, if they are kept apart.
    pub apart: Option<Apart>,
}

/// Programs whose calls are answered.
pub struct Notified {
    server: Arc<Server>,
    place: RunDirectory,
    /// Programs have copies of earlier servers open, and may write to them.
    former: Vec<FormerRunDirectory>,
    keep: PathBuf,
}

impl Notified {
    /// Answers the calls of `caught`, which sees a `view`; this process does so once, for `command`. Content that was looked at is in a
    /// private directory below `base`; content that cannot be stored goes to the directory `keep`. With `gate`, for which the filter was
    /// made, programs reach local files by themselves where that is possible.
    ///
    /// # Errors
    /// A sentence about what cannot be made.
    pub fn serve(
        (caught, command): (Caught, &'static str),
        view: View<'_>,
        base: &Path,
        keep: PathBuf,
        gate: bool,
    ) -> std::result::Result<Self, String> {
        let View { prefixes, urls, client, apart } = view;
        let overlay = apart.map(|apart| Arc::new(Overlay::new(apart)));
        let _ = COMMAND.set(command);
        let mirrors = match &caught {
            Caught::Filtered(kept) => kept.mirrors.clone(),
            Caught::Traced(_) => Vec::new(),
        };
        // Before they are taken for those of servers that no program needs.
        let former = mirrors.iter().filter_map(|mirror| FormerRunDirectory::of(mirror)).collect();
        let place = RunDirectory::make(base, &keep)?;
        let contents = Contents::new(place.written(), keep.clone())
            .map_err(failed("files cannot be watched (inotify)"))?;
        let names = Names::new(prefixes, Some(client), &place.mirror()).map_err(|error| error.to_string())?;
        let names = names.keeping_apart(overlay);
        let closed_trees = Names::new(prefixes, None, &place.mirror()).map_err(|error| error.to_string())?;
        let (source, filter) = caught.source(&names, prefixes, gate)?;
        let (found, given_back) = channel::<Vec<Where>>();
        let give_back = move || given_back.into_iter().for_each(drop);
        thread::Builder::new().name("give-back".into()).spawn(give_back).map_err(failed("no thread"))?;
        let server = Arc::new(Server {
            source,
            filter,
            names,
            urls,
            told_of_passwords: Once::new(),
            told_of_unread: Once::new(),
            told_of_another_root: Once::new(),
            told_of_locks: Once::new(),
            told_of_requests: Once::new(),
            mirror: Mirror::new(place.mirror(), contents),
            gave: AtomicBool::new(false),
            redirected: Mutex::default(),
            user: geteuid().as_raw(),
            turns: Turns::default(),
            calls: AtomicU64::new(0),
            without_trees: Names::without_trees(&place.mirror()),
            closed_trees,
            former: mirrors.iter().map(|mirror| Names::without_trees(mirror)).collect(),
            is_detached: AtomicBool::new(false),
            found,
        });
        server.start_thread().map_err(failed("no thread"))?;
        let watching = Arc::clone(&server);
        let watch = move || watching.turns.watch(|| watching.start_thread().is_ok());
        thread::Builder::new().name("turns".into()).spawn(watch).map_err(failed("no thread"))?;
        let attending = Arc::clone(&server);
        let attend = move || {
            // What is not stored then is stored in the end.
            let _ = attending.mirror.contents.attend();
        };
        thread::Builder::new().name("store".into()).spawn(attend).map_err(failed("no thread"))?;
        if server.filter.is_some() {
            let told = Arc::clone(&server);
            let hear = move || told.hear();
            thread::Builder::new().name("keeper".into()).spawn(hear).map_err(failed("no thread"))?;
        }
        Ok(Notified { server, place, former, keep })
    }

    /// Whether no program is left; waits so long for that.
    pub fn ends_within(&self, limit: Duration) -> bool {
        self.server.source.ends_within(limit)
    }

    /// How many calls have come until now, and how often a process got the gate; `None` where none gets it.
    pub fn counts(&self) -> (u64, Option<u64>) {
        (self.server.calls.load(Ordering::Relaxed), self.server.grafts().map(|(grafts, _)| grafts.count()))
    }

    /// Whether trees are shown no more.
    pub fn is_detached(&self) -> bool {
        self.server.is_detached.load(Ordering::Acquire)
    }

    /// Shows no trees any more: calls are about local files from now on. What is open stays open.
    pub fn detach(&self) {
        self.server.detach();
    }

    /// Stores what programs close, in a thread, as a tree may not answer. Something is received each time that files are still open for
    /// writing, and the end when none is.
    ///
    /// # Errors
    /// Those of starting the thread.
    pub fn store_closed(&self) -> io::Result<Receiver<()>> {
        let (sender, written) = channel();
        let server = Arc::clone(&self.server);
        let store = move || {
            while server.mirror.contents.are_written() && sender.send(()).is_ok() {
                if server.source.ends_within(LOOK) {
                    return;
                }
            }
        };
        thread::Builder::new().name("written".into()).spawn(store)?;
        Ok(written)
    }

    /// Closes trees, stores what programs have written and removes the copies. A sentence is answered about each file that could not be stored.
    pub fn finish(self) -> Vec<String> {
        let early = !self.ends_within(Duration::ZERO);
        if let (Some(filter), false) = (&self.server.filter, early) {
            filter.keeper.wait();
        }
        self.server.mirror.contents.end();
        let mut lost = self.server.mirror.contents.finish(early);
        lost.extend(self.former.into_iter().filter_map(|former| former.keep(&self.keep)));
        self.place.remove();
        lost
    }
}

impl Server {
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let server = Arc::clone(self);
        thread::Builder::new().name("calls".into()).spawn(move || server.serve()).map(drop)
    }

    /// Answers calls until there are no more.
    fn serve(self: &Arc<Self>) {
        let noted = self.filter.as_ref().map(|filter| (&filter.progress, filter.progress.slot()));
        self.turns.lead();
        loop {
            self.turns.wait();
            match self.source.receive() {
                Ok(Some(call)) => {
                    if let Some((progress, slot)) = noted {
                        progress.begin(slot, &call);
                    }
                    self.handle(&call);
                    noted.iter().for_each(|(_, slot)| slot.end());
                }
                Ok(None) if self.source.ends_within(Duration::ZERO) => return,
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    fn detach(&self) {
        if !self.is_detached.swap(true, Ordering::AcqRel) {
            self.filter.iter().for_each(|filter| filter.keeper.say(DETACH));
        }
    }

    /// Does what the keeper says: another process may want the trees to be taken away.
    fn hear(&self) {
        let Some(ByFilter { keeper, .. }) = &self.filter else { return };
        while keeper.is_to_detach() {
            self.detach();
            while self.mirror.contents.are_written() && !self.source.ends_within(LOOK) {}
            keeper.say(STORED);
        }
    }

    /// The programs that reach local files by themselves, if any may.
    fn grafts(&self) -> Option<(&Grafts, &Arc<Listener>)> {
        self.filter.as_ref().and_then(|filter| Some((filter.grafts.as_ref()?, &filter.listener)))
    }

    /// By what calls are answered when no tree is asked any more: where there are none, or where they are closed. In an overlay trees take no
    /// changes, and nothing is local.
    fn last_names(&self) -> Option<&Names> {
        if self.is_detached.load(Ordering::Acquire) {
            return Some(&self.without_trees);
        }
        (self.mirror.contents.is_ending() && self.names.overlay().is_none()).then_some(&self.closed_trees)
    }

    /// A tree is about to be asked. Another thread waits for calls if that takes long.
    pub(crate) fn asks(&self) {
        self.turns.asks();
    }

    fn handle(self: &Arc<Self>, call: &Call) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(last) = self.last_names() {
            let mut all = self.former.iter().chain([last]);
            return match all.try_for_each(|names| names.check(call)) {
                Ok(()) => self.pass(call),
                Err(error) => self.source.answer(call, Err(error.errno.0)),
            };
        }
        let mut places = Vec::new();
        let answer = catch_unwind(AssertUnwindSafe(|| self.answer(call, &mut places)));
        match answer.unwrap_or_else(|_| Err(Errno::EIO.because(crate::DEFECT))) {
            Ok(Reply::Pass) => self.pass(call),
            Ok(Reply::Value(value)) => self.source.answer(call, Ok(value)),
            Ok(Reply::File(file, close)) => self.source.give(call, file, close),
            Ok(Reply::Answered) => {}
            Err(error) => self.source.answer(call, Err(error.errno.0)),
        }
        if places.iter().any(|place| place.tree().is_some()) {
            // The thread that takes it lives as long as this.
            let _ = self.found.send(places);
        }
    }

    /// Has the kernel do a call as it is, or the process do such calls by itself from this one on.
    fn pass(&self, call: &Call) {
        let begins_again = match (self.grafts(), i64::from(call.data.nr)) {
            (None, _) => Ok(false),
            (Some((grafts, listener)), libc::SYS_seccomp | libc::SYS_prctl) => grafts.close(listener, call),
            (Some((grafts, _)), libc::SYS_execve | libc::SYS_execveat) => {
                grafts.forget(call.pid);
                Ok(false)
            }
            (Some((grafts, listener)), _) => Ok(grafts.is_time(call) && {
                // The program is stopped for that, and may take its time.
                self.asks();
                grafts.graft(listener, call)
            }),
        };
        match begins_again {
            Ok(true) => {}
            Ok(false) => self.source.pass(call),
            // The program would end at its next call with a path.
            Err(_) => self.source.answer(call, Err(libc::EACCES)),
        }
    }

    /// Says to all programs that relative paths may begin in copies from now on.
    ///
    /// # Errors
    /// They would not know it.
    pub(crate) fn gives_directories(&self) -> Result<()> {
        self.gave.store(true, Ordering::Relaxed);
        self.warns_gates()
    }

    fn warns_gates(&self) -> Result<()> {
        Ok(self.grafts().map_or(Ok(()), |(grafts, _)| grafts.memory().mark_odd())?)
    }

    /// The same if a program is about to have a directory of /proc or /dev, or the private one of this server.
    pub(crate) fn notice(&self, process: Process, request: &Asked) -> Result<()> {
        let (Asked::Open { at, .. } | Asked::ChangeDir { at }) = request else { return Ok(()) };
        let makes =
            matches!(request, Asked::Open { flags, .. } if flags & (libc::O_CREAT | libc::O_ACCMODE) != 0);
        if self.grafts().is_none_or(|(grafts, _)| grafts.memory().is_odd()) || makes {
            return Ok(());
        }
        let start = if at.path.starts_with(b"/") { Vec::new() } else { process.file(at.dir)? };
        let path = [&start[..], b"/", &at.path].concat();
        // What is not there the kernel does not find either.
        if self.names.may_be_private(&path) || is_odd(as_path(&path)).unwrap_or(false) {
            return self.warns_gates();
        }
        Ok(())
    }

    /// Has all programs ask about everything where a process has threads: one may change where the paths of another one begin, between
    /// the look of the gate and that of the kernel.
    ///
    /// # Errors
    /// They would not know it.
    pub(crate) fn closes_gates(&self, process: Process) -> Result<()> {
        match self.grafts() {
            Some((grafts, _)) if process.has_threads() => Ok(grafts.memory().close()?),
            _ => Ok(()),
        }
    }

    /// Whether another thread may change the working directory, or a descriptor, between the look-up here and that of the kernel.
    pub(crate) fn may_move(&self, process: Process) -> bool {
        self.gave.load(Ordering::Relaxed) && process.has_threads() && process.has_root()
    }

    /// Whether this path of a call may, and would be another one then.
    ///
    /// # Errors
    /// Gates would not know it.
    fn moves(&self, process: Process, request: &Asked, (at, how): (&At, How)) -> Result<bool> {
        let is_plain = how.resolve == 0 && !matches!(request, Asked::Execute { .. });
        let is_relative = !at.path.is_empty() && !at.path.starts_with(b"/");
        if !is_plain || !is_relative || !self.may_move(process) {
            return Ok(false);
        }
        self.closes_gates(process).map(|()| true)
    }

    /// The answer to a call.
    fn answer(self: &Arc<Self>, call: &Call, places: &mut Vec<Where>) -> Result<Reply> {
        let _asking = Asking::for_process(call.pid);
        let process = Process { thread: call.pid.cast_signed() };
        let request = match Asked::of(call) {
            Ok(Some(request)) => request,
            Err(error) if error.errno == Errno::EPERM => return self.unread(call, process),
            Err(error) if self.names.overlay().is_some() => return Err(error),
            // What cannot be read the kernel cannot read either.
            Ok(None) | Err(_) => return Ok(Reply::Pass),
        };
        self.former.iter().try_for_each(|former| former.check(call))?;
        if let Some(reply) = self.without_path(call, process, &request) {
            return reply;
        }
        if matches!(&request, Asked::MakeDir { at, .. } if self.urls.would_be_hidden(&at.path)) {
            return Err(Errno::EPERM.because("all URLs of the scheme would lead into that directory"));
        }
        for (at, how) in request.places() {
            let moves = self.moves(process, &request, (at, how))?;
            let (changes, opens) = (request.changes(), matches!(request, Asked::Open { .. }));
            places.push(self.find(process, at, How { moves, changes, opens, ..how })?);
        }
        if places.iter().any(|place| place.apart().is_some()) {
            return self.apart(call, process, request, places);
        }
        if places.iter().all(|place| place.tree().is_none()) {
            return self.locally(call, process, &request, places);
        }
        if !self.source.waits(call) {
            return Ok(Reply::Answered);
        }
        if !process.is_of(self.user) {
            return Err(Errno::EACCES.because("a program of another user"));
        }
        match &places[..] {
            [Where::Tree(found)] => self.at_one(call, process, request, found),
            [from, to] => self.at_two(process, &request, (from.tree(), to.tree())),
            _ => Ok(Reply::Pass),
        }
    }

    /// The answer to a call of a program whose memory may not be read: its paths must not lead to local files in place of those of a tree.
    fn unread(&self, call: &Call, process: Process) -> Result<Reply> {
        self.names.check_unread(call, process).map(|()| Reply::Pass).map_err(|_| {
            self.told_of_unread.call_once(|| {
                say(format_args!(
                    "process {}: its program may be executed and not read, so that its paths are not known; where trees cover local directories, it gets EACCES",
                    process.thread
                ));
            });
            Errno::EACCES.into()
        })
    }

    /// The file that a call names.
    pub(crate) fn find(self: &Arc<Self>, process: Process, at: &At, how: How) -> Result<Where> {
        let url = self.url(process, at)?.map(|path| At { path, ..*at });
        let how = How { seen: self.mirror.contents.stored(), ..how };
        process.find(&self.names, url.as_ref().unwrap_or(at), how, &|| self.asks())
    }

    /// The path that a URL stands for, if that is what a call names.
    fn url(self: &Arc<Self>, process: Process, at: &At) -> Result<Option<Vec<u8>>> {
        let Some(url) = self.urls.find(&at.path) else { return Ok(None) };
        let scheme = At { path: at.path[..url.end].to_vec(), follow: false, ..*at };
        if !self.is_missing(process, &scheme) {
            return Ok(None);
        }
        if url.has_password {
            self.told_of_passwords.call_once(|| {
                say(
                    "a URL with a password is not the name of a file, as programs show these: ~/.netrc has a place for it",
                );
            });
            return Err(Errno::EACCES.into());
        }
        let exists = |path: &[u8]| {
            let written = At { path: path.to_vec(), ..*at };
            matches!(self.find(process, &written, How::default()), Ok(Where::Tree(found)) if found.inode.is_some())
        };
        Ok(Some(self.urls.path(&url, exists)))
    }

    /// Whether a name is not there, in a directory that is.
    fn is_missing(self: &Arc<Self>, process: Process, at: &At) -> bool {
        match self.find(process, at, How::default()) {
            Ok(Where::Tree(found)) if found.inode.is_some() => self.urls.is_of_hosts(above(&found.path)),
            Ok(Where::Tree(found)) => found.tree.is_some(),
            Ok(Where::Local) => process.lacks(at.dir, &at.path),
            Ok(Where::Beyond(path) | Where::Fixed(path)) => process.lacks(at.dir, &path),
            Ok(Where::Apart(_)) => false,
            Err(_) => false,
        }
    }

    /// Does what is asked for about one file.
    fn at_one(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: Asked,
        found: &Found,
    ) -> Result<Reply> {
        let memory = process.memory();
        let done = |()| Ok(Reply::Value(0));
        match request {
            Asked::Open { at, flags, .. } if flags & libc::O_PATH != 0 => {
                // The kernel passes no such descriptor on.
                self.again(call, &self.place_of(found, flags)?, Vec::new(), &[(at.argument, 0)])
            }
            Asked::Open { at, .. } if !self.source.comes_again() && found.is_fifo() => {
                // It waits for others there: the program does that, and no one here.
                let real = self.mirror.copy(&found.path, found.there()?)?;
                self.again(call, &real, Vec::new(), &[(at.argument, 0)])
            }
            Asked::Open { flags, mode, .. } => self.open(call, found, Opening { flags, mode }),
            Asked::Stat { to, .. } => {
                self.stat(found).and_then(|bytes| memory.write(to, &bytes)).and_then(done)
            }
            Asked::Statx { flags, mask, to, .. } => {
                self.statx(found, flags, mask).and_then(|bytes| memory.write(to, &bytes)).and_then(done)
            }
            Asked::Access { mode, .. } => self.access(found, mode).and_then(done),
            Asked::ReadLink { to, size, .. } => {
                memory.cut(to, size, &found.there()?.readlink()?).map(Reply::Value)
            }
            Asked::ChangeDir { .. } => self.change_directory(call, found),
            Asked::Execute { at } => self.execute(call, found, &at),
            Asked::MakeDir { mode, .. } => self.make_directory(process, found, mode).and_then(done),
            Asked::MakeNode { mode, device, .. } => {
                self.make_node(process, found, mode, device).and_then(done)
            }
            Asked::Remove { directory, .. } => self.remove(found, directory).and_then(done),
            Asked::SymLink { target, .. } => self.make_link(found, &target).and_then(done),
            Asked::SetMode { mode, .. } => {
                self.set(found, SetAttrs { mode: Some(mode & 0o7777), ..SetAttrs::default() }).and_then(done)
            }
            Asked::SetOwner { uid, gid, .. } => {
                self.set(found, SetAttrs { uid, gid, ..SetAttrs::default() }).and_then(done)
            }
            Asked::SetSize { size, .. } => self.set_size(found, size).and_then(done),
            Asked::SetTimes { atime, mtime, .. } => {
                self.set(found, SetAttrs { atime, mtime, ..SetAttrs::default() }).and_then(done)
            }
            Asked::StatFs { to, .. } => {
                self.statfs(found).and_then(|bytes| memory.write(to, &bytes)).and_then(done)
            }
            Asked::GetXattr { name, to, size, .. } => {
                memory.all(to, size, &self.xattr(found, &name)?).map(Reply::Value)
            }
            Asked::ListXattr { to, size, .. } => memory.all(to, size, &self.xattrs(found)?).map(Reply::Value),
            Asked::SetXattr { name, value, flags, .. } => {
                self.set_xattr(found, &name, value, flags).and_then(done)
            }
            Asked::RemoveXattr { name, .. } => self.remove_xattr(found, &name).and_then(done),
            Asked::Watch { watcher, mask, .. } => self.watch(process, found, watcher, mask).map(Reply::Value),
            Asked::FileHandle { .. } => Err(Errno::EOPNOTSUPP.into()),
            Asked::Bind { .. } | Asked::Connect { .. } => Err(Errno::EOPNOTSUPP.into()),
            // They name no file, or two.
            _ => Ok(Reply::Pass),
        }
    }

    /// Does what is asked for about two names, of which one at least is in a tree.
    fn at_two(
        &self,
        process: Process,
        request: &Asked,
        (from, to): (Option<&Found>, Option<&Found>),
    ) -> Result<Reply> {
        match (request, from, to) {
            (Asked::Rename { flags, .. }, Some(from), Some(to)) => self.rename(from, to, *flags)?,
            (Asked::Link { .. }, Some(from), Some(to)) => self.link(from, to)?,
            (_, Some(from), None) => {
                from.there()?;
                return Err(Errno::EXDEV.into());
            }
            (Asked::Rename { from, .. } | Asked::Link { from, .. }, ..) => {
                process.exists(from.dir, &from.path)?;
                return Err(Errno::EXDEV.into());
            }
            _ => return Ok(Reply::Pass),
        }
        Ok(Reply::Value(0))
    }
}
