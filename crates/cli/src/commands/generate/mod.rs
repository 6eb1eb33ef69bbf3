// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger generate`: man pages and shell completions, from the definition of the command line.

mod pages;
mod sections;

use crate::cli::Cli;
use crate::complete;
use crate::context::Context;
use crate::run::Run;
use crate::status::Failure;
use clap::{Args, CommandFactory, ValueEnum};
use outrigger_core::Error;
use rustix::fs::Mode;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// What to write.
    #[arg(value_enum)]
    what: What,
    /// The directory to write into; made when missing.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// What `generate` can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// A page of section 1 for each command, mount.outrigger(8) and outrigger-drivers(7).
    Man,
    /// Completions for bash, zsh and fish.
    Completions,
}

impl Run for Generate {
    const NAME: &'static str = "generate";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        rustix::process::umask(Mode::from_bits_truncate(context.umask));
        let written = fs::create_dir_all(&self.dir).and_then(|()| match self.what {
            What::Man => manual(&self.dir),
            What::Completions => complete::write_scripts(&self.dir),
        });
        written.map_err(|error| {
            Failure::new(format!("cannot write to '{}': {}", self.dir.display(), Error::from(error)))
        })
    }
}

fn manual(dir: &Path) -> io::Result<()> {
    let mut cli = Cli::command();
    clap_mangen::generate_to(cli.clone(), dir)?;
    // Arguments are defined when a command is built.
    cli.build();
    sections::complete(dir, &cli)?;
    pages::write(dir)
}
