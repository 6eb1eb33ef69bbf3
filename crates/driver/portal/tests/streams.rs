// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver with real peers: servers of this test, programs, sockets and files.

mod support;

use outrigger_core::{Errno, Node};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use support::{READ, READ_WRITE, Tree, WRITE, errno, sends};

#[test]
fn what_a_server_sends_is_read_to_its_end() {
    let port = sends(b"hello\n".repeat(30_000));
    let tree = Tree::usual();
    let file = tree.open(&format!("tcp/localhost/{port}"), READ).expect("a connection");
    assert_eq!(tree.read_all(file).expect("all"), b"hello\n".repeat(30_000));
    assert_eq!(tree.read(file, 10).expect("the end stays"), b"");
    tree.release(file);
}

#[test]
fn what_is_written_arrives_though_the_peer_has_said_something_that_nobody_reads() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        // More than buffers hold: it waits until somebody takes it.
        stream.write_all(&[b'x'; 8 << 20]).expect("taken");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("no reset");
        sender.send(all).expect("the test waits");
    });
    let tree = Tree::usual();
    let file = tree.open(&format!("tcp/127.0.0.1/{port}"), WRITE).expect("a connection");
    assert_eq!(tree.write(file, b"some"), Ok(4));
    assert_eq!(tree.write(file, b"thing"), Ok(5));
    assert_eq!(errno(tree.read(file, 1)), Errno::EBADF);
    tree.release(file);
    assert_eq!(receiver.recv().expect("it has come"), b"something");
}

#[test]
fn both_directions_of_a_socket_are_independent() {
    let temp = tempfile::tempdir().expect("a directory");
    let path = temp.path().join("a socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).expect("asked");
        stream.write_all(&asked).expect("taken");
        stream.shutdown(Shutdown::Both).expect("connected");
    });
    let tree = Tree::with(&format!("s unix '{}'\n", temp.path().display()));
    let file = tree.open("s/a socket", READ_WRITE).expect("a connection");
    let reading = tree.reading(file);
    assert_eq!(tree.write(file, b"ping"), Ok(4), "while a read waits");
    assert_eq!(reading.join().expect("no panic").expect("an answer"), b"ping");
    assert_eq!(tree.read_all(file).expect("the end"), b"");
    assert_eq!(errno(tree.look("s/none")), Errno::ENOENT);
    std::fs::write(temp.path().join("plain"), "").expect("written");
    assert_eq!(errno(tree.open("s/plain", READ)), Errno::EACCES);
}

#[test]
fn errors_say_what_was_tried() {
    let refusing = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let tree = Tree::usual();
    let path = format!("tcp/127.0.0.1/{refusing}");
    let error = tree.open(&path, READ).expect_err("nobody listens");
    assert_eq!(error.errno, Errno::ECONNREFUSED);
    assert!(error.to_string().contains(&format!("127.0.0.1 port {refusing}")), "{error}");
    let error = tree.open("tcp/no.such.host.invalid/1", READ).expect_err("no such host");
    assert_eq!(error.errno, Errno::EHOSTUNREACH);
    assert_eq!(errno(tree.open("tcp/localhost", READ)), Errno::EISDIR);
    for path in ["udp", "tcp/localhost/0", "tcp/localhost/99999", "tcp/localhost/1/x", "tcp/a\u{1}b"] {
        assert_eq!(errno(tree.look(path)), Errno::ENOENT, "{path}");
    }
    assert_eq!(errno(tree.create("new")), Errno::EACCES);
}

#[test]
fn a_peer_that_never_answers_meets_the_deadline_and_a_signal_ends_waiting() {
    // Connections are made, but nobody ever says anything: TLS waits for it.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("bound").port();
    let tree = Tree::options("tls tls\ntcp tcp", &[("timeout", "0.3")]);
    let error = tree.open(&format!("tls/localhost/{port}"), READ).expect_err("no answer");
    assert_eq!(error.errno, Errno::ETIMEDOUT);
    let file = tree.open(&format!("tcp/localhost/{port}"), READ).expect("a connection");
    let (reading, cancel) = tree.cancellable(file);
    cancel.raise();
    assert_eq!(errno(reading.join().expect("no panic")), Errno::EINTR);
    tree.release(file);
    let patient = Tree::options("tls tls", &[("timeout", "3600")]);
    let (opening, cancel) = patient.opening(&format!("tls/localhost/{port}"));
    cancel.raise();
    assert_eq!(errno(opening.join().expect("no panic")), Errno::EINTR);
}

