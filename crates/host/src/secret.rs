// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where secrets come from: the terminal, and files that only their user can read.

use rustix::fs::OFlags;
use rustix::process::geteuid;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The longest secret that is taken from a terminal, in bytes.
const LINE_MAX: usize = 4096;

/// Asks at the terminal of this process for a line, without showing what is typed.
///
/// # Errors
/// Those of opening and reading the terminal: there may be none.
pub fn ask_at_terminal(prompt: &str) -> Result<Vec<u8>> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    let before = tcgetattr(&terminal)?;
    let mut silent = before.clone();
    silent.local_modes -= LocalModes::ECHO;
    tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
    let answer = terminal.write_all(prompt.as_bytes()).and_then(|()| line(&mut terminal));
    tcsetattr(&terminal, OptionalActions::Flush, &before)?;
    let _ = terminal.write_all(b"\n");
    answer
}

/// One line, without what ends it.
fn line(terminal: &mut File) -> Result<Vec<u8>> {
    let mut line = Vec::with_capacity(LINE_MAX);
    let mut byte = [0];
    while line.len() < LINE_MAX && terminal.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(line)
}

/// The content of a file of at most `most` bytes that nobody else can read.
///
/// # Errors
/// `PermissionDenied` when others may read it, `InvalidInput` when it is no regular file, `FileTooLarge` when it is longer, and
/// those of reading it. The message does not name the file.
pub fn private_file(path: &Path, most: usize) -> Result<Vec<u8>> {
    // Opening a pipe would wait for another process.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if meta.mode() & 0o077 != 0 || ![0, geteuid().as_raw()].contains(&meta.uid()) {
        let why = format!("it may be read by others, and has secrets: chmod 600 {}", path.display());
        return Err(Error::new(ErrorKind::PermissionDenied, why));
    }
    // Enough room from the beginning: what is moved to more leaves a copy behind.
    let mut content = Vec::with_capacity(most.min(meta.size() as usize) + 1);
    file.take(most as u64 + 1).read_to_end(&mut content)?;
    if content.len() > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is longer than {most} bytes")));
    }
    Ok(content)
}
