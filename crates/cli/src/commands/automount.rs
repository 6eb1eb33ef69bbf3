// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger automount`: trees that appear in a directory when their names are used.

use super::mount::{is_serving, leave_terminal, start_in_background};
use crate::automount::{MapNames, detector};
use crate::context::Context;
use crate::mounted::{self, Job, free_place};
use crate::run::Run;
use crate::status::Failure;
use crate::tree_options::seconds;
use crate::trees::{Many, Tree};
use clap::Args;
use outrigger_core::Runtime;
use outrigger_door_fuse::Options;
use outrigger_host::{allow_descriptors, ask_no_one};
use outrigger_layer_demux::{Demux, Options as DemuxOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Arguments of `automount`.
///
/// Each name in DIR leads to a tree, which is opened when a program looks into it, and
/// closed again when no program has used it for a while. Listing DIR, also with attributes,
/// opens none. What cannot be opened answers the error to every program that looks into it;
/// `outrigger status` and the extended attribute user.outrigger.error of its directory say
/// why. It is tried again after a second, later after a minute, and at once after
/// `outrigger flush`.
///
/// Without a map DIR has a directory for each kind of other hosts, whose names are hosts:
/// DIR/sftp/USER@HOST:PORT, DIR/ftp/HOST. A map has a line for each name:
///
///     # comment
///     NAME     LOCATION [OPTION,...]
///     *        LOCATION [OPTION,...]  other names; & in LOCATION is the name
///     +SCHEME           [OPTION,...]  a directory of hosts, as +sftp; +hosts: all
///
/// Paths in it begin with a slash, and the option ro refuses changes of a tree. A backslash
/// or double quotes take the meaning from blanks, #, & and *. Options that no driver of a host
/// knows are errors of the map, with their line. The map is read again when its
/// file has changed, and on SIGHUP; what is open stays as it is until it is closed.
///
/// No one is asked for a password: keys, ssh-agent and ~/.netrc of the user who mounts have
/// to do.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Automount {
    /// Where the trees appear.
    #[arg(value_name = "DIR")]
    mountpoint: PathBuf,
    /// The names, and what they lead to.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Close trees that no program has used for so long; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    idle: Duration,
    /// Options of the mount (allow_other, attr_timeout=, ...): mount.outrigger(8) has them. Those of drivers stand in the map.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground.
    #[arg(short, long)]
    foreground: bool,
}

impl Run for Automount {
    const NAME: &'static str = "automount";

    fn run(self, context: &Context) -> Result<(), Failure> {
        let serving = is_serving()?;
        if !serving && !self.foreground {
            return start_in_background(context);
        }
        allow_descriptors();
        ask_no_one();
        let job = self.job(context)?;
        mounted::serve(context, job, if serving { leave_terminal } else { || Ok(()) })
    }
}

impl Automount {
    fn job(self, context: &Context) -> Result<Job, Failure> {
        let list = self.options.join(",");
        let (mut options, others) =
            Options::parse(&list).map_err(|error| Failure::serious(error.to_string()))?;
        if let Some(other) = others.first() {
            return Err(Failure::serious(format!(
                "option {other} is none of the mount: options of drivers stand in the map, behind the LOCATION"
            )));
        }
        let limit = context.options().timeout.filter(|timeout| !timeout.is_zero());
        options.timeout = options.timeout.or(limit);
        // Without other users about, each tree is that of the user who opens it, who checks what that user may do.
        let checks = list.split(',').any(|item| item == "default_permissions");
        options.default_permissions &= options.allow_other || checks;
        options.passthrough = false;
        let mountpoint = free_place(&self.mountpoint)?;
        let map = self.map.as_deref().map(absolute).transpose()?;
        let source = match &map {
            Some(map) => format!("automount:{}", map.display()),
            None => "automount:hosts".to_owned(),
        };
        options.fsname.get_or_insert_with(|| source.clone());
        let tree = self.tree(context, map, mountpoint.clone(), &options)?;
        Ok(Job {
            source: source.into(),
            mountpoint,
            tree,
            options,
            list,
            seat: None,
            proxy: false,
            inherited: None,
        })
    }

    fn tree(
        &self,
        context: &Context,
        map: Option<PathBuf>,
        mountpoint: PathBuf,
        options: &Options,
    ) -> Result<Tree, Failure> {
        let names = Arc::new(MapNames::new(map, context.options().clone().with_absolute_files()?)?);
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let usual = DemuxOptions::default();
        let chosen = DemuxOptions {
            idle: (!self.idle.is_zero()).then_some(self.idle),
            opening: options.timeout.unwrap_or(usual.opening),
            owner: (uid, gid),
            is_used: detector(mountpoint),
            ..usual
        };
        let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
        let demux = Demux::new(names.clone(), runtime, chosen);
        let many = Many { control: demux.control(), names };
        Ok(Tree::of_many(Arc::new(demux), many))
    }
}

/// The server has another working directory than the command.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::serious(format!("{}: {error}", path.display())))
}
