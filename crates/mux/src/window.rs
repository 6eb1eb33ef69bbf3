// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much content may be on its way at once.
//!
//! Too little leaves the connection idle; too much fills the buffers along the way, and everything sent later waits after
//! it. So the window is what the connection carries in the time an answer takes when nothing is in its way, and a little
//! more: delivery rate x (shortest delay + [`QUEUE`]). Both are measured from requests and replies alone, in the way of the
//! congestion control BBR (Cardwell et al., ACM Queue 14(5), 2016):
//!
//! * the *rate* is the best of the last [`ROUNDS`] rounds in which the window, not the caller, was the limit;
//! * the *delay* is the shortest seen by a request with no content before it. After [`DELAY_LIFE`] it is measured again,
//!   for which the window closes until one request is alone on its way;
//! * at first the window doubles with each round, until answers take longer, or the rate stops growing.
//!
//! What [`QUEUE`] adds keeps the connection busy when answers come unevenly, and lets the rate be seen to rise. On a fast
//! connection that is much content, which waits in the memory of the carrier (ssh), and costs it time: so [`LINE_MAX`]
//! bounds it, but for what lets the rate be seen to rise where the way is long.

use std::time::Duration;
use tokio::time::Instant;

/// What may wait in line beside what is on its way.
const QUEUE: Duration = Duration::from_millis(15);
/// The most of that in bytes, or a quarter of what is on its way, where that is more.
const LINE_MAX: f64 = 512.0 * 1024.0;
/// How long one bulk request may keep the connection to itself.
const TURN: Duration = Duration::from_millis(10);
/// How long a measured delay is used.
const DELAY_LIFE: Duration = Duration::from_secs(10);
/// For how many rounds a rate is used.
const ROUNDS: usize = 10;
/// Rounds without growth after which the window stops doubling.
const STALLED: u32 = 3;
/// The window before anything is known, in bytes.
const INITIAL: usize = 32 << 10;
/// The least and the most one bulk request should move, in bytes, and what it should before the rate is known. Larger ones
/// leave those who wait for a whole one (the server, ssh, this process) less to do at the same time.
const CHUNK_MIN: usize = 16 << 10;
const CHUNK_MAX: usize = 128 << 10;
const CHUNK_INITIAL: usize = 16 << 10;
/// Chunks are multiples of this: pages.
const CHUNK_UNIT: usize = 4096;

/// The window of a connection.
pub(crate) struct Window {
    in_flight: usize,
    limit: usize,
    /// Bytes answered so far, and when the last ones were.
    delivered: u64,
    delivered_at: Instant,
    /// What `delivered` was when the round began.
    round: u64,
    /// The best rate of each of the last rounds in bytes a second, the present one first.
    rates: [f64; ROUNDS],
    delay: Option<Duration>,
    delay_at: Instant,
    /// How often something had to wait for the window.
    waits: u64,
    /// Rounds without growth, while the window still doubles.
    growing: Option<u32>,
    best: f64,
}

/// What has to be remembered of a request until its reply.
pub(crate) struct Sent {
    bytes: usize,
    pub(crate) at: Instant,
    alone: bool,
    delivered: u64,
    delivered_at: Instant,
    waits: u64,
}

