// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the layer asks, remembers and gives back. Who may do what is compared with the kernel in `testing/conformance/tests/permissions.rs`.

use super::*;
use outrigger_core::ops::*;
use outrigger_core::reply::{Attrs, Count, DirentPlus, DirentsPlus, Opened};
use outrigger_core::{
    Clock, Credentials, Generation, Groups, Notice, Payload, SetAttrs, Stack, XattrName, lock,
};
use outrigger_sim::{Scripted, Sim, Step};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

const USER: u32 = 10;
const GROUP: u32 = 20;
const STRANGER: u32 = 30;

const ROOT: Node = Node::ROOT;
/// Open to members of the group.
const DIR: Node = Node(2);
/// Writable by its owner, readable by members of the group.
const FILE: Node = Node(3);
/// A directory nobody but its owner enters.
const CLOSED: Node = Node(4);
/// Readable, not searchable.
const LISTED: Node = Node(5);

struct Tree {
    sim: Arc<Sim>,
    driver: Arc<Scripted>,
    layer: Arc<dyn Service>,
    files: Arc<Mutex<HashMap<Node, Attr>>>,
}

fn attr(kind: FileKind, permissions: u32) -> Attr {
    Attr { mode: kind.bits() | permissions, uid: USER, gid: GROUP, ..Attr::default() }
}

fn entry(node: Node, attr: Attr) -> Entry {
    Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::FOREVER, attr_ttl: Ttl::FOREVER }
}

fn name(name: &str) -> Name {
    Name::try_from(name).expect("a good name")
}

/// What the driver does that has these files; names are the numbers of files.
fn answer(files: &HashMap<Node, Attr>, request: &Request) -> Reply {
    let find = |node: Node| files.get(&node).cloned();
    let named = |name: &Name| {
        let node = Node(String::from_utf8_lossy(name).parse().unwrap_or(0));
        find(node).map(|attr| entry(node, attr)).ok_or_else(|| Errno::ENOENT.into())
    };
    match request {
        Request::GetAttr(op) => {
            let attr = find(op.node).ok_or_else(|| Errno::ESTALE.into());
            attr.map(|attr| Attrs { attr, ttl: Ttl::FOREVER }).into()
        }
        Request::Lookup(op) => named(&op.name).into(),
        Request::Walk(op) => op.names.iter().map(named).collect::<Result<Vec<_>>>().into(),
        Request::Create(op) if op.flags.contains(OpenFlags::EXCL) && named(&op.name).is_ok() => {
            Reply::Error(Errno::EEXIST.into())
        }
        Request::Create(_) => {
            let entry = entry(Node(99), attr(FileKind::Regular, 0o600));
            Reply::Created(Created { entry, opened: Opened::default() })
        }
        Request::Open(_) | Request::OpenDir(_) => {
            Reply::Opened(Opened { handle: Handle(7), ..Opened::default() })
        }
        Request::ReadDirPlus(_) => {
            let list = |node: Node| DirentPlus {
                cookie: node.0,
                name: name("x"),
                entry: find(node).map_or_else(|| entry(Node(0), Attr::default()), |attr| entry(node, attr)),
            };
            Reply::DirentsPlus(DirentsPlus { entries: vec![list(DIR), list(FILE)], eof: true })
        }
        Request::Read(_) => Reply::Data(Payload::from(Vec::new())),
        Request::Write(_) => Reply::Count(Count(1)),
        Request::Access(op) => Reply::Granted(Granted(op.mask & 4)),
        Request::GetXattr(_) => Reply::Value(list().into()),
        _ => Reply::Done(()),
    }
}

/// An access list that lets everyone but the owner and the group write.
fn list() -> Vec<u8> {
    let entry = |tag: u8, permissions: u8| [tag, 0, permissions, 0, 0xff, 0xff, 0xff, 0xff];
    [&[2, 0, 0, 0][..], &entry(0x01, 6), &entry(0x04, 4), &entry(0x20, 2)].concat()
}

