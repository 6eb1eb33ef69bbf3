// SPDX-License-Identifier: MIT OR Apache-2.0
//! Power cuts, above a disk that stores one file.

use super::*;
use outrigger_core::ops::{GetAttr, SetAttr};
use outrigger_core::reply::Attrs;
use outrigger_core::{Abilities, BoxFuture, Notify, OpSet, SetAttrs};
use std::future::poll_fn;
use std::task::Poll;

const SLOW: Duration = Duration::from_secs(1);
const FILE: Node = Node(2);

/// A disk with one file. Requests with these ids take their time, and have no effect before they end.
struct Disk {
    sim: Arc<Sim>,
    slow: &'static [u64],
    file: Mutex<Vec<u8>>,
    /// From where on nothing can be read.
    bad: usize,
}

impl Disk {
    fn file(&self) -> MutexGuard<'_, Vec<u8>> {
        self.file.lock().expect("no panic before")
    }

    fn carry_out(&self, request: Request) -> Reply {
        let mut file = self.file();
        match request {
            Request::GetAttr(_) => {
                let attr = Attr { size: file.len() as u64, ..Attr::default() };
                Reply::Attrs(Attrs { attr, ttl: Ttl::NEVER })
            }
            Request::SetAttr(SetAttr { attrs: SetAttrs { size: Some(size), .. }, .. }) => {
                file.resize(size as usize, 0);
                Reply::Attrs(Attrs { attr: Attr::default(), ttl: Ttl::NEVER })
            }
            Request::Open(_) => {
                Reply::Opened(Opened { handle: Handle(1), how: OpenHow::empty(), backing: Backing::NONE })
            }
            Request::Read(Read { offset, len, .. }) => {
                let end = file.len().min(offset as usize + len as usize);
                if end > self.bad {
                    return Reply::Error(Errno::EIO.into());
                }
                Reply::Data(Payload::from(file[offset as usize..end].to_vec()))
            }
            Request::Write(Write { offset, data, .. }) => {
                let (offset, data) = (offset as usize, data.into_bytes().expect("bytes"));
                let len = file.len().max(offset + data.len());
                file.resize(len, 0);
                file[offset..][..data.len()].copy_from_slice(&data);
                Reply::Count(Count(data.len() as u64))
            }
            _ => Reply::Done(()),
        }
    }
}

impl Service for Disk {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        Answer::later(async move {
            if self.slow.contains(&cx.id) {
                self.sim.sleep_until(self.sim.monotonic() + SLOW).await;
            }
            self.carry_out(request)
        })
    }

    fn abilities(&self) -> Abilities {
        Abilities::new("disk", "test", OpSet::all())
    }

    fn attach(&self, _: Arc<dyn Notify>) {}
}

/// The layer over such a disk, whose file has `old!` as its content.
struct Cutter {
    sim: Arc<Sim>,
    disk: Arc<Disk>,
    top: Arc<dyn Service>,
    control: FaultControl,
}

impl Cutter {
    fn new(rules: &str, slow: &'static [u64]) -> Self {
        Cutter::over(rules, slow, b"old!".to_vec(), usize::MAX)
    }

    fn over(rules: &str, slow: &'static [u64], content: Vec<u8>, bad: usize) -> Self {
        let sim = Sim::new(1);
        let disk = Arc::new(Disk { sim: sim.clone(), slow, file: Mutex::new(content), bad });
        let fault = Fault::parse(rules, sim.clone()).expect("good rules");
        let control = fault.control();
        let top = Stack::new(disk.clone()).push(fault).expect("any order is good").service();
        Cutter { sim, disk, top, control }
    }

    fn request(&self, id: u64, request: Request) -> BoxFuture<'static, Reply> {
        let (top, cx) = (Arc::clone(&self.top), Cx::new(id, Credentials::ROOT, "test"));
        Box::pin(async move { top.call(&cx, request).await })
    }

    fn ask(&self, id: u64, request: Request) -> Reply {
        self.sim.block_on(self.request(id, request))
    }

    /// Starts a request, which goes as far as it can at once, and cuts the power; the reply to the request.
    fn cut_during(&self, id: u64, request: Request) -> Reply {
        let mut request = self.request(id, request);
        let place = Arc::new(Mutex::new(None));
        let cut = self.request(99, mkdir());
        let (sim, result) = (self.sim.clone(), Arc::clone(&place));
        let cut = self.sim.block_on(async move {
            poll_fn(|context| Poll::Ready(request.as_mut().poll(context).is_ready())).await;
            sim.spawn(Box::pin(async move { *result.lock().expect("no panic") = Some(request.await) }));
            cut.await
        });
        assert!(cut.error().is_some());
        assert_eq!(self.sim.run(), 0, "no task is left");
        place.lock().expect("no panic").take().expect("a reply")
    }
}

