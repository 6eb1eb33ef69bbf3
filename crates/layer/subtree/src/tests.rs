// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use outrigger_core::ask as ask_once;
use outrigger_core::ops::{Forget, GetAttr, Lookup};
use outrigger_core::reply::{Entry, Ttl};
use outrigger_core::{Attr, Credentials, Generation, OpSet, Stack};
use outrigger_sim::{Scripted, Sim, Step};
use std::sync::Mutex;

/// The directory that becomes the root.
const DIR: Node = Node(7);

fn entry(node: Node) -> Entry {
    let attr = Attr { ino: node.0, ..Attr::default() };
    Entry { node, generation: Generation(0), attr, entry_ttl: Ttl::NEVER, attr_ttl: Ttl::NEVER }
}

fn lookup(dir: Node) -> Request {
    Lookup { dir, name: Name::try_from("name").expect("a good name") }.into()
}

/// Asks a subtree of a driver that finds `found` whatever it is asked; also tells what the driver was asked.
fn ask(root: Node, found: Node, request: Request) -> (Reply, Vec<Request>) {
    let sim = Sim::new(0);
    let driver = Scripted::new(&sim, move |_, _| Step::Now(Reply::Entry(entry(found))));
    let top = Stack::new(driver.clone()).push(Subtree::new(root)).expect("any order is good").service();
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let reply = sim.block_on(async move { top.call(&cx, request).await });
    (reply, driver.started().into_iter().map(|(_, request)| request).collect())
}

#[test]
fn the_directory_takes_the_number_of_the_root_both_ways() {
    let (reply, asked) = ask(DIR, DIR, lookup(Node::ROOT));
    assert!(matches!(&asked[..], [Request::Lookup(lookup)] if lookup.dir == DIR), "{asked:?}");
    assert!(matches!(&reply, Reply::Entry(entry) if entry.node == Node::ROOT), "{reply:?}");
    let (reply, asked) = ask(DIR, Node(9), lookup(Node(8)));
    assert!(matches!(&asked[..], [Request::Lookup(lookup)] if lookup.dir == Node(8)), "{asked:?}");
    assert!(matches!(&reply, Reply::Entry(entry) if entry.node == Node(9)), "{reply:?}");
}

#[test]
fn what_is_above_cannot_be_reached() {
    // The number of the directory itself means nothing above.
    let (reply, asked) = ask(DIR, Node(9), GetAttr { node: DIR, handle: None }.into());
    assert_eq!(reply.error().map(|error| error.errno), Some(Errno::ESTALE));
    assert_eq!(asked, []);
    // Nor is the root of the whole tree handed out.
    let (reply, _) = ask(DIR, Node::ROOT, lookup(Node(8)));
    assert_eq!(reply.error().map(|error| error.errno), Some(Errno::ESTALE));
}

/// Has a node for each name: 9 in the directory, else that of the directory itself.
struct Recalls;

impl Service for Recalls {
    fn call<'a>(&'a self, _: &'a Cx, _: Request) -> Answer<'a> {
        Answer::error(Errno::ENOSYS)
    }
    fn abilities(&self) -> Abilities {
        Abilities { recalls: true, ..Abilities::new("recalls", "", OpSet::NONE) }
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
    fn recall(&self, dir: Node, _: &Name, _: FileKind) -> Result<Recalled> {
        let node = if dir == DIR { Node(9) } else { DIR };
        Ok(Recalled { node, generation: Generation(1), ino: 5 })
    }
}

#[test]
fn a_name_is_recalled_in_the_directory_and_above_it_none() {
    let recall = |root, dir| {
        let top =
            Stack::new(Arc::new(Recalls)).push(Subtree::new(root)).expect("any order is good").service();
        let name = Name::try_from("name").expect("a good name");
        top.recall(dir, &name, FileKind::Regular).map(|recalled| recalled.node)
    };
    assert_eq!(recall(DIR, Node::ROOT), Ok(Node(9)));
    assert_eq!(recall(DIR, Node(8)), Ok(Node::ROOT));
    assert_eq!(recall(DIR, DIR), Err(Errno::ESTALE.into()), "its number means nothing above");
    assert_eq!(recall(Node::ROOT, DIR), Ok(Node(9)));
}

#[test]
fn paths_begin_at_the_directory() {
    let located = |node: Node| {
        let sim = Sim::new(0);
        let driver = Scripted::new(&sim, |_, request| {
            let Request::Locate(locate) = request else { panic!("{request:?}") };
            let path = match locate.node {
                DIR => "/above/dir",
                Node(8) => "/above/dir/sub/file",
                _ => "/above/directory",
            };
            Step::Now(Reply::Target(Target::new(path.as_bytes().to_vec()).expect("a short path")))
        });
        let top = Stack::new(driver).push(Subtree::new(DIR)).expect("any order is good").service();
        let cx = Cx::new(1, Credentials::ROOT, "test");
        sim.block_on(async move { ask_once(&*top, &cx, Locate { node }).await })
    };
    assert_eq!(located(Node(8)).expect("a path").to_string(), "/sub/file");
    assert_eq!(located(Node::ROOT).expect("a path").to_string(), "/");
    assert_eq!(located(Node(9)).map_err(|error| error.errno), Err(Errno::ENOENT), "a longer name");
}

#[test]
fn the_reference_to_the_directory_is_kept() {
    let (reply, asked) = ask(DIR, DIR, Forget { node: Node::ROOT, count: 1 }.into());
    assert!(reply.error().is_none() && asked.is_empty(), "{reply:?} {asked:?}");
    let (_, asked) = ask(DIR, DIR, Forget { node: Node(8), count: 1 }.into());
    assert_eq!(asked, [Forget { node: Node(8), count: 1 }.into()]);
}

#[test]
fn the_root_of_the_whole_tree_is_left_as_it_is() {
    let (reply, _) = ask(Node::ROOT, Node::ROOT, lookup(Node::ROOT));
    assert!(matches!(&reply, Reply::Entry(entry) if entry.node == Node::ROOT), "{reply:?}");
}

#[derive(Default)]
struct Heard(Mutex<Vec<Notice>>);

impl Notify for Heard {
    fn notify(&self, notice: Notice) {
        self.0.lock().expect("no test panics in between").push(notice);
    }
}

#[test]
fn notices_about_what_is_above_stay_below() {
    let heard = Arc::new(Heard::default());
    let below = Subtree::new(DIR).notify(heard.clone());
    for node in [Node::ROOT, DIR, Node(8)] {
        below.notify(Notice::InvalidateNode { node, offset: 0, len: 0 });
    }
    let heard = heard.0.lock().expect("no test panics in between");
    let nodes: Vec<Node> = heard
        .iter()
        .filter_map(|notice| match notice {
            Notice::InvalidateNode { node, .. } => Some(*node),
            _ => None,
        })
        .collect();
    assert_eq!(nodes, [Node::ROOT, Node(8)]);
}
