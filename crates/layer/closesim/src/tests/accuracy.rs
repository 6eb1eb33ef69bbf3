// SPDX-License-Identifier: MIT OR Apache-2.0
//! When files are closed.

use super::*;
use OpCode::{FSync as Synced, Flush as Flushed, Open as Opens, Release as Closes, Write as Wrote};

#[test]
fn a_file_that_is_read_is_closed_when_it_was_not_read_for_a_while() {
    let bench = Bench::new();
    for pause in [0, 10, 29, 29] {
        bench.pass(pause);
        bench.ask(read(FILE));
    }
    bench.finish();
    let opened_and_closed: Vec<_> =
        bench.log().into_iter().filter(|(_, op, _)| matches!(op, Opens | Closes | Flushed)).collect();
    assert_eq!(opened_and_closed, [(0, Opens, 1), (98, Closes, 1)]);
}

#[test]
fn what_an_nfs_client_writes_is_stored_soon_after_its_last_write_or_commit() {
    let bench = Bench::new();
    for second in 0..4 {
        bench.ask(write(FILE));
        // Reading does not put off the moment when it is stored.
        bench.pass(second);
        bench.ask(read(FILE));
    }
    bench.ask(fsync(FILE));
    bench.pass(4);
    bench.ask(read(FILE));
    bench.pass(3);
    bench.ask(read(FILE));
    bench.finish();
    let log: Vec<_> = bench.log().into_iter().filter(|(_, op, _)| *op != OpCode::Read).collect();
    let expected = [
        (0, Opens, 1),
        (0, Wrote, 0),
        (0, Wrote, 0),
        (1, Wrote, 0),
        (3, Wrote, 0),
        (6, Synced, 0),
        (8, Flushed, 0),
        (8, Closes, 1),
        // The later reader needs a handle of its own.
        (10, Opens, 2),
        (43, Closes, 2),
    ];
    assert_eq!(log, expected);
}

#[test]
fn a_writer_is_closed_in_time_though_a_reader_opened_something_before() {
    let bench = Bench::new();
    bench.ask(read(OTHER));
    bench.pass(2);
    bench.ask(write(FILE));
    bench.pass(6);
    assert_eq!(bench.log().pop(), Some((7, Closes, 2)));
    bench.finish();
}

#[test]
fn a_request_that_takes_long_keeps_its_file_open() {
    let bench = Bench::with(|_, request| {
        let done = Reply::Count(Count(1));
        matches!(request, Request::Write(_)).then_some(Step::After(Duration::from_secs(60), done))
    });
    bench.ask(write(FILE));
    assert!(bench.ops().ends_with(&[Opens, Wrote]), "it is not closed while it is written");
    bench.finish();
    assert_eq!(bench.ops(), [Flushed, Closes]);
}

#[test]
fn a_tree_without_fsync_stores_at_close_and_so_at_the_next_fsync() {
    let bench = Bench::of(
        &Sim::new(1),
        (ALL.without(OpSet::of(&[Synced])), Options::default()),
        failing(OpCode::GetAttr, Errno::EIO),
    );
    bench.ask(write(FILE));
    bench.ask_as(Credentials::ROOT, write(FILE));
    assert_eq!(bench.ask(fsync(FILE)), Reply::Done(()));
    assert!(lock(&bench.seen).open.is_empty(), "both writers are closed when it is answered");
    bench.ask(write(FILE));
    let node = Node::ROOT;
    assert_eq!(bench.ask(SyncFs { node }), Reply::Done(()));
    assert!(lock(&bench.seen).open.is_empty());
    assert!(bench.ops().ends_with(&[Wrote, Flushed, Closes, OpCode::SyncFs]));
    bench.finish();
}

#[test]
fn fsync_reaches_every_writer_and_opens_the_file_only_if_there_is_none() {
    let bench = Bench::new();
    bench.ask(fsync(OTHER));
    assert_eq!(bench.ops(), [Opens, Synced]);
    bench.ask(write(FILE));
    bench.ask_as(Credentials::ROOT, write(FILE));
    bench.log();
    assert_eq!(bench.ask(fsync(FILE)), Reply::Done(()));
    assert_eq!(bench.ops(), [Synced, Synced]);
    bench.finish();
}

