// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients by TCP, which show who they are by a certificate (TLS) before anything else is said.

use crate::server::Server;
use outrigger_core::{Error, lock};
use outrigger_toolkit_serve::{Seldom, taken};
use outrigger_toolkit_tls::{Acceptor, Client, TlsStream, keep_alive};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Connections at once whose clients have not shown who they are. One more takes the place of the one that has waited longest: who says
/// nothing keeps out nobody who does.
const STRANGERS: usize = 64;
/// Connections at once by one certificate: who has it does not take all of them.
const OF_ONE: usize = 64;
/// How long a client may take to show who it is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long, and for how many bytes, a refused client is listened to, so that it gets to know why.
const FAREWELL: Duration = Duration::from_secs(2);
const FAREWELL_MAX: u64 = 64 << 10;

/// Who has connected and has not shown who it is, by what ends that: the first has waited longest.
#[derive(Debug, Default)]
struct Strangers {
    waiting: Mutex<VecDeque<oneshot::Sender<()>>>,
    refused: Seldom,
}

/// How many connections there are by each certificate.
#[derive(Debug, Default)]
struct Certificates(Mutex<HashMap<Vec<u8>, usize>>);

/// A connection by a certificate.
#[derive(Debug)]
struct OneOf {
    all: Arc<Certificates>,
    certificate: Vec<u8>,
}

/// Serves all who connect and are let in, until the future is dropped.
pub(crate) async fn listen(
    server: &Server,
    listener: std::net::TcpListener,
    acceptor: Arc<Acceptor>,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let (listener, strangers) = (TcpListener::from_std(listener)?, Arc::<Strangers>::default());
    let certificates = Arc::<Certificates>::default();
    loop {
        let Some((stream, peer)) = taken(listener.accept().await).await else { continue };
        let place = strangers.enter();
        let (server, acceptor, strangers) = (server.clone(), Arc::clone(&acceptor), Arc::clone(&strangers));
        let certificates = Arc::clone(&certificates);
        tokio::spawn(async move {
            let refuse = |why: &str| strangers.tell(peer, why);
            let let_in = tokio::select! {
                let_in = let_in(&acceptor, stream, refuse) => let_in,
                _ = place => return refuse("it did not show who it is, and others wait"),
            };
            let Some((stream, client)) = let_in else { return };
            let Some(_one) = certificates.enter(&client.certificate) else {
                return refuse(&format!("{client} has {OF_ONE} connections already"));
            };
            let address = format!("{client} at {peer}");
            if let Some(serving) = server.serving(tokio::io::split(stream), address.clone()) {
                tracing::info!("{address} is connected");
                serving.await;
                tracing::info!("{address} is gone");
            }
        });
    }
}

impl Certificates {
    /// A place among the connections by a certificate, until it is dropped; none where there are enough.
    fn enter(self: &Arc<Self>, certificate: &[u8]) -> Option<OneOf> {
        let mut all = lock(&self.0);
        let count = all.entry(certificate.to_vec()).or_default();
        if *count >= OF_ONE {
            return None;
        }
        *count += 1;
        Some(OneOf { all: Arc::clone(self), certificate: certificate.to_vec() })
    }
}

impl Drop for OneOf {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        if let Some(count) = all.get_mut(&self.certificate) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.certificate);
            }
        }
    }
}

impl Strangers {
    /// A place; what is returned is ready when it is lost to another one, and frees it when it is dropped.
    fn enter(&self) -> oneshot::Receiver<()> {
        let (sender, place) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        waiting.retain(|place| !place.is_closed());
        if waiting.len() >= STRANGERS {
            waiting.pop_front();
        }
        waiting.push_back(sender);
        place
    }

    fn tell(&self, peer: SocketAddr, why: &str) {
        if let Some(more) = self.refused.due() {
            tracing::warn!("{peer} was refused: {why}{more}");
        }
    }
}

/// Lets a client show who it is. One that is not let in is told why, and so is `refuse`.
async fn let_in(
    acceptor: &Arc<Acceptor>,
    stream: TcpStream,
    refuse: impl Fn(&str),
) -> Option<(TlsStream<TcpStream>, Client)> {
    let set = stream.set_nodelay(true).and_then(|()| Ok(keep_alive(&stream)?));
    if let Err(error) = set {
        refuse(&Error::from(error).why());
        return None;
    }
    match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Err(_) => refuse(&format!("it did not show who it is within {} s", HANDSHAKE.as_secs())),
        Ok(Ok(let_in)) => return Some(let_in),
        Ok(Err((error, stream))) => {
            refuse(&error.why());
            // What the client is told would be lost if the connection was closed with something unread.
            let _ = timeout(FAREWELL, farewell(stream)).await;
        }
    }
    None
}

async fn farewell(mut stream: TcpStream) -> io::Result<u64> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(FAREWELL_MAX), &mut tokio::io::sink()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_longest_makes_room_and_who_has_left_needs_none() {
        let strangers = Strangers::default();
        let mut first = strangers.enter();
        let left: Vec<_> = (1..STRANGERS).map(|_| strangers.enter()).collect();
        drop(left);
        let mut others: Vec<_> = (1..STRANGERS).map(|_| strangers.enter()).collect();
        assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Empty), "there was room");
        let _one_more = strangers.enter();
        assert_eq!(first.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(others.iter_mut().all(|place| place.try_recv() == Err(oneshot::error::TryRecvError::Empty)));
    }

    #[test]
    fn who_has_one_certificate_takes_a_part_of_the_connections_and_gets_it_back() {
        let all = Arc::<Certificates>::default();
        let mut of_one: Vec<_> = (0..OF_ONE).map_while(|_| all.enter(b"one")).collect();
        assert_eq!(of_one.len(), OF_ONE);
        assert!(all.enter(b"one").is_none() && all.enter(b"other").is_some());
        of_one.pop();
        assert!(all.enter(b"one").is_some());
        drop(of_one);
        assert!(lock(&all.0).is_empty(), "nothing is kept of who has left");
    }
}
