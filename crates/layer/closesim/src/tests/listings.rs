// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories.

use super::*;
use outrigger_core::reply::{COOKIE_MAX, Dirent, DirentPlus, Dirents, DirentsPlus};

/// A driver whose cookies count names, from the state of the directory when that was opened: two at a time.
struct Directory {
    sim: Arc<Sim>,
    driver: Arc<Scripted>,
    names: Arc<Mutex<Vec<&'static str>>>,
    control: Control,
    top: Arc<dyn Service>,
}

/// A layer that says what the cookies of the driver are good for.
struct Says(bool);

impl Layer for Says {
    fn place(&self) -> Place {
        Place::anywhere("says")
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { cookies_by_name: self.0, ..below }
    }
}

impl Directory {
    fn new(cookies_by_name: bool) -> Self {
        let sim = Sim::new(3);
        let names = Arc::new(Mutex::new(vec!["a", "b", "c", "d", "e"]));
        let (all, open) = (Arc::clone(&names), Mutex::new(BTreeMap::new()));
        let driver = Scripted::new(&sim, move |_, request| {
            let mut open = lock(&open);
            let next = open.len() as u64 + 1;
            Step::Now(match request {
                Request::OpenDir(_) => {
                    open.insert(next, lock(&all).clone());
                    Reply::Opened(Opened { handle: Handle(next), ..Opened::default() })
                }
                Request::ReadDir(op) => {
                    let names = &open[&op.handle.0];
                    let from = names.iter().enumerate().skip(op.cookie as usize).take(2);
                    let dirent = |(place, text): (usize, &&str)| Dirent {
                        ino: 1,
                        cookie: place as u64 + 1,
                        kind: None,
                        name: Name::try_from(*text).expect("a good name"),
                    };
                    let entries: Vec<Dirent> = from.map(dirent).collect();
                    let eof = entries.last().is_none_or(|last| last.cookie as usize == names.len());
                    Reply::Dirents(Dirents { entries, eof })
                }
                Request::ReadDirPlus(_) => {
                    let entry = DirentPlus { cookie: 1, name: name(), entry: entry(FILE) };
                    Reply::DirentsPlus(DirentsPlus { entries: vec![entry], eof: true })
                }
                _ => Reply::Done(()),
            })
        });
        let layer = CloseSim::new(Options::default(), sim.clone());
        let control = layer.control();
        let stack =
            Stack::new(driver.clone()).push(Says(cookies_by_name)).and_then(|stack| stack.push(layer));
        Directory { sim, driver, names, control, top: stack.expect("any order is good").service() }
    }

    fn ask(&self, cred: Credentials, request: impl Into<Request>) -> Reply {
        let (top, cx, request) = (Arc::clone(&self.top), Cx::new(7, cred, "test"), request.into());
        self.sim.block_on(async move { top.call(&cx, request).await })
    }

    /// The names and cookies of a piece.
    fn list(&self, cookie: u64) -> Result<Vec<(String, u64)>, Errno> {
        match self.ask(USER, ReadDir { node: Node::ROOT, handle: Handle::NONE, cookie, size: 100 }) {
            Reply::Dirents(piece) => {
                Ok(piece.entries.into_iter().map(|dirent| (dirent.name.to_string(), dirent.cookie)).collect())
            }
            Reply::Error(error) => Err(error.errno),
            other => panic!("{other:?}"),
        }
    }

    fn names(&self, cookie: u64) -> Result<String, Errno> {
        self.list(cookie).map(|names| names.into_iter().map(|(name, _)| name).collect())
    }

    fn last(&self, cookie: u64) -> u64 {
        self.list(cookie).ok().and_then(|piece| piece.last().map(|(_, cookie)| *cookie)).expect("a piece")
    }

    fn opened(&self) -> usize {
        self.driver.started().iter().filter(|(_, request)| matches!(request, Request::OpenDir(_))).count()
    }

