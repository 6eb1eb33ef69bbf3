// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger status`: what this user's mounts are and do, and which programs trees are shown to.

use crate::context::Context;
use crate::control::{
    self, GuardStatus, MountStatus, ProgramPlace, ProgramStatus, ProgramView, ReplacementStatus, TreeStatus,
};
use crate::format::human::Unit;
use crate::format::openmetrics::openmetrics;
use crate::messages::output_failed;
use crate::messages::{record, shown_on_terminal};
use crate::run::Run;
use crate::status::{Failure, Status as Severity};
use clap::Args;
use outrigger_core::Error;
use outrigger_layer_cache::{DiskUsage, MetadataUsage};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;

/// Arguments of `status`.
///
/// Shows your mounts and, where none is named, the programs that `outrigger run` and
/// `outrigger attach` show trees to: the command line, its process, the process that serves,
/// the mechanism (as --via names it), and where trees stand.
#[derive(Debug, Args)]
pub struct Status {
    /// Only these mounts; all of yours when none is given.
    #[arg(value_name = "DIR")]
    mounts: Vec<PathBuf>,
    /// Print OpenMetrics text, as Prometheus and its collectors read it.
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
}

impl Run for Status {
    const NAME: &'static str = "status";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        if self.metrics {
            let text = openmetrics(&self.collect(context)?);
            return out.write_all(text.as_bytes()).map_err(output_failed);
        }
        let found = self.collect(context)?;
        let programs = if self.mounts.is_empty() { programs()? } else { Vec::new() };
        // A mount without a server was reported by `collect`.
        if found.is_empty()
            && programs.is_empty()
            && self.mounts.is_empty()
            && !context.json
            && context.status() == Severity::Success
        {
            return writeln!(out, "no mounts").map_err(output_failed);
        }
        let mounts =
            found.iter().map(|status| if context.json { record(status) } else { shown(describe(status)) });
        let views =
            programs.iter().map(|view| if context.json { record(view) } else { shown(describe_view(view)) });
        for text in mounts.chain(views) {
            out.write_all(text.as_bytes()).map_err(output_failed)?;
        }
        Ok(())
    }
}

/// Programs choose their names: a name may contain terminal controls.
fn shown(text: String) -> String {
    String::from_utf8_lossy(&shown_on_terminal(text.as_bytes(), true)).into_owned()
}

/// The programs that trees are shown to.
fn programs() -> Result<Vec<ProgramView>, Failure> {
    control::programs()
        .map_err(|error| Failure::new(format!("cannot look for programs: {}", Error::from(error))))
}

/// Lines about one.
fn describe_view(view: &ProgramView) -> String {
    let ProgramView { argv, process, pid, mechanism, shown_by, overlay, places, uptime_seconds } = view;
    let up = duration(*uptime_seconds);
    // An argument makes no lines.
    let argv = shell_words::join(argv).replace('\n', "?");
    let mut text =
        format!("{shown_by}: {argv} (process {process}) by {mechanism}, served by process {pid}, up {up}\n");
    if let Some(overlay) = overlay {
        let _ = writeln!(text, "  changes of local files go to {overlay}");
    }
    let (hosts, own): (Vec<_>, Vec<_>) = places.iter().partition(|place| is_of_hosts(place));
    if !hosts.is_empty() {
        let paths: Vec<_> = hosts.iter().map(|place| place.path.as_str()).collect();
        let _ = writeln!(text, "  hosts: {}", paths.join(" "));
    }
    for ProgramPlace { path, source } in own {
        let _ = writeln!(text, "  {path}: {source}");
    }
    text
}

/// Whether all hosts of a scheme stand there, under its name.
fn is_of_hosts(place: &ProgramPlace) -> bool {
    place.source.strip_suffix("://").is_some_and(|scheme| place.path.strip_prefix('/') == Some(scheme))
}

impl Status {
    fn collect(&self, context: &Context) -> Result<Vec<MountStatus>, Failure> {
        if !self.mounts.is_empty() {
            let mut found = Vec::new();
            let asked: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> =
                    self.mounts.iter().map(|mount| scope.spawn(move || control::find(mount))).collect();
                threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
            });
            for status in asked {
                match status {
                    Ok((_, status)) => found.push(status),
                    Err(failure) => context.complain(failure.status, &failure),
                }
            }
            return Ok(found);
        }
        let peers = control::peers()
            .map_err(|error| Failure::new(format!("cannot look for mounts: {}", Error::from(error))))?;
        let mut found = Vec::new();
        for (peer, status) in control::statuses(peers) {
            match status {
                Ok(status) => found.push(status),
                Err(trouble) => context.complain(Severity::Minor, peer.explain(&trouble)),
            }
        }
        Ok(found)
    }
}

