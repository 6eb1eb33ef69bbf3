// SPDX-License-Identifier: MIT OR Apache-2.0
//! The journal over drivers that a test scripts. What drivers with trees make of it is in `testing/crash`.

mod looked;
mod poison;
mod torn;

use super::*;
use outrigger_core::ops::*;
use outrigger_core::reply::{Count, IoctlDone, Opened};
use outrigger_core::{
    Backing, Credentials, Handle, HeapKeep, LockOwner, Node, Notify, OpSet, Payload, Stack, Time, ask,
};
use outrigger_sim::{Sim, sample};
use std::fs::File;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What a scripted driver does about a request: `None` is never to answer.
type Script = dyn Fn(&Cx, &Request) -> Option<Reply> + Send + Sync;

/// A driver that follows a script and remembers what it was asked.
struct Driver {
    script: Box<Script>,
    asked: Mutex<Vec<Request>>,
    later: bool,
}

impl Driver {
    fn new(script: impl Fn(&Cx, &Request) -> Option<Reply> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Driver { script: Box::new(script), asked: Mutex::default(), later: false })
    }

    fn later(script: impl Fn(&Cx, &Request) -> Option<Reply> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Driver { script: Box::new(script), asked: Mutex::default(), later: true })
    }

    fn asked(&self) -> Vec<OpCode> {
        self.asked.lock().unwrap().iter().map(Request::op).collect()
    }
}

