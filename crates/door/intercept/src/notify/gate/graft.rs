// SPDX-License-Identifier: MIT OR Apache-2.0
//! Putting the gate into a process whose call waits.
//!
//! It is done where nothing else runs in the memory of the process: it has one thread, which waits, and has been executed since it was
//! started by another one.

use super::Memory;
use super::agent::{self, AT, CALLS, PAGE, SIZE};
use super::sites::{AROUND, LENGTH_MAX, SYSCALL, Site, find};
use crate::notify::listener::Listener;
use crate::notify::memory::Memory as Other;
use crate::notify::redirect::{again, system_call, while_stopped};
use crate::notify::source::Call;
use crate::proc::{stat_field, status};
use libc::user_regs_struct;
use nix::errno::Errno;
use nix::unistd::Pid;
use outrigger_core::lock;
use rustix::fs::{FileType, PROC_SUPER_MAGIC, stat, statfs};
use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// So many local calls of a process come to the server before it gets the gate: what ends soon is not worth it.
const FIRST: u32 = 32;
/// The most attempts with one process: one for each file with code that calls the system, and some that come at the wrong time.
const ATTEMPTS: u32 = 5;
/// The most processes that are remembered. Those forgotten may get it later.
const PROCESSES: usize = 4096;
/// The length of the code by which a call comes to the gate.
const STEP: usize = LENGTH_MAX - SYSCALL + 19;
/// Memory of others begins above that: the lowest that the kernel maps (`vm.mmap_min_addr`), and more.
const LOWEST: u64 = 1 << 20;
/// The largest piece of code that is looked through.
const CODE_MAX: u64 = 64 << 20;

/// Which processes have the gate.
pub(crate) struct Grafts {
    memory: Arc<Memory>,
    /// How many filters of system calls this process has. Those whose calls come here have one more.
    filters: u32,
    seen: Mutex<HashMap<u32, Seen>>,
    /// The places in a file, from the beginning of the piece that is mapped.
    known: Arc<Mutex<HashMap<String, Arc<[Site]>>>>,
    count: Arc<AtomicU64>,
}

/// What is known of a process.
#[derive(Default)]
struct Seen {
    calls: u32,
    next: u32,
    attempts: u32,
    /// Where the code is that starts the program (ld.so), from which few calls come.
    start: Range<u64>,
}

impl Grafts {
    pub(crate) fn new(memory: Memory) -> Self {
        Grafts {
            memory: Arc::new(memory),
            filters: filters(std::process::id()).unwrap_or(0),
            seen: Mutex::default(),
            known: Arc::default(),
            count: Arc::default(),
        }
    }

    /// What all of them share.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// How often a process got it.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// A process is about to become another program.
    pub(crate) fn forget(&self, pid: u32) {
        lock(&self.seen).remove(&pid);
    }

    /// Whether it is time for the process of a local call to get the gate, by which this call can go.
    pub(crate) fn is_time(&self, call: &Call) -> bool {
        let is_inside = (AT..AT + SIZE).contains(&call.data.instruction_pointer);
        if is_inside || !CALLS.contains(&i64::from(call.data.nr)) {
            return false;
        }
        let mut all = lock(&self.seen);
        if all.len() > PROCESSES {
            all.clear();
        }
        let seen = all.entry(call.pid).or_default();
        if seen.start.contains(&call.data.instruction_pointer) {
            return false;
        }
        seen.calls += 1;
        if seen.calls < seen.next.max(FIRST) || seen.attempts >= ATTEMPTS || !is_site(call) {
            return false;
        }
        seen.attempts += 1;
        seen.next = 2 * seen.calls;
        true
    }

