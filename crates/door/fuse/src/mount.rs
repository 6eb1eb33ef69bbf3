// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making a mount: mount(2) where we may, else the set-uid helper fusermount3.
use crate::device::Device;
use crate::mountpoint::{Mountpoint, absolute, inspect};
use crate::options::Options;
use crate::utab;
use outrigger_host::MountEntry;
use outrigger_host::{Confined, receive_with};
use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why a mount could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The server of an earlier mount there has died.
    #[error("{path}: the server of the mount there has died; unmount it first (outrigger umount {path})")]
    Dead {
        /// The mountpoint.
        path: PathBuf,
    },
    /// The mountpoint cannot be used.
    #[error("{path}: cannot mount there: {error}")]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("/dev/fuse: {error}; is the fuse module loaded, and may this user open it?")]
    Device {
        /// Why.
        error: io::Error,
    },
    /// mount(2) refused.
    #[error("{path}: mount: {error}")]
    Refused {
        /// The mountpoint.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Neither mount(2) nor the helper is possible.
    #[error(
        "{path}: only root may mount here and {helper} cannot be run ({error}); install fuse3, or use a user and \
         mount namespace (unshare -Urm)"
    )]
    NoHelper {
        /// The mountpoint.
        path: PathBuf,
        /// The helper's name.
        helper: &'static str,
        /// Why it cannot be run.
        error: io::Error,
    },
    /// The helper refused; it has said why on its standard error, which is repeated here.
    #[error("{path}: fusermount3: {message}")]
    Helper {
        /// The mountpoint.
        path: PathBuf,
        /// What it said.
        message: String,
    },
}

/// A mount that was made, and the way to remove it.
#[derive(Debug)]
pub struct Mounted {
    /// Absolute path of the mountpoint.
    pub mountpoint: PathBuf,
    /// Number of the connection, if the mount table could be read.
    pub(crate) connection: Option<u32>,
    /// Whether the kernel may be asked for mounts with mapped ids: it refuses all of INIT otherwise.
    pub(crate) idmap: bool,
}

impl Mounted {
    /// Has the kernel read ahead so many bytes: it offers 128 KiB in INIT and takes no more there.
    pub(crate) fn raise_readahead(&self, bytes: Option<u32>) {
        let Some(bytes) = bytes else { return };
        let set = match MountEntry::at(&self.mountpoint) {
            Ok(Some(entry)) => set_readahead(&entry, bytes),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = set {
            tracing::info!(%error, "the read-ahead stays as the kernel has it");
        }
    }
}

/// The helper for users who may not mount.
pub(crate) const HELPER: &str = "fusermount3";
/// Where the helper finds the socket to send the descriptor through.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// The number in a mountpoint of the form `/dev/fd/N`: a descriptor that is mounted already, as libfuse has it.
#[must_use]
pub fn dev_fd(mountpoint: &Path) -> Option<RawFd> {
    mountpoint.to_str()?.strip_prefix("/dev/fd/")?.parse().ok().filter(|fd| *fd >= 0)
}

/// Makes a mount whose requests the returned device gives. `driver` names the driver in the mount table, `tree`
/// what it serves.
///
/// # Errors
/// [`MountError`] says what was tried and what can be done.
pub fn mount(
    mountpoint: &Path,
    driver: &str,
    tree: &str,
    options: &Options,
) -> Result<(Device, Mounted), MountError> {
    let unusable = |error| MountError::Mountpoint { path: mountpoint.to_owned(), error };
    let is_dir = match inspect(mountpoint) {
        Mountpoint::Usable { is_dir } => is_dir,
        Mountpoint::Dead => return Err(MountError::Dead { path: mountpoint.to_owned() }),
        Mountpoint::Unreachable(errno) => return Err(unusable(io::Error::from_raw_os_error(errno))),
    };
    let path = fs::canonicalize(mountpoint).or_else(|_| absolute(mountpoint)).map_err(unusable)?;
    let table = Table {
        source: options.fsname.clone().unwrap_or_else(|| tree.to_owned()),
        subtype: options.subtype.clone().unwrap_or_else(|| format!("outrigger.{driver}")),
    };
    let root = rustix::process::geteuid().is_root();
    let (device, idmap) = match by_syscall(&path, is_dir, &table, options) {
        Ok(device) => (device, options.idmap && options.default_permissions && root),
        Err(refused) if needs_helper(&refused) => {
            (Device::from_fd(by_helper(&path, &table, options)?), false)
        }
        Err(error) => return Err(error),
    };
    let entry = MountEntry::at(&path).ok().flatten();
    if let Some(entry) = entry.as_ref().filter(|_| root) {
        utab::note(entry);
    }
    let connection = entry.map(|entry| entry.minor);
    Ok((device, Mounted { mountpoint: path, connection, idmap }))
}

impl Mounted {
    /// Whether this mount, and not another one at the same place, is there.
    pub(crate) fn is_there(&self) -> bool {
        match MountEntry::at(&self.mountpoint) {
            Ok(entry) => {
                entry.is_some_and(|entry| self.connection.is_none_or(|number| number == entry.minor))
            }
            Err(_) => true,
        }
    }
}

/// What the mount table shows.
struct Table {
    source: String,
    subtype: String,
}

/// Whether somebody with more rights could have made the mount.
fn needs_helper(error: &MountError) -> bool {
    match error {
        MountError::Refused { error, .. } => error.raw_os_error() == Some(libc::EPERM),
        MountError::Device { error } => error.raw_os_error() == Some(libc::EACCES),
        _ => false,
    }
}

/// As root, or as the owner of a user namespace with a mount namespace.
fn by_syscall(path: &Path, is_dir: bool, table: &Table, options: &Options) -> Result<Device, MountError> {
    let refused = |error: io::Error| MountError::Refused { path: path.to_owned(), error };
    let device = Device::open().map_err(|error| MountError::Device { error })?;
    let kind = if is_dir { libc::S_IFDIR } else { libc::S_IFREG };
    let mut data = format!(
        "fd={},rootmode={kind:o},user_id={},group_id={}",
        device.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    for (on, word) in
        [(options.default_permissions, ",default_permissions"), (options.allow_other, ",allow_other")]
    {
        data.push_str(if on { word } else { "" });
    }
    if let Some(max_read) = options.max_read {
        data.push_str(&format!(",max_read={max_read}"));
    }
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let fstype = format!("fuse.{}", table.subtype);
    rustix::mount::mount(&*table.source, path, &*fstype, options.flags(), &*data)
        .map_err(|errno| refused(errno.into()))?;
    Ok(device)
}

impl Options {
    /// What of them mount(2) has flags for, whatever is mounted.
    #[must_use]
    pub fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        for (on, flag) in [
            (self.read_only, MountFlags::RDONLY),
            (!self.suid, MountFlags::NOSUID),
            (!self.dev, MountFlags::NODEV),
            (!self.exec, MountFlags::NOEXEC),
            (self.noatime, MountFlags::NOATIME),
            (self.nodiratime, MountFlags::NODIRATIME),
            (self.sync, MountFlags::SYNCHRONOUS),
        ] {
            flags.set(flag, on);
        }
        flags
    }
}

/// The options in the helper's spelling.
fn helper_options(table: &Table, options: &Options) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = format!("fsname={},subtype={}", escape(&table.source), escape(&table.subtype));
    for (on, word) in [
        (options.read_only, ",ro"),
        (options.default_permissions, ",default_permissions"),
        (options.allow_other, ",allow_other"),
        (!options.exec, ",noexec"),
        (options.noatime, ",noatime"),
        (options.sync, ",sync"),
    ] {
        list.push_str(if on { word } else { "" });
    }
    if let Some(max_read) = options.max_read {
        list.push_str(&format!(",max_read={max_read}"));
    }
    list
}

