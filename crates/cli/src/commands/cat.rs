// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger cat`: files to standard output.

use super::{Run, output_failed};
use crate::context::{Context, Place};
use crate::status::{Failure, Status};
use clap::Args;
use outrigger_client::Follow;
use outrigger_core::Errno;
use outrigger_core::ops::OpenFlags;
use std::ffi::OsString;
use std::io::{self, Write};

/// Arguments of `cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// The files; `-` or none for standard input.
    #[arg(value_name = "LOCATION")]
    files: Vec<OsString>,
}

impl Run for Cat {
    const NAME: &'static str = "cat";

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        for file in &self.files {
            let place = context.place(file)?;
            copy(context, &place, &mut out)?;
        }
        Ok(())
    }
}

fn copy(context: &Context, place: &Place, out: &mut impl Write) -> Result<(), Failure> {
    let opened = place.find(Follow::Yes).and_then(|inode| {
        if inode.is_dir() { Err(Errno::EISDIR.into()) } else { inode.open(OpenFlags::empty()) }
    });
    let file = match opened {
        Ok(file) => file,
        Err(error) => {
            context.complain(Status::Minor, format_args!("{}: {error}", place.display()));
            return Ok(());
        }
    };
    let mut reader = file.reader(0);
    loop {
        match reader.chunk() {
            Ok(chunk) if chunk.is_empty() => return Ok(()),
            Ok(chunk) => out.write_all(&chunk).map_err(output_failed)?,
            Err(error) => {
                context.complain(Status::Minor, format_args!("{}: {error}", place.display()));
                return Ok(());
            }
        }
    }
}
