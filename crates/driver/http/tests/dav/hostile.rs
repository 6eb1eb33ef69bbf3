// SPDX-License-Identifier: MIT OR Apache-2.0
//! WebDAV servers that refuse, lie, or do something and lose the answer: each ends in a clear error, or in what was asked for.

use crate::support::{client, names, read, walk};
use outrigger_client::{Client, Inode};
use outrigger_core::ops::{OpenFlags, RenameFlags, StatFs};
use outrigger_core::{Errno, Name, Node, Result, lock};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A server with files that were put, and what it was asked.
#[derive(Default)]
struct Server {
    files: Mutex<HashMap<String, Vec<u8>>>,
    asked: Mutex<Vec<String>>,
}

/// Starts one, with a client.
fn start(options: &[(&str, &str)]) -> (Arc<Server>, Client) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = Arc::new(Server::default());
    let all = Arc::clone(&server);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let all = Arc::clone(&all);
            // Clients end connections as they like.
            thread::spawn(move || converse(stream, &all));
        }
    });
    (server, client(&format!("dav://127.0.0.1:{port}"), options, None).expect("connected"))
}

fn converse(stream: TcpStream, server: &Server) -> Option<()> {
    let (mut from, mut stream) = (BufReader::new(stream.try_clone().ok()?), stream);
    loop {
        let head: Vec<String> =
            from.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let mut words = head.first()?.split(' ');
        let (method, path) = (words.next()?, words.next()?.to_owned());
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut content = vec![0; length.unwrap_or(0)];
        from.read_exact(&mut content).ok()?;
        lock(&server.asked).push(format!("{method} {path}"));
        let (status, fields, body) = server.answer((method, &path), &head, content)?;
        let length = if fields.contains("Content-Length") {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        stream.write_all(format!("HTTP/1.1 {status} x\r\n{fields}{length}\r\n").as_bytes()).ok()?;
        if method != "HEAD" {
            stream.write_all(&body).ok()?;
        }
    }
}

/// A Multi-Status with these responses.
fn multistatus(responses: &str) -> (u16, String, Vec<u8>) {
    let body = format!("<d:multistatus xmlns:d=\"DAV:\">{responses}</d:multistatus>");
    (207, String::new(), body.into_bytes())
}

/// The response for a file of this content, with a tag.
fn tagged(href: &str, content: &[u8]) -> String {
    let tag = content.first().map_or(0, |byte| *byte);
    let property = format!("<d:resourcetype/><d:getetag>\"{tag}\"</d:getetag>");
    resource(href, Some(content.len())).replace("<d:resourcetype/>", &property)
}

/// The response for a file of this size, or a directory.
fn resource(href: &str, size: Option<usize>) -> String {
    let what = match size {
        Some(size) => format!("<d:resourcetype/><d:getcontentlength>{size}</d:getcontentlength>"),
        None => "<d:resourcetype><d:collection/></d:resourcetype><d:quota-available-bytes>8192000</d:quota-available-bytes>".to_owned(),
    };
    format!(
        "<d:response><d:href>{href}</d:href><d:propstat><d:prop>{what}</d:prop><d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response>"
    )
}

fn failed(href: &str, status: u16) -> String {
    format!("<d:response><d:href>{href}</d:href><d:status>HTTP/1.1 {status} x</d:status></d:response>")
}

impl Server {
    /// The answer of servers that there are; the outer `None` for another request.
    fn peculiar(
        &self,
        (method, path): (&str, &str),
        head: &[String],
        content: &[u8],
    ) -> Option<Option<(u16, String, Vec<u8>)>> {
        let field = |name: &str| head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let plain = |status| Some((status, String::new(), Vec::new()));
        let store = |content: &[u8]| drop(lock(&self.files).insert(path.to_owned(), content.to_vec()));
        let stored = lock(&self.files).get(path).cloned();
        Some(match (method, path) {
            ("PROPFIND", "/untold" | "/from" | "/to") => {
                stored.map_or_else(|| plain(404), |stored| Some(multistatus(&tagged(path, &stored))))
            }
            ("GET", "/untold") => {
                let (stored, range) = (stored?, field("range")?.strip_prefix("bytes=")?.split_once('-')?);
                let (first, last): (usize, usize) = (range.0.parse().ok()?, range.1.parse().ok()?);
                let last = last.min(stored.len() - 1);
                let place = format!("Content-Range: bytes {first}-{last}/{}\r\n", stored.len());
                Some((206, place, stored[first..=last].to_vec()))
            }
            // Tags in this field are those of locks, and none fits.
            ("MOVE", "/from") if field("if").is_some() || field("overwrite") == Some("F") => plain(412),
            ("MOVE", "/from") => {
                let moved = lock(&self.files).remove("/from")?;
                lock(&self.files).insert("/to".to_owned(), moved);
                plain(204)
            }
            ("PUT", "/half") => {
                store(&content[..content.len() / 2]);
                plain(201)
            }
            ("PUT", "/nothing") => plain(201),
            ("PUT", "/any") => {
                store(content);
                plain(201)
            }
            ("PUT", "/empty") => {
                store(content);
                plain(if field("content-length") == Some("0") { 201 } else { 500 })
            }
            _ => return None,
        })
    }

    fn answer(
        &self,
        (method, path): (&str, &str),
        head: &[String],
        content: Vec<u8>,
    ) -> Option<(u16, String, Vec<u8>)> {
        if let Some(answer) = self.peculiar((method, path), head, &content) {
            return answer;
        }
        let plain = |status| Some((status, String::new(), Vec::new()));
        let in_path = path.rsplit('-').next().and_then(|status| status.trim_matches('/').parse().ok());
        let stored = lock(&self.files).get(path).cloned();
        match (method, path) {
            ("PROPFIND", "/html") => Some((200, "Content-Type: text/html\r\n".into(), b"<p>".to_vec())),
            ("PROPFIND", "/bomb") => {
                Some((207, String::new(), b"<!DOCTYPE x [<!ENTITY a \"a\">]><x/>".to_vec()))
            }
            ("PROPFIND", "/other") => Some(multistatus(&resource("http://other/other", Some(1)))),
            ("PROPFIND", "/dir-endless/") => {
                Some(multistatus(&resource("/dir-endless/x", Some(1)).repeat(10_000)))
            }
            ("PROPFIND", "/dir-names/") => {
                let odd =
                    ["/dir-names/", "/dir-names/..%2f..%2fetc", "/dir-names/good", "//other/dir-names/x"];
                Some(multistatus(&odd.map(|href| resource(href, None)).concat()))
            }
            ("PROPFIND", "/dir-listed/") => Some(multistatus(
                &[
                    resource(path, None),
                    resource("/dir-listed/file", Some(3)),
                    failed("/dir-listed/x-404", 404),
                ]
                .concat(),
            )),
            ("PROPFIND", "/dir-listed/x-404") => plain(404),
            ("PROPFIND", "/away") => {
                Some((302, "Location: http://u:p@127.0.0.2/?secret\r\n".into(), Vec::new()))
            }
            ("PROPFIND", _) => match stored {
                Some(stored) => Some(multistatus(&resource(path, Some(stored.len())))),
                None if path.contains("dir") => Some(multistatus(&resource(path, None))),
                None if path.starts_with("/file") => Some(multistatus(&resource(path, Some(3)))),
                None => plain(404),
            },
            ("DELETE" | "MOVE", _) if path.contains("multi") => Some(multistatus(&failed(path, in_path?))),
            ("DELETE", "/file-away") => Some((307, "Location: /file-victim\r\n".into(), Vec::new())),
            ("PUT", "/answer-lost") => {
                lock(&self.files).insert(path.to_owned(), content);
                None
            }
            ("PUT", "/never") => None,
            ("GET", _) if stored.is_some() => {
                let (body, tag) = (stored?, "ETag: \"1\"\r\n".to_owned());
                let last = body.len().checked_sub(1)?;
                Some((206, format!("{tag}Content-Range: bytes 0-{last}/{}\r\n", body.len()), body))
            }
            ("HEAD", _) => plain(200),
            _ => plain(in_path.unwrap_or(500)),
        }
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn root(client: &Client) -> Inode {
    client.root().expect("a root")
}

fn put(client: &Client, text: &str) -> Result<()> {
    let flags = OpenFlags::TRUNC | OpenFlags::WRITE_ONLY;
    let (_, file) = root(client).create(&name(text), 0o644, flags)?;
    file.write_all_at(0, b"content".to_vec().into())?;
    file.close()
}

#[test]
fn refusals_have_the_error_that_they_mean_and_say_so() {
    let (_server, client) = start(&[]);
    for (status, errno) in [
        (401, Errno::EACCES),
        (403, Errno::EACCES),
        (405, Errno::EOPNOTSUPP),
        (409, Errno::ENOENT),
        (412, Errno::EEXIST),
        (413, Errno::EFBIG),
        (423, Errno::EBUSY),
        (500, Errno::EIO),
        (503, Errno::EAGAIN),
        (507, Errno::ENOSPC),
    ] {
        let error = put(&client, &format!("put-{status}")).expect_err("refused");
        assert_eq!(error.errno, errno, "{status}: {error}");
        let said = error.to_string();
        let reason = if status == 412 { "another client has made" } else { &status.to_string() };
        assert!(said.contains(reason), "{said}");
    }
    assert_eq!(root(&client).mkdir(&name("new-405"), 0o755).expect_err("there").errno, Errno::EEXIST);
    assert_eq!(root(&client).mkdir(&name("new-409"), 0o755).expect_err("no parent").errno, Errno::ENOENT);
}

#[test]
fn a_failure_inside_of_an_answer_is_a_failure() {
    let (_server, client) = start(&[]);
    for (text, errno) in [
        ("file-multi-423", Errno::EBUSY),
        ("file-multi-403", Errno::EACCES),
        ("file-multi-507", Errno::ENOSPC),
    ] {
        assert_eq!(root(&client).unlink(&name(text)).expect_err("not done").errno, errno);
        let moved = root(&client).rename(&name(text), &root(&client), &name("to"), RenameFlags::NOREPLACE);
        assert_eq!(moved.expect_err("not done").errno, errno);
    }
    let error = root(&client).rmdir(&name("dir-multi-424")).expect_err("not done");
    assert!(error.to_string().contains("424"), "{error}");
}

#[test]
fn a_rename_that_is_refused_does_not_remove_the_directory_that_has_the_name() {
    let (server, client) = start(&[]);
    let root = root(&client);
    let moved = root.rename(&name("dir-multi-423"), &root, &name("dir-there"), RenameFlags::empty());
    assert_eq!(moved.expect_err("not done").errno, Errno::EBUSY);
    assert!(!lock(&server.asked).iter().any(|asked| asked.starts_with("DELETE")));
}

#[test]
fn answers_that_make_no_sense_are_errors_and_no_files() {
    let (_server, client) = start(&[("max_listing", "1m"), ("timeout", "20")]);
    for (path, errno, why) in [
        ("/html", Errno::EOPNOTSUPP, "no WebDAV at this place"),
        ("/html", Errno::EOPNOTSUPP, "run --map /NAME=dav://HOST/PATH"),
        ("/bomb", Errno::EPROTO, "document type"),
        ("/other", Errno::EPROTO, "http://other/other"),
        ("/away", Errno::EIO, "it leads to http://127.0.0.2/"),
    ] {
        let error = walk(&client, path).expect_err(path);
        let said = error.to_string();
        assert!(error.errno == errno && said.contains(why) && !said.contains("secret"), "{path}: {said}");
    }
    for (path, errno, why) in
        [("/dir-names", Errno::EIO, "..%2f..%2fetc"), ("/dir-endless", Errno::EFBIG, "max_listing")]
    {
        let error = names(&client, path).expect_err(path);
        assert!(error.errno == errno && error.to_string().contains(why), "{path}: {error}");
    }
    let shown: Vec<_> = walk(&client, "/dir-names").expect("there").entries().expect("listed").collect();
    let shown: Vec<_> = shown.into_iter().flatten().map(|(name, _)| name.to_string()).collect();
    assert_eq!(shown, ["good"]);
}

#[test]
fn what_is_done_elsewhere_is_not_done() {
    let (server, client) = start(&[]);
    let error = root(&client).unlink(&name("file-away")).expect_err("it leads elsewhere");
    assert!(error.errno == Errno::EIO && error.to_string().contains("file-victim"), "{error}");
    assert!(!lock(&server.asked).iter().any(|asked| asked == "DELETE /file-victim"));
}

#[test]
fn a_file_whose_answer_was_lost_is_stored_once_and_one_that_was_not_is_an_error() {
    let (server, client) = start(&[]);
    put(&client, "answer-lost").expect("the server has it");
    assert_eq!(read(&client, "/answer-lost").expect("read"), b"content");
    let count = lock(&server.asked).iter().filter(|asked| *asked == "PUT /answer-lost").count();
    assert_eq!(count, 1);
    assert_eq!(put(&client, "never").expect_err("lost").errno, Errno::EIO);
}

/// As nginx does, which does not look at `If-None-Match`.
#[test]
fn a_new_file_does_not_replace_one_of_others_at_a_server_that_stores_whatever_it_gets() {
    let (server, client) = start(&[]);
    put(&client, "any").expect("stored");
    lock(&server.files).clear();
    let flags = OpenFlags::TRUNC | OpenFlags::WRITE_ONLY;
    let (_, file) = root(&client).create(&name("any"), 0o644, flags).expect("created");
    file.write_all_at(0, b"ours".to_vec().into()).expect("staged");
    lock(&server.files).insert("/any".to_owned(), b"of another client".to_vec());
    assert_eq!(file.close().expect_err("it is there").errno, Errno::EEXIST);
    assert_eq!(lock(&server.files)["/any"], b"of another client");
}

#[test]
fn the_space_that_a_server_tells_is_shown() {
    let (_server, client) = start(&[]);
    let dir = walk(&client, "/dir").expect("a directory");
    let space = client.call(StatFs { node: dir.node() }).expect("answered");
    assert_eq!((space.bavail, space.frsize), (2000, 4096));
    let space = client.call(StatFs { node: Node::ROOT }).expect("answered");
    assert!(space.bavail > 1 << 20, "not known");
}

#[test]
fn what_the_server_has_not_stored_is_an_error() {
    let (_server, client) = start(&[]);
    for (text, why) in
        [("half", "has 3 bytes of it, 7 were sent"), ("nothing", "has none"), ("later-202", "202")]
    {
        let error = put(&client, text).expect_err("it is not stored");
        assert!(error.errno == Errno::EIO && error.to_string().contains(why), "{text}: {error}");
    }
}

#[test]
fn a_file_replaces_another_where_the_server_knows_tags_of_locks_only() {
    let (server, client) = start(&[]);
    lock(&server.files).extend([("/from".to_owned(), b"new".to_vec()), ("/to".to_owned(), b"old".to_vec())]);
    let root = root(&client);
    root.rename(&name("from"), &root, &name("to"), RenameFlags::empty()).expect("replaced");
    assert_eq!(*lock(&server.files), HashMap::from([("/to".to_owned(), b"new".to_vec())]));
}

#[test]
fn content_of_two_versions_is_not_mixed_where_reading_tells_none() {
    let (server, client) = start(&[]);
    let store = |byte: u8| drop(lock(&server.files).insert("/untold".to_owned(), vec![byte; 1 << 20]));
    store(b'a');
    let open = || walk(&client, "/untold").expect("there").open(OpenFlags::empty()).expect("opened");
    let file = open();
    assert_eq!(file.read_at(0, 10).expect("read"), b"aaaaaaaaaa"[..]);
    store(b'b');
    let read = file.read_at(700_000, 10);
    assert!(read.as_ref().is_err_and(|error| error.errno == Errno::ESTALE), "{read:?}");
    assert_eq!(open().read_at(700_000, 10).expect("read"), b"bbbbbbbbbb"[..]);
}

#[test]
fn a_file_of_which_only_listing_tells_the_version_is_read_by_all_connections_at_once() {
    let (server, client) = start(&[("connections", "1"), ("timeout", "2")]);
    lock(&server.files).insert("/untold".to_owned(), vec![b'a'; 3 << 20]);
    assert!(read(&client, "/untold").expect("read") == vec![b'a'; 3 << 20]);
}

#[test]
fn a_member_of_which_the_server_says_that_it_is_not_there_is_an_error() {
    let (_server, client) = start(&[]);
    let error = names(&client, "/dir-listed").expect_err("one is not there");
    assert_eq!(error.errno, Errno::ENOENT, "{error}");
}

#[test]
fn an_empty_file_is_sent_with_its_length() {
    let (server, client) = start(&[]);
    let (_, file) = root(&client).create(&name("empty"), 0o644, OpenFlags::WRITE_ONLY).expect("made");
    file.close().expect("stored");
    assert_eq!(lock(&server.files)["/empty"], b"");
}