impl Tree {
    /// A driver that answers at once, or after a second, with a layer that `change` changes.
    fn new(later: bool, change: fn(Permissions) -> Permissions) -> Self {
        let files = [
            (ROOT, attr(FileKind::Directory, 0o755)),
            (DIR, attr(FileKind::Directory, 0o750)),
            (FILE, attr(FileKind::Regular, 0o640)),
            (CLOSED, attr(FileKind::Directory, 0o700)),
            (LISTED, attr(FileKind::Directory, 0o744)),
        ];
        let files = Arc::new(Mutex::new(HashMap::from(files)));
        let (sim, shared) = (Sim::new(1), files.clone());
        let driver = Scripted::new(&sim, move |_, request| {
            let reply = answer(&lock(&shared), request);
            if later { Step::After(Duration::from_millis(1), reply) } else { Step::Now(reply) }
        });
        let stack = Stack::new(driver.clone()).push(change(Permissions::new(sim.clone())));
        Tree { sim, driver, layer: stack.expect("any order is good").service(), files }
    }

    fn ask_as(&self, cred: Credentials, request: impl Into<Request>) -> Reply {
        let (layer, request, cx) = (self.layer.clone(), request.into(), Cx::new(1, cred, "test"));
        self.sim.block_on(async move { layer.call(&cx, request).await })
    }

    /// The error of a request of this user, who is in no group.
    fn errno(&self, uid: u32, request: impl Into<Request>) -> Option<Errno> {
        self.ask_as(Credentials::new(uid, uid), request).error().map(|error| error.errno)
    }

    /// The operations that reached the driver since this was last asked.
    fn asked(&self, before: &mut usize) -> Vec<OpCode> {
        let all = self.driver.started();
        let new = all[*before..].iter().map(|(_, request)| request.op()).collect();
        *before = all.len();
        new
    }
}

fn plain() -> Tree {
    Tree::new(false, |layer| layer)
}

fn lookup(dir: Node, file: Node) -> Lookup {
    Lookup { dir, name: name(&file.0.to_string()) }
}

fn read(handle: Handle) -> Read {
    Read { node: FILE, handle, offset: 0, len: 10 }
}

fn write(handle: Handle) -> Write {
    let data = Payload::from(vec![0]);
    Write { node: FILE, handle, offset: 0, data, cached: false, kill_setid: false }
}

fn create(file: &str, flags: OpenFlags) -> Create {
    Create { dir: DIR, name: name(file), mode: 0o600, umask: 0, flags, initial: None }
}

fn chmod(node: Node, mode: u32) -> SetAttr {
    SetAttr { node, handle: None, attrs: SetAttrs { mode: Some(mode), ..SetAttrs::default() } }
}

#[test]
fn what_entries_tell_is_not_asked_for() {
    let (tree, mut seen) = (plain(), 0);
    assert_eq!(tree.errno(USER, lookup(ROOT, DIR)), None);
    assert_eq!(tree.asked(&mut seen), [OpCode::GetAttr, OpCode::Lookup]);
    assert_eq!(tree.errno(USER, lookup(DIR, FILE)), None);
    assert_eq!(tree.errno(STRANGER, lookup(DIR, FILE)), Some(Errno::EACCES));
    assert_eq!(tree.errno(USER, Open { node: FILE, flags: OpenFlags::READ_WRITE }), None);
    assert_eq!(tree.asked(&mut seen), [OpCode::Lookup, OpCode::Open]);
}

#[test]
fn what_is_known_is_decided_without_a_future() {
    let tree = plain();
    let cx = Cx::new(1, Credentials::new(USER, USER), "test");
    for request in [Request::from(lookup(ROOT, DIR)), read(Handle::NONE).into(), chmod(FILE, 0o600).into()] {
        let answer = tree.layer.call(&cx, request);
        assert!(matches!(answer, Answer::Ready(_)), "{answer:?}");
    }
}

#[test]
fn nothing_is_asked_for_the_superuser() {
    let (tree, mut seen) = (plain(), 0);
    assert_eq!(tree.errno(0, lookup(CLOSED, FILE)), None);
    assert_eq!(tree.errno(0, create("new", OpenFlags::empty())), None);
    assert_eq!(tree.asked(&mut seen), [OpCode::Lookup, OpCode::Create]);
}

#[test]
fn a_driver_that_takes_its_time_is_asked_the_same() {
    for (uid, expected) in [(USER, None), (STRANGER, Some(Errno::EACCES))] {
        let requests = [
            lookup(DIR, FILE).into(),
            Open { node: FILE, flags: OpenFlags::WRITE_ONLY }.into(),
            Request::from(create("new", OpenFlags::empty())),
            Unlink { dir: DIR, name: name("3") }.into(),
            read(Handle::NONE).into(),
        ];
        for request in requests {
            let trees = [false, true].map(|later| Tree::new(later, |layer| layer));
            trees
                .iter()
                .for_each(|tree| assert_eq!(tree.errno(uid, request.clone()), expected, "{request:?}"));
            let [now, later] = trees.map(|tree| tree.asked(&mut 0));
            assert_eq!(now, later, "{request:?}");
        }
    }
}

