// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that mean harm, or have gone mad: each ends in a clear error in time, or in the right content.

mod support;

use outrigger_core::ops::OpenFlags;
use outrigger_core::{Errno, Error, lock};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use support::{client, content, names, read, walk};

const SIZE: usize = 1_000_000;

/// A request: the line, and the fields.
#[derive(Debug, Clone, Default)]
struct Asked {
    method: String,
    path: String,
    fields: Vec<String>,
}

impl Asked {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The last byte asked for, wherever the file ends.
    fn last_asked(&self) -> Option<usize> {
        self.field("range")?.rsplit('-').next()?.parse().ok()
    }

    /// The first and the last byte asked for.
    fn range(&self) -> Option<(usize, usize)> {
        let (first, last) = self.field("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let last: usize = last.parse().ok()?;
        Some((first.parse().ok()?, last.min(SIZE - 1)))
    }
}

/// A server, and what it was asked.
struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, asked) = (listener.local_addr().expect("an address").port(), Arc::default());
        let all = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                // Clients end connections as they like.
                thread::spawn(move || converse(stream, &all));
            }
        });
        Server { port, asked }
    }

    fn client(&self, options: &[(&str, &str)]) -> outrigger_client::Client {
        client(&format!("alice:secret@127.0.0.1:{}", self.port), options, None).expect("connected")
    }
}

fn converse(stream: TcpStream, all: &Mutex<Vec<Asked>>) -> Option<()> {
    let (mut lines, mut stream) = (BufReader::new(stream.try_clone().ok()?).lines(), stream);
    loop {
        let head: Vec<String> =
            lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let mut words = head.first()?.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let asked = Asked { method, path, fields: head[1..].to_vec() };
        lock(all).push(asked.clone());
        let is_like =
            |before: &&Asked| before.path == asked.path && (before.method == "GET" || asked.path == "/busy");
        let count = lock(all).iter().filter(is_like).count();
        answer(&mut stream, &asked, count)?;
    }
}

/// Sends an answer with these fields; to HEAD without content.
fn send(stream: &mut TcpStream, asked: &Asked, head: &str, content: &[u8]) -> Option<()> {
    let head = head.replace('|', "\r\n");
    stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).ok()?;
    if asked.method != "HEAD" { stream.write_all(content).ok() } else { Some(()) }
}

/// The part of the content that was asked for, as `head` describes it with `FIRST`, `LAST` and `COUNT`.
fn send_part(stream: &mut TcpStream, asked: &Asked, head: &str) -> Option<()> {
    let Some((first, last)) = asked.range() else {
        return send(stream, asked, &format!("200 OK|Content-Length: {SIZE}|ETag: \"1\""), &content(SIZE));
    };
    let head = head.replace("FIRST", &first.to_string()).replace("LAST", &last.to_string());
    let head = head.replace("COUNT", &(last + 1 - first).to_string());
    send(stream, asked, &head, &content(SIZE)[first..=last])
}

const PART: &str =
    "206 Partial Content|Content-Length: COUNT|Content-Range: bytes FIRST-LAST/1000000|ETag: \"1\"";

/// Servers that there are: what they answer; the outer `None` for another path.
fn peculiar(stream: &mut TcpStream, asked: &Asked, count: usize) -> Option<Option<()>> {
    let coded = |coding: &str| format!("{PART}|Accept-Ranges: bytes|Content-Encoding: {coding}");
    let is_head = asked.method == "HEAD";
    let whole = |more: &str| format!("200 OK|Content-Length: {SIZE}|ETag: \"1\"{more}");
    Some(match asked.path.as_str() {
        "/mute" => Some(()),
        "/untold-size" if is_head => send(stream, asked, "200 OK", b""),
        "/untold-size" => send_part(stream, asked, PART),
        "/busy" if count <= 3 => send(stream, asked, "503 Busy|Content-Length: 0|Retry-After: 0", b""),
        "/busy-for-long" => {
            send(stream, asked, &format!("429 Too Many|Content-Length: 0|Retry-After: {}", u64::MAX), b"")
        }
        "/busy" if is_head => send(stream, asked, &whole(""), b""),
        "/busy" => send_part(stream, asked, PART),
        "/stored.tar.gz" | "/flips.gz" if is_head => {
            send(stream, asked, &whole("|Accept-Ranges: bytes|Content-Encoding: x-gzip"), b"")
        }
        "/stored.tar.gz" => send_part(stream, asked, &coded("x-gzip")),
        "/flips.gz" if count == 1 => send_part(stream, asked, &coded("x-gzip")),
        "/flips.gz" => send_part(stream, asked, PART),
        // As webfsd.
        "/strict" if is_head => send(stream, asked, &whole(""), b""),
        "/strict" if asked.last_asked().is_some_and(|last| last >= SIZE) => {
            send(stream, asked, "400 Bad Request|Content-Length: 0", b"")
        }
        "/strict" => send_part(stream, asked, PART),
        "/listed/" if count == 1 => {
            page(stream, asked, "<a href=\"good\">g</a><a href=\"missing\">m</a><a href=\"brief\">b</a>")
        }
        "/listed/" => page(stream, asked, "<a href=\"good\">g</a><a href=\"missing\">m</a>"),
        "/listed/good" => send(stream, asked, &whole(""), b""),
        "/continue" => {
            while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {}
            None
        }
        "/trickle" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nX-More: ").ok()?;
            while stream.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
            None
        }
        _ => return None,
    })
}

