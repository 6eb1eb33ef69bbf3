// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of open files when the connection is lost, with a second client that puts another file in their place, and
//! without one.

use crate::line::{Fate, Line};
use crate::server::{File, Store};
use crate::user::User;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Handle, Node, Result};
use outrigger_proto_sftp::Request;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

const DELAY: Duration = Duration::from_millis(5);

/// A file of 100 bytes, seen and open.
struct Opened {
    store: Arc<Store>,
    line: Line,
    user: User,
    file: Node,
    handle: Handle,
}

impl Opened {
    async fn new(flags: OpenFlags) -> Self {
        let store = Store::new();
        let old = File::of_time(vec![b'A'; 100], 50);
        store.state().files.insert(b"/home/f".to_vec(), old);
        let line = Line::new(&store, DELAY);
        let user = User::new(line.connect(&[]).await.expect("connected"));
        let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
        let handle = user.open(file, flags).await.expect("opened");
        Opened { store, line, user, file, handle }
    }

    /// Loses the connection, which is not in use at this moment.
    async fn lose(&self) {
        self.line.decide(|number, _| if number == 0 { Fate::Cut } else { Fate::Answered });
        let _ = self.user.lookup(Node::ROOT, "other").await;
    }

    fn replace(&self, len: usize, mtime: u32) {
        self.store.state().files.insert(b"/home/f".to_vec(), File::of_time(vec![b'N'; len], mtime));
    }

    fn is_untouched(&self, len: usize) -> bool {
        self.store.content("/home/f") == Some(vec![b'N'; len])
    }

    async fn uses(&self, how: &str) -> Result<()> {
        let Opened { user, file, handle, .. } = self;
        let (file, handle) = (*file, *handle);
        match how {
            "write" => user.write_at(file, handle, 10, b"ours").await.map(drop),
            "read" => user.read_at(file, handle, 0, 10).await.map(drop),
            "fsync" => user.fsync(file, handle).await,
            "truncate" => user.truncate_open(file, handle, 5).await,
            "mtime" => user.set_mtime(file, handle, 7).await.map(drop),
            "copy" => {
                let from = user.write_file(Node::ROOT, "from", b"copied").await?;
                let source = user.open(from, OpenFlags::empty()).await?;
                user.copy((from, source), (file, handle), 6).await.map(drop)
            }
            _ => unreachable!("{how}"),
        }
    }
}

const USES: [&str; 6] = ["write", "read", "fsync", "truncate", "mtime", "copy"];

/// The other file differs in size, in time, or in time only, which goes back or forth.
const OTHERS: [(usize, u32); 4] = [(40, 20), (200, 60), (100, 20), (100, 60)];