fn describe(status: &MountStatus) -> String {
    let MountStatus { mountpoint, source, driver, layers, pid, uptime_seconds, .. } = status;
    let state = if status.detached { " (unmounted, still in use)" } else { "" };
    // An image and a FUSE program are served by processes of their own, which are started again.
    let guarded = match &status.guard {
        _ if status.program.is_some() => "its program guarded",
        Some(guard) if guard.keeper == Some(*pid) => "its kernel code guarded",
        Some(guard) if guard.keeper.is_some() => "guarded",
        _ => "not guarded",
    };
    let layers = if layers.is_empty() { String::new() } else { format!(", layers {}", layers.join(" ")) };
    let requests: u64 = status.operations.iter().map(|operation| operation.count).sum();
    let errors: u64 = status.operations.iter().map(|operation| operation.errors).sum();
    let mut text = format!(
        "{mountpoint}{state}: {source} (driver {driver}{layers}), {guarded}, process {pid}, up {}\n  {}, {}",
        duration(*uptime_seconds),
        counted(requests, "request"),
        counted(errors, "error")
    );
    let mut busiest: Vec<_> = status.operations.iter().collect();
    busiest.sort_by_key(|operation| std::cmp::Reverse(operation.count));
    for operation in busiest.iter().take(5) {
        let _ = write!(text, ", {} {}", operation.operation, operation.count);
    }
    text.push('\n');
    text.push_str(&status.guard.as_ref().map_or_else(String::new, guard));
    text.push_str(&control::unwritten_lines(&status.unwritten));
    text.push_str(&status.disk_cache.as_ref().map_or_else(String::new, disk_cache));
    text.push_str(&status.disk_metadata.as_ref().map_or_else(String::new, disk_metadata));
    text.push_str(&status.program.as_ref().map_or_else(String::new, program));
    status.trees.iter().for_each(|status| text.push_str(&tree(status)));
    if let Some(wrong) = &status.map_error {
        let _ = writeln!(text, "  the names are those of an earlier map: {wrong}");
    }
    if let Some((path, age)) = &status.report {
        let _ = writeln!(text, "  last report {} ago: {}", duration(*age as u64), path.display());
    }
    for request in &status.in_flight {
        let what = request.path.clone().unwrap_or_else(|| format!("node {:#x}", request.node));
        let command = request.command.as_deref().unwrap_or("?");
        let _ = writeln!(
            text,
            "  waiting {:.1} s: {} {what} for {command} (process {})",
            request.age_seconds, request.operation, request.pid
        );
    }
    if let Some(error) = &status.last_error {
        let reason = error.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let age = duration(error.age_seconds as u64);
        let _ = writeln!(text, "  last error {age} ago: {} {}{reason}", error.operation, error.errno);
    }
    text
}

