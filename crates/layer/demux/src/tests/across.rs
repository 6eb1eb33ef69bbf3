// SPDX-License-Identifier: MIT OR Apache-2.0
//! What concerns two trees, the directories above them, and what a tree lacks.

use super::*;
use outrigger_core::OpCode;

fn rename(dir: Node, to_dir: Node) -> Rename {
    Rename { dir, name: name("x"), to_dir, to_name: name("y"), flags: RenameFlags::empty() }
}

#[test]
fn names_and_links_do_not_lead_from_one_tree_into_another() {
    let bench = Bench::new();
    let [a, b] = ["a", "b"].map(|root| bench.find(Node::ROOT, root));
    let (of_a, of_b) = (bench.find(a, "d"), bench.find(b, "d"));
    let seven = bench.find(a, "7");
    for (dir, to_dir) in [(a, b), (of_a, of_b), (of_a, b), (of_a, Node::ROOT), (Node::ROOT, a)] {
        assert_eq!(bench.errno(rename(dir, to_dir)), Some(Errno::EXDEV));
    }
    assert_eq!(bench.errno(Link { node: seven, dir: b, name: name("x") }), Some(Errno::EXDEV));
    let to_node = bench.find(b, "7");
    let (handle, offset) = (Handle(9), 0);
    let copy = CopyRange { node: seven, handle, offset, to_node, to_handle: handle, to_offset: 0, len: 1 };
    assert_eq!(bench.errno(copy), Some(Errno::EXDEV));
    assert_eq!(bench.errno(rename(a, of_a)), None);
    let asked = bench.toy(&["a"]).asked();
    let passed: Vec<&Request> = asked.iter().filter(|request| request.op() == OpCode::Rename).collect();
    assert!(
        matches!(passed[..], [Request::Rename(op)] if (op.dir, op.to_dir) == (Node::ROOT, Node(2))),
        "{passed:?}"
    );
}

#[test]
fn the_directories_above_the_trees_stay_as_they_are() {
    let bench = Bench::new();
    let g = bench.find(Node::ROOT, "g");
    for dir in [Node::ROOT, g] {
        let mkdir = MkDir { dir, name: name("x"), mode: 0o755, umask: 0, initial: None };
        assert_eq!(bench.errno(mkdir), Some(Errno::EACCES));
        assert_eq!(bench.errno(RmDir { dir, name: name("a") }), Some(Errno::EACCES));
        assert_eq!(bench.errno(rename(dir, dir)), Some(Errno::EACCES));
        assert_eq!(bench.errno(Lookup { dir, name: name("nothing") }), Some(Errno::ENOENT));
    }
}

#[test]
fn what_a_tree_lacks_does_not_take_it_from_the_others() {
    let bench = Bench::new();
    bench.add_with(
        &["a"],
        |_, request| match request.op() {
            OpCode::GetAttr | OpCode::Lookup => Step::Now(healthy(request)),
            _ => Step::Now(Reply::Error(Errno::ENOSYS.into())),
        },
        |toy| toy,
    );
    let a = bench.find(Node::ROOT, "a");
    let node = bench.find(a, "7");
    let handle = Handle(9);
    let xattr = xattr_name("user.x");
    assert_eq!(bench.errno(GetXattr { node, name: xattr }), Some(Errno::EOPNOTSUPP));
    assert_eq!(bench.errno(SyncFs { node }), Some(Errno::EOPNOTSUPP));
    let ioctl = Ioctl { node, handle, command: 1, argument: 0, input: Default::default(), output_size: 0 };
    assert_eq!(bench.errno(ioctl), Some(Errno::ENOTTY));
    assert_eq!(bench.errno(Flush { node, handle, owner: LockOwner::default() }), None);
    assert_eq!(bench.errno(FSync { node, handle, data_only: false }), None);
    let polled = bench.ask(Poll { node, handle, events: 5, key: None }).expect("possible");
    assert_eq!(polled.0, 5, "reading and writing are possible");
    let polled = bench.ask(Poll { node, handle, events: 1, key: None }).expect("possible");
    assert_eq!(polled.0, 1, "writing was not asked for");
}

#[test]
fn a_file_of_a_tree_without_opens_is_cached_as_a_kernel_does_that_does_not_ask() {
    let bench = Bench::new();
    struct Stateless(Arc<Scripted>);
    impl Service for Stateless {
        fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
            self.0.call(cx, request)
        }
        fn abilities(&self) -> Abilities {
            Abilities { stateless_files: true, stateless_dirs: true, ..self.0.abilities() }
        }
        fn attach(&self, _: Arc<dyn Notify>) {}
    }
    struct Bare(Arc<Toy>);
    impl OpenTree for Bare {
        fn location(&self) -> &str {
            "bare"
        }
        fn open(&self) -> BoxFuture<'static, Result<Hosted>> {
            let toy = Arc::clone(&self.0);
            Box::pin(async move {
                let service = Arc::new(Stateless(toy.service.clone()));
                Ok(Hosted { service, is_lasting: true, ending: Arc::new(Ends(toy)) })
            })
        }
    }
    struct One(Arc<Toy>);
    impl Names for One {
        fn find(&self, _: &[Name], _: &Name) -> Option<Found> {
            Some(Found::Tree(Arc::new(Bare(Arc::clone(&self.0)))))
        }
        fn list(&self, _: &[Name]) -> Vec<Name> {
            Vec::new()
        }
    }
    let script = |_: &Cx, request: &Request| match request {
        Request::Open(_) | Request::OpenDir(_) => Step::Now(Reply::Opened(Opened::default())),
        other => Step::Now(healthy(other)),
    };
    let toy = bench.add_with(&["a"], script, |toy| toy);
    let options = Options { idle: None, ..Options::default() };
    let demux = Arc::new(Demux::new(Arc::new(One(toy)), bench.sim.clone(), options));
    let bench = Bench { demux, ..bench };
    let a = bench.find(Node::ROOT, "a");
    let seven = bench.find(a, "7");
    assert_eq!(bench.ask(open(seven)).expect("open").how, OpenHow::KEEP_CACHE);
    let how = bench.ask(OpenDir { node: a }).expect("open").how;
    assert_eq!(how, OpenHow::KEEP_CACHE | OpenHow::CACHE_DIR);
}

#[test]
fn content_of_a_tree_with_threads_of_its_own_is_read_there() {
    let sim = Sim::new(3);
    let file: Arc<dyn outrigger_core::ReadAt> = Arc::new(bytes::Bytes::from_static(b"abc"));
    let slice = outrigger_core::FileSlice { file, offset: 1, len: 9 };
    let driver = Scripted::new(&sim, move |_, _| Step::Now(Reply::Data(Payload::File(slice.clone()))));
    let apart = Apart::new(driver, sim.clone());
    let read = Read { node: Node(7), handle: Handle(9), offset: 1, len: 9 };
    let reply = sim.block_on(async move { apart.call(&cx(), read.into()).await });
    let Reply::Data(Payload::Bytes(bytes)) = reply else { panic!("{reply:?}") };
    assert_eq!(bytes, "bc");
}
