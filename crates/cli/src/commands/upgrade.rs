// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger upgrade`: mounts go on as this program, with everything programs have open.

use crate::context::Context;
use crate::control::{self, Ask};
use crate::run::Run;
use crate::status::{Failure, Status};
use clap::Args;
use outrigger_core::Error;
use outrigger_core::survive::Layout;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Arguments of `upgrade`.
///
/// Run it with the new program: the mounts, made by an older one, go on as that. Nothing is unmounted, open files stay
/// open, and requests in flight are finished by the new program. A mount without a keeper (`--no-guard`) gets one: its requests in
/// flight are finished first.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// The mounts.
    #[arg(value_name = "DIR", required = true)]
    mounts: Vec<PathBuf>,
}

/// How long the new program may take to serve.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often it is asked.
const PERIOD: Duration = Duration::from_millis(20);

impl Run for Upgrade {
    const NAME: &'static str = "upgrade";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::serious(format!("cannot find the path of this program: {}", Error::from(error)))
        })?;
        for mount in &self.mounts {
            if let Err(failure) = upgrade(mount, &program) {
                context.complain(Status::Minor, failure);
            }
        }
        Ok(())
    }
}

fn upgrade(mount: &Path, program: &Path) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(format!("cannot upgrade '{}': {why}", mount.display()));
    let (peer, before) = control::find(mount)?;
    let ask = Ask::Upgrade { program: program.to_owned(), layouts: Layout::all_read() };
    if let Err(why) = peer.order(&ask) {
        // Another `upgrade` may have ended the process that was asked.
        return Err(failed(match control::find(mount) {
            Ok((_, now)) if now.pid != before.pid => {
                "another process has taken it over at this moment; try again".to_owned()
            }
            _ => why,
        }));
    }
    let asked = Instant::now();
    while asked.elapsed() < DEADLINE {
        match control::find(mount) {
            Ok((_, now)) if now.pid != before.pid => return Ok(()),
            _ => thread::sleep(PERIOD),
        }
    }
    Err(failed(format!("the new program does not serve after {} s", DEADLINE.as_secs())))
}