/// A write makes the time of change later by an amount that is not known, so any later time could be that. After fsync(2) it is
/// known: a file of the same size whose time lies between is another one.
#[tokio::test(start_paused = true)]
async fn after_fsync_a_file_of_the_same_size_with_another_time_is_another_one() {
    for ahead in [-1, 1] {
        let opened = Opened::new(OpenFlags::READ_WRITE).await;
        opened.uses("write").await.expect("written");
        opened.uses("fsync").await.expect("synchronised");
        let written = opened.store.state().files[&b"/home/f"[..]].mtime();
        opened.replace(100, written.saturating_add_signed(ahead));
        opened.lose().await;
        let error = opened.uses("write").await.expect_err("it is another file");
        assert_eq!(error.errno, Errno::ESTALE);
        assert!(opened.is_untouched(100));
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_others_replaced_is_not_taken_for_the_one_that_was_open() {
    for ((len, mtime), how) in OTHERS.into_iter().flat_map(|other| USES.map(|how| (other, how))) {
        // The connection is lost before, or by what is done.
        for (in_flight, removed) in [(false, false), (false, true), (true, false)] {
            // What is on its way may have made the time another; and a copy begins with requests of another file.
            if in_flight && (how == "copy" || len == 100) {
                continue;
            }
            let opened = Opened::new(OpenFlags::READ_WRITE).await;
            if in_flight {
                opened.line.decide(|number, _| if number == 0 { Fate::Cut } else { Fate::Answered });
            } else {
                opened.lose().await;
            }
            if removed {
                opened.store.state().files.remove(&b"/home/f"[..]);
            }
            opened.replace(len, mtime);
            let what = format!("{how}, in flight: {in_flight}, {len} bytes of {mtime}");
            for how in [how, "write", "read", "fsync", "truncate"] {
                let error = opened.uses(how).await.expect_err(&what);
                assert_eq!(error.errno, Errno::ESTALE, "{what}: {error}");
                assert!(error.reason.is_some_and(|reason| reason.contains("another client")), "{what}");
                assert!(opened.is_untouched(len), "{what}");
            }
            let fresh = opened.user.open(opened.file, OpenFlags::READ_WRITE).await.expect("opened");
            for by in 0..2 {
                opened.lose().await;
                assert_eq!(opened.user.write_at(opened.file, fresh, by, b"x").await, Ok(1), "{what}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_before_does_not_follow_to_another_file() {
    // Nor does it where the other file is seen before the connection is lost, or afterwards.
    for (seen_before, seen_after) in [(false, false), (true, false), (false, true)] {
        for how in USES {
            let opened = Opened::new(OpenFlags::READ_WRITE).await;
            let (user, file, handle) = (&opened.user, opened.file, opened.handle);
            user.write_at(file, handle, 0, &[b'B'; 150]).await.expect("written");
            opened.replace(100, 60);
            if seen_before {
                assert_eq!(user.size(file, None).await, Ok(100));
            }
            opened.lose().await;
            if seen_after {
                assert_eq!(user.size(file, None).await, Ok(100));
            }
            let used = opened.uses(how).await.map_err(|error| error.errno);
            assert_eq!(used, Err(Errno::ESTALE), "{how}, seen before: {seen_before}, after: {seen_after}");
            assert!(opened.is_untouched(100), "{how}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readers_do_not_go_on_in_another_file() {
    for (len, mtime) in OTHERS {
        let opened = Opened::new(OpenFlags::empty()).await;
        opened.uses("read").await.expect("read");
        opened.lose().await;
        opened.uses("read").await.expect("it is the same");
        opened.lose().await;
        opened.replace(len, mtime);
        for _ in 0..2 {
            assert_eq!(opened.uses("read").await.map_err(|error| error.errno), Err(Errno::ESTALE));
        }
    }
}

/// What the second client does in place is its right, and once it was seen no reason to stop.
#[tokio::test(start_paused = true)]
async fn a_file_that_others_changed_in_place_is_written_on_if_that_was_seen() {
    for seen in [true, false] {
        let opened = Opened::new(OpenFlags::WRITE_ONLY | OpenFlags::APPEND).await;
        let (user, file, handle) = (&opened.user, opened.file, opened.handle);
        opened.store.resize("/home/f", 130);
        opened.store.touch("/home/f");
        if seen {
            assert_eq!(user.size(file, None).await, Ok(130));
        }
        assert_eq!(user.write_at(file, handle, 0, b"ours").await, Ok(4));
        opened.lose().await;
        let written = user.write_at(file, handle, 0, b"more").await.map_err(|error| error.errno);
        assert_eq!(written, if seen { Ok(4) } else { Err(Errno::ESTALE) });
    }
}

/// Writes, a truncation and a time that is set, all on their way at once when the connection is lost.
async fn busy_with_cut(cut: usize, after: bool) {
    let opened = Opened::new(OpenFlags::READ_WRITE).await;
    let (user, file, handle) = (&opened.user, opened.file, opened.handle);
    opened.line.decide(move |number, _| match number == cut {
        true if after => Fate::CutAfter,
        true => Fate::Cut,
        false => Fate::Answered,
    });
    let (long, short) = (vec![b'B'; 700_000], vec![b'C'; 30]);
    let done = tokio::join!(
        user.write_at(file, handle, 50, &long),
        user.truncate_open(file, handle, 20),
        user.set_mtime(file, handle, 10),
        user.write_at(file, handle, 10, &short),
        user.fsync(file, handle),
    );
    let (long, cut_to, set, short, synced) = done;
    assert_eq!((long, cut_to, short, synced), (Ok(700_000), Ok(()), Ok(30), Ok(())), "cut at {cut}");
    assert!(set.is_ok(), "cut at {cut}");
    for offset in [40, 5000] {
        opened.line.decide(|number, _| if number == 0 { Fate::CutAfter } else { Fate::Answered });
        assert_eq!(user.write_at(file, handle, offset, b"end").await, Ok(3), "cut at {cut}");
        assert_eq!(user.fsync(file, handle).await, Ok(()));
        assert_eq!(user.size(file, Some(handle)).await, Ok(offset + 3));
    }
    opened.lose().await;
    assert_eq!(user.read_at(file, handle, 10, 10).await.as_deref(), Ok(&[b'C'; 10][..]));
}

#[tokio::test(start_paused = true)]
async fn without_a_second_client_a_writer_does_not_notice_a_lost_connection() {
    for (cut, after) in (0..12).flat_map(|cut| [(cut, false), (cut, true)]) {
        busy_with_cut(cut, after).await;
    }
}

/// What is done to a file while its connection is lost with what was done before.
#[derive(Debug, Clone, Copy)]
enum Step {
    Write,
    Set(i64),
}

impl Opened {
    async fn step(&self, step: Step) -> Result<()> {
        match step {
            Step::Write => self.user.write_at(self.file, self.handle, 0, b"ours").await.map(drop),
            Step::Set(time) => self.user.set_mtime(self.file, self.handle, time).await.map(drop),
        }
    }
}

/// What is lost with its connection is repeated on the next one only when the process is gone that may still do it. What is
/// asked for on the next one meanwhile has to come after it, also where another write overtakes both.
#[tokio::test(start_paused = true)]
async fn what_was_asked_for_after_something_that_is_repeated_on_the_next_connection_comes_after_it() {
    use Step::{Set, Write};
    for (first, overtaken, second, time) in [
        (Write, false, Set(4000), 4000),
        (Write, true, Set(4000), 4000),
        (Set(3000), false, Set(4000), 4000),
        // Each write makes it one second later at this server.
        (Set(3000), false, Write, 3001),
    ] {
        let opened = Opened::new(OpenFlags::READ_WRITE).await;
        let (user, file, handle) = (&opened.user, opened.file, opened.handle);
        let (next, is_next) = oneshot::channel();
        let (mut next, mut is_lost) = (Some(next), false);
        opened.line.decide(move |_, request| match request {
            Request::Write { .. } | Request::FSetStat { .. } if !is_lost => {
                is_lost = true;
                Fate::Late(Duration::from_secs(1))
            }
            _ => {
                next.take_if(|_| is_lost).into_iter().for_each(|next| next.send(()).expect("awaited"));
                Fate::Answered
            }
        });
        let then = async {
            is_next.await.expect("there is a next connection");
            if overtaken {
                assert_eq!(user.write_at(file, handle, 50, b"later").await, Ok(5));
            }
            opened.step(second).await
        };
        let what = format!("{first:?}, {second:?}, overtaken: {overtaken}");
        assert_eq!(tokio::join!(opened.step(first), then), (Ok(()), Ok(())), "{what}");
        assert_eq!(user.attr(file, None).await.map(|attr| attr.mtime.secs), Ok(time), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_looked_at_after_its_connection_was_lost_and_along_with_an_fsync() {
    let opened = Opened::new(OpenFlags::READ_WRITE).await;
    let looks = || opened.store.state().counts.get("fstat").copied().unwrap_or_default();
    for how in ["write", "read", "fsync"] {
        opened.uses(how).await.expect("done");
    }
    assert_eq!(looks(), 1, "of what was written");
    opened.lose().await;
    for how in ["write", "read", "fsync"] {
        opened.uses(how).await.expect("done");
    }
    assert_eq!(looks(), 3, "of what was opened again, and of what was written");
}

/// The answer to the look may be lost as well.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_again_while_a_file_is_looked_at_decides_nothing() {
    let opened = Opened::new(OpenFlags::READ_WRITE).await;
    opened.lose().await;
    let mut cut = false;
    opened.line.decide(move |_, request| match request {
        Request::FStat { .. } if !std::mem::replace(&mut cut, true) => Fate::Cut,
        _ => Fate::Answered,
    });
    assert_eq!(opened.uses("write").await, Ok(()));
}
