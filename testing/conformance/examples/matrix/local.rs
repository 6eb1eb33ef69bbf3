// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of this machine.

use crate::trees::{Outcome, Subject, Tree, below, prompt};
use outrigger_conformance::mount::WRITEBACK;
use outrigger_conformance::sample;
use outrigger_core::Runtime;
use outrigger_driver_archive::{Archive, ArchiveDriver, Options as ArchiveOptions, Unwatched};
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_driver_mem::{Mem, Options as MemOptions};
use outrigger_host::HostFile;
use outrigger_images::{Image, kind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

pub const SUBJECTS: &[Subject] = &[
    Subject::new("mem", mem),
    Subject {
        is_service: false,
        mounted: &[WRITEBACK],
        ..Subject::new("mem writeback", |dir| Ok(mem(dir)?.with(",writeback_cache")))
    },
    Subject::new("local", local),
    Subject { missing: no_image, ..Subject::new("ext4", ext4) },
    Subject { has_sample: true, ..Subject::new("archive", archive) },
];

/// What the columns are measured by.
pub const NATIVE: Subject = Subject::new("native", local);

fn mem(_: &Path) -> Outcome<Tree> {
    Ok(Tree::new("mem:", (), |threads| {
        let clock = Arc::clone(threads) as Arc<dyn Runtime>;
        Ok(prompt(threads, Mem::new(MemOptions::default(), clock)))
    }))
}

fn local(dir: &Path) -> Outcome<Tree> {
    let path = below(dir, "tree")?;
    Ok(Tree::new(path.display().to_string(), (), move |threads| {
        Ok(prompt(threads, Local::open(path, LocalOptions::default()).map_err(|error| error.to_string())?))
    }))
}

/// The sample tree, packed with tar.
fn archive(dir: &Path) -> Outcome<Tree> {
    let (tree, archive) = (below(dir, "tree")?, dir.join("sample.tar.xz"));
    sample::build(&tree)?;
    let packed = Command::new("tar").arg("-C").arg(&tree).arg("-caf").arg(&archive).arg(".").status()?;
    if !packed.success() {
        return Err("tar cannot pack the sample tree".into());
    }
    Ok(Tree::new(archive.display().to_string(), (), move |threads| {
        let source = Arc::new(HostFile::open(&archive)?);
        Ok(prompt(threads, ArchiveDriver::new(Archive::open(source, ArchiveOptions::default(), &Unwatched)?)))
    }))
}

const EXT4: &str = "ext4";

fn no_image() -> Option<String> {
    kind(EXT4).is_none().then(|| "image of that type".to_owned())
}

fn ext4(_: &Path) -> Outcome<Tree> {
    let image = Arc::new(Image::new(kind(EXT4).ok_or("no tools for it")?));
    let opened = Arc::clone(&image);
    Ok(Tree::new(image.path().display().to_string(), image, move |_| Ok(Arc::new(opened.open()))))
}