/// The helper mounts, and sends the descriptor of `/dev/fuse` through a socket.
fn by_helper(path: &Path, table: &Table, options: &Options) -> Result<OwnedFd, MountError> {
    let no_helper = |error: io::Error| MountError::NoHelper { path: path.to_owned(), helper: HELPER, error };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| no_helper(errno.into()))?;
    let number = theirs.as_raw_fd();
    let mut command = helper(&[number]);
    command.arg("-o").arg(helper_options(table, options)).arg("--").arg(path);
    command.env(HELPER_SOCKET, number.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::piped());
    let child = command.spawn().map_err(no_helper)?;
    drop(theirs);
    let received = receive_fd(&ours);
    let output = child.wait_with_output().map_err(no_helper)?;
    match received {
        Ok(fd) if output.status.success() => Ok(fd),
        Ok(_) | Err(_) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let message = match said.strip_prefix("fusermount3: ") {
                Some(reason) => reason.to_owned(),
                None if said.is_empty() => format!("ended with {}", output.status),
                None => said,
            };
            Err(MountError::Helper { path: path.to_owned(), message })
        }
    }
}

/// The helper, with the descriptors in `keep` and no variable but where programs are: what it does, it does as root.
pub(crate) fn helper(keep: &[RawFd]) -> Command {
    let mut command = Command::new(HELPER);
    command.confined(keep).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command
}

/// Receives one descriptor, sent along with one byte.
fn receive_fd(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let (_, mut descriptors) = receive_with(socket, &mut [0], RecvFlags::empty())?;
    descriptors.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Sets the largest read-ahead of a mount, also beyond what INIT can negotiate; needs root.
fn set_readahead(entry: &MountEntry, bytes: u32) -> io::Result<()> {
    let control = format!("/sys/class/bdi/{}:{}/read_ahead_kb", entry.major, entry.minor);
    fs::write(control, (bytes / 1024).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_as_mountpoints() {
        for (path, expected) in [
            ("/dev/fd/7", Some(7)),
            ("/dev/fd/-1", None),
            ("/dev/fd/", None),
            ("/dev/fd/7/x", None),
            ("/mnt", None),
        ] {
            assert_eq!(dev_fd(Path::new(path)), expected, "{path}");
        }
    }

    #[test]
    fn a_missing_mountpoint_is_named() {
        let error = mount(Path::new("/no/such"), "t", "t:", &Options::default()).unwrap_err();
        assert!(error.to_string().starts_with("/no/such: cannot mount there"), "{error}");
    }

    #[test]
    fn commas_reach_the_helper_as_part_of_a_value() {
        let table = Table { source: r"a,b\c".into(), subtype: "outrigger.mem".into() };
        let list = helper_options(&table, &Options { read_only: true, ..Options::default() });
        assert_eq!(list, r"fsname=a\,b\\c,subtype=outrigger.mem,ro,default_permissions");
    }
}
