// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve nfs`: trees by NFS version 3.

use super::exports::{Exported, Options as OfExport, Terms, WORDS, Whom, anonymous, map};
use super::state::{State, Whole};
use crate::context::Context;
use crate::logging;
use crate::messages::output_failed;
use crate::status::Failure;
use crate::trees::{self, Tree};
use clap::Args;
use outrigger_core::{Error, IdMap, Service, Stack, StackError};
use outrigger_door_nfs::{self as door, Callers, Network, PORT, Paths, Server, needs_paths, number_of};
use outrigger_guard::tell_manager;
use outrigger_layer_closesim::{CloseSim, Control as Closes, Options as Opens};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_permissions::Permissions;
use outrigger_layer_readonly::ReadOnly;
use outrigger_layer_simulate::Simulate;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Files of a tree whose numbers are remembered.
pub const HELD: usize = 1 << 15;
/// How long calls that run may take in the end.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What is said without being asked for: who was refused, and calls that failed.
const MESSAGES: &str = "outrigger_door_nfs=warn";

/// Arguments of `serve nfs`.
///
/// NFS, MOUNT and portmap answer at one port, so no other program is needed. What to type at a client with Linux is printed for each
/// export. Who is refused is told on standard error.
///
/// Clients keep locks by themselves (`nolock`): this server refuses them (ENOLCK).
#[derive(Debug, Args)]
#[command(
    override_usage = "outrigger serve nfs [OPTIONS] LOCATION\n       outrigger serve nfs [OPTIONS] --export PATH=LOCATION... [--export-options PATH=OPTION,...]..."
)]
pub struct Nfs {
    /// The tree that is exported as `/`.
    #[arg(value_name = "LOCATION", required_unless_present = "export")]
    location: Option<OsString>,
    /// Export the tree LOCATION as PATH; can be repeated.
    #[arg(long, value_name = "PATH=LOCATION", value_parser = clap::value_parser!(Exported))]
    export: Vec<Exported>,
    /// Options of the export PATH alone, in the words of exports(5) where these have a meaning: ro, rw, allow=NETWORK, insecure,
    /// secure, root_squash, no_root_squash, all_squash, anonuid=UID, anongid=GID, map=CLIENT:SERVER, map_group=CLIENT:SERVER; and
    /// those of its driver. What is not said is as for
    /// all exports.
    #[arg(long, value_name = "PATH=OPTION,...", value_parser = clap::value_parser!(OfExport))]
    export_options: Vec<OfExport>,
    /// Listen at this address, port, or both. A port alone is one of 127.0.0.1; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049", value_parser = address)]
    listen: SocketAddr,
    /// Serve clients in this network only, as in 192.0.2.0/24; can be repeated. The default is this machine: add 127.0.0.0/8 to keep it.
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Accept clients at ports of 1024 and more, as `insecure` of exports(5). Any program on a machine that may connect can then claim
    /// to be any user.
    #[arg(long)]
    insecure: bool,
    /// Treat these users of clients as the anonymous user. The default is root; for a server that does not run as root it is all.
    #[arg(long, value_name = "WHO")]
    squash: Option<Whom>,
    /// The user CLIENT of clients is the user SERVER of the exported trees, by number, and clients see SERVER's files as those of CLIENT;
    /// can be repeated. --squash does not apply to mapped users: `--squash all --map 1000:501` serves that user, and others as the
    /// anonymous one. A user who is not mapped keeps the number, unless the map gives it to another user on the other side: then the
    /// server takes the user for the anonymous one, and clients see the owner 65534.
    #[arg(long, value_name = "CLIENT:SERVER")]
    map: Vec<String>,
    /// The same for groups.
    #[arg(long, value_name = "CLIENT:SERVER")]
    map_group: Vec<String>,
    /// The anonymous user and group, by number. The default is 65534:65534; for a server that does not run as root it is its user.
    #[arg(long, value_name = "UID:GID", value_parser = anonymous)]
    anonymous: Option<(u32, u32)>,
    /// Refuse every change.
    #[arg(long)]
    read_only: bool,
    /// Keep in DIR/outrigger what clients of a server that was started again need: the key of file handles, and the paths of files.
    /// Without it they get "Stale file handle". Each server needs a DIR of its own.
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY", hide_env = true)]
    state: Option<PathBuf>,
    /// Options of all exports, as in --export-options, and of their drivers (`outrigger drivers` lists them).
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

/// A tree that is exported, until the server ends.
struct Export<'a> {
    path: &'a str,
    location: &'a OsStr,
    terms: Terms,
    tree: Tree,
    service: Arc<dyn Service>,
    closes: Closes,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = alone.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, PORT));
    }
    let text = text.replacen("localhost", "127.0.0.1", 1);
    let port = text.strip_prefix(':').unwrap_or(&text);
    match (port.parse::<u16>(), &*text) {
        (Ok(port), _) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        (_, "127.0.0.1") => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT)),
        _ => text.parse().map_err(|_| {
            "an address and a port expected, as in 127.0.0.1:2049, [::1]:2049 or 0.0.0.0:2049".to_owned()
        }),
    }
}

