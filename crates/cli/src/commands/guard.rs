// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger guard`: a FUSE program whose crashes go unnoticed.

use super::mount::{is_serving, leave_terminal, start_in_background};
use crate::context::Context;
use crate::control::{self, Ask};
use crate::drivers::{DriverOptions, opened};
use crate::mounted::{self, Job, taken_by};
use crate::run::Run;
use crate::status::Failure;
use crate::tree_options::seconds;
use crate::trees::Tree;
use clap::Args;
use outrigger_core::registry::Opened;
use outrigger_core::{Error, Runtime};
use outrigger_door_fuse::Options;
use outrigger_driver_libfuse::launch::Launch;
use outrigger_driver_libfuse::{DRIVER, LibFuse, keeps_changes};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `MS_RDONLY` of mount(2).
const READ_ONLY: u64 = 1;

/// Arguments of `guard`.
///
/// Runs a program that mounts a FUSE file system, as in `outrigger guard -- sshfs host:/ /mnt`, unchanged. Outrigger stands between
/// the program and the kernel: when the program dies it is started again, and programs that use the mount see no error. A request
/// that takes too long fails, and the mount goes on. Such a mount cannot be upgraded; `guard --replace` exchanges the program. A directory that
/// is guarded already is refused.
#[derive(Debug, Args)]
pub struct Guard {
    /// Options of the mount (as for `mount`), and of the driver `fuse` (`outrigger drivers` lists them).
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// End the program that serves this mount, and go on with COMMAND in its place: nothing is unmounted, and open files
    /// stay open. COMMAND runs with the environment of the mount, and cannot ask for a password. When it does not
    /// start, the old program goes on.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["options", "foreground", "restart_on_hang"])]
    replace: Option<PathBuf>,
    /// Stay in the foreground.
    #[arg(short, long)]
    foreground: bool,
    /// Start the program again when a request takes longer than this.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    restart_on_hang: Option<Duration>,
    /// The program with its arguments, all that follows it, among them the directory to mount on (which `--replace` does not need).
    #[arg(required = true, value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Run for Guard {
    const NAME: &'static str = "guard";

    fn run(self, context: &Context) -> Result<(), Failure> {
        if let Some(mount) = &self.replace {
            return replace(mount, &self.command);
        }
        let serving = is_serving()?;
        if serving || self.foreground {
            return self.serve(context, serving);
        }
        start_in_background(context)
    }
}

impl Guard {
    fn serve(self, context: &Context, background: bool) -> Result<(), Failure> {
        let parsed = Options::parse(&self.options.join(","));
        let (options, others) = parsed.map_err(|error| Failure::serious(error.to_string()))?;
        let hang = self.restart_on_hang.map(|limit| format!("restart-on-hang={}", limit.as_secs_f64()));
        // `timeout=` limits both the mount's requests and the end of the program.
        let limit =
            self.options.iter().flat_map(|list| list.split(',')).filter(|item| item.starts_with("timeout="));
        let of_driver = others.iter().chain(&hang).map(String::as_str).chain(limit);
        let source = self.command.join(OsStr::new(" "));
        let keeps = self.command.first().and_then(|program| keeps_changes(Path::new(program)));
        let words = self.command.clone();
        let (launch, options_of_driver) = (Launch::new(self.command), DriverOptions::of(of_driver));
        let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
        let site = context.trees.site(&runtime, None);
        let started = opened(
            &DRIVER,
            &options_of_driver,
            |given| LibFuse::open(launch, given, &site),
            // Some programs mount on empty directories only.
            |error| match words.iter().find_map(|word| in_use(Path::new(word))) {
                Some(why) => Failure::serious(format!("{}; {why}", error.why().trim_end())),
                None => Failure::serious(error.why()),
            },
        );
        let program = Arc::new(started?);
        if program.mounted().argument.is_none() {
            let target = program.mounted().target.display();
            return Err(Failure::serious(format!(
                "no word of the command is the mountpoint {target}: give it as an argument of its own"
            )));
        }
        let mountpoint = program.mounted().target.clone();
        if let Some(why) = in_use(&mountpoint) {
            return Err(Failure::serious(why));
        }
        // The mount is there nevertheless, so this changes no exit status.
        if let Some(risk) = keeps.filter(|_| program.mounted().flags & READ_ONLY == 0) {
            let _ = writeln!(io::stderr(), "outrigger guard: warning: {risk}");
        }
        let job = Job {
            mountpoint,
            options: adopt(options, &program),
            list: String::new(),
            tree: Tree::of(
                &context.trees,
                &source,
                Opened { service: program.clone(), control: Some(program), warnings: Vec::new() },
            )?,
            source,
            seat: None,
            proxy: false,
            inherited: None,
        };
        mounted::serve(context, job, if background { leave_terminal } else { || Ok(()) })
    }
}

/// Why nothing can be mounted on a directory that one of our mounts is on already, if one is.
fn in_use(path: &Path) -> Option<String> {
    let why = taken_by(path, &control::resolve(path).ok()?).ok()??;
    Some(format!("{why}; `outrigger guard --replace DIR -- COMMAND` exchanges a program that is guarded"))
}

/// Has `command` serve a mount of ours.
fn replace(mount: &Path, command: &[OsString]) -> Result<(), Failure> {
    let failed =
        |why: String| Failure::new(format!("cannot replace the program of '{}': {why}", mount.display()));
    let (peer, _) = control::find(mount)?;
    let here = |error| failed(format!("the working directory is not known: {}", Error::from(error)));
    let directory = std::env::current_dir().map_err(here)?;
    let found = control::resolve(mount).map_err(|error| failed(Error::from(error).to_string()))?;
    let names_it = |word: &OsString| control::resolve(Path::new(word)).is_ok_and(|path| path == found);
    // Programs expect the source before the mountpoint.
    let argument = command.iter().rposition(names_it);
    peer.order(&Ask::Replace { command: command.to_vec(), directory, argument }).map_err(failed)
}

/// The mount looks and behaves as the program wanted it.
fn adopt(mut options: Options, program: &LibFuse) -> Options {
    let wanted = program.mounted();
    options.allow_other |= program.allows_others();
    options.default_permissions = program.wants_default_permissions();
    options.passthrough = false;
    for restriction in wanted.restrictions() {
        // A name without a value is always valid.
        let _ = options.set(restriction);
    }
    let kind = wanted.fstype.as_bytes().strip_prefix(b"fuse.").unwrap_or(b"fuse");
    let kind = String::from_utf8_lossy(kind);
    // A program that finds its own image in the table of mounts takes it for mounted, and is not started again: ntfs-3g.
    options.fsname.get_or_insert_with(|| format!("{kind}#{}", wanted.source.display()));
    options.subtype.get_or_insert_with(|| format!("outrigger.{kind}"));
    options
}
