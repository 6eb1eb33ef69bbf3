// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the control socket of a mount by NFS can ask of it.

use super::kernel::Superblock;
use crate::context::Context;
use crate::control::{self, Answer, Controlled, ErrorStatus, MountStatus, Unwritten};
use crate::guarded;
use crate::mounted::{Locator, shown, written};
use crate::trees::{self, Tree};
use outrigger_core::Clock;
use outrigger_core::survive::Reads;
use outrigger_guard::Seat;
use outrigger_layer_cache::Control as Cache;
use outrigger_layer_fault::FaultControl;
use outrigger_layer_trace::{Format, TraceControl};
use outrigger_runtime::Threads;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A mount and what is known about it.
pub struct Mounted {
    mountpoint: PathBuf,
    superblock: Superblock,
    source: String,
    runtime: Arc<Threads>,
    seat: Arc<Seat>,
    /// Nothing where this process only stands in.
    served: Option<Served>,
}

/// The tree of a mount.
pub struct Served {
    tree: Arc<Tree>,
    locator: Locator,
    trace: Arc<TraceControl>,
    /// One tracer at a time: the lines go to one place.
    tracer: Mutex<()>,
}

impl Served {
    /// This tree, whose messages `trace` shows.
    pub fn new(context: &Context, tree: &Arc<Tree>, trace: &Arc<TraceControl>) -> Self {
        let (locator, tracer) = (Locator::new(&context.trees, tree), Mutex::default());
        Served { tree: Arc::clone(tree), locator, trace: Arc::clone(trace), tracer }
    }
}

impl Mounted {
    /// Of the tree that the user calls `source`.
    pub fn new(
        context: &Context,
        source: &OsStr,
        (mountpoint, superblock): (PathBuf, Superblock),
        seat: Arc<Seat>,
        served: Option<Served>,
    ) -> Self {
        let source = if trees::asks(source) { shown(source) } else { source.to_string_lossy().into_owned() };
        Mounted { mountpoint, superblock, source, runtime: context.trees.runtime.clone(), seat, served }
    }

    /// Whether it has a tree.
    pub fn serves(&self) -> bool {
        self.served.is_some()
    }

    /// Takes it out of the mount table.
    pub fn unmount(&self) {
        self.superblock.unmount(&self.mountpoint);
    }

    /// Says what is lost when this process ends now.
    pub fn name_losses(&self) {
        self.served
            .as_ref()
            .and_then(|served| served.locator.lost_if_it_ends(&served.tree, &self.mountpoint));
    }

    /// Ends this process and the mount, of which something may not be stored.
    pub fn cut_off(&self) -> ! {
        self.seat.ending();
        std::process::exit(1)
    }

    /// What became of the workers that do not serve any more.
    fn given_up(&self) -> ErrorStatus {
        let death = self.seat.history().and_then(|history| history.last_death);
        let how = death.as_ref().map_or("it ended", |death| &death.reason);
        ErrorStatus {
            operation: "serve".to_owned(),
            errno: "ESTALE".to_owned(),
            reason: Some(format!(
                "there is no server any more ({how}); programs get errors, and `outrigger umount` ends the mount"
            )),
            age_seconds: death.map_or(0.0, |death| death.at.elapsed().unwrap_or_default().as_secs_f64()),
        }
    }
}

impl Controlled for Mounted {
    fn status(&self) -> MountStatus {
        let tree = self.served.as_ref().map(|served| &served.tree);
        let history = self.seat.history();
        let up = self.runtime.monotonic();
        let report = guarded::latest_report(&self.mountpoint, Some(&*self.seat), up);
        MountStatus {
            mountpoint: self.superblock.place(&self.mountpoint).to_string_lossy().into_owned(),
            source: self.source.clone(),
            driver: tree.map_or("none", |tree| tree.service.abilities().driver).to_owned(),
            layers: tree
                .map_or(Vec::new(), |tree| tree.layers.iter().map(|&layer| layer.to_owned()).collect()),
            pid: std::process::id(),
            detached: !self.superblock.is_mounted(),
            uptime_seconds: up.as_secs(),
            last_error: tree.is_none().then(|| self.given_up()),
            guard: history.map(|history| guarded::guard_status(history, self.seat.keeper(), None)),
            unwritten: self
                .served
                .as_ref()
                .map_or_else(Unwritten::default, |served| served.locator.unwritten(&served.tree)),
            disk_cache: tree.and_then(|tree| tree.caches.iter().find_map(|cache| cache.usage().disk)),
            disk_metadata: tree.and_then(|tree| tree.caches.iter().find_map(|cache| cache.usage().metadata)),
            report: report.map(|(path, at)| (path, at.elapsed().unwrap_or_default().as_secs_f64())),
            ..MountStatus::default()
        }
    }

    /// The kernel has no call that drops what it has cached of one NFS mount.
    fn flush(&self) {
        self.served.iter().flat_map(|served| &served.tree.caches).for_each(Cache::flush);
    }

    fn written(&self, marks: Vec<u64>, patience: Duration) -> Unwritten {
        let Some(Served { tree, locator, .. }) = &self.served else { return Unwritten::default() };
        written((tree, locator), &self.runtime, marks, patience)
    }

    fn prepare_upgrade(&self, _: &[Reads]) -> Result<(), String> {
        Err("it is mounted by NFS; unmount it and mount it again".to_owned())
    }

    fn upgrade(&self, _: &Path) {}

    fn replace(&self, _: Vec<OsString>, _: PathBuf, _: Option<usize>) -> Result<(), String> {
        Err("it is no FUSE program's (`outrigger guard` makes such mounts)".to_owned())
    }

    fn fault(&self) -> Option<&FaultControl> {
        self.served.as_ref()?.tree.fault.as_ref()
    }

    fn trace(&self, mut out: UnixStream) {
        let refuse = |why: &str| {
            // A client that hangs up early is its own affair, here and below.
            let _ = control::answer(&out, &Answer::Failed(why.to_owned()));
        };
        let Some(served) = &self.served else { return refuse("it has no server any more") };
        let Ok(_one_at_a_time) = served.tracer.try_lock() else {
            return refuse("another `outrigger trace` is attached");
        };
        let ready = out.set_read_timeout(None).and_then(|()| control::answer(&out, &Answer::Done));
        let (Ok(sink), Ok(())) = (out.try_clone(), ready) else { return };
        served.trace.start(Box::new(sink), Format::Json);
        // The client never writes: reading ends when it hangs up.
        let _ = out.read(&mut [0]);
        served.trace.stop();
    }
}
