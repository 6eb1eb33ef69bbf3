// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clients that are no clients, or want to do harm.

use crate::support::*;
use bytes::Bytes;
use outrigger_door_ninep::Callers;
use outrigger_proto_ninep::*;
use std::io::Read;
use std::net::TcpStream;

fn start() -> (Running, Client) {
    let running = serve(vec![("/", checked(mem()))], &callers());
    let client = Client::new(running.address);
    (running, client)
}

#[test]
fn a_connection_with_something_else_ends_and_others_go_on() {
    let (running, mut client) = start();
    let walk = Request::from(Tclunk { fid: 0 }).encode(1, Dialect::Linux);
    for message in [
        &b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"[..],
        &[0xff; 64],
        &[0; 64],
        &[6, 0, 0, 0, 100, 0, 0],
        &walk,
    ] {
        let mut other = Client::silent(running.address);
        other.send(message);
        assert!(other.receive().is_none(), "{message:?}");
    }
    assert!(client.walk(0, 1, &[]).is_ok());
}

#[test]
fn versions_and_sizes_are_agreed_on_or_refused() {
    let (running, _client) = start();
    for (msize, version, expected) in [
        (u32::MAX, "9P2000.L", ((1 << 20) + 24, "9P2000.L")),
        (8192, "9P2000.u", (8192, "9P2000.u")),
        (4096, "9P2000.hypothetical", (4096, "9P2000")),
        (8192, "8P", (8192, "unknown")),
    ] {
        let mut client = Client::silent(running.address);
        let agreed = client.version(msize, version);
        assert_eq!((agreed.msize, &agreed.version[..]), (expected.0, expected.1.as_bytes()), "{version}");
    }
    for msize in [0, 1, 4095] {
        let mut client = Client::silent(running.address);
        client.begin(NO_TAG, Tversion { msize, version: text("9P2000.L") });
        assert_eq!(client.receive().unwrap(), (NO_TAG, Rlerror { ecode: 90 }.into()));
    }
}

#[test]
fn a_message_that_is_longer_than_agreed_ends_the_connection_before_it_came() {
    let (running, _client) = start();
    let mut client = Client::silent(running.address);
    client.version(8192, "9P2000.L");
    client.send(&8193_u32.to_le_bytes());
    assert!(client.receive().is_none());
}

#[test]
fn a_request_that_is_cut_anywhere_is_refused_and_the_next_one_answered() {
    let (_running, mut client) = start();
    client.create(0, 1, "f").unwrap();
    let names = List::new(vec![text("f"), text("g")]).unwrap();
    let requests: Vec<Request> = vec![
        Twalk { fid: 0, newfid: 9, names }.into(),
        Twrite { fid: 1, offset: 0, data: Bytes::from_static(b"0123456789") }.into(),
        Tlcreate { fid: 0, name: text("n"), flags: 2, mode: 0o644, gid: 0 }.into(),
        Tsetattr { fid: 1, attrs: SetAttrs::default() }.into(),
        Tlock { fid: 1, kind: 1, flags: 0, start: 0, length: 0, proc_id: 1, client_id: text("host") }.into(),
        Tattach { fid: 8, afid: NO_FID, uname: text("u"), aname: text("/"), n_uname: Some(0) }.into(),
    ];
    for request in requests {
        let whole = request.encode(7, Dialect::Linux);
        for len in HEAD..whole.len() {
            let mut message = whole[..len].to_vec();
            message[..4].copy_from_slice(&(len as u32).to_le_bytes());
            client.send(&message);
            let (tag, reply) = client.receive().unwrap();
            assert_eq!((tag, reply.kind()), (7, 7), "{request:?} of {len} bytes");
        }
    }
    assert_eq!(client.walk(0, 2, &["n"]), Err(NOENT), "nothing was made of a part");
    assert_eq!(client.read(1, 0, 100).unwrap(), "");
}

#[test]
fn kinds_that_there_are_none_of_and_replies_are_refused() {
    let (_running, mut client) = start();
    for kind in 0..=u8::MAX {
        let known = Request::decode(&Bytes::from([&[0; 4][..], &[kind], &[0; 200]].concat()), Dialect::Linux);
        if matches!(known, Err(DecodeError::Kind(_))) {
            let message = [&11_u32.to_le_bytes()[..], &[kind, 5, 0], &[0; 4]].concat();
            client.send(&message);
            assert_eq!(client.receive(), Some((5, Rlerror { ecode: OPNOTSUPP }.into())), "{kind}");
        }
    }
    let names = text("x");
    assert_eq!(client.call(Topen { fid: 0, mode: 0 }), Err(OPNOTSUPP), "another dialect");
    assert_eq!(
        client.call(Tcreate { fid: 0, name: names, perm: 0, mode: 0, extension: None }),
        Err(OPNOTSUPP)
    );
}

