// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks a directory as a door with readdirplus does, never forgetting, and tells what that took.
//!
//! `cargo run --release -p outrigger-driver-local --example walk -- DIRECTORY [KEY=VALUE]...` prints one line: how many
//! files there are, microseconds for each, and how much memory is resident afterwards in KiB.

use outrigger_core::ops::{OpenDir, ReadDirPlus, ReleaseDir};
use outrigger_core::reply::DirentPlus;
use outrigger_core::{BlockingDriver, Credentials, Cx, Node, Result};
use outrigger_driver_local::{Local, LocalOptions};
use std::time::Instant;

/// What a FUSE kernel asks for at most in one request.
const SIZE: u32 = 128 << 10;

/// Lists `node`, counting its entries and adding the directories among them to `left`.
fn list(local: &Local, cx: &Cx, node: Node, left: &mut Vec<Node>) -> Result<u64> {
    let handle = local.opendir(cx, OpenDir { node })?.handle;
    let (mut count, mut cookie) = (0, 0);
    loop {
        let piece = local.readdirplus(cx, ReadDirPlus { node, handle, cookie, size: SIZE })?;
        for DirentPlus { cookie: at, entry, .. } in &piece.entries {
            count += 1;
            cookie = *at;
            if entry.attr.is_dir() {
                left.push(entry.node);
            }
        }
        if piece.eof {
            local.releasedir(cx, ReleaseDir { node, handle })?;
            return Ok(count);
        }
    }
}

/// Resident memory in KiB, from proc_pid_status(5).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let mut options = LocalOptions::default();
    for argument in arguments {
        let (key, value) = argument.split_once('=').unwrap_or((&argument, ""));
        options.set(key, value)?;
    }
    let local = Local::open(directory, options)?;
    let cx = Cx::new(1, Credentials::ROOT, "walk");
    let (start, mut left, mut count) = (Instant::now(), vec![Node::ROOT], 0);
    while let Some(node) = left.pop() {
        count += list(&local, &cx, node, &mut left)?;
    }
    let each = start.elapsed().as_secs_f64() * 1e6 / count.max(1) as f64;
    println!("{count} files, {each:.2} us each, {} KiB resident", resident());
    Ok(())
}
