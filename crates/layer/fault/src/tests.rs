// SPDX-License-Identifier: MIT OR Apache-2.0

mod applied;
mod cut;
mod replaced;

use super::*;
use outrigger_core::ops::{
    FSync, Forget, Lookup, MkDir, Open, OpenFlags, Read, Release, ReleaseDir, Rename, Write,
};
use outrigger_core::reply::{Count, Entry, OpenHow, Opened, Ttl};
use outrigger_core::{
    Attr, Backing, Clock, Credentials, Errno, Generation, Handle, LockOwner, Name, Node, Stack,
};
use outrigger_sim::{Scripted, Sim, Step};

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

fn read(node: u64) -> Request {
    Read { node: Node(node), handle: Handle(1), offset: 0, len: 100 }.into()
}

fn write(node: u64) -> Request {
    let data = Payload::from(vec![7; 100]);
    Write { node: Node(node), handle: Handle(1), offset: 0, data, cached: false, kill_setid: false }.into()
}

fn lookup(dir: u64, text: &str) -> Request {
    Lookup { dir: Node(dir), name: name(text) }.into()
}

fn open(node: u64) -> Request {
    Open { node: Node(node), flags: OpenFlags::empty() }.into()
}

fn mkdir() -> Request {
    MkDir { dir: Node(1), name: name("cut"), mode: 0o755, umask: 0, initial: None }.into()
}

/// Each operation that gives something back.
fn givers() -> [Request; 3] {
    let (node, handle, flags, owner) = (Node(2), Handle(1), OpenFlags::empty(), LockOwner(0));
    let release = Release { node, handle, flags, owner, flock_release: false };
    [release.into(), ReleaseDir { node, handle }.into(), Forget { node, count: 1 }.into()]
}

/// Reads and writes do as asked; a name is the decimal number of its node.
fn script(_: &Cx, request: &Request) -> Step {
    Step::Now(match request {
        Request::Read(read) => Reply::Data(Payload::from(vec![0; read.len as usize])),
        Request::Write(write) => Reply::Count(Count(write.data.len() as u64)),
        Request::Open(_) => {
            Reply::Opened(Opened { handle: Handle(1), how: OpenHow::KEEP_CACHE, backing: Backing::NONE })
        }
        Request::Lookup(lookup) => {
            let digits: String = lookup.name.to_string().chars().filter(char::is_ascii_digit).collect();
            let (node, generation) = (Node(digits.parse().unwrap_or(0)), Generation(0));
            let (attr, entry_ttl, attr_ttl) = (Attr::default(), Ttl::NEVER, Ttl::NEVER);
            Reply::Entry(Entry { node, generation, attr, entry_ttl, attr_ttl })
        }
        _ => Reply::Done(()),
    })
}

struct Bench {
    sim: Arc<Sim>,
    driver: Arc<Scripted>,
    top: Arc<dyn Service>,
    control: FaultControl,
}

impl Bench {
    fn new(rules: &[&str], seed: u64) -> Self {
        Bench::over(rules, seed, script)
    }

    fn over(rules: &[&str], seed: u64, script: fn(&Cx, &Request) -> Step) -> Self {
        let sim = Sim::new(1);
        let driver = Scripted::new(&sim, script);
        let rules: Vec<Rule> = rules.iter().map(|text| text.parse().expect("a good rule")).collect();
        let fault = Fault::new(rules, seed, sim.clone()).expect("few rules");
        let control = fault.control();
        let top = Stack::new(driver.clone()).push(fault).expect("any order is good").service();
        Bench { sim, driver, top, control }
    }

    fn ask(&self, request: Request) -> Reply {
        let (top, cx) = (Arc::clone(&self.top), Cx::new(1, Credentials::ROOT, "test"));
        self.sim.block_on(async move { top.call(&cx, request).await })
    }

    fn fails(&self, request: Request) -> bool {
        self.ask(request).error().is_some()
    }
}