/// Answers as the path says; `None` ends the connection. `count` is how often its content was asked for.
fn answer(stream: &mut TcpStream, asked: &Asked, count: usize) -> Option<()> {
    if let Some(answered) = peculiar(stream, asked, count) {
        return answered;
    }
    let path = asked.path.as_str();
    match path {
        "/good" | "/cut-once" | "/changing" | "/short" | "/elsewhere-in-it" | "/no-total" | "/longer"
        | "/cut" | "/stall"
            if asked.method == "HEAD" =>
        {
            send(stream, asked, &format!("200 OK|Content-Length: {SIZE}|ETag: \"1\""), b"")
        }
        "/good" => send_part(stream, asked, PART),
        "/cut-once" if count != 2 => send_part(stream, asked, PART),
        "/cut" | "/cut-once" => {
            let (first, last) = asked.range()?;
            let head = PART.replace("FIRST", &first.to_string()).replace("LAST", &last.to_string());
            let head = head.replace("COUNT", &(last + 1 - first).to_string());
            send(stream, asked, &head, &content(SIZE)[first..first.midpoint(last)])?;
            None
        }
        "/stall" => send(
            stream,
            asked,
            "206 Partial Content|Content-Length: 100|Content-Range: bytes 0-99/1000000",
            b"half",
        ),
        "/changing" => send_part(stream, asked, &PART.replace("\"1\"", &format!("\"{count}\""))),
        "/short" => send_part(stream, asked, &PART.replace("COUNT", "10")),
        "/elsewhere-in-it" => send_part(stream, asked, &PART.replace("FIRST", "7")),
        "/no-total" => send_part(stream, asked, &PART.replace("1000000", "*")),
        "/longer" => {
            let head = "206 Partial Content|Transfer-Encoding: chunked|Content-Range: bytes 0-3/4";
            send(stream, asked, head, b"8\r\n01234567\r\n0\r\n\r\n")
        }
        "/no-head" if asked.method == "HEAD" => send(stream, asked, "405 Not Allowed|Content-Length: 0", b""),
        "/no-head" => send_part(stream, asked, PART),
        "/gzip" => send(stream, asked, "200 OK|Content-Length: 4|Content-Encoding: gzip", b"zzzz"),
        "/no-length" => send(stream, asked, "200 OK|Transfer-Encoding: chunked", b"1\r\nx\r\n0\r\n\r\n"),
        "/circle" => send(stream, asked, "302 Found|Location: /circle-2|Content-Length: 0", b""),
        "/circle-2" => send(stream, asked, "302 Found|Location: /circle|Content-Length: 0", b""),
        "/other/" => page(stream, asked, "<a href=\"x\">x</a>"),
        "/names/" => page(
            stream,
            asked,
            "<a href=\"good\">g</a><a href=\"..%2F..%2Fetc\">e</a><a href=\"../up\">u</a>",
        ),
        "/index-cut/" => {
            send(stream, asked, "200 OK|Content-Type: text/html|Connection: close", b"<a href=x>x</a>")
                .and(None)
        }
        "/closed/" => {
            let page = b"<html><a href=..>up</a></HTML>\n<!-- a comment -->\n";
            send(stream, asked, "200 OK|Content-Type: text/html|Connection: close", page).and(None)
        }
        "/text/" => send(stream, asked, "200 OK|Content-Type: text/plain|Content-Length: 1", b"x"),
        "/endless/" => {
            send(stream, asked, "200 OK|Content-Type: text/html", b"")?;
            while stream.write_all(&b"<a href=x>".repeat(1000)).is_ok() {}
            None
        }
        "/endless-head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").ok()?;
            while stream.write_all(&b"X-More: and more\r\n".repeat(1000)).is_ok() {}
            None
        }
        "/" => send(stream, asked, "200 OK|Content-Length: 0", b""),
        _ => leads(stream, asked),
    }
}