/// A socket at this address that does not listen yet.
fn bound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of a former server in TIME_WAIT do not keep the address busy.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

impl Nfs {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let lists: Vec<String> = self
            .options
            .iter()
            .chain(self.export_options.iter().map(|options| &options.list))
            .cloned()
            .collect();
        context.options().allow("serve", &lists, "")?;
        logging::start_by_default(MESSAGES);
        context.trees.runtime.serve();
        let named = self.named()?;
        let handle = context.trees.runtime.handle();
        // The address is the least that can be missing. Clients come when nothing can be missing any more.
        let socket = bound(self.listen).map_err(|errno| self.cannot(&io::Error::from(errno).into()))?;
        let exports =
            named.into_iter().map(|(path, location, terms)| self.open(context, path, location, terms));
        let exports = exports.collect::<Result<Vec<_>, _>>()?;
        let state = State::open(self.state.as_deref())?;
        let options = door::Options { callers: Callers::default(), key: state.key()?, held: HELD };
        let (trees, whole): (Vec<_>, Vec<_>) = exports.iter().map(|export| export.for_door(&state)).unzip();
        if let Err(error) = state.forget_unused() {
            tracing::warn!(%error, "what unused exports have left cannot be removed");
        }
        listen(&socket, BACKLOG).map_err(|errno| self.cannot(&io::Error::from(errno).into()))?;
        let listener = TcpListener::from(socket);
        handle.block_on(async {
            let server = Server::on(listener, trees, options).map_err(|error| self.cannot(&error))?;
            let address = server.address().map_err(|error| self.cannot(&error.into()))?;
            announce(context, address, &exports).map_err(output_failed)?;
            tell_manager("READY=1");
            context.cancel.unless_raised(server.run()).await;
            tell_manager("STOPPING=1");
            server.close(PATIENCE).await;
            Ok::<_, Failure>(())
        })?;
        let closed = exports.iter().map(|export| end(context, &export.closes));
        let stored = exports.iter().map(|export| store(context, &export.tree));
        // All, whatever became of one.
        let mut ended: Vec<_> = closed.chain(stored).chain([context.trees.changed.close()]).collect();
        ended.extend(whole.into_iter().flatten().map(|whole| {
            whole.mark().map_err(|error| Failure::new(format!("the paths of files cannot be kept: {error}")))
        }));
        ended.into_iter().collect()
    }

    /// Paths, trees and options of the exports.
    fn named(&self) -> Result<Vec<(&str, &OsStr, Terms)>, Failure> {
        let root = self.location.iter().map(|location| ("/", location.as_os_str()));
        let others = self.export.iter().map(|export| (export.path.as_str(), export.location.as_os_str()));
        let named: Vec<(&str, &OsStr)> = root.chain(others).collect();
        for (number, (path, _)) in named.iter().enumerate() {
            if named[..number].iter().any(|(other, _)| other == path) {
                return Err(Failure::serious(format!("two trees are exported as '{path}'")));
            }
        }
        let is_unknown = |options: &&OfExport| named.iter().all(|(path, _)| *path != options.path);
        if let Some(options) = self.export_options.iter().find(is_unknown) {
            return Err(Failure::serious(format!(
                "--export-options {}={}: nothing is exported as '{}'",
                options.path, options.list, options.path
            )));
        }
        let all = Terms::of(self.options.iter().map(String::as_str))
            .map_err(|why| Failure::serious(format!("-o {why}")))?;
        let all = all.or(&self.terms()?);
        let terms = |path: &str| {
            let own = self.export_options.iter().filter(|options| options.path == path);
            own.fold(all.clone(), |terms, options| options.terms.clone().or(&terms))
        };
        Ok(named.into_iter().map(|(path, location)| (path, location, terms(path))).collect())
    }

    /// What the arguments say of all exports.
    fn terms(&self) -> Result<Terms, Failure> {
        let ids = |option: &str, pairs: &[String]| {
            let mut ids = IdMap::default();
            let added = pairs.iter().try_for_each(|pair| map(&mut ids, pair));
            added.map(|()| ids).map_err(|why| Failure::serious(format!("{option} {why}")))
        };
        Ok(Terms {
            read_only: self.read_only.then_some(true),
            squash: self.squash,
            anonymous_uid: self.anonymous.map(|(uid, _)| uid),
            anonymous_gid: self.anonymous.map(|(_, gid)| gid),
            any_port: self.insecure.then_some(true),
            users: ids("--map", &self.map)?,
            groups: ids("--map-group", &self.map_group)?,
            networks: self.allow.clone(),
            driver: Vec::new(),
        })
    }

    fn open<'a>(
        &self,
        context: &Context,
        path: &'a str,
        location: &'a OsStr,
        terms: Terms,
    ) -> Result<Export<'a>, Failure> {
        let mut options = terms.driver.clone();
        if trees::guards_itself(&context.trees, location, &options) {
            options.push("guard".to_owned());
        }
        let is_read_only = terms.read_only.unwrap_or(false);
        if is_read_only && trees::is_of_kernel_code(&context.trees, location, &terms.driver) {
            options.push("ro".to_owned());
        }
        context.trees.are_read_only(is_read_only);
        let tree = trees::mountable(&context.trees, location, &options, None)
            .map_err(|failure| with_words_of_exports(path, &terms.driver, failure))?;
        let stack = stack(context, &tree, is_read_only);
        let (service, closes) = stack.map_err(|error| Failure::serious(error.to_string()))?;
        Ok(Export { path, location, terms, tree, service, closes })
    }

    fn cannot(&self, error: &Error) -> Failure {
        Failure::new(format!("cannot listen at {}: {error}", self.listen))
    }
}

