// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger umount`: ends mounts, also dead and hanging ones.

use super::Run;
use crate::context::Context;
use crate::control;
use crate::status::{Failure, Status};
use clap::Args;
use outrigger_door_fuse::{Force, unmount};
use std::path::PathBuf;
use std::time::Duration;

/// How long the server of a mount may take to let go.
const PATIENCE: Duration = Duration::from_millis(500);

/// Arguments of `umount`.
///
/// What programs have written is written first, and what could not be is named.
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

    fn run(self, context: &Context) -> Result<(), Failure> {
        let force = match (self.force, self.lazy) {
            (true, _) => Force::Abort,
            (false, true) => Force::Lazy,
            (false, false) => Force::No,
        };
        for mount in &self.mounts {
            if let (Force::No, Ok((peer, _))) = (force, control::find(mount))
                && let Err(what) = control::wait_written(&peer)
            {
                context.complain(Status::Minor, format_args!("'{}': {what}", mount.display()));
            }
            if let Err(error) = unmount(mount, force, PATIENCE) {
                context.complain(Status::Minor, error);
            }
        }
        Ok(())
    }
}