fn overwrite(text: &str) -> Request {
    write_at(0, text)
}

fn write_at(offset: u64, text: &str) -> Request {
    let data = Payload::from(text.as_bytes().to_vec());
    Write { node: FILE, handle: Handle(1), offset, data, cached: false, kill_setid: false }.into()
}

fn truncate(size: u64) -> Request {
    let attrs = SetAttrs { size: Some(size), ..SetAttrs::default() };
    SetAttr { node: FILE, handle: None, attrs }.into()
}

fn fsync() -> Request {
    FSync { node: FILE, handle: Handle(1), data_only: false }.into()
}

#[test]
fn a_power_cut_undoes_what_was_not_synchronised() {
    let cutter = Cutter::new("op=mkdir,cut", &[]);
    for request in [overwrite("kept"), fsync(), overwrite("lost and longer")] {
        assert!(cutter.ask(1, request).error().is_none());
    }
    assert!(cutter.ask(1, mkdir()).error().is_some());
    assert!(cutter.ask(1, overwrite("late")).error().is_some());
    assert_eq!(*cutter.disk.file(), b"kept");
    cutter.control.replace("").expect("no rule");
    assert!(cutter.ask(1, overwrite("late")).error().is_none());
}

#[test]
fn what_is_under_way_at_a_power_cut_says_success_only_when_it_is_stored() {
    for (rules, slow) in [
        ("op=mkdir,cut", &[7][..]),
        ("op=fsync|write,after=1,delay=500ms;op=mkdir,cut", &[]),
        ("op=fsync|write,after=1,delay=500ms;op=mkdir,cut", &[7]),
    ] {
        let cutter = Cutter::new(rules, slow);
        cutter.ask(1, overwrite("new!"));
        let reply = cutter.cut_during(7, fsync());
        assert!(reply.error().is_some(), "fsync, {rules}");
        // What was below when the power failed has synchronised; what waited for its delay has not.
        let stored = rules.starts_with("op=mkdir");
        assert_eq!(*cutter.disk.file(), if stored { *b"new!" } else { *b"old!" }, "fsync, {rules}");

        let cutter = Cutter::new(rules, slow);
        cutter.ask(1, overwrite("old!"));
        let reply = cutter.cut_during(7, overwrite("new!"));
        assert!(reply.error().is_some(), "write, {rules}");
        assert_eq!(*cutter.disk.file(), b"old!", "write, {rules}");
    }
}

