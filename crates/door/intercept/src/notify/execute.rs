// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executing files of trees, and changing to directories there: the program does it, on the copy.

use super::decode::{Asked, At};
use super::names::{Found, How, Where, as_path};
use super::process::Process;
use super::redirect::{SLOT, slot};
use super::server::{Reply, Server};
use super::source::Call;
use super::{say, shown};
use outrigger_core::{Errno, FileKind, Result, lock};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::pread;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How much of a script the kernel looks at (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
/// The most arguments of a program whose interpreter is in a tree.
const ARGUMENTS_MAX: usize = 1024;

/// The most scripts that are read by each other.
const INTERPRETERS_MAX: usize = 5;

/// What a script says about who reads it.
#[derive(Debug, PartialEq, Eq)]
struct Script {
    interpreter: Vec<u8>,
    argument: Option<Vec<u8>>,
}

/// Who reads a script.
struct Interpreter {
    /// The program.
    real: PathBuf,
    /// Its arguments, before those of the script.
    words: Vec<Vec<u8>>,
    /// Whether the kernel does not know it.
    is_of_tree: bool,
}

impl Script {
    /// Reads the first line, as the kernel does.
    fn of(head: &[u8]) -> Option<Self> {
        let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
        let line = line.trim_ascii();
        let end = line.iter().position(|byte| b" \t".contains(byte)).unwrap_or(line.len());
        let (interpreter, rest) = line.split_at(end);
        let argument = Some(rest.trim_ascii().to_vec()).filter(|argument| !argument.is_empty());
        (!interpreter.is_empty()).then(|| Script { interpreter: interpreter.to_vec(), argument })
    }

    /// Reads it from a file.
    fn at(path: &Path) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(CWD, path, flags, Mode::empty()).ok()?;
        let mut head = vec![0; HEAD];
        let length = pread(&file, &mut head, 0).ok()?;
        Script::of(&head[..length])
    }
}

impl Server {
    /// Changes the program's working directory to one in a tree.
    pub(crate) fn change_directory(&self, call: &Call, found: &Found) -> Result<Reply> {
        let real = match &found.inode {
            Some(inode) if inode.is_dir() => {
                self.access(found, libc::X_OK.unsigned_abs())?;
                self.mirror.copy(&found.path, inode)?
            }
            Some(_) => return Err(Errno::ENOTDIR.into()),
            None if found.tree.is_none() => self.mirror.between(&found.path, &self.names)?,
            None => return Err(Errno::ENOENT.into()),
        };
        self.gives_directories()?;
        self.closes_gates(Process { thread: call.pid.cast_signed() })?;
        self.again(call, &real, Vec::new(), &[(0, 0)])
    }

    /// Executes a file of a tree.
    pub(crate) fn execute(self: &Arc<Self>, call: &Call, found: &Found, at: &At) -> Result<Reply> {
        let inode = found.there()?;
        if inode.kind() != FileKind::Regular || inode.attr().mode & 0o111 == 0 {
            return Err(Errno::EACCES.into());
        }
        self.execute_copy(call, &self.executable(found)?, &found.path, at)
    }

    /// Executes the copy of a file.
    pub(crate) fn execute_copy(
        self: &Arc<Self>,
        call: &Call,
        real: &Path,
        path: &[u8],
        at: &At,
    ) -> Result<Reply> {
        let script = Script::at(real);
        let is_known = at.dir == libc::AT_FDCWD || at.path.starts_with(b"/");
        let name = match at.path.is_empty() {
            true => format!("/dev/fd/{}", at.dir).into_bytes(),
            // The kernel would call it by its path in the mirror.
            false if is_known => at.path.clone(),
            false => path.to_vec(),
        };
        match script.map(|script| self.interpreter(call, script, name)).transpose()? {
            Some(by) if at.path.is_empty() && !by.is_of_tree => Ok(Reply::Pass),
            Some(by) => self.interpret(call, at.argument, by),
            None if at.path.is_empty() => Ok(Reply::Pass),
            None => self.again(call, real, Vec::new(), &[(at.argument, 0)]),
        }
    }

