// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a server, made again when it is lost, and the trees that it has.

use crate::dialect;
use crate::inner::{Inner, Me};
use crate::options::{Options, Where};
use crate::wire::{Fault, Session, Terms};
use outrigger_core::{Cx, Errno, Error, Name, OpCode, Result, Runtime, lock};
use outrigger_proto_ninep::{Dialect, Text};
use outrigger_toolkit_remote::{Authority, Carrier, SshProcess, Stream, connect_reserved, repeated, within};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// The port of 9P servers.
const PORT: u16 = 564;
/// For how long it is not asked again for a tree that the server has refused, and how many of these are remembered.
const REFUSED: Duration = Duration::from_secs(60);
const REFUSED_MAX: usize = 1024;

/// How soon a connection that did not last is made again for locks.
const BRIEF: Duration = Duration::from_secs(1);

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// What is known of the connection.
#[derive(Default)]
pub(crate) enum Present {
    #[default]
    None,
    /// It is being made.
    Dialing(watch::Receiver<Option<Result<Arc<Session>>>>),
    Open(Arc<Session>),
}

impl Place {
    /// Reads `[USER@]HOST[:PORT]`, or `unix:` and the path of a socket with its slashes as `%2F`; gives the user, too.
    pub(crate) fn parse(at: &str) -> Result<(Self, Option<String>)> {
        let (user, rest) = at.split_once('@').map_or((None, at), |(user, rest)| (Some(user), rest));
        if let Some(path) = rest.strip_prefix("unix:") {
            // The user of an authority is decoded: so is a path in its place.
            let path = Authority::parse(&format!("{path}@host"))?.user.unwrap_or_default();
            return Ok((Place::Unix(path.into()), user.map(str::to_owned)));
        }
        let server = Authority::parse(at)?;
        if server.password.is_some() {
            return Err(Errno::EINVAL.because("9p: there is no login with a password: write USER@HOST"));
        }
        Ok((Place::Tcp { host: server.host, port: server.port.unwrap_or(PORT) }, server.user))
    }

    /// Whether it is on this machine for sure, and no port is asked for.
    fn is_local(&self) -> bool {
        matches!(self, Place::Unix(_))
    }

    /// As a LOCATION has it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Place::Tcp { host, port: PORT } => format!("9p://{host}/"),
            Place::Tcp { host, port } => format!("9p://{host}:{port}/"),
            Place::Unix(path) => format!("9p:unix:{}", path.display()),
        }
    }
}

/// A connection, made when it is needed.
#[derive(Default)]
pub(crate) struct Line(Arc<Mutex<Present>>);

impl Line {
    pub(crate) fn finish(&self) {
        if let Present::Open(session) = &*lock(&self.0) {
            session.mux.finish();
        }
    }
}

/// What names the server attaches to, and does not.
#[derive(Default)]
pub(crate) struct Trees {
    attached: HashSet<Vec<u8>>,
    /// By whom, until when it is not asked again, and what the server has answered.
    refused: HashMap<(u32, Vec<u8>), (Instant, Error)>,
}

impl Trees {
    /// Whether a user need not ask for the tree of this name: that was refused a moment ago, or there is a tree below.
    fn has_none(&self, uid: u32, aname: &[u8]) -> bool {
        let refused = self.refused.get(&(uid, aname.to_vec()));
        refused.is_some_and(|(until, _)| Instant::now() < *until) || self.is_above(aname)
    }

    /// Whether there is a tree below this name.
    fn is_above(&self, aname: &[u8]) -> bool {
        let is_below = |tree: &Vec<u8>| tree.strip_prefix(aname).is_some_and(|rest| rest.starts_with(b"/"));
        self.attached.iter().any(is_below)
    }

    fn refuses(&mut self, uid: u32, aname: Vec<u8>, error: Error) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.insert((uid, aname), (Instant::now() + REFUSED, error));
    }

    /// Why a user has nothing by this name, nor below it, as far as the server tells: others, as diod, answer `EPERM` in either case.
    fn refusal(&self, uid: u32, aname: &[u8]) -> Option<&Error> {
        let (_, error) = self.refused.get(&(uid, aname.to_vec())).filter(|_| !self.is_above(aname))?;
        matches!(error.errno, Errno::ENOENT | Errno::EACCES).then_some(error)
    }
}