#[test]
fn a_power_cut_undoes_although_its_caller_has_gone() {
    let cutter = Cutter::new("op=mkdir,cut", &[7]);
    cutter.ask(1, overwrite("new!"));
    let (mut write, mut cut) = (cutter.request(7, overwrite("more")), cutter.request(1, mkdir()));
    cutter.sim.block_on(async move {
        poll_fn(|context| {
            assert!(write.as_mut().poll(context).is_pending() && cut.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    });
    cutter.sim.run();
    assert_eq!(*cutter.disk.file(), b"old!");
}

#[test]
fn new_rules_put_the_power_on_when_the_cut_has_ended() {
    let cutter = Cutter::new("op=mkdir,cut", &[7]);
    let mut write = cutter.request(7, overwrite("new!"));
    let (mut cut, mut early) = (cutter.request(1, mkdir()), cutter.request(1, overwrite("early")));
    let control = cutter.control.clone();
    cutter.sim.block_on(async move {
        poll_fn(|context| {
            assert!(write.as_mut().poll(context).is_pending() && cut.as_mut().poll(context).is_pending());
            control.replace("").expect("no rule");
            assert!(matches!(early.as_mut().poll(context), Poll::Ready(Reply::Error(_))));
            Poll::Ready(())
        })
        .await;
        write.await;
        cut.await;
    });
    assert_eq!(*cutter.disk.file(), b"old!");
    assert!(cutter.ask(1, GetAttr { node: FILE, handle: None }.into()).error().is_none());
}

#[test]
fn a_cut_that_waited_while_its_rule_was_replaced_does_not_come() {
    let cutter = Cutter::new("op=mkdir,delay=500ms,cut", &[]);
    let (mut late, control) = (cutter.request(1, mkdir()), cutter.control.clone());
    let reply = cutter.sim.block_on(async move {
        poll_fn(|context| {
            assert!(late.as_mut().poll(context).is_pending());
            control.replace("op=fsync,cut").expect("a good rule");
            Poll::Ready(())
        })
        .await;
        late.await
    });
    assert_eq!(reply, Reply::Done(()));
    assert!(cutter.ask(1, overwrite("new!")).error().is_none(), "there is power");
    assert!(
        cutter.ask(1, fsync()).error().is_some() && *cutter.disk.file() == *b"old!",
        "the new rule cuts it"
    );
}

#[test]
fn a_power_cut_undoes_only_what_was_written_since_its_rule_is_there() {
    let cutter = Cutter::new("op=mkdir,cut", &[]);
    cutter.ask(1, overwrite("new!"));
    cutter.control.replace("").expect("no rule");
    assert!(cutter.ask(1, fsync()).error().is_none());
    cutter.control.replace("op=mkdir,cut").expect("a good rule");
    cutter.ask(1, mkdir());
    assert_eq!(*cutter.disk.file(), b"new!", "it was synchronised");
    cutter.control.replace("op=mkdir,cut").expect("a good rule");
    cutter.ask(1, overwrite("lost"));
    cutter.ask(1, mkdir());
    assert_eq!(*cutter.disk.file(), b"new!");
}

#[test]
fn a_power_cut_undoes_appends_up_to_the_last_fsync() {
    let cutter = Cutter::new("op=mkdir,cut", &[]);
    let appends = [write_at(4, "a"), fsync(), write_at(5, "b"), write_at(6, "c"), write_at(9, "d")];
    for request in appends.into_iter().chain([truncate(2), write_at(2, "e"), write_at(3, "f")]) {
        assert!(cutter.ask(1, request).error().is_none());
    }
    assert_eq!(*cutter.disk.file(), b"olef");
    cutter.ask(1, mkdir());
    assert_eq!(*cutter.disk.file(), b"old!a");
}

#[test]
fn what_cannot_be_read_whole_is_not_put_back_in_part() {
    let cutter = Cutter::over("op=mkdir,cut", &[], vec![b'A'; 300_000], 200_000);
    for request in [overwrite("noted"), truncate(0), overwrite("new"), write_at(3, " and newer")] {
        assert!(cutter.ask(1, request).error().is_none());
    }
    cutter.ask(1, mkdir());
    assert!(cutter.disk.file().is_empty(), "the emptied file counts as synchronised");
}

#[test]
fn a_file_larger_than_what_is_remembered_is_not_put_back_in_part() {
    let sim = Sim::new(1);
    let huge = Attrs { attr: Attr { size: 300 << 20, ..Attr::default() }, ttl: Ttl::NEVER };
    let driver = Scripted::new(&sim, move |cx, request| match request {
        Request::GetAttr(_) | Request::SetAttr(_) => Step::Now(Reply::Attrs(huge.clone())),
        Request::Open(_) => Step::Now(Reply::Opened(Opened {
            handle: Handle(1),
            how: OpenHow::empty(),
            backing: Backing::NONE,
        })),
        other => script(cx, other),
    });
    let fault = Fault::parse("op=mkdir,cut", sim.clone()).expect("a good rule");
    let top = Stack::new(driver.clone()).push(fault).expect("any order is good").service();
    for request in [write(2), truncate(0), mkdir()] {
        let (top, cx) = (Arc::clone(&top), Cx::new(1, Credentials::ROOT, "test"));
        sim.block_on(async move { top.call(&cx, request).await });
    }
    let started = driver.started();
    let changes: Vec<_> = started.iter().map(|(_, request)| request).filter(|&r| undo::changes(r)).collect();
    assert_eq!(changes, [&write(2), &truncate(0)], "nothing is put back");
}
