// SPDX-License-Identifier: GPL-2.0-only
//! Requests as frames of the core's wire protocol, from one socket.
//!
//! All that has arrived becomes jobs, then the kernel runs until nothing can go on, then all replies leave together: one
//! read and one write for however many requests the other side has sent meanwhile.

use crate::direct::{Mount, Tracing};
use crate::fixed;
use crate::guard::Guard;
use crate::kernel::Kernel;
use crate::ring;
use crate::socket;
use crate::task::Task;
use crate::tree::Tree;
use bytes::{Bytes, BytesMut};
use outrigger_core::wire::{Body, FRAME_MAX, Frame, Hello};
use outrigger_core::{Credentials, Errno, Error, Exchange, Reply, Request, Spin, Wire, lock};
use outrigger_door_fuse::Order;
use outrigger_succession::Served;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How much is read at once, in bytes, unless a longer frame has begun. Small: it is filled with zeroes first.
const PORTION: usize = 16 << 10;
/// Beyond this many requests at work none is read.
const IN_FLIGHT: usize = 256;

/// The conversation.
pub struct Connection {
    socket: Arc<UnixStream>,
    input: BytesMut,
    /// Descriptors that came with it.
    files: Vec<File>,
    /// Where the messages of a mount are printed that is handed over from here on.
    tracing: Option<Tracing>,
    spin: Spin,
    shared: Rc<Shared>,
}

/// What is kept of a mount that is handed over to this process.
#[derive(Clone, Copy)]
pub enum Keeps<'a> {
    /// What the process that hands it over has left, for that goes on when this one dies.
    Left(&'a Arc<Guard>),
    /// Nothing so far. This process is to hold so many files at most.
    Nothing(usize),
}

impl<'a> Keeps<'a> {
    fn guard(self) -> Option<&'a Arc<Guard>> {
        match self {
            Keeps::Left(guard) => Some(guard),
            Keeps::Nothing(_) => None,
        }
    }

    /// `file` gives what was left.
    fn served(self, file: impl FnOnce() -> Result<File, Error>) -> Result<Served, Error> {
        let guard = match self {
            Keeps::Left(guard) => guard,
            Keeps::Nothing(most) => return Served::new(most),
        };
        let mut file = file()?;
        let mut left = vec![0; file.seek(SeekFrom::End(0))? as usize];
        file.read_exact_at(&mut left, 0)?;
        Served::going_on(guard.record(), left.into())
    }
}

/// What jobs leave for the connection.
#[derive(Default)]
struct Shared {
    output: RefCell<Vec<u8>>,
    in_flight: Cell<usize>,
}

impl Shared {
    fn reply(&self, id: u64, reply: Reply) {
        encode(id, reply, &mut self.output.borrow_mut());
    }
}

fn encode(id: u64, reply: Reply, out: &mut Vec<u8>) {
    let frame = |reply| Frame { id, body: Body::Reply(reply) };
    if let Err(error) = frame(reply).encode_to(out) {
        // An error always fits a frame.
        drop(frame(Reply::Error(error)).encode_to(out));
    }
}

/// Where several threads reply, one after the other.
pub struct Outlet(Mutex<Arc<UnixStream>>);

impl Outlet {
    /// Sends a reply at once.
    pub fn reply(&self, id: u64, reply: Reply) {
        let socket = lock(&self.0);
        let mut frame = Vec::new();
        encode(id, reply, &mut frame);
        // A client that has gone needs none.
        drop((&**socket).write_all(&frame));
    }

    /// Waits a moment; tells whether the other side is still there then.
    pub fn is_read_after(&self, moment: Duration) -> bool {
        let fd = lock(&self.0).as_raw_fd();
        let mut socket = libc::pollfd { fd, events: 0, revents: 0 };
        // SAFETY: a complete structure.
        unsafe { libc::poll(&mut socket, 1, moment.as_millis() as i32) == 0 }
    }
}

