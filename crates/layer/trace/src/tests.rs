// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use outrigger_core::ops::{GetAttr, Lookup, MkDir, Open, OpenFlags, Read, Rename};
use outrigger_core::reply::{Entry, Ttl};
use outrigger_core::{
    Attr, Credentials, Errno, Generation, Handle, Name, Node, OpCode, OpSet, Payload, Stack, Target,
};
use outrigger_sim::{Scripted, Sim, Step};
use serde_json::{Value, json};
use std::io::{self, Write};

/// A sink whose content can be read.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic before").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().expect("no panic before").clone();
        String::from_utf8(bytes).expect("UTF-8").lines().map(str::to_owned).collect()
    }
}

fn name(text: &str) -> Name {
    Name::try_from(text).expect("a good name")
}

fn read() -> Read {
    Read { node: Node(5), handle: Handle(1), offset: 0, len: 9 }
}

/// Everything leads to node 5; reading takes a second and fails.
fn script(_: &Cx, request: &Request) -> Step {
    let attr = Attr { mode: 0o100_644, size: 7, ..Attr::default() };
    let (entry_ttl, attr_ttl) = (Ttl::NEVER, Ttl::NEVER);
    match request {
        Request::Lookup(_) => {
            let (node, generation) = (Node(5), Generation(0));
            Step::Now(Reply::Entry(Entry { node, generation, attr, entry_ttl, attr_ttl }))
        }
        Request::Read(_) => {
            Step::After(Duration::from_secs(1), Reply::Error(Errno::EIO.because("disk on\x1b[2J fire")))
        }
        Request::GetAttr(_) => Step::Never,
        Request::MkDir(_) => Step::Now(Reply::Error(Errno(4242).into())),
        _ => Step::Now(Reply::Done(())),
    }
}

struct Bench {
    sim: Arc<Sim>,
    top: Arc<dyn Service>,
    control: Arc<TraceControl>,
}

impl Bench {
    fn new() -> Self {
        let sim = Sim::new(1);
        let (layer, control) = Trace::new(sim.clone());
        let ops = OpSet::all().without(OpSet::of(&[OpCode::Locate]));
        let stack = Stack::new(Scripted::with_ops(&sim, ops, script)).push(layer).expect("any order is good");
        Bench { sim, top: stack.service(), control }
    }

    fn start(&self, format: Format) -> Shared {
        let sink = Shared::default();
        self.control.start(Box::new(sink.clone()), format);
        sink
    }

    fn ask(&self, request: impl Into<Request>) -> Reply {
        let (top, request) = (Arc::clone(&self.top), request.into());
        let mut cx = Cx::new(17, Credentials::new(1000, 100), "test");
        cx.origin.pid = 4242;
        let reply = self.sim.block_on(async move { top.call(&cx, request).await });
        self.sim.run();
        reply
    }
}

/// A human line without its time of day and duration, which must be there.
fn timeless(line: &str) -> String {
    let (clock, rest) = line.split_once(' ').expect("a time");
    assert_eq!((clock.len(), clock.as_bytes()[8]), ("12:34:56.789012".len(), b'.'), "{line}");
    match rest.strip_suffix("us").and_then(|rest| rest.rsplit_once(' ')) {
        Some((rest, micros)) => {
            assert!(micros.parse::<u64>().is_ok(), "{line}");
            rest.to_owned()
        }
        None => rest.to_owned(),
    }
}

#[test]
fn each_request_has_one_line_when_it_has_ended() {
    let bench = Bench::new();
    let sink = bench.start(Format::Ended);
    bench.ask(Lookup { dir: Node::ROOT, name: name("f") });
    bench.ask(read());
    let lines: Vec<Value> = sink.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = lines.iter().map(|line| (&line["op"], &line["state"], &line["error"])).collect();
    let (done, failed) = (json!("done"), json!("failed"));
    assert_eq!(told, [(&json!("lookup"), &done, &Value::Null), (&json!("read"), &failed, &json!("EIO"))]);
}

