// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger mount`: a tree in a directory of the host, through FUSE.

use super::Run;
use crate::cli::seconds;
use crate::context::Context;
use crate::mounted::{self, Job};
use crate::status::{Failure, Status};
use crate::trees;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use outrigger_core::OptionTable;
use outrigger_core::option::option;
use outrigger_door_fuse::Options;
use outrigger_guard::{READY, Seat, Settings, takes_over, watch_over};
use outrigger_host::{Confined, allow_descriptors, named_descriptors};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The options of `-o` that concern no driver.
pub const OPTIONS: &[&OptionTable] = &[
    &outrigger_door_fuse::OPTIONS,
    &OptionTable {
        owner: "mount",
        options: &[option(
            "guard",
            "auto|proxy|none",
            "auto",
            "what happens when the server process dies. auto: another one takes over (through a proxy process before \
             Linux 6.9); proxy: takes over, always through a proxy; none: the mount ends",
        )],
    },
];

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub struct Mount {
    // Read before LOCATION, which reading takes out of what was parsed: where it stood is compared.
    /// What `-o` says.
    #[command(flatten)]
    pub options: Lists,
    /// The tree: a directory, an archive, a disk image, `HOST:PATH`, `mem:`, or a directory inside an archive or image.
    #[arg(value_name = "LOCATION")]
    pub source: OsString,
    /// Where to mount it.
    #[arg(value_name = "DIR")]
    pub mountpoint: PathBuf,
    /// The port of an SSH server, as `-o port=`.
    #[arg(short = 'p', value_name = "PORT")]
    pub port: Option<u16>,
    /// Stay in the foreground.
    #[arg(short, long)]
    pub foreground: bool,
    /// Serve from a single process: its death ends the mount. The same as `-o guard=none`.
    #[arg(long)]
    pub no_guard: bool,
    /// Replace the server process when a request takes longer than this.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub restart_on_hang: Option<Duration>,
}

/// The lists of options of a mount.
#[derive(Debug, Clone)]
pub struct Lists {
    /// All, in the user's order.
    pub all: Vec<String>,
    /// Those that do not stand in front of the LOCATION: a pattern of the shell may have produced them.
    late: Vec<String>,
}

impl Args for Lists {
    fn augment_args(command: clap::Command) -> clap::Command {
        let help = "Options of the mount (ro, allow_other, uid=, gid=, umask=, attr_timeout=, entry_timeout=, writeback, guard=, \
                    ...) and of the driver (`outrigger drivers` lists them); all are in mount.outrigger(8). Those that name \
                    programs stand in front of LOCATION";
        let list = Arg::new("options").short('o').value_name("OPTIONS").help(help);
        command.arg(list.action(ArgAction::Append))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Lists {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let all: Vec<String> = matches.get_many("options").into_iter().flatten().cloned().collect();
        let source = matches.index_of("source");
        let places = matches.indices_of("options").into_iter().flatten();
        let late = places.zip(&all).filter(|(place, _)| Some(*place) > source).map(|(_, list)| list.clone());
        Ok(Lists { late: late.collect(), all })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What becomes of a mount whose server dies (`-o guard=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarding {
    /// Another one goes on: with the kernel's help, or by way of a proxy where the kernel gives none.
    Auto,
    /// The same, by way of a proxy in any case.
    Proxy,
    /// It ends.
    None,
}

/// What `-o` says, by whom it concerns.
pub struct Chosen {
    /// Of the door.
    pub door: Options,
    /// Of the driver.
    pub driver: Vec<String>,
    /// Of this program.
    pub guarding: Guarding,
}

/// Set, to the number of the process that waits, in the environment of the one that serves a mount in the background.
const SERVING: &str = "OUTRIGGER_SERVING";

impl Run for Mount {
    const NAME: &'static str = "mount";

    fn run(self, context: &Context) -> Result<(), Failure> {
        context.options().allow(Self::NAME, &self.options.late, "put -o in front of the LOCATION, or ")?;
        let serving = is_serving()?;
        let traces = context.options().layer.iter().any(|layer| layer.split('=').next() == Some("trace"));
        if traces && !self.foreground && !serving && !takes_over() {
            return Err(Failure::serious(
                "--layer trace prints on standard error, which a mount in the background has not: add --foreground, or use \
                 `outrigger trace DIR` at any time",
            ));
        }
        if serving || self.foreground || takes_over() {
            return self.serve(context, serving);
        }
        start_in_background(context)
    }
}

impl Mount {
    /// What the options say.
    ///
    /// # Errors
    /// A sentence about one that cannot be understood.
    pub fn chosen(&self) -> Result<Chosen, Failure> {
        let parsed = Options::parse(&self.options.all.join(","));
        let (door, mut driver) = parsed.map_err(|error| Failure::serious(error.to_string()))?;
        if driver.iter().any(|option| option == "remount") {
            return Err(Failure::serious(
                "option remount: what is mounted keeps its options; unmount it (`outrigger umount DIR`) and mount it again"
                    .to_owned(),
            ));
        }
        let mut guarding = if self.no_guard { Guarding::None } else { Guarding::Auto };
        for value in driver.extract_if(.., |option| option.starts_with("guard=")) {
            guarding = match &value["guard=".len()..] {
                "auto" => Guarding::Auto,
                "proxy" => Guarding::Proxy,
                "none" => Guarding::None,
                _ => return Err(Failure::serious(format!("option {value}: auto, proxy or none expected"))),
            };
        }
        driver.extend(self.port.map(|port| format!("port={port}")));
        Ok(Chosen { door, driver, guarding })
    }

    /// Serves the mount, in this process or in workers that this one watches over.
    fn serve(self, context: &Context, background: bool) -> Result<(), Failure> {
        allow_descriptors();
        let Chosen { driver, guarding, .. } = self.chosen()?;
        // `upgrade` gives a mount a keeper, whatever its options say and whatever has the name of its tree by now.
        let guarded = takes_over() || guarding != Guarding::None;
        let survives = takes_over() || trees::survives(context, &self.source, &driver);
        if !survives || !guarded {
            let seat = survives.then(|| Seat::alone().map(Arc::new)).transpose()?;
            let job = Job::new(context, &self, seat)?;
            return mounted::serve(context, job, if background { leave_terminal } else { || Ok(()) });
        }
        let asks = trees::asks(&self.source) && io::stderr().is_terminal();
        let settings = Settings { background, restart_on_hang: self.restart_on_hang, asks };
        let status = watch_over(settings, &mut |seat| {
            let job = Job::new(context, &self, Some(Arc::new(seat)));
            if let Err(failure) = job.and_then(|job| mounted::serve(context, job, || Ok(()))) {
                context.complain(failure.status, &failure);
            }
            context.status() as i32
        });
        match status.map_err(|error| Failure::serious(error.to_string()))? {
            0 => {}
            // The worker has said why.
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
        // Whoever waits for the mount may be killed before it answers.
        let cannot = |errno: Errno| Failure::serious(format!("cannot watch the parent process: {errno}"));
        set_parent_process_death_signal(Some(Signal::TERM)).map_err(cannot)?;
    }
    Ok(serving)
}

/// Tells the waiting parent that the mount answers, then lets go of the terminal.
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
/// Forking instead would leave a child with one of several threads; a new process image has no such past.
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
        // The child has said why.
        Some(_) => context.fail(Status::Minor),
        None => return Err(Failure::serious(format!("the process that serves the mount died ({status})"))),
    }
    Ok(())
}