#[test]
fn a_file_that_loses_a_name_is_closed_at_once() {
    let (dir, name) = (Node::ROOT, name());
    let (to_dir, to_name, flags) = (dir, name.clone(), RenameFlags::empty());
    let replace = Rename { dir, name: name.clone(), to_dir, to_name: to_name.clone(), flags };
    let exchange = Rename { flags: RenameFlags::EXCHANGE, ..replace.clone() };
    for (request, closes) in [
        (unlink(), true),
        (RmDir { dir, name }.into(), false),
        (replace.into(), true),
        (exchange.into(), false),
    ] {
        let bench = Bench::new();
        bench.ask(read(FILE));
        bench.ask(read(OTHER));
        bench.log();
        let op = request.op();
        bench.ask(request);
        bench.pass(1);
        let found = [OpCode::Lookup, OpCode::Forget, op, Closes];
        assert_eq!(bench.ops(), if closes { &found[..] } else { &found[2..3] });
        assert_eq!(lock(&bench.seen).open.len(), if closes { 1 } else { 2 });
        bench.finish();
    }
}

#[test]
fn a_name_is_looked_up_only_while_something_is_open_and_stays_open_if_it_was_not_removed() {
    let bench = Bench::with(failing(OpCode::Unlink, Errno::EACCES));
    bench.ask(unlink());
    assert_eq!(bench.ops(), [OpCode::Unlink]);
    bench.ask(read(FILE));
    bench.ask(unlink());
    assert_eq!(lock(&bench.seen).open.len(), 1);
    bench.finish();
}

#[test]
fn the_one_that_was_unused_for_longest_is_closed_when_there_are_too_many() {
    let options = Options { max: 2, ..Options::default() };
    let bench = Bench::of(&Sim::new(1), (ALL, options), |_, _| None);
    for node in [2, 3, 2, 4, 2] {
        bench.ask(read(Node(node)));
        bench.pass(1);
    }
    let closed: Vec<_> = bench.log().into_iter().filter(|(_, op, _)| *op == Closes).collect();
    assert_eq!(closed, [(3, Closes, 2)]);
    bench.finish();
}

#[test]
fn references_that_come_back_while_a_file_is_open_are_returned_after_it_is_closed() {
    let bench = Bench::new();
    bench.ask(Forget { node: FILE, count: 1 });
    assert_eq!(bench.ops(), [OpCode::Forget]);
    bench.ask(read(FILE));
    bench.ask(Forget { node: FILE, count: 2 });
    bench.ask(Forget { node: FILE, count: 3 });
    bench.finish();
    assert_eq!(bench.ops(), [Opens, OpCode::Read, Closes, OpCode::Forget]);
    let Some((_, Request::Forget(last))) = bench.driver.started().pop() else { panic!("no forget") };
    assert_eq!((last.node, last.count), (FILE, 5));
}

#[test]
fn everything_is_closed_when_the_layer_goes() {
    let mut bench = Bench::new();
    bench.ask(read(FILE));
    bench.ask(write(OTHER));
    bench.log();
    bench.top = None;
    bench.pass(1);
    assert_eq!(bench.ops().len(), 3);
    bench.finish();
}

#[test]
fn the_end_waits_until_everything_is_closed_and_says_what_was_lost() {
    let bench = Bench::with(|_, request| {
        let lost = Reply::Error(Errno::ENOSPC.into());
        matches!(request, Request::Flush(_)).then_some(Step::After(Duration::from_secs(3), lost))
    });
    bench.ask(write(FILE));
    let control = bench.control.clone();
    let ended = bench.sim.block_on(async move { control.end().await });
    assert_eq!(ended.map_err(|error| error.errno), Err(Errno::ENOSPC));
    assert!(lock(&bench.seen).open.is_empty());
    bench.ask(read(FILE));
    bench.pass(1);
    assert!(lock(&bench.seen).open.is_empty(), "what is opened later is closed after one request");
    assert_eq!(bench.errno(fsync(FILE)), Some(Errno::ENOSPC));
    bench.finish();
}

