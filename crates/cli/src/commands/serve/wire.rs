// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve wire`: a tree by the messages of the core, to other processes of Outrigger.

use super::common::{BACKLOG, PATIENCE, store};
use super::exports::Whom;
use super::nfs::{end, stack};
use super::socket::{Named, named};
use crate::context::Context;
use crate::logging;
use crate::messages::output_failed;
use crate::status::Failure;
use crate::trees;
use clap::Args;
use outrigger_core::{Credentials, Groups};
use outrigger_door_wire::{Options, Server};
use outrigger_guard::tell_manager;
use rustix::net::listen;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// What is said without being asked for.
const MESSAGES: &str = "outrigger_door_wire=warn,outrigger_toolkit_serve=warn";

/// Arguments of `serve wire`.
///
/// The other side is ssh://HOST/PATH, which starts this command at HOST by itself, or wire:unix:PATH. Requests are made as the user who runs
/// this command. When another program changes a directory of this machine, clients drop what they have cached of it (inotify(7)).
#[derive(Debug, Args)]
pub struct Wire {
    /// The tree.
    #[arg(value_name = "LOCATION")]
    location: OsString,
    /// Serve one client on standard input and output, and end with it: what ssh://HOST/PATH starts at HOST.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// Listen at a socket of this machine, as in unix:/run/user/1000/tree. Only its user may connect; chmod(1) lets others in.
    #[arg(long, value_name = "unix:PATH", value_parser = socket, required_unless_present = "stdio")]
    listen: Option<PathBuf>,
    /// As whom requests are made: `all` as the user who runs this command, `none` as whom the client says, which only root can do.
    #[arg(long, value_name = "WHO", default_value = "all")]
    squash: Whom,
    /// Refuse every change.
    #[arg(long)]
    read_only: bool,
    /// Options of the driver (`outrigger drivers` lists them).
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

fn socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err("unix:PATH is expected: a socket of this machine. By the network, clients name ssh://HOST/PATH, which starts \
                  `outrigger serve wire --stdio` there"
            .to_owned()),
    }
}

impl Wire {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        context.options().allow("serve", &self.options, "")?;
        logging::start_by_default(MESSAGES);
        context.trees.runtime.serve();
        let one_user = self.one_user()?;
        let mut options = self.options.clone();
        if trees::guards_itself(&context.trees, &self.location, &options) {
            options.push("guard".to_owned());
        }
        if self.read_only && trees::is_of_kernel_code(&context.trees, &self.location, &self.options) {
            options.push("ro".to_owned());
        }
        context.trees.are_read_only(self.read_only);
        let tree = trees::mountable(&context.trees, &self.location, &options, None)?;
        let stacked = stack(context, &tree, self.read_only);
        let (service, closes) = stacked.map_err(|error| Failure::serious(error.to_string()))?;
        let serving = Options {
            service,
            runtime: context.trees.runtime.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            one_user,
            directory: directory(&self.location),
        };
        let served = match &self.listen {
            Some(path) => self.listen(context, serving, path),
            None => stdio(context, serving),
        };
        let ended = [served, end(context, &closes), store(context, &tree), context.trees.changed.close()];
        // All, whatever became of one.
        ended.into_iter().collect()
    }

    /// As whom requests are made; `None` for whom the client says.
    fn one_user(&self) -> Result<Option<Credentials>, Failure> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        match self.squash {
            Whom::All => {
                let groups = rustix::process::getgroups().map_err(|errno| cannot_tell(&errno.into()))?;
                let groups: Vec<u32> = groups.into_iter().map(|group| group.as_raw()).collect();
                let own = Credentials::new(uid.as_raw(), gid.as_raw());
                Ok(Some(Credentials { groups: Groups::of(&groups), ..own }))
            }
            Whom::None if uid.is_root() => Ok(None),
            Whom::None => Err(Failure::serious("--squash none: only root can make requests as other users")),
            Whom::Root => Err(Failure::serious(
                "--squash root: requests are made as the user who runs this command (all), or as whom the client says (none)",
            )),
        }
    }

    fn listen(&self, context: &Context, serving: Options, path: &Path) -> Result<(), Failure> {
        let cannot = |error: io::Error| {
            Failure::new(format!(
                "cannot listen at unix:{}: {}",
                path.display(),
                outrigger_core::Error::from(error)
            ))
        };
        let socket = named(path).map_err(cannot)?;
        let _named = Named(path);
        listen(&socket, BACKLOG).map_err(|errno| cannot(errno.into()))?;
        let listener = UnixListener::from(socket);
        context.trees.runtime.handle().block_on(async {
            let server = Server::new(serving).map_err(|error| Failure::serious(error.to_string()))?;
            self.announce(context, path).map_err(output_failed)?;
            tell_manager("READY=1");
            let listened = context.cancel.unless_raised(server.listen(listener)).await;
            listened.unwrap_or(Ok(())).map_err(cannot)?;
            tell_manager("STOPPING=1");
            server.close(PATIENCE).await;
            Ok(())
        })
    }

    fn announce(&self, context: &Context, path: &Path) -> io::Result<()> {
        let (address, location) = (format!("unix:{}", path.display()), self.location.to_string_lossy());
        let line = match context.json {
            true => json!({ "address": address, "location": location, "open": format!("wire:{address}") })
                .to_string(),
            false => format!("{address} serves {location}\n    outrigger ls wire:{address}"),
        };
        let mut out = io::stdout().lock();
        // In one write: a reader may close the pipe after the first line.
        out.write_all(format!("{line}\n").as_bytes())?;
        out.flush()
    }
}

fn cannot_tell(error: &io::Error) -> Failure {
    Failure::serious(format!("the groups of this process are not known: {error}"))
}

/// The directory of this machine that a LOCATION names.
fn directory(location: &OsString) -> Option<PathBuf> {
    std::fs::canonicalize(location).ok().filter(|path| path.is_dir())
}

/// Serves the client at the other end of standard input and output.
fn stdio(context: &Context, serving: Options) -> Result<(), Failure> {
    let wrong = |error: io::Error| {
        Failure::serious(format!(
            "--stdio serves a program at the other end of pipes, such as ssh, and this is something else: {}",
            outrigger_core::Error::from(error)
        ))
    };
    let streams = io::stdin().as_fd().try_clone_to_owned();
    let streams = streams.and_then(|input| Ok((input, io::stdout().as_fd().try_clone_to_owned()?)));
    let (input, output) = streams.map_err(wrong)?;
    context.trees.runtime.handle().block_on(async {
        let server = Server::new(serving).map_err(|error| Failure::serious(error.to_string()))?;
        match context.cancel.unless_raised(server.serve(input, output)).await {
            Some(served) => served.map_err(wrong),
            None => {
                // What has begun is finished.
                server.close(PATIENCE).await;
                Ok(())
            }
        }
    })
}
