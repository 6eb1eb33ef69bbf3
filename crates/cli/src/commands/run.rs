// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger run`: one program with trees in its file system.

mod audit;
mod cow;
mod prefixes;
mod signals;
pub mod via;

use crate::automount::{Leads, Map, MapNames, schemes};
use crate::context::Context;
use crate::control::{ProgramPlace, ProgramView, copies};
use crate::cow::Overlay;
use crate::location::decoded;
use crate::messages::warn;
use crate::status::{Exits, Failure};
use crate::tree_options::TreeOptions;
use crate::trees::{Many, Tree};
use audit::Audit;
use clap::Args;
use outrigger_core::{Error, Groups, Runtime, Service, Stack};
use outrigger_door_fuse::{Connection, Options, Session};
use outrigger_door_intercept::{Launch, Launched, OneUser, Prefix, Scheme, Start, Urls, View};
use outrigger_host::allow_descriptors;
use outrigger_layer_demux::{Demux, Options as DemuxOptions, Silence};
use prefixes::{checked, read, split, there};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use signals::{Forwarding, caught};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::iter;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use via::{Begun, Via};

/// What the command is called.
const COMMAND: &str = "run";
/// How long the kernel may take to answer the first message.
const READY_DEADLINE: Duration = Duration::from_secs(10);
/// After how long it is said that a tree does not answer.
const SILENT: Duration = Duration::from_secs(10);
/// How often it is looked then whether a signal has come.
pub const POLL: Duration = Duration::from_millis(100);
/// How long storing what the program has written may take in the end.
pub const CLOSE_DEADLINE: Duration = Duration::from_secs(60);