impl Inner {
    /// Does `work` by the connection there is for a user, and again by another one where that is lost: but not when the server was silent for
    /// as long as an operation may take.
    pub(crate) async fn with<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        uid: u32,
        work: impl Fn(Arc<Session>) -> F,
    ) -> Result<T> {
        let (work, end) = (&work, Instant::now() + self.options.timeout);
        let attempt = async || match work(self.session(uid).await?).await {
            Err(Fault::Lost(error)) if error.errno == Errno::ETIMEDOUT && Instant::now() >= end => {
                Err(Fault::Known(error))
            }
            outcome => outcome,
        };
        let done = repeated(|_| attempt()).await;
        done.map_err(|fault| match fault {
            Fault::Lost(error) | Fault::Known(error) => error,
            Fault::Refused(never) => match never {},
        })
    }

    /// The connection for a user. Where there is none, a task of its own makes it, which goes on when the caller is cancelled.
    async fn session(&self, uid: u32) -> Result<Arc<Session>> {
        let line = &self.lines[usize::from(uid != 0)];
        let mut dialed = {
            let mut present = lock(&line.0);
            match &*present {
                Present::Open(session) if session.mux.is_open() => return Ok(Arc::clone(session)),
                Present::Dialing(dialed) => dialed.clone(),
                _ => {
                    let (sender, dialed) = watch::channel(None);
                    *present = Present::Dialing(dialed.clone());
                    self.dial(line, sender);
                    dialed
                }
            }
        };
        let outcome = dialed.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(Errno::ENOTCONN.because("the program is ending")))
    }

    fn dial(&self, line: &Line, sender: watch::Sender<Option<Result<Arc<Session>>>>) {
        let (present, outage, place) = (Arc::clone(&line.0), Arc::clone(&self.outage), self.place.clone());
        let (terms, dialect) = (self.terms(), Arc::clone(&self.dialect));
        let (runtime, options, me) = (Arc::clone(&self.runtime), self.options.clone(), Arc::clone(&self.me));
        let limit = options.timeout;
        self.runtime.spawn(Box::pin(async move {
            let dial = async || {
                let mut refused = (Errno::EPROTO.because("there is no dialect to ask for"), None);
                for at in 0..terms.offers.len() {
                    let spawn = |connection| runtime.spawn(Box::pin(until_lost(connection, Arc::clone(&me))));
                    let (stream, program) = reach(&place, &options).await?;
                    match Session::start(stream, (limit, &runtime), (&terms, at), spawn).await {
                        Ok(Ok(session)) => {
                            program.into_iter().for_each(SshProcess::stays);
                            dialect.get_or_init(|| session.dialect);
                            return Ok(session);
                        }
                        Ok(Err(error)) => refused = (error, program),
                        Err(error) => return Err(ended(error, program).await),
                    }
                }
                let refused = ended(refused.0, refused.1).await;
                match (options.dialect, dialect.get()) {
                    (Some(wanted), None) => {
                        Err(unspoken(&runtime, (&place, &options), (wanted, &terms), refused).await)
                    }
                    _ => Err(refused),
                }
            };
            let dialed = outage.connect(limit, dial).await;
            *lock(&present) =
                dialed.as_ref().map_or(Present::None, |session| Present::Open(Arc::clone(session)));
            let is_there = dialed.is_ok();
            sender.send_replace(Some(dialed));
            if is_there {
                lock_again(&me).await;
            }
        }));
    }

    /// What to ask a server for. A tree stays what it is: so it speaks one dialect as long as it is there.
    fn terms(&self) -> Terms {
        let wanted = self.dialect.get().copied().or(self.options.dialect);
        let offers = wanted.map_or_else(|| dialect::ALL.to_vec(), |wanted| vec![wanted]);
        Terms { offers, people: Arc::clone(&self.people) }
    }

    /// The dialect that is spoken; before the first connection 9P2000.L.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect.get().copied().unwrap_or(Dialect::Linux)
    }

    /// The user who asks, as the server gets it: as root the one whom the request is of, where users have numbers.
    pub(crate) fn uid(&self, cx: &Cx) -> u32 {
        match self.options.uid {
            Some(uid) => uid,
            None if self.asks_as_each() => cx.cred.uid,
            None => self.own_uid,
        }
    }

    /// Whether the dialect has requests for an operation.
    pub(crate) fn has(&self, op: OpCode) -> Result<()> {
        let dialect = self.dialect();
        if !dialect::lacks(dialect).has(op) {
            return Ok(());
        }
        let (dialect, op) = (dialect.name(), op.name());
        Err(Errno::ENOSYS.because(format!("the server speaks {dialect}, which has no request for {op}")))
    }

    /// Whether locks can hold where the user wants them to.
    ///
    /// # Errors
    /// `EINVAL` for locks at a server that has no requests for them.
    pub(crate) fn has_wanted_locks(&self) -> Result<()> {
        match (self.options.locks, self.dialect()) {
            (Some(Where::Server), dialect @ (Dialect::Unix | Dialect::Plain)) => {
                let dialect = dialect.name();
                Err(Errno::EINVAL
                    .because(format!("locks=server: the server speaks {dialect}, which has no locks")))
            }
            _ => Ok(()),
        }
    }

    /// Whether the server tells when attributes were changed last; otherwise that seems to be when the content was.
    pub(crate) fn has_ctime(&self) -> bool {
        self.dialect() == Dialect::Linux
    }

    /// Whether requests are made as the users who make them.
    pub(crate) fn asks_as_each(&self) -> bool {
        self.options.uid.is_none() && self.own_uid == 0 && self.dialect() != Dialect::Plain
    }

    /// Where to walk from to what has these names in the tree, and what names are left: `None` above all that the server attaches.
    pub(crate) async fn start(
        &self,
        session: &Arc<Session>,
        uid: u32,
        names: &[Name],
    ) -> Result<Option<(u32, Vec<Text>)>, Fault> {
        let rest = |at: usize| names[at..].iter().map(text).collect::<Result<Vec<_>>>();
        if let Some(aname) = &self.aname {
            return Ok(Some((session.root(uid, &self.uname, aname).await?, rest(0)?)));
        }
        let ends = || {
            let mut path = Vec::new();
            names.iter().enumerate().map(move |(at, name)| {
                path.push(b'/');
                path.extend_from_slice(name);
                (at + 1, path.clone())
            })
        };
        let known = ends().find(|(_, aname)| lock(&self.trees).attached.contains(aname));
        if let Some((end, aname)) = known {
            return Ok(Some((session.root(uid, &self.uname, &aname).await?, rest(end)?)));
        }
        for (end, aname) in ends() {
            if lock(&self.trees).has_none(uid, &aname) {
                continue;
            }
            match session.root(uid, &self.uname, &aname).await {
                Ok(root) => {
                    lock(&self.trees).attached.insert(aname);
                    return Ok(Some((root, rest(end)?)));
                }
                Err(lost @ Fault::Lost(_)) => return Err(lost),
                Err(Fault::Known(error)) => lock(&self.trees).refuses(uid, aname, error),
                Err(Fault::Refused(never)) => match never {},
            }
        }
        // The root may be passed: other paths may be let in.
        match ends().last().and_then(|(_, aname)| self.refusal(uid, &aname)) {
            Some(refused) => Err(Fault::Known(refused)),
            None => Ok(None),
        }
    }

    /// The error for a user who has nothing by the name of a tree, nor below it, if the server tells so.
    pub(crate) fn refusal(&self, uid: u32, aname: &[u8]) -> Option<Error> {
        let error = lock(&self.trees).refusal(uid, aname)?.clone();
        Some(self.refused(uid, aname, &error))
    }

    /// The error for a tree that the server does not let a user attach to.
    fn refused(&self, uid: u32, aname: &[u8], error: &Error) -> Error {
        let (name, why) = (aname.escape_ascii(), error.why());
        if error.errno == Errno::ENOENT {
            return error.errno.because(format!("the server has no tree '{name}'"));
        }
        let who = match &*self.uname {
            "" => format!("the user {uid}"),
            uname => format!("{uname} (user {uid})"),
        };
        let is_low = self.own_uid == 0 || self.place.is_local() || !self.options.command.is_empty();
        let port = match error.errno {
            Errno::EACCES if !is_low => {
                "; it may take ports below 1024 only, as `outrigger serve 9p` does without --insecure: root has such a port"
            }
            _ => "",
        };
        error.errno.because(format!("the server does not let {who} attach to '{name}': {why}{port}"))
    }

    /// Whether the server has one tree that needs no name: otherwise paths begin with the name of one.
    pub(crate) async fn find_aname(&self) -> Result<Option<Vec<u8>>> {
        let uid = self.own_user();
        let aname = self.options.aname.as_deref().unwrap_or_default().as_bytes();
        let attached = self.with(uid, |session| async move {
            match session.root(uid, &self.uname, aname).await {
                Ok(_) => Ok(Ok(())),
                Err(Fault::Known(error)) => Ok(Err(error)),
                Err(lost) => Err(lost),
            }
        });
        match attached.await? {
            Ok(()) => Ok(Some(aname.to_vec())),
            Err(error) if self.options.aname.is_some() => Err(self.refused(uid, aname, &error)),
            Err(error) => {
                lock(&self.trees).refuses(uid, Vec::new(), error);
                Ok(None)
            }
        }
    }

    /// The user of what is not asked for by anyone.
    pub(crate) fn own_user(&self) -> u32 {
        self.options.uid.unwrap_or(self.own_uid)
    }
}

