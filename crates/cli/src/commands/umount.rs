// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger umount`: ends mounts, also dead and hanging ones.

use crate::context::Context;
use crate::control::{self, Ending};
use crate::run::Run;
use crate::status::{Failure, Status};
use clap::Args;
use outrigger_door_fuse::{Force, unmount, unmount_entry};
use outrigger_host::MountEntry;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the server of a mount may take to let go.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long its process may take to end by default: longer than unmounting an image may (`patience=`).
const END: Duration = Duration::from_secs(180);

/// Arguments of `umount`.
///
/// Writes out what programs have written, and names the files where that fails. Without --lazy and --force it returns when the
/// process that served the mount has ended: an image is then unmounted, and free to be checked or mounted again. It waits for
/// that three minutes at most, or as --timeout says.
#[derive(Debug, Args)]
pub struct Umount {
    /// The mounts.
    #[arg(value_name = "DIR", required = true)]
    mounts: Vec<PathBuf>,
    /// Detach the mount now, even when it is in use; programs that use it keep it until they are done.
    #[arg(short, long)]
    lazy: bool,
    /// End the mount even when its server hangs; waiting programs get an error.
    #[arg(short, long)]
    force: bool,
}

impl Run for Umount {
    const NAME: &'static str = "umount";
    const GLOBALS: &'static [&'static str] = &["timeout"];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let force = match (self.force, self.lazy) {
            (true, _) => Force::Abort,
            (false, true) => Force::Lazy,
            (false, false) => Force::No,
        };
        for mount in &self.mounts {
            match force {
                Force::No => end(context, mount),
                Force::Lazy => drop(detach(context, mount, force, PATIENCE)),
                Force::Abort => cut_off(context, mount),
            }
        }
        Ok(())
    }
}

/// Unmounts and waits until the mount's process has ended, so that what it served can be used.
fn end(context: &Context, mount: &Path) {
    let complain =
        |what: &str| context.complain(Status::Minor, format_args!("'{}': {what}", mount.display()));
    let found = control::locate(mount).ok();
    if let Some((peer, Ok(_))) = &found
        && let Err(what) = control::wait_written(peer)
    {
        complain(&what);
    }
    // Writing out what the kernel has of a mount by NFS takes as long as its server does.
    let patience = match &found {
        Some((_, Ok(_))) => context.options().timeout.unwrap_or(END),
        _ => PATIENCE,
    };
    // One that does not answer may be left from another mount.
    let ending = found
        .filter(|(peer, status)| status.is_ok() || !peer.is_moved())
        .and_then(|(peer, status)| Ending::of(&peer, status.as_ref().ok()));
    if detach(context, mount, Force::No, patience)
        && let Some(ending) = ending
        && let Err(what) = ending.wait(context.options().timeout.unwrap_or(END))
    {
        complain(&what);
    }
}

/// Unmounts even if the mount's process hangs, and ends the connection, so that no program waits for it.
fn cut_off(context: &Context, mount: &Path) {
    let ending = control::find(mount).ok().and_then(|(peer, status)| Ending::of(&peer, Some(&status)));
    if detach(context, mount, Force::Abort, PATIENCE)
        && let Some(Err(what)) = ending.map(|ending| ending.cut())
    {
        context.complain(Status::Minor, format_args!("'{}': {what}", mount.display()));
    }
}

/// Takes the mount away; `false` when that fails. One by NFS may take `patience` to write out what the kernel has.
fn detach(context: &Context, mount: &Path, force: Force, patience: Duration) -> bool {
    let by_nfs = control::resolve(mount).and_then(|path| MountEntry::at(&path)).ok().flatten();
    let unmounted = match by_nfs.filter(control::is_by_nfs) {
        Some(entry) => unmount_entry(&entry, force, patience),
        None => unmount(mount, force, PATIENCE),
    };
    unmounted.map_err(|error| context.complain(Status::Minor, error)).is_ok()
}
