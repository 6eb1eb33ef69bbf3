// SPDX-License-Identifier: MIT OR Apache-2.0
//! How commands talk to running mounts: one socket a mount, in a directory only its user can enter.
//!
//! The client sends one [`Ask`] as a line of JSON. The mount answers with one [`Answer`] as a line of JSON, and after
//! [`Answer::Done`] to [`Ask::Trace`] with one line a message until the client hangs up.

mod directory;
mod ending;
mod peer;
mod place;
mod programs;
mod server;
mod written;

pub use directory::directory;
pub use ending::{Ending, Locker, locker, wait_for_predecessors};
pub use peer::{Peer, find, first_answer, locate, peers, statuses};
pub use place::{
    Health, NFS_HOST, copies, inode, is_by_nfs, is_connection, is_ours, probe, resolve, superblock,
};
pub use programs::{ProgramPlace, ProgramView, programs};
pub use server::{Controlled, Server, answer};
pub use written::{lost_name, unwritten_lines, wait_written, what_was_lost};

use outrigger_core::survive::Reads;
use outrigger_layer_cache::{DiskUsage, MetadataUsage};
use outrigger_layer_fault::Acted;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What can be asked of a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// What it is and what it does now.
    Status,
    /// Drop what the kernel and the layers have cached.
    Flush,
    /// Wait for at most this time until what programs have written is written.
    Written {
        /// In milliseconds, 1000 at most.
        patience: u64,
        /// The marks of the previous answer; up to now in the first request.
        #[serde(default)]
        marks: Vec<u64>,
    },
    /// Hand over to another program.
    Upgrade {
        /// Its path.
        program: PathBuf,
        /// The layouts of surviving state that it reads.
        layouts: Vec<Reads>,
    },
    /// Replace the FUSE program by another one.
    Replace {
        /// The program and its arguments.
        command: Vec<OsString>,
        /// Where relative paths begin.
        directory: PathBuf,
        /// Which word names the mount, if one does.
        argument: Option<usize>,
    },
    /// List the rules of the layer `fault`, after replacing them if `rules` are given.
    Fault {
        /// All its rules from now on.
        rules: Option<String>,
    },
    /// Print messages as they pass, as JSON.
    Trace,
}

impl Ask {
    /// How long the answer may take.
    fn patience(&self) -> Duration {
        Duration::from_secs(match self {
            // A program may take a minute to start, and the one before it another.
            Ask::Replace { .. } => 180,
            // In-flight requests are waited for.
            Ask::Upgrade { .. } => 10,
            _ => 2,
        })
    }
}

/// What a mount answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Ask::Status`].
    Status(Box<MountStatus>),
    /// To [`Ask::Written`].
    Unwritten(Unwritten),
    /// To [`Ask::Fault`].
    Faults(Vec<Acted>),
    /// Done.
    Done,
    /// It could not be done.
    Failed(String),
}

/// What programs have written and is not written back yet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Unwritten {
    /// In bytes.
    pub bytes: u64,
    /// Of so many files.
    pub files: u64,
    /// How far that goes, for the next request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<u64>,
    /// Files of which something was lost, and why: all of them in a status, those that no command has said before in other answers.
    pub lost: Vec<(String, String)>,
}

/// A mount and its activity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where it is mounted.
    pub mountpoint: String,
    /// The LOCATION, as the user wrote it.
    pub source: String,
    /// The driver.
    pub driver: String,
    /// The layers, from the driver up.
    pub layers: Vec<String>,
    /// The process that serves it.
    pub pid: u32,
    /// Whether it was unmounted while programs used it: they keep it until they are done.
    #[serde(default)]
    pub detached: bool,
    /// Seconds since it was mounted.
    pub uptime_seconds: u64,
    /// Requests being worked on, oldest first.
    pub in_flight: Vec<RequestStatus>,
    /// How often each operation was asked for, by name.
    pub operations: Vec<OperationStatus>,
    /// The error seen last.
    pub last_error: Option<ErrorStatus>,
    /// What happened to the processes that served it; nothing when its server's death would end it.
    #[serde(default)]
    pub guard: Option<GuardStatus>,
    /// What programs have written and is not stored.
    #[serde(default)]
    pub unwritten: Unwritten,
    /// What is kept of its content on disk, if anything is.
    #[serde(default)]
    pub disk_cache: Option<DiskUsage>,
    /// What is kept of its metadata on disk, if anything is.
    #[serde(default)]
    pub disk_metadata: Option<MetadataUsage>,
    /// What happened to the FUSE programs that served it, if any do.
    #[serde(default)]
    pub program: Option<ProgramStatus>,
    /// The latest report of a crash, and its age in seconds.
    #[serde(default)]
    pub report: Option<(PathBuf, f64)>,
    /// The trees in it that are in use or cannot be used, where it is an automount.
    #[serde(default)]
    pub trees: Vec<TreeStatus>,
    /// Why the names are those of an earlier map, if they are.
    #[serde(default)]
    pub map_error: Option<String>,
}

