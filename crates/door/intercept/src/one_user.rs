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
use std::io;
use std::sync::Arc;

/// The layer.
#[derive(Debug)]
pub struct OneUser(Credentials);

impl OneUser {
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