/// A name, as it is sent.
pub(crate) fn text(name: &Name) -> Result<Text> {
    Text::new(name.as_bytes().to_vec()).ok_or_else(|| Errno::ENAMETOOLONG.into())
}

/// Runs a connection. Who has locks by it may do nothing else with the file, so another one is made for them at once.
async fn until_lost(connection: impl Future<Output = ()>, me: Me) {
    let soon = Instant::now() + BRIEF;
    connection.await;
    if me.get().and_then(Weak::upgrade).is_some_and(|inner| inner.locks.take_lost()) {
        // A server that hangs up again and again is not asked all the time.
        tokio::time::sleep_until(soon).await;
        lock_again(&me).await;
    }
}

async fn lock_again(me: &Me) {
    if let Some(inner) = me.get().and_then(Weak::upgrade) {
        inner.lock_all_again().await;
    }
}

/// A new connection, and the program at its other end if there is one.
async fn reach(place: &Place, options: &Options) -> Result<(Box<dyn Stream>, Option<SshProcess>)> {
    let limit = options.timeout;
    if !options.command.is_empty() {
        let (stream, program) = started(&options.command)?;
        return Ok((Box::new(stream), Some(program)));
    }
    let stream: Box<dyn Stream> = match place {
        // Servers may take clients only that the superuser of their machine has started.
        Place::Tcp { host, port } => {
            Box::new(connect_reserved(host, *port, limit, &AtomicU16::default()).await?)
        }
        Place::Unix(path) => {
            let connect = UnixStream::connect(path);
            Box::new(within(limit, format!("connecting to {}", path.display()), connect).await?)
        }
    };
    Ok((stream, None))
}

