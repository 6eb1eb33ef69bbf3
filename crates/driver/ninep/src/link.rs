// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to a server, made again when it is lost, and the trees that it has.

use crate::dialect;
use crate::inner::{Inner, Me};
use crate::options::{Options, Where};
use crate::wire::{Fault, Session, Terms};
use outrigger_core::{Cx, Errno, Error, Name, OpCode, Result, lock};
use outrigger_proto_ninep::{Dialect, Text};
use outrigger_toolkit_remote::{Authority, SshProcess, Stream, connect_tcp, repeated, within};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
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
    /// By whom, and until when it is not asked again.
    refused: HashMap<(u32, Vec<u8>), Instant>,
}

impl Trees {
    /// Whether a user need not ask for the tree of this name: that was refused a moment ago, or there is a tree below.
    fn has_none(&self, uid: u32, aname: &[u8]) -> bool {
        let is_above = |tree: &Vec<u8>| tree.strip_prefix(aname).is_some_and(|rest| rest.starts_with(b"/"));
        let refused = self.refused.get(&(uid, aname.to_vec()));
        refused.is_some_and(|until| Instant::now() < *until) || self.attached.iter().any(is_above)
    }

    fn refuses(&mut self, uid: u32, aname: Vec<u8>) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.clear();
        }
        self.refused.insert((uid, aname), Instant::now() + REFUSED);
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
                let mut refused = Errno::EPROTO.because("there is no dialect to ask for");
                for at in 0..terms.offers.len() {
                    let spawn = |connection| runtime.spawn(Box::pin(until_lost(connection, Arc::clone(&me))));
                    let stream = stream(&place, &options).await?;
                    match Session::start(stream, (limit, &runtime), (&terms, at), spawn).await? {
                        Ok(session) => {
                            dialect.get_or_init(|| session.dialect);
                            return Ok(session);
                        }
                        Err(error) => refused = error,
                    }
                }
                Err(refused)
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
                Err(_) => lock(&self.trees).refuses(uid, aname),
            }
        }
        Ok(None)
    }

    /// Whether the server has one tree that needs no name: otherwise paths begin with the name of one.
    pub(crate) async fn find_aname(&self) -> Result<Option<Vec<u8>>> {
        if let Some(aname) = &self.options.aname {
            let found = self.with(self.own_user(), |session| async move {
                session.root(self.own_user(), &self.uname, aname.as_bytes()).await
            });
            let refused = |error: Error| {
                let why = error.why();
                error
                    .errno
                    .because(format!("the server does not let {} attach to '{aname}': {why}", self.uname))
            };
            return found.await.map(|_| Some(aname.clone().into_bytes())).map_err(refused);
        }
        self.with(self.own_user(), |session| async move {
            match session.root(self.own_user(), &self.uname, b"").await {
                Ok(_) => Ok(Some(Vec::new())),
                Err(Fault::Known(_)) => Ok(None),
                Err(lost) => Err(lost),
            }
        })
        .await
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

async fn stream(place: &Place, options: &Options) -> Result<Box<dyn Stream>> {
    let limit = options.timeout;
    if !options.command.is_empty() {
        return Ok(Box::new(started(&options.command)?));
    }
    Ok(match place {
        Place::Tcp { host, port } => Box::new(connect_tcp(host, *port, limit).await?),
        Place::Unix(path) => {
            let connect = UnixStream::connect(path);
            Box::new(within(limit, format!("connecting to {}", path.display()), connect).await?)
        }
    })
}

/// Starts a program, whose standard input and output are the other end of what is returned.
fn started(command: &[OsString]) -> Result<UnixStream> {
    let (stream, theirs) = UnixStream::pair()?;
    let theirs = theirs.into_std()?;
    theirs.set_nonblocking(false)?;
    let theirs = OwnedFd::from(theirs);
    let streams = [theirs.try_clone()?.into(), theirs.into(), Stdio::inherit()];
    let (mut process, _) = SshProcess::spawn(command, streams)?;
    // It ends with the stream, or else with this process.
    tokio::spawn(async move { process.wait().await });
    Ok(stream)
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
