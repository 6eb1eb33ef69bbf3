// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve`: trees for other machines.

pub mod common;
mod exports;
mod listen;
pub mod nfs;
mod ninep;
mod socket;
mod state;
mod wire;

use crate::context::Context;
use crate::run::Run;
use crate::status::Failure;
use clap::{Args, Subcommand};

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// How.
    #[command(subcommand)]
    by: By,
}

/// The protocols.
#[derive(Debug, Subcommand)]
enum By {
    /// Export trees by NFS version 3, to the mount(8) of any system; stays in the foreground.
    Nfs(nfs::Nfs),
    /// Export trees by 9P, to Linux' mount(8), virtual machines and Plan 9; stays in the foreground.
    #[command(name = "9p")]
    NineP(ninep::NineP),
    /// Serve a tree to other processes of outrigger: those of this machine, by way of ssh, and by TLS.
    Wire(wire::Wire),
}

impl Run for Serve {
    const NAME: &'static str = "serve";
    const INTERRUPTIBLE: bool = true;

    fn run(self, context: &Context) -> Result<(), Failure> {
        match self.by {
            By::Nfs(nfs) => nfs.run(context),
            By::NineP(ninep) => ninep.run(context),
            By::Wire(wire) => wire.run(context),
        }
    }
}