    /// Gives the gate to the process of a call that the kernel is to do as it is, and begins the call again. `false` when the call still
    /// waits.
    pub(crate) fn graft(&self, listener: &Arc<Listener>, call: &Call) -> bool {
        let Some(plan) = self.plan(call) else { return false };
        if self.look_at_files(call.pid).is_err() {
            return false;
        }
        let (call, memory, count) = (*call, Arc::clone(&self.memory), Arc::clone(&self.count));
        let lend = move |listener: &Listener| {
            let lent = listener.lend(&call, memory.lent.as_fd(), true);
            lent.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EMFILE)))
        };
        let begun = while_stopped(listener, call, lend, move |pid, before, lent| {
            match plan.carry_out(pid, before, lent as u64) {
                Ok(()) => _ = count.fetch_add(1, Ordering::Relaxed),
                Err(Errno::ESRCH) => return Err(Errno::ESRCH),
                // It goes on without.
                Err(_) => {}
            }
            Ok(again(before, &call))
        });
        begun.is_ok()
    }

    /// Closes the gate of a process that is about to have a filter of its own, which may not permit the calls that are made there. `true` when
    /// the call begins again.
    ///
    /// # Errors
    /// The gate cannot be closed.
    pub(crate) fn close(&self, listener: &Arc<Listener>, call: &Call) -> std::io::Result<bool> {
        let call = *call;
        let facts = Other(call.pid.cast_signed()).read(AT + PAGE).map(u32::from_ne_bytes);
        if !is_there(Pid::from_raw(call.pid.cast_signed())) || facts.is_ok_and(|facts| facts == agent::CLOSED)
        {
            return Ok(false);
        }
        let begun = while_stopped(
            listener,
            call,
            |_| Ok(()),
            move |pid, before, ()| {
                // Empty pages are closed.
                let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
                let arguments = [AT + PAGE, SIZE - PAGE, libc::PROT_READ as u64, kind, u64::MAX, 0];
                system_call(pid, before, libc::SYS_mmap, arguments)?;
                Ok(again(before, &call))
            },
        );
        match begun {
            Ok(()) => Ok(true),
            Err(_) => self.memory.close().map(|()| false),
        }
    }

    /// What is to be done, where the call comes from code that can be changed.
    fn plan(&self, call: &Call) -> Option<Plan> {
        let (pid, memory) = (call.pid, Other(call.pid.cast_signed()));
        let start = call.data.instruction_pointer - SYSCALL as u64;
        if !is_alone(pid)? || filters(pid)? != self.filters + 1 {
            return None;
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let maps: Vec<Map> = maps.lines().filter_map(Map::parse).collect();
        let index = maps.iter().position(|map| (map.start..map.end).contains(&start))?;
        let code = &maps[index];
        if code.starts_programs {
            if let Some(seen) = lock(&self.seen).get_mut(&pid) {
                *seen = Seen { start: code.start..code.end, ..Seen::default() };
            }
            return None;
        }
        let sites = self.sites(memory, code)?;
        let steps = room(&maps, index, sites.len() * STEP)?;
        Some(Plan { sites: sites.iter().map(|site| site.from(code.start)).collect(), steps })
    }

    /// The places in a piece of code, which is that of a file.
    fn sites(&self, memory: Other, code: &Map) -> Option<Arc<[Site]>> {
        if code.file.is_empty() || code.end - code.start > CODE_MAX {
            return None;
        }
        if let Some(sites) = lock(&self.known).get(&code.file) {
            return Some(Arc::clone(sites));
        }
        let mut bytes = vec![0; (code.end - code.start) as usize];
        memory.read_into(code.start, &mut bytes).ok()?;
        let sites: Arc<[Site]> = find(&bytes).into();
        if sites.is_empty() {
            return None;
        }
        lock(&self.known).insert(code.file.clone(), Arc::clone(&sites));
        Some(sites)
    }

    /// A process may have come with directories of /proc or /dev, of which the server has seen nothing.
    fn look_at_files(&self, pid: u32) -> std::io::Result<()> {
        if self.memory.is_odd() {
            return Ok(());
        }
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let path = entry?.path();
            if is_odd(&path)? {
                return self.memory.mark_odd();
            }
        }
        Ok(())
    }
}

/// Whether a call comes from a place that can be changed.
fn is_site(call: &Call) -> bool {
    let end = call.data.instruction_pointer;
    let around =
        Other(call.pid.cast_signed()).read::<{ AROUND.0 + AROUND.1 }>(end.wrapping_sub(AROUND.0 as u64));
    around.is_ok_and(|around| find(&around).iter().any(|site| site.end() == AROUND.0 as u64))
}

/// Whether a path leads to a directory of /proc or /dev, where links lead to open files.
pub(crate) fn is_odd(path: &Path) -> rustix::io::Result<bool> {
    let found = stat(path)?;
    let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
    Ok(is_dir && (found.st_dev == stat("/dev")?.st_dev || statfs(path)?.f_type == PROC_SUPER_MAGIC))
}

/// A line of /proc/PID/maps.
struct Map {
    start: u64,
    end: u64,
    /// Which piece of which file; empty for other memory.
    file: String,
    starts_programs: bool,
}

impl Map {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let (_, offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let path = fields.next().unwrap_or_default();
        let starts_programs = path.rsplit('/').next().is_some_and(|name| name.starts_with("ld-"));
        let is_file = inode != "0";
        let file = if is_file { format!("{device}:{inode} {offset} {}", end - start) } else { String::new() };
        Some(Map { start, end, file, starts_programs })
    }
}