#[test]
fn an_error_comes_instead_of_the_operation_with_the_rule_as_its_reason() {
    let bench = Bench::new(&["op=write,error=ENOSPC"], 0);
    let reply = bench.ask(write(2));
    let error = reply.error().expect("an error");
    assert_eq!(error.errno, Errno::ENOSPC);
    assert!(error.to_string().contains("op=write,error=ENOSPC"), "{error}");
    assert!(bench.driver.started().is_empty() && !bench.fails(read(2)));
}

#[test]
fn an_applied_error_comes_after_the_operation() {
    let bench = Bench::new(&["op=change,error=EIO,applied"], 0);
    assert!(bench.fails(write(2)));
    assert_eq!(bench.driver.started().len(), 1);
}

#[test]
fn counts_say_which_matches_are_hit() {
    for (rule, expected) in [
        ("op=read,error=EIO,after=2", [false, false, true, true, true]),
        ("op=read,error=EIO,once", [true, false, false, false, false]),
        ("op=read,error=EIO,after=1,times=2", [false, true, true, false, false]),
        ("op=read|write,error=EIO,always", [true; 5]),
        ("error=EIO,probability=0", [false; 5]),
    ] {
        let bench = Bench::new(&[rule], 0);
        assert_eq!([0; 5].map(|_| bench.fails(read(2))), expected, "{rule}");
    }
}

