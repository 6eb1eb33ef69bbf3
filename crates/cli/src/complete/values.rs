// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the values of arguments can be, as far as they are typed.

use crate::context::{Context, Place};
use crate::control::is_ours;
use crate::drivers::{DRIVERS, tables};
use crate::location::{Base, Location, end_of_trees};
use crate::mounted;
use crate::tree_options::TreeOptions;
use crate::trees::LAYERS;
use clap::builder::StyledStr;
use clap_complete::engine::CompletionCandidate;
use outrigger_client::{Follow, Inode};
use outrigger_core::{Cancel, FileKind, OptionInfo, OptionTable};
use outrigger_host::MountEntry;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The mark of candidates that are names of files, which a shell quotes and shows as such.
const FILE: &str = "file";
/// Options for ssh: completion must neither hang nor ask for a password.
const QUIET_SSH: &str = "BatchMode=yes,ConnectTimeout=3";

/// Whether a candidate with this mark is the name of a file.
pub fn is_file(mark: &StyledStr) -> bool {
    mark.to_string() == FILE
}

/// Places in any tree. Hosts are asked only about what no file of this machine could be.
pub fn locations(typed: &OsStr) -> Vec<CompletionCandidate> {
    let found = listed(typed, 0, "", |_| true);
    match Location::parse(typed).base {
        Base::Remote { path, .. } if found.is_empty() => {
            let host = if typed.as_bytes().ends_with(&path) { typed.len() - path.len() } else { 0 };
            listed(typed, host, QUIET_SSH, |_| true)
        }
        _ => found,
    }
}

/// Directories of this machine.
pub fn directories(typed: &OsStr) -> Vec<CompletionCandidate> {
    listed(typed, 0, "", Inode::is_dir)
}

/// The mounts of this program, or directories where none begins so.
pub fn mounts(typed: &OsStr) -> Vec<CompletionCandidate> {
    let mounted = MountEntry::all().unwrap_or_default().into_iter().filter(is_ours);
    let points = mounted.map(|entry| entry.mountpoint.into_os_string());
    let found: Vec<_> = points.filter(|point| begins(point, typed)).map(file).collect();
    if found.is_empty() { directories(typed) } else { found }
}

/// The end of a list of options of `mount -o`.
pub fn mount_options(typed: &OsStr) -> Vec<CompletionCandidate> {
    let of_drivers = DRIVERS.iter().flat_map(tables);
    keys(typed, b",", mounted::OPTIONS.iter().copied().chain(of_drivers))
}

/// The end of a list of options of drivers.
pub fn driver_options(typed: &OsStr) -> Vec<CompletionCandidate> {
    keys(typed, b",", DRIVERS.iter().flat_map(tables))
}

/// A layer, or the end of what is said to it.
pub fn layers(typed: &OsStr) -> Vec<CompletionCandidate> {
    let name = typed.as_bytes().split(|&byte| byte == b'=').next().unwrap_or_default();
    let argument = typed.as_bytes().get(name.len() + 1..);
    let known = LAYERS.iter().find(|layer| layer.name.as_bytes() == name);
    match (known, argument) {
        (Some(layer), Some(argument)) => {
            let prefix = OsStr::from_bytes(&typed.as_bytes()[..=name.len()]);
            let keys = keys(OsStr::from_bytes(argument), b",;", layer.options.iter().copied());
            keys.into_iter().map(|key| key.add_prefix(prefix)).collect()
        }
        _ => {
            let spelt = |name: &str, argument: &str| {
                if argument.is_empty() { name.to_owned() } else { format!("{name}=") }
            };
            let layers = LAYERS.iter().map(|layer| described(spelt(layer.name, layer.argument), layer.does));
            layers.filter(|layer| begins(layer.get_value(), typed)).collect()
        }
    }
}

/// The names of drivers and layers.
pub fn drivers(typed: &OsStr) -> Vec<CompletionCandidate> {
    let drivers = DRIVERS.iter().map(|driver| described(driver.name, driver.opens));
    let layers = LAYERS.iter().map(|layer| described(layer.name, layer.does));
    drivers.chain(layers).filter(|name| begins(name.get_value(), typed)).collect()
}

