// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners that have other numbers here.

use crate::line::{Fate, Line};
use crate::server::{File, Store};
use crate::user::User;
use outrigger_core::Node;
use outrigger_proto_sftp::{Attrs, Owner, Reply, Request};
use rustix::process::geteuid;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The protocol sets user and group together. With `idmap=user`, a user at the server who has the number of the user here was
/// taken for that one, and the file given to who is that at the server.
#[tokio::test(start_paused = true)]
async fn a_new_group_leaves_a_file_to_its_user_though_the_user_here_has_that_number() {
    let store = Store::new();
    store.state().files.insert(b"/home/file".to_vec(), File::new(vec![5]));
    let line = Line::new(&store, Duration::from_millis(5));
    let user = User::new(line.connect(&[("idmap", "user")]).await.expect("connected"));
    let here = geteuid().as_raw();
    let set = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&set);
    line.decide(move |_, request| match request {
        Request::SetStat { attrs, .. } => {
            *seen.lock().expect("a lock") = attrs.owner;
            Fate::Answered
        }
        Request::LStat { .. } => {
            let owner = Some(Owner { uid: here, gid: 7 });
            Fate::Instead(Reply::Attrs(Attrs { owner, permissions: Some(0o100_644), ..Attrs::NONE }))
        }
        _ => Fate::Answered,
    });
    let file = user.lookup(Node::ROOT, "file").await.expect("it is there");
    user.set_group(file.node, 8).await.expect("it is set");
    assert_eq!(*set.lock().expect("a lock"), Some(Owner { uid: here, gid: 8 }));
}
