// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that do not let this client in, and what it says then.

use crate::server::{Does, Server};
use crate::{connect, connect_at};
use outrigger_conformance::Subject;
use outrigger_core::Errno;
use outrigger_driver_ninep::Options;
use outrigger_proto_ninep::*;
use std::net::TcpListener;
use std::path::Path;
use std::thread;

/// A server whose only tree is `/srv/tree`, and which says that there is nothing else below `/srv`.
fn one_tree() -> Server {
    Server::start(|request| match request {
        Request::Tattach(attach) if *attach.aname != *b"/srv/tree" => {
            let is_above = b"/srv".starts_with(&attach.aname);
            Does::reply(Rlerror { ecode: if is_above { 1 } else { 2 } }.into())
        }
        _ => Does::Usual,
    })
}

#[test]
fn what_is_the_name_of_no_tree_is_no_directory() {
    let near = connect(&one_tree(), &[]).unwrap().direct;
    assert!(near.stat(Path::new("srv")).is_ok(), "there may be a tree below");
    for path in ["nosuch", "nosuch/f", "srv/nosuch", "srv/nosuch/f"] {
        assert_eq!(near.stat(Path::new(path)).err(), Some(Errno::ENOENT), "{path}");
    }
    assert!(near.stat(Path::new("srv/tree/f")).is_ok());
}

#[test]
fn a_user_who_is_not_let_in_is_named_and_one_who_reached_no_server_is_not() {
    let refused = connect(&one_tree(), &[("aname", "/other"), ("uname", "")]).err().unwrap();
    assert!(refused.to_string().contains("no tree '/other'"), "{refused}");
    let refused = connect(&one_tree(), &[("aname", "/srv"), ("uname", ""), ("uid", "7")]).err().unwrap();
    assert!(refused.to_string().contains("does not let the user 7 attach to '/srv'"), "{refused}");
    let mut options = Options::default();
    options.set("aname", "/srv").unwrap();
    let gone = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let unreached = connect_at(gone.to_string(), options).err().unwrap();
    assert!(!unreached.to_string().contains("attach"), "{unreached}");
}

#[test]
fn a_server_that_lacks_the_dialect_that_is_wanted_is_asked_what_it_speaks() {
    let server = Server::start(|request| match request {
        Request::Tversion(asked) if *asked.version != *b"9P2000.L" => {
            Does::reply(Rlerror { ecode: 5 }.into())
        }
        _ => Does::Usual,
    });
    for dialect in ["9p2000", "9p2000.u"] {
        let refused = connect(&server, &[("dialect", dialect)]).err().unwrap();
        assert_eq!(refused.errno, Errno::EPROTO);
        assert!(refused.to_string().contains("the server speaks 9P2000.L and not that"), "{refused}");
    }
}

#[test]
fn a_program_that_ends_at_once_is_named_with_its_status_and_what_it_said() {
    for (command, expected) in [
        ("sh -c 'echo no licence >&2; exit 3'", "sh: no licence (exit status: 3)"),
        ("sh -c 'exit 4'", "sh ended with exit status: 4"),
    ] {
        let mut options = Options::default();
        options.set("command", command).unwrap();
        let refused = connect_at("here".to_owned(), options).err().unwrap();
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}

#[test]
fn the_superuser_has_a_port_of_its_own_at_any_address_of_the_host() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: not root");
        return;
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let from = thread::spawn(move || listener.accept().unwrap().1.port());
    assert!(connect_at(format!("localhost:{port}"), Options::default()).is_err(), "it hangs up");
    let from = from.join().unwrap();
    assert!(from < 1024, "{from}");
}