fn counted(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// A line about deaths, if there was any, or if the next one would be the last.
fn guard(guard: &GuardStatus) -> String {
    let mut text = match guard.keeper {
        Some(_) => String::new(),
        None => "  unguarded: the process that watched over this mount has died\n".to_owned(),
    };
    if let Some(proxy) = guard.proxy {
        let _ = writeln!(text, "  by way of a proxy, process {proxy}");
    }
    if let (Some(reason), Some(age)) = (&guard.last_death, guard.last_death_age_seconds) {
        let plural = if guard.deaths == 1 { "death" } else { "deaths" };
        let _ = write!(
            text,
            "  survived {} {plural} of its server, the last {} ago: {reason}",
            guard.deaths,
            duration(age as u64)
        );
        if let (Some(half), Some(most)) = (guard.recovery_ms_p50, guard.recovery_ms_max) {
            let _ = write!(text, "; served again after {half:.1} ms (median), {most:.1} ms (most)");
        }
        text.push('\n');
    }
    text
}

/// A line about content on disk.
fn disk_cache(disk: &DiskUsage) -> String {
    let DiskUsage { bytes, bytes_max, hits, misses, dropped, .. } = disk;
    let (bytes, most) = (Unit::HUMAN.show(*bytes, 1), Unit::HUMAN.show(*bytes_max, 1));
    let dropped = if *dropped > 0 { format!(", {dropped} blocks not kept") } else { String::new() };
    format!("  on disk {bytes} of {most}; {hits} reads came from there, {misses} did not{dropped}\n")
}

/// A line about metadata on disk.
fn disk_metadata(disk: &MetadataUsage) -> String {
    let MetadataUsage { bytes, bytes_max, recalled, saved, failed } = disk;
    let (bytes, most) = (Unit::HUMAN.show(*bytes, 1), Unit::HUMAN.show(*bytes_max, 1));
    let failed = if *failed > 0 { format!(", failed {}", counted(*failed, "time")) } else { String::new() };
    let (recalled, saved) = (counted(*recalled, "name"), counted(*saved, "time"));
    format!("  metadata on disk {bytes} of {most}; {recalled} known from there, saved {saved}{failed}\n")
}

/// A line about a tree of an automount.
fn tree(tree: &TreeStatus) -> String {
    let TreeStatus { path, source, state, open_files, .. } = tree;
    let mut text = format!("  {path}: {source}, {state} for {}", duration(tree.age_seconds as u64));
    if let Some(idle) = tree.idle_seconds {
        let _ = write!(text, ", idle for {}", duration(idle as u64));
    }
    if *open_files > 0 {
        let _ = write!(text, ", {open_files} open");
    }
    if tree.in_flight > 0 {
        let _ = write!(text, ", {}", counted(tree.in_flight, "request"));
    }
    if let Some(reason) = &tree.reason {
        let errno = tree.errno.as_deref().unwrap_or("EIO");
        let _ = write!(text, ": {errno}: {reason}");
    }
    if let Some(retry) = tree.retry_seconds {
        let _ = write!(text, " (tried again from {} on)", duration(retry.ceil() as u64));
    }
    text.push('\n');
    text
}

/// Lines about deaths and replacements of FUSE programs, if any.
fn program(program: &ProgramStatus) -> String {
    let ProgramStatus { command, incarnation, deaths, lost, lost_paths, .. } = program;
    let mut text = String::new();
    if *incarnation > 1 {
        let _ = writeln!(text, "  program number {incarnation}: {command}");
    }
    if let Some(ReplacementStatus { former, wanted, age_seconds, failure }) = &program.replacement {
        let age = duration(*age_seconds as u64);
        let _ = match failure {
            None => writeln!(text, "  it took the place of '{former}' {age} ago, as `guard --replace` asked"),
            Some(why) => writeln!(text, "  '{wanted}' could not take its place {age} ago: {why}"),
        };
    }
    if let (Some(reason), Some(age)) = (&program.last_death, program.last_death_age_seconds) {
        let plural = if *deaths == 1 { "death" } else { "deaths" };
        let age = duration(age as u64);
        let _ = writeln!(text, "  survived {deaths} {plural} of the program, the last {age} ago: {reason}");
    }
    if *lost > 0 {
        let more = if *lost > lost_paths.len() as u64 { ", ..." } else { "" };
        let paths = lost_paths.join(", ");
        let _ = writeln!(
            text,
            "  LOST {lost} that the program had reported stored, missing or shorter since: {paths}{more}"
        );
    }
    text
}

fn duration(seconds: u64) -> String {
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, _, _) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ErrorStatus, OperationStatus, RequestStatus};

    #[test]
    fn a_tree_of_an_automount_has_a_line_with_the_reason_why_it_is_broken() {
        let broken = TreeStatus {
            path: "/sftp/h".into(),
            source: "sftp://h/".into(),
            state: "broken".into(),
            age_seconds: 61.0,
            errno: Some("EHOSTUNREACH".into()),
            reason: Some("cannot open h: no route".into()),
            retry_seconds: Some(3.2),
            ..TreeStatus::default()
        };
        assert_eq!(
            tree(&broken),
            "  /sftp/h: sftp://h/, broken for 1 min 1 s: EHOSTUNREACH: cannot open h: no route (tried again from 4 s on)\n"
        );
        let open = TreeStatus {
            state: "open".into(),
            idle_seconds: Some(9.0),
            open_files: 2,
            in_flight: 1,
            ..broken
        };
        let line = tree(&TreeStatus { reason: None, retry_seconds: None, ..open });
        assert_eq!(line, "  /sftp/h: sftp://h/, open for 1 min 1 s, idle for 9 s, 2 open, 1 request\n");
    }

    #[test]
    fn prefixes_of_hosts_share_a_line() {
        let place = |path: &str, source: &str| ProgramPlace { path: path.into(), source: source.into() };
        let places = vec![place("/ftp", "ftp://"), place("/sftp", "sftp://"), place("/data", "disk.img")];
        let text = describe_view(&ProgramView { places, ..ProgramView::default() });
        assert!(text.ends_with("\n  hosts: /ftp /sftp\n  /data: disk.img\n"), "{text}");
    }

    #[test]
    fn a_stuck_request_and_the_last_error_are_named() {
        let status = MountStatus {
            mountpoint: "/mnt".into(),
            operations: vec![OperationStatus { operation: "read".into(), count: 7, errors: 1 }],
            in_flight: vec![RequestStatus {
                operation: "read".into(),
                path: Some("/big".into()),
                age_seconds: 12.34,
                pid: 42,
                command: Some("cat".into()),
                ..RequestStatus::default()
            }],
            last_error: Some(ErrorStatus {
                operation: "read".into(),
                errno: "EIO".into(),
                reason: Some("bad block".into()),
                age_seconds: 61.0,
            }),
            ..MountStatus::default()
        };
        let text = describe(&status);
        assert!(text.contains("7 requests, 1 error, read 7"), "{text}");
        assert!(text.contains("waiting 12.3 s: read /big for cat (process 42)"), "{text}");
        assert!(text.contains("last error 1 min 1 s ago: read EIO: bad block"), "{text}");
    }
}
