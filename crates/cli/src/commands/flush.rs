// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger flush`: a mount drops what it and the kernel have cached.

use super::Run;
use crate::context::Context;
use crate::control::{self, Answer, Ask};
use crate::status::Failure;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `flush`.
#[derive(Debug, Args)]
pub struct Flush {
    /// The mounts.
    #[arg(value_name = "DIR", required = true)]
    mounts: Vec<PathBuf>,
}

impl Run for Flush {
    const NAME: &'static str = "flush";

    fn run(self, _: &Context) -> Result<(), Failure> {
        for mount in &self.mounts {
            let (peer, _) = control::find(mount)?;
            let failed = |what: String| Failure::new(format!("cannot flush '{}': {what}", mount.display()));
            match peer.ask(&Ask::Flush).map_err(|error| failed(error.to_string()))? {
                Answer::Done => {}
                Answer::Failed(reason) => return Err(failed(reason)),
                Answer::Status(_) => return Err(failed("an unexpected answer".into())),
            }
        }
        Ok(())
    }
}
