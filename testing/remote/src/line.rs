// SPDX-License-Identifier: MIT OR Apache-2.0
//! A proxy with latency for a port of this host.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
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
    streams: Arc<Mutex<Vec<TcpStream>>>,
    /// Bytes, to the server and from it.
    carried: Arc<[AtomicU64; 2]>,
}

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
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let line = Line { port, ends: Arc::default(), streams: Arc::default(), carried: Arc::default() };
        let (ends, streams) = (Arc::clone(&line.ends), Arc::clone(&line.streams));
        let carried = Arc::clone(&line.carried);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // A server that is not there ends the connection at once.
                let _ = connect(near, target, (delay / 2, rate), (&streams, &carried));
            }
        });
        Ok(line)
    }

    /// How many bytes it has carried so far, to the server and from it.
    pub fn carried(&self) -> [u64; 2] {
        self.carried.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// Where to connect to instead.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Wakes the listener.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        for stream in self.streams.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn connect(
    near: TcpStream,
    target: u16,
    (delay, rate): (Duration, Option<f64>),
    (streams, carried): (&Mutex<Vec<TcpStream>>, &Arc<[AtomicU64; 2]>),
) -> io::Result<()> {
    let (piece, pieces) = if rate.is_some() { (SLOW_PIECE, SLOW_PIECES) } else { (PIECE, PIECES) };
    let far = TcpStream::connect(("127.0.0.1", target))?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream.try_clone()?);
    }
    for (way, (mut from, to)) in [(near.try_clone()?, far.try_clone()?), (far, near)].into_iter().enumerate()
    {
        let (sender, receiver) = sync_channel(pieces);
        let counter = Arc::clone(carried);
        thread::spawn(move || deliver(&receiver, to, (delay, rate), &counter[way]));
        thread::spawn(move || {
            let mut piece = vec![0; piece];
            while let Ok(count @ 1..) = from.read(&mut piece) {
                if sender.send((Instant::now(), piece[..count].to_vec())).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

/// Writes what comes, each piece when its time has passed.
fn deliver(
    pieces: &Receiver<(Instant, Vec<u8>)>,
    mut to: TcpStream,
    (delay, rate): (Duration, Option<f64>),
    counter: &AtomicU64,
) {
    let mut carried = Instant::now();
    for (at, piece) in pieces {
        let takes = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(piece.len() as f64 / rate));
        carried = carried.max(at) + takes;
        thread::sleep((carried + delay).saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            return;
        }
        counter.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
    let _ = to.shutdown(Shutdown::Write);
}