#[test]
fn a_peer_that_hangs_holds_up_no_other_and_there_is_a_limit() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let hangs = silent.local_addr().expect("bound").port();
    let tree = Arc::new(Tree::options("tcp tcp\ne exec echo hi", &[("connections", "101")]));
    let waiting = tree.open(&format!("tcp/localhost/{hangs}"), READ).expect("a connection");
    let (reading, cancel) = tree.cancellable(waiting);
    let all: Vec<_> = (0..100)
        .map(|number| {
            let tree = Arc::clone(&tree);
            thread::spawn(move || {
                let path = format!("tcp/localhost/{}", sends(format!("{number}").into_bytes()));
                let file = tree.open(&path, READ).expect("room");
                (file, tree.read_all(file).expect("all"))
            })
        })
        .collect();
    let mut files = Vec::new();
    for (number, thread) in all.into_iter().enumerate() {
        let (file, content) = thread.join().expect("no panic");
        assert_eq!(content, number.to_string().as_bytes());
        files.push(file);
    }
    let full = tree.open("e", READ).expect_err("no room");
    assert!(full.errno == Errno::ENFILE && full.to_string().contains("connections=N"), "{full}");
    files.into_iter().for_each(|file| tree.release(file));
    tree.until("there is room again", |tree| tree.open("e", READ).is_ok());
    cancel.raise();
    assert_eq!(errno(reading.join().expect("no panic")), Errno::EINTR);
}

#[test]
fn programs_read_and_write_and_failures_are_no_end() {
    let temp = tempfile::tempdir().expect("a directory");
    let out = temp.path().join("out");
    let tree = Tree::with(&format!(
        "echo/*/* exec echo\ncat exec cat\nto exec sh -c 'sleep 0.1; cat > {}'\nbad exec sh -c 'echo part; exit 3'\n\
         none exec /no/such/program\n",
        out.display()
    ));
    let file = tree.open("echo/$(id)/a;b", READ).expect("started");
    assert_eq!(tree.read_all(file).expect("all"), b"$(id) a;b\n", "no shell");
    let file = tree.open("cat", READ_WRITE).expect("started");
    assert_eq!(tree.write(file, b"there and back"), Ok(14));
    assert_eq!(tree.read(file, 100).expect("some"), b"there and back");
    let file = tree.open("to", WRITE).expect("started");
    assert_eq!(tree.write(file, b"stored"), Ok(6));
    tree.release(file);
    tree.until("the program has stored it", |_| std::fs::read(&out).is_ok_and(|text| text == b"stored"));
    let file = tree.open("bad", READ).expect("started");
    assert_eq!(tree.read(file, 100).expect("some"), b"part\n");
    let error = tree.read(file, 100).expect_err("no end");
    assert!(error.errno == Errno::EIO && error.to_string().contains("exit status 3"), "{error}");
    assert_eq!(errno(tree.open("none", READ)), Errno::ENOENT);
}

#[test]
fn programs_end_with_their_file_and_with_the_tree() {
    let temp = tempfile::tempdir().expect("a directory");
    let tree = Tree::with(&format!(
        "endless/* exec sh -c 'sleep 1000 & echo $! > {0}/$0; trap \"\" TERM; while :; do echo y; done'\n",
        temp.path().display()
    ));
    let gone = |name: &str| {
        let number = std::fs::read_to_string(temp.path().join(name)).expect("noted");
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", number.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    let file = tree.open("endless/one", READ).expect("started");
    assert!(!tree.read(file, 1 << 20).expect("some").is_empty());
    assert!(!gone("one"));
    tree.release(file);
    tree.until("what was started is killed", |_| gone("one"));
    let file = tree.open("endless/two", READ).expect("started");
    assert!(!tree.read(file, 1 << 20).expect("some").is_empty());
    drop(tree);
    let start = std::time::Instant::now();
    while !gone("two") {
        assert!(start.elapsed() < Duration::from_secs(30), "it goes on");
        thread::yield_now();
    }
}

#[test]
fn files_of_this_machine_are_streams_and_none_is_made() {
    let temp = tempfile::tempdir().expect("a directory");
    std::fs::write(temp.path().join("file"), "content").expect("written");
    std::os::unix::fs::symlink("/etc/passwd", temp.path().join("out")).expect("linked");
    let tree = Tree::with(&format!("f fs '{}'\n", temp.path().display()));
    let file = tree.open("f/file", READ).expect("opened");
    assert_eq!(tree.read(file, 4).expect("some"), b"cont");
    assert_eq!(tree.read_all(file).expect("the rest"), b"ent");
    assert_eq!(errno(tree.look("f/out")), Errno::EACCES);
    assert_eq!(errno(tree.look("f/new")), Errno::ENOENT);
    assert_eq!(tree.truncate("f/file", 3), Ok(()));
    assert_eq!(std::fs::read(temp.path().join("file")).expect("there"), b"con");
    assert_eq!(tree.truncate("f/file", 0), Ok(()));
    assert_eq!(std::fs::read(temp.path().join("file")).expect("there"), b"");
    let file = tree.open("f/file", support::EMPTIED).expect("opened");
    assert_eq!(tree.write(file, b"new"), Ok(3));
    assert_eq!(std::fs::read(temp.path().join("file")).expect("there"), b"new");
}

#[test]
fn poll_tells_when_there_is_something_to_read() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let tree = Tree::usual();
    let file = tree.open(&format!("tcp/localhost/{port}"), READ_WRITE).expect("a connection");
    let (mut stream, _) = listener.accept().expect("a client");
    assert_eq!(tree.poll(file, 5, Some(77)), Ok(4), "nothing has come, but it can be written");
    stream.write_all(b"now").expect("taken");
    assert_eq!(tree.woken(), 77);
    assert_eq!(tree.poll(file, 5, None), Ok(5));
    assert_eq!(tree.read(file, 100).expect("some"), b"now", "what was received ahead");
    let quiet = tree.open(&format!("tcp/localhost/{port}"), READ | support::NONBLOCK).expect("a connection");
    assert_eq!(errno(tree.read(quiet, 1)), Errno::EAGAIN);
}

