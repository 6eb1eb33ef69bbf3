// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is kept so that clients of a server that was started again go on: the key that file handles are made with, and the paths
//! of files in trees that do not find them by number.

use crate::status::Failure;
use outrigger_core::node_table::NodeTable;
use outrigger_core::{Error, Region};
use outrigger_door_nfs::{KEY_LEN, Paths, new_key};
use outrigger_guard::FileRegion;
use outrigger_host::{PrivateDir, users_state};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, linkat, openat, statat, unlinkat};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The names of the files.
const KEY: &str = "nfs.key";
const LOCK: &str = "nfs.lock";
const PATHS: (&str, &str) = ("nfs-", ".paths");
/// For so long a server that was just killed may still have the directory.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Bits of a mode that let others in.
const OTHERS: u32 = 0o077;
/// Words of a table of paths: 64 MiB, more than a million files.
const WORDS: usize = 8 << 20;
/// Tables that no server has used for so long are removed.
const UNUSED: Duration = Duration::from_secs(90 * 24 * 3600);
/// What a table of paths begins with.
const MAGIC: [u8; 8] = *b"orpaths1";
/// Where the system says which of its runs this is.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// The directory of one server.
pub struct State {
    directory: PrivateDir,
    place: PathBuf,
    /// Locked as long as this is open.
    _lock: File,
}

impl State {
    /// The directory `state`, or that of the user, for this server alone.
    ///
    /// # Errors
    /// A sentence that says why there is none, or that another server has it.
    pub fn open(state: Option<&Path>) -> Result<Self, Failure> {
        let base = state.map(Path::to_owned).or_else(users_state).ok_or_else(|| {
            Failure::serious("neither XDG_STATE_HOME nor HOME is set: --state DIR says where the key of file handles is kept")
        })?;
        let place = base.join("outrigger");
        let cannot = |error| cannot(&place, &error);
        let directory = PrivateDir::open(&base, &["outrigger"]).map_err(cannot)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&directory, LOCK, flags, Mode::RUSR | Mode::WUSR);
        let lock = File::from(lock.map_err(|errno| cannot(errno.into()))?);
        let since = Instant::now();
        while let Err(errno) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if errno != rustix::io::Errno::WOULDBLOCK {
                return Err(cannot(errno.into()));
            }
            if since.elapsed() > PATIENCE {
                return Err(Failure::serious(format!(
                    "another server uses '{}': one server can export several trees (--export), and --state DIR gives a second one \
                     a place of its own",
                    place.display()
                )));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(State { directory, place, _lock: lock })
    }