    fn finish(&self) {
        assert_eq!(self.sim.run(), 0);
        assert!(lock(&self.control.0.table).is_empty());
        let closed = |(_, request): &(u64, Request)| matches!(request, Request::ReleaseDir(_));
        assert_eq!(self.driver.started().iter().filter(|asked| closed(asked)).count(), self.opened());
    }
}

#[test]
fn a_listing_goes_on_by_any_cookie_that_was_handed_out() {
    let dir = Directory::new(false);
    let first = dir.list(0).expect("a piece");
    let second = dir.list(first[1].1).expect("a piece");
    assert_eq!(dir.names(second[1].1).as_deref(), Ok("e"));
    // A client that has taken less than it got, or asks again.
    assert_eq!(dir.names(first[0].1).as_deref(), Ok("bc"));
    assert_eq!(dir.names(first[1].1).as_deref(), Ok("cd"));
    assert_eq!(dir.opened(), 1);
    let all: Vec<u64> = first.iter().chain(&second).map(|(_, cookie)| *cookie).collect();
    assert!(all.iter().all(|cookie| (1..COOKIE_MAX).contains(cookie)), "{all:?}");
    dir.finish();
}

#[test]
fn listings_at_the_same_time_do_not_mix() {
    let dir = Directory::new(false);
    let one = dir.last(0);
    lock(&dir.names).drain(..2);
    let other = dir.last(0);
    assert_ne!(one, other);
    assert_eq!(dir.names(one).as_deref(), Ok("cd"), "where the name after b was");
    assert_eq!(dir.names(other).as_deref(), Ok("e"));
    dir.finish();
}

#[test]
fn a_cookie_of_a_directory_that_was_closed_is_stale_rather_than_another_place() {
    let dir = Directory::new(false);
    let cookie = dir.last(0);
    dir.finish();
    assert_eq!(dir.names(cookie), Err(Errno::ESTALE));
    dir.last(0);
    assert_eq!(dir.names(cookie), Err(Errno::ESTALE), "also when the directory is open again");
    for made_up in [1, 2, COOKIE_MAX, u64::MAX] {
        assert_eq!(dir.names(made_up), Err(Errno::ESTALE));
    }
    let next = ReadDir { node: Node::ROOT, handle: Handle::NONE, cookie: dir.last(0), size: 100 };
    let reply = dir.ask(Credentials::ROOT, next);
    assert_eq!(reply.error().map(|error| error.errno), Some(Errno::ESTALE), "of another caller");
    dir.finish();
}

#[test]
fn a_cookie_that_follows_from_its_name_leads_to_the_same_place_after_a_close() {
    let dir = Directory::new(true);
    let cookie = dir.last(0);
    assert_eq!(cookie, 2, "that of the tree");
    dir.finish();
    assert_eq!(dir.names(cookie).as_deref(), Ok("cd"));
    assert_eq!(dir.names(4).as_deref(), Ok("e"));
    assert_eq!(dir.opened(), 2);
    lock(&dir.names)[2] = "x";
    assert_eq!(dir.names(0).as_deref(), Ok("ab"));
    assert_eq!(dir.names(cookie).as_deref(), Ok("xd"), "what is there since the listing began");
    dir.finish();
}

#[test]
fn attributes_come_with_names_and_a_directory_is_synced() {
    let dir = Directory::new(false);
    let (node, handle) = (Node::ROOT, Handle::NONE);
    let reply = dir.ask(USER, ReadDirPlus { node, handle, cookie: 0, size: 500 });
    let Reply::DirentsPlus(piece) = reply else { panic!("{reply:?}") };
    assert!(piece.entries[0].cookie > 1 && piece.entries[0].entry.node == FILE);
    assert_eq!(dir.ask(USER, FSyncDir { node, handle, data_only: false }), Reply::Done(()));
    assert_eq!(dir.opened(), 1, "the open directory serves for that");
    dir.finish();
}
