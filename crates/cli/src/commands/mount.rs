// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger mount`: a tree in a directory of the host, through FUSE.

use super::Run;
use crate::context::Context;
use crate::mounted;
use crate::status::{Failure, Status};
use clap::Args;
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// The tree: a directory, an archive, `mem:`, or a directory inside an archive.
    #[arg(value_name = "LOCATION")]
    pub source: OsString,
    /// Where to mount it.
    #[arg(value_name = "DIR")]
    pub mountpoint: PathBuf,
    /// Options of the mount (ro, allow_other, uid=, gid=, umask=, attr_timeout=, entry_timeout=, writeback, ...) and of
    /// the driver (`outrigger drivers` lists them); all are in mount.outrigger(8).
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground.
    #[arg(short, long)]
    pub foreground: bool,
}

/// Set in the environment of the process that serves a mount in the background.
const SERVING: &str = "OUTRIGGER_SERVING";
/// What that process prints once the mount answers.
pub const READY: &str = "ready\n";

impl Run for Mount {
    const NAME: &'static str = "mount";

    fn run(self, context: &Context) -> Result<(), Failure> {
        let serving = env::var_os(SERVING).is_some();
        if serving {
            // Whoever waits for the mount may be killed before it answers.
            let cannot = |errno: Errno| Failure::serious(format!("cannot watch the parent process: {errno}"));
            set_parent_process_death_signal(Some(Signal::TERM)).map_err(cannot)?;
            // Process listings would show `exe` otherwise; what they show is of no further importance.
            let _ = fs::write("/proc/self/comm", "outrigger");
        }
        if serving || self.foreground {
            return mounted::serve(context, &self, serving);
        }
        start_in_background(context)
    }
}

/// Runs this program again to serve the mount, and returns once the mount answers.
///
/// Forking instead would leave a child with one of several threads; a new process image has no such past.
fn start_in_background(context: &Context) -> Result<(), Failure> {
    let cannot = |error| Failure::serious(format!("cannot start the process that serves the mount: {error}"));
    let mut arguments = env::args_os();
    let mut child = Command::new("/proc/self/exe")
        .arg0(arguments.next().unwrap_or_default())
        .args(arguments)
        .env(SERVING, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut said).map_err(cannot)?;
    }
    if said == READY {
        return Ok(());
    }
    let status = child.wait().map_err(cannot)?;
    match status.code() {
        // The child has said why.
        Some(code) => context.fail(if code == 2 { Status::Serious } else { Status::Minor }),
        None => return Err(Failure::serious(format!("the process that serves the mount died ({status})"))),
    }
    Ok(())
}
