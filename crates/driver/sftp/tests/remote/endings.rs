// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lost connections, silent servers, files that go on all the same.

use crate::line::{Fate, Line};
use crate::server::{File, State, Store};
use crate::user::User;
use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Handle, Node, Result};
use outrigger_proto_sftp::Request;
use std::sync::Arc;
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(5);
/// Longer than anything may take: no request waits for ever.
const LONG: Duration = Duration::from_secs(300);

async fn connected(store: &Arc<Store>) -> (Line, User) {
    let line = Line::new(store, DELAY);
    let user = User::new(line.connect(&[]).await.expect("connected"));
    (line, user)
}

/// What programs do, step by step. Each step either says that it was done, and then it was, or fails with `EIO`.
struct Work {
    user: User,
    store: Arc<Store>,
    failures: Vec<&'static str>,
}

impl Work {
    fn done<T>(&mut self, step: &'static str, result: Result<T>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) => {
                assert_eq!(error.errno, Errno::EIO, "{step}: {error}");
                assert!(error.reason.is_some_and(|reason| reason.contains("was lost")), "{step}");
                self.failures.push(step);
                None
            }
        }
    }

    async fn run(&mut self) {
        let user = self.user.clone();
        let dir = user.mkdir(Node::ROOT, "dir").await;
        let Some(dir) = self.done("mkdir", dir) else { return };
        let made = user.create(dir, "file").await;
        let Some((file, handle)) = self.done("create", made) else { return };
        // Writing and truncating are repeated when the server process is gone, so they always succeed.
        let text = vec![b'x'; 300_000];
        assert_eq!(user.write_at(file, handle, 0, &text).await, Ok(300_000));
        assert_eq!(user.fsync(file, handle).await, Ok(()));
        assert_eq!(self.store.content("/home/dir/file").map(|all| all.len()), Some(300_000));
        assert_eq!(user.truncate(file, 250_000).await, Ok(()));
        assert_eq!(user.read_at(file, handle, 249_990, 100).await.as_deref(), Ok(&text[..10]));
        assert_eq!(user.size(file, Some(handle)).await, Ok(250_000));
        assert_eq!(user.close(file, handle).await, Ok(()));
        assert_eq!(user.list(dir).await.map(|names| names.len()), Ok(1));
        assert_eq!(user.read_file(file, 10).await.map(|data| data.len()), Ok(10));
        let moved = user.rename(dir, "file", Node::ROOT, "moved").await;
        if self.done("rename", moved).is_none() {
            return;
        }
        assert_eq!(self.store.content("/home/moved").map(|all| all.len()), Some(250_000));
        let removed = user.unlink(Node::ROOT, "moved").await;
        if self.done("unlink", removed).is_some() {
            assert_eq!(self.store.content("/home/moved"), None);
        }
        let removed = user.rmdir(Node::ROOT, "dir").await;
        self.done("rmdir", removed);
    }
}

/// Does the work while the connection is cut at request number `cut`; whether that request ever came.
async fn work_with_cut(cut: usize, after: bool) -> bool {
    let store = Store::new();
    let (line, user) = connected(&store).await;
    line.decide(move |number, _| match number == cut {
        true if after => Fate::CutAfter,
        true => Fate::Cut,
        false => Fate::Answered,
    });
    let mut work = Work { user, store, failures: Vec::new() };
    let done = tokio::time::timeout(LONG, work.run()).await;
    assert!(done.is_ok(), "somebody waits for ever, cut at {cut}");
    assert!(work.failures.len() <= 1, "one cut, {:?}", work.failures);
    line.requests() > cut
}