fn page(stream: &mut TcpStream, asked: &Asked, page: &str) -> Option<()> {
    let head = format!("200 OK|Content-Type: text/html; charset=utf-8|Content-Length: {}", page.len());
    send(stream, asked, &head, page.as_bytes())
}

/// Answers to paths with a number.
fn leads(stream: &mut TcpStream, asked: &Asked) -> Option<()> {
    let number = asked.path.rsplit('/').next().and_then(|word| word.parse::<u16>().ok()).unwrap_or(404);
    let head = match asked.path.rsplit_once('/')?.0 {
        "/on" => format!("302 Found|Location: /on/{}|Content-Length: 0", number + 1),
        "/port" => format!("302 Found|Location: http://127.0.0.1:{number}/good|Content-Length: 0"),
        "/status" => format!("{number} Refused|Content-Length: 0"),
        _ if matches!(
            asked.path.as_str(),
            "/names" | "/listed" | "/index-cut" | "/closed" | "/text" | "/endless"
        ) =>
        {
            format!("301 Moved|Location: {}/|Content-Length: 0", asked.path)
        }
        _ => "404 Not Found|Content-Length: 0".to_owned(),
    };
    send(stream, asked, &head, b"")
}

fn errno<T>(outcome: Result<T, Error>) -> Errno {
    outcome.err().map(|error| error.errno).expect("an error")
}

#[test]
fn content_that_is_not_what_was_asked_for_is_an_error_that_says_so() {
    let server = Server::start();
    let client = server.client(&[]);
    assert!(read(&client, "/good").expect("read") == content(SIZE));
    assert!(read(&client, "/no-head").expect("read") == content(SIZE));
    assert!(read(&client, "/cut-once").expect("read") == content(SIZE));
    for (path, errno, why) in [
        ("/cut", Errno::EIO, ""),
        ("/changing", Errno::ESTALE, "changed"),
        ("/short", Errno::EIO, "10 bytes"),
        ("/elsewhere-in-it", Errno::EIO, "not asked for"),
        ("/no-total", Errno::EIO, "does not say which"),
        ("/longer", Errno::EIO, "more of the file"),
        ("/gzip", Errno::EOPNOTSUPP, "how long"),
        ("/no-length", Errno::EOPNOTSUPP, "how long"),
    ] {
        let error = read(&client, path).expect_err(path);
        assert!(error.errno == errno && error.to_string().contains(why), "{path}: {error}");
    }
}

#[test]
fn refusals_have_their_errno_and_name_the_status() {
    let server = Server::start();
    let client = server.client(&[("timeout", "1")]);
    for (status, errno) in [
        (401, Errno::EACCES),
        (403, Errno::EACCES),
        (410, Errno::ENOENT),
        (416, Errno::EIO),
        (429, Errno::EAGAIN),
        (500, Errno::EIO),
        (503, Errno::EAGAIN),
    ] {
        let error = walk(&client, &format!("/status/{status}")).expect_err("refused");
        assert_eq!(error.errno, errno, "{status}: {error}");
        assert!(errno == Errno::ENOENT || error.to_string().contains(&status.to_string()), "{error}");
    }
}

#[test]
fn redirects_are_bounded_and_logins_go_to_no_other_server() {
    let (server, other) = (Server::start(), Server::start());
    let client = server.client(&[]);
    for (path, why) in [("/circle", "in a circle"), ("/on/1", "more than 10")] {
        let error = walk(&client, path).expect_err("refused");
        assert!(error.errno == Errno::ELOOP && error.to_string().contains(why), "{path}: {error}");
    }
    let path = format!("/port/{}", other.port);
    assert!(read(&client, &path).expect("read") == content(SIZE));
    let is_sent = |server: &Server| {
        lock(&server.asked).iter().filter(|asked| asked.field("authorization").is_some()).count()
    };
    assert_eq!((is_sent(&server), is_sent(&other)), (lock(&server.asked).len(), 0));
    assert!(lock(&other.asked).len() > 3);
}

