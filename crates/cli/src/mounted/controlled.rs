// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the control socket of a mount can ask of it.

use super::{Locator, Mounted};
use crate::control::{
    self, Answer, Controlled, ErrorStatus, GuardStatus, MountStatus, OperationStatus, RequestStatus,
    TreeStatus, Unwritten,
};
use crate::guarded;
use crate::trees::{self, Many, Tree};
use outrigger_core::survive::Reads;
use outrigger_core::{Clock, Service};
use outrigger_door_fuse::{InFlight, OpCount};
use outrigger_guard::Seat;
use outrigger_layer_cache::{Control as Cache, Mark};
use outrigger_layer_fault::FaultControl;
use outrigger_layer_trace::Format;
use outrigger_runtime::Threads;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::TryLockError;
use std::time::{Duration, SystemTime};

/// How long requests in flight may take before a mount without a keeper is handed over.
const PAUSE_DEADLINE: Duration = Duration::from_secs(5);

/// Waits until what programs have written is written, up to `marks` or else up to now, for at most `patience`. Once nothing is left, the answer has
/// the losses that no command has reported before.
pub fn written(
    (tree, locator): (&Tree, &Locator),
    runtime: &Threads,
    marks: Vec<u64>,
    patience: Duration,
) -> Unwritten {
    let caches = &tree.caches;
    let marks: Vec<Mark> = match marks.len() == caches.len() {
        true => marks.into_iter().map(Mark).collect(),
        false => caches.iter().map(Cache::mark).collect(),
    };
    let (mut files, mut bytes) = (0, 0);
    for (cache, &mark) in caches.iter().zip(&marks) {
        runtime.handle().block_on(cache.written_within(mark, patience));
        let left = cache.unwritten(mark);
        (files, bytes) = (files + left.0 as u64, bytes + left.1);
    }
    let lost = if files == 0 { locator.lost_since(tree) } else { Vec::new() };
    Unwritten { bytes, files, marks: marks.into_iter().map(|mark| mark.0).collect(), lost }
}

impl Mounted {
    fn request(&self, request: InFlight) -> RequestStatus {
        RequestStatus {
            id: request.id,
            operation: request.op.to_owned(),
            node: request.node.0,
            path: self.locator.path(request.node),
            age_seconds: request.age.as_secs_f64(),
            pid: request.pid,
            command: fs::read_to_string(format!("/proc/{}/comm", request.pid))
                .ok()
                .map(|comm| comm.trim().to_owned()),
        }
    }

    fn guard(&self) -> Option<GuardStatus> {
        let (history, keeper, proxy) = match &self.seat {
            Some(seat) => (seat.history()?, seat.keeper(), seat.proxy()),
            // The process of the mount itself watches over the kernel code of an image.
            None => (self.tree.control.as_ref()?.history()?, Some(std::process::id()), None),
        };
        Some(guarded::guard_status(history, keeper, proxy))
    }

    /// The trees that are mounted in it.
    fn trees(&self) -> Vec<TreeStatus> {
        let status = |tree: outrigger_layer_demux::TreeStatus| TreeStatus {
            path: tree.path,
            source: tree.location,
            state: tree.state.to_owned(),
            age_seconds: tree.age.as_secs_f64(),
            idle_seconds: tree.idle.map(|idle| idle.as_secs_f64()),
            in_flight: tree.in_flight as u64,
            open_files: tree.open_files,
            errno: tree.reason.as_ref().map(|reason| format!("{:?}", reason.errno)),
            reason: tree.reason.map(|reason| reason.why()),
            retry_seconds: tree.retry.map(|retry| retry.as_secs_f64()),
        };
        self.tree.many.iter().flat_map(Many::status).map(status).collect()
    }

    /// Relative paths among the options of another program begin where this one was started.
    fn can_start_where_it_began(&self, seat: &Seat) -> Result<(), String> {
        let directory = seat.directory();
        match directory.is_dir() {
            true => Ok(()),
            false => Err(format!("'{}', where it was mounted, is gone", directory.display())),
        }
    }

    /// Why nothing of it can outlive its process.
    fn why_no_seat(&self) -> String {
        let why = self.tree.control.as_ref().and_then(|control| control.why_no_upgrade());
        why.unwrap_or("its driver keeps nothing for another process; unmount it and mount it again")
            .to_owned()
    }
}

