// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports for people: of crashes, and of requests that no server survives.

use crate::control::{GuardStatus, ProgramStatus, ReplacementStatus};
use crate::notes::{self, Notes};
use crate::status::Failure;
use crate::trees::Tree;
use outrigger_core::Clock;
use outrigger_core::supervise::History;
use outrigger_driver_libfuse::launch::{Launch, Mountpoint};
use outrigger_driver_libfuse::{Death, History as Programs, LibFuse, Report};
use outrigger_guard::{Crash, Seat};
use outrigger_host::{PrivateDir, users_state};
use outrigger_layer_journal::{Journal, Poisoned};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, statat, unlinkat};
use std::any::Any;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often poisonous requests are looked for.
const PERIOD: Duration = Duration::from_secs(1);
/// The most functions a report names.
const FRAMES_MAX: usize = 64;

/// What became of the processes that served a mount, with the one that watches and the one between them and the kernel.
pub fn guard_status(history: History, keeper: Option<u32>, proxy: Option<u32>) -> GuardStatus {
    let [recovery_ms_p50, recovery_ms_p99, recovery_ms_max] = percentiles(history.recovery_times);
    GuardStatus {
        keeper,
        proxy,
        incarnations: history.started,
        deaths: history.deaths,
        last_death_age_seconds: history.last_death.as_ref().map(|death| age(death.at)),
        last_death: history.last_death.map(|death| death.reason),
        recovery_ms_p50,
        recovery_ms_p99,
        recovery_ms_max,
    }
}

/// How long ago that was, in seconds.
fn age(at: SystemTime) -> f64 {
    at.elapsed().unwrap_or_default().as_secs_f64()
}

/// The FUSE program that serves a tree, if one does.
pub fn program(tree: &Tree) -> Option<Arc<LibFuse>> {
    let control = Arc::clone(tree.control.as_ref()?) as Arc<dyn Any + Send + Sync>;
    control.downcast().ok()
}

/// A program that is to take the place of another one, which is mounted already: it gets a private directory to mount on,
/// in place of the word number `argument`, where one names the mount.
pub fn replacement(command: Vec<OsString>, directory: PathBuf, argument: Option<usize>) -> Launch {
    let mountpoint = argument.map_or(Mountpoint::Private, Mountpoint::Replaced);
    Launch { directory: Some(directory), mountpoint, ..Launch::new(command) }
}

/// Whether the old program serves again.
pub fn goes_on(program: &LibFuse) -> String {
    let command = program.history().command;
    match program.is_running() {
        true => format!("'{command}' goes on"),
        false => format!("and '{command}' cannot be started again either"),
    }
}

/// The history of the FUSE programs of a mount.
pub fn program_status(history: Programs) -> ProgramStatus {
    ProgramStatus {
        command: history.command,
        incarnation: history.incarnation,
        deaths: history.deaths,
        last_death_age_seconds: history.last_death.as_ref().map(|death| age(death.at)),
        last_death: history.last_death.map(|death| match death.end {
            Some(end) => format!("it {end}"),
            None => death.reason,
        }),
        replacement: history.replacement.map(|replacement| ReplacementStatus {
            former: replacement.former,
            wanted: replacement.wanted,
            age_seconds: age(replacement.at),
            failure: replacement.failure,
        }),
        lost: history.losses.count,
        lost_paths: history.losses.paths,
    }
}

/// What half of the times, 99 of 100 and all are at most, in milliseconds; none of no times.
pub fn percentiles(mut times: Vec<Duration>) -> [Option<f64>; 3] {
    times.sort_unstable();
    [50, 99, 100].map(|percent| {
        let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(index).map(|time| time.as_secs_f64() * 1e3)
    })
}

/// Takes over the journal of a mount, and reports in the background how the worker before this one crashed, if it did. Without a
/// keeper there is none: no next process asks again.
///
/// # Errors
/// When the journal cannot be had.
pub fn journal(seat: &Seat, clock: Arc<dyn Clock>, mountpoint: &Path) -> Result<Option<Journal>, Failure> {
    if !seat.is_guarded() {
        return Ok(None);
    }
    seat.watch_requests(outrigger_layer_journal::current);
    let crash = report_crash(seat, mountpoint);
    let culprit = crash.as_ref().and_then(|crash| crash.request).or_else(|| seat.hung_in());
    let failed = |error| Failure::serious(format!("the journal of the mount cannot be had: {error}"));
    Journal::attach(seat, clock, culprit).map(Some).map_err(failed)
}

