// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that traces: what it does when a thread of a program stops, and when one is to go on.

use super::lent::Lent;
use super::stopped::{Handed, Stopped, call_of, close_and_repeat};
use super::{Order, Tracer};
use crate::failed;
use crate::notify::filter::{Fate, filter_traced};
use crate::notify::redirect::{AT_CALL, SYSCALL};
use crate::notify::source::Call;
use crate::tracee::{go_on, refused};
use libc::{c_int, c_uint, sock_filter, user_regs_struct};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, Stat, fstat, statat};
use rustix::io::{read, retry_on_intr};
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Until when a thread of a program goes on.
#[derive(Clone, Copy)]
enum Until {
    /// Until its next call that is answered.
    Call,
    /// The same; that call is the one that it is at the beginning of.
    SameCall,
    /// Until its call has ended.
    End(End),
}

/// What is restored where a call ends.
#[derive(Clone, Copy)]
struct End {
    /// The number of the call that the program has made, by which the kernel begins one again.
    number: u64,
    arguments: [u64; 6],
    /// What the call comes to; `None` where that is what the kernel says.
    value: Option<i64>,
}

/// A thread of a program.
enum Thread {
    Runs(Until),
    /// Its call waits for an answer.
    Waits(u64, Stopped),
}

/// A file that is open here while a program opens it, too: what is open for writing stays that all the time.
struct Given {
    file: OwnedFd,
    /// Whether the call can be made once more.
    is_repeatable: bool,
    /// Permissions that it has meanwhile.
    lent: Option<Arc<Lent>>,
}

impl Given {
    /// Whether a program has opened this file under a number, and not one that has taken its name since.
    fn is_open_in(&self, pid: Pid, number: u64) -> bool {
        let identity = |found: Stat| (found.st_dev, found.st_ino);
        let there = statat(CWD, format!("/proc/{pid}/fd/{number}"), AtFlags::empty()).map(identity);
        fstat(&self.file).map(identity) == there
    }
}

/// The programs, in the thread that traces them.
pub(super) struct Stops {
    tracer: Arc<Tracer>,
    woken: UnixStream,
    /// The one that was started.
    program: Pid,
    /// Threads stop at calls that are answered only.
    is_filtered: bool,
    /// What is decided about calls, by the kernel or here.
    filter: Vec<sock_filter>,
    threads: HashMap<i32, Thread>,
    /// Threads that are to stop with their process when their call has ended.
    stopping: HashSet<i32>,
    /// What threads are opening.
    given: HashMap<i32, Given>,
    /// How many calls have come.
    count: u64,
}