#[test]
fn paths_are_those_of_the_place_where_programs_find_the_tree() {
    let (trace, _) = Trace::new(Sim::new(1));
    let places = [("/map-1", "/data"), ("/map", "/m")].map(|(from, to)| (from.into(), to.into()));
    let trace = trace.with_places(places.into());
    for (path, shown) in [
        ("/map-1/a", "/data/a"),
        ("/map-1", "/data"),
        ("/map-12", "/map-12"),
        ("/map/x", "/m/x"),
        ("#5/x", "#5/x"),
    ] {
        assert_eq!(trace.placed(path.into()), shown.as_bytes());
    }
}

#[test]
fn what_was_read_or_written_is_counted() {
    let data = Reply::Data(Payload::Bytes(vec![0; 9].into()));
    assert_eq!((describe::bytes(&data), describe::bytes(&Reply::Done(()))), (Some(9), None));
}

#[test]
fn people_see_path_arguments_result_and_reason() {
    let bench = Bench::new();
    let sink = bench.start(Format::Human);
    bench.ask(Lookup { dir: Node::ROOT, name: name("a b\n") });
    bench.ask(read());
    bench.ask(Open { node: Node(5), flags: OpenFlags::READ_WRITE | OpenFlags::TRUNC });
    let (to_name, flags) = (name("c"), Default::default());
    bench.ask(Rename { dir: Node(1), name: name("a b\n"), to_dir: Node(9), to_name, flags });
    bench.ask(MkDir { dir: Node(5), name: name("d"), mode: 0o755, umask: 0, initial: None });
    let lines: Vec<String> = sink.lines().iter().map(|line| timeless(line)).collect();
    let expected = [
        "#17 pid 4242 lookup /a b\\n = node 5 regular 0644 7 bytes",
        "#17 pid 4242 read /a b\\n handle=1 len=9 offset=0 ...",
        "#17 pid 4242 read /a b\\n handle=1 len=9 offset=0 = EIO (disk on\\u{1b}[2J fire)",
        "#17 pid 4242 open /a b\\n flags=read_write|trunc = done",
        "#17 pid 4242 rename /a b\\n -> #9/c = done",
        "#17 pid 4242 mkdir #9/c/d mode=0755 = errno 4242",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn programs_see_the_same_as_json() {
    let bench = Bench::new();
    let sink = bench.start(Format::Json);
    bench.ask(read());
    let lines: Vec<Value> =
        sink.lines().iter().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(lines.len(), 2);
    for (line, state) in lines.iter().zip(["waiting", "failed"]) {
        for (key, value) in [
            ("id", json!(17)),
            ("pid", json!(4242)),
            ("uid", json!(1000)),
            ("door", json!("test")),
            ("op", json!("read")),
            ("paths", json!(["#5"])),
            ("args", json!({"handle": 1, "offset": 0, "len": 9})),
            ("state", json!(state)),
        ] {
            assert_eq!(line[key], value, "{key}");
        }
    }
    assert_eq!((&lines[1]["error"], &lines[1]["reason"]), (&json!("EIO"), &json!("disk on\x1b[2J fire")));
    assert!(lines[1]["us"].as_f64().is_some_and(|micros| micros > 1e6) && lines[0]["us"].is_null());
}

#[test]
fn tracing_is_off_until_started_and_again_when_stopped() {
    let bench = Bench::new();
    bench.ask(read());
    let first = bench.start(Format::Human);
    bench.ask(Open { node: Node(5), flags: OpenFlags::empty() });
    let second = bench.start(Format::Human);
    bench.ask(Open { node: Node(6), flags: OpenFlags::empty() });
    bench.control.stop();
    bench.ask(read());
    assert_eq!((first.lines().len(), second.lines().len()), (1, 1));
    assert!(second.lines()[0].contains("open #6"));
}

#[test]
fn a_request_that_is_given_up_shows_as_dropped() {
    let bench = Bench::new();
    let sink = bench.start(Format::Human);
    let top = Arc::clone(&bench.top);
    bench.sim.block_on(async move {
        let cx = Cx::new(1, Credentials::ROOT, "test");
        let mut answer =
            Box::pin(async { top.call(&cx, GetAttr { node: Node(5), handle: None }.into()).await });
        let first = std::future::poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        assert!(first.is_pending());
        cx.cancel.raise();
    });
    bench.sim.run();
    let lines: Vec<String> = sink.lines().iter().map(|line| timeless(line)).collect();
    assert_eq!(lines, ["#1 getattr #5 ...", "#1 getattr #5 = dropped, cancelled"]);
}

#[test]
fn lines_that_find_no_room_are_counted_and_requests_go_on() {
    let bench = Bench::new();
    let sink = bench.start(Format::Human);
    let cx = Cx::new(1, Credentials::ROOT, "test");
    let extra = 5;
    // No job runs in between: the sink is as slow as can be.
    for _ in 0..QUEUE_LINES + extra {
        let open = Open { node: Node(5), flags: OpenFlags::empty() };
        assert!(matches!(bench.top.call(&cx, open.into()), Answer::Ready(Reply::Done(()))));
    }
    bench.sim.run();
    assert_eq!((sink.lines().len(), bench.control.dropped()), (QUEUE_LINES, extra as u64));
}

#[test]
fn few_whole_lines_are_written_at_once() {
    struct Whole;
    impl Write for Whole {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
            let is_good = bytes.ends_with(b"\n") && lines <= control::LINES_AT_ONCE;
            if is_good { Ok(bytes.len()) } else { Err(io::ErrorKind::InvalidInput.into()) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let bench = Bench::new();
    bench.control.start(Box::new(Whole), Format::Human);
    let cx = Cx::new(1, Credentials::ROOT, "test");
    for _ in 0..10 * control::LINES_AT_ONCE + 1 {
        let open = Open { node: Node(5), flags: OpenFlags::empty() };
        assert!(matches!(bench.top.call(&cx, open.into()), Answer::Ready(Reply::Done(()))));
    }
    bench.sim.run();
    assert_eq!(bench.control.dropped(), 0);
}

#[test]
fn a_sink_that_fails_loses_lines_but_no_request() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let bench = Bench::new();
    bench.control.start(Box::new(Broken), Format::Human);
    for lost in 1..=3 {
        assert_eq!(bench.ask(Open { node: Node(5), flags: OpenFlags::empty() }), Reply::Done(()));
        assert_eq!(bench.control.dropped(), lost);
    }
}

#[test]
fn replies_are_described_by_their_size_not_their_content() {
    assert_eq!(describe::result(&Reply::Data(Payload::from(vec![0; 3]))), "3 bytes");
    assert_eq!(describe::result(&Reply::Names(vec![])), "0 names: ");
    assert_eq!(describe::result(&Reply::LockState(None)), "free");
}

#[test]
fn the_driver_is_asked_once_for_the_path_of_a_node_that_was_known_before() {
    let sim = Sim::new(1);
    let (layer, control) = Trace::new(sim.clone());
    let driver = Scripted::new(&sim, |_, request| match request {
        Request::Locate(_) => Step::Now(Reply::Target(Target::new("/old/dir").expect("a good path"))),
        _ => Step::Now(Reply::Done(())),
    });
    let top = Stack::new(driver.clone()).push(layer).expect("any order is good").service();
    let bench = Bench { sim, top, control };
    let sink = bench.start(Format::Human);
    let open = || Open { node: Node(5), flags: OpenFlags::empty() };
    let (name, to_name, flags) = (name("a"), name("b"), Default::default());
    bench.ask(open());
    bench.ask(open());
    bench.ask(Rename { dir: Node(5), name, to_dir: Node(1), to_name, flags });
    bench.ask(open());
    let lines: Vec<String> = sink.lines().iter().map(|line| timeless(line)).collect();
    let expected = ["open #5", "open /old/dir", "rename /old/dir/a -> /b", "open #5"];
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.contains(start), "{line}");
    }
    let asked = driver.started().iter().filter(|(_, request)| request.op() == OpCode::Locate).count();
    assert_eq!((lines.len(), asked), (4, 2), "once, and again after the rename");
}
