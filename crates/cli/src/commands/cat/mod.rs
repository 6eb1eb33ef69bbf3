// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger cat`: files to standard output.

mod format;

use crate::context::{Context, Place};
use crate::format::quote::before_colon;
use crate::interrupt;
use crate::messages::output_failed;
use crate::run::Run;
use crate::say::place;
use crate::status::{Exits, Failure, Status};
use bytes::Bytes;
use clap::Args;
use format::{Format, Formatter};
use outrigger_client::{File, Follow, Inode};
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, FileKind};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::sync_channel;
use std::thread;

/// Bytes asked for at once.
const BLOCK: usize = 1 << 20;
/// Blocks read ahead of the one being written.
const AHEAD: usize = 3;

/// Arguments of `cat`.
#[derive(Debug, Args)]
pub struct Cat {
    #[command(flatten)]
    format: Format,
    /// The files; `-` or none for standard input.
    #[arg(value_name = "LOCATION")]
    files: Vec<OsString>,
}

impl Run for Cat {
    const NAME: &'static str = "cat";
    const EXITS: Exits = Exits::Plain;
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        true
    }

    fn run(mut self, context: &Context) -> Result<(), Failure> {
        // Straight to the descriptor: what is written are whole blocks already.
        let out = io::stdout().as_fd().try_clone_to_owned().map(fs::File::from).map_err(output_failed)?;
        if self.files.is_empty() {
            self.files.push("-".into());
        }
        let mut printer = Printer { context, out, formatter: self.format.formatter() };
        for file in &self.files {
            if context.cancel.is_raised() {
                break;
            }
            if file == "-" {
                printer.standard_input()?;
            } else if let Some(place) = place(context, file) {
                printer.print(&place)?;
            }
        }
        printer.finish()
    }
}

struct Printer<'c> {
    context: &'c Context,
    out: fs::File,
    formatter: Option<Formatter>,
}

/// What identifies a regular file that has content: inode number, time of last change, size.
fn identity(file: &fs::File) -> Option<(u64, i64, u64)> {
    let metadata = file.metadata().ok().filter(fs::Metadata::is_file)?;
    Some((metadata.ino(), metadata.ctime(), metadata.size())).filter(|&(_, _, size)| size > 0)
}

impl Printer<'_> {
    fn complain(&self, place: &Place, error: &Error) {
        if !(error.errno == Errno::EINTR && self.context.cancel.is_raised()) {
            self.context
                .complain(Status::Minor, format_args!("{}: {error}", before_colon(place.shown.as_bytes())));
        }
    }

    fn print(&mut self, place: &Place) -> Result<(), Failure> {
        let opened = place.find(Follow::Yes).and_then(|inode| {
            let file =
                if inode.is_dir() { Err(Errno::EISDIR.into()) } else { inode.open(OpenFlags::empty()) };
            file.map(|file| (inode, file))
        });
        match opened {
            Ok((inode, _)) if self.is_own(&inode) => {
                let message =
                    format_args!("{}: input file is output file", before_colon(place.shown.as_bytes()));
                self.context.complain(Status::Minor, message);
            }
            Ok((inode, file)) => {
                let attr = inode.attr();
                let end = self.stream(&file, attr.size)?;
                let is_regular = attr.kind() == FileKind::Regular;
                let check = |end| if is_regular { file.check_end(attr, end) } else { Ok(()) };
                if let Err(error) = end.and_then(check) {
                    self.complain(place, &error);
                }
            }
            Err(error) => self.complain(place, &error),
        }
        Ok(())
    }

    /// Whether printing this file would append to it for ever.
    fn is_own(&self, inode: &Inode) -> bool {
        let attr = inode.attr();
        let local = inode.client().abilities().driver == "local";
        local && identity(&self.out) == Some((attr.ino, attr.ctime.secs, attr.size))
    }

    /// Prints a file, reading ahead on another thread when it is large. The inner result is about reading: where it ended.
    fn stream(&mut self, file: &File, size: u64) -> Result<Result<u64, Error>, Failure> {
        let blocks = |mut at: u64| {
            move || match file.read_at(at, BLOCK) {
                Ok(block) if block.is_empty() => None,
                read => {
                    at += read.as_ref().map_or(0, |block| block.len() as u64);
                    Some(read)
                }
            }
        };
        if size <= BLOCK as u64 {
            return self.write_all(std::iter::from_fn(blocks(0)));
        }
        thread::scope(|scope| {
            let (sender, received) = sync_channel(AHEAD);
            let read = std::iter::from_fn(blocks(0));
            scope.spawn(move || {
                for block in read {
                    let failed = block.is_err();
                    // The writer hangs up when it fails.
                    if sender.send(block).is_err() || failed {
                        return;
                    }
                }
            });
            self.write_all(received.into_iter())
        })
    }

    fn write_all(
        &mut self,
        blocks: impl Iterator<Item = Result<Bytes, Error>>,
    ) -> Result<Result<u64, Error>, Failure> {
        let mut end = 0;
        for block in blocks {
            match block {
                Ok(block) => {
                    self.write(&block)?;
                    end += block.len() as u64;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(end))
    }

    fn write(&mut self, block: &[u8]) -> Result<(), Failure> {
        let written = match &mut self.formatter {
            None => self.out.write_all(block),
            Some(formatter) => self.out.write_all(formatter.format(block)),
        };
        written.map_err(failed)
    }

    fn standard_input(&mut self) -> Result<(), Failure> {
        let mut input = io::stdin().lock();
        let mut block = vec![0; BLOCK];
        loop {
            if !interrupt::wait_readable(io::stdin()).map_err(output_failed)? {
                return Ok(());
            }
            match input.read(&mut block) {
                Ok(0) => return Ok(()),
                Ok(count) => self.write(&block[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let error = Error::from(error);
                    self.context.complain(Status::Minor, format_args!("-: {error}"));
                    return Ok(());
                }
            }
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        match &mut self.formatter {
            None => Ok(()),
            Some(formatter) => self.out.write_all(formatter.finish()).map_err(failed),
        }
    }
}

fn failed(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        interrupt::reader_gone();
    }
    output_failed(error)
}