/// Arguments of `run`.
///
/// Runs a program that finds trees in its file system, without privileges and without a
/// mount that others see:
///
///     outrigger run -- grep -r main /sftp/build@host/src
///     outrigger run --map /data=disk.img::/ -- make -C /data
///
/// Other hosts stand under /SCHEME/HOST (/sftp/USER@HOST:PORT, /ftp/HOST, ...), where the
/// root has no such name. PREFIX is an absolute path: a name in the root that need not
/// exist, or a directory, which the tree covers. The file $XDG_CONFIG_HOME/outrigger/mounts
/// has a line for each PREFIX that is always there:
///
///     PREFIX  LOCATION  [OPTION,...]
///
/// Words are quoted as for a shell, # begins a comment, and --map takes the place of a line
/// with the same PREFIX. An OPTION is one of the driver of the tree (`outrigger drivers
/// NAME` lists them), or ro. --opt is for all trees; options of one tree stand in its line,
/// or in ~/.ssh/config. A tree whose line has a wrong option fails when it is used (EINVAL),
/// and a line without the form above ends `run` at once, with 125.
///
/// Trees are opened when they are used. There is no prompt for a password: keys, ssh-agent and
/// ~/.netrc have to do. Why a tree cannot be opened is said on standard error, once for each
/// reason.
///
/// Local files are reached as always, and as fast. In the root itself nothing can be made,
/// and programs that become another user when they are executed (sudo) do not work, unless
/// the superuser runs them. Trees stay until every started process has ended. Ctrl-C during
/// that wait takes them away at once (ENOTCONN). Then what was written is stored; Ctrl-C
/// during that gives it up, with an error that names the files.
///
/// Where this system permits no user namespaces, or no /dev/fuse, the program's system calls
/// with paths are answered instead (--via seccomp): files of trees are fetched when they are
/// opened, and stored when they are closed. What cannot be stored is kept in
/// $XDG_STATE_HOME/outrigger/unsaved, and `run` then exits with 125 (or with the exit status
/// of a program that failed). Programs that look at many local files get code by which they
/// do so without the server (the gate); --no-gate leaves them as they are. Where that is
/// refused, too, or inside of another such run, the program is traced (--via ptrace), which
/// is slower, and ends with outrigger. `outrigger doctor` tries all ways.
///
/// With --urls, URLs are names of files, too: https://HOST/PATH is /https/HOST/PATH, where
/// there is no file of this name. This needs --via seccomp, the default then, or ptrace:
///
///     outrigger run --urls -- vim sftp://build@host/etc/motd
///
/// With --cow, the program sees all local files, and may change them: what it changes goes
/// to an overlay, and the real files stay as they are. `outrigger diff` shows the changes,
/// `outrigger commit` applies them to the real files, and `outrigger discard` gives them up;
/// until then, the next program that is run with the overlay goes on with it:
///
///     outrigger run --cow -- make install && outrigger diff
///
/// The program may change what its user may change. To try an installation into /usr, run it
/// as root.
///
/// Where no namespace can be made, this is done by answers to system calls, too (--via
/// seccomp, --via ptrace): nothing that changes a real file is left to the kernel, and
/// programs of 32 bits, mount(2) and chroot(2) are refused. What is open for reading when a
/// file is changed stays the real one.
///
/// /proc, /sys, /dev and /run stay those of the system. Trees stand under their prefixes as
/// without --cow, but are read only (EROFS): they have no overlay, and nothing outside
/// changes. LOCATIONs are those of real files, not of files in the overlay.
///
/// --audit writes a line of JSON for each operation of the program on what is served: with
/// --cow all local files, too, of which by seccomp and ptrace only those that are changed.
/// Fields are those of `outrigger trace --json`: time (seconds since 1970), id, pid, uid, op,
/// paths, args, state (done, failed, dropped), us (how long it took), and result and bytes,
/// or error (as ENOENT). Content is not in it. FILE is made for its user only; - is standard
/// error.
///
/// The exit status is that of the program, 128 and the number of the signal that ended it,
/// 127 when there is no such program, 126 when it cannot be executed, and 125 when
/// outrigger itself fails.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Run {
    /// What is shown.
    #[command(flatten)]
    trees: Trees,
    /// Keep changes of local files apart, in DIR (default: $XDG_STATE_HOME/outrigger/cow/default).
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with = "urls"
    )]
    cow: Option<Option<PathBuf>>,
    /// How the program comes to see trees.
    #[arg(long, value_name = "MECHANISM", default_value = "auto")]
    via: Via,
    /// By seccomp, have the server answer all calls with paths, also of local files.
    #[arg(long)]
    no_gate: bool,
    /// Say which mechanism is used, and why, and in the end how much it was used.
    #[arg(short, long)]
    verbose: bool,
    /// Write a line for each operation to FILE.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The trees that a program sees.
#[derive(Debug, Args)]
pub struct Trees {
    /// Show the tree of LOCATION at PREFIX.
    #[arg(long = "map", value_name = "PREFIX=LOCATION")]
    maps: Vec<OsString>,
    /// Read this file in place of $XDG_CONFIG_HOME/outrigger/mounts.
    #[arg(long, value_name = "FILE")]
    mounts: Option<PathBuf>,
    /// Show no trees but those of --map and the file.
    #[arg(long)]
    no_hosts: bool,
    /// Let URLs be names of files: https://HOST/PATH for /https/HOST/PATH. Needs --via seccomp (the default then) or ptrace.
    #[arg(long, conflicts_with = "no_hosts")]
    pub urls: bool,
    /// Refuse every change of the trees. Local files can still be changed; `run --cow` keeps such changes apart.
    #[arg(long)]
    read_only: bool,
}

/// A tree at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    prefix: PathBuf,
    location: OsString,
    options: String,
    /// The file and the line that say so; empty for `--map`.
    origin: String,
}

impl crate::run::Run for Run {
    const NAME: &'static str = COMMAND;
    const EXITS: Exits = Exits::Program;