impl Controlled for Mounted {
    fn status(&self) -> MountStatus {
        let status = self.session.status();
        let operation = |count: OpCount| OperationStatus {
            operation: count.op.to_owned(),
            count: count.requests,
            errors: count.errors,
        };
        MountStatus {
            mountpoint: self.place().to_string_lossy().into_owned(),
            source: self.source.clone(),
            driver: self.tree.service.abilities().driver.to_owned(),
            layers: self.tree.layers.iter().map(|&layer| layer.to_owned()).collect(),
            pid: std::process::id(),
            detached: self.is_detached(),
            uptime_seconds: self.runtime.monotonic().as_secs(),
            in_flight: status.in_flight.into_iter().map(|request| self.request(request)).collect(),
            operations: status.counts.into_iter().map(operation).collect(),
            last_error: status.last_failure.map(|failure| ErrorStatus {
                operation: failure.op.to_owned(),
                errno: format!("{:?}", failure.error.errno),
                reason: failure.error.reason.as_deref().map(str::to_owned),
                age_seconds: SystemTime::now().duration_since(failure.at).unwrap_or_default().as_secs_f64(),
            }),
            guard: self.guard(),
            disk_cache: self.tree.caches.iter().find_map(|cache| cache.usage().disk),
            disk_metadata: self.tree.caches.iter().find_map(|cache| cache.usage().metadata),
            program: guarded::program(&self.tree).map(|program| guarded::program_status(program.history())),
            report: guarded::latest_report(&self.mountpoint, self.seat.as_deref(), self.runtime.monotonic())
                .map(|(path, at)| (path, at.elapsed().unwrap_or_default().as_secs_f64())),
            trees: self.trees(),
            unwritten: self.locator.unwritten(&self.tree),
            map_error: self.tree.many.as_ref().and_then(|many| many.names.wrong()),
        }
    }

    fn flush(&self) {
        self.tree.caches.iter().for_each(Cache::flush);
        self.tree.many.iter().for_each(Many::flush);
        self.session.invalidate_all();
    }

    fn written(&self, marks: Vec<u64>, patience: Duration) -> Unwritten {
        written((&self.tree, &self.locator), &self.runtime, marks, patience)
    }

    fn prepare_upgrade(&self, layouts: &[Reads]) -> Result<(), String> {
        let Some(seat) = &self.seat else { return Err(self.why_no_seat()) };
        seat.is_read_by(layouts).map_err(|error| error.to_string())?;
        self.can_start_where_it_began(seat)?;
        trees::is_unchanged(&**seat).map_err(|failure| failure.to_string())?;
        let Some(session) = self.session.here().filter(|_| !seat.is_guarded()) else { return Ok(()) };
        if seat.proxy().is_none() && !session.status().negotiated.is_some_and(|agreed| agreed.sends_again()) {
            return Err("it has no keeper, which this kernel (before Linux 6.9) makes necessary".to_owned());
        }
        session.pause(PAUSE_DEADLINE).map_err(|left| {
            let oldest = left.first().map_or_else(String::new, |oldest| {
                let node = || format!("node {:#x}", oldest.node.0);
                format!(": {} {}", oldest.op, self.locator.path(oldest.node).unwrap_or_else(node))
            });
            let more = if left.len() > 1 { format!(" and {} more", left.len() - 1) } else { String::new() };
            format!("not everything is answered after {PAUSE_DEADLINE:?}{oldest}{more}; try again later")
        })
    }

    fn upgrade(&self, program: &Path) {
        let Some(seat) = &self.seat else { return };
        let error = seat.upgrade(program);
        tracing::error!(%error, "the program cannot be exchanged");
        self.session.here().inspect(|session| session.go_on());
    }

    fn replace(
        &self,
        command: Vec<OsString>,
        directory: PathBuf,
        argument: Option<usize>,
    ) -> Result<(), String> {
        let Some(program) = guarded::program(&self.tree) else {
            return Err(format!(
                "it is no FUSE program's (`outrigger guard` makes such mounts) but of the driver {}",
                self.tree.service.abilities().driver
            ));
        };
        let launch = guarded::replacement(command, directory, argument);
        let outcome = program.replace(launch).map_err(|error| error.to_string());
        // The new program may show other files.
        self.flush();
        outcome.map_err(|why| format!("{why}; {}", guarded::goes_on(&program)))
    }

    fn fault(&self) -> Option<&FaultControl> {
        self.tree.fault.as_ref()
    }

    fn trace(&self, mut out: UnixStream) {
        let _one_at_a_time = match self.tracer.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // A client that hangs up early is its own affair, here and below.
                let _ =
                    control::answer(&out, &Answer::Failed("another `outrigger trace` is attached".into()));
                return;
            }
        };
        let ready = out.set_read_timeout(None).and_then(|()| control::answer(&out, &Answer::Done));
        let (Ok(sink), Ok(())) = (out.try_clone(), ready) else { return };
        let Ok(elsewhere) = self.session.trace(out.as_fd()) else { return };
        // Also here, for those processes may die.
        self.trace.start(Box::new(sink), Format::Json);
        // The client never writes: reading ends when it hangs up.
        let _ = out.read(&mut [0]);
        drop(elsewhere);
        self.trace.stop();
    }
}
