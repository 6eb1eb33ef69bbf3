// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers, and this driver connected to them.

use outrigger_client::{Client, Follow, Inode, Settings};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Keep, OptionTable, Result, Runtime, Serve, Service};
use outrigger_driver_http::{DAV_OPTIONS, OPTIONS, connect, connect_dav, set};
use outrigger_runtime::Threads;
use outrigger_toolkit_remote::{Authority, FileOptions};
use std::sync::Arc;

/// The tree of the server at `place`; with the option `tls` over TLS.
pub fn client(place: &str, options: &[(&str, &str)], keep: Option<Arc<dyn Keep>>) -> Result<Client> {
    let (server, chosen, threads) = (server(place), chosen(&OPTIONS, options), Arc::new(Threads::new()));
    let runtime = Arc::clone(&threads) as Arc<dyn Runtime>;
    let tree = threads.handle().block_on(connect(server, chosen, Arc::clone(&runtime), keep))?;
    Ok(client_of(Arc::new(Serve(tree)), runtime))
}

/// The same of a WebDAV server.
pub fn dav_client(place: &str, options: &[(&str, &str)], keep: Option<Arc<dyn Keep>>) -> Result<Client> {
    let (server, chosen, threads) = (server(place), chosen(&DAV_OPTIONS, options), Arc::new(Threads::new()));
    let runtime = Arc::clone(&threads) as Arc<dyn Runtime>;
    let tree = threads.handle().block_on(connect_dav(server, chosen, Arc::clone(&runtime), keep))?;
    Ok(client_of(Arc::new(Serve(tree)), runtime))
}

fn server(place: &str) -> Authority {
    Authority::parse(place).expect("a server")
}

fn chosen(table: &OptionTable, options: &[(&str, &str)]) -> FileOptions {
    let mut chosen = FileOptions { netrc: None, ..FileOptions::default() };
    options.iter().for_each(|(key, value)| set(table, &mut chosen, key, value).expect("an option"));
    chosen
}

fn client_of(service: Arc<dyn Service>, runtime: Arc<dyn Runtime>) -> Client {
    Client::new(service, runtime, Settings::default())
}

/// All of a file.
pub fn read(client: &Client, path: &str) -> Result<Vec<u8>> {
    let file = walk(client, path)?.open(OpenFlags::empty())?;
    let mut content = Vec::new();
    loop {
        let piece = file.read_at(content.len() as u64, 1 << 17)?;
        if piece.is_empty() {
            return Ok(content);
        }
        content.extend_from_slice(&piece);
    }
}

/// What is at a path.
pub fn walk(client: &Client, path: &str) -> Result<Inode> {
    client.walk(path.as_bytes(), Follow::Yes)
}

/// The names in a directory, sorted, with a slash after those of directories.
pub fn names(client: &Client, path: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in walk(client, path)?.entries()? {
        let (name, inode) = entry?;
        let slash = if inode.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", name.as_bytes().escape_ascii()));
    }
    names.sort();
    Ok(names)
}

/// Content whose every part is different.
pub fn content(len: usize) -> Vec<u8> {
    (0..len.div_ceil(4) as u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).take(len).collect()
}