#[test]
fn the_end_waits_for_what_is_being_opened_also_if_that_fails() {
    for reply in [Reply::Opened(Opened::default()), Reply::Error(Errno::EIO.into())] {
        let bench = Bench::with(move |_, request| {
            matches!(request, Request::Open(_)).then(|| Step::After(Duration::from_secs(9), reply.clone()))
        });
        let (top, cx) = (bench.top(), Cx::new(7, USER, "test"));
        let asked = async move { drop(top.call(&cx, read(FILE)).await) };
        Runtime::spawn(&*bench.sim, Box::pin(asked));
        bench.pass(1);
        let control = bench.control.clone();
        assert_eq!(bench.sim.block_on(async move { control.end().await }), Ok(()));
        assert!(lock(&bench.seen).open.is_empty() && bench.sim.monotonic() >= Duration::from_secs(9));
        bench.finish();
    }
}

/// A client of a server without privileges extracts an archive with read-only files.
#[test]
fn a_new_file_that_its_owner_cannot_open_is_open_for_who_made_it() {
    let bench = Bench::new();
    assert!(matches!(bench.ask(make(0o100_444)), Reply::Entry(made) if made.node == FILE));
    bench.ask(write(FILE));
    bench.ask(fsync(FILE));
    assert_eq!(bench.ops(), [OpCode::Create, Wrote, Synced], "nothing is opened");
    bench.ask_as(Credentials::new(7, 7), write(FILE));
    assert_eq!(bench.ops(), [Opens, Wrote], "another caller has to open it");
    bench.pass(6);
    assert_eq!(bench.ops(), [Flushed, Closes, Flushed, Closes]);
    for mode in [0o100_644, 0o100_600, 0o010_444] {
        bench.ask(make(mode));
        assert_eq!(bench.ops(), [OpCode::MkNod], "{mode:o}");
    }
    bench.finish();
}

#[test]
fn it_is_open_also_where_the_tree_needs_no_handles() {
    let (sim, used) = (Sim::new(1), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&used);
    let answer = move |_: &Cx, request: &Request| {
        let opened = Opened { handle: Handle(5), ..Opened::default() };
        lock(&seen).push(match request {
            Request::Write(op) => (request.op(), op.handle),
            Request::Release(op) => (request.op(), op.handle),
            _ => (request.op(), Handle::NONE),
        });
        Step::Now(match request {
            Request::Create(_) => Reply::Created(Created { entry: entry(FILE), opened }),
            Request::Write(_) => Reply::Count(Count(1)),
            _ => Reply::Done(()),
        })
    };
    let driver: Arc<dyn Service> = Arc::new(NoHandles(Scripted::with_ops(&sim, ALL, answer)));
    let layer = CloseSim::new(Options::default(), sim.clone());
    let top = Stack::new(driver).push(layer).expect("any order is good").service();
    for request in [write(FILE), make(0o100_444), write(FILE), write(OTHER)] {
        let (top, cx) = (Arc::clone(&top), Cx::new(7, USER, "test"));
        sim.block_on(async move { top.call(&cx, request).await });
    }
    sim.run();
    let (open, none) = (Handle(5), Handle::NONE);
    let expected = [
        (Wrote, none),
        (OpCode::Create, none),
        (Wrote, open),
        (Wrote, none),
        (Flushed, none),
        (Closes, open),
    ];
    assert_eq!(*lock(&used), expected);
}

/// A tree that reads and writes without handles.
struct NoHandles(Arc<Scripted>);

impl Service for NoHandles {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.0.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        Abilities { anonymous_io: true, ..self.0.abilities() }
    }
    fn attach(&self, notify: Arc<dyn outrigger_core::Notify>) {
        self.0.attach(notify);
    }
}
