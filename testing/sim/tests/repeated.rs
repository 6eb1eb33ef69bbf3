// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the operation table says of repeating an operation is what happens in a tree.

use outrigger_core::ops::*;
use outrigger_core::reply::DirentsPlus;
use outrigger_core::{
    Clock, Credentials, Cx, Handle, Inline, Name, Node, Payload, Reply, Request, Service, SetAttrs, Target,
    Time, XattrName, ask,
};
use outrigger_driver_mem::{Mem, Options};
use outrigger_sim::Sim;
use std::sync::Arc;

/// Time stands still, so that a repetition does not show in times.
struct Still;

impl Clock for Still {
    fn monotonic(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn wall(&self) -> Time {
        Time::new(1_000_000_000, 0)
    }
}

/// A tree with a file `f` that is open twice, another file `g`, an empty directory `d`, and the attribute `user.a` of `f`.
struct Tree {
    service: Arc<dyn Service>,
    cx: Cx,
    f: Node,
    writer: Handle,
    appender: Handle,
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a name")
}

fn attribute(text: &str) -> XattrName {
    XattrName::new(text.to_owned()).expect("a name")
}

fn create(text: &str, flags: OpenFlags) -> Create {
    Create { dir: Node::ROOT, name: name(text), mode: 0o644, umask: 0, flags, initial: None }
}

impl Tree {
    async fn new(sim: &Arc<Sim>) -> Self {
        let mem = Mem::new(Options { size: 1 << 20, inodes: 100, ..Options::default() }, Arc::new(Still));
        let service: Arc<dyn Service> = Arc::new(Inline::new(mem, sim.clone()));
        let cx = Cx::new(1, Credentials::ROOT, "test");
        let made = ask(&*service, &cx, create("f", OpenFlags::READ_WRITE)).await.expect("create");
        let (f, writer) = (made.entry.node, made.opened.handle);
        let append = Open { node: f, flags: OpenFlags::WRITE_ONLY | OpenFlags::APPEND };
        let appender = ask(&*service, &cx, append).await.expect("open").handle;
        let tree = Tree { service, cx, f, writer, appender };
        tree.ask(tree.write(writer, b"content that is long enough to be cut")).await;
        tree.ask(create("g", OpenFlags::WRITE_ONLY).into()).await;
        tree.ask(MkDir { dir: Node::ROOT, name: name("d"), mode: 0o755, umask: 0, initial: None }.into())
            .await;
        tree.ask(tree.set("user.a", XattrFlags::empty())).await;
        tree
    }

    async fn ask(&self, request: Request) -> Reply {
        self.service.call(&self.cx, request).await
    }

    fn write(&self, handle: Handle, data: &'static [u8]) -> Request {
        let data = Payload::from(data.to_vec());
        Write { node: self.f, handle, offset: 0, data, cached: false, kill_setid: false }.into()
    }

    fn set(&self, of: &str, flags: XattrFlags) -> Request {
        SetXattr { node: self.f, name: attribute(of), value: "value".into(), flags }.into()
    }

    fn fallocate(&self, mode: FallocateMode) -> Request {
        Fallocate { node: self.f, handle: self.writer, offset: 0, len: 4096, mode }.into()
    }

    /// Names, kinds, sizes, links, content and attributes of everything in the root.
    async fn looks(&self) -> String {
        let root = Node::ROOT;
        let handle = ask(&*self.service, &self.cx, OpenDir { node: root }).await.expect("opendir").handle;
        let list = ReadDirPlus { node: root, handle, cookie: 0, size: 1 << 16 };
        let DirentsPlus { entries, .. } = ask(&*self.service, &self.cx, list).await.expect("a listing");
        let mut looks: Vec<String> = entries
            .iter()
            .map(|one| {
                let attr = &one.entry.attr;
                format!("{} {:?} {} {} {:o}", one.name, attr.kind(), attr.size, attr.nlink, attr.mode)
            })
            .collect();
        let content = Read { node: self.f, handle: self.writer, offset: 0, len: 1 << 16 };
        looks.push(format!("{:?}", self.ask(content.into()).await));
        looks.push(format!("{:?}", self.ask(ListXattr { node: self.f }.into()).await));
        looks.join("\n")
    }
}

/// One request of each way to change a tree.
fn requests(tree: &Tree) -> Vec<Request> {
    let (dir, f) = (Node::ROOT, tree.f);
    let target = Target::new("target").expect("a target");
    let rename = |from, to, flags| Rename { dir, name: name(from), to_dir: dir, to_name: name(to), flags };
    vec![
        MkDir { dir, name: name("new"), mode: 0o755, umask: 0, initial: None }.into(),
        MkNod { dir, name: name("new"), mode: 0o010_644, umask: 0, rdev: 0, initial: None }.into(),
        SymLink { dir, name: name("new"), target, initial: None }.into(),
        create("new", OpenFlags::WRITE_ONLY).into(),
        create("new", OpenFlags::WRITE_ONLY | OpenFlags::EXCL).into(),
        Link { node: f, dir, name: name("new") }.into(),
        Unlink { dir, name: name("g") }.into(),
        RmDir { dir, name: name("d") }.into(),
        rename("g", "new", RenameFlags::empty()).into(),
        rename("f", "g", RenameFlags::EXCHANGE).into(),
        SetAttr { node: f, handle: None, attrs: SetAttrs { size: Some(7), ..SetAttrs::default() } }.into(),
        SetAttr { node: f, handle: None, attrs: SetAttrs { mode: Some(0o600), ..SetAttrs::default() } }
            .into(),
        Open { node: f, flags: OpenFlags::WRITE_ONLY | OpenFlags::TRUNC }.into(),
        tree.write(tree.writer, b"other"),
        tree.write(tree.appender, b"more"),
        tree.fallocate(FallocateMode::empty()),
        tree.fallocate(FallocateMode::INSERT_RANGE),
        tree.set("user.a", XattrFlags::REPLACE),
        tree.set("user.b", XattrFlags::empty()),
        tree.set("user.b", XattrFlags::CREATE),
        RemoveXattr { node: f, name: attribute("user.a") }.into(),
    ]
}

/// Whether the table says that a repetition leaves the tree as it is.
fn is_harmless(tree: &Tree, request: &Request) -> bool {
    use outrigger_core::Effect::Appends;
    let counts = |effect: &outrigger_core::Effect<'_>| match effect {
        Appends { handle, .. } => *handle == tree.appender,
        effect => effect.changes_tree(),
    };
    request.effects().into_iter().filter(counts).all(|effect| effect.is_idempotent())
}

#[test]
fn exactly_what_is_idempotent_succeeds_once_more_and_changes_nothing() {
    let sim = &Sim::new(1);
    sim.block_on({
        let sim = Arc::clone(sim);
        async move {
            let count = requests(&Tree::new(&sim).await).len();
            let mut harmless = 0;
            for at in 0..count {
                let tree = Tree::new(&sim).await;
                let request = requests(&tree).swap_remove(at);
                let first = tree.ask(request.clone()).await;
                assert!(first.error().is_none(), "{request:?}: {first:?}");
                let before = tree.looks().await;
                let second = tree.ask(request.clone()).await;
                let same = second.error().is_none() && tree.looks().await == before;
                assert_eq!(same, is_harmless(&tree, &request), "{request:?}: {second:?}");
                harmless += usize::from(same);
            }
            assert!((5..count - 5).contains(&harmless), "{harmless} of {count}");
        }
    });
}
