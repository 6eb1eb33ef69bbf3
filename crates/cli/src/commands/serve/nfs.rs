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

/// Files of a tree whose numbers are remembered.
const HELD: usize = 1 << 17;

/// Arguments of `serve nfs`.
///
/// NFS, MOUNT and portmap answer at one port, so no other program is needed:
/// `mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,mountproto=tcp,nolock HOST:/ DIR`
#[derive(Debug, Args)]
pub struct Nfs {
    /// The tree that is exported as `/`.
    #[arg(value_name = "LOCATION", required_unless_present = "export")]
    location: Option<OsString>,
    /// Export another tree as PATH; can be repeated.
    #[arg(long, value_name = "PATH=LOCATION", value_parser = clap::value_parser!(Exported))]
    export: Vec<Exported>,
    /// Where to listen: an address, a port, or both. Port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049", value_parser = address)]
    listen: SocketAddr,
    /// Answer clients of this network, as in 192.0.2.0/24; can be repeated. Without it, only those of this machine.
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<Network>,
    /// Answer clients at ports that any user of a machine can use (1024 and more). Whoever can connect can then be any user.
    #[arg(long)]
    insecure: bool,
    /// Which users of clients are the anonymous user here: the superuser, all, or none.
    #[arg(long, value_name = "WHO", default_value = "root")]
    squash: Whom,
    /// The anonymous user and group, by number.
    #[arg(long, value_name = "UID:GID", default_value = "65534:65534", value_parser = anonymous)]
    anonymous: (u32, u32),
    /// Refuse every change.
    #[arg(long)]
    read_only: bool,
    /// Where to keep what file handles are made with. Clients of a server that is started again go on if it is the same.
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY", hide_env = true)]
    state: Option<PathBuf>,
    /// Options of the driver (`outrigger drivers` lists them). Those that name programs stand in front of LOCATION.
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
                Ok(Exported { path: path.to_owned(), location: location.into() })
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
    /// Nobody: clients are believed.
    None,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let wrong =
        |_| "an address and a port expected, as in 127.0.0.1:2049, [::1]:2049 or 0.0.0.0:2049".to_owned();
    match (text.trim_start_matches(':').parse::<u16>(), text.parse::<IpAddr>()) {
        (Ok(port), _) => Ok(SocketAddr::new(here, port)),
        (_, Ok(address)) => Ok(SocketAddr::new(address, PORT)),
        _ => text.parse().map_err(wrong),
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
        let stacks =
            trees.iter().map(|tree| self.stack(context, tree)).collect::<Result<Vec<_>, StackError>>();
        let stacks = stacks.map_err(|error| Failure::serious(error.to_string()))?;
        let exported = named.iter().zip(&stacks).map(|((path, location), (service, _))| door::Tree {
            name: (*path).to_owned(),
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
            Ok::<_, Failure>(())
        })?;
        let closes = stacks.iter().map(|(_, closes)| closes);
        closes.map(|closes| end(context, closes)).fold(Ok(()), Result::and).and(store(context, &trees))
    }

    fn callers(&self) -> Callers {
        let squash = match self.squash {
            Whom::Root => Squash::Root,
            Whom::All => Squash::All,
            Whom::None => Squash::None,
        };
        let (networks, any_port) = (self.allow.clone(), self.insecure);
        Callers { networks, any_port, squash, anonymous: self.anonymous }
    }

    fn tree(&self, context: &Context, location: &OsStr) -> Result<Tree, Failure> {
        trees::mountable(&context.trees, location, &self.options, None)
    }

    /// What a door without a kernel and without opens needs between itself and the tree, and what closes the files in the end.
    fn stack(&self, context: &Context, tree: &Tree) -> Result<(Arc<dyn Service>, Closes), StackError> {
        let runtime = &context.trees.runtime;
        let opens = CloseSim::new(Opens::default(), runtime.clone());
        let closes = opens.control();
        let mut stack = Stack::new(tree.service.clone()).push(Simulate::new())?.push(opens)?;
        stack = stack.push(Permissions::new(runtime.clone()).lenient_owner())?;
        if let Some(limit) = context.options().timeout.filter(|limit| !limit.is_zero()) {
            stack = stack.push(Deadline::new(limit, runtime.clone()))?;
        }
        if self.read_only {
            stack = stack.push(ReadOnly)?;
        }
        Ok((stack.service(), closes))
    }

    fn cannot(&self, error: &Error) -> Failure {
        Failure::new(format!("cannot listen at {}: {error}", self.listen))
    }
}

/// Says where what is served, all at once: whoever reads the first line may close the pipe.
fn announce(context: &Context, address: SocketAddr, named: &[(&str, &OsStr)]) -> io::Result<()> {
    let line = |(path, location): &(&str, &OsStr)| {
        let location = location.to_string_lossy();
        match context.json {
            true => {
                format!("{}\n", json!({ "address": address.to_string(), "path": path, "location": location }))
            }
            false => format!("nfs://{address}{path} is {location}\n"),
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(named.iter().map(line).collect::<String>().as_bytes())?;
    out.flush()
}

/// Closes what clients have opened without knowing it.
fn end(context: &Context, closes: &Closes) -> Result<(), Failure> {
    let closed = context.trees.runtime.handle().block_on(closes.end());
    closed.map_err(|error| Failure::new(format!("what a client has written is lost: {error}")))
}

/// Stores what clients have written.
fn store(context: &Context, trees: &[Tree]) -> Result<(), Failure> {
    let caches = trees.iter().flat_map(|tree| &tree.caches);
    for cache in caches.clone() {
        context.trees.runtime.handle().block_on(cache.end());
    }
    if let Some(lost) = caches.flat_map(outrigger_layer_cache::Control::lost).next() {
        return Err(Failure::new(format!("what a client has written is lost: {}", lost.error)));
    }
    for control in trees.iter().filter_map(|tree| tree.control.as_ref()) {
        control.close().map_err(|error| Failure::new(error.why()))?;
    }
    context.trees.changed.close()
}