impl Connection {
    /// Greets the other side of `socket`.
    ///
    /// # Errors
    /// When it has gone, or speaks another version.
    pub fn open(mut socket: UnixStream) -> io::Result<Self> {
        socket.write_all(&Hello::bytes())?;
        let mut greeting = [0; Hello::LEN];
        socket.read_exact(&mut greeting)?;
        Hello::check(Bytes::copy_from_slice(&greeting))?;
        let (socket, input, files) = (Arc::new(socket), BytesMut::new(), Vec::new());
        let (spin, shared) = (Spin::default(), Rc::default());
        Ok(Connection { socket, input, files, tracing: None, spin, shared })
    }

    /// Tells how the start went: the reply number 0.
    ///
    /// # Errors
    /// When the other side has gone.
    pub fn announce(&mut self, outcome: Result<(), Error>) -> io::Result<()> {
        self.shared.reply(0, outcome.into());
        self.send()
    }

    /// Answers requests until the other side has gone, or hands a mount over.
    ///
    /// # Errors
    /// When it sends what is no frame, or the connection breaks.
    pub fn serve(&mut self, kernel: &Kernel, tree: &Rc<Tree>, keeps: Keeps<'_>) -> io::Result<Option<Mount>> {
        let mut wait = None;
        loop {
            if self.ready(wait)? {
                if !self.read()? {
                    return Ok(None);
                }
                let mount = self.begin(kernel, tree, keeps)?;
                // The next process leaves nothing undone.
                if mount.is_some() {
                    self.finish(kernel)?;
                    return Ok(mount);
                }
            }
            // Of a machine whose clock is fixed nothing goes on between requests.
            if fixed::get().is_none() {
                wait = kernel.run();
                self.send()?;
            }
        }
    }

    /// Answers what was asked so far.
    fn finish(&mut self, kernel: &Kernel) -> io::Result<()> {
        fixed::run_until(kernel, || self.shared.in_flight.get() == 0);
        self.send()
    }

