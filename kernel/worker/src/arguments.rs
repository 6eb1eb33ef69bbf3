// SPDX-License-Identifier: GPL-2.0-only
//! What the driver says when it starts this program.

use outrigger_proto_disk::form::Form;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The words of the command line, each `name=value`.
pub struct Arguments {
    /// `socket=FD`: where requests come from.
    pub socket: UnixStream,
    /// `log=FD`: where kernel messages are kept; standard error without.
    pub log: Option<File>,
    /// `control=BYTES`: where the part of the log's file starts with which a mount survives this process; none without.
    pub control: Option<u64>,
    /// `image=FD`: the image, open for reading or, with `write=1`, for both; a file system of memory has none.
    pub image: Option<File>,
    /// `served=BYTES`: the image is no file, but a connection at which its bytes are asked for: how many there are.
    pub served: Option<u64>,
    /// `format=FORM`: what the image is, and `backing=FORM,...` what the files are that it needs beside its own; they
    /// arrive at the socket ahead of everything else. Without, its bytes are the disk's.
    pub forms: Vec<Form>,
    /// `device=OPTION,FORM,...`, several times: further disks, whose files arrive at the socket after those above, a message
    /// each. They are of this form; then come those of the files it needs.
    pub devices: Vec<Device>,
    /// `start=BYTES`, `size=BYTES`: the part of it that is the disk; all of it without.
    pub start: u64,
    /// See above.
    pub size: Option<u64>,
    /// `flash=BYTES`: the image is that of flash memory of which so many bytes are erased together.
    pub flash: Option<u32>,
    /// `write=1`: whether the image may be changed.
    pub write: bool,
    /// `type=NAME`: the file system, as the kernel calls it.
    pub kind: CString,
    /// `options=LIST`: for the file system, as mount(8) takes them.
    pub options: CString,
    /// `memory=BYTES`: how much the kernel has, page cache included.
    pub memory: u64,
    /// `files=NUMBER`: how many files the kernel is to hold at most while it serves a mount.
    pub files: usize,
    /// `sandbox=off`: keep all rights, for tools that work inside this process (docs/KERNEL-DEBUGGING.md).
    pub sandbox: bool,
    /// `io=NAME`: how the bytes of the image are moved.
    pub io: String,
    /// `fixed=SECONDS,SEED`: the time of day that the clock always says, and where random numbers begin.
    pub fixed: Option<(u64, u64)>,
    /// `patience=SECONDS`: how long unmounting may take when the other side has gone.
    pub patience: Duration,
}

/// A further disk.
pub struct Device {
    /// The option of mount(8) that names it.
    pub option: String,
    /// What its files are, its own first.
    pub forms: Vec<Form>,
}

/// Enough for what usual memory can hold, in seconds.
const PATIENCE: u64 = 120;

impl Arguments {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// A sentence about the word that is wrong or missing.
    pub fn from_command_line() -> Result<Self, String> {
        Arguments::parse(std::env::args_os().skip(1).map(OsString::into_vec).collect())
    }

    fn parse(words: Vec<Vec<u8>>) -> Result<Self, String> {
        let text = |name: &str| {
            let prefix = [name.as_bytes(), b"="].concat();
            words.iter().find_map(|word| word.strip_prefix(&prefix[..])).map(<[u8]>::to_vec)
        };
        let number = |name: &str| -> Result<Option<u64>, String> {
            let Some(word) = text(name) else { return Ok(None) };
            let value = String::from_utf8_lossy(&word).parse();
            value.map(Some).map_err(|_| format!("{name}= is not a number"))
        };
        let required = |name: &str| {
            number(name)?.ok_or_else(|| format!("{name}= is missing; this program is started by outrigger"))
        };
        let string = |name: &str| {
            CString::new(text(name).unwrap_or_default()).map_err(|_| format!("{name}= has a NUL"))
        };
        let image = number("image")?.map(|fd| fd as RawFd);
        let socket = required("socket")? as RawFd;
        let log = number("log")?.map(|fd| fd as RawFd);
        // SAFETY: the parent process hands these descriptors over for this alone.
        let file = |fd| unsafe { File::from_raw_fd(fd) };
        let (image, log) = (image.map(file), log.map(file));
        // SAFETY: as above.
        let socket = unsafe { UnixStream::from_raw_fd(socket) };
        Ok(Arguments {
            socket,
            log,
            control: number("control")?,
            image,
            served: number("served")?,
            forms: match text("format") {
                None => vec![Form::Raw],
                Some(own) => forms(&[own, text("backing").unwrap_or_default()].join(&b','))?,
            },
            devices: words
                .iter()
                .filter_map(|word| further(word.strip_prefix(b"device=")?))
                .collect::<Result<_, _>>()?,
            start: number("start")?.unwrap_or(0),
            size: number("size")?,
            flash: number("flash")?.map(|bytes| bytes as u32),
            write: number("write")? == Some(1),
            kind: string("type")?,
            options: string("options")?,
            memory: required("memory")?,
            files: number("files")?.map_or(usize::MAX / 2, |files| files as usize),
            sandbox: text("sandbox").as_deref() != Some(b"off"),
            io: String::from_utf8_lossy(&text("io").unwrap_or_default()).into_owned(),
            fixed: match text("fixed") {
                None => None,
                Some(word) => {
                    Some(fixed(&String::from_utf8_lossy(&word)).ok_or("fixed= is not SECONDS,SEED")?)
                }
            },
            patience: Duration::from_secs(number("patience")?.unwrap_or(PATIENCE)),
        })
    }
}

/// What the value of `fixed=` says.
fn fixed(value: &str) -> Option<(u64, u64)> {
    let (seconds, seed) = value.split_once(',')?;
    Some((seconds.parse().ok()?, seed.parse().ok()?))
}

/// What the value of `device=` says.
fn further(value: &[u8]) -> Option<Result<Device, String>> {
    let (option, list) = value.split_at(value.iter().position(|&byte| byte == b',')?);
    let option = String::from_utf8_lossy(option).into_owned();
    Some(forms(list).map(|forms| Device { option, forms }))
}

/// What the files in a list are.
fn forms(list: &[u8]) -> Result<Vec<Form>, String> {
    let names = list.split(|&byte| byte == b',').filter(|name| !name.is_empty());
    let known = |name| Form::named(&String::from_utf8_lossy(name));
    names.map(|name| known(name).ok_or_else(|| "format= is not one that is served".to_owned())).collect()
}
