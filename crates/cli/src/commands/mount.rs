// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger mount`: a tree in a directory of the host, through FUSE or the kernel's NFS client.

mod nfs;

use crate::context::Context;
use crate::mounted::{self, Chosen, Guarding, Job, Wanted};
use crate::run::Run;
use crate::status::{Failure, Status};
use crate::trees;
use clap::Args;
use outrigger_guard::{READY, Seat, Settings, StandIn, supervise, takes_over};
use outrigger_host::{Confined, allow_descriptors, named_descriptors};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct Mount {
    /// What is mounted, and how.
    #[command(flatten)]
    wanted: Wanted,
}

/// Environment variable of a background server: the pid of the process that waits for the mount.
const SERVING: &str = "OUTRIGGER_SERVING";

impl Run for Mount {
    const NAME: &'static str = "mount";

    fn run(self, context: &Context) -> Result<(), Failure> {
        context.options().allow(
            Self::NAME,
            &self.wanted.options.late,
            "put -o in front of the LOCATION, or ",
        )?;
        // Before anything is started in the background.
        self.wanted.chosen()?;
        let serving = is_serving()?;
        let traces = context.options().layer.iter().any(|layer| layer.split('=').next() == Some("trace"));
        if traces && !self.wanted.foreground && !serving && !takes_over() {
            return Err(Failure::serious(
                "--layer trace prints on standard error, which a mount in the background has not: add --foreground, or use \
                 `outrigger trace DIR` at any time",
            ));
        }
        if serving || self.wanted.foreground || takes_over() {
            return self.serve(context, serving);
        }
        start_in_background(context)
    }
}

impl Mount {
    /// Serves the mount, in this process or in workers that this one supervises.
    /// A mount by NFS always has a supervisor.
    fn serve(self, context: &Context, background: bool) -> Result<(), Failure> {
        allow_descriptors();
        let Chosen { door, by_nfs, driver, guarding } = self.wanted.chosen()?;
        // `upgrade` gives a mount a keeper, whatever its options say and even if its tree was renamed.
        let guarded = takes_over() || guarding != Guarding::None;
        let survives = takes_over() || trees::survives(&context.trees, &self.wanted.source, &driver);
        let stand_in = by_nfs.is_some().then_some(StandIn { restarts: survives && guarded });
        if stand_in.is_none() && (!survives || !guarded) {
            let seat = survives.then(|| Seat::alone().map(Arc::new)).transpose()?;
            let job = Job::new(context, &self.wanted, seat)?;
            return mounted::serve(context, job, if background { leave_terminal } else { || Ok(()) });
        }
        let asks = (trees::asks(&self.wanted.source) || trees::layers_ask(&context.options().layer))
            && io::stderr().is_terminal();
        // Programs wait for a server that can be started again as long as for one that answers.
        let hold = door.timeout.or(context.options().timeout).unwrap_or_default();
        let restart_on_hang = self.wanted.restart_on_hang;
        let settings = Settings { background, restart_on_hang, hold, asks, stand_in };
        let status = supervise(settings, &mut |seat| {
            let seat = Arc::new(seat);
            let ended = match stand_in {
                None => Job::new(context, &self.wanted, Some(seat))
                    .and_then(|job| mounted::serve(context, job, || Ok(())))
                    .map(|()| None),
                Some(StandIn { restarts }) => {
                    nfs::serve(context, &self.wanted, seat, restarts).map(nfs::Ended::status)
                }
            };
            let ended = ended.inspect_err(|failure| context.complain(failure.status, failure));
            ended.ok().flatten().unwrap_or(context.status() as i32)
        });
        match status.map_err(|error| Failure::serious(error.to_string()))? {
            0 => {}
            // The worker has printed the reason.
            _ => context.fail(Status::Minor),
        }
        Ok(())
    }
}

/// Whether this process is to serve a mount in the background, on behalf of a process that waits.
///
/// # Errors
/// When the end of that process could not be noticed.
pub fn is_serving() -> Result<bool, Failure> {
    let waiting = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    let serving = env::var(SERVING).is_ok_and(|pid| takes_over() || Some(pid) == waiting);
    if serving && !takes_over() {
        // The kernel named it after the link it was executed by, "exe". A wrong name does no harm.
        let _ = fs::write("/proc/self/comm", env!("CARGO_BIN_NAME"));
        // The parent, which waits for the mount, may be killed before it is ready.
        let cannot = |errno: Errno| Failure::serious(format!("cannot watch the parent process: {errno}"));
        set_parent_process_death_signal(Some(Signal::TERM)).map_err(cannot)?;
    }
    Ok(serving)
}

/// Signals the waiting parent that the mount answers, then detaches from the terminal.
pub fn leave_terminal() -> io::Result<()> {
    // The parent ends as soon as it reads that the mount answers.
    set_parent_process_death_signal(None)?;
    rustix::process::setsid()?;
    io::stdout().write_all(READY.as_bytes())?;
    io::stdout().flush()?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    env::set_current_dir("/")
}

/// Runs this program again to serve the mount, and returns once the mount answers.
///
/// fork(2) alone would leave a child with one of several threads.
pub fn start_in_background(context: &Context) -> Result<(), Failure> {
    let cannot = |error| Failure::serious(format!("cannot start the process that serves the mount: {error}"));
    let mut arguments = env::args_os();
    let mut child = Command::new("/proc/self/exe")
        .arg0(arguments.next().unwrap_or_default())
        .args(arguments)
        .keeps_only(&named_descriptors(env::args_os()))
        .env(SERVING, std::process::id().to_string())
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
        // The child has printed the reason.
        Some(_) => context.fail(Status::Minor),
        None => return Err(Failure::serious(format!("the process that serves the mount died ({status})"))),
    }
    Ok(())
}