#[test]
fn index_pages_of_hostile_servers_are_bounded_and_lead_nowhere() {
    let server = Server::start();
    let client = server.client(&[("max_listing", "1m")]);
    let error = names(&client, "/names").unwrap_err();
    assert!(error.errno == Errno::EIO && error.to_string().contains("../../etc"), "{error}");
    assert_eq!(errno(names(&client, "/endless")), Errno::EFBIG);
    let error = names(&client, "/text").unwrap_err();
    assert!(error.errno == Errno::EIO && error.to_string().contains("text/plain"), "{error}");
}

#[test]
fn an_index_that_ends_with_the_connection_is_whole_only_if_the_page_has_its_end() {
    let server = Server::start();
    let client = server.client(&[]);
    let error = names(&client, "/index-cut").unwrap_err();
    assert!(error.errno == Errno::EIO && error.to_string().contains("ends in the middle"), "{error}");
    names(&client, "/closed").expect("it has its end");
}

#[test]
fn servers_that_stop_answering_or_never_end_cost_a_deadline() {
    let server = Server::start();
    let client = server.client(&[("timeout", "1")]);
    let why = format!("http://127.0.0.1:{}: no answer within 1 s", server.port);
    for path in ["/mute", "/continue", "/trickle"] {
        let error = walk(&client, path).expect_err("no answer");
        assert!(error.errno == Errno::ETIMEDOUT && error.to_string().contains(&why), "{path}: {error}");
    }
    assert_eq!(errno(walk(&client, "/endless-head")), Errno::EIO);
    let file = walk(&client, "/stall").expect("a file").open(OpenFlags::empty()).expect("opened");
    assert_eq!(errno(file.read_at(0, 100)), Errno::ETIMEDOUT);
}

#[test]
fn a_question_about_a_file_does_not_wait_for_the_connection_that_the_first_answer_has() {
    let server = Server::start();
    let client = server.client(&[("connections", "1"), ("timeout", "2")]);
    assert!(read(&client, "/untold-size").expect("read") == content(SIZE));
}

#[test]
fn a_server_that_has_too_much_to_do_is_asked_again() {
    let server = Server::start();
    let client = server.client(&[]);
    assert!(read(&client, "/busy").expect("read") == content(SIZE));
    assert_eq!(errno(walk(&client, "/busy-for-long")), Errno::EAGAIN, "not within the time limit");
}

#[test]
fn a_file_that_is_stored_compressed_is_read_as_it_is_and_not_in_two_codings() {
    let server = Server::start();
    let client = server.client(&[]);
    assert!(read(&client, "/stored.tar.gz").expect("read") == content(SIZE));
    let error = read(&client, "/flips.gz").expect_err("another one");
    assert_eq!(error.errno, Errno::ESTALE, "{error}");
}

#[test]
fn a_file_is_read_from_a_server_that_refuses_parts_beyond_its_end() {
    let server = Server::start();
    let client = server.client(&[]);
    assert!(read(&client, "/strict").expect("read") == content(SIZE));
    let file = walk(&client, "/strict").expect("a file").open(OpenFlags::empty()).expect("opened");
    assert!(file.read_at(999_000, 5000).expect("read") == content(SIZE)[999_000..]);
    assert_eq!(file.read_at(SIZE as u64, 10).expect("the end"), b""[..]);
}

#[test]
fn what_an_index_lists_and_the_server_does_not_have_is_an_error_and_what_was_removed_is_none() {
    let server = Server::start();
    let client = server.client(&[]);
    let listed: Vec<_> = walk(&client, "/listed").expect("a directory").entries().expect("listed").collect();
    let good = listed.iter().filter(|entry| entry.is_ok()).count();
    let missing: Vec<_> = listed.iter().filter_map(|entry| entry.as_ref().err()).collect();
    let [missing] = &missing[..] else { panic!("{missing:?}") };
    assert_eq!((good, missing.error.errno), (1, Errno::ENOENT));
    assert_eq!(missing.name.as_ref().map(ToString::to_string), Some("missing".into()));
}