/// The error of a connection on which nothing could be agreed, with what its program has said at last.
async fn ended(error: Error, program: Option<SshProcess>) -> Error {
    match program {
        Some(program) => Box::new(program).last_words(error).await,
        None => error,
    }
}

/// The error for a server that does not speak the dialect which the user wants, with the one that it would speak.
async fn unspoken(
    runtime: &Arc<dyn Runtime>,
    (place, options): (&Place, &Options),
    (wanted, terms): (Dialect, &Terms),
    refused: Error,
) -> Error {
    let others: Vec<Dialect> = dialect::ALL.into_iter().filter(|other| *other != wanted).collect();
    let terms = Terms { offers: others, people: Arc::clone(&terms.people) };
    for at in 0..terms.offers.len() {
        let Ok((stream, _program)) = reach(place, options).await else { break };
        // It is dropped before it asks for anything: there is nothing to run.
        match Session::start(stream, (options.timeout, runtime), (&terms, at), drop).await {
            Ok(Ok(session)) => {
                let (wanted, spoken) = (wanted.name(), session.dialect.name());
                return Errno::EPROTO.because(format!(
                    "dialect={wanted}: the server speaks {spoken} and not that; leave the option out"
                ));
            }
            Ok(Err(_)) => {}
            // One that is silent would be waited for again.
            Err(_) => break,
        }
    }
    refused
}

/// Starts a program, whose standard input and output are the other end of what is returned.
fn started(command: &[OsString]) -> Result<(UnixStream, SshProcess)> {
    let (stream, theirs) = UnixStream::pair()?;
    let theirs = theirs.into_std()?;
    theirs.set_nonblocking(false)?;
    let theirs = OwnedFd::from(theirs);
    let streams = [theirs.try_clone()?.into(), theirs.into(), Stdio::piped()];
    let (mut process, name) = SshProcess::spawn(command, streams)?;
    let errors = process.stderr.take().ok_or(Errno::EIO)?;
    Ok((stream, SshProcess::new(Some(process), errors, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_hosts_or_sockets() {
        for (text, expected, user) in [
            ("h", Place::Tcp { host: "h".into(), port: 564 }, None),
            ("u@[::1]:5640", Place::Tcp { host: "::1".into(), port: 5640 }, Some("u")),
            ("unix:%2Frun%2Fa%20b", Place::Unix("/run/a b".into()), None),
            ("u@unix:%2Fs", Place::Unix("/s".into()), Some("u")),
        ] {
            assert_eq!(Place::parse(text), Ok((expected, user.map(str::to_owned))), "{text}");
        }
        assert!(Place::parse("u:p@h").is_err());
    }
}
