// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that nothing uses, and the end.

use super::*;

const LIMIT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(600);

fn bench() -> Bench {
    Bench::with(Options { idle: Some(LIMIT), ..Options::default() })
}

#[test]
fn a_tree_is_closed_when_nothing_has_used_it_for_a_while() {
    let bench = bench();
    let toy = bench.toy(&["a"]);
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    bench.forget(d, 1);
    bench.forget(a, 1);
    bench.pass(LIMIT / 2);
    assert_eq!(toy.times(), (1, 0));
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    bench.forget(d, 1);
    bench.forget(a, 1);
    bench.pass(LIMIT * 3 / 4);
    assert_eq!(toy.times(), (1, 0), "it was used meanwhile");
    bench.pass(LIMIT / 2);
    assert_eq!((toy.times(), bench.state("/a")), ((1, 1), None));
    let a = bench.find(Node::ROOT, "a");
    bench.find(a, "d");
    assert_eq!(toy.times(), (2, 1), "its name opens it again");
}

#[test]
fn a_tree_to_which_the_door_refers_stays_and_the_door_is_asked_to_let_go() {
    let bench = bench();
    let toy = bench.toy(&["a"]);
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    let seven = bench.find(d, "7");
    bench.pass(LONG);
    assert_eq!(toy.times(), (1, 0), "a working directory may be there");
    assert_eq!(bench.pruned()[..3], [seven, d, a], "what is within comes first");
    bench.forget(seven, 1);
    bench.forget(d, 1);
    bench.pass(LONG);
    assert_eq!(toy.times(), (1, 0), "its root may be one, too");
    bench.forget(a, 1);
    bench.pass(LIMIT);
    assert_eq!(toy.times(), (1, 1));
}

#[test]
fn names_that_lead_to_nothing_keep_no_directory_in_the_kernel() {
    let bench = bench();
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    assert_eq!(bench.errno(Lookup { dir: d, name: name("none") }), Some(Errno::ENOENT));
    bench.ask(Unlink { dir: d, name: name("8") }).expect("removed");
    bench.pass(LIMIT * 2);
    let heard = lock(&bench.door.heard);
    let mut first: Vec<&Notice> =
        heard.iter().take_while(|notice| !matches!(notice, Notice::Prune { .. })).collect();
    first.sort_by_key(|notice| format!("{notice:?}"));
    let entry = |text: &str| Notice::InvalidateEntry { dir: d, name: name(text) };
    assert_eq!(first, [&entry("8"), &entry("none")], "said once, before the nodes");
    assert_eq!(heard.iter().filter(|notice| matches!(notice, Notice::InvalidateEntry { .. })).count(), 2);
}

#[test]
fn a_tree_with_open_files_or_unwritten_content_stays() {
    let bench = bench();
    let toy = bench.toy(&["a"]);
    let a = bench.find(Node::ROOT, "a");
    let seven = bench.find(a, "7");
    let opened = bench.ask(open(seven)).expect("open");
    bench.forget(seven, 1);
    bench.forget(a, 1);
    bench.pass(LONG);
    assert_eq!((toy.times(), bench.pruned()), ((1, 0), Vec::new()));
    // The kernel keeps a reference to an open file; here it has been given back, and the file is closed all the same.
    assert_eq!(bench.errno(release(seven, opened.handle)), None);
    let a = bench.find(Node::ROOT, "a");
    let seven = bench.find(a, "8");
    let created = Create {
        dir: a,
        name: name("9"),
        mode: 0o600,
        umask: 0,
        flags: OpenFlags::WRITE_ONLY,
        initial: None,
    };
    let created = bench.ask(created).expect("made");
    bench.ask(release(created.entry.node, created.opened.handle)).expect("closed");
    let directory = bench.ask(OpenDir { node: a }).expect("open");
    bench.ask(ReleaseDir { node: a, handle: directory.handle }).expect("closed");
    toy.unwritten.store(true, Ordering::Relaxed);
    for node in [seven, created.entry.node, a] {
        bench.forget(node, 1);
    }
    bench.pass(LONG);
    assert_eq!(toy.times().1, 0);
}

#[test]
fn closed_files_keep_no_tree() {
    let bench = bench();
    let toy = bench.toy(&["a"]);
    let a = bench.find(Node::ROOT, "a");
    let seven = bench.find(a, "7");
    let opened = bench.ask(open(seven)).expect("open");
    bench.ask(release(seven, opened.handle)).expect("closed");
    bench.forget(seven, 1);
    bench.forget(a, 1);
    bench.pass(LIMIT + LIMIT / 2);
    assert_eq!(toy.times(), (1, 1));
}

