// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the protocols of `outrigger serve` have in common: which trees are exported, to whom, and where clients connect.

use super::exports::{Exported, Options as OfExport, Terms, WORDS, Whom, anonymous, map};
use crate::context::Context;
use crate::status::Failure;
use crate::trees::{self, Tree};
use clap::Args;
use outrigger_core::{IdMap, Service, Stack, StackError};
use outrigger_guard::tell_manager;
use outrigger_layer_deadline::Deadline;
use outrigger_layer_permissions::Permissions;
use outrigger_layer_readonly::ReadOnly;
use outrigger_toolkit_serve::Network;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// For so long the end waits until what was read and what is known is on disk, where it is kept there.
const KEEP_DEADLINE: Duration = Duration::from_secs(2);

/// Connections that wait to be accepted.
pub const BACKLOG: i32 = 128;
/// How long requests that run may take in the end.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Which trees are exported, and to whom.
#[derive(Debug, Args)]
pub struct Exports {
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
    /// Options of all exports, as in --export-options, and of their drivers (`outrigger drivers` lists them).
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

/// A tree that is exported, until the server ends.
pub struct Export<'a> {
    pub path: &'a str,
    pub location: &'a OsStr,
    pub terms: Terms,
    pub tree: Tree,
}

impl Exports {
    /// Opens all trees that are exported.
    ///
    /// # Errors
    /// A sentence about options that do not go together, or about a tree that cannot be opened.
    pub fn open(&self, context: &Context) -> Result<Vec<Export<'_>>, Failure> {
        let open = |(path, location, terms)| Export::open(context, path, location, terms);
        self.named()?.into_iter().map(open).collect()
    }

    /// Whether clients may come from any port.
    pub fn takes_any_port(&self) -> bool {
        let words = self.options.iter().flat_map(|list| list.split(','));
        self.insecure || words.into_iter().any(|word| word == "insecure")
    }

    /// Checks the options that drivers do not get.
    ///
    /// # Errors
    /// A sentence about an option that is for programs, where these are not allowed.
    pub fn check(&self, context: &Context) -> Result<(), Failure> {
        let of_exports = self.export_options.iter().map(|options| &options.list);
        let lists: Vec<String> = self.options.iter().chain(of_exports).cloned().collect();
        context.options().allow("serve", &lists, "")?;
        self.named().map(drop)
    }

    /// Paths, trees and options of the exports.
    ///
    /// # Errors
    /// A sentence about options that do not go together.
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
}

impl<'a> Export<'a> {
    fn open(context: &Context, path: &'a str, location: &'a OsStr, terms: Terms) -> Result<Self, Failure> {
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
        Ok(Export { path, location, terms, tree })
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.terms.read_only.unwrap_or(false)
    }

    /// Stores what clients have written.
    ///
    /// # Errors
    /// What is lost.
    pub fn store(&self, context: &Context) -> Result<(), Failure> {
        store(context, &self.tree)
    }
}

/// What a door without a kernel needs above a tree: it checks permissions, ends what takes too long, and refuses changes.
///
/// # Errors
/// A sentence about a layer that cannot be there.
pub fn checked(
    context: &Context,
    stack: Stack,
    permissions: Permissions,
    read_only: bool,
) -> Result<Arc<dyn Service>, StackError> {
    let mut stack = stack.push(permissions)?;
    if let Some(limit) = context.options().timeout.filter(|limit| !limit.is_zero()) {
        stack = stack.push(Deadline::new(limit, context.trees.runtime.clone()))?;
    }
    if read_only {
        stack = stack.push(ReadOnly)?;
    }
    Ok(stack.service())
}

/// Serves until the command is to end.
pub async fn attend(context: &Context, run: impl Future<Output = ()>) {
    tell_manager("READY=1");
    context.cancel.unless_raised(run).await;
    tell_manager("STOPPING=1");
}

/// What is wrong with an option that no driver takes, for who meant one of exports.
fn with_words_of_exports(path: &str, options: &[String], failure: Failure) -> Failure {
    let key = |item: &str| item.split('=').next().unwrap_or(item).to_owned();
    let is_refused = |item: &&String| failure.message.contains(&format!(" has no option {}", key(item)));
    let Some(item) = options.iter().find(is_refused) else { return failure };
    let message = format!("export '{path}': {item}: options of exports are {WORDS}; and {}", failure.message);
    Failure { message, ..failure }
}

/// What tells a tree from others: where it is, as far as this machine knows.
pub fn identity(location: &OsStr) -> Vec<u8> {
    let path = std::fs::canonicalize(location).map(PathBuf::into_os_string);
    path.unwrap_or_else(|_| location.to_owned()).into_encoded_bytes()
}

/// Stores what clients have written.
///
/// # Errors
/// What is lost.
pub fn store(context: &Context, tree: &Tree) -> Result<(), Failure> {
    let mut lost = Vec::new();
    for cache in &tree.caches {
        context.trees.runtime.handle().block_on(cache.end());
        context.trees.runtime.handle().block_on(cache.kept_within(KEEP_DEADLINE));
        lost.extend(cache.lost());
    }
    let closed = tree.control.as_ref().map_or(Ok(()), |control| control.close());
    closed.map_err(|error| Failure::new(error.why()))?;
    match lost.first() {
        Some(lost) => Err(Failure::new(format!("what a client has written is lost: {}", lost.error))),
        None => Ok(()),
    }
}

/// Reads an address, a port, or both; `port` where only an address is given.
///
/// # Errors
/// What is expected.
pub fn address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = alone.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    let text = text.replacen("localhost", "127.0.0.1", 1);
    let alone = text.strip_prefix(':').unwrap_or(&text);
    match (alone.parse::<u16>(), &*text) {
        (Ok(port), _) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        (_, "127.0.0.1") => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        _ => text.parse().map_err(|_| {
            format!("an address and a port expected, as in 127.0.0.1:{port}, [::1]:{port} or 0.0.0.0:{port}")
        }),
    }
}

/// A socket at this address that does not listen yet.
///
/// # Errors
/// Why it cannot be there.
pub fn bound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of a former server in TIME_WAIT do not keep the address busy.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Prints the exports, and how a client mounts them, in one write: a reader may close the pipe after the first line.
///
/// # Errors
/// When they cannot be printed.
pub fn announce<'a>(
    context: &Context,
    address: &str,
    exports: impl Iterator<Item = &'a Export<'a>>,
    mount: impl Fn(&str) -> String,
) -> io::Result<()> {
    let line = |Export { path, location, .. }: &Export<'_>| {
        let (location, mount) = (location.to_string_lossy(), mount(path));
        match context.json {
            true => {
                let object =
                    json!({ "address": address, "path": path, "location": location, "mount": mount });
                format!("{object}\n")
            }
            false => format!("{address} exports {path}: {location}\n    {mount}\n"),
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(exports.map(line).collect::<String>().as_bytes())?;
    out.flush()
}

/// How a client names the machine that listens at this address.
pub fn host(ip: IpAddr) -> String {
    match ip {
        ip if ip.is_unspecified() => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    }
}

/// A path as a shell takes it.
pub fn quoted(path: &str) -> String {
    if path.contains(|c: char| !c.is_ascii_alphanumeric() && !"/._-".contains(c)) {
        format!("'{}'", path.replace('\'', "'\\''"))
    } else {
        path.to_owned()
    }
}
