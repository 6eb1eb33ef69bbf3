// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the system that make file systems.

use crate::interrupt::wait_readable;
use crate::status::Failure;
use outrigger_core::Error;
use outrigger_host::Confined;
use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, Read, pipe};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Where administrators' programs are, which the search path of other users may lack.
const FURTHER: &str = "/usr/local/sbin:/usr/sbin:/sbin";
/// As much of what a program says is kept, in bytes.
const WORDS: usize = 4096;

/// A program.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// Its name.
    pub program: &'static str,
    /// The Debian package it is in.
    pub package: &'static str,
}

/// A program that runs.
pub struct Running {
    tool: Tool,
    child: Child,
    words: PipeReader,
}

impl Tool {
    /// Where it is.
    ///
    /// # Errors
    /// That it is missing, with what to install.
    fn find(self) -> Result<PathBuf, Failure> {
        let path = search_path();
        let found = std::env::split_paths(&path)
            .map(|directory| directory.join(self.program))
            .find(|file| file.is_file());
        found.ok_or_else(|| {
            Failure::serious(format!(
                "this type of image needs the program {}: install {} (Debian's name of the package)",
                self.program, self.package
            ))
        })
    }

    /// Starts it with these arguments, variables and descriptors, and nothing else of ours.
    ///
    /// # Errors
    /// That it is missing, or cannot be started.
    fn start(
        self,
        arguments: &[OsString],
        variables: &[(&str, String)],
        descriptors: &[RawFd],
    ) -> Result<Running, Failure> {
        let file = self.find()?;
        let cannot = |error: io::Error| {
            Failure::serious(format!("cannot start {}: {}", file.display(), Error::from(error)))
        };
        let (words, said) = pipe().map_err(cannot)?;
        let mut command = Command::new(&file);
        // Ctrl-C is for us to see.
        command.args(arguments).confined(descriptors).dies_with_thread().env_clear().process_group(0);
        command
            .env("PATH", search_path())
            // Labels are UTF-8, and messages English.
            .env("LC_ALL", "C.UTF-8")
            .envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command.stdout(said.try_clone().map_err(cannot)?).stderr(said);
        let child = command.spawn().map_err(cannot)?;
        Ok(Running { tool: self, child, words })
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// As [`Tool::start`] and [`Running::finish`].
    pub fn run(
        self,
        arguments: &[OsString],
        variables: &[(&str, String)],
        descriptors: &[RawFd],
    ) -> Result<(), Failure> {
        self.start(arguments, variables, descriptors)?.finish()
    }
}

impl Running {
    /// Waits until it has ended.
    ///
    /// # Errors
    /// That it has failed, with what it said, or that the user has interrupted the command.
    pub fn finish(mut self) -> Result<(), Failure> {
        let cannot =
            |error: io::Error| Failure::serious(format!("{}: {}", self.tool.program, Error::from(error)));
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            if !wait_readable(&self.words).map_err(cannot)? {
                return Err(Failure::new("interrupted"));
            }
            match self.words.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => said.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(cannot(error)),
            }
            // What went wrong is said last.
            said.drain(..said.len().saturating_sub(WORDS));
        }
        let status = self.child.wait().map_err(cannot)?;
        if status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&said);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = said[said.len().saturating_sub(3)..].join("; ");
        let last = last.escape_debug();
        Err(Failure::serious(format!("{} has failed ({status}): {last}", self.tool.program)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already unless the command was interrupted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(OsStr::new(FURTHER));
    path
}