    /// The key: made when it is first needed.
    ///
    /// # Errors
    /// A sentence that says why there is none, or why others may know it.
    pub fn key(&self) -> Result<[u8; KEY_LEN], Failure> {
        loop {
            match self.read_key() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.make_key().map_err(|error| cannot(&self.place, &error))?;
                }
                key => return key.map_err(|error| cannot(&self.place, &error)),
            }
        }
    }

    fn read_key(&self) -> io::Result<[u8; KEY_LEN]> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, KEY, flags, Mode::empty())?);
        let mode = file.metadata()?.mode() & 0o7777;
        if mode & OTHERS != 0 {
            let why = format!(
                "its mode is {mode:04o}, so others may have read it, and who has it can make up file handles: remove it (clients \
                 mount again), or `chmod 600` it if nobody has"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let mut key = [0; KEY_LEN];
        file.read_exact(&mut key)?;
        Ok(key)
    }

    /// It gets its name when it is whole.
    fn make_key(&self) -> io::Result<()> {
        let key = new_key().map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("{KEY}.{}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, &*name, flags, Mode::RUSR | Mode::WUSR)?);
        let written = file.write_all(&key).and_then(|()| file.sync_all());
        let linked = written
            .and_then(|()| Ok(linkat(&self.directory, &*name, &self.directory, KEY, AtFlags::empty())?));
        unlinkat(&self.directory, &*name, AtFlags::empty())?;
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }

    /// The paths of the export that alone has this number, with what marks them as whole when the server ends.
    ///
    /// # Errors
    /// When there is no room, or no random number.
    pub fn paths(&self, number: u64) -> io::Result<(Paths, Whole)> {
        let name = format!("{}{number:016x}{}", PATHS.0, PATHS.1);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || openat(&self.directory, &*name, flags, Mode::RUSR | Mode::WUSR).map(File::from);
        // Where the system does not say, each start counts as another run.
        let boot = fs::read(BOOT).unwrap_or_else(|_| format!("{:?}", Instant::now()).into_bytes());
        let file = open()?;
        if let Some(run) = Head::read(&file).filter(|head| head.is_whole(&boot)).map(|head| head.run)
            && let Ok(region) = FileRegion::open(&file, WORDS).map(Arc::new)
            && let Ok(table) = NodeTable::attach(Arc::clone(&region) as Arc<dyn Region>)
        {
            Head::new(run, &boot).write(&file)?;
            return Ok((Paths { table, run }, Whole { file, region, run }));
        }
        // Handles of the former table are stale: this one has another number.
        unlinkat(&self.directory, &*name, AtFlags::empty())?;
        let file = open()?;
        let made = (|| {
            let region = Arc::new(FileRegion::open(&file, WORDS)?);
            let table = NodeTable::attach(Arc::clone(&region) as Arc<dyn Region>)?;
            let random = new_key()?;
            Ok::<_, Error>((
                region,
                table,
                random.iter().fold(0, |run: u64, &byte| run << 8 | u64::from(byte)),
            ))
        })();
        let (region, table, run) = made.map_err(|error| {
            // Half of it is of no use, and in the way of others.
            let _ = unlinkat(&self.directory, &*name, AtFlags::empty());
            io::Error::other(error.to_string())
        })?;
        Head::new(run, &boot).write(&file)?;
        Ok((Paths { table, run }, Whole { file, region, run }))
    }

    /// Removes tables that no server has used for long.
    pub fn forget_unused(&self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = now.saturating_sub(UNUSED).as_secs() as i64;
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_str().unwrap_or_default();
            let is_table = name.starts_with(PATHS.0) && name.ends_with(PATHS.1);
            if is_table && statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mtime < last {
                unlinkat(&self.directory, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

fn cannot(place: &Path, error: &io::Error) -> Failure {
    let why = match error.raw_os_error() {
        Some(number) => Error::from(outrigger_core::Errno(number)).to_string(),
        None => error.to_string(),
    };
    Failure::new(format!("the key of file handles, '{}': {why}", place.join(KEY).display()))
}

/// What is known of a table of paths before it is looked at. A kill leaves the table whole, and the end of the machine does not: it is
/// used again in the same run of the machine, and where its server has ended in order.
struct Head {
    run: u64,
    /// The run of the machine; nothing once the table is whole on the disk.
    boot: Vec<u8>,
}

impl Head {
    /// Bytes of a run of the machine.
    const BOOT_LEN: usize = 40;
    const LEN: usize = 16 + Head::BOOT_LEN;

    fn new(run: u64, boot: &[u8]) -> Self {
        Head { run, boot: boot.iter().copied().take(Head::BOOT_LEN).collect() }
    }

    fn read(file: &File) -> Option<Self> {
        let mut bytes = [0; Head::LEN];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let (magic, rest) = bytes.split_first_chunk()?;
        let (run, boot) = rest.split_first_chunk()?;
        let end = boot.iter().position(|&byte| byte == 0).unwrap_or(boot.len());
        (*magic == MAGIC).then(|| Head { run: u64::from_le_bytes(*run), boot: boot[..end].to_vec() })
    }

    fn is_whole(&self, boot: &[u8]) -> bool {
        self.boot.is_empty() || self.boot == Head::new(0, boot).boot
    }

    /// Stores it before anything else is stored behind it.
    fn write(&self, file: &File) -> io::Result<()> {
        let mut bytes = [0; Head::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.run.to_le_bytes());
        bytes[16..16 + self.boot.len()].copy_from_slice(&self.boot);
        file.write_all_at(&bytes, 0)?;
        file.sync_data()
    }
}

/// Marks a table of paths as whole.
pub struct Whole {
    file: File,
    region: Arc<FileRegion>,
    run: u64,
}

impl Whole {
    /// Called when nothing is stored into the table any more.
    ///
    /// # Errors
    /// When it cannot be written: after a restart of the machine its handles are stale then.
    pub fn mark(self) -> io::Result<()> {
        self.region.sync().map_err(|error| io::Error::other(error.to_string()))?;
        Head::new(self.run, &[]).write(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{Name, Node};
    use std::os::unix::fs::PermissionsExt;

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    #[test]
    fn paths_are_there_again_unless_the_machine_has_stopped_in_between() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let (first, whole) = state.paths(7).unwrap();
        let node = first.table.found(Node::ROOT, &name("a"), None).unwrap();
        let run = first.run;
        // As if killed.
        drop((first, whole));
        let (again, whole) = state.paths(7).unwrap();
        assert_eq!((again.run, again.table.path(node).unwrap()), (run, vec![name("a")]));
        let file = dir.path().join("outrigger/nfs-0000000000000007.paths");
        let machine = File::options().write(true).open(&file).unwrap();
        Head::new(run, b"another run").write(&machine).unwrap();
        drop((again, whole));
        let (other, whole) = state.paths(7).unwrap();
        assert!(other.run != run && other.table.path(node).is_err(), "it may be torn");
        let node = other.table.found(Node::ROOT, &name("b"), None).unwrap();
        let run = other.run;
        drop(other);
        whole.mark().unwrap();
        assert!(Head::read(&File::open(&file).unwrap()).unwrap().is_whole(b"any run"));
        let (again, _whole) = state.paths(7).unwrap();
        assert_eq!((again.run, again.table.path(node).unwrap()), (run, vec![name("b")]));
        assert!(!Head::read(&File::open(&file).unwrap()).unwrap().is_whole(b"any run"), "it is in use");
    }

    #[test]
    fn a_damaged_table_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let (paths, whole) = state.paths(7).unwrap();
        let run = paths.run;
        drop((paths, whole));
        let file = File::options().write(true).open(dir.path().join("outrigger/nfs-0000000000000007.paths"));
        file.unwrap().write_all_at(&[0xff; 64], FileRegion::HEAD).unwrap();
        let (paths, _whole) = state.paths(7).unwrap();
        assert!(paths.run != run && paths.table.is_empty());
    }

    #[test]
    fn tables_without_use_are_removed_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let path = |name: &str| dir.path().join("outrigger").join(name);
        for (name, age) in [("nfs-1.paths", 100), ("nfs-2.paths", 80), ("notes-1.paths", 100)] {
            let file = File::create(path(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age * 24 * 3600)).unwrap();
        }
        state.forget_unused().unwrap();
        let left = ["nfs-1.paths", "nfs-2.paths", "notes-1.paths"].map(|name| path(name).exists());
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn a_key_that_others_may_have_read_and_a_directory_in_use_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(Some(dir.path())).unwrap();
        let key = state.key().unwrap();
        assert_eq!(state.key().unwrap(), key);
        let other = State::open(Some(dir.path())).err().unwrap().message;
        assert!(other.contains("--state"), "{other}");
        let path = dir.path().join("outrigger").join(KEY);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = state.key().unwrap_err().message;
        assert!(refused.contains("0644") && refused.contains("chmod 600"), "{refused}");
        drop(state);
        State::open(Some(dir.path())).unwrap();
    }
}
