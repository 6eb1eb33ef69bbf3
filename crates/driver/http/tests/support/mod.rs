// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers, and this driver connected to them.

use outrigger_client::{Client, Follow, Inode, Settings};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Error, Keep, Result, Runtime, Serve, Service};
use outrigger_driver_http::{DAV_OPTIONS, OPTIONS, Options, connect, connect_dav, set};
use outrigger_runtime::Threads;
use outrigger_toolkit_remote::{Authority, FileOptions};
use std::sync::Arc;

/// The tree of the HTTP server at `place`, or after `dav://` of a WebDAV server; with the option `tls` over TLS.
pub fn client(place: &str, options: &[(&str, &str)], keep: Option<Arc<dyn Keep>>) -> Result<Client> {
    let (table, place) = match place.strip_prefix("dav://") {
        Some(place) => (&DAV_OPTIONS, place),
        None => (&OPTIONS, place),
    };
    let files = FileOptions { netrc: None, ..FileOptions::default() };
    let mut chosen = Options { files, ..Options::default() };
    options.iter().for_each(|(key, value)| set(table, &mut chosen, key, value).expect("an option"));
    let (threads, server) = (Arc::new(Threads::new()), Authority::parse(place).expect("a server"));
    let runtime = Arc::clone(&threads) as Arc<dyn Runtime>;
    let opened = async {
        let runtime = Arc::clone(&runtime);
        Ok::<_, Error>(match table.owner {
            "dav" => Arc::new(Serve(connect_dav(server, chosen, runtime, keep).await?)) as Arc<dyn Service>,
            _ => Arc::new(Serve(connect(server, chosen, runtime, keep).await?)),
        })
    };
    Ok(Client::new(threads.handle().block_on(opened)?, Arc::clone(&runtime), Settings::default()))
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