/// Where there is room for so much memory, in reach of the piece of code with this index.
fn room(maps: &[Map], index: usize, length: usize) -> Option<Range<u64>> {
    let length = (length as u64).next_multiple_of(PAGE);
    let below = maps[..=index].windows(2).rev().map(|two| (two[0].end, two[1].start));
    let lowest = (LOWEST, maps[0].start);
    let (_, end) =
        below.chain([lowest]).find(|&(from, to)| to.saturating_sub(from.max(LOWEST)) >= 2 * length)?;
    Some(end - length..end)
}

/// Whether nothing else runs in the memory of a process: it has one thread, and is no copy of its parent, as whom a process is before it
/// is executed; then it may share the memory.
fn is_alone(pid: u32) -> Option<bool> {
    // The stack begins at a random number for each program that is executed.
    let stack_of = |pid: u32| stat_field::<u64>(pid, 28);
    let (stack, parent, threads) = (stack_of(pid)?, stat_field::<u32>(pid, 4)?, stat_field::<u32>(pid, 20)?);
    let is_shared = |other: u32| stack_of(other) == Some(stack);
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
    Some(threads == 1 && stack != 0 && !is_shared(parent) && !children.any(is_shared))
}

/// How many filters of system calls a process has.
fn filters(pid: u32) -> Option<u32> {
    status(pid, "Seccomp_filters:").ok()?.parse().ok()
}

/// What is done with a process.
struct Plan {
    sites: Vec<Site>,
    /// Where code is to be that leads from these to the gate.
    steps: Range<u64>,
}

impl Plan {
    /// Does it, with the gate's memory under this descriptor, which is closed.
    fn carry_out(&self, pid: Pid, before: user_regs_struct, lent: u64) -> Result<(), Errno> {
        let call = |number, arguments| system_call(pid, before, number, arguments);
        let access = (libc::PROT_READ | libc::PROT_EXEC) as u64;
        let kind = |flags: i32| (flags | libc::MAP_FIXED_NOREPLACE) as u64;
        let mapped = call(libc::SYS_mmap, [AT, SIZE, access, kind(libc::MAP_SHARED), lent, 0]);
        call(libc::SYS_close, [lent, 0, 0, 0, 0, 0])?;
        match mapped {
            // Another file of the same process has led to it before.
            Err(Errno::EEXIST) if is_there(pid) => {}
            mapped => is_at(mapped?, AT)?,
        }
        let length = self.steps.end - self.steps.start;
        let flags = kind(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let steps = call(libc::SYS_mmap, [self.steps.start, length, access, flags, u64::MAX, 0])?;
        is_at(steps, self.steps.start)?;
        self.write(pid).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// Writes the steps, and then the jumps to them.
    fn write(&self, pid: Pid) -> std::io::Result<()> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let steps: Vec<u8> = self.sites.iter().flat_map(|site| step(*site)).collect();
        memory.write_all_at(&steps, self.steps.start)?;
        for (index, site) in self.sites.iter().enumerate() {
            let wanted = site.bytes();
            let mut found = vec![0; wanted.len()];
            memory.read_exact_at(&mut found, site.at)?;
            match site.jump(self.steps.start + (index * STEP) as u64) {
                Some(jump) if found == wanted => memory.write_all_at(&jump, site.at)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// From a place where the system is called to the gate: what was replaced, and the address where the program goes on.
fn step(site: Site) -> [u8; STEP] {
    let mut step = [0; STEP];
    // mov rcx, ADDRESS; mov r11d, GATE; jmp r11
    let (goes_on, gate) = (site.end().to_le_bytes(), (agent::entry() as u32).to_le_bytes());
    let bytes =
        [&site.before()[..], &[0x48, 0xb9], &goes_on, &[0x41, 0xbb], &gate, &[0x41, 0xff, 0xe3]].concat();
    step[..bytes.len()].copy_from_slice(&bytes);
    step
}

/// Whether a process has the gate.
fn is_there(pid: Pid) -> bool {
    let mut found = vec![0; agent::code().len()];
    Other(pid.as_raw()).read_into(AT, &mut found).is_ok() && found == agent::code()
}

/// Kernels that do not know `MAP_FIXED_NOREPLACE` (before 4.17) map elsewhere.
fn is_at(found: u64, wanted: u64) -> Result<(), Errno> {
    if found == wanted { Ok(()) } else { Err(Errno::EEXIST) }
}