/// What is wrong with an option that no driver takes, for who meant one of exports.
fn with_words_of_exports(path: &str, options: &[String], failure: Failure) -> Failure {
    let key = |item: &str| item.split('=').next().unwrap_or(item).to_owned();
    let is_refused = |item: &&String| failure.message.contains(&format!(" has no option {}", key(item)));
    let Some(item) = options.iter().find(is_refused) else { return failure };
    let message = format!("export '{path}': {item}: options of exports are {WORDS}; and {}", failure.message);
    Failure { message, ..failure }
}

impl Export<'_> {
    /// The tree as the door takes it, with what is to be done in the end.
    fn for_door(&self, state: &State) -> (door::Tree, Option<Whole>) {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let (identity, is_lasting) = (identity(self.location), trees::is_lasting(self.location));
        let (mut paths, mut whole): (Option<Paths>, _) = (None, None);
        if is_lasting && needs_paths(&*self.service) {
            match state.paths(number_of(self.path, &identity)) {
                Ok((known, mark)) => (paths, whole) = (Some(known), Some(mark)),
                Err(error) => tracing::warn!(
                    target: "outrigger_door_nfs",
                    "file handles of '{}' will be stale when the server is started again: {error}",
                    self.path
                ),
            }
        }
        let tree = door::Tree {
            name: self.path.to_owned(),
            identity,
            service: self.service.clone(),
            is_lasting,
            callers: Some(self.terms.callers((uid.as_raw(), gid.as_raw()))),
            paths,
        };
        (tree, whole)
    }
}