    /// The copy of a program, with its content.
    fn executable(&self, found: &Found) -> Result<PathBuf> {
        let inode = self.settled(found)?;
        let real = self.mirror.copy(&found.path, &inode)?;
        let content = self.mirror.content(&real)?;
        self.mirror.fill(&real, &inode, &mut lock(&content))?;
        Ok(real)
    }

    /// What is local the kernel does, but for scripts whose interpreter is in a tree.
    pub(crate) fn locally(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: &Asked,
        places: &[Where],
    ) -> Result<Reply> {
        if places.iter().any(|place| matches!(place, Where::Beyond(_))) {
            self.gives_directories()?;
            return self.beyond(call, request, places);
        }
        self.notice(process, request)?;
        if places.iter().any(|place| matches!(place, Where::Fixed(_))) {
            let (bytes, arguments) = rewritten(call, request, places);
            let fits = bytes.len() as u64 <= SLOT;
            // What another program traces cannot be stopped: the kernel follows the path that was given then.
            self.asks();
            let begins_again = fits && Arc::clone(&self.source).redirect(call, bytes, arguments).is_ok();
            return Ok(if begins_again { Reply::Answered } else { Reply::Pass });
        }
        let Asked::Execute { at } = request else { return Ok(Reply::Pass) };
        if at.path.is_empty() {
            return Ok(Reply::Pass);
        }
        let path = if at.path.starts_with(b"/") {
            at.path.clone()
        } else {
            [&process.file(at.dir)?[..], b"/", &at.path].concat()
        };
        let script = Script::at(as_path(&path));
        match script.map(|script| self.interpreter(call, script, at.path.clone())).transpose()? {
            Some(by) if by.is_of_tree => self.interpret(call, at.argument, by),
            _ => Ok(Reply::Pass),
        }
    }

    /// Has the program begin the call again with paths that the kernel knows.
    fn beyond(&self, call: &Call, request: &Asked, places: &[Where]) -> Result<Reply> {
        let (bytes, arguments) = rewritten(call, request, places);
        let what = String::from_utf8_lossy(&bytes).replace('\0', " ");
        self.redirect(call, what.trim_end(), bytes, arguments)
    }

    /// Who reads a script that is called by this name. An interpreter may be a script, too.
    fn interpreter(self: &Arc<Self>, call: &Call, script: Script, name: Vec<u8>) -> Result<Interpreter> {
        let process = Process { thread: call.pid.cast_signed() };
        let (mut words, mut script, mut is_of_tree) = (vec![name], script, false);
        for _ in 0..INTERPRETERS_MAX {
            let Script { interpreter: path, argument } = script;
            words.splice(0..0, iter::once(path.clone()).chain(argument));
            let at = At {
                dir: libc::AT_FDCWD,
                path,
                follow: true,
                may_be_empty: false,
                is_open: false,
                argument: 0,
            };
            let real = match self.find(process, &at, How { follow: true, ..How::default() })? {
                Where::Tree(found) => {
                    is_of_tree = true;
                    self.executable(&found)?
                }
                Where::Apart(spot) => {
                    is_of_tree |= spot.crossed;
                    let overlay = self.names.overlay().ok_or(Errno::EIO)?;
                    as_path(&overlay.place(spot.side, &spot.path).ok_or(Errno::ENOENT)?).to_owned()
                }
                Where::Beyond(path) | Where::Fixed(path) => as_path(&path).to_owned(),
                Where::Local => as_path(&at.path).to_owned(),
            };
            match Script::at(&real) {
                Some(next) => script = next,
                None => return Ok(Interpreter { real, words, is_of_tree }),
            }
        }
        Err(Errno::ELOOP.into())
    }