#[tokio::test(start_paused = true)]
async fn a_connection_cut_at_any_message_harms_at_most_the_request_it_hits() {
    for after in [false, true] {
        let mut cut = 0;
        while work_with_cut(cut, after).await {
            cut += 1;
        }
        assert!(cut > 30, "the work has more messages than {cut}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_cut_nothing_fails() {
    let store = Store::new();
    let (_, user) = connected(&store).await;
    let mut work = Work { user, store: Arc::clone(&store), failures: Vec::new() };
    work.run().await;
    assert!(work.failures.is_empty(), "{:?}", work.failures);
    let left: Vec<_> = store.state().files.keys().cloned().collect();
    assert_eq!(left, [b"/".to_vec(), b"/home".to_vec()]);
}

#[tokio::test(start_paused = true)]
async fn an_append_that_may_have_happened_is_not_repeated() {
    let store = Store::new();
    store.state().files.insert(b"/home/log".to_vec(), File::new(b"one ".to_vec()));
    let (line, user) = connected(&store).await;
    let file = user.lookup(Node::ROOT, "log").await.expect("found").node;
    let handle = user.open(file, OpenFlags::WRITE_ONLY | OpenFlags::APPEND).await.expect("opened");
    line.decide(|number, _| if number == 0 { Fate::CutAfter } else { Fate::Answered });
    let error = user.write_at(file, handle, 0, b"two ").await.expect_err("nobody knows");
    assert_eq!(error.errno, Errno::EIO);
    assert_eq!(user.write_at(file, handle, 0, b"three").await, Ok(5));
    assert_eq!(store.content("/home/log").as_deref(), Some(&b"one two three"[..]));
}

#[tokio::test(start_paused = true)]
async fn an_append_in_pieces_is_not_repeated_when_only_its_first_pieces_were_sent() {
    let text: Vec<u8> = (0..4 << 20).map(|at| (at / 1021) as u8).collect();
    for cut in 0..130 {
        let store = Store::new();
        store.state().files.insert(b"/home/log".to_vec(), File::new(b"one ".to_vec()));
        let (line, user) = connected(&store).await;
        let file = user.lookup(Node::ROOT, "log").await.expect("found").node;
        let handle = user.open(file, OpenFlags::WRITE_ONLY | OpenFlags::APPEND).await.expect("opened");
        line.decide(move |number, _| if number == cut { Fate::Last } else { Fate::Answered });
        let written = user.write_at(file, handle, 0, &text).await;
        let content = store.content("/home/log").expect("it exists");
        match written {
            Ok(count) => assert!(content[4..] == text[..count as usize], "cut at {cut}: {}", content.len()),
            Err(error) => assert_eq!(error.errno, Errno::EIO, "cut at {cut}"),
        }
    }
}

/// A file with something in it that is open for writing.
async fn writing(store: &Arc<Store>) -> (Line, User, Node, Handle) {
    let (line, user) = connected(store).await;
    let (file, handle) = user.create(Node::ROOT, "f").await.expect("made");
    user.write_at(file, handle, 0, b"old").await.expect("written");
    (line, user, file, handle)
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_repeated_is_not_overtaken_by_its_older_copy() {
    let store = Store::new();
    let (line, user, file, handle) = writing(&store).await;
    line.decide(|number, _| if number == 0 { Fate::Late(Duration::from_secs(2)) } else { Fate::Answered });
    assert_eq!(user.write_at(file, handle, 0, b"one").await, Ok(3));
    assert_eq!(user.write_at(file, handle, 0, b"two").await, Ok(3));
    tokio::time::sleep(LONG).await;
    assert_eq!(store.content("/home/f").as_deref(), Some(&b"two"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_truncation_that_is_repeated_is_not_overtaken_by_its_older_copy() {
    let store = Store::new();
    let (line, user, file, handle) = writing(&store).await;
    line.decide(|number, _| if number == 0 { Fate::Late(Duration::from_secs(2)) } else { Fate::Answered });
    assert_eq!(user.truncate(file, 0).await, Ok(()));
    assert_eq!(user.write_at(file, handle, 0, b"two").await, Ok(3));
    tokio::time::sleep(LONG).await;
    assert_eq!(store.content("/home/f").as_deref(), Some(&b"two"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_old_server_may_still_do_is_not_reported_as_done() {
    // It goes on for longer than anybody waits; it is on another machine; it cannot be seen.
    let late: fn(&mut State) = |_| {};
    for (change, fate) in [
        (late, Fate::Late(Duration::from_secs(60))),
        (|state| state.boots += 1, Fate::CutAfter),
        (|state| state.processes = None, Fate::CutAfter),
    ] {
        let store = Store::new();
        let (line, user, file, handle) = writing(&store).await;
        let mut fate = Some(fate);
        line.decide(move |_, _| fate.take().unwrap_or(Fate::Answered));
        change(&mut store.state());
        let begin = tokio::time::Instant::now();
        let error = user.write_at(file, handle, 0, b"one").await.expect_err("nobody knows");
        assert_eq!(error.errno, Errno::EIO, "{error}");
        assert!(error.reason.is_some_and(|reason| reason.contains("is not known")));
        assert!(begin.elapsed() <= Duration::from_secs(6), "{:?}", begin.elapsed());
        assert_eq!(user.read_at(file, handle, 0, 10).await.map(|data| data.len()), Ok(3), "reading goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn fsync_speaks_for_what_was_written_on_a_lost_connection_only_if_the_server_still_has_it() {
    for restarted in [false, true] {
        let store = Store::new();
        let (line, user, file, handle) = writing(&store).await;
        line.decide(|number, _| if number == 0 { Fate::Cut } else { Fate::Answered });
        store.state().boots += u32::from(restarted);
        let synced = user.fsync(file, handle).await.map_err(|error| error.errno);
        assert_eq!(synced, if restarted { Err(Errno::EIO) } else { Ok(()) });
        // What is written from now on has nothing to do with that.
        user.write_at(file, handle, 0, b"new").await.expect("written");
        assert_eq!(user.fsync(file, handle).await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn fsync_speaks_for_all_that_was_done_to_a_file_also_through_handles_that_were_closed() {
    for (change, restarted) in (0..4).flat_map(|change| [(change, false), (change, true)]) {
        let store = Store::new();
        store.state().files.insert(b"/home/f".to_vec(), File::new(b"content".to_vec()));
        let (line, user) = connected(&store).await;
        let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
        let flags = match change {
            0 => OpenFlags::WRITE_ONLY | OpenFlags::TRUNC,
            _ => OpenFlags::WRITE_ONLY,
        };
        let handle = user.open(file, flags).await.expect("opened");
        match change {
            1 => user.write_at(file, handle, 0, b"new").await.map(drop),
            2 => user.truncate(file, 3).await,
            3 => user.touch(file).await.map(drop),
            _ => Ok(()),
        }
        .expect("changed");
        user.close(file, handle).await.expect("closed");
        line.decide(|number, _| if number == 0 { Fate::Cut } else { Fate::Answered });
        store.state().boots += u32::from(restarted);
        let handle = user.open(file, OpenFlags::READ_WRITE).await.expect("opened");
        let synced = user.fsync(file, handle).await.map_err(|error| error.errno);
        assert_eq!(synced, if restarted { Err(Errno::EIO) } else { Ok(()) }, "{change}");
        assert_eq!(user.fsync(file, handle).await, Ok(()), "the loss is reported once");
    }
}

/// More of them than are remembered one by one.
#[tokio::test(start_paused = true)]
async fn fsync_speaks_for_what_was_done_before_many_other_files_were_changed() {
    for restarted in [false, true] {
        let (store, names) = (Store::new(), 1 << 14);
        (0..=names).for_each(|number| {
            store
                .state()
                .files
                .insert(format!("/home/{number}").into_bytes(), File::new(b"content".to_vec()));
        });
        let (line, user) = connected(&store).await;
        for number in 0..=names {
            let file = user.lookup(Node::ROOT, &number.to_string()).await.expect("found").node;
            user.touch(file).await.expect("changed");
        }
        line.decide(|number, _| if number == 0 { Fate::Cut } else { Fate::Answered });
        store.state().boots += u32::from(restarted);
        for number in [0, 1, names] {
            let file = user.lookup(Node::ROOT, &number.to_string()).await.expect("found").node;
            let handle = user.open(file, OpenFlags::READ_WRITE).await.expect("opened");
            let synced = user.fsync(file, handle).await.map_err(|error| error.errno);
            assert_eq!(synced, if restarted { Err(Errno::EIO) } else { Ok(()) }, "{number}");
            assert_eq!(user.fsync(file, handle).await, Ok(()), "the loss is reported once");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reads_of_open_files_connect_to_a_silent_server_again() {
    let store = Store::new();
    store.state().files.insert(b"/home/f".to_vec(), File::new(b"content".to_vec()));
    let (line, user) = connected(&store).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    line.decide(|_, _| Fate::Ignored);
    // It was opened without waiting.
    let handle = user.open(file, OpenFlags::empty()).await.expect("readable");
    let error = user.read_at(file, handle, 0, 10).await.expect_err("no answer");
    assert_eq!(error.errno, Errno::ETIMEDOUT);
    line.decide(|_, _| Fate::Answered);
    assert_eq!(user.read_at(file, handle, 0, 10).await.as_deref(), Ok(&b"content"[..]));
    assert_eq!(line.calls.lock().expect("a lock").0, 2);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_costs_its_patience_and_is_called_again() {
    let store = Store::new();
    let (line, user) = connected(&store).await;
    let calls = |line: &Line| line.calls.lock().expect("a lock").0;
    line.decide(|_, _| Fate::Ignored);
    let begin = tokio::time::Instant::now();
    let error = user.lookup(Node::ROOT, "x").await.expect_err("no answer");
    assert_eq!((error.errno, begin.elapsed().as_secs()), (Errno::ETIMEDOUT, 30));
    line.decide(|_, _| Fate::Answered);
    assert_eq!(user.lookup(Node::ROOT, "x").await.expect_err("answered").errno, Errno::ENOENT);
    assert_eq!(calls(&line), 2, "the silent connection was given up");
}

#[tokio::test(start_paused = true)]
async fn while_a_server_cannot_be_reached_requests_fail_and_afterwards_they_do_not() {
    let store = Store::new();
    store.state().files.insert(b"/home/f".to_vec(), File::new(b"content".to_vec()));
    let (line, user) = connected(&store).await;
    let file = user.lookup(Node::ROOT, "f").await.expect("found").node;
    let handle = user.open(file, OpenFlags::READ_WRITE).await.expect("opened");
    line.calls.lock().expect("a lock").1 = false;
    line.decide(|_, _| Fate::Cut);
    // One that was there is called for as long as it may be silent, and then no more than once a second.
    let mut called = 0;
    for most in [40, 1, 1, 1] {
        let error = user.read_at(file, handle, 0, 100).await.expect_err("no connection");
        assert_eq!(error.errno, Errno::EHOSTUNREACH, "{error}");
        let calls = line.calls.lock().expect("a lock").0;
        assert!(calls - called <= most, "{} calls, not one for each request", calls - called);
        called = calls;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    line.calls.lock().expect("a lock").1 = true;
    line.decide(|_, _| Fate::Answered);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(user.read_at(file, handle, 0, 100).await.as_deref(), Ok(&b"content"[..]), "opened again");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_removed_while_open_lives_on_across_connections_and_leaves_nothing() {
    let store = Store::new();
    let (line, user) = connected(&store).await;
    let (file, handle) = user.create(Node::ROOT, "f").await.expect("made");
    user.write_at(file, handle, 0, b"content").await.expect("written");
    user.unlink(Node::ROOT, "f").await.expect("removed");
    assert_eq!(user.lookup(Node::ROOT, "f").await.expect_err("gone").errno, Errno::ENOENT);
    assert_eq!(user.list(Node::ROOT).await.map(|names| names.len()), Ok(0), "its new name is not shown");
    line.decide(|number, _| if number == 0 { Fate::Cut } else { Fate::Answered });
    assert_eq!(user.read_at(file, handle, 0, 100).await.as_deref(), Ok(&b"content"[..]));
    user.close(file, handle).await.expect("closed");
    tokio::time::sleep(10 * DELAY).await;
    assert_eq!(store.state().files.len(), 2, "nothing is left behind");
}

#[tokio::test(start_paused = true)]
async fn a_directory_is_removed_as_soon_as_the_removed_file_in_it_is_closed() {
    let store = Store::new();
    let (_, user) = connected(&store).await;
    let dir = user.mkdir(Node::ROOT, "dir").await.expect("made");
    for lists in [true, false] {
        let (file, handle) = user.create(dir, "f").await.expect("made");
        user.unlink(dir, "f").await.expect("removed");
        user.close(file, handle).await.expect("closed");
        // What it was called aside is on its way out.
        if lists {
            assert_eq!(user.list(dir).await.map(|names| names.len()), Ok(0));
        }
    }
    assert_eq!(user.rmdir(Node::ROOT, "dir").await, Ok(()));
    assert_eq!(store.state().files.len(), 2, "nothing is left behind");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_replaced_while_open_lives_on_with_every_kind_of_server() {
    use outrigger_proto_sftp::Extensions;
    let all = Extensions::all();
    let kinds = [all, all - Extensions::HARDLINK, all - Extensions::POSIX_RENAME, Extensions::empty()];
    for extensions in kinds {
        let store = Store::new();
        store.state().extensions = extensions;
        let (_, user) = connected(&store).await;
        let (old, handle) = user.create(Node::ROOT, "f").await.expect("made");
        user.write_at(old, handle, 0, b"old").await.expect("written");
        user.write_file(Node::ROOT, "g", b"new").await.expect("written");
        user.rename(Node::ROOT, "g", Node::ROOT, "f").await.expect("renamed");
        assert_eq!(user.read_at(old, handle, 0, 10).await.as_deref(), Ok(&b"old"[..]), "{extensions:?}");
        let new = user.lookup(Node::ROOT, "f").await.expect("found").node;
        assert_ne!(new, old);
        assert_eq!(user.read_file(new, 10).await.as_deref(), Ok(&b"new"[..]), "{extensions:?}");
        user.close(old, handle).await.expect("closed");
        tokio::time::sleep(10 * DELAY).await;
        assert_eq!(store.state().files.len(), 3, "{extensions:?} {:?}", store.state().files.keys());
    }
}

/// Servers without posix-rename: the directory that has the name goes only if it is empty, and nothing is left aside.
#[tokio::test(start_paused = true)]
async fn a_directory_is_renamed_over_an_empty_one_alone() {
    use outrigger_proto_sftp::Extensions;
    for extensions in [Extensions::all() - Extensions::POSIX_RENAME, Extensions::empty()] {
        let store = Store::new();
        store.state().extensions = extensions;
        let (_, user) = connected(&store).await;
        let full = user.mkdir(Node::ROOT, "full").await.expect("made");
        user.write_file(full, "kept", b"kept").await.expect("written");
        for name in ["from", "empty"] {
            user.mkdir(Node::ROOT, name).await.expect("made");
        }
        let from = user.lookup(Node::ROOT, "from").await.expect("found").node;
        user.write_file(from, "moved", b"moved").await.expect("written");
        user.write_file(Node::ROOT, "file", b"file").await.expect("written");
        for (old, new, expected) in [
            ("from", "full", Errno::ENOTEMPTY),
            ("from", "file", Errno::ENOTDIR),
            ("file", "empty", Errno::EISDIR),
        ] {
            let error = user.rename(Node::ROOT, old, Node::ROOT, new).await.expect_err("refused");
            assert_eq!(error.errno, expected, "{old} over {new}: {error}");
        }
        user.rename(Node::ROOT, "from", Node::ROOT, "empty").await.expect("renamed");
        assert_eq!(user.lookup(Node::ROOT, "empty").await.expect("found").node, from);
        tokio::time::sleep(10 * DELAY).await;
        let state = store.state();
        let names: Vec<_> = state.files.keys().map(|path| path.escape_ascii().to_string()).collect();
        let expected =
            ["/home", "/home/empty", "/home/empty/moved", "/home/file", "/home/full", "/home/full/kept"];
        assert!(names.iter().filter(|name| name.starts_with("/home")).eq(expected.iter()), "{names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn listings_are_continued_by_no_other_handle_and_many_names_come_as_they_are() {
    let store = Store::new();
    for number in 0..100_000 {
        store.state().files.insert(format!("/home/{number}").into_bytes(), File::Link(b"x".to_vec()));
    }
    let odd: &[u8] = b"/home/\xff\xfe \n\x1b[31m";
    store.state().files.insert(odd.to_vec(), File::Dir);
    let (line, user) = connected(&store).await;
    let names = user.list(Node::ROOT).await.expect("listed");
    assert_eq!(names.len(), 100_001);
    assert!(names.iter().any(|entry| entry.name[..] == odd[6..] && entry.entry.attr.is_dir()));
    line.decide(|_, request| match request {
        Request::ReadDir { .. } => Fate::Cut,
        _ => Fate::Answered,
    });
    assert_eq!(user.list(Node::ROOT).await.expect_err("cut").errno, Errno::EIO);
}

#[tokio::test(start_paused = true)]
async fn a_directory_whose_connection_is_lost_after_it_was_opened_is_listed_on_the_next_one() {
    for after in [false, true] {
        let store = Store::new();
        (0..10).for_each(|number| {
            store.state().files.insert(format!("/home/{number}").into_bytes(), File::new(Vec::new()));
        });
        let (line, user) = connected(&store).await;
        let handle = user.open_dir(Node::ROOT).await.expect("opened");
        // The server is killed between opendir(3) and readdir(3), and the next one soon after.
        let mut left = 2;
        line.decide(move |_, request| match request {
            Request::ReadDir { .. } if left > 0 => {
                left -= 1;
                if after { Fate::CutAfter } else { Fate::Cut }
            }
            _ => Fate::Answered,
        });
        assert_eq!(user.list_opened(Node::ROOT, handle).await.map(|names| names.len()), Ok(10), "{after}");
    }
}

/// Whether the first server is gone, the second one was asked when it was killed as well.
#[tokio::test(start_paused = true)]
async fn a_write_is_repeated_also_when_the_next_connection_is_lost_at_once() {
    let store = Store::new();
    let (line, user, file, handle) = writing(&store).await;
    let mut cuts = vec![Fate::Cut, Fate::CutAfter];
    line.decide(move |_, request| match request {
        Request::Write { .. } | Request::ReadLink { .. } => cuts.pop().unwrap_or(Fate::Answered),
        _ => Fate::Answered,
    });
    assert_eq!(user.write_at(file, handle, 0, b"new").await, Ok(3));
    assert_eq!(store.content("/home/f").as_deref(), Some(&b"new"[..]));
}
