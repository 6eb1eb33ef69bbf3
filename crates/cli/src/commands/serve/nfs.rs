// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve nfs`: trees by NFS version 3.

use super::key;
use crate::context::Context;
use crate::messages::output_failed;
use crate::status::Failure;
use crate::trees::{self, Tree};
use clap::{Args, ValueEnum};
use outrigger_core::{Error, Service, Stack, StackError};
use outrigger_door_nfs::{self as door, Callers, NOBODY, Network, PORT, Server, Squash};
use outrigger_layer_closesim::{CloseSim, Control as Closes, Options as Opens};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_permissions::Permissions;
use outrigger_layer_readonly::ReadOnly;
use outrigger_layer_simulate::Simulate;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Files of a tree whose numbers are remembered.
pub const HELD: usize = 1 << 15;
/// How long calls that run may take in the end.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Arguments of `serve nfs`.
///
/// NFS, MOUNT and portmap answer at one port, so no other program is needed. At a client with Linux:
/// `mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,mountproto=tcp,nolock HOST:/ DIR`
#[derive(Debug, Args)]
#[command(
    override_usage = "outrigger serve nfs [OPTIONS] LOCATION\n       outrigger serve nfs [OPTIONS] --export PATH=LOCATION..."
)]
pub struct Nfs {
    /// The tree that is exported as `/`.
    #[arg(value_name = "LOCATION", required_unless_present = "export")]
    location: Option<OsString>,
    /// Export the tree LOCATION as PATH; can be repeated.
    #[arg(long, value_name = "PATH=LOCATION", value_parser = clap::value_parser!(Exported))]
    export: Vec<Exported>,
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
    /// The anonymous user and group, by number. The default is 65534:65534; for a server that does not run as root it is its user.
    #[arg(long, value_name = "UID:GID", value_parser = anonymous)]
    anonymous: Option<(u32, u32)>,
    /// Refuse every change.
    #[arg(long)]
    read_only: bool,
    /// Keep the key of file handles in DIR/outrigger. With another key, clients get "Stale file handle" after a restart.
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY", hide_env = true)]
    state: Option<PathBuf>,
    /// Options of the drivers (`outrigger drivers` lists them).
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

/// A tree and the path it is exported as.
#[derive(Debug, Clone)]
struct Exported {
    path: String,
    location: OsString,
}

impl FromStr for Exported {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((path, location)) if path.starts_with('/') && !location.is_empty() => {
                let names: Vec<&str> =
                    path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
                match names.contains(&"..") {
                    true => Err("'..' in the PATH of an export".to_owned()),
                    false => {
                        Ok(Exported { path: format!("/{}", names.join("/")), location: location.into() })
                    }
                }
            }
            _ => Err("PATH=LOCATION expected, with a PATH that begins with '/', as in /music=HOST:music"
                .to_owned()),
        }
    }
}

/// Whom `--squash` names.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Whom {
    /// The superuser.
    Root,
    /// Everyone.
    All,
    /// No one: user numbers are taken as the client sends them.
    None,
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

fn anonymous(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').map(|(uid, gid)| (uid.parse(), gid.parse()));
    match numbers {
        Some((Ok(uid), Ok(gid))) => Ok((uid, gid)),
        _ => Err(format!("two numbers expected, as in {}:{}", NOBODY.0, NOBODY.1)),
    }
}

impl Nfs {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        context.options().allow("serve", &self.options, "")?;
        let options =
            door::Options { callers: self.callers(), key: key::of(self.state.as_deref())?, held: HELD };
        let root = self.location.iter().map(|location| ("/", location.as_os_str()));
        let others = self.export.iter().map(|export| (export.path.as_str(), export.location.as_os_str()));
        let named: Vec<(&str, &OsStr)> = root.chain(others).collect();
        let trees =
            named.iter().map(|(_, location)| self.tree(context, location)).collect::<Result<Vec<_>, _>>()?;
        let stacks = trees
            .iter()
            .map(|tree| stack(context, tree, self.read_only))
            .collect::<Result<Vec<_>, StackError>>();
        let stacks = stacks.map_err(|error| Failure::serious(error.to_string()))?;
        let exported = named.iter().zip(&stacks).map(|((path, location), (service, _))| door::Tree {
            name: (*path).to_owned(),
            identity: identity(location),
            service: service.clone(),
            is_lasting: trees::is_lasting(location),
        });
        let exported = exported.collect();
        context.trees.runtime.handle().block_on(async {
            let server = Server::bind(self.listen, exported, options).await;
            let server = server.map_err(|error| self.cannot(&error))?;
            let address = server.address().map_err(|error| self.cannot(&error.into()))?;
            announce(context, address, &named).map_err(output_failed)?;
            context.cancel.unless_raised(server.run()).await;
            server.close(PATIENCE).await;
            Ok::<_, Failure>(())
        })?;
        let closed = stacks.iter().map(|(_, closes)| end(context, closes));
        let stored = trees.iter().map(|tree| store(context, tree));
        // All, whatever became of one.
        let ended: Vec<_> = closed.chain(stored).chain([context.trees.changed.close()]).collect();
        ended.into_iter().collect()
    }

    fn callers(&self) -> Callers {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let squash = match (self.squash, uid.is_root()) {
            (Some(Whom::Root), _) | (None, true) => Squash::Root,
            // Files cannot be given to another user.
            (Some(Whom::All), _) | (None, false) => Squash::All,
            (Some(Whom::None), _) => Squash::None,
        };
        let own = if uid.is_root() { NOBODY } else { (uid.as_raw(), gid.as_raw()) };
        let (networks, any_port) = (self.allow.clone(), self.insecure);
        Callers { networks, any_port, squash, anonymous: self.anonymous.unwrap_or(own) }
    }

    fn tree(&self, context: &Context, location: &OsStr) -> Result<Tree, Failure> {
        let mut options = self.options.clone();
        if trees::guards_itself(&context.trees, location, &options) {
            options.push("guard".to_owned());
        }
        trees::mountable(&context.trees, location, &options, None)
    }

    fn cannot(&self, error: &Error) -> Failure {
        Failure::new(format!("cannot listen at {}: {error}", self.listen))
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

/// Prints the address and the exports in one write: a reader may close the pipe after the first line.
fn announce(context: &Context, address: SocketAddr, named: &[(&str, &OsStr)]) -> io::Result<()> {
    let line = |(path, location): &(&str, &OsStr)| {
        let location = location.to_string_lossy();
        match context.json {
            true => {
                format!("{}\n", json!({ "address": address.to_string(), "path": path, "location": location }))
            }
            false => format!("{address} exports {path}: {location}\n"),
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(named.iter().map(line).collect::<String>().as_bytes())?;
    out.flush()
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
