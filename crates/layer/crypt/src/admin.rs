// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making an encrypted tree, and changing what opens it.

use crate::below::{read_file, write_file};
use crate::config::{Config, Cost, Secret};
use crate::keys::Master;
use crate::names::{CONFIG, NEW_CONFIG, own};
use outrigger_core::ops::{
    FSyncDir, Forget, Lookup, OpenDir, ReadDir, ReleaseDir, Rename, RenameFlags, Unlink,
};
use outrigger_core::{Credentials, Cx, Errno, Handle, Node, OpCode, Result, Service, ask};

pub(crate) fn cx() -> Cx {
    Cx { slot: Cx::NO_SLOT, ..Cx::new(0, Credentials::ROOT, "crypt") }
}

/// The configuration of the encrypted tree that is in `service`.
///
/// # Errors
/// `ENOENT` when there is none, and those of [`Config::parse`].
pub async fn configuration(service: &dyn Service) -> Result<Config> {
    let content = read_file(service, &cx(), Node::ROOT, own(CONFIG)).await?;
    let none = || {
        Errno::ENOENT.because(format!(
            "there is no {CONFIG} in the root of the tree: `outrigger crypt init` makes one; commands take a directory \
             as DIR::/PATH"
        ))
    };
    Config::parse(&content.ok_or_else(none)?)
}

/// Whether an encrypted tree can be made in this one: to be asked before a secret is.
///
/// # Errors
/// `EEXIST` when there is one already, `ENOTEMPTY` when there is anything else.
pub async fn can_initialise(service: &dyn Service) -> Result<()> {
    let name = own(CONFIG);
    match ask(service, &cx(), Lookup { dir: Node::ROOT, name }).await {
        Ok(entry) => {
            let _ = ask(service, &cx(), Forget { node: entry.node, count: 1 }).await;
            return Err(Errno::EEXIST.because(format!("there is an {CONFIG} already")));
        }
        Err(error) if error.errno == Errno::ENOENT => {}
        Err(error) => return Err(error),
    }
    match is_empty(service).await? {
        true => Ok(()),
        false => {
            Err(Errno::ENOTEMPTY.because("what is in the directory would be hidden: it has to be empty"))
        }
    }
}

/// Makes an encrypted tree in an empty one.
///
/// # Errors
/// Those of [`can_initialise`].
pub async fn initialise(service: &dyn Service, secret: &Secret, cost: Cost) -> Result<()> {
    can_initialise(service).await?;
    let config = Config::wrap(&Master::random()?, secret, cost)?;
    replace(service, &config).await
}

/// Wraps the master key of the tree with another secret. The former one does not open the tree any more; a copy of the former
/// configuration still does.
///
/// # Errors
/// `EACCES` when `old` does not open the tree.
pub async fn change_secret(
    service: &dyn Service,
    old: &Secret,
    new: &Secret,
    cost: Option<Cost>,
) -> Result<()> {
    let config = configuration(service).await?;
    let master = config.unwrap(old)?;
    let changed = Config::wrap(&master, new, cost.unwrap_or(config.cost()))?;
    replace(service, &changed).await
}

/// Puts a configuration into the root. Whenever this is interrupted, the former one or the new one is there.
async fn replace(service: &dyn Service, config: &Config) -> Result<()> {
    let (dir, name, to_name) = (Node::ROOT, own(NEW_CONFIG), own(CONFIG));
    if let Err(error) = write_file(service, &cx(), dir, name.clone(), config.print(), true).await {
        let _ = ask(service, &cx(), Unlink { dir, name }).await;
        return Err(error);
    }
    let flags = RenameFlags::empty();
    ask(service, &cx(), Rename { dir, name, to_dir: dir, to_name, flags }).await?;
    if service.abilities().ops.has(OpCode::FSyncDir) {
        let handle = open_root(service).await?;
        let synced = ask(service, &cx(), FSyncDir { node: dir, handle, data_only: false }).await;
        close_root(service, handle).await;
        synced?;
    }
    Ok(())
}

async fn open_root(service: &dyn Service) -> Result<Handle> {
    let abilities = service.abilities();
    if abilities.stateless_dirs || !abilities.ops.has(OpCode::OpenDir) {
        return Ok(Handle::NONE);
    }
    Ok(ask(service, &cx(), OpenDir { node: Node::ROOT }).await?.handle)
}

async fn close_root(service: &dyn Service, handle: Handle) {
    if !service.abilities().stateless_dirs && service.abilities().ops.has(OpCode::ReleaseDir) {
        let _ = ask(service, &cx(), ReleaseDir { node: Node::ROOT, handle }).await;
    }
}

async fn is_empty(service: &dyn Service) -> Result<bool> {
    let handle = open_root(service).await?;
    let listed = ask(service, &cx(), ReadDir { node: Node::ROOT, handle, cookie: 0, size: 4096 }).await;
    close_root(service, handle).await;
    // What an interrupted attempt has left is none.
    Ok(listed?.entries.iter().all(|entry| entry.name.as_bytes() == NEW_CONFIG.as_bytes()))
}