    fn run(self, context: &Context) -> Result<(), Failure> {
        let unnamed = self.cow.as_ref().is_some_and(Option::is_none);
        let hint = if unnamed { cow::hint(&self.command)? } else { String::new() };
        let overlay = self.overlay()?;
        let shown = self.trees.shown()?;
        let (mut seen, prefixes) = self.seen(context, overlay.as_ref(), &shown)?;
        let audit = self.audit(context, &mut seen, &prefixes)?;
        let argv = self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let start = match &overlay {
            Some(overlay) => Start::Whole { empty: overlay.path().to_owned(), command: self.command },
            None => Start::Program(self.command),
        };
        let via = self.via.with_urls(self.trees.urls)?;
        let urls = self.trees.urls_of(&prefixes);
        let launch = Launch { prefixes, start };
        // By the gate, a program finds by itself that there is no local directory 'https:'.
        let gate = !self.no_gate && !self.trees.urls;
        let begun = via.begin(&launch, self.verbose, gate)?;
        let view = || {
            let apart = overlay.as_ref().map(|overlay| cow::apart(context, overlay, &seen.tree));
            let client = via::client(context, seen.trees(), Groups::UNKNOWN);
            Ok::<_, Failure>(View { prefixes: &launch.prefixes, urls, client, apart: apart.transpose()? })
        };
        // Where that is not possible, `outrigger status` lacks it.
        let _listed = ProgramView {
            argv,
            process: begun.process(),
            mechanism: begun.via().name(),
            overlay: overlay.as_ref().map(|overlay| overlay.path().display().to_string()),
            ..view_of(COMMAND, &shown, &launch.prefixes)
        }
        .list();
        let answered = match begun {
            Begun::Namespace(launched) => serve(context, &seen, launched).map(|status| (status, Ok(()))),
            Begun::Seccomp(filtered) => via::answer_filtered(context, view()?, filtered, self.verbose),
            Begun::Ptrace(traced) => via::answer_traced(context, view()?, traced, self.verbose),
        };
        let (status, stored) = answered.map_err(|failure| failure.and(&hint))?;
        let patience = context.options().timeout.unwrap_or(CLOSE_DEADLINE);
        let prefix = |path: &str| prefix_of(&launch.prefixes, path);
        // What is lost is said. The status is that of the program, but for 0.
        let closed =
            seen.many().map_or(Ok(()), |many| many.close_unless_cancelled(context, patience, prefix));
        let closed = stored.and(closed).and(audit.map_or(Ok(()), Audit::end));
        let code = code(status);
        if code != 0 || closed.is_ok() {
            context.end_with(code);
        }
        closed
    }
}

/// What the program sees.
struct Seen {
    /// The tree that is its root directory, or else the root of all trees.
    tree: Tree,
    /// The root of all trees, where they stand in a tree.
    within: Option<Tree>,
}

impl Seen {
    /// Both, as they are mounted.
    fn all(&mut self) -> impl Iterator<Item = &mut Tree> {
        iter::once(&mut self.tree).chain(&mut self.within)
    }

    /// The root of all trees, if there are any.
    fn trees(&self) -> &Tree {
        self.within.as_ref().unwrap_or(&self.tree)
    }

    /// The trees that were opened for it.
    fn many(&self) -> Option<&Many> {
        self.trees().many.as_ref()
    }
}

impl Run {
    /// The overlay that changes go to.
    fn overlay(&self) -> Result<Option<Overlay>, Failure> {
        let Some(dir) = &self.cow else { return Ok(None) };
        Overlay::make(&Overlay::dir(dir.as_deref())?).map(Some)
    }