#[test]
fn names_are_given_back_and_bounded_and_sizes_harmless() {
    let tree = Tree::usual();
    let node = tree.look("tcp/localhost/1").expect("made up");
    assert_eq!(tree.truncate("tcp/localhost/1", 0), Ok(()));
    assert_eq!(errno(tree.truncate("tcp/localhost/1", 1)), Errno::EINVAL);
    assert_eq!(tree.list(Node::ROOT), ["tcp", "tls", "unix"]);
    tree.forget(node, 3);
    assert_eq!(errno(tree.attr(node)), Errno::ESTALE);
}

#[test]
fn a_file_to_which_nothing_was_written_does_not_linger() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let path = format!("tcp/localhost/{}", silent.local_addr().expect("bound").port());
    let tree = Tree::options("tcp tcp\nends exec sleep 1000", &[("connections", "1"), ("linger", "3600")]);
    for path in [&*path, "ends"] {
        for _ in 0..2 {
            let mut file = None;
            tree.until("there is room", |tree| {
                file = tree.open(path, READ_WRITE).ok();
                file.is_some()
            });
            assert_eq!(errno(tree.open(path, READ)), Errno::ENFILE);
            file.into_iter().for_each(|file| tree.release(file));
        }
    }
}

#[test]
fn any_signal_ends_waiting_and_what_comes_is_there_for_the_next_read() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let tree = Tree::usual();
    let file = tree.open(&format!("tcp/localhost/{port}"), READ).expect("a connection");
    let (mut peer, _) = listener.accept().expect("a client");
    let (reading, cancel) = tree.cancellable(file);
    tree.until("it waits for its peer", |_| cancel.heeds_signals());
    cancel.raise();
    assert_eq!(errno(reading.join().expect("no panic")), Errno::EINTR);
    peer.write_all(b"all").expect("taken");
    let raised = outrigger_core::Cancel::default();
    raised.raise();
    assert_eq!(errno(tree.read_unless(file, raised)), Errno::EINTR, "a signal that came before");
    assert_eq!(tree.read(file, 100).expect("some"), b"all");
}

#[test]
fn all_ends_with_the_tree_and_what_was_written_is_taken_first() {
    let temp = tempfile::tempdir().expect("a directory");
    let at = |name: &str| temp.path().join(name);
    let config = format!(
        "store exec sh -c 'sleep 0.2; cat > {0}/stored'\nstays exec sh -c 'sleep 1000 & echo $! > {0}/below; wait'\n",
        temp.path().display()
    );
    let tree = Tree::options(&config, &[("linger", "30")]);
    let file = tree.open("store", WRITE).expect("started");
    assert_eq!(tree.write(file, b"kept"), Ok(4));
    let _open = tree.open("stays", READ).expect("started");
    tree.until("it has started another one", |_| {
        std::fs::read_to_string(at("below")).is_ok_and(|text| text.ends_with('\n'))
    });
    tree.end();
    assert_eq!(std::fs::read(at("stored")).expect("stored"), b"kept", "a file that was open still");
    let below = std::fs::read_to_string(at("below")).expect("noted");
    tree.until("what was started is killed", |_| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", below.trim())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}
