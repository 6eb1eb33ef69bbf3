// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small requests beside a bulk transfer, over a line with a rate and a delay.

use crate::support::{Peer, ask, connected, frame, move_bytes};
use outrigger_mux::{Limits, Mux};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// A line that carries `rate` bytes a second and takes `delay` for a way there and back, and a server behind it that
/// answers with as many bytes as each request names.
async fn line(peer: Peer, rate: f64, delay: Duration) {
    let (mut reader, mut writer) = peer.parts();
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, u32, usize)>();
    tokio::spawn(async move {
        let mut free_at = Instant::now();
        let mut queue = VecDeque::new();
        while let Some((at, tag, bytes)) = receiver.recv().await {
            let begins = free_at.max(at + delay);
            free_at = begins + Duration::from_secs_f64((bytes + 8) as f64 / rate);
            queue.push_back((free_at, tag, bytes));
            while let Some((at, tag, bytes)) = queue.pop_front() {
                sleep_until(at).await;
                writer.write_all(&frame(tag, &vec![b'x'; bytes])).await.expect("the client is there");
            }
        }
    });
    while let Ok(len) = reader.read_u32().await {
        let tag = reader.read_u32().await.expect("a whole request");
        let mut content = vec![0; len as usize - 8];
        reader.read_exact(&mut content).await.expect("a whole request");
        let bytes = String::from_utf8(content).ok().and_then(|text| text.parse().ok()).unwrap_or(10);
        if sender.send((Instant::now(), tag, bytes)).is_err() {
            return;
        }
    }
}

/// Reads for `time` as a program does that has much outstanding; bytes a second.
async fn transfer(mux: Mux, time: Duration) -> f64 {
    let (begin, mut moved) = (Instant::now(), 0);
    let mut calls = tokio::task::JoinSet::new();
    while begin.elapsed() < time {
        while calls.len() < 64 {
            let (mux, bytes) = (mux.clone(), mux.chunk().min(256 << 10));
            calls.spawn(async move { mux.call(move_bytes(&bytes.to_string(), bytes)).await.map(|_| bytes) });
        }
        moved += calls.join_next().await.expect("some are running").expect("no panic").expect("a reply");
    }
    moved as f64 / begin.elapsed().as_secs_f64()
}

/// The longest of the small requests that are made one after the other beside the transfer.
async fn small_requests(mux: Mux, time: Duration) -> Duration {
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    while begin.elapsed() < time {
        let asked = Instant::now();
        mux.call(ask("10")).await.expect("a reply");
        // The first moments are for finding out what the line carries.
        if begin.elapsed() > Duration::from_secs(2) {
            longest = longest.max(asked.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(37)).await;
    }
    longest
}

#[tokio::test(start_paused = true)]
async fn small_requests_are_quick_and_the_line_is_busy() {
    // Bytes a second, milliseconds, seconds.
    for (rate, delay, time) in [(1.25e6, 5, 30), (12.5e6, 50, 30), (50e6, 5, 15)] {
        let (delay, time) = (Duration::from_millis(delay), Duration::from_secs(time));
        let (mux, peer) = connected(Limits::default());
        tokio::spawn(line(peer, rate, delay));
        let (moved, longest) = tokio::join!(transfer(mux.clone(), time), small_requests(mux.clone(), time));
        assert!(moved > 0.9 * rate, "{moved:.0} of {rate} bytes a second");
        let queue = longest.saturating_sub(delay);
        assert!(queue < Duration::from_millis(60), "{queue:?} behind content at {rate} bytes a second");
    }
}
