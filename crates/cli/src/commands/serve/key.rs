// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key that file handles are made with. It is kept, so that clients of a server that was started again go on.

use crate::status::Failure;
use outrigger_core::Error;
use outrigger_door_nfs::{KEY_LEN, new_key};
use outrigger_host::{PrivateDir, users_state};
use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, unlinkat};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// The name of its file.
const NAME: &str = "nfs.key";

/// The key in the directory `state`, or in that of the user: made when it is first needed.
///
/// # Errors
/// A sentence that says why there is none, or why others may know it.
pub fn of(state: Option<&Path>) -> Result<[u8; KEY_LEN], Failure> {
    let own;
    let (base, names): (&Path, &[&str]) = match state {
        Some(state) => (state, &["outrigger"]),
        None => {
            own = users_state().ok_or_else(|| {
                Failure::serious("neither XDG_STATE_HOME nor HOME is set: --state DIR says where the key of file handles is kept")
            })?;
            (&own, &["outrigger"])
        }
    };
    let cannot = |error: io::Error| {
        let place = base.join("outrigger").join(NAME);
        Failure::new(format!("the key of file handles, '{}': {}", place.display(), Error::from(error)))
    };
    let directory = PrivateDir::open(base, names).map_err(cannot)?;
    loop {
        match read(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&directory).map_err(cannot)?,
            key => return key.map_err(cannot),
        }
    }
}

fn read(directory: &PrivateDir) -> io::Result<[u8; KEY_LEN]> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut key = [0; KEY_LEN];
    File::from(openat(directory, NAME, flags, Mode::empty())?).read_exact(&mut key)?;
    Ok(key)
}

/// Makes the key, unless another process does. It gets its name when it is whole.
fn make(directory: &PrivateDir) -> io::Result<()> {
    let key = new_key().map_err(|error| io::Error::other(error.to_string()))?;
    let name = format!("{NAME}.{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, &*name, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file.write_all(&key).and_then(|()| file.sync_all());
    let linked = written.and_then(|()| Ok(linkat(directory, &*name, directory, NAME, AtFlags::empty())?));
    unlinkat(directory, &*name, AtFlags::empty())?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}