#[test]
fn what_would_be_lost_with_its_tree_is_kept() {
    let bench = bench();
    let toy = bench.add(&["a"], |toy| Toy { is_lasting: false, ..toy });
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    bench.forget(d, 1);
    bench.forget(a, 1);
    bench.pass(LONG);
    assert_eq!(toy.times(), (1, 0));
}

#[test]
fn looking_at_the_directory_of_all_trees_is_no_use_of_them() {
    let bench = bench();
    let toy = bench.toy(&["a"]);
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    bench.forget(d, 1);
    for _ in 0..8 {
        bench.pass(LIMIT / 4);
        bench.ask(attr(a)).expect("shown");
        bench.ask(read_dir(Node::ROOT)).expect("listed");
    }
    bench.forget(a, 1);
    bench.pass(LIMIT);
    assert_eq!(toy.times(), (1, 1));
}

#[test]
fn a_door_that_cannot_let_go_does_not_keep_trees_that_no_program_is_in() {
    let used = Arc::new(AtomicBool::new(true));
    let (is_used, asked) = (Arc::clone(&used), Arc::<Mutex<Vec<String>>>::default());
    let paths = Arc::clone(&asked);
    let detects: Arc<IsUsed> = Arc::new(move |path: &str| {
        lock(&paths).push(path.to_owned());
        is_used.load(Ordering::Relaxed)
    });
    let bench = Bench::with(Options { idle: Some(LIMIT), is_used: Some(detects), ..Options::default() });
    let toy = bench.toy(&["a"]);
    let a = bench.find(Node::ROOT, "a");
    let d = bench.find(a, "d");
    bench.pass(LONG);
    assert_eq!(toy.times(), (1, 0));
    assert!(!lock(&asked).is_empty() && lock(&asked).iter().all(|path| path == "/a"));
    used.store(false, Ordering::Relaxed);
    bench.pass(LIMIT);
    assert_eq!(toy.times(), (1, 1));
    // The name is looked up again, and leads to the tree again.
    assert_eq!(bench.errno(attr(d)), Some(Errno::ESTALE));
    let again = bench.find(a, "d");
    assert_ne!(again, d);
    assert_eq!((bench.errno(attr(again)), toy.times()), (None, (2, 1)));
    bench.forget(d, 1);
    assert_eq!(bench.errno(attr(again)), None, "references to a former opening are not those of this one");
}

#[test]
fn the_end_tells_what_was_not_stored() {
    let bench = Bench::new();
    for root in ["a", "b"] {
        let root = bench.find(Node::ROOT, root);
        bench.find(root, "d");
    }
    let frozen = bench.toy(&["a"]);
    frozen.unwritten.store(true, Ordering::Relaxed);
    frozen.hangs.store(true, Ordering::Relaxed);
    let control = bench.demux.control();
    assert_eq!(control.unwritten().len(), 1);
    let before = bench.sim.monotonic();
    let left =
        bench.sim.block_on(async move { control.close(Duration::from_secs(10), &Cancel::default()).await });
    let what = "no answer for 10 s, 3 bytes of 1 file are not written: /d/7".to_owned();
    assert_eq!(left, [Left { path: "/a".into(), what }]);
    assert!(bench.sim.monotonic() < before + Duration::from_secs(11));
    assert_eq!(bench.toy(&["b"]).times(), (1, 1), "the other one was closed");
}

#[test]
fn whoever_gives_up_learns_at_once_what_is_not_stored() {
    let bench = Bench::new();
    let root = bench.find(Node::ROOT, "a");
    bench.find(root, "d");
    let frozen = bench.toy(&["a"]);
    frozen.unwritten.store(true, Ordering::Relaxed);
    frozen.hangs.store(true, Ordering::Relaxed);
    let (control, enough, before) = (bench.demux.control(), Cancel::default(), bench.sim.monotonic());
    let (later, sim) = (enough.clone(), Arc::clone(&bench.sim));
    bench.sim.spawn(Box::pin(async move {
        sim.sleep_until(sim.monotonic() + Duration::from_secs(3)).await;
        later.raise();
    }));
    let watched = control.clone();
    let left = bench.sim.block_on(async move { control.close(Duration::from_secs(60), &enough).await });
    assert_eq!(watched.unwritten().len(), 1, "also while it is being closed");
    let what = "given up, 3 bytes of 1 file are not written: /d/7".to_owned();
    assert_eq!(left, [Left { path: "/a".into(), what }]);
    assert!(bench.sim.monotonic() < before + Duration::from_secs(5));
}