impl Service for Driver {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        if self.later {
            return Answer::later(async move { self.answer(cx, &request).await });
        }
        match (self.script)(cx, &request) {
            Some(reply) => {
                self.asked.lock().unwrap().push(request);
                Answer::Ready(reply)
            }
            None => Answer::later(std::future::pending()),
        }
    }
    fn abilities(&self) -> Abilities {
        Abilities { class: DriverClass::PassThrough, ..Abilities::new("scripted", "", OpSet::all()) }
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

impl Driver {
    async fn answer(&self, cx: &Cx, request: &Request) -> Reply {
        self.asked.lock().unwrap().push(request.clone());
        match (self.script)(cx, request) {
            Some(reply) => reply,
            None => std::future::pending().await,
        }
    }
}

/// A clock that is later each time it is read.
#[derive(Default)]
struct Ticking(std::sync::atomic::AtomicI64);

impl Clock for Ticking {
    fn monotonic(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
    fn wall(&self) -> Time {
        Time::new(self.0.fetch_add(1, Ordering::Relaxed), 0)
    }
}

/// The handle of a file that appends.
const APPENDING: Handle = Handle(9);

/// A process that serves: a journal above a driver.
struct Process {
    journal: Journal,
    top: Arc<dyn Service>,
}

impl Process {
    fn start(keep: &dyn Keep, driver: &Arc<Driver>, culprit: Option<u64>) -> Self {
        let journal = Journal::attach(keep, Sim::new(0), culprit).unwrap();
        let top = Stack::new(driver.clone()).push(journal.clone()).unwrap().service();
        top.abilities();
        Process { journal, top }
    }

    /// The reply to a request, or `None` when it waits.
    fn ask(&self, id: u64, slot: u32, request: impl Into<Request>) -> Option<Reply> {
        let request = request.into();
        let appends = matches!(&request, Request::Write(op) if op.handle == APPENDING);
        let cx = Cx { slot, appends: Some(appends), ..Cx::new(id, Credentials::ROOT, "test") };
        poll_once(self.top.call(&cx, request).into_future())
    }
}

fn poll_once<T>(future: impl IntoFuture<Output = T>) -> Option<T> {
    match pin!(future.into_future()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn setattr() -> Request {
    SetAttr { node: Node(2), handle: None, attrs: Default::default() }.into()
}

fn getattr() -> Request {
    GetAttr { node: Node(2), handle: None }.into()
}

fn done() -> Option<Reply> {
    Some(Reply::Done(()))
}

#[test]
fn what_was_answered_is_answered_again_and_a_query_is_asked_again() {
    let mut random = sample::Random::with_seed(1);
    for round in 0..20 {
        for &op in OpCode::ALL {
            let request = sample::request(op, &mut random);
            let recorded = is_recorded(&request);
            let reply =
                if round % 4 == 0 { sample::error(&mut random) } else { sample::reply(op, &mut random) };
            let given = reply.clone();
            let driver = Driver::new(move |_, _| Some(given.clone()));
            let keep = HeapKeep::default();
            let first = Process::start(&keep, &driver, None).ask(7, 3, request.clone()).unwrap();
            assert_eq!(first, reply, "{op:?}");
            let asked = driver.asked().len();
            let successor = Process::start(&keep, &driver, None);
            let second = successor.ask(7, 5, request).unwrap();
            if recorded && fits(&reply) {
                assert_eq!((&second, driver.asked().len()), (&reply, asked), "{op:?}");
                assert_eq!(successor.journal.counts().replayed, 1);
            } else {
                assert!(driver.asked().len() > asked || second.error().is_some(), "{op:?}");
            }
        }
    }
}

/// Whether a reply is noted as it is.
fn fits(reply: &Reply) -> bool {
    let mut bytes = Vec::new();
    outrigger_core::Wire::put(reply, &mut bytes);
    bytes.len() <= entry::REPLY_BYTES
}

#[test]
fn a_reply_that_does_not_fit_is_asked_for_again_and_an_error_loses_its_reason() {
    let output = bytes::Bytes::from(vec![1; 500]);
    let large = Reply::IoctlDone(IoctlDone { result: 0, output });
    let ioctl = Ioctl {
        node: Node(2),
        handle: Handle(1),
        command: 1,
        argument: 0,
        input: bytes::Bytes::new(),
        output_size: 500,
    };
    let keep = HeapKeep::default();
    let answer = large.clone();
    let driver = Driver::new(move |_, _| Some(answer.clone()));
    let before = Process::start(&keep, &driver, None);
    assert_eq!(before.ask(1, 0, ioctl.clone()), Some(large.clone()));
    assert_eq!(before.journal.oldest(), None, "it was answered");
    assert_eq!(Process::start(&keep, &driver, None).ask(1, 0, ioctl), Some(large));
    assert_eq!(driver.asked(), [OpCode::Ioctl; 2]);

    let driver = Driver::new(|_, _| Some(Reply::Error(Errno::ENOSPC.because("x".repeat(500)))));
    Process::start(&keep, &driver, None).ask(2, 0, setattr());
    let again = Process::start(&keep, &driver, None).ask(2, 0, setattr());
    assert_eq!(again, Some(Reply::Error(Errno::ENOSPC.into())));
}

#[test]
fn a_request_that_comes_again_after_several_deaths_keeps_what_was_known() {
    let keep = HeapKeep::default();
    let driver = Driver::new(|_, _| Some(Reply::Count(Count(5))));
    let write = Write {
        node: Node(2),
        handle: Handle(1),
        offset: 0,
        data: Payload::from(vec![0; 5]),
        cached: false,
        kill_setid: false,
    };
    assert!(Process::start(&keep, &driver, None).ask(9, 4, write.clone()).is_some());
    for slot in 0..5 {
        let process = Process::start(&keep, &driver, None);
        assert_eq!(process.ask(100 + u64::from(slot), 4, getattr()), Some(Reply::Count(Count(5))));
        assert_eq!(process.ask(9, slot, write.clone()), Some(Reply::Count(Count(5))));
        drop(process);
        // One that dies before anybody asks again.
        Process::start(&keep, &driver, None);
    }
    assert_eq!(driver.asked().iter().filter(|&&op| op == OpCode::Write).count(), 1);
}

#[test]
fn the_ring_forgets_the_oldest_first() {
    let keep = HeapKeep::default();
    let driver = Driver::new(|_, _| done());
    let many = SLOTS as u64;
    for first in [1, many + 1] {
        let process = Process::start(&keep, &driver, None);
        (0..many).for_each(|slot| drop(process.ask(first + slot, slot as u32, setattr())));
    }
    let last = Process::start(&keep, &driver, None);
    let asked = driver.asked().len();
    (many + 1..=2 * many).for_each(|id| drop(last.ask(id, 0, setattr())));
    assert_eq!(driver.asked().len(), asked, "all that the last process left is known");
    assert_eq!(last.journal.counts().replayed, many);
    last.ask(1, 0, setattr());
    assert_eq!(driver.asked().len(), asked + 1, "what the one before left is not");
}

#[test]
fn slots_without_an_entry_are_passed_on_and_counted() {
    let driver = Driver::new(|_, _| done());
    let process = Process::start(&HeapKeep::default(), &driver, None);
    assert_eq!(process.ask(1, SLOTS as u32, setattr()), done());
    assert_eq!(process.ask(2, u32::MAX, setattr()), done());
    assert_eq!((process.journal.counts().unjournalled, process.journal.counts().answered), (2, 0));
    assert_eq!(process.ask(3, SLOTS as u32 - 1, setattr()), done());
    assert_eq!((process.journal.counts().unjournalled, process.journal.counts().answered), (2, 1));
}

#[test]
fn the_thread_knows_its_request_while_it_works_on_it() {
    let script = |cx: &Cx, _: &Request| {
        assert_eq!(current(), Some(cx.id));
        done()
    };
    for driver in [Driver::new(script), Driver::later(script)] {
        let process = Process::start(&HeapKeep::default(), &driver, None);
        for request in [getattr(), setattr()] {
            assert_eq!((process.ask(42, 0, request), current()), (done(), None));
        }
    }
}

#[test]
fn the_oldest_is_found_also_from_outside_and_waiting_for_a_lock_is_no_hang() {
    let keep = HeapKeep::default();
    let driver = Driver::new(|_, request| if request.op() == OpCode::StatFs { done() } else { None });
    let process = Process::start(&keep, &driver, None);
    let watch = Watch::open(keep.region(REGION, 0).unwrap()).unwrap();
    let lock = Lock { start: 0, end: 1, kind: LockKind::Write, pid: 1 };
    let lock =
        SetLock { node: Node(2), handle: Handle(1), owner: LockOwner(1), lock, wait: true, flock: false };
    assert_eq!(process.ask(5, 0, lock), None);
    assert_eq!(process.ask(6, 1, StatFs { node: Node(2) }), done());
    let now = Time::new(1_000_000_060, 0);
    assert_eq!(watch.oldest(now), None);
    assert_eq!(process.ask(7, 1, getattr()), None);
    assert_eq!(process.ask(8, 2, setattr()), None);
    let age = std::time::Duration::from_secs(60);
    assert_eq!(watch.oldest(now), Some(InFlight { id: 7, op: OpCode::GetAttr, age }));
    assert_eq!(process.journal.oldest().map(|oldest| oldest.id), Some(7));
    assert_eq!(watch.counts(), Counts { answered: 1, ..Counts::default() });
}

#[test]
fn a_recorded_handle_that_had_a_host_file_is_opened_anew_with_one() {
    let file: Arc<std::os::fd::OwnedFd> = Arc::new(File::open("/dev/null").unwrap().into());
    let handles = std::sync::atomic::AtomicU64::new(1);
    let driver = Driver::new(move |_, request| {
        let backing = Backing::new(Arc::clone(&file));
        let handle = Handle(handles.fetch_add(1, Ordering::Relaxed));
        let opened = Opened { handle, backing, ..Opened::default() };
        if request.op() == OpCode::Open { Some(Reply::Opened(opened)) } else { done() }
    });
    let keep = HeapKeep::default();
    let flags = OpenFlags::READ_WRITE | OpenFlags::TRUNC;
    Process::start(&keep, &driver, None).ask(1, 0, Open { node: Node(2), flags });
    let reply = Process::start(&keep, &driver, None).ask(1, 0, Open { node: Node(2), flags });
    let Some(Reply::Opened(opened)) = reply else { panic!("{reply:?}") };
    assert_eq!((opened.handle, opened.backing.fd().is_some()), (Handle(2), true));
    let asked = driver.asked.lock().unwrap();
    assert_eq!(asked[1], Open { node: Node(2), flags: OpenFlags::READ_WRITE }.into(), "emptied only once");
    assert!(matches!(&asked[2], Request::Release(release) if release.handle == Handle(1)));
}

#[test]
fn an_id_that_comes_with_another_operation_is_a_new_request() {
    let keep = HeapKeep::default();
    let driver = Driver::new(|_, _| done());
    Process::start(&keep, &driver, None).ask(1, 0, setattr());
    let process = Process::start(&keep, &driver, None);
    assert_eq!(process.ask(1, 0, RmDir { dir: Node(1), name: "a".try_into().unwrap() }), done());
    assert_eq!(process.journal.counts().replayed, 0);
}

#[test]
fn what_the_door_gives_back_under_the_id_of_a_request_does_not_hide_it() {
    for (opened, aside) in [(0, 1), (1, 0)] {
        let keep = HeapKeep::default();
        let driver = Driver::new(|_, request| match request {
            Request::Open(_) => Some(Reply::Opened(Opened { handle: Handle(4), ..Opened::default() })),
            _ => None,
        });
        let open = Open { node: Node(2), flags: OpenFlags::empty() };
        let release = Release {
            node: Node(2),
            handle: Handle(4),
            flags: OpenFlags::empty(),
            owner: LockOwner(0),
            flock_release: false,
        };
        let process = Process::start(&keep, &driver, None);
        let reply = process.ask(1, opened, open.clone());
        assert_eq!(process.ask(1, aside, release), None);
        assert_eq!(process.ask(1, 2, Forget { node: Node(2), count: 1 }), None);
        assert_eq!(Process::start(&keep, &driver, None).ask(1, 0, open), reply);
        assert_eq!(driver.asked(), [OpCode::Open]);
    }
}

#[test]
fn another_version_or_size_is_refused() {
    let driver = Driver::new(|_, _| done());
    for (word, value, errno) in [(0, 5, Errno::EUCLEAN), (2, 99, Errno::EPROTO)] {
        let keep = HeapKeep::default();
        Process::start(&keep, &driver, None);
        keep.region(REGION, 0).unwrap().word(word).store(value, Ordering::Relaxed);
        let refused = Journal::attach(&keep, Sim::new(0), None).err().unwrap();
        assert_eq!(refused.errno, errno);
    }
    let keep = HeapKeep::default();
    let small = keep.region(REGION, 100).unwrap();
    assert!(Watch::open(small).is_err() && Journal::attach(&keep, Sim::new(0), None).is_err());
}

#[test]
fn a_driver_elsewhere_is_looked_at_beforehand() {
    struct Far(Arc<Driver>);
    impl Service for Far {
        fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
            self.0.call(cx, request)
        }
        fn abilities(&self) -> Abilities {
            Abilities { class: DriverClass::Network, ..self.0.abilities() }
        }
        fn attach(&self, _: Arc<dyn Notify>) {}
    }
    let mut random = sample::Random::with_seed(3);
    let Reply::Entry(mut entry) = sample::reply(OpCode::Lookup, &mut random) else { unreachable!() };
    entry.attr.btime = Some(Time::new(5, 0));
    let driver = Driver::new(move |_, request| match request {
        Request::Lookup(_) => Some(Reply::Error(Errno::ENOENT.into())),
        _ => Some(Reply::Entry(entry.clone())),
    });
    let looks = |driver: Arc<dyn Service>, clock: Arc<dyn Clock>| {
        let journal = Journal::attach(&HeapKeep::default(), clock, None).unwrap();
        let top = Stack::new(driver).push(journal).unwrap().service();
        top.abilities();
        for name in ["a", "b"] {
            let mkdir =
                MkDir { dir: Node(1), name: name.try_into().unwrap(), mode: 0o755, umask: 0, initial: None };
            let cx = Cx::new(1, Credentials::ROOT, "test");
            poll_once(ask(&*top, &cx, mkdir)).unwrap().unwrap();
        }
    };
    looks(driver.clone(), Arc::new(Ticking::default()));
    assert_eq!(driver.asked(), [OpCode::Lookup, OpCode::MkDir, OpCode::MkDir], "until births are known");
    looks(Arc::new(Far(driver.clone())), Arc::new(Ticking::default()));
    assert_eq!(driver.asked()[3..], [OpCode::Lookup, OpCode::MkDir, OpCode::Lookup, OpCode::MkDir]);
}

/// An entry that a lookup of `kind` answers.
fn entry_of(kind: outrigger_core::FileKind, born: Time) -> outrigger_core::reply::Entry {
    let Reply::Entry(mut entry) = sample::reply(OpCode::Lookup, &mut sample::Random::with_seed(3)) else {
        unreachable!()
    };
    entry.attr.mode = kind.bits() | 0o644;
    entry.attr.btime = Some(born);
    entry
}

#[test]
fn a_file_that_was_made_is_not_emptied_again_for_others_may_have_found_it() {
    let keep = HeapKeep::default();
    let missing = || Some(Reply::Error(Errno::ENOENT.into()));
    let dies = Driver::new(move |_, request| if request.op() == OpCode::Lookup { missing() } else { None });
    let flags = OpenFlags::READ_WRITE | OpenFlags::EXCL | OpenFlags::TRUNC | OpenFlags::APPEND;
    let create =
        Create { dir: Node(1), name: "a".try_into().unwrap(), mode: 0o644, umask: 0, flags, initial: None };
    assert_eq!(Process::start(&keep, &dies, None).ask(1, 0, create.clone()), None);
    let made = entry_of(outrigger_core::FileKind::Regular, Time::new(5, 0));
    let found = made.clone();
    let driver = Driver::new(move |_, request| match request {
        Request::Lookup(_) => Some(Reply::Entry(found.clone())),
        _ => Some(Reply::Opened(Opened { handle: Handle(9), ..Opened::default() })),
    });
    let process = Process::start(&keep, &driver, None);
    let reply = process.ask(1, 0, create).unwrap();
    assert!(
        matches!(&reply, Reply::Created(created) if created.entry == made && created.opened.handle == Handle(9))
    );
    let open = Open { node: made.node, flags: OpenFlags::READ_WRITE | OpenFlags::APPEND };
    assert_eq!(driver.asked.lock().unwrap()[1..], [open.into()], "nor is it made or looked up once more");
}

#[test]
fn what_somebody_else_made_since_is_not_removed() {
    for before in [Some(Time::new(5, 0)), None] {
        let keep = HeapKeep::default();
        let entry = |born| Some(Reply::Entry(entry_of(outrigger_core::FileKind::Regular, born)));
        let missing = || Some(Reply::Error(Errno::ENOENT.into()));
        let dies = Driver::new(move |_, request| match request {
            Request::Unlink(_) => None,
            _ => before.map_or_else(missing, entry),
        });
        let unlink = Unlink { dir: Node(1), name: "a".try_into().unwrap() };
        assert_eq!(Process::start(&keep, &dies, None).ask(1, 0, unlink.clone()), None);
        let driver = Driver::new(move |_, _| entry(Time::new(6, 0)));
        let reply = Process::start(&keep, &driver, None).ask(1, 0, unlink).unwrap();
        let expected = if before.is_some() { Reply::Done(()) } else { Reply::Error(Errno::ENOENT.into()) };
        assert_eq!((reply, driver.asked()), (expected, vec![OpCode::Lookup, OpCode::Forget]));
    }
}

#[test]
fn an_append_is_finished_where_it_began() {
    let write = Write {
        node: Node(2),
        handle: APPENDING,
        offset: 0,
        data: Payload::from(vec![1; 5]),
        cached: false,
        kill_setid: true,
    };
    let exact = Write { offset: 10, cached: true, ..write.clone() };
    // How large the file is when the write comes again, and what is asked then.
    let cases =
        [(10, Some(write.clone())), (12, Some(exact)), (15, None), (40, None), (3, Some(write.clone()))];
    for (now, expected) in cases {
        let keep = HeapKeep::default();
        let sized = |size| {
            let attr = outrigger_core::Attr { size, ..Default::default() };
            Some(Reply::Attrs(outrigger_core::reply::Attrs { attr, ttl: Default::default() }))
        };
        let dies = Driver::new(move |_, request| match request {
            Request::Open(_) => Some(Reply::Opened(Opened { handle: APPENDING, ..Opened::default() })),
            Request::GetAttr(_) => sized(10),
            _ => None,
        });
        let process = Process::start(&keep, &dies, None);
        assert_eq!(process.ask(2, 1, write.clone()), None);
        let driver = Driver::new(move |_, request| match request {
            Request::GetAttr(_) => sized(now),
            _ => Some(Reply::Count(Count(5))),
        });
        let reply = Process::start(&keep, &driver, None).ask(2, 1, write.clone());
        assert_eq!(reply, Some(Reply::Count(Count(5))));
        let asked = driver.asked.lock().unwrap();
        assert_eq!(asked.get(1), expected.map(Request::from).as_ref(), "{now} bytes");
    }
}