#[test]
fn forged_fids_walks_and_numbers_are_refused() {
    let (_running, mut client) = start();
    client.create(0, 1, "f").unwrap();
    for fid in [2, NO_FID, 0x8000_0000] {
        assert_eq!(client.clunk(fid), Err(BADF));
        assert_eq!(client.read(fid, 0, 1).map(|_| ()), Err(BADF));
        assert_eq!(client.walk(fid, 5, &[]), Err(BADF));
        assert_eq!(client.call(Tlink { dfid: 0, fid, name: text("l") }), Err(BADF));
        let rename = Trenameat { old_dfid: 0, old_name: text("f"), new_dfid: fid, new_name: text("g") };
        assert_eq!(client.call(rename), Err(BADF));
    }
    assert_eq!(client.walk(0, NO_FID, &[]), Err(BADF));
    let many = [&17_u16.to_le_bytes()[..], &[1, 0, b'a'].repeat(17)].concat();
    let message = [&0_u32.to_le_bytes()[..], &[110, 1, 0], &0_u32.to_le_bytes(), &9_u32.to_le_bytes(), &many];
    let mut message = message.concat();
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_le_bytes());
    client.send(&message);
    assert_eq!(client.receive().unwrap().1.kind(), 7, "17 names");
    // Counts and offsets that are negative, or larger than any file.
    client.write(1, 0, b"content").unwrap();
    assert_eq!(client.read(1, 0, u32::MAX).unwrap(), "content");
    assert_eq!(client.read(1, u64::MAX, u32::MAX).unwrap(), "");
    assert_eq!(client.read(1, 1 << 63, 1).unwrap(), "");
    assert_eq!(client.write(1, u64::MAX, b"x"), Err(27));
    assert_eq!(client.write(1, i64::MAX as u64, b"x"), Err(27));
    let attrs = SetAttrs { valid: SetMask::SIZE, size: u64::MAX, ..SetAttrs::default() };
    assert_eq!(client.call(Tsetattr { fid: 1, attrs }), Err(INVAL));
    let device = Tmknod { dfid: 0, name: text("dev"), mode: 0o60_600, major: u32::MAX, minor: 0, gid: 0 };
    assert_eq!(client.call(device), Err(INVAL));
    for mode in [0o40_755, 0o120_777, 0o644, 0o170_000] {
        let node = Tmknod { dfid: 0, name: text("node"), mode, major: 0, minor: 0, gid: 0 };
        assert_eq!(client.call(node), Err(INVAL), "{mode:o}");
    }
}

#[test]
fn pipes_devices_and_links_are_not_opened_here() {
    let (_running, mut client) = start();
    client.call(Tmknod { dfid: 0, name: text("p"), mode: 0o10_644, major: 0, minor: 0, gid: 0 }).unwrap();
    client.call(Tmknod { dfid: 0, name: text("c"), mode: 0o20_644, major: 1, minor: 5, gid: 0 }).unwrap();
    client.call(Tsymlink { dfid: 0, name: text("l"), target: text("/etc/passwd"), gid: 0 }).unwrap();
    for (fid, (name, expected)) in [("p", 6), ("c", 6), ("l", 40)].into_iter().enumerate() {
        let fid = fid as u32 + 1;
        client.walk(0, fid, &[name]).unwrap();
        assert_eq!(client.call(Tlopen { fid, flags: 0 }), Err(expected), "{name}");
        assert_eq!(client.read(fid, 0, 1).map(|_| ()), Err(BADF));
    }
    assert_eq!(client.call(Treadlink { fid: 3 }).unwrap().target, text("/etc/passwd"));
    assert_eq!(client.call(Treadlink { fid: 0 }), Err(INVAL));
}

#[test]
fn a_client_that_takes_no_replies_does_not_hold_up_others() {
    let (running, mut client) = start();
    client.create(0, 1, "f").unwrap();
    client.write(1, 0, &[1; 1 << 19]).unwrap();
    let mut deaf = Client::new(running.address);
    deaf.walk(0, 1, &["f"]).unwrap();
    deaf.call(Tlopen { fid: 1, flags: 0 }).unwrap();
    // Until nothing more goes in: the server has stopped reading.
    for tag in 100..60_000 {
        let read = Request::from(Tread { fid: 1, offset: 0, count: 1 << 19 }).encode(tag, Dialect::Linux);
        if !deaf.try_send(&read) {
            break;
        }
    }
    assert_eq!(client.read(1, 0, 4).unwrap(), &[1; 4][..]);
}