    /// The next frame, with descriptors that came up to it; none when the other side has gone.
    ///
    /// # Errors
    /// As [`Connection::serve`].
    pub fn next(&mut self) -> io::Result<Option<(Frame, Vec<File>)>> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Some((frame, std::mem::take(&mut self.files))));
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }

    /// Where several threads reply from here on.
    pub fn outlet(&self) -> Outlet {
        Outlet(Mutex::new(Arc::clone(&self.socket)))
    }

    /// Waits until there is something to read, a disk is ready, or for `wait`. Tells whether there is something to read.
    fn ready(&mut self, wait: Option<Duration>) -> io::Result<bool> {
        let room = self.shared.in_flight.get() < IN_FLIGHT;
        let readable = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let socket = readable(self.socket.as_raw_fd(), if room { libc::POLLIN } else { 0 });
        // Without a ring the second descriptor is -1: poll(2) ignores it.
        let mut both = [socket, readable(ring::descriptor().unwrap_or(-1), libc::POLLIN)];
        // None when nothing has happened.
        let mut poll = |milliseconds| {
            // SAFETY: two complete structures.
            match unsafe { libc::poll(both.as_mut_ptr(), 2, milliseconds) } {
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(Some(false)),
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(None),
                _ => Ok(Some(both[0].revents != 0)),
            }
        };
        // Rounded up: to wake too early is to find nothing to do.
        let milliseconds = wait.map_or(-1, |wait| wait.as_micros().div_ceil(1000).min(60_000) as i32);
        if milliseconds == 0 {
            return Ok(poll(0)?.unwrap_or(false));
        }
        match self.spin.until(|| poll(0).transpose()) {
            Some(found) => found,
            None => Ok(poll(milliseconds)?.unwrap_or(false)),
        }
    }

    /// Reads once. `false` when the other side has gone.
    fn read(&mut self) -> io::Result<bool> {
        let known = self.input.len();
        self.input.resize(known + self.wanted(), 0);
        let count = socket::receive(&self.socket, &mut self.input[known..], &mut self.files);
        self.input.truncate(known + count.as_ref().map_or(0, |count| *count));
        Ok(count? > 0)
    }

    /// Makes jobs of the frames that are complete, up to one that hands a mount over.
    fn begin(&mut self, kernel: &Kernel, tree: &Rc<Tree>, keeps: Keeps<'_>) -> io::Result<Option<Mount>> {
        while let Some(Frame { id, body }) = self.take_frame()? {
            match body {
                Body::Request { cred, request, .. } => {
                    self.submit(id, cred, request, (kernel, tree, keeps.guard()));
                }
                Body::Control(order) => match self.obey(id, &order, (kernel, tree, keeps)) {
                    Ok(None) => {}
                    Ok(mount) => return Ok(mount),
                    Err(error) => self.shared.reply(id, Reply::Error(error)),
                },
                Body::Reply(_) | Body::Cancel | Body::Notice(_) => {}
            }
            if fixed::get().is_some() {
                self.finish(kernel)?;
            }
        }
        Ok(None)
    }

    /// Begins to do what an order says, which comes with a descriptor; gives a mount that is handed over.
    fn obey(
        &mut self,
        id: u64,
        order: &Bytes,
        (kernel, tree, keeps): (&Kernel, &Rc<Tree>, Keeps<'_>),
    ) -> Result<Option<Mount>, Error> {
        let file = self.next_file().ok_or(Errno::EOPNOTSUPP)?;
        if let (Ok((cred, exchange)), false) = (Exchange::from_order(order.clone()), keeps.guard().is_some())
        {
            let tree = Rc::clone(tree);
            self.run(id, kernel, move |task| tree.exchange(task, &cred, &exchange, &file).into());
            return Ok(None);
        }
        match Order::get(&mut order.clone())? {
            // Only this thread looks after a ring.
            Order::Serve { options, negotiated } if ring::descriptor().is_none() => {
                let served = keeps.served(|| self.next_file().ok_or(Errno::EBADF.into()))?;
                let tracing = self.tracing.take();
                Ok(Some(Mount { order: id, device: file, options, negotiated, served, tracing }))
            }
            Order::Trace => {
                self.tracing = Some(Tracing(file));
                self.shared.reply(id, Reply::Done(()));
                Ok(None)
            }
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    fn submit(
        &self,
        id: u64,
        cred: Credentials,
        request: Request,
        (kernel, tree, guard): (&Kernel, &Rc<Tree>, Option<&Arc<Guard>>),
    ) {
        let (tree, guard) = (Rc::clone(tree), guard.cloned());
        self.run(id, kernel, move |task| match guard {
            Some(guard) => guard.answer(task, &tree, (id, cred), request),
            None => tree.answer(task, &cred, request),
        });
    }

    /// Does `work` inside the kernel, which answers the request `id`.
    fn run(&self, id: u64, kernel: &Kernel, work: impl FnOnce(&Task) -> Reply + 'static) {
        let shared = Rc::clone(&self.shared);
        shared.in_flight.set(shared.in_flight.get() + 1);
        kernel.submit(move |task| {
            let reply = fixed::set_clock(task).map_or_else(Reply::Error, |()| work(task));
            if id != Frame::UNANSWERED {
                shared.reply(id, reply);
            }
            shared.in_flight.set(shared.in_flight.get() - 1);
        });
    }

    /// The descriptor that came first: those of several orders may have arrived together.
    fn next_file(&mut self) -> Option<File> {
        (!self.files.is_empty()).then(|| self.files.remove(0))
    }

    /// How much to read next.
    fn wanted(&self) -> usize {
        let begun =
            self.input.first_chunk::<4>().map_or(0, |length| 4 + u32::from_le_bytes(*length) as usize);
        // A frame that is too long has ended the conversation before.
        begun.saturating_sub(self.input.len()).max(PORTION)
    }

    fn take_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some(length) = self.input.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > FRAME_MAX {
            return Err(io::Error::other("a frame that is too long"));
        }
        if self.input.len() < 4 + length {
            return Ok(None);
        }
        let frame = self.input.split_to(4 + length).freeze().slice(4..);
        Frame::decode(frame).map(Some).map_err(io::Error::other)
    }

    fn send(&mut self) -> io::Result<()> {
        let mut output = self.shared.output.take();
        let sent = (&*self.socket).write_all(&output);
        output.clear();
        self.shared.output.replace(output);
        sent
    }
}