#[test]
fn supplementary_groups_count() {
    let tree = plain();
    let member = Credentials { groups: Groups::of(&[1, GROUP]), ..Credentials::new(STRANGER, STRANGER) };
    assert!(tree.ask_as(member, lookup(DIR, FILE)).error().is_none());
}

#[test]
fn changes_notices_and_time_end_what_is_remembered() {
    let opens = || Open { node: FILE, flags: OpenFlags::empty() };
    let (tree, mut seen) = (plain(), 0);
    let forbid = |mode| lock(&tree.files).insert(FILE, attr(FileKind::Regular, mode));
    let expect = |expected| assert_eq!(tree.errno(USER, opens()), expected);
    expect(None);
    forbid(0o000);
    expect(None);
    assert_eq!(tree.errno(USER, chmod(FILE, 0)), None);
    expect(Some(Errno::EACCES));
    forbid(0o400);
    tree.asked(&mut seen);
    struct Nobody;
    impl Notify for Nobody {
        fn notify(&self, _: Notice) {}
    }
    let layer = Permissions::new(tree.sim.clone());
    let notices = layer.notify(Arc::new(Nobody));
    for notice in [Notice::InvalidateNode { node: FILE, offset: -1, len: 0 }, Notice::InvalidateAll] {
        let (changes, known) =
            (layer.known.changes(), Attrs { attr: attr(FileKind::Regular, 0), ttl: Ttl::SECOND });
        layer.known.learn(changes, FILE, &known);
        assert!(layer.known.owner(FILE).is_some());
        notices.notify(notice);
        assert_eq!(layer.known.owner(FILE), None);
        layer.known.learn(changes, FILE, &known);
        assert_eq!(layer.known.owner(FILE), None, "it was asked for before the change");
    }
    expect(Some(Errno::EACCES));
    let (sim, later) = (tree.sim.clone(), tree.sim.clone());
    sim.block_on(async move { later.sleep_until(later.monotonic() + Duration::from_secs(1)).await });
    expect(None);
}

#[test]
fn nothing_is_remembered_from_before_or_during_a_change() {
    let (tree, mut seen) = (Tree::new(true, |layer| layer), 0);
    let opens = || tree.errno(USER, Open { node: FILE, flags: OpenFlags::empty() });
    assert_eq!(opens(), None);
    let cx = Cx::new(1, Credentials::new(USER, USER), "test");
    let change = tree.layer.call(&cx, chmod(FILE, 0).into());
    tree.asked(&mut seen);
    assert_eq!(opens(), None);
    assert_eq!(tree.asked(&mut seen), [OpCode::GetAttr, OpCode::Open], "before");
    lock(&tree.files).insert(FILE, attr(FileKind::Regular, 0));
    drop(change);
    assert_eq!(opens(), Some(Errno::EACCES));
    assert_eq!(tree.asked(&mut seen), [OpCode::GetAttr], "during");
}

#[test]
fn a_number_that_is_given_back_is_not_remembered() {
    let (tree, mut seen) = (plain(), 0);
    assert_eq!(tree.errno(USER, lookup(ROOT, FILE)), None);
    assert_eq!(tree.errno(USER, Forget { node: FILE, count: 1 }), None);
    tree.asked(&mut seen);
    assert_eq!(tree.errno(USER, Open { node: FILE, flags: OpenFlags::empty() }), None);
    assert_eq!(tree.asked(&mut seen), [OpCode::GetAttr, OpCode::Open]);
}

#[test]
fn a_walk_ends_where_the_caller_may_not_search() {
    let (tree, mut seen) = (plain(), 0);
    let walk = Walk { dir: ROOT, names: ["2", "4", "3", "3"].map(name).to_vec() };
    let found = |uid| match tree.ask_as(Credentials::new(uid, GROUP), walk.clone()) {
        Reply::Entries(entries) => entries.iter().map(|entry| entry.node).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(0), [DIR, CLOSED, FILE, FILE]);
    tree.asked(&mut seen);
    assert_eq!(found(STRANGER), [DIR, CLOSED]);
    let returned = [OpCode::GetAttr, OpCode::Walk, OpCode::Forget, OpCode::Forget];
    assert_eq!(tree.asked(&mut seen), returned);
}