impl Window {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Window {
            in_flight: 0,
            limit: INITIAL,
            delivered: 0,
            delivered_at: now,
            round: 0,
            rates: [0.0; ROUNDS],
            delay: None,
            delay_at: now,
            waits: 0,
            growing: Some(0),
            best: 0.0,
        }
    }

    /// Whether another request may be sent now. One is always on its way; the last one may reach beyond the limit, or what
    /// is on its way would always be a little less than the connection carries, and the limit would shrink to that.
    pub(crate) fn is_open(&self) -> bool {
        self.in_flight == 0 || (!self.is_measuring() && self.in_flight < self.limit)
    }

    /// Whether the window is closed until a request is alone on its way.
    fn is_measuring(&self) -> bool {
        self.growing.is_none() && Instant::now().saturating_duration_since(self.delay_at) > DELAY_LIFE
    }

    /// A request had to wait for the window.
    pub(crate) fn was_full(&mut self) {
        self.waits += 1;
    }

    /// A request is sent that moves `bytes`; 0 for a small one.
    pub(crate) fn send(&mut self, now: Instant, bytes: usize) -> Sent {
        let alone = self.in_flight == 0;
        if alone && bytes > 0 {
            self.delivered_at = now;
        }
        self.in_flight += bytes;
        let Window { delivered, delivered_at, waits, .. } = *self;
        Sent { bytes, at: now, alone, delivered, delivered_at, waits }
    }

    /// The reply to a request has come; together they had `moved` bytes of content.
    pub(crate) fn receive(&mut self, now: Instant, sent: &Sent, moved: usize) {
        self.in_flight -= sent.bytes;
        if sent.alone {
            self.measure_delay(now, sent);
        }
        if sent.bytes == 0 {
            return;
        }
        self.delivered += moved as u64;
        let taken = now.saturating_duration_since(sent.delivered_at);
        self.delivered_at = now;
        let rate = (self.delivered - sent.delivered) as f64 / taken.as_secs_f64().max(1e-6);
        self.rates[0] = self.rates[0].max(rate);
        if self.waits == sent.waits {
            // The caller wanted no more: what was seen is less than what is possible.
            return self.resize();
        }
        if self.growing.is_some() {
            self.limit += moved;
            self.notice_line(now, sent);
        }
        if sent.delivered >= self.round {
            self.next_round();
        }
        self.resize();
    }

    /// Stops growing when a reply has taken longer than the delay and its content explain: others stood in line before it.
    /// And when the window is far more than enough: a caller that asks for less never fills it.
    fn notice_line(&mut self, now: Instant, sent: &Sent) {
        let moving = Duration::from_secs_f64(sent.bytes as f64 / self.rate());
        let explained = self.delay.unwrap_or(Duration::MAX).saturating_add(moving).saturating_add(2 * QUEUE);
        if now.saturating_duration_since(sent.at) > explained || self.limit > 4 * self.enough() {
            self.growing = None;
        }
    }

    /// The time a reply took that had nothing before it, less the time its own content takes.
    fn measure_delay(&mut self, now: Instant, sent: &Sent) {
        let moving = match self.growing {
            None => Duration::from_secs_f64(sent.bytes as f64 / self.rate()),
            // The rate is not known yet, and too long a delay does less harm than too short a one.
            Some(_) => Duration::ZERO,
        };
        let delay = now.saturating_duration_since(sent.at).saturating_sub(moving);
        let is_old = now.saturating_duration_since(self.delay_at) > DELAY_LIFE;
        if is_old || self.delay.is_none_or(|known| delay <= known) {
            self.delay = Some(delay);
            self.delay_at = now;
        }
    }

    fn next_round(&mut self) {
        self.round = self.delivered;
        if let Some(stalled) = self.growing {
            let grown = self.rate() >= self.best * 1.25;
            self.best = self.best.max(self.rate());
            let stalled = if grown { 0 } else { stalled + 1 };
            self.growing = Some(stalled).filter(|&stalled| stalled < STALLED);
        }
        self.rates.rotate_right(1);
        self.rates[0] = 0.0;
    }

    fn resize(&mut self) {
        if self.growing.is_none() {
            self.limit = self.enough();
        }
    }

    /// What keeps a connection busy that is as it was measured, in bytes.
    fn enough(&self) -> usize {
        let carried = self.rate() * self.delay.unwrap_or_default().as_secs_f64();
        let line = (self.rate() * QUEUE.as_secs_f64()).min(LINE_MAX.max(carried / 4.0));
        ((carried + line) as usize).max(2 * CHUNK_MIN)
    }

    /// Bytes a second; 0 when nothing is known.
    fn rate(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    /// How many bytes one request should move.
    pub(crate) fn chunk(&self) -> usize {
        match self.rate() {
            rate if rate > 0.0 => {
                let bytes = (rate * TURN.as_secs_f64()) as usize;
                bytes.clamp(CHUNK_MIN, CHUNK_MAX) / CHUNK_UNIT * CHUNK_UNIT
            }
            _ => CHUNK_INITIAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends as much as the window lets for `rounds` rounds over a connection of `rate` bytes a second with a delay, and
    /// gives the window, the longest delay of the connection, and the share of the time it was busy.
    async fn drive(rate: f64, delay: Duration, rounds: usize) -> (Window, Duration, f64) {
        let mut window = Window::new();
        let mut on_their_way = std::collections::VecDeque::new();
        let (begin, mut free_at, mut busy) = (Instant::now(), Instant::now(), Duration::ZERO);
        let mut longest = Duration::ZERO;
        for round in 0..rounds {
            let bytes = window.chunk();
            while window.is_open() {
                let now = Instant::now();
                let moving = Duration::from_secs_f64(bytes as f64 / rate);
                let start = free_at.max(now + delay);
                free_at = start + moving;
                busy += moving;
                if round > rounds / 2 {
                    longest = longest.max(start.saturating_duration_since(now + delay));
                }
                on_their_way.push_back((free_at, window.send(now, bytes)));
            }
            window.was_full();
            let (at, sent) = on_their_way.pop_front().expect("one is always on its way");
            tokio::time::sleep_until(at).await;
            window.receive(at, &sent, bytes);
        }
        let total = Instant::now().saturating_duration_since(begin);
        (window, longest, busy.as_secs_f64() / total.as_secs_f64())
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_is_busy_and_the_line_short() {
        // Bytes a second, delay in ms: a poor line, a good one, another continent, the same machine.
        for (rate, delay) in [(1.25e6, 5), (125e6, 5), (12.5e6, 200), (300e6, 0)] {
            let (window, line, busy) = drive(rate, delay * MS, 3000).await;
            let about =
                format!("{rate} B/s, {delay} ms: line {line:?}, busy {busy:.3}, limit {}", window.limit);
            assert!(busy > 0.9, "{about}");
            // After a pause, as for measuring the delay, all that the window lets through comes at once.
            assert!(line < QUEUE + 4 * TURN + delay * MS, "{about}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn on_a_fast_connection_little_content_waits_in_line() {
        for rounds in [100, 3000] {
            let (window, ..) = drive(400e6, Duration::from_micros(200), rounds).await;
            let most = (400e6 * 0.0002 + LINE_MAX) as usize + CHUNK_MAX;
            assert!(window.limit <= most, "{} bytes after {rounds} requests", window.limit);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_are_small_where_the_connection_is_slow() {
        assert_eq!(Window::new().chunk(), CHUNK_INITIAL);
        assert_eq!(drive(1.25e6, 5 * MS, 200).await.0.chunk(), CHUNK_MIN);
        assert_eq!(drive(125e6, 5 * MS, 2000).await.0.chunk(), CHUNK_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_who_asks_for_little_does_not_make_the_connection_look_slow() {
        let (mut window, ..) = drive(125e6, 5 * MS, 2000).await;
        let before = window.limit;
        for _ in 0..50 {
            let sent = window.send(Instant::now(), 4096);
            tokio::time::sleep(20 * MS).await;
            window.receive(Instant::now(), &sent, 4096);
        }
        assert_eq!(window.limit, before);
    }
}
