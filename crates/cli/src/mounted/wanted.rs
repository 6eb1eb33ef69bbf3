// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user says about a mount.

use super::by_nfs;
use crate::drivers::{DRIVERS, tables};
use crate::status::Failure;
use crate::tree_options::seconds;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, ValueEnum};
use outrigger_core::OptionTable;
use outrigger_core::option::{option, similar};
use outrigger_door_fuse::Options;
use outrigger_guard::Seat;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The options of `-o` that concern no driver.
pub const OPTIONS: &[&OptionTable] = &[
    &outrigger_door_fuse::OPTIONS,
    &OptionTable {
        owner: "mount",
        options: &[
            option(
                "guard",
                "auto|proxy|none",
                "auto",
                "what happens when the server process dies. auto: another one takes over (through a proxy process before \
                 Linux 6.9); proxy: takes over, always through a proxy; none: the mount ends",
            ),
            option(
                "door",
                "fuse|nfs",
                "fuse",
                "what of the kernel the mount is made with. nfs: its NFS client, for the superuser; without FUSE",
            ),
        ],
    },
    &by_nfs::OPTIONS,
];

/// What is to be mounted, and how.
#[derive(Debug, Args)]
pub struct Wanted {
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
    /// Mount by FUSE, or by the kernel's NFS client, which takes the superuser. The same as `-o door=`.
    #[arg(long, value_name = "DOOR", value_enum)]
    pub door: Option<Door>,
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
    pub late: Vec<String>,
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

/// What happens to a mount whose server dies (`-o guard=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarding {
    /// A successor takes over: with the kernel's help, or by way of a proxy where the kernel gives none.
    Auto,
    /// The same, by way of a proxy in any case.
    Proxy,
    /// It ends.
    None,
}

/// What of the kernel a mount is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Door {
    /// FUSE.
    #[default]
    Fuse,
    /// The NFS client.
    Nfs,
}

/// What `-o` says, by whom it concerns.
pub struct Chosen {
    /// Of the door.
    pub door: Options,
    /// For the NFS client of the kernel, if it makes the mount.
    pub by_nfs: Option<Vec<String>>,
    /// Of the driver.
    pub driver: Vec<String>,
    /// Of this program.
    pub guarding: Guarding,
}

/// The failure, with the option of mounts or drivers that an unknown one in it resembles.
pub fn with_similar_option(failure: Failure, given: &[String]) -> Failure {
    let message = &failure.message;
    let names = || {
        let tables = DRIVERS.iter().flat_map(tables).chain([&outrigger_door_fuse::OPTIONS]);
        tables.flat_map(|table| table.options).map(|option| option.name)
    };
    let keys =
        given.iter().flat_map(|list| list.split(',')).map(|item| item.split('=').next().unwrap_or(item));
    let unknown = keys.filter(|key| message.contains(*key) && !names().any(|name| name == *key));
    let meant = unknown.filter_map(|key| similar(key, names())).next();
    match meant.filter(|_| !message.contains("did you mean")) {
        Some(meant) => Failure {
            message: format!("{message} (did you mean {meant}? mount.outrigger(8) lists the options)"),
            ..failure
        },
        None => failure,
    }
}

impl Wanted {
    /// The place of the process of a mount that no other one can go on with.
    ///
    /// # Errors
    /// When another one is to go on with it: the user wants a guard, or leaves it to us.
    pub fn without_successor(&self, seat: Option<Arc<Seat>>) -> Result<Option<Arc<Seat>>, Failure> {
        match seat {
            Some(seat) if seat.is_guarded() => Err(Failure::serious(format!(
                "cannot mount '{}' with a guard: what its kernel code knows ends with this process, for the image is in another \
                 tree; --no-guard mounts it",
                self.source.display()
            ))),
            _ => Ok(None),
        }
    }

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
        let by_nfs = match self.door(&mut driver)? {
            Door::Fuse => None,
            Door::Nfs => Some(by_nfs::chosen(self, guarding, &mut driver)?),
        };
        driver.extend(self.port.map(|port| format!("port={port}")));
        Ok(Chosen { door, by_nfs, driver, guarding })
    }

    /// What makes the mount; takes what says so out of `others`.
    fn door(&self, others: &mut Vec<String>) -> Result<Door, Failure> {
        let mut door = self.door.unwrap_or_default();
        for value in others.extract_if(.., |option| option.starts_with("door=")) {
            door = match &value["door=".len()..] {
                "fuse" => Door::Fuse,
                "nfs" => Door::Nfs,
                _ => return Err(Failure::serious(format!("option {value}: fuse or nfs expected"))),
            };
        }
        Ok(door)
    }
}