#[test]
fn a_directory_that_is_not_searched_shows_names_alone() {
    let (tree, mut seen) = (plain(), 0);
    let list = ReadDirPlus { node: LISTED, handle: Handle(7), cookie: 0, size: 4096 };
    let nodes = |uid| match tree.ask_as(Credentials::new(uid, uid), list.clone()) {
        Reply::DirentsPlus(list) => list.entries.iter().map(|dirent| dirent.entry.node.0).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(nodes(USER), [2, 3]);
    tree.asked(&mut seen);
    assert_eq!(nodes(STRANGER), [0, 0]);
    assert_eq!(tree.asked(&mut seen), [OpCode::ReadDirPlus, OpCode::Forget, OpCode::Forget]);
}

#[test]
fn what_may_be_there_is_made_exclusively_or_opened_by_its_number() {
    let (tree, mut seen) = (plain(), 0);
    assert_eq!(tree.errno(USER, create("new", OpenFlags::WRITE_ONLY)), None);
    let made = tree.driver.started().pop().map(|(_, request)| request);
    assert_eq!(made, Some(create("new", OpenFlags::WRITE_ONLY | OpenFlags::EXCL).into()));
    tree.asked(&mut seen);
    let reply = tree.ask_as(Credentials::new(USER, USER), create("3", OpenFlags::READ_WRITE));
    assert!(
        matches!(&reply, Reply::Created(made) if made.entry.node == FILE && made.opened.handle == Handle(7))
    );
    assert_eq!(tree.asked(&mut seen), [OpCode::Lookup, OpCode::Open], "the reference is the caller's");
    let member = Credentials::new(STRANGER, GROUP);
    let reply = tree.ask_as(member, create("3", OpenFlags::READ_WRITE));
    assert_eq!(reply.error().map(|error| error.errno), Some(Errno::EACCES));
    assert_eq!(tree.asked(&mut seen), [OpCode::Lookup, OpCode::Forget]);
    for (file, flags, errno) in
        [("4", OpenFlags::empty(), Errno::EISDIR), ("3", OpenFlags::EXCL, Errno::EEXIST)]
    {
        assert_eq!(tree.errno(USER, create(file, flags)), Some(errno));
    }
}

#[test]
fn without_a_handle_permission_is_needed_each_time() {
    let lenient = Tree::new(false, Permissions::lenient_owner);
    lock(&lenient.files).insert(FILE, attr(FileKind::Regular, 0o001));
    assert_eq!(lenient.errno(USER, write(Handle::NONE)), None);
    assert_eq!(lenient.errno(STRANGER, read(Handle::NONE)), None, "it may be executed");
    assert_eq!(lenient.errno(STRANGER, write(Handle::NONE)), Some(Errno::EACCES));
    let open = Open { node: FILE, flags: OpenFlags::empty() };
    assert_eq!(lenient.errno(USER, open), Some(Errno::EACCES), "opening is as ever");
    let strict = plain();
    lock(&strict.files).insert(FILE, attr(FileKind::Regular, 0o001));
    for uid in [USER, STRANGER] {
        assert_eq!(strict.errno(uid, read(Handle::NONE)), Some(Errno::EACCES));
        assert_eq!(strict.errno(uid, write(Handle::NONE)), Some(Errno::EACCES));
        assert_eq!(strict.errno(uid, write(Handle(7))), None, "whoever has a handle may use it");
        let size = SetAttrs { size: Some(0), ..SetAttrs::default() };
        let cut = |handle| SetAttr { node: FILE, handle, attrs: size.clone() };
        assert_eq!(strict.errno(uid, cut(None)), Some(Errno::EACCES));
        assert_eq!(strict.errno(uid, cut(Some(Handle(7)))), None);
    }
}

/// A driver that keeps access lists, and may decide by them.
struct Listing(bool);

impl Layer for Listing {
    fn place(&self) -> Place {
        Place::anywhere("listing")
    }
    fn abilities(&self, below: Abilities) -> Abilities {
        let access = OpSet::of(if self.0 { &[] } else { &[OpCode::Access] });
        Abilities { acl: true, ops: below.ops.without(access), ..below }
    }
}

#[test]
fn access_is_answered_here_or_by_a_driver_with_lists() {
    let access =
        |tree: &Tree, uid| match tree.ask_as(Credentials::new(uid, uid), Access { node: FILE, mask: 7 }) {
            Reply::Granted(granted) => granted.0,
            other => panic!("{other:?}"),
        };
    let all = |tree: &Tree| (access(tree, USER), access(tree, STRANGER), access(tree, 0));
    let (mut tree, mut seen) = (plain(), 0);
    assert_eq!(all(&tree), (6, 0, 6));
    assert_eq!(tree.asked(&mut seen), [OpCode::GetAttr]);
    // The list grants a stranger to write, which the mode does not.
    for (decides, granted, asked) in [
        (false, (6, 2, 6), &[OpCode::GetXattr, OpCode::Open][..]),
        (
            true,
            (4, 4, 4),
            &[OpCode::Access, OpCode::Access, OpCode::Access, OpCode::Access, OpCode::GetAttr][..],
        ),
    ] {
        let stack = Stack::new(tree.driver.clone()).push(Listing(decides)).expect("any order is good");
        let stack = stack.push(Permissions::new(tree.sim.clone())).expect("any order is good");
        tree.layer = stack.service();
        tree.errno(STRANGER, lookup(DIR, FILE));
        tree.errno(USER, Open { node: FILE, flags: OpenFlags::empty() });
        tree.asked(&mut seen);
        assert_eq!(all(&tree), granted);
        let open = tree.errno(STRANGER, Open { node: FILE, flags: OpenFlags::WRITE_ONLY });
        assert_eq!(open, decides.then_some(Errno::EACCES));
        assert_eq!(tree.asked(&mut seen), asked);
    }
}

#[test]
fn members_alone_give_the_rights_of_a_group() {
    let tree = plain();
    let passed = |cred: Credentials, request: Request| {
        assert!(tree.ask_as(cred, request).error().is_none());
        tree.driver.started().pop().map(|(_, request)| request).expect("it was passed on")
    };
    let (member, other) = (Credentials::new(USER, GROUP), Credentials::new(USER, USER));
    for (cred, mode) in [(member.clone(), 0o2755), (other.clone(), 0o755)] {
        assert_eq!(passed(cred, chmod(FILE, 0o2755).into()), chmod(FILE, mode).into());
    }
    lock(&tree.files).insert(FILE, attr(FileKind::Regular, 0o2755));
    let list = |flags| {
        let acl = XattrName::new(bytes::Bytes::from_static(b"system.posix_acl_access")).expect("a good name");
        Request::from(SetXattr { node: FILE, name: acl, value: Default::default(), flags })
    };
    for (cred, flags) in [(member, XattrFlags::empty()), (other.clone(), XattrFlags::KILL_SGID)] {
        assert_eq!(passed(cred, list(XattrFlags::empty())), list(flags));
    }
    // Without execute permission of the group it is no right, and goes all the same with the file's group.
    lock(&tree.files).insert(FILE, attr(FileKind::Regular, 0o6644));
    let give = |mode| {
        let attrs = SetAttrs { gid: Some(USER), mode, ..SetAttrs::default() };
        Request::from(SetAttr { node: FILE, handle: None, attrs })
    };
    let stays = Credentials { gid: USER, groups: Groups::of(&[GROUP]), ..Credentials::new(USER, USER) };
    for (cred, mode) in [(stays, None), (other.clone(), Some(0o644))] {
        assert_eq!(passed(cred, give(None)), give(mode));
    }
    let initial = |uid| {
        let attrs = SetAttrs { uid: Some(uid), ..SetAttrs::default() };
        MkDir { dir: DIR, name: name("new"), mode: 0o755, umask: 0, initial: Some(Box::new(attrs)) }
    };
    assert_eq!(tree.errno(USER, initial(USER)), None);
    assert_eq!(tree.errno(USER, initial(STRANGER)), Some(Errno::EPERM));
}

#[test]
fn what_is_opened_counts_so_opens_must_come() {
    let layer = Permissions::new(Sim::new(1));
    let below =
        |ops| Abilities { stateless_files: true, stateless_dirs: true, ..Abilities::new("x", "x", ops) };
    let above = layer.abilities(below(OpSet::all().without(OpSet::of(&[OpCode::OpenDir, OpCode::Access]))));
    assert!(!above.stateless_files && above.stateless_dirs && above.ops.has(OpCode::Access));
    assert_eq!(layer.place().above, ["cache", "simulate"]);
}