/// Reports in the background how the worker before this one crashed, if it did.
pub fn report_crash(seat: &Seat, mountpoint: &Path) -> Option<Crash> {
    began(seat);
    let crash = seat.take_crash();
    if let Some(crash) = crash.clone() {
        let (mountpoint, worker) = (mountpoint.to_owned(), seat.predecessors());
        // Finding names takes longer than programs should wait.
        let report = move || {
            write_report(&mountpoint, "crash", &describe(&crash, worker));
            // The tables of names are many times larger than everything else.
            backtrace::clear_symbol_cache();
        };
        let _ = thread::Builder::new().name("reports".into()).spawn(report);
    }
    crash
}

/// Reports requests that are refused because workers die of them, as they come, until the mount ends.
pub fn report_poison(journal: &Journal, mountpoint: &Path, mounted: Weak<impl Send + Sync + 'static>) {
    let (journal, mountpoint) = (journal.clone(), mountpoint.to_owned());
    let watch = move || {
        while mounted.strong_count() > 0 {
            for request in journal.poisoned() {
                write_report(&mountpoint, "poison", &explain(&request));
            }
            thread::sleep(PERIOD);
        }
    };
    // Without the thread the requests are refused, but not reported.
    let _ = thread::Builder::new().name("reports".into()).spawn(watch);
}

/// Reports requests that FUSE programs die of, and programs that cannot be started again.
pub fn report_programs(program: &LibFuse, mountpoint: &Path) {
    let mountpoint = mountpoint.to_owned();
    program.on_report(Box::new(move |report| {
        let kind = if report.request.is_some() { "poison" } else { "crash-loop" };
        write_report(&mountpoint, kind, &tell(&report));
    }));
}

fn tell(report: &Report) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("outrigger {version}\nprogram: {}\n{}\n", report.command, report.error);
    list(&mut text, "the request, answered EIO", report.request.iter().cloned());
    list(&mut text, "how the programs ended, oldest first", report.deaths.iter().map(ending));
    let said = report.deaths.iter().rev().find(|death| !death.said.is_empty());
    let said = said.map_or("", |death| &death.said);
    list(&mut text, "what they said last", said.lines().map(str::to_owned));
    list(&mut text, "the requests that came last, oldest first", report.recent.iter().cloned());
    text.push_str(&core_dumps());
    text
}

fn list(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let _ = write!(text, "\n{title}:\n");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}

fn ending(death: &Death) -> String {
    let ago = age(death.at);
    let Death { incarnation, reason, .. } = death;
    match (death.served, death.end) {
        (true, Some(end)) => format!("number {incarnation}, {ago:.3} s ago: it {end} ({reason})"),
        (true, None) => format!("number {incarnation}, {ago:.3} s ago: {reason}"),
        (false, _) => format!("number {incarnation}, {ago:.3} s ago, was not started: {reason}"),
    }
}

/// Where the program's core dump would be (core(5)).
fn core_dumps() -> String {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core).current;
    let place = match (pattern.trim().strip_prefix('|'), limit) {
        (Some(handler), _) => {
            format!("are given to '{handler}'; where that is systemd-coredump, `coredumpctl` lists them")
        }
        (None, Some(0)) => {
            "are not made where `ulimit -c` is 0; `ulimit -c unlimited` before mounting changes that"
                .to_owned()
        }
        (None, _) => format!("are '{}', from the directory the program runs in", pattern.trim()),
    };
    format!("\ncore dumps {place}\n")
}

fn describe(crash: &Crash, worker: u64) -> String {
    let mut text = format!(
        "outrigger {}: worker {worker} died of signal {} at address {:#x}\n",
        env!("CARGO_PKG_VERSION"),
        crash.signal,
        crash.fault
    );
    match crash.request {
        Some(request) => drop(writeln!(text, "it was working on request {request}")),
        None => text.push_str("it was not working on a request\n"),
    }
    text.push_str(
        "\ncode addresses on the stack, innermost first (some may be left over from earlier calls):\n",
    );
    for &address in crash.frames.iter().take(FRAMES_MAX) {
        let mut named = false;
        backtrace::resolve(address as *mut _, |symbol| {
            named = true;
            let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name:#}"));
            let place = match (symbol.filename(), symbol.lineno()) {
                (Some(file), Some(line)) => format!(" ({}:{line})", file.display()),
                _ => String::new(),
            };
            let _ = writeln!(text, "  {address:#x} {name}{place}");
        });
        if !named {
            let _ = writeln!(text, "  {address:#x}");
        }
    }
    text
}