#[test]
fn probabilities_follow_the_seed() {
    let run = |seed| {
        let bench = Bench::new(&["op=read,error=EIO,probability=0.3"], seed);
        (0..1000).map(|_| bench.fails(read(2))).collect::<Vec<bool>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let hits = run(3).iter().filter(|&&hit| hit).count();
    assert!((230..370).contains(&hits), "{hits} of 1000");
}

#[test]
fn paths_are_matched_by_last_name_or_as_a_whole() {
    for (rule, expected) in [
        ("path=*.db,error=EIO", [false, true, true]),
        ("path=/dir2/*,error=EIO", [false, false, true]),
        ("path=/**/4.db,error=EIO", [false, false, true]),
        ("path=/*.db,error=EIO", [false, true, false]),
        ("node=3,error=EIO", [false, true, false]),
    ] {
        let bench = Bench::new(&[&format!("{rule},op=read")], 0);
        bench.ask(lookup(1, "dir2"));
        bench.ask(lookup(1, "3.db"));
        bench.ask(lookup(2, "4.db"));
        assert_eq!([2, 3, 4].map(|node| bench.fails(read(node))), expected, "{rule}");
    }
}

#[test]
fn a_rename_matches_by_either_name_and_moves_what_later_requests_match() {
    let bench = Bench::new(&["path=new,error=EIO,after=1"], 0);
    bench.ask(lookup(1, "5"));
    let (dir, to_dir, flags) = (Node(1), Node(1), Default::default());
    let rename = Rename { dir, name: name("5"), to_dir, to_name: name("new"), flags };
    assert!(!bench.fails(rename.into()), "the first match is spared");
    assert!(bench.fails(read(5)));
}

#[test]
fn short_reads_and_writes_are_cut() {
    let bench = Bench::new(&["short=30", "op=write,short=10"], 0);
    bench.ask(open(2));
    assert_eq!(bench.ask(read(2)), Reply::Data(Payload::from(vec![0; 30])));
    assert_eq!(bench.ask(write(2)), Reply::Count(Count(10)));
}

#[test]
fn reads_are_cut_only_of_files_that_were_opened_past_the_page_cache() {
    const CUT: &str = "op=read,short=30,times=2";
    let bench = Bench::new(&[], 0);
    let opens = |node| match bench.ask(open(node)) {
        Reply::Opened(opened) => opened.how,
        other => panic!("{other:?}"),
    };
    let read_by = |node| match bench.ask(read(node)) {
        Reply::Data(data) => data.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!((opens(2), read_by(2)), (OpenHow::KEEP_CACHE, 100));
    bench.control.replace(CUT).expect("a good rule");
    assert_eq!(read_by(2), 100, "a page cache would take less for the end of the file");
    assert_eq!(bench.control.rules()[0].matched, 0, "it is no match, so none of the two times");
    assert_eq!((opens(3), read_by(3)), (OpenHow::DIRECT_IO, 30));
    assert_eq!((opens(2), read_by(2)), (OpenHow::DIRECT_IO, 100), "both openings have one handle");
    let closes = |node| {
        let (node, handle, flags, owner) = (Node(node), Handle(1), OpenFlags::empty(), LockOwner(0));
        bench.ask(Release { node, handle, flags, owner, flock_release: false }.into());
    };
    [2, 2, 3].into_iter().for_each(closes);
    assert_eq!((opens(2), read_by(2)), (OpenHow::DIRECT_IO, 30), "no handle is open from before");
    bench.control.replace("").expect("no rule");
    assert_eq!(opens(3), OpenHow::KEEP_CACHE);
    bench.control.replace(CUT).expect("a good rule");
    assert_eq!(read_by(3), 100, "the handle is another opening's now");
}

#[test]
fn delays_add_up_and_come_first() {
    let bench = Bench::new(&["delay=1.5s", "delay=500ms,error=EIO"], 0);
    assert!(bench.fails(read(2)));
    assert!(bench.sim.monotonic() >= Duration::from_secs(2));
}

#[test]
fn several_rules_and_a_seed_come_as_one_text() {
    let sim = Sim::new(0);
    let fault = Fault::parse("op=read,error=EIO; op=write,short=3 ;seed=9", sim.clone()).expect("good rules");
    let read = fault.state.with_rules(|now| (now.rules.list.len(), now.rules.seed));
    assert_eq!(read, (2, 9));
    assert!(Fault::parse("", sim.clone()).is_ok_and(|fault| fault.control().rules().is_empty()));
    for bad in ["op=read,error=EIO;", "seed=x", "op=read"] {
        assert!(Fault::parse(bad, sim.clone()).is_err(), "{bad}");
    }
}

#[test]
fn a_bad_rule_says_what_is_wrong_with_which_part() {
    for (text, part, expected) in [
        ("", "", "nothing to do"),
        ("op=write", "op=write", "nothing to do"),
        ("op=wirte,error=EIO", "op=wirte", "no operation \"wirte\""),
        ("error=EWRONG", "error=EWRONG", "name or number of an error"),
        ("error=0", "error=0", "name or number of an error"),
        ("error=EIO,after=x", "after=x", "a number"),
        ("error=EIO,error=EPERM", "error=EPERM", "given twice"),
        ("error=EIO,once,times=3", "times=3", "given twice"),
        ("error=EIO,path=[", "path=[", ""),
        ("error=EIO,path=", "path=", "a pattern"),
        ("delay=5", "delay=5", "a time"),
        ("delay=-1s", "delay=-1s", "a time"),
        ("delay=1e300s", "delay=1e300s", "a time"),
        ("error=EIO,probability=1.5", "probability=1.5", "from 0 to 1"),
        ("applied", "applied", "needs error="),
        ("error=EIO,short=3", "error=EIO,short=3", "exclude"),
        ("colour=red", "colour=red", "expected op="),
    ] {
        let error = text.parse::<Rule>().expect_err(text).to_string();
        assert!(error.contains(&format!("\"{part}\"")) && error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_rule_may_act_on_every_other_match_and_goes_on_counting_in_another_layer() {
    let keep = outrigger_core::HeapKeep::default();
    let sim = Sim::new(1);
    let layer = || {
        let rule = "op=read,error=EIO,after=1,every=2".parse().expect("a good rule");
        Fault::new([rule], 0, sim.clone()).expect("one rule").kept_in(&keep).expect("memory")
    };
    let failures = |count: usize| {
        let driver = Scripted::new(&sim, script);
        let top = Stack::new(driver).push(layer()).expect("any order is good").service();
        (0..count)
            .map(|_| {
                let (top, cx) = (Arc::clone(&top), Cx::new(1, Credentials::ROOT, "test"));
                sim.block_on(async move { top.call(&cx, read(1)).await }).error().is_some()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(failures(4), [false, false, true, false]);
    assert_eq!(failures(3), [true, false, true], "the fifth match is the second of its pair");
    assert_eq!(layer().control().rules()[0].acted, 3);
}

#[test]
fn dying_excludes_other_actions() {
    let texts = [
        "die,error=EIO",
        "die,short=1",
        "every=0,error=EIO",
        "applied",
        "die,cut",
        "flip,applied",
        "lose,error=EIO",
    ];
    for text in texts.into_iter().chain(["op=lookup,lose", "op=fsync,flip", "op=any,lose"]) {
        assert!(text.parse::<Rule>().is_err(), "{text}");
    }
    assert_eq!("die".parse::<Rule>().map(|rule| rule.action()), Ok(Action::Die));
    assert_eq!("die,applied".parse::<Rule>().map(|rule| rule.action()), Ok(Action::DieAfter));
}

#[test]
fn rules_are_replaced_in_use_and_the_next_process_obeys_them() {
    let keep = outrigger_core::HeapKeep::default();
    let sim = Sim::new(1);
    let layer = || {
        Fault::parse("op=read,error=EIO", sim.clone()).expect("a good rule").kept_in(&keep).expect("memory")
    };
    let fails = |layer: Fault, request: Request| {
        let top = Stack::new(Scripted::new(&sim, script)).push(layer).expect("any order is good").service();
        let cx = Cx::new(1, Credentials::ROOT, "test");
        sim.block_on(async move { top.call(&cx, request).await }).error().is_some()
    };
    let first = layer();
    let control = first.control();
    assert!(control.replace("op=write,eror=EIO").is_err());
    assert_eq!(control.rules()[0].rule, "op=read,error=EIO", "a bad rule changes nothing");
    control.replace("op=write,error=EIO;seed=5").expect("a good rule");
    assert!(!fails(layer(), read(2)) && fails(first, write(2)));
    let acted = Acted { rule: "op=write,error=EIO".into(), matched: 1, acted: 1 };
    assert_eq!(layer().control().rules(), [acted]);
    control.replace("").expect("no rule");
    assert!(layer().control().rules().is_empty() && !fails(layer(), read(2)));
}

#[test]
fn a_flipped_bit_is_the_only_difference() {
    let bench = Bench::new(&["flip,times=1", "op=write,flip"], 4);
    let ones = |content: &[u8]| content.iter().map(|byte| byte.count_ones()).sum::<u32>();
    let Reply::Data(data) = bench.ask(read(2)) else { panic!("no data") };
    assert_eq!(ones(&data.into_bytes().expect("bytes")), 1);
    assert_eq!(bench.ask(read(2)), Reply::Data(Payload::from(vec![0; 100])));
    bench.ask(write(2));
    let started = bench.driver.started();
    let written = started.iter().rev().find_map(|request| match request {
        (_, Request::Write(write)) => write.data.clone().into_bytes().ok(),
        _ => None,
    });
    let written: Vec<u8> = written.expect("a write").iter().map(|byte| byte ^ 7).collect();
    assert_eq!((written.len(), ones(&written)), (100, 1));
}

#[test]
fn lost_writes_are_answered_and_not_done() {
    let bench = Bench::new(&["lose", "op=fsync,lose"], 0);
    assert_eq!(bench.ask(write(2)), Reply::Count(Count(100)));
    let fsync = FSync { node: Node(2), handle: Handle(1), data_only: false };
    assert_eq!(bench.ask(fsync.into()), Reply::Done(()));
    assert!(bench.driver.started().is_empty());
}

#[test]
fn what_gives_back_is_done_below_whatever_the_answer_says() {
    for rule in ["error=EIO", "op=release|releasedir|forget|mkdir,cut", "op=mkdir,cut"] {
        let bench = Bench::new(&[rule], 0);
        bench.ask(mkdir());
        for request in givers() {
            assert!(bench.fails(request), "{rule}");
        }
        assert!(bench.fails(read(2)), "{rule}");
        let arrived: Vec<Request> = bench.driver.started().into_iter().map(|(_, request)| request).collect();
        assert_eq!(arrived, givers(), "{rule}");
    }
    let bench = Bench::new(&["op=release|forget|releasedir,cut"], 0);
    let [release, ..] = givers();
    assert!(bench.fails(release.clone()) && bench.fails(read(2)));
    assert_eq!(bench.driver.started(), [(1, release)], "also what plays the cut itself");
}
