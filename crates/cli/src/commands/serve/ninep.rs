// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve 9p`: trees by 9P.

use super::common::{BACKLOG, Export, Exports, PATIENCE, announce, attend, checked, host, quoted};
use super::listen::Listen;
use crate::context::Context;
use crate::logging;
use crate::messages::output_failed;
use crate::status::Failure;
use clap::Args;
use outrigger_core::{Error, Stack, lock};
use outrigger_door_ninep::{Account, IO_MAX, Listener, PORT, Server, Tree, Users};
use outrigger_layer_permissions::Permissions;
use outrigger_layer_simulate::Simulate;
use rustix::net::listen;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::hash::Hash;
use std::io;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

/// What is said without being asked for: who was refused, and requests that failed.
const MESSAGES: &str = "outrigger_door_ninep=warn,outrigger_toolkit_serve=warn";
/// Names that are remembered.
const NAMES: usize = 4096;

/// Arguments of `serve 9p`.
///
/// 9P2000.L is for Linux, 9P2000 for Plan 9, and 9P2000.u between the two: the client chooses. What to type at a client with Linux is
/// printed for each export, which a client attaches to by its PATH (aname). Refused clients are named on standard error.
///
/// A client with 9P2000 has one user, by a name: one whom this machine does not know is the anonymous user, which is said on standard
/// error. It sees symbolic links as files that cannot be opened.
///
/// Clients that mount need the superuser's port (privport), or --insecure here. A client that has lost its connection mounts again.
#[derive(Debug, Args)]
#[command(
    override_usage = "outrigger serve 9p [OPTIONS] LOCATION\n       outrigger serve 9p [OPTIONS] --export PATH=LOCATION... [--export-options PATH=OPTION,...]..."
)]
pub struct NineP {
    #[command(flatten)]
    exports: Exports,
    /// Listen at this address, port, or both, or at the socket unix:PATH of this machine, to which only this user and the superuser
    /// can connect. A port alone is one of 127.0.0.1; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH", default_value = "127.0.0.1:564", value_parser = listen_at)]
    listen: Listen,
}

fn listen_at(text: &str) -> Result<Listen, String> {
    Listen::parse(text, PORT)
}

impl NineP {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        self.exports.check(context)?;
        logging::start_by_default(MESSAGES);
        context.trees.runtime.serve();
        let cannot = |error: &Error| Failure::new(format!("cannot listen at {}: {error}", self.listen));
        // The address is the least that can be missing. Clients come when nothing can be missing any more.
        let (socket, _named) = self.listen.socket().map_err(|error| cannot(&error.into()))?;
        let exports = self.exports.open(context)?;
        let trees = exports.iter().map(|export| tree(context, export));
        let trees = trees.collect::<Result<Vec<_>, _>>()?;
        listen(&socket, BACKLOG).map_err(|errno| cannot(&io::Error::from(errno).into()))?;
        let listener = match &self.listen {
            Listen::Tcp(_) => Listener::Tcp(TcpListener::from(socket)),
            Listen::Unix(path) => Listener::Unix(UnixListener::from(socket), path.clone()),
        };
        context.trees.runtime.handle().block_on(async {
            let server = Server::on(listener, trees, Arc::<System>::default());
            let server = server.map_err(|error| cannot(&error))?;
            let listen = match server.address().map_err(|error| cannot(&error.into()))? {
                Some(address) => Listen::Tcp(address),
                None => self.listen.clone(),
            };
            let mount = |path: &str| mount(&listen, path, self.exports.takes_any_port());
            announce(context, &listen.to_string(), exports.iter(), mount).map_err(output_failed)?;
            attend(context, server.run()).await;
            server.close(PATIENCE).await;
            Ok::<_, Failure>(())
        })?;
        // All, whatever became of one.
        let stored = exports.iter().map(|export| export.store(context));
        let ended: Vec<_> = stored.chain([context.trees.changed.close()]).collect();
        ended.into_iter().collect()
    }
}