fn explain(request: &Poisoned) -> String {
    format!(
        "outrigger {}: request {} ({}) is answered EIO: {} processes died while they worked on it\n\n{}\n",
        env!("CARGO_PKG_VERSION"),
        request.id,
        request.op.name(),
        request.deaths,
        request.request
    )
}

/// Puts a report where `outrigger status` and people find it; failing that, into the log.
fn write_report(mountpoint: &Path, kind: &str, text: &str) {
    match try_write(mountpoint, kind, text) {
        Ok(path) => {
            tracing::error!(report = %path.display(), "a process that served '{}' died", mountpoint.display())
        }
        Err(error) => tracing::error!(%error, "no report can be written: {text}"),
    }
}

fn try_write(mountpoint: &Path, kind: &str, text: &str) -> io::Result<PathBuf> {
    let state = users_state().ok_or(io::ErrorKind::NotFound)?;
    let directory = PrivateDir::open(&state, &["outrigger"])?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = format!("{kind}-{}-{}.txt", now.as_millis(), std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(openat(&directory, &*name, flags, Mode::RUSR | Mode::WUSR)?);
    writeln!(file, "mount: {}", mountpoint.display())?;
    file.write_all(text.as_bytes())?;
    keep_latest(&directory)?;
    Ok(directory.path().join(name))
}

/// `$XDG_STATE_HOME/outrigger`, which is `~/.local/state/outrigger` where nothing else is said.
pub fn reports() -> Option<PathBuf> {
    Some(users_state()?.join("outrigger"))
}

/// When the first worker of a mount began, which all that follow know.
fn began(seat: &Seat) -> Option<SystemTime> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let notes = notes::of(seat).ok()?;
    let noted = notes.view::<Notes<'_>>().began().atomic();
    let began = noted.compare_exchange(0, now, Relaxed, Relaxed).unwrap_or_else(|known| known);
    let began = if began == 0 { now } else { began };
    Some(UNIX_EPOCH + Duration::from_millis(began))
}

/// The latest report about this mount, and when it was written. The process that serves it has run for so long.
pub fn latest_report(mountpoint: &Path, seat: Option<&Seat>, up: Duration) -> Option<(PathBuf, SystemTime)> {
    // Older reports are about earlier mounts.
    let since = match seat {
        Some(seat) => began(seat)?,
        None => SystemTime::now().checked_sub(up)?,
    };
    let about = format!("mount: {}\n", mountpoint.display());
    let mut found: Vec<(SystemTime, PathBuf)> = fs::read_dir(reports()?)
        .ok()?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .filter(|(at, _)| *at >= since)
        .collect();
    found.sort();
    let is_about = |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.starts_with(&about));
    found.into_iter().rev().find(|(_, path)| is_about(path)).map(|(at, path)| (path, at))
}

/// The most reports that are kept.
const REPORTS_MAX: usize = 32;

/// Removes the oldest reports; other files are not touched.
fn keep_latest(directory: &PrivateDir) -> io::Result<()> {
    let mut found: Vec<(i64, String)> = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        if is_report(name) {
            let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            found.push((stat.st_mtime as i64, name.to_owned()));
        }
    }
    found.sort();
    for (_, name) in found.iter().take(found.len().saturating_sub(REPORTS_MAX)) {
        unlinkat(directory, &**name, AtFlags::empty())?;
    }
    Ok(())
}

/// Whether a file has a name as reports have: a kind, a time and a process.
fn is_report(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let words: Option<Vec<&str>> = name.strip_suffix(".txt").map(|stem| stem.rsplitn(3, '-').collect());
    matches!(words.as_deref(), Some([process, time, kind]) if number(process) && number(time) && !kind.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_functions() {
        let mut frames = Vec::new();
        backtrace::trace(|frame| {
            frames.push(frame.ip() as u64);
            true
        });
        let crash = Crash { signal: 11, fault: 0, request: Some(7), frames };
        let text = describe(&crash, 3);
        assert!(text.contains("signal 11") && text.contains("request 7"), "{text}");
        assert!(text.contains("a_report_names_functions"), "{text}");
    }

    #[test]
    fn only_the_latest_reports_are_kept() {
        let state = tempfile::tempdir().unwrap();
        let directory = PrivateDir::open(state.path(), &["outrigger"]).unwrap();
        fs::write(directory.path().join("notes.txt"), "not a report, and older").unwrap();
        for number in 0..REPORTS_MAX + 5 {
            fs::write(directory.path().join(format!("crash-loop-{number}-7.txt")), "x").unwrap();
        }
        keep_latest(&directory).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), REPORTS_MAX + 1);
        assert!(directory.path().join("notes.txt").exists(), "a file with another name stays");
    }
}
