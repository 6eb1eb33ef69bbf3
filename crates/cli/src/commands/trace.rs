// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger trace`: the messages of a running mount, as they pass.

use super::{Run, output_failed};
use crate::context::Context;
use crate::control::{self, Ask};
use crate::status::Failure;
use clap::Args;
use std::io;
use std::path::PathBuf;

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// The mount. Tracing ends with Ctrl-C; the mount goes on.
    #[arg(value_name = "DIR")]
    mount: PathBuf,
}

impl Run for Trace {
    const NAME: &'static str = "trace";

    fn run(self, context: &Context) -> Result<(), Failure> {
        let (peer, _) = control::find(&self.mount)?;
        let mut messages = peer
            .connect(&Ask::Trace { json: context.json })
            .map_err(|error| Failure::new(format!("cannot trace '{}': {error}", self.mount.display())))?;
        io::copy(&mut messages, &mut io::stdout().lock()).map_err(output_failed)?;
        Ok(())
    }
}