/// The tree as the door takes it.
fn tree(context: &Context, export: &Export<'_>) -> Result<Tree, Failure> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let permissions = Permissions::new(context.trees.runtime.clone());
    let service = Stack::new(export.tree.service.clone())
        .push(Simulate::new())
        .and_then(|stack| checked(context, stack, permissions, export.is_read_only()))
        .map_err(|error| Failure::serious(error.to_string()))?;
    let callers = export.terms.callers((uid.as_raw(), gid.as_raw()));
    Ok(Tree { name: export.path.to_owned(), service, callers })
}

/// What the superuser of a client with Linux types.
fn mount(listen: &Listen, path: &str, any_port: bool) -> String {
    let path = quoted(path);
    let common = format!("version=9p2000.L,msize={IO_MAX},aname={path}");
    match listen {
        Listen::Tcp(address) => {
            let port = address.port();
            let privileged = if any_port { "" } else { ",privport" };
            // The client takes numbers, and those of IPv6 without brackets.
            let host = host(address.ip());
            let host = host.trim_matches(['[', ']']);
            format!("mount -t 9p -o trans=tcp,port={port}{privileged},{common} {host} DIR")
        }
        Listen::Unix(socket) => {
            let socket = fs::canonicalize(socket).unwrap_or_else(|_| socket.clone());
            format!("mount -t 9p -o trans=unix,{common} {} DIR", quoted(&socket.to_string_lossy()))
        }
    }
}

/// The users of this machine, whose names are remembered.
#[derive(Default)]
struct System {
    users: Mutex<HashMap<u32, Option<String>>>,
    groups: Mutex<HashMap<u32, Option<String>>>,
}

/// What `find` says of a key, or has said.
fn remembered<K: Hash + Eq + Copy, V: Clone>(
    known: &Mutex<HashMap<K, V>>,
    key: K,
    find: impl Fn(K) -> V,
) -> V {
    if let Some(value) = lock(known).get(&key) {
        return value.clone();
    }
    let value = find(key);
    let mut known = lock(known);
    if known.len() >= NAMES {
        known.clear();
    }
    known.insert(key, value.clone());
    value
}

fn account(user: &uzers::User) -> Account {
    let groups = uzers::get_user_groups(user.name(), user.primary_group_id()).unwrap_or_default();
    let groups = groups.iter().map(uzers::Group::gid).collect();
    Account { uid: user.uid(), gid: user.primary_group_id(), groups }
}

impl Users for System {
    fn by_number(&self, uid: u32) -> Option<Account> {
        uzers::get_user_by_uid(uid).as_ref().map(account)
    }

    fn by_name(&self, name: &[u8]) -> Option<Account> {
        uzers::get_user_by_name(OsStr::from_bytes(name)).as_ref().map(account)
    }

    fn user_name(&self, uid: u32) -> Option<String> {
        let find = |uid| Some(uzers::get_user_by_uid(uid)?.name().to_str()?.to_owned());
        remembered(&self.users, uid, find)
    }

    fn group_name(&self, gid: u32) -> Option<String> {
        let find = |gid| Some(uzers::get_group_by_gid(gid)?.name().to_str()?.to_owned());
        remembered(&self.groups, gid, find)
    }

    fn group_number(&self, name: &[u8]) -> Option<u32> {
        uzers::get_group_by_name(OsStr::from_bytes(name)).map(|group| group.gid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_a_client_names_the_server_as_mount_takes_it() {
        let shown = |listen: &str, path, any_port| mount(&listen_at(listen).unwrap(), path, any_port);
        let options = "version=9p2000.L,msize=1048576,aname=/";
        let expected = format!("mount -t 9p -o trans=tcp,port=7,privport,{options} 192.0.2.1 DIR");
        assert_eq!(shown("192.0.2.1:7", "/", false), expected);
        let expected = format!("mount -t 9p -o trans=tcp,port=7,{options}a 2001:db8::1 DIR");
        assert_eq!(shown("[2001:db8::1]:7", "/a", true), expected);
        let expected = format!("mount -t 9p -o trans=unix,{options} /no/such DIR");
        assert_eq!(shown("unix:/no/such", "/", false), expected);
        assert!(!shown("0.0.0.0:7", "/", true).contains("0.0.0.0"));
    }
}