/// A tree of an automount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TreeStatus {
    /// Its path below the mountpoint.
    pub path: String,
    /// The LOCATION.
    pub source: String,
    /// `opening`, `open`, `closing`, `broken` or `closed`.
    pub state: String,
    /// Since when.
    pub age_seconds: f64,
    /// Since when nothing was asked of it.
    pub idle_seconds: Option<f64>,
    /// Requests in it.
    pub in_flight: u64,
    /// Files and directories that are open.
    pub open_files: u64,
    /// What programs get in it, as in `EHOSTUNREACH`.
    pub errno: Option<String>,
    /// Why, or what was lost when it was closed.
    pub reason: Option<String>,
    /// When it is tried again, at the earliest.
    pub retry_seconds: Option<f64>,
}

/// What happened to the FUSE programs that served a mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramStatus {
    /// The command.
    pub command: String,
    /// Which one it is, counted from 1.
    pub incarnation: u32,
    /// How many died.
    pub deaths: u64,
    /// How the last one died.
    pub last_death: Option<String>,
    /// How long ago.
    pub last_death_age_seconds: Option<f64>,
    /// The last replacement of the command by another.
    pub replacement: Option<ReplacementStatus>,
    /// How many files and directories it had reported stored and lost when it died.
    #[serde(default)]
    pub lost: u64,
    /// The paths of the first of them.
    #[serde(default)]
    pub lost_paths: Vec<String>,
}

/// One command took the place of another, or should have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReplacementStatus {
    /// The command before.
    pub former: String,
    /// The command that was asked for.
    pub wanted: String,
    /// How long ago.
    pub age_seconds: f64,
    /// Why it does not serve.
    pub failure: Option<String>,
}

/// What happened to the processes that served a mount.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GuardStatus {
    /// The process that watches over them; nothing when it has died.
    pub keeper: Option<u32>,
    /// The process between the kernel and them, if there is one.
    #[serde(default)]
    pub proxy: Option<u32>,
    /// How many there were.
    pub incarnations: u64,
    /// How many of them died.
    pub deaths: u64,
    /// How the last one died.
    pub last_death: Option<String>,
    /// How long ago.
    pub last_death_age_seconds: Option<f64>,
    /// From a death until programs are served again, in milliseconds: half of the latest took at most this long.
    pub recovery_ms_p50: Option<f64>,
    /// 99 of 100.
    pub recovery_ms_p99: Option<f64>,
    /// The longest.
    pub recovery_ms_max: Option<f64>,
}

/// A request being worked on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestStatus {
    /// Its number.
    pub id: u64,
    /// The operation.
    pub operation: String,
    /// The file's number.
    pub node: u64,
    /// The file's path, where it can be found out.
    pub path: Option<String>,
    /// How long it has been there.
    pub age_seconds: f64,
    /// The process that asks.
    pub pid: u32,
    /// That process's command.
    pub command: Option<String>,
}

/// How often an operation was asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationStatus {
    /// The operation.
    pub operation: String,
    /// How many requests.
    pub count: u64,
    /// How many of them failed; ordinary answers such as `ENOENT` are no failures.
    pub errors: u64,
}

/// An error that was returned to a program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorStatus {
    /// The operation.
    pub operation: String,
    /// Its name, as in `EIO`.
    pub errno: String,
    /// Why, as far as the driver said.
    pub reason: Option<String>,
    /// How long ago.
    pub age_seconds: f64,
}