    /// Executes an interpreter, as the kernel would for its script.
    fn interpret(&self, call: &Call, argument: usize, by: Interpreter) -> Result<Reply> {
        let memory = Process { thread: call.pid.cast_signed() }.memory();
        let given = call.data.args[argument + 1];
        let mut rest = Vec::new();
        for index in 1.. {
            // There may be none at all, not even the name of the program.
            let first = if given == 0 { 0 } else { u64::from_ne_bytes(memory.read(given)?) };
            let pointer = if first == 0 { 0 } else { u64::from_ne_bytes(memory.read(given + 8 * index)?) };
            if pointer == 0 {
                break;
            }
            rest.push(pointer);
            if rest.len() > ARGUMENTS_MAX {
                return Err(Errno::E2BIG.into());
            }
        }
        let slot = slot(call.pid.cast_signed());
        let path = by.real.as_os_str().as_bytes();
        let (mut bytes, mut pointers) = ([path, b"\0"].concat(), Vec::new());
        for word in &by.words {
            pointers.push(slot + bytes.len() as u64);
            bytes.extend_from_slice(word);
            bytes.push(0);
        }
        pointers.extend(rest);
        pointers.push(0);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let start = bytes.len() as u64;
        bytes.extend(pointers.iter().flat_map(|pointer| pointer.to_ne_bytes()));
        let tail = bytes.split_off(path.len());
        self.again(call, &by.real, tail, &[(argument, 0), (argument + 1, start)])
    }

    /// Has the program begin the call again with a path in the mirror, and `tail` behind it; arguments are places in both.
    pub(crate) fn again(
        &self,
        call: &Call,
        real: &Path,
        tail: Vec<u8>,
        arguments: &[(usize, u64)],
    ) -> Result<Reply> {
        let thread = call.pid.cast_signed();
        let path = real.as_os_str().as_bytes();
        let tail = if tail.is_empty() { vec![0] } else { tail };
        let bytes = [path, &tail].concat();
        if self.source.comes_again() {
            lock(&self.redirected).insert(thread, path.to_vec());
        }
        let arguments = arguments.iter().map(|&(index, offset)| (index, slot(thread) + offset)).collect();
        let what = shown(self.names.shown(path).unwrap_or(path));
        self.redirect(call, &what, bytes, arguments).inspect_err(|_| {
            lock(&self.redirected).remove(&thread);
        })
    }

    /// Has the program begin the call again with other arguments.
    pub(crate) fn redirect(
        &self,
        call: &Call,
        what: &str,
        bytes: Vec<u8>,
        arguments: Vec<(usize, u64)>,
    ) -> Result<Reply> {
        if bytes.len() as u64 > SLOT {
            return Err(Errno::E2BIG.into());
        }
        // A program may take its time to stop.
        self.asks();
        match Arc::clone(&self.source).redirect(call, bytes, arguments) {
            Ok(()) => Ok(Reply::Answered),
            Err(errno) => {
                say(format_args!(
                    "'{what}': process {} cannot be stopped by ptrace(2), which executing files of trees and changing to their directories takes: {errno}",
                    call.pid
                ));
                Err(Errno::EACCES.into())
            }
        }
    }
}

/// The paths of local files by which a call is to begin again, and its arguments that are their addresses.
fn rewritten(call: &Call, request: &Asked, places: &[Where]) -> (Vec<u8>, Vec<(usize, u64)>) {
    let (mut bytes, mut arguments) = (Vec::new(), Vec::new());
    for ((at, _), place) in request.places().into_iter().zip(places) {
        if let Where::Beyond(path) | Where::Fixed(path) = place {
            arguments.push((at.argument, slot(call.pid.cast_signed()) + bytes.len() as u64));
            bytes.extend_from_slice(path);
            bytes.push(0);
        }
    }
    (bytes, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_are_read_as_by_the_kernel() {
        let read = |head: &str| {
            let script = Script::of(head.as_bytes())?;
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            Some((text(script.interpreter), script.argument.map(text)))
        };
        assert_eq!(read("#!/bin/sh\necho"), Some(("/bin/sh".into(), None)));
        assert_eq!(read("#! /bin/env  perl -w \n"), Some(("/bin/env".into(), Some("perl -w".into()))));
        assert_eq!(read("#!\n"), None);
        assert_eq!(read("\x7fELF"), None);
    }
}
