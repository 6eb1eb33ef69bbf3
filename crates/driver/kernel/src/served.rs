// SPDX-License-Identifier: MIT OR Apache-2.0
//! An image in a file of another tree: this process reads it for the workers, which are confined and reach no tree.

use outrigger_core::registry::Content;
use outrigger_core::{Errno, Error, Result, lock};
use outrigger_proto_disk::Medium;
use outrigger_proto_disk::served::Question;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;

/// The content of a file as a medium.
pub(crate) struct Served {
    content: Arc<dyn Content>,
    /// What reading it failed with last.
    failure: Mutex<Option<String>>,
}

impl Served {
    pub(crate) fn new(content: Arc<dyn Content>) -> Arc<Self> {
        Arc::new(Served { content, failure: Mutex::default() })
    }

    /// What its user calls it.
    pub(crate) fn name(&self) -> &str {
        self.content.name()
    }

    /// The end of a connection at which a worker asks for bytes. A thread answers until the worker hangs up.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub(crate) fn connect(self: &Arc<Self>) -> Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        let served = Arc::clone(self);
        let answer = move || {
            if let Err(error) = served.answer_all(&ours) {
                tracing::debug!(%error, name = served.content.name(), "a worker's image is not read any more");
            }
        };
        thread::Builder::new().name("outrigger-image".into()).spawn(answer)?;
        Ok(theirs.into())
    }

    fn answer_all(&self, mut socket: &UnixStream) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let mut asked = [0; Question::LEN];
            socket.read_exact(&mut asked)?;
            let Some(question) = Question::decode(asked, self.size()) else {
                *lock(&self.failure) = Some("the kernel code asks for bytes that are not in it".to_owned());
                return Err(io::ErrorKind::InvalidData.into());
            };
            buffer.resize(4 + question.length as usize, 0);
            match self.read(&mut buffer[4..], question.offset) {
                Ok(()) => {
                    buffer[..4].fill(0);
                    socket.write_all(&buffer)?;
                }
                Err(error) => {
                    socket.write_all(&error.raw_os_error().unwrap_or(Errno::EIO.0).to_le_bytes())?
                }
            }
        }
    }

    /// The error of the kernel code, with what reading the image failed with last as its reason, if it has.
    pub(crate) fn explained(&self, error: Error) -> Error {
        match &*lock(&self.failure) {
            Some(why) => error.errno.because(format!("{} cannot be read: {why}", self.content.name())),
            None => error,
        }
    }

    fn fill(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.content.read_at(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => (buffer, offset) = (&mut buffer[count..], offset + count as u64),
            }
        }
        Ok(())
    }
}

/// One of those who read it.
pub(crate) struct Shared(pub(crate) Arc<Served>);

impl Medium for Shared {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read(buffer, offset)
    }
}

impl Medium for Served {
    fn size(&self) -> u64 {
        self.content.size()
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let filled = self.fill(buffer, offset);
        // Errors of ours have no number, and say it all.
        let why = |error: &io::Error| match error.raw_os_error() {
            Some(number) => Errno(number).to_string(),
            None => error.to_string(),
        };
        *lock(&self.failure) = filled.as_ref().err().map(why);
        filled
    }
}
