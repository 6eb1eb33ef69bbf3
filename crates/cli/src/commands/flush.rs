// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger flush`: a mount drops what it and the kernel have cached.

use crate::context::Context;
use crate::control::{self, Ask};
use crate::run::Run;
use crate::status::Failure;
use clap::Args;
use outrigger_core::Error;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Arguments of `flush`.
///
/// What the kernel has of what programs have written is given to the tree first; with `write=behind` and
/// delays, the tree stores it later, which --wait waits for. Then names and attributes are asked for again, and the
/// superuser's mounts drop the content of files that are not in use.
#[derive(Debug, Args)]
pub struct Flush {
    /// The mounts.
    #[arg(value_name = "DIR", required = true)]
    mounts: Vec<PathBuf>,
    /// Wait until what programs have written is written at the other end, too (`write=behind`, `write=SECONDS` or `PERCENT%`).
    #[arg(short, long)]
    wait: bool,
}

impl Run for Flush {
    const NAME: &'static str = "flush";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, _: &Context) -> Result<(), Failure> {
        for mount in &self.mounts {
            let (peer, _) = control::find(mount)?;
            let failed = |what: String| Failure::new(format!("cannot flush '{}': {what}", mount.display()));
            write_and_drop(mount).map_err(|error| failed(Error::from(error).to_string()))?;
            peer.order(&Ask::Flush).map_err(failed)?;
            if self.wait {
                control::wait_written(&peer).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Writes dirty pages, and drops unused inodes and their pages, which the kernel does on a remount.
fn write_and_drop(mount: &Path) -> io::Result<()> {
    let dir = File::open(mount)?;
    rustix::fs::syncfs(&dir)?;
    if rustix::process::geteuid().is_root() {
        let now = rustix::fs::fstatvfs(&dir)?.f_flag;
        drop(dir);
        rustix::mount::mount_remount(mount, kept(now), "")?;
    }
    Ok(())
}

/// The mount flags that a remount would lose otherwise.
fn kept(now: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        (StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
    ];
    pairs.into_iter().filter(|(flag, _)| now.contains(*flag)).map(|(_, kept)| kept).collect()
}