/// What a door without a kernel and without opens needs between itself and the tree, and what closes the files in the end.
///
/// # Errors
/// A sentence about a layer that cannot be there.
pub fn stack(
    context: &Context,
    tree: &Tree,
    read_only: bool,
) -> Result<(Arc<dyn Service>, Closes), StackError> {
    let runtime = &context.trees.runtime;
    let opens = CloseSim::new(Opens::default(), runtime.clone());
    let closes = opens.control();
    let mut stack = Stack::new(tree.service.clone()).push(Simulate::new())?.push(opens)?;
    stack = stack.push(Permissions::new(runtime.clone()).lenient_owner())?;
    if let Some(limit) = context.options().timeout.filter(|limit| !limit.is_zero()) {
        stack = stack.push(Deadline::new(limit, runtime.clone()))?;
    }
    if read_only {
        stack = stack.push(ReadOnly)?;
    }
    Ok((stack.service(), closes))
}

/// What tells a tree from others: where it is, as far as this machine knows.
pub fn identity(location: &OsStr) -> Vec<u8> {
    let path = std::fs::canonicalize(location).map(PathBuf::into_os_string);
    path.unwrap_or_else(|_| location.to_owned()).into_encoded_bytes()
}

/// Prints the exports, and how a client mounts them, in one write: a reader may close the pipe after the first line.
fn announce(context: &Context, address: SocketAddr, exports: &[Export<'_>]) -> io::Result<()> {
    let line = |Export { path, location, .. }: &Export<'_>| {
        let (location, mount) = (location.to_string_lossy(), mount(address, path));
        match context.json {
            true => {
                let object = json!({ "address": address.to_string(), "path": path, "location": location, "mount": mount });
                format!("{object}\n")
            }
            false => format!("{address} exports {path}: {location}\n    {mount}\n"),
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(exports.iter().map(line).collect::<String>().as_bytes())?;
    out.flush()
}

/// What the superuser of a client with Linux types.
fn mount(address: SocketAddr, path: &str) -> String {
    let (port, ip) = (address.port(), address.ip());
    let host = match ip {
        ip if ip.is_unspecified() => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    };
    let protocol = if ip.is_ipv6() && !ip.is_unspecified() { "tcp6" } else { "tcp" };
    let path = if path.contains(|c: char| !c.is_ascii_alphanumeric() && !"/._-".contains(c)) {
        format!("'{}'", path.replace('\'', "'\\''"))
    } else {
        path.to_owned()
    };
    format!(
        "mount -t nfs -o vers=3,proto={protocol},port={port},mountport={port},mountproto={protocol},nolock {host}:{path} DIR"
    )
}

/// Closes what clients have opened without knowing it.
///
/// # Errors
/// What is lost.
pub fn end(context: &Context, closes: &Closes) -> Result<(), Failure> {
    let closed = context.trees.runtime.handle().block_on(closes.end());
    closed.map_err(|error| Failure::new(format!("what a client has written is lost: {error}")))
}

/// Stores what clients have written.
///
/// # Errors
/// What is lost.
pub fn store(context: &Context, tree: &Tree) -> Result<(), Failure> {
    let mut lost = Vec::new();
    for cache in &tree.caches {
        context.trees.runtime.handle().block_on(cache.end());
        lost.extend(cache.lost());
    }
    let closed = tree.control.as_ref().map_or(Ok(()), |control| control.close());
    closed.map_err(|error| Failure::new(error.why()))?;
    match lost.first() {
        Some(lost) => Err(Failure::new(format!("what a client has written is lost: {}", lost.error))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_a_client_names_the_host_as_mount_takes_it() {
        let shown = |address: &str, path| mount(address.parse().unwrap(), path);
        let options = |protocol| {
            format!("mount -t nfs -o vers=3,proto={protocol},port=7,mountport=7,mountproto={protocol},nolock")
        };
        assert_eq!(shown("192.0.2.1:7", "/"), format!("{} 192.0.2.1:/ DIR", options("tcp")));
        assert_eq!(shown("[2001:db8::1]:7", "/a b"), format!("{} [2001:db8::1]:'/a b' DIR", options("tcp6")));
        assert!(!shown("0.0.0.0:7", "/").contains("0.0.0.0"));
    }
}
