// SPDX-License-Identifier: MIT OR Apache-2.0
//! A proxy with latency for a port of this host.

mod passive;

use passive::Passive;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How much is read at once, in bytes, and how many such pieces are on their way in one direction at most.
const PIECE: usize = 64 << 10;
const PIECES: usize = 1024;

/// The same on a slow line, whose queues are short.
const SLOW_PIECE: usize = 16 << 10;
const SLOW_PIECES: usize = 8;

/// A proxy that passes connections on to a port of the loopback device. Dropping it cuts them.
#[derive(Debug)]
pub struct Line {
    port: u16,
    ends: Arc<AtomicBool>,
    carrier: Arc<Carrier>,
}

/// What connections through a line have in common.
#[derive(Debug)]
struct Carrier {
    /// How long a byte is under way in one direction.
    delay: Duration,
    /// How many bytes a second each direction of a connection carries.
    rate: Option<f64>,
    /// Those that are open; a thread that carries closes its own, so that the other end learns it at once.
    streams: Mutex<Vec<Weak<TcpStream>>>,
    /// Bytes, to the server and from it.
    carried: [AtomicU64; 2],
    /// When the last round trip began, and how many did.
    trips: Mutex<(Option<Instant>, u64)>,
    /// Ports that wait for a data connection of FTP.
    waiting: Mutex<Vec<u16>>,
}

/// What happens to the bytes of a server.
type Change = dyn FnMut(Vec<u8>) -> Vec<u8> + Send;

impl Line {
    /// One to `target` that takes `delay` there and back.
    ///
    /// # Errors
    /// When there is no port for it.
    pub fn new(target: u16, delay: Duration) -> io::Result<Self> {
        Line::slow(target, delay, None)
    }

    /// The same; with `rate`, each direction of a connection carries so many bytes a second.
    ///
    /// # Errors
    /// As [`Line::new`].
    pub fn slow(target: u16, delay: Duration, rate: Option<f64>) -> io::Result<Self> {
        Line::open(target, delay, rate, |_| Box::new(|bytes| bytes))
    }

    /// The same to an FTP server, whose data connections are as slow. Without TLS only: the line reads the replies.
    ///
    /// # Errors
    /// As [`Line::new`].
    pub fn ftp(target: u16, delay: Duration, rate: Option<f64>) -> io::Result<Self> {
        Line::open(target, delay, rate, |carrier| {
            let mut passive = Passive::new(Arc::clone(carrier));
            Box::new(move |bytes| passive.pass(&bytes))
        })
    }

    fn open(
        target: u16,
        delay: Duration,
        rate: Option<f64>,
        change: impl Fn(&Arc<Carrier>) -> Box<Change> + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let carrier = Arc::new(Carrier {
            delay: delay / 2,
            rate,
            streams: Mutex::default(),
            carried: Default::default(),
            trips: Mutex::default(),
            waiting: Mutex::default(),
        });
        let line = Line { port, ends: Arc::default(), carrier: Arc::clone(&carrier) };
        let ends = Arc::clone(&line.ends);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // A server that is not there ends the connection at once.
                let _ = carrier.connect(near, target, change(&carrier));
            }
        });
        Ok(line)
    }

    /// How many bytes it has carried so far, to the server and from it.
    pub fn carried(&self) -> [u64; 2] {
        self.carrier.carried.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// How many round trips have begun so far: something set out to the server, and all that did so before one more delay had passed
    /// belongs to the same one. What waits for each answer takes as many as it asks for; what is asked side by side takes one.
    pub fn trips(&self) -> u64 {
        self.carrier.trips.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Ends the connections that there are.
    pub fn cut(&self) {
        for stream in self.carrier.streams().drain(..).filter_map(|stream| stream.upgrade()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Where to connect to instead.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        let ports: Vec<u16> = self.carrier.waiting().drain(..).chain([self.port]).collect();
        for port in ports {
            // Wakes the listener.
            let _ = TcpStream::connect(("127.0.0.1", port));
        }
        self.cut();
    }
}

impl Carrier {
    fn streams(&self) -> MutexGuard<'_, Vec<Weak<TcpStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something sets out to the server.
    fn sets_out(&self, at: Instant) {
        let mut trips = self.trips.lock().unwrap_or_else(PoisonError::into_inner);
        if trips.0.is_none_or(|began| at.saturating_duration_since(began) >= 2 * self.delay) {
            *trips = (Some(at), trips.1 + 1);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<u16>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries a connection to the port `target`; `change` gets what comes from there.
    fn connect(self: &Arc<Self>, near: TcpStream, target: u16, change: Box<Change>) -> io::Result<()> {
        let (near, far) = (Arc::new(near), Arc::new(TcpStream::connect(("127.0.0.1", target))?));
        let mut streams = self.streams();
        streams.retain(|stream| stream.strong_count() > 0);
        for stream in [&near, &far] {
            stream.set_nodelay(true)?;
            streams.push(Arc::downgrade(stream));
        }
        drop(streams);
        self.carry([Arc::clone(&near), Arc::clone(&far)], 0, Box::new(|bytes| bytes));
        self.carry([far, near], 1, change);
        Ok(())
    }

    /// One direction of a connection.
    fn carry(self: &Arc<Self>, [from, to]: [Arc<TcpStream>; 2], way: usize, mut change: Box<Change>) {
        let (piece, pieces) = if self.rate.is_some() { (SLOW_PIECE, SLOW_PIECES) } else { (PIECE, PIECES) };
        let (sender, receiver) = sync_channel(pieces);
        let (carrier, counting, source) = (Arc::clone(self), Arc::clone(self), Arc::clone(&from));
        thread::spawn(move || {
            let delivered = deliver(&receiver, &to, (carrier.delay, carrier.rate), &carrier.carried[way]);
            // What is not taken any more must not be sent any more: the sender would wait for ever.
            let _ = if delivered.is_ok() {
                to.shutdown(Shutdown::Write)
            } else {
                source.shutdown(Shutdown::Both)
            };
        });
        thread::spawn(move || {
            let mut piece = vec![0; piece];
            while let Ok(count @ 1..) = (&*from).read(&mut piece) {
                let now = Instant::now();
                if way == 0 {
                    counting.sets_out(now);
                }
                if sender.send((now, change(piece[..count].to_vec()))).is_err() {
                    return;
                }
            }
        });
    }
}

/// Writes what comes, each piece when its time has passed.
fn deliver(
    pieces: &Receiver<(Instant, Vec<u8>)>,
    mut to: &TcpStream,
    (delay, rate): (Duration, Option<f64>),
    counter: &AtomicU64,
) -> io::Result<()> {
    let mut carried = Instant::now();
    for (at, piece) in pieces {
        let takes = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(piece.len() as f64 / rate));
        carried = carried.max(at) + takes;
        thread::sleep((carried + delay).saturating_duration_since(Instant::now()));
        to.write_all(&piece)?;
        counter.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}