impl Stops {
    /// Traces a child that waits.
    ///
    /// # Errors
    /// A sentence about what this system does not permit.
    pub(super) fn begin(
        child: u32,
        is_filtered: bool,
        tracer: Arc<Tracer>,
        woken: UnixStream,
    ) -> Result<Self, String> {
        let program = Pid::from_raw(child.cast_signed());
        // A process inherits that it blocks it.
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGCHLD);
        signals.thread_unblock().map_err(failed("SIGCHLD"))?;
        let mut options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_EXITKILL
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC;
        options.set(Options::PTRACE_O_TRACESECCOMP, is_filtered);
        ptrace::seize(program, options).map_err(|errno| refused(program, errno))?;
        if !is_filtered {
            // It is in a call already.
            ptrace::interrupt(program).map_err(|errno| refused(program, errno))?;
        }
        let (threads, given, stopping) = (HashMap::new(), HashMap::new(), HashSet::new());
        let filter = filter_traced(tracer.filter);
        Ok(Stops { tracer, woken, program, is_filtered, filter, threads, stopping, given, count: 0 })
    }

    /// Does what is to be done until no program is left.
    pub(super) fn attend(&mut self) {
        let mut bytes = [0; 256];
        loop {
            while read(&self.woken, &mut bytes).is_ok_and(|count| count == bytes.len()) {}
            loop {
                match next() {
                    Ok(Some((thread, status))) => self.stopped(thread, status),
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            let orders = std::mem::take(&mut self.tracer.lock().orders);
            orders.into_iter().for_each(|(call, order)| self.carry_out(&call, order));
            let _ = retry_on_intr(|| {
                poll(&mut [PollFd::from_borrowed_fd(self.woken.as_fd(), PollFlags::IN)], None)
            });
        }
    }

    /// A thread has stopped or ended.
    fn stopped(&mut self, thread: i32, status: c_int) {
        let pid = Pid::from_raw(thread);
        if !libc::WIFSTOPPED(status) {
            self.forget(thread);
            if pid == self.program {
                self.tracer.lock().status = Some(ExitStatus::from_raw(status));
                self.tracer.changed.notify_all();
            }
            return;
        }
        let done = match (status >> 16, libc::WSTOPSIG(status)) {
            (libc::PTRACE_EVENT_STOP, libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) => {
                go_on(libc::PTRACE_LISTEN, pid, 0)
            }
            (libc::PTRACE_EVENT_EXEC, _) => self.executed(pid),
            (libc::PTRACE_EVENT_SECCOMP, _) => self.at_filter(pid),
            (0, AT_CALL) => self.at_call(pid),
            (0, signal) => go_on(self.how(thread), pid, signal),
            _ => go_on(self.how(thread), pid, 0),
        };
        let is_at_call =
            matches!((status >> 16, libc::WSTOPSIG(status)), (libc::PTRACE_EVENT_SECCOMP, _) | (0, AT_CALL));
        match done {
            // One that was killed meanwhile says so later.
            Ok(()) | Err(Errno::ESRCH) => {}
            // What it calls is not known, and so not left to the kernel.
            Err(_) if is_at_call => _ = kill(pid, Signal::SIGKILL),
            // No other one may stay where it is.
            Err(_) => _ = self.go_on(pid, Until::Call),
        }
    }

    /// It is another program now. Of its threads, the one that called goes on, under the number of the process.
    fn executed(&mut self, pid: Pid) -> Result<(), Errno> {
        let former = ptrace::getevent(pid)? as i32;
        self.forget(former);
        self.forget(pid.as_raw());
        self.go_on(pid, Until::Call)
    }

    /// The filter has found a call that is answered.
    fn at_filter(&mut self, pid: Pid) -> Result<(), Errno> {
        match self.threads.get(&pid.as_raw()) {
            Some(Thread::Runs(Until::SameCall)) => self.go_on(pid, Until::Call),
            Some(Thread::Runs(Until::End(..))) => go_on(libc::PTRACE_SYSCALL, pid, 0),
            _ => self.called(pid),
        }
    }

    /// A call begins or ends.
    fn at_call(&mut self, pid: Pid) -> Result<(), Errno> {
        let is_end = call_of(pid)?.op == libc::PTRACE_SYSCALL_INFO_EXIT;
        match self.threads.get(&pid.as_raw()) {
            Some(&Thread::Runs(Until::End(end))) => self.ended(pid, end),
            _ if is_end || self.is_filtered => self.go_on(pid, Until::Call),
            _ => self.called(pid),
        }
    }

    /// A call has ended that was made in place of that of the program, or with other arguments.
    fn ended(&mut self, pid: Pid, end: End) -> Result<(), Errno> {
        let now = ptrace::getregs(pid)?;
        let [rdi, rsi, rdx, r10, r8, r9] = end.arguments;
        let own = user_regs_struct { rdi, rsi, rdx, r10, r8, r9, orig_rax: end.number, ..now };
        // It goes on when it alone has the file.
        let given = self.given.remove(&pid.as_raw());
        let is_another = |given: &Given| match now.rax.cast_signed() {
            error if error == -i64::from(libc::ENOENT) => true,
            number => number >= 0 && !given.is_open_in(pid, now.rax),
        };
        match given.filter(is_another) {
            None => {
                let rax = end.value.map_or(now.rax, i64::cast_unsigned);
                ptrace::setregs(pid, user_regs_struct { rax, ..own })?;
            }
            Some(given) => {
                let again = match given.is_repeatable {
                    true => user_regs_struct {
                        rax: end.number,
                        rip: now.rip - SYSCALL,
                        orig_rax: u64::MAX,
                        ..own
                    },
                    false => {
                        user_regs_struct { rax: -i64::from(libc::ESTALE) as u64, orig_rax: u64::MAX, ..own }
                    }
                };
                drop(given);
                match now.rax.cast_signed() {
                    0.. => close_and_repeat(pid, now.rax, now, again)?,
                    _ => ptrace::setregs(pid, again)?,
                }
            }
        }
        self.go_on(pid, Until::Call)
    }

    /// A call begins: one that is answered waits from now on.
    fn called(&mut self, pid: Pid) -> Result<(), Errno> {
        let info = call_of(pid)?;
        // SAFETY: it stops at the beginning of a call, or in a filter, whose data begin with the same fields.
        let entry = unsafe { info.u.entry };
        let stopped = Stopped {
            pid,
            before: ptrace::getregs(pid)?,
            architecture: info.arch,
            is_before_filters: !self.is_filtered,
            stops_with_group: false,
        };
        let data = libc::seccomp_data {
            nr: entry.nr as c_int,
            arch: info.arch,
            instruction_pointer: info.instruction_pointer,
            args: entry.args,
        };
        match Fate::of(&self.filter, &data) {
            Fate::Allowed => return self.go_on(pid, Until::Call),
            Fate::Refused(errno) => {
                let until = answer(&stopped, -i64::from(errno))?;
                return self.go_on(pid, until);
            }
            Fate::Answered => {}
        }
        self.count += 1;
        let call = Call { id: self.count, pid: pid.as_raw().cast_unsigned(), flags: 0, data };
        self.threads.insert(pid.as_raw(), Thread::Waits(self.count, stopped));
        let mut state = self.tracer.lock();
        state.waiting.insert(pid.as_raw(), self.count);
        state.calls.push_back(call);
        self.tracer.changed.notify_all();
        Ok(())
    }

    /// Does what is to be done with a call that waits. Of a thread that was killed nothing is left to be done.
    fn carry_out(&mut self, call: &Call, order: Order) {
        let thread = call.pid.cast_signed();
        let waits = matches!(self.threads.get(&thread), Some(Thread::Waits(id, _)) if *id == call.id);
        let Some(Thread::Waits(id, mut stopped)) = waits.then(|| self.forget(thread)).flatten() else {
            return;
        };
        if !stopped.is_there() {
            // It is another program now, which says so, or was killed.
            return;
        }
        let done = self.obey(thread, &mut stopped, order);
        let _ = match done {
            Ok(Some(until)) => {
                if stopped.stops_with_group {
                    self.stopping.insert(thread);
                }
                self.go_on(stopped.pid, until)
            }
            // It waits for another order.
            Ok(None) => {
                self.tracer.lock().waiting.insert(thread, id);
                self.threads.insert(thread, Thread::Waits(id, stopped));
                Ok(())
            }
            Err(Errno::ENOEXEC) => self.executed(stopped.pid),
            Err(errno) => Err(errno),
        };
    }

    /// Does what an order says, and answers until when the thread goes on; `None` when it goes on waiting.
    fn obey(&mut self, thread: i32, stopped: &mut Stopped, order: Order) -> Result<Option<Until>, Errno> {
        match order {
            Order::Pass if stopped.is_before_filters && self.is_filtered => Ok(Some(Until::SameCall)),
            Order::Pass => Ok(Some(Until::Call)),
            Order::Answer(value) => answer(stopped, value).map(Some),
            Order::Give(file, close_on_exec, is_repeatable) => {
                let handed = Handed { close_on_exec, takes_no_link: self.tracer.is_apart() };
                match stopped.open(file.as_fd(), handed) {
                    Ok(()) => {
                        let lent = self.lend(&file);
                        self.given.insert(thread, Given { file, is_repeatable, lent });
                        Ok(Some(Until::End(stopped.end(None))))
                    }
                    Err(Errno::ENOEXEC) => Err(Errno::ENOEXEC),
                    Err(errno) => answer(stopped, -i64::from(errno as i32)).map(Some),
                }
            }
            Order::Prepare(done) => waits_on(stopped.prepare(), &done),
            Order::Seek(file, place, done) => waits_on(stopped.seek(file, place), &done),
            Order::Redirect(bytes, arguments, done) => {
                let changed = stopped.write(&bytes).and_then(|()| stopped.change(&arguments));
                let _ = done.send(changed);
                match changed {
                    Ok(()) => Ok(Some(Until::End(stopped.end(None)))),
                    Err(Errno::ENOEXEC) => Err(Errno::ENOEXEC),
                    Err(_) => Ok(None),
                }
            }
        }
    }

    /// Lends a file of this server permissions for a program that is about to open it.
    fn lend(&self, file: &OwnedFd) -> Option<Arc<Lent>> {
        let is_own = |path: &[u8]| self.tracer.is_own(path);
        Lent::to_open(file, is_own, self.given.values().filter_map(|given| given.lent.as_ref()))
    }

    fn go_on(&mut self, pid: Pid, until: Until) -> Result<(), Errno> {
        self.threads.insert(pid.as_raw(), Thread::Runs(until));
        // Any stop but the last one would take it for done.
        if matches!(until, Until::Call) && self.stopping.remove(&pid.as_raw()) {
            ptrace::interrupt(pid)?;
        }
        go_on(self.how(pid.as_raw()), pid, 0)
    }

    /// How a thread goes on.
    fn how(&self, thread: i32) -> c_uint {
        match self.threads.get(&thread) {
            Some(Thread::Runs(Until::End(..))) => libc::PTRACE_SYSCALL,
            _ if self.is_filtered => libc::PTRACE_CONT,
            _ => libc::PTRACE_SYSCALL,
        }
    }

    /// Nothing is known of a thread any more.
    fn forget(&mut self, thread: i32) -> Option<Thread> {
        self.tracer.lock().waiting.remove(&thread);
        self.given.remove(&thread);
        self.stopping.remove(&thread);
        self.threads.remove(&thread)
    }
}

impl Drop for Stops {
    /// Programs end with the thread that traces them.
    fn drop(&mut self) {
        let mut state = self.tracer.lock();
        state.is_over = true;
        state.orders.clear();
        self.tracer.changed.notify_all();
    }
}

impl Stopped {
    /// What is restored where its call ends.
    fn end(&self, value: Option<i64>) -> End {
        End { number: self.before.orig_rax, arguments: self.arguments(), value }
    }
}

/// Sends what came of an order; the thread waits for another one, unless it is another program now.
fn waits_on(outcome: Result<(), Errno>, done: &Sender<Result<(), Errno>>) -> Result<Option<Until>, Errno> {
    let _ = done.send(outcome);
    if outcome == Err(Errno::ENOEXEC) { Err(Errno::ENOEXEC) } else { Ok(None) }
}

/// Answers a call; until when the thread goes on then.
fn answer(stopped: &Stopped, value: i64) -> Result<Until, Errno> {
    let is_made = stopped.answer(value)?;
    Ok(if is_made { Until::End(stopped.end(Some(value))) } else { Until::Call })
}

/// The next thread that has stopped or ended, and how; `None` when there is none now.
///
/// # Errors
/// `ECHILD` when no program is left.
fn next() -> Result<Option<(i32, c_int)>, Errno> {
    let mut status = 0;
    let what = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    // SAFETY: the kernel writes to a variable that outlives the call.
    let found = unsafe { libc::waitpid(-1, &raw mut status, what) };
    Ok(Some(Errno::result(found)?).filter(|&thread| thread != 0).map(|thread| (thread, status)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Filter;
    use crate::notify::source::Source;
    use std::sync::{Condvar, Mutex, OnceLock};
    use std::time::Duration;

    #[test]
    fn who_waits_for_a_program_learns_that_its_tracer_has_panicked() {
        let (wake, woken) = UnixStream::pair().unwrap();
        let (state, changed, own) = (Mutex::default(), Condvar::new(), OnceLock::new());
        let tracer = Arc::new(Tracer { state, changed, wake, filter: Filter::Plain, own });
        let (threads, given, stopping) = (HashMap::new(), HashMap::new(), HashSet::new());
        let (program, shared) = (Pid::from_raw(1), Arc::clone(&tracer));
        let stops = Stops {
            tracer: shared,
            woken,
            program,
            is_filtered: false,
            filter: Vec::new(),
            threads,
            stopping,
            given,
            count: 0,
        };
        let traces = std::thread::spawn(move || {
            let _stops = stops;
            panic!("on purpose");
        });
        assert!(traces.join().is_err());
        assert_eq!(tracer.wait().signal(), Some(libc::SIGKILL));
        assert!(tracer.ends_within(Duration::ZERO));
    }
}
