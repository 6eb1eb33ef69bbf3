// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections to a server over a line with a delay and a rate, which may break.

use crate::server::Store;
use bytes::Bytes;
use outrigger_core::{BoxFuture, Clock, Errno, Error, Runtime, Time};
use outrigger_driver_sftp::{Carrier, Connected, Dial, Options, Sftp};
use outrigger_proto_sftp::{Reply, Request, packet_len};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, duplex, split};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// What happens to a request.
pub enum Fate {
    /// It is done and answered.
    Answered,
    /// It is done and answered, and with the answer the connection ends.
    Last,
    /// It is done and answered with something else.
    Instead(Reply),
    /// It is done, and then these bytes come.
    Misunderstood(Vec<u8>),
    /// It is done, and never answered.
    Ignored,
    /// The connection ends before it is done.
    Cut,
    /// The connection ends when it was done, before the answer.
    CutAfter,
    /// The connection ends, and the request is done this much later: the server had received it.
    Late(Duration),
}

/// Decides, given how many requests there were before on all connections.
pub type Fates = dyn FnMut(usize, &Request<'_>) -> Fate + Send;

/// How to reach a server.
#[derive(Clone)]
pub struct Line {
    pub store: Arc<Store>,
    /// There and back.
    delay: Duration,
    /// Bytes a second from the server; no limit when 0.
    rate: f64,
    fates: Arc<Mutex<Box<Fates>>>,
    /// How often the server was called, and whether it takes calls.
    pub calls: Arc<Mutex<(usize, bool)>>,
    requests: Arc<Mutex<usize>>,
}

impl Line {
    pub fn new(store: &Arc<Store>, delay: Duration) -> Self {
        Line {
            store: Arc::clone(store),
            delay,
            rate: 0.0,
            fates: Arc::new(Mutex::new(Box::new(|_, _| Fate::Answered))),
            calls: Arc::new(Mutex::new((0, true))),
            requests: Arc::default(),
        }
    }

    /// Lets `fates` decide from now on; requests are counted from 0.
    pub fn decide(&self, fates: impl FnMut(usize, &Request<'_>) -> Fate + Send + 'static) {
        *self.requests.lock().expect("a lock") = 0;
        *self.fates.lock().expect("a lock") = Box::new(fates);
    }

    /// The same with a rate, in bytes a second from the server.
    pub fn at(self, rate: f64) -> Self {
        Line { rate, ..self }
    }

    /// How many requests there were since [`Line::decide`].
    pub fn requests(&self) -> usize {
        *self.requests.lock().expect("a lock")
    }

    fn fate(&self, request: &Request<'_>) -> Fate {
        let mut count = self.requests.lock().expect("a lock");
        *count += 1;
        (self.fates.lock().expect("a lock"))(*count - 1, request)
    }

    /// A driver for the directory `/home`.
    pub async fn connect(&self, options: &[(&str, &str)]) -> outrigger_core::Result<Sftp> {
        let mut all = Options::default();
        options.iter().for_each(|(key, value)| all.set(key, value).expect("an option"));
        Sftp::over(Box::new(self.clone()), "test", b"/home", all, Arc::new(Simulated)).await
    }
}

impl Dial for Line {
    fn dial(&self) -> BoxFuture<'_, Result<Connected, Error>> {
        Box::pin(async move {
            let mut calls = self.calls.lock().expect("a lock");
            calls.0 += 1;
            if !calls.1 {
                return Err(Errno::EHOSTUNREACH.because("the line is dead"));
            }
            let (ours, theirs) = duplex(1 << 20);
            let (reader, writer) = split(ours);
            tokio::spawn(self.clone().serve(theirs));
            Ok(Connected { reader: Box::new(reader), writer: Box::new(writer), carrier: Box::new(Silent) })
        })
    }
}

struct Silent;

impl Carrier for Silent {
    fn last_words(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(std::future::ready(otherwise))
    }
    fn cut_short(self: Box<Self>, otherwise: Error) -> BoxFuture<'static, Error> {
        Box::pin(std::future::ready(otherwise))
    }
}

impl Line {
    async fn serve(self, stream: DuplexStream) {
        let (mut reader, mut writer) = split(stream);
        let (sender, mut replies) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        let (delay, rate) = (self.delay, self.rate);
        let sending = tokio::spawn(async move {
            let mut free_at = Instant::now();
            while let Some((at, packet)) = replies.recv().await {
                free_at = free_at.max(at + delay);
                if rate > 0.0 {
                    free_at += Duration::from_secs_f64(packet.len() as f64 / rate);
                }
                sleep_until(free_at).await;
                if writer.write_all(&packet).await.is_err() {
                    return;
                }
            }
            // In one go with the last answer.
            let _ = writer.shutdown().await;
        });
        let mut handles = self.store.begin();
        let (mut late, mut is_over) = (None, false);
        while !is_over && let Some(packet) = next(&mut reader).await {
            let Ok((number, request)) = Request::decode(&packet) else { break };
            let reply = match (&request, self.fate_of(&request)) {
                (Request::Init, _) => self.store.version(),
                // What was answered before still arrives.
                (_, Fate::Cut) => break,
                (_, Fate::Late(pause)) => {
                    late = Some((packet.clone(), pause));
                    break;
                }
                (request, fate) => {
                    let reply = self.store.serve(&mut handles, request).encode(number).to_vec();
                    match fate {
                        Fate::Answered => reply,
                        Fate::Last => {
                            is_over = true;
                            reply
                        }
                        Fate::Instead(reply) => reply.encode(number).to_vec(),
                        Fate::Misunderstood(packet) => packet,
                        Fate::Ignored => continue,
                        Fate::Cut | Fate::CutAfter | Fate::Late(_) => break,
                    }
                }
            };
            if sender.send((Instant::now(), reply)).is_err() {
                break;
            }
        }
        drop(sender);
        let _ = sending.await;
        drop(reader);
        if let Some((packet, pause)) = late {
            tokio::time::sleep(pause).await;
            let (_, request) = Request::decode(&packet).expect("decoded before");
            self.store.serve(&mut handles, &request);
        }
        self.store.end(&handles);
    }

    fn fate_of(&self, request: &Request<'_>) -> Fate {
        if *request == Request::Init { Fate::Answered } else { self.fate(request) }
    }
}

/// The next packet without its length.
async fn next(reader: &mut ReadHalf<DuplexStream>) -> Option<Bytes> {
    let mut length = [0; 4];
    reader.read_exact(&mut length).await.ok()?;
    let whole = packet_len(&length).expect("the client sends packets")?;
    let mut packet = vec![0; whole - 4];
    reader.read_exact(&mut packet).await.ok()?;
    Some(packet.into())
}

/// tokio's time, which tests stop.
pub struct Simulated;

impl Clock for Simulated {
    fn monotonic(&self) -> Duration {
        static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        Instant::now().saturating_duration_since(*BEGIN.get_or_init(Instant::now))
    }
    fn wall(&self) -> Time {
        Time::new(1_000_000, 0)
    }
}

impl Runtime for Simulated {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn sleep_until(&self, deadline: Duration) -> BoxFuture<'static, ()> {
        let wait = deadline.saturating_sub(self.monotonic());
        Box::pin(tokio::time::sleep(wait))
    }
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        tokio::task::spawn_blocking(job);
    }
}
