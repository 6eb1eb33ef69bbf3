// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the suite on every driver, directly and through FUSE mounts, and writes docs/MATRIX.md.
//!
//! `cargo run -p outrigger-conformance --example matrix [FILE]`; exits with 1 when a case failed.
//! The mounts are left out, and said to be, where they are not possible.

use outrigger_conformance::mount::{Exceptions, Mounted, WRITEBACK, obstacle};
use outrigger_conformance::{Direct, HostDir, Kind, Report, Target, matrix, run, sample};
use outrigger_core::{Abilities, Inline, OpSet, Prompt, Service};
use outrigger_driver_archive::{Archive, ArchiveDriver, Options as ArchiveOptions, Unwatched};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_mem::{Mem, Options as MemOptions};
use outrigger_driver_null::Null;
use outrigger_host::HostFile;
use outrigger_runtime::Threads;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

type Column = (String, Report);
type Outcome<T> = Result<T, Box<dyn Error>>;

/// How long all cases on one mount may take.
const LIMIT: Duration = Duration::from_secs(300);

/// Everything that applies holds.
const NONE: Exceptions = &[];

fn service(driver: impl Prompt + 'static) -> Arc<dyn Service> {
    Arc::new(Inline::new(driver, Arc::new(Threads::new())))
}

fn on_service(name: &str, service: Arc<dyn Service>, has_sample: bool, exceptions: Exceptions) -> Column {
    let direct = Direct::new(service);
    let target = Target { abilities: direct.abilities(), has_sample, exceptions };
    (format!("{name}, service"), run(&direct, &target))
}

fn on_directory(
    name: String,
    dir: &Path,
    kind: Kind,
    reads: bool,
    exceptions: Exceptions,
) -> Outcome<Column> {
    let subject = HostDir::new(dir, kind).map_err(|errno| format!("{}: {errno}", dir.display()))?;
    let abilities = Abilities { read_only: reads, ..Abilities::new("host", "", OpSet::all()) };
    let target = Target { abilities: &abilities, has_sample: reads, exceptions };
    Ok((name, run(&subject, &target)))
}

fn on_mount(
    name: &str,
    location: &Path,
    options: &str,
    reads: bool,
    exceptions: Exceptions,
) -> Outcome<Column> {
    let dir = tempfile::tempdir()?;
    let location = location.to_str().ok_or("a path that is not UTF-8")?;
    let mounted = Mounted::new(location, dir.path(), options, LIMIT)?;
    on_directory(format!("{name}, FUSE"), mounted.dir(), Kind::Fuse, reads, exceptions)
}

/// Packs the sample tree into a tar archive in `dir`.
fn sample_archive(dir: &Path) -> Outcome<PathBuf> {
    let (tree, archive) = (dir.join("tree"), dir.join("sample.tar.xz"));
    std::fs::create_dir(&tree)?;
    sample::build(&tree)?;
    let packed = Command::new("tar").arg("-C").arg(&tree).arg("-caf").arg(&archive).arg(".").status()?;
    if packed.success() { Ok(archive) } else { Err("tar cannot pack the sample tree".into()) }
}

fn services(scratch: &Path, archive: &Path) -> Outcome<Vec<Column>> {
    let local = scratch.join("local");
    std::fs::create_dir(&local)?;
    let local = Local::open(&local, LocalOptions::default()).map_err(|error| error.to_string())?;
    let mem = Mem::new(MemOptions::default(), Arc::new(Threads::new()));
    let source = Arc::new(HostFile::open(archive)?);
    let archive = Archive::open(source, ArchiveOptions::default(), &Unwatched)?;
    Ok(vec![
        on_service("mem", service(mem), false, NONE),
        on_service("local", service(local), false, NONE),
        on_service("archive", service(ArchiveDriver::new(archive)), true, NONE),
        on_service("null", service(Null::new(1 << 20)), false, NONE),
    ])
}

fn mounts(scratch: &Path, archive: &Path) -> Outcome<Vec<Column>> {
    if let Some(reason) = obstacle() {
        println!("SKIPPED: mounts: {reason}");
        return Ok(Vec::new());
    }
    let local = scratch.join("mounted");
    std::fs::create_dir(&local)?;
    let mem = Path::new("mem:");
    Ok(vec![
        on_mount("mem", mem, "", false, NONE)?,
        on_mount("mem writeback", mem, ",writeback_cache", false, WRITEBACK)?,
        on_mount("local", &local, "", false, NONE)?,
        on_mount("archive", archive, "", true, NONE)?,
    ])
}

fn all_columns() -> Outcome<Vec<Column>> {
    let scratch = tempfile::tempdir()?;
    let native = scratch.path().join("native");
    std::fs::create_dir(&native)?;
    let archive = sample_archive(scratch.path())?;
    // `local` acts as its callers, for which it changes the rights of the thread it runs on.
    let own_thread = std::thread::scope(|scope| {
        let work = || services(scratch.path(), &archive).map_err(|error| error.to_string());
        scope.spawn(work).join()
    });
    let mut columns = own_thread.map_err(|_| "the thread of the services ended early")??;
    columns.extend(mounts(scratch.path(), &archive)?);
    columns.push(on_directory("native".into(), &native, Kind::Native, false, NONE)?);
    Ok(columns)
}

fn document(columns: &[Column]) -> String {
    let mut text = String::from(
        "# Conformance matrix\n\nWritten by `make matrix`; do not edit. One suite (`testing/conformance`) runs on these \
         drivers, asked directly as a\nservice, and through a FUSE mount. The last column is the kernel's own file system \
         below the temporary directory:\nwhat holds there is what Linux does. On disk images, servers \
         (SSH, NFS, FTP, WebDAV, HTTP), FUSE programs\nand the cache it runs in tests of theirs.\n\n",
    );
    text.push_str(&matrix(columns));
    text.push_str("\n## Exceptions\n\nA mount with `writeback_cache`:\n\n");
    for (name, reason) in WRITEBACK {
        text.push_str(&format!("- `{name}`: {reason}\n"));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn main() -> ExitCode {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/MATRIX.md");
    let file = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(default), PathBuf::from);
    let columns = match all_columns() {
        Ok(columns) => columns,
        Err(error) => {
            eprintln!("matrix: {error}");
            return ExitCode::from(2);
        }
    };
    let mut failed = 0;
    for (name, report) in &columns {
        let (passed, skipped, failures) = report.counts();
        println!("{name:<24} {passed:>4} passed {skipped:>4} skipped {failures:>4} failed");
        let lines = report.to_string();
        lines
            .lines()
            .filter(|line| line.starts_with("FAIL") || line.starts_with("     "))
            .for_each(|l| println!("  {l}"));
        failed += failures;
    }
    if let Err(error) = std::fs::write(&file, document(&columns)) {
        eprintln!("matrix: {}: {error}", file.display());
        return ExitCode::from(2);
    }
    ExitCode::from(u8::from(failed > 0))
}