fn begins(text: &OsStr, typed: &OsStr) -> bool {
    text.as_bytes().starts_with(typed.as_bytes())
}

fn file(name: OsString) -> CompletionCandidate {
    CompletionCandidate::new(name).tag(Some(FILE.into()))
}

fn described(value: impl Into<OsString>, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(help.to_owned().into()))
}

/// Options from `tables` for the last item of a list with these separators, or its values where they are few.
fn keys(
    typed: &OsStr,
    separators: &[u8],
    tables: impl Iterator<Item = &'static OptionTable>,
) -> Vec<CompletionCandidate> {
    let start = typed.as_bytes().iter().rposition(|byte| separators.contains(byte)).map_or(0, |at| at + 1);
    let (done, item) = typed.as_bytes().split_at(start);
    let mut options: Vec<&OptionInfo> = tables.flat_map(|table| table.options).collect();
    options.sort_by_key(|option| option.name);
    options.dedup_by_key(|option| option.name);
    let candidates = options.into_iter().flat_map(|option| forms(option, item.contains(&b'=')));
    candidates
        .filter(|candidate| candidate.get_value().as_bytes().starts_with(item))
        .map(|candidate| candidate.add_prefix(OsStr::from_bytes(done)))
        .collect()
}

/// How an option can be written: its key, or with each of the values it can have.
fn forms(option: &OptionInfo, with_values: bool) -> Vec<CompletionCandidate> {
    let OptionInfo { name, value, help, .. } = option;
    let is_choice = value.contains('|') && !value.contains(|char: char| char.is_ascii_uppercase());
    match (with_values, *value) {
        (_, "") => vec![described(*name, help)],
        (true, value) if is_choice => {
            value.split('|').map(|value| described(format!("{name}={value}"), help)).collect()
        }
        _ => vec![described(format!("{name}="), help)],
    }
}

/// What of the directory that `typed` names up to its last part begins as that does; hidden files where they are asked for.
/// The first `host` bytes name a host.
fn listed(
    typed: &OsStr,
    host: usize,
    options: &str,
    wanted: impl Fn(&Inode) -> bool,
) -> Vec<CompletionCandidate> {
    let text = typed.as_bytes();
    let slash = text.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    let (shown, part) = text.split_at(end_of_trees(text).max(slash).max(host));
    let mut shown = shown.to_vec();
    if shown.ends_with(b"::") {
        shown.push(b'/');
    }
    let Some((context, place, directory)) = open(&shown, options) else { return Vec::new() };
    let Ok(entries) = directory.entries() else { return Vec::new() };
    let matching = entries.flatten().filter(|(name, _)| {
        let name = name.as_bytes();
        name.starts_with(part) && (part.starts_with(b".") || !name.starts_with(b"."))
    });
    let mut found: Vec<_> = matching
        .filter_map(|(name, inode)| {
            let inode = match inode.kind() {
                FileKind::Symlink => place.child(name.as_bytes()).find(Follow::Yes).unwrap_or(inode),
                _ => inode,
            };
            let end: &[u8] = if inode.is_dir() { b"/" } else { b"" };
            let whole = || OsString::from_vec([&shown, name.as_bytes(), end].concat());
            wanted(&inode).then(|| file(whole()))
        })
        .collect();
    context.settle();
    found.sort_by(|one, other| one.get_value().cmp(other.get_value()));
    found
}

/// The directory at a place, opened as `ls` would.
fn open(directory: &[u8], options: &str) -> Option<(Context, Place, Inode)> {
    let options = TreeOptions { opt: vec![options.to_owned()], ..TreeOptions::default() };
    let context = Context::new("complete", true, false, options, Cancel::default());
    let home = std::env::var_os("HOME").unwrap_or_default();
    let text = match directory {
        b"" => b".".to_vec(),
        [b'~', b'/', rest @ ..] => [home.as_bytes(), b"/", rest].concat(),
        other => other.to_vec(),
    };
    let place = context.place(OsStr::from_bytes(&text)).ok()?;
    let directory = place.find(Follow::Yes).ok()?;
    Some((context, place, directory))
}