    /// What the program is to see, and where trees stand in it.
    fn seen(
        &self,
        context: &Context,
        overlay: Option<&Overlay>,
        shown: &[Shown],
    ) -> Result<(Seen, Vec<Prefix>), Failure> {
        let Some(overlay) = overlay else {
            let (map, prefixes) = self.trees.plan(shown, is_in(Path::new("/")));
            return Ok((Seen { tree: tree(context, map, COMMAND)?, within: None }, prefixes));
        };
        let mut root = cow::tree(context, overlay)?;
        let machine = cow::Machine::of(context, overlay, &root);
        let (mut map, prefixes) = self.trees.plan(shown, |name| machine.has(name));
        // Trees have no overlay, and nothing outside changes.
        map.make_read_only();
        machine.prepare(&mut root, &prefixes)?;
        let TreeOptions { layer, opt, .. } = context.options();
        match layer.iter().chain(opt).next() {
            Some(given) if prefixes.is_empty() => Err(Failure::serious(format!(
                "'{given}' is for trees of --map and of hosts, and there are none: it is not for --cow"
            ))),
            _ => {
                let within = (!prefixes.is_empty()).then(|| tree(context, map, COMMAND)).transpose()?;
                Ok((Seen { tree: root, within }, prefixes))
            }
        }
    }

    /// Puts what --audit asks for on all that is seen.
    fn audit(
        &self,
        context: &Context,
        seen: &mut Seen,
        prefixes: &[Prefix],
    ) -> Result<Option<Audit>, Failure> {
        let Some(file) = &self.audit else { return Ok(None) };
        let audit = Audit::to(file, Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>)?;
        for tree in seen.all() {
            let places = if tree.many.is_some() { prefixes } else { &[] };
            audit.watch(tree, places)?;
        }
        Ok(Some(audit))
    }
}

/// Whether a directory has a name.
pub fn is_in(root: &Path) -> impl Fn(&str) -> bool {
    move |name| fs::symlink_metadata(root.join(name)).is_ok()
}

impl Trees {
    /// Everything that the user wants to see, each prefix once.
    pub fn shown(&self) -> Result<Vec<Shown>, Failure> {
        let mut all: Vec<Shown> = Vec::new();
        for map in &self.maps {
            let (prefix, location) = split(map)?;
            let prefix = checked(&prefix)?;
            if all.iter().any(|known| known.prefix == prefix) {
                return Err(Failure::serious(format!("--map names {} twice", prefix.display())));
            }
            all.push(Shown { prefix, location, options: String::new(), origin: String::new() });
        }
        let usual = || outrigger_host::users_config().map(|config| config.join("outrigger/mounts"));
        let file = match &self.mounts {
            Some(file) => Some(file.clone()),
            None => usual().map(there).transpose()?.flatten(),
        };
        for line in file.as_deref().map(read).transpose()?.unwrap_or_default() {
            if !all.iter().any(|known| known.prefix == line.prefix) {
                all.push(line);
            }
        }
        Ok(all)
    }

    /// The names in the root that is served, and where they stand for a program, whose root directory may have a name already.
    pub fn plan(&self, shown: &[Shown], has: impl Fn(&str) -> bool) -> (Map, Vec<Prefix>) {
        let mut map = if self.no_hosts { Map::default() } else { Map::of_hosts() };
        let mut prefixes = Vec::new();
        for scheme in schemes().filter(|_| !self.no_hosts) {
            let path = Path::new("/").join(scheme);
            if !has(scheme) && !shown.iter().any(|shown| shown.prefix == path) {
                prefixes.push(Prefix { path, name: scheme.into() });
            }
        }
        for (number, Shown { prefix, location, options, origin }) in shown.iter().enumerate() {
            let name = format!("map-{number}");
            map.add(&name, location, (options, origin));
            prefixes.push(Prefix { path: prefix.clone(), name: name.into() });
        }
        // A tree may stand in another one.
        prefixes.sort_by_key(|prefix| prefix.path.components().count());
        if self.read_only {
            map.make_read_only();
        }
        (map, prefixes)
    }

    /// Which URLs are names of files: of schemes whose hosts have one of these prefixes.
    pub fn urls_of(&self, prefixes: &[Prefix]) -> Urls {
        let is_shown = |scheme: &&str| prefixes.iter().any(|prefix| prefix.name == *scheme);
        let known = schemes().filter(|scheme| self.urls && is_shown(scheme));
        let schemes = known.map(|name| Scheme { name, decodes: READ_ONLY.contains(&name) });
        Urls::new(schemes.collect(), decoded)
    }
}

