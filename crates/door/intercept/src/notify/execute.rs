// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executing files of trees, and changing to directories there: the program does it, on the copy.

use super::decode::{At, Request};
use super::listener::Call;
use super::mirror::lock;
use super::names::{Found, How};
use super::process::Process;
use super::redirect::{SLOT, redirect, slot};
use super::server::{Reply, Server};
use outrigger_core::{Errno, FileKind, Result};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::pread;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How much of a script the kernel looks at (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
/// The most arguments of a program whose interpreter is in a tree.
const ARGUMENTS_MAX: usize = 1024;

/// What a script says about who reads it.
#[derive(Debug, PartialEq, Eq)]
struct Script {
    interpreter: Vec<u8>,
    argument: Option<Vec<u8>>,
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
            Some(inode) if inode.is_dir() => self.mirror.copy(&found.path, inode)?,
            Some(_) => return Err(Errno::ENOTDIR.into()),
            None if found.tree.is_none() => self.mirror.between(&found.path, &self.names)?,
            None => return Err(Errno::ENOENT.into()),
        };
        self.again(call, &real, Vec::new(), &[(0, 0)])
    }

    /// Executes a file of a tree.
    pub(crate) fn execute(self: &Arc<Self>, call: &Call, found: &Found, argument: usize) -> Result<Reply> {
        let inode = found.there()?;
        if inode.kind() != FileKind::Regular || inode.attr().mode & 0o111 == 0 {
            return Err(Errno::EACCES.into());
        }
        let real = self.executable(found)?;
        if call.data.args[argument] != 0 && self.is_by_descriptor(call, argument) {
            return Ok(Reply::Pass);
        }
        match Script::at(&real).map(|script| self.interpreter(call, script)).transpose()?.flatten() {
            Some((interpreter, option)) => {
                self.interpret(call, argument, &interpreter, option, real.as_os_str().as_bytes())
            }
            None => self.again(call, &real, Vec::new(), &[(argument, 0)]),
        }
    }

    /// Whether a program is executed that is open already.
    fn is_by_descriptor(&self, call: &Call, argument: usize) -> bool {
        let process = Process { thread: call.pid.cast_signed() };
        argument == 1 && process.memory().path(call.data.args[1]).is_ok_and(|path| path.is_empty())
    }

    /// The copy of a program, with its content.
    fn executable(&self, found: &Found) -> Result<PathBuf> {
        let inode = found.there()?;
        self.settle(&found.path);
        let real = self.mirror.copy(&found.path, inode)?;
        let content = self.mirror.content(&real)?;
        self.mirror.fill(&real, inode, &mut lock(&content))?;
        Ok(real)
    }

    /// What is local the kernel does, but for scripts whose interpreter is in a tree.
    pub(crate) fn locally(
        self: &Arc<Self>,
        call: &Call,
        process: Process,
        request: &Request,
    ) -> Result<Reply> {
        let Request::Execute { at, argument } = request else { return Ok(Reply::Pass) };
        if at.path.is_empty() {
            return Ok(Reply::Pass);
        }
        let path = if at.path.starts_with(b"/") {
            at.path.clone()
        } else {
            [&process.file(at.dir)?[..], b"/", &at.path].concat()
        };
        let script = Script::at(super::names::as_path(&path));
        match script.map(|script| self.interpreter(call, script)).transpose()?.flatten() {
            Some((interpreter, option)) => self.interpret(call, *argument, &interpreter, option, &at.path),
            None => Ok(Reply::Pass),
        }
    }

    /// The copy of an interpreter in a tree, and the argument that the script has for it; `None` for a local one.
    fn interpreter(
        self: &Arc<Self>,
        call: &Call,
        script: Script,
    ) -> Result<Option<(PathBuf, Option<Vec<u8>>)>> {
        let process = Process { thread: call.pid.cast_signed() };
        let at = At { dir: libc::AT_FDCWD, path: script.interpreter, follow: true, may_be_empty: false };
        let how = How { follow: true, resolve: 0 };
        let Some(found) = self.find(process, &at, how)? else { return Ok(None) };
        Ok(Some((self.executable(&found)?, script.argument)))
    }

    /// Executes an interpreter with a script, as the kernel would.
    fn interpret(
        &self,
        call: &Call,
        argument: usize,
        interpreter: &Path,
        option: Option<Vec<u8>>,
        script: &[u8],
    ) -> Result<Reply> {
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
        let name = interpreter.as_os_str().as_bytes();
        let mut bytes = [name, b"\0"].concat();
        let mut pointers = vec![slot];
        for text in option.iter().map(Vec::as_slice).chain([script]) {
            pointers.push(slot + bytes.len() as u64);
            bytes.extend_from_slice(text);
            bytes.push(0);
        }
        pointers.extend(rest);
        pointers.push(0);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let start = bytes.len() as u64;
        bytes.extend(pointers.iter().flat_map(|pointer| pointer.to_ne_bytes()));
        let tail = bytes.split_off(name.len());
        self.again(call, interpreter, tail, &[(argument, 0), (argument + 1, start)])
    }

    /// Has the program begin the call again with a path in the mirror, and `tail` behind it; arguments are places in both.
    fn again(&self, call: &Call, real: &Path, tail: Vec<u8>, arguments: &[(usize, u64)]) -> Result<Reply> {
        let thread = call.pid.cast_signed();
        let path = real.as_os_str().as_bytes();
        let tail = if tail.is_empty() { vec![0] } else { tail };
        let bytes = [path, &tail].concat();
        if bytes.len() as u64 > SLOT {
            return Err(Errno::E2BIG.into());
        }
        lock(&self.redirected).insert(thread, path.to_vec());
        let arguments = arguments.iter().map(|&(index, offset)| (index, slot(thread) + offset)).collect();
        match redirect(&self.listener, *call, bytes, arguments) {
            Ok(()) => Ok(Reply::Answered),
            Err(errno) => {
                lock(&self.redirected).remove(&thread);
                let what = String::from_utf8_lossy(self.names.shown(path).unwrap_or(path));
                let _ = writeln!(
                    io::stderr(),
                    "outrigger run: '{what}': process {thread} cannot be changed by ptrace(2), which executing files of trees and changing to their directories takes: {errno}"
                );
                Err(Errno::EACCES.into())
            }
        }
    }
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
