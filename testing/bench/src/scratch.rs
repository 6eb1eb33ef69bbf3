// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one directory everything lives in, and taking away what is mounted below a directory.

use crate::programs::run;
use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A directory that is removed, with all that is mounted in it, when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new directory in `parent`.
    pub fn new(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("bench-scratch.")
            .tempdir_in(parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        Ok(Scratch { path: dir.keep().canonicalize()? })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new directory `name` in it.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        sweep(&self.path);
    }
}

/// A file system of its own for a group, removed when dropped.
#[derive(Debug)]
pub struct Ground {
    dir: PathBuf,
    image: Option<PathBuf>,
}

impl Ground {
    /// A tmpfs of at most `bytes` with room for `inodes` files.
    pub fn tmpfs(scratch: &Scratch, name: &str, bytes: u64, inodes: u64) -> Result<Self> {
        let dir = scratch.dir(name)?;
        let options = format!("size={bytes},nr_inodes={inodes}");
        let options = std::ffi::CString::new(options)?;
        mount("tmpfs", &dir, "tmpfs", MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("cannot mount a tmpfs on {}", dir.display()))?;
        Ok(Ground { dir, image: None })
    }

    /// An ext4 of `bytes` in a sparse image on a loop device, with room for `inodes` files.
    pub fn ext4(scratch: &Scratch, name: &str, bytes: u64, inodes: u64) -> Result<Self> {
        let dir = scratch.dir(name)?;
        let image = scratch.path().join(format!("{name}.ext4"));
        fs::File::create(&image)?.set_len(bytes)?;
        let ground = Ground { dir, image: Some(image.clone()) };
        // Everything is initialised now, so that the kernel does not do so during a measurement.
        let initialise = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let mut mkfs = Command::new("mkfs.ext4");
        run(mkfs.args(["-q", "-F", "-E", initialise, "-N", &inodes.to_string()]).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop,noatime"]).arg(&image).arg(&ground.dir))?;
        Ok(ground)
    }

    /// Its root.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        release(&self.dir);
        // The sweep of the scratch directory removes what could not be removed here.
        let _ = fs::remove_dir(&self.dir);
        if let Some(image) = &self.image {
            let _ = fs::remove_file(image);
        }
    }
}

/// One mount of the kernel's table.
pub struct Mounted {
    /// Minor device number: the name of a FUSE connection.
    pub minor: String,
    /// Where it is.
    pub dir: PathBuf,
    fs_type: String,
}

/// The mounts at or below `dir`, the innermost first. Never touches a mount.
pub fn mounts_below(dir: &Path) -> Vec<Mounted> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<Mounted> =
        table.lines().filter_map(parse_mount).filter(|m| m.dir.starts_with(dir)).collect();
    found.reverse();
    found
}

/// One line of proc_pid_mountinfo(5).
fn parse_mount(line: &str) -> Option<Mounted> {
    let mut fields = line.split(' ');
    let (_, minor) = fields.nth(2)?.split_once(':')?;
    let dir = PathBuf::from(fields.nth(1)?);
    let fs_type = fields.skip_while(|field| *field != "-").nth(1)?.to_owned();
    Some(Mounted { minor: minor.to_owned(), dir, fs_type })
}

/// Takes away every mount at or below `dir`. A FUSE connection is aborted first, so that no process stays blocked in it.
pub fn release(dir: &Path) {
    for mounted in mounts_below(dir) {
        if mounted.fs_type.starts_with("fuse") {
            abort(&mounted.minor);
        }
        // A server whose connection was aborted may be faster.
        let unmounted = unmount(&mounted.dir, UnmountFlags::DETACH);
        if let Err(error) = unmounted
            && !matches!(error, Errno::INVAL | Errno::NOENT)
        {
            eprintln!("outrigger-bench: cannot unmount {}: {error}", mounted.dir.display());
        }
    }
}

/// Ends every call that waits in the FUSE connection `minor`.
fn abort(minor: &str) {
    let file = Path::new(CONNECTIONS).join(minor).join("abort");
    if !file.exists() {
        // Fails where it is mounted already, or cannot be: then nothing more can be done.
        let _ = mount("none", CONNECTIONS, "fusectl", MountFlags::empty(), None);
    }
    let _ = fs::write(file, "1");
}

/// Takes away every mount at or below `dir`, then the directory. Leaves it when something is still mounted in it.
pub fn sweep(dir: &Path) {
    release(dir);
    if !mounts_below(dir).is_empty() {
        eprintln!("outrigger-bench: {} is left behind: something in it is still mounted", dir.display());
    } else if let Err(error) = fs::remove_dir_all(dir) {
        eprintln!("outrigger-bench: cannot remove {}: {error}", dir.display());
    }
}
