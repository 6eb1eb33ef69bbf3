// SPDX-License-Identifier: MIT OR Apache-2.0
//! A layer for a tree with files of many users in a user namespace that knows one.
//!
//! A kernel lets nobody write to a file or a directory of a FUSE mount whose owner its user namespace does not know: a program could
//! not even make a file in `/tmp`. So all files seem to be the user's. What may be done is decided below, where owners are
//! known (`permissions`), for who the user is outside: with all groups.

use outrigger_core::{
    Answer, Attr, Credentials, Cx, Groups, Layer, Place, Request, Service, Traverse, Visit,
};
use rustix::process::{getegid, geteuid, getgroups};
use std::fs;
use std::io;
use std::sync::Arc;

/// The layer.
#[derive(Debug)]
pub struct OneUser(Credentials);

impl OneUser {
    /// Whether programs are below a user namespace with one user: that which a user without privileges gets, or that of this process, in
    /// which the superuser may be no more than a user outside.
    #[must_use]
    pub fn is_needed() -> bool {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        !geteuid().is_root() || has_one_user(&map)
    }

    /// For the user of this process.
    ///
    /// # Errors
    /// Those of getgroups(2).
    pub fn of_process() -> io::Result<Self> {
        let groups = getgroups()?.into_iter().map(|group| group.as_raw()).collect::<Vec<_>>();
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        Ok(OneUser(Credentials { groups: Groups::of(&groups), ..Credentials::new(uid, gid) }))
    }
}

/// Whether this table of user ids, as /proc shows it, has one.
fn has_one_user(map: &str) -> bool {
    map.lines().count() == 1 && map.split_whitespace().nth(2) == Some("1")
}

/// Shows files as those of one user.
struct Own(u32, u32);

impl Visit for Own {
    fn attr(&mut self, attr: &mut Attr) {
        (attr.uid, attr.gid) = (self.0, self.1);
    }
}

impl Layer for OneUser {
    fn place(&self) -> Place {
        Place::anywhere("one-user")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let cx = Cx { cred: self.0.clone(), ..cx.clone() };
        let answer = Answer::later(async move { next.call(&cx, request).await });
        answer.map(|mut reply| {
            reply.traverse(&mut Own(self.0.uid, self.0.gid));
            reply
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::GetAttr;
    use outrigger_core::reply::{Attrs, Ttl};
    use outrigger_core::{Node, Reply, Stack};
    use outrigger_sim::{Scripted, Sim, Step};
    use std::sync::Mutex;

    #[test]
    fn a_table_with_one_line_of_one_id_has_one_user() {
        let tables = [
            ("         0       1000          1\n", true),
            ("         0          0 4294967295\n", false),
            ("0 1000 1\n1 100000 65536\n", false),
            ("", false),
        ];
        for (map, expected) in tables {
            assert_eq!(has_one_user(map), expected, "{map:?}");
        }
    }

    #[test]
    fn the_user_asks_with_all_groups_and_sees_files_of_their_own() {
        let sim = Sim::new(1);
        let asked = Arc::new(Mutex::new(None));
        let who = Arc::clone(&asked);
        let driver = Scripted::new(&sim, move |cx, _| {
            *who.lock().unwrap() = Some(cx.cred.clone());
            let attr = Attr { uid: 0, gid: 5, mode: 0o100_640, ..Attr::default() };
            Step::Now(Reply::Attrs(Attrs { attr, ttl: Ttl::NEVER }))
        });
        let user = Credentials { groups: Groups::of(&[5, 6]), ..Credentials::new(1000, 100) };
        let top = Stack::new(driver).push(OneUser(user.clone())).unwrap().service();
        let cx = Cx::new(1, Credentials::new(1000, 100), "test");
        let request = GetAttr { node: Node::ROOT, handle: None };
        let reply = sim.block_on(async move { top.call(&cx, request.into()).await });
        let Reply::Attrs(shown) = reply else { panic!("{reply:?}") };
        assert_eq!((shown.attr.uid, shown.attr.gid, shown.attr.mode), (1000, 100, 0o100_640));
        assert_eq!(asked.lock().unwrap().as_ref(), Some(&user));
    }
}
