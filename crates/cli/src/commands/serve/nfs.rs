// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve nfs`: trees by NFS version 3.

use super::common::{
    BACKLOG, Export, Exports, PATIENCE, address, announce, attend, bound, checked, host, identity, quoted,
};
use super::state::{State, Whole};
use crate::context::Context;
use crate::logging;
use crate::messages::output_failed;
use crate::status::Failure;
use crate::trees::{self, Tree};
use clap::Args;
use outrigger_core::{Error, Service, Stack, StackError};
use outrigger_door_nfs::{self as door, Callers, PORT, Paths, Server, needs_paths, number_of};
use outrigger_layer_closesim::{CloseSim, Control as Closes, Options as Opens};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_simulate::Simulate;
use rustix::net::listen;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

/// Files of a tree whose numbers are remembered.
pub const HELD: usize = 1 << 15;
/// What is said without being asked for: who was refused, and calls that failed.
const MESSAGES: &str = "outrigger_door_nfs=warn,outrigger_toolkit_serve=warn";

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
    #[command(flatten)]
    exports: Exports,
    /// Listen at this address, port, or both. A port alone is one of 127.0.0.1; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:2049", value_parser = at)]
    listen: SocketAddr,
    /// Keep in DIR/outrigger what clients of a server that was started again need: the key of file handles, and the paths of files.
    /// Without it they get "Stale file handle". Each server needs a DIR of its own.
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY", hide_env = true)]
    state: Option<PathBuf>,
}

/// A tree with what this door needs above it.
struct Served<'a> {
    export: Export<'a>,
    service: Arc<dyn Service>,
    closes: Closes,
}

fn at(text: &str) -> Result<SocketAddr, String> {
    address(text, PORT)
}

impl Nfs {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        self.exports.check(context)?;
        logging::start_by_default(MESSAGES);
        context.trees.runtime.serve();
        let handle = context.trees.runtime.handle();
        // The address is the least that can be missing. Clients come when nothing can be missing any more.
        let socket = bound(self.listen).map_err(|errno| self.cannot(&io::Error::from(errno).into()))?;
        let opened = self.exports.open(context)?.into_iter().map(|export| Served::new(context, export));
        let exports = opened.collect::<Result<Vec<_>, _>>()?;
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
            let named = exports.iter().map(|served| &served.export);
            announce(context, &address.to_string(), named, |path| mount(address, path))
                .map_err(output_failed)?;
            attend(context, server.run()).await;
            server.close(PATIENCE).await;
            Ok::<_, Failure>(())
        })?;
        let closed = exports.iter().map(|served| end(context, &served.closes));
        let stored = exports.iter().map(|served| served.export.store(context));
        // All, whatever became of one.
        let mut ended: Vec<_> = closed.chain(stored).chain([context.trees.changed.close()]).collect();
        ended.extend(whole.into_iter().flatten().map(|whole| {
            whole.mark().map_err(|error| Failure::new(format!("the paths of files cannot be kept: {error}")))
        }));
        ended.into_iter().collect()
    }

    fn cannot(&self, error: &Error) -> Failure {
        Failure::new(format!("cannot listen at {}: {error}", self.listen))
    }
}

impl<'a> Served<'a> {
    fn new(context: &Context, export: Export<'a>) -> Result<Self, Failure> {
        let stack = stack(context, &export.tree, export.is_read_only());
        let (service, closes) = stack.map_err(|error| Failure::serious(error.to_string()))?;
        Ok(Served { export, service, closes })
    }

    /// The tree as the door takes it, with what is to be done in the end.
    fn for_door(&self, state: &State) -> (door::Tree, Option<Whole>) {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let Export { path, location, terms, .. } = &self.export;
        let (identity, is_lasting) = (identity(location), trees::is_lasting(location));
        let (mut paths, mut whole): (Option<Paths>, _) = (None, None);
        if is_lasting && needs_paths(&*self.service) {
            match state.paths(number_of(path, &identity)) {
                Ok((known, mark)) => (paths, whole) = (Some(known), Some(mark)),
                Err(error) => tracing::warn!(
                    target: "outrigger_door_nfs",
                    "file handles of '{path}' will be stale when the server is started again: {error}"
                ),
            }
        }
        let tree = door::Tree {
            name: (*path).to_owned(),
            identity,
            service: self.service.clone(),
            is_lasting,
            callers: Some(terms.callers((uid.as_raw(), gid.as_raw()))),
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
    let stack = Stack::new(tree.service.clone()).push(Simulate::new())?.push(opens)?;
    let permissions = Permissions::new(runtime.clone()).lenient_owner();
    Ok((checked(context, stack, permissions, read_only)?, closes))
}

/// What the superuser of a client with Linux types.
fn mount(address: SocketAddr, path: &str) -> String {
    let (port, ip) = (address.port(), address.ip());
    let protocol = if ip.is_ipv6() && !ip.is_unspecified() { "tcp6" } else { "tcp" };
    let (host, path) = (host(ip), quoted(path));
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