/// What `outrigger status` tells of the trees that a command shows.
pub fn view_of(command: &str, shown: &[Shown], prefixes: &[Prefix]) -> ProgramView {
    let source = |name: &OsStr| {
        let number = name.to_str().and_then(|name| name.strip_prefix("map-")?.parse::<usize>().ok());
        let mapped = number.and_then(|number| shown.get(number));
        mapped.map_or_else(
            || format!("{}://", name.display()),
            |Shown { location, options, .. }| {
                Leads { location: location.clone(), options: options.clone() }.shown()
            },
        )
    };
    let place = |prefix: &Prefix| ProgramPlace {
        path: prefix.path.display().to_string(),
        source: source(&prefix.name),
    };
    let (pid, places) = (std::process::id(), prefixes.iter().map(place).collect());
    ProgramView { pid, places, shown_by: command.to_owned(), ..ProgramView::default() }
}

/// The schemes of trees that cannot be changed.
const READ_ONLY: &[&str] = &["http", "https"];

/// The trees under one root, for this command.
pub fn tree(context: &Context, map: Map, command: &'static str) -> Result<Tree, Failure> {
    let options = context.options().clone().with_absolute_files()?;
    let names = Arc::new(MapNames::fixed(map, options, command));
    let usual = DemuxOptions::default();
    let limit = context.options().timeout.filter(|limit| !limit.is_zero());
    let chosen = DemuxOptions {
        idle: None,
        opening: limit.unwrap_or(usual.opening),
        looking_opens: true,
        silence: Some(Silence {
            after: SILENT,
            tell: Arc::new(move |location| silent(command, location, limit)),
        }),
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        ..usual
    };
    let demux = Demux::new(names.clone(), Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>, chosen);
    let many = Many { control: demux.control(), names };
    Ok(Tree::of_many(Arc::new(demux), many))
}

/// Says that programs wait for a tree.
fn silent(command: &str, location: &str, limit: Option<Duration>) {
    let hint = if limit.is_none() { " (--timeout SECONDS ends this)" } else { "" };
    let after = SILENT.as_secs();
    warn(format_args!(
        "outrigger {command}: '{location}' has not answered for {after} s; programs wait for it{hint}"
    ));
}

/// Where programs see the tree with this path below the root of all.
pub fn prefix_of(prefixes: &[Prefix], path: &str) -> String {
    let is_it = |prefix: &&Prefix| path.strip_prefix('/') == prefix.name.to_str();
    prefixes.iter().find(is_it).map_or_else(|| path.to_owned(), |prefix| prefix.path.display().to_string())
}

/// The tree for a FUSE mount. Below a user namespace with one user, the kernel would let no user write to files of others, whatever their
/// modes say.
fn mounted(tree: &Tree) -> Result<Arc<dyn Service>, Failure> {
    if !OneUser::is_needed() {
        return Ok(Arc::clone(&tree.service));
    }
    let one = OneUser::of_process().map_err(failed)?;
    let stack = Stack::new(Arc::clone(&tree.service)).push(one);
    stack.map(Stack::service).map_err(|error| Failure::serious(error.to_string()))
}

/// The trees cannot be served.
fn failed(error: io::Error) -> Failure {
    Failure::serious(format!("the trees cannot be served: {}", Error::from(error)))
}

/// Serves the trees by a FUSE device.
pub fn session(context: &Context, tree: &Tree, device: OwnedFd) -> Result<Session, Failure> {
    allow_descriptors();
    let is_root = rustix::process::geteuid().is_root();
    let options = Options {
        allow_other: is_root,
        default_permissions: is_root,
        passthrough: false,
        timeout: context.options().timeout.filter(|timeout| !timeout.is_zero()),
        ..Options::default()
    };
    let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
    let session =
        Session::serve(Connection::from(device), mounted(tree)?, runtime, options).map_err(failed)?;
    session.wait_ready(READY_DEADLINE).map_err(failed)?;
    Ok(session)
}

