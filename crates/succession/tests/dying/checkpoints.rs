// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints that fail: what is accepted afterwards.

use super::{World, done};
use outrigger_core::ops::{
    CopyRange, Fallocate, FallocateMode, MkNod, Open, OpenFlags, SetAttr, SyncFs, Write,
};
use outrigger_core::reply::{Entry, Opened};
use outrigger_core::{Errno, Handle, Name, Node, Payload, Reply, Request, SetAttrs};
use outrigger_succession::Served;

#[test]
fn a_checkpoint_that_fails_is_reported_and_tried_again_on_request() {
    let World { mut state, file, mut records, mut tree, .. } = World::new(0);
    let left = state.leave().expect("nothing is being done");
    records.begin().expect("memory");
    let mut served = Served::going_on((file, 0), left.into()).expect("a state");
    tree.full = true;
    let make = |number: u32| {
        let name = Name::try_from(format!("file{number}").as_str()).expect("a name");
        MkNod { dir: Node::ROOT, name, mode: 0, umask: 0, rdev: 0, initial: None }
    };
    let is_checkpoint = |(_, request): &&(u64, Request)| matches!(request, Request::SyncFs(_));
    let outcomes: Vec<_> = (0..20).map(|number| done(&mut served, &mut tree, make(number).into())).collect();
    let tried = outcomes.iter().flat_map(|(_, asked)| asked.iter().filter(is_checkpoint)).count();
    assert_eq!(tried, 1, "nothing has changed since");
    let refused = |reply: &Reply| reply.error().is_some_and(|error| error.errno == Errno::ENOSPC);
    assert!(!refused(&outcomes[0].0) && refused(&outcomes[19].0), "what can be kept is taken");
    let sync = || SyncFs { node: Node::ROOT }.into();
    assert!(refused(&done(&mut served, &mut tree, sync()).0));
    tree.full = false;
    assert!(matches!(done(&mut served, &mut tree, sync()).0, Reply::Done(())));
    assert!(matches!(done(&mut served, &mut tree, make(20).into()).0, Reply::Entry(_)));
}

/// Every request that changes the content of a file.
fn changes_of_content(node: Node, handle: Handle) -> Vec<Request> {
    let data = Payload::from(b"content".to_vec());
    let (offset, len, mode) = (0, 7, FallocateMode::empty());
    let size = |size| SetAttrs { size: Some(size), ..SetAttrs::default() };
    let cut = |handle, size| SetAttr { node, handle, attrs: size };
    vec![
        Write { node, handle, offset, data, cached: false, kill_setid: false }.into(),
        CopyRange { node, handle, offset, to_node: node, to_handle: handle, to_offset: 7, len }.into(),
        Fallocate { node, handle, offset, len, mode }.into(),
        Fallocate { node, handle, offset, len, mode: FallocateMode::COLLAPSE_RANGE }.into(),
        cut(None, size(0)).into(),
        cut(Some(handle), size(7)).into(),
        Open { node, flags: OpenFlags::READ_WRITE | OpenFlags::TRUNC }.into(),
    ]
}

#[test]
fn no_content_is_changed_after_a_failed_checkpoint_in_neither_process() {
    let World { mut state, file, mut records, mut tree, .. } = World::new(0);
    let left = state.leave().expect("nothing is being done");
    records.begin().expect("memory");
    let mut served = Served::going_on((file, 0), left.into()).expect("a state");
    let name = Name::try_from("file").expect("a name");
    let make = MkNod { dir: Node::ROOT, name, mode: 0, umask: 0, rdev: 0, initial: None };
    let (Reply::Entry(Entry { node, .. }), _) = done(&mut served, &mut tree, make.into()) else {
        panic!("no file")
    };
    let open = Open { node, flags: OpenFlags::READ_WRITE };
    let (Reply::Opened(Opened { handle, .. }), _) = done(&mut served, &mut tree, open.into()) else {
        panic!("not open")
    };
    tree.full = true;
    done(&mut served, &mut tree, SyncFs { node: Node::ROOT }.into());
    for request in changes_of_content(node, handle) {
        let (reply, asked) = done(&mut served, &mut tree, request.clone());
        assert_eq!(reply.error().map(|error| error.errno), Some(Errno::ENOSPC), "{request:?}");
        assert!(asked.is_empty(), "{request:?} has been done");
    }
    served.record(true, |_| false).expect("room");
    while let Some(event) = records.take().expect("an event or none") {
        state.follow(event);
        assert!(state.outgoing.is_empty());
    }
    assert!(state.is_idle(), "the copy waits for a reply to what was refused");
}