#[test]
fn a_client_at_a_port_of_anyone_gets_no_tree() {
    let running = serve(vec![("/", checked(mem()))], &Callers { any_port: false, ..callers() });
    let mut client = Client::speaking(running.address, Dialect::Linux);
    assert_eq!(client.attach(0, "/", Some(7)), Err(ACCES));
    let strangers: Vec<_> = (0..40).map(|_| TcpStream::connect(running.address).unwrap()).collect();
    let refused = strangers.iter().rev().take(5).filter(|stream| {
        let mut stream = *stream;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        matches!(stream.read(&mut [0; 1]), Ok(0)) || stream.take_error().is_ok_and(|error| error.is_some())
    });
    assert_eq!(refused.count(), 5, "strangers have few places");
}

#[test]
fn values_of_attributes_and_open_files_are_bounded() {
    let (_running, mut client) = start();
    client.create(0, 1, "f").unwrap();
    let names = |newfid| Txattrwalk { fid: 1, newfid, name: text("") };
    let refused = (1000..2000).find(|&fid| client.call(names(fid)).is_err()).unwrap();
    assert_eq!(client.call(names(refused)), Err(23));
    client.clunk(1000).unwrap();
    assert!(client.call(names(refused)).is_ok(), "there is room again");
    let mut open = |fid| {
        client.walk(0, fid, &["f"]).unwrap();
        client.call(Tlopen { fid, flags: 0 })
    };
    let refused = (10_000..40_000).map(&mut open).find(Result::is_err);
    assert_eq!(refused, Some(Err(24)));
}

/// Random fields of random kinds, most of them about few fids and names, so that many requests do something.
#[test]
fn sessions_of_random_requests_end_and_leave_nothing() {
    let runtime = std::sync::Arc::new(outrigger_runtime::Threads::new());
    for seed in 1..=300_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let dialect = [Dialect::Linux, Dialect::Plain, Dialect::Unix][random(3) as usize];
        let version = Tversion { msize: 1 << 16, version: text(dialect.name()) };
        let mut sent = Request::from(version).encode(NO_TAG, dialect).to_vec();
        let attach = Tattach { fid: 0, afid: NO_FID, uname: text(""), aname: text(""), n_uname: Some(0) };
        sent.extend(Request::from(attach).encode(0, dialect));
        for tag in 1..200_u16 {
            let kind = (random(64) * 2) as u8;
            let mut fields = Vec::new();
            for _ in 0..random(8) {
                match random(4) {
                    0 | 1 => fields.extend((random(6) as u32).to_le_bytes()),
                    2 => fields.extend([1, 0, b'a' + random(3) as u8]),
                    _ => fields.extend(random(u64::MAX).to_le_bytes()),
                }
            }
            // Only the first message is a Tversion: another one would wait for all before it.
            let kind = if kind == 100 { 110 } else { kind };
            sent.extend(((HEAD + fields.len()) as u32).to_le_bytes());
            sent.push(kind);
            sent.extend(tag.to_le_bytes());
            sent.extend(fields);
        }
        runtime.handle().block_on(async {
            let tree = outrigger_door_ninep::Tree {
                name: "/".to_owned(),
                service: checked(mem()),
                callers: callers(),
            };
            let users = std::sync::Arc::new(outrigger_door_ninep::NoUsers);
            let server =
                outrigger_door_ninep::Server::on(outrigger_door_ninep::Listener::None, vec![tree], users);
            let server = server.unwrap();
            let (mut near, far) = tokio::io::duplex(1 << 20);
            let (from, to) = tokio::io::split(far);
            let talk = server.converse(from, to);
            let ask = async {
                use tokio::io::{AsyncReadExt, AsyncWriteExt};
                near.write_all(&sent).await.unwrap();
                near.shutdown().await.unwrap();
                let mut replies = Vec::new();
                near.read_to_end(&mut replies).await.unwrap();
                let mut count = 0;
                let mut rest = &replies[..];
                while let Some(len) = frame_len(rest, 1 << 16).unwrap() {
                    rest = &rest[len..];
                    count += 1;
                }
                assert_eq!((count, rest.len()), (201, 0), "seed {seed}: one reply for each request");
            };
            tokio::join!(talk, ask);
        });
    }
}