/// Serves the trees until the program has ended.
fn serve(context: &Context, seen: &Seen, launched: Launched) -> Result<ExitStatus, Failure> {
    let signals = caught().map_err(failed)?;
    let Launched { mut child, device, trees, connection, waiting } = launched;
    let mut sessions = vec![session(context, &seen.tree, device)?];
    if let Some((tree, device)) = seen.within.as_ref().zip(trees) {
        sessions.push(session(context, tree, device)?);
    }
    let (sessions, process) = (Arc::new(sessions), child.id());
    let own = Arc::clone(&sessions);
    let hurry = move || own.iter().for_each(|session| session.hurry_exits(process));
    let forwarding = Forwarding::start(signals, process, hurry).map_err(failed)?;
    let executed = waiting.go();
    let status = child.wait().map_err(failed)?;
    if let Err(why) = executed {
        context.end_with(code(status));
        return Err(Failure::serious(why));
    }
    let ends_within = |limit| sessions.iter().all(|session| session.wait_timeout(limit).is_some());
    let is_left = || !copies(connection).is_empty();
    forwarding.end(ends_within, is_left, &context.cancel).map_err(failed)?;
    Ok(status)
}

/// Whether the terminal sends its signals to this process, and so to the program.
fn is_in_foreground() -> bool {
    let group = fs::File::open("/dev/tty").and_then(|terminal| Ok(tcgetpgrp(terminal)?));
    group.is_ok_and(|group| group == getpgrp())
}

/// The exit status for that of the program.
fn code(status: ExitStatus) -> u8 {
    let number = status.code().or(status.signal().map(|signal| 128 + signal));
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mounts");
        fs::write(&file, "# a comment\n\n/data host:/srv ro\n'/a b'  disk.img  # another\n").unwrap();
        let shown = |prefix: &str, location: &str, options: &str, line: u32| Shown {
            prefix: prefix.into(),
            location: location.into(),
            options: options.into(),
            origin: format!("{}:{line}", file.display()),
        };
        let expected = [shown("/data", "host:/srv", "ro", 3), shown("/a b", "disk.img", "", 4)];
        assert_eq!(read(&file).unwrap(), expected);
        for (text, why) in [
            ("/data\n", ":1: PREFIX"),
            ("\nrelative mem:\n", ":2: 'relative'"),
            ("/ mem:\n", ":1: '/'"),
            ("/a/../b mem:\n", ".."),
            ("/a mem:\n//a/ mem:\n", ":2: a second '/a'"),
            ("/a 'mem:\n", ":1: "),
        ] {
            fs::write(&file, text).unwrap();
            let said = read(&file).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn maps_of_the_command_line_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = dir.path().join("mounts");
        fs::write(&mounts, "/a mem:\n/b mem:\n").unwrap();
        let maps = vec!["/a=host:/x=y".into(), "/c/d=mem:".into()];
        let trees = Trees { maps, mounts: Some(mounts), no_hosts: true, urls: false, read_only: false };
        let shown = trees.shown().unwrap();
        let all: Vec<_> = shown
            .iter()
            .map(|shown| (shown.prefix.to_str().unwrap(), shown.location.to_str().unwrap()))
            .collect();
        assert_eq!(all, [("/a", "host:/x=y"), ("/c/d", "mem:"), ("/b", "mem:")]);
        let (_, prefixes) = trees.plan(&shown, is_in(Path::new("/")));
        assert_eq!(prefixes.last().unwrap().path, Path::new("/c/d"));
        assert!(split(OsStr::new("/a")).is_err() && checked(Path::new("a")).is_err());
    }
}
