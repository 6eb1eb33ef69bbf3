// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs whose system calls are answered: attaching to those with several threads, and what is left of that when the server is gone.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use support::{DEADLINE, PROGRAM, Place, descendant, has, is_running, signal, within};

/// Evaluates each line in four threads and the first one, and prints the results without repetitions.
const THREADS: &str = "
import os, queue, sys, threading
def value(line):
    try: return str(eval(line))
    except Exception as error: return error.strerror
def work(lines, results):
    while True: results.put(value(lines.get()))
results, lines = queue.Queue(), [queue.Queue() for _ in range(4)]
for each in lines: threading.Thread(target=work, args=(each, results), daemon=True).start()
print(os.getpid(), flush=True)
for line in sys.stdin:
    for each in lines: each.put(line)
    print(*sorted({results.get() for _ in lines} | {value(line)}), flush=True)
";
/// What a call gets that leads into a tree without a server.
const GONE: &str = "Transport endpoint is not connected";
/// What a thread reads in the tree, and in a local file.
const FAR: &str = "open('/data/sub/file').read().strip()";
const LOCAL: &str = "open('local').read().strip()";

fn place() -> Option<Place> {
    if !has("python3") {
        return None;
    }
    let place = Place::new().trusting();
    place.file("tree/sub/file", "content\n");
    place.file("local", "local\n");
    fs::create_dir(place.at("copies")).unwrap();
    Some(place)
}

/// A program with several threads; dropping this kills it.
struct Program {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
    pid: u32,
}

impl Program {
    fn new(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, lines) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
        let (sender, output) = channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let pid = output.recv().unwrap().parse().unwrap();
        Program { child, input, output, pid }
    }

    fn says(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.hears(line)
    }

    /// What it says next, to this line.
    fn hears(&self, line: &str) -> String {
        let said = self.output.recv_timeout(DEADLINE / 2);
        said.unwrap_or_else(|error| panic!("the program does not answer, {error}: {line}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        signal(self.pid, "KILL");
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `outrigger attach`, which has said that the trees are there.
struct Attached(Child, BufReader<std::process::ChildStderr>);

impl Attached {
    fn to(place: &Place, program: &Program, options: &[&str]) -> Self {
        Attached::with(place, program, &[], options)
    }

    /// With options about trees as well.
    fn with(place: &Place, program: &Program, trees: &[&str], options: &[&str]) -> Self {
        let pid = program.pid.to_string();
        let fixed = ["attach", "--no-hosts", "--map", "/data=tree"];
        let words = [trees, &fixed[..], options, &[&pid]].concat();
        let mut command = place.command(PROGRAM, &words);
        let mut child = command.env("TMPDIR", place.at("copies")).stderr(Stdio::piped()).spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        assert!(line.starts_with("attached to 'python"), "{line}");
        Attached(child, err)
    }

    /// Waits for its end, and answers what else it says.
    fn ends(mut self) -> String {
        let mut said = String::new();
        self.1.read_to_string(&mut said).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0), "{said}");
        said
    }
}

/// Runs a program that does nothing, and answers what is said.
fn run_true(place: &Place) -> String {
    let mut command =
        place.command(PROGRAM, &["run", "--via", "seccomp", "--no-hosts", "--map", "/data=tree", "true"]);
    let output = command.env("TMPDIR", place.at("copies")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The keeper of a program, as ps(1) finds it.
fn keeper(place: &Place, program: &Program) -> Option<u32> {
    let said = place.run_as("pgrep", &["-f", &format!("^outrigger-keep .* {}$", program.pid)]);
    said.out.trim().parse().ok()
}

#[test]
fn all_threads_find_a_tree_until_it_is_taken_away_and_find_it_again() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    for round in 0..3 {
        let attached = Attached::to(&place, &program, &[]);
        assert_eq!(program.says(FAR), "content", "round {round}");
        assert_eq!(program.says(LOCAL), "local");
        assert_eq!(program.says("os.chdir('/data/sub') or open('file').read().strip()"), "content");
        let back = format!("os.chdir('{}')", place.at("").display());
        assert_eq!(program.says(&back), "None");
        if round == 1 {
            place.run(&["detach", &program.pid.to_string()]).ok();
        } else {
            signal(attached.0.id(), "INT");
        }
        assert_eq!(attached.ends(), "");
        assert_eq!(program.says(FAR), "No such file or directory");
        assert_eq!(program.says(LOCAL), "local");
        assert_eq!(program.says("os.system('cat local >/dev/null')"), "0");
    }
    assert_eq!(fs::read_dir(place.at("copies")).unwrap().count(), 0);
    let keeper = keeper(&place, &program).expect("a process that has the kernel do all calls");
    let status = fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
    assert!(status.starts_with("Name:\toutrigger-keep\n") && status.contains("Threads:\t1\n"), "{status}");
    drop(program);
    within("the keeper ends with the program", || !is_running(keeper));
}

#[test]
fn a_file_that_is_open_for_writing_is_stored_when_it_is_closed() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let mut attached = Attached::to(&place, &program, &[]);
    assert_eq!(program.says("setattr(sys.modules['__main__'], 'kept', open('/data/new', 'w')) if threading.current_thread() is threading.main_thread() else None"), "None");
    signal(attached.0.id(), "INT");
    let mut line = String::new();
    attached.1.read_line(&mut line).unwrap();
    assert!(line.contains("stored when they are closed"), "{line}");
    assert_eq!(program.says("os.path.exists('/data')"), "False");
    assert_eq!(program.says("(kept.write('late'), kept.close())[1] if threading.current_thread() is threading.main_thread() else None"), "None");
    assert_eq!(attached.ends(), "");
    assert_eq!(fs::read_to_string(place.at("tree/new")).unwrap(), "late");
}

#[test]
fn the_death_of_the_server_takes_the_trees_only() {
    let Some(place) = place() else { return };
    let run = ["run", "--via", "seccomp", "--no-hosts", "--map", "/data=tree", "python3", "-c", THREADS];
    for by_run in [false, true] {
        let mut command = place.command(PROGRAM, &run);
        let mut program = match by_run {
            true => Program::new(command.env("TMPDIR", place.at("copies"))),
            false => Program::new(&mut place.command("python3", &["-c", THREADS])),
        };
        let attached = (!by_run).then(|| Attached::to(&place, &program, &["--via", "seccomp"]));
        assert_eq!(program.says(FAR), "content");
        let server = attached.as_ref().map_or(program.child.id(), |attached| attached.0.id());
        signal(server, "KILL");
        assert!(program.says(FAR).contains(GONE), "by run: {by_run}");
        assert_eq!(program.says(LOCAL), "local");
        let again = Attached::to(&place, &program, &[]);
        assert_eq!(program.says(FAR), "content");
        place.run(&["detach", &program.pid.to_string()]).ok();
        assert_eq!(again.ends(), "");
        assert_eq!(program.says(LOCAL), "local");
    }
}

/// Nothing is stored from what a program had open when the server was killed: what it writes to that later is kept.
#[test]
fn a_file_that_was_open_when_the_server_died_is_kept_with_all_that_is_written() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let attached = Attached::to(&place, &program, &[]);
    let first =
        |what: &str| format!("({what}) if threading.current_thread() is threading.main_thread() else None");
    program.says(&first(
        "setattr(sys.modules['__main__'], 'kept', os.open('/data/new', os.O_CREAT | os.O_WRONLY))",
    ));
    program.says(&first("os.write(kept, b'one ')"));
    let mut again = attached;
    for more in ["b'two '", "b'three'"] {
        signal(again.0.id(), "KILL");
        assert!(program.says(FAR).contains(GONE));
        assert!(program.says(&first("os.fsync(kept)")).contains(GONE));
        // One that begins now removes what no program has open.
        assert_eq!(run_true(&place), "");
        again = Attached::to(&place, &program, &[]);
        program.says(&first(&format!("os.write(kept, {more})")));
    }
    assert!(program.says(&first("os.fsync(kept)")).contains(GONE));
    signal(again.0.id(), "INT");
    let mut said = String::new();
    again.1.read_to_string(&mut said).unwrap();
    assert_eq!(again.0.wait().unwrap().code(), Some(1), "{said}");
    let unsaved = place.at("state/outrigger/unsaved");
    assert!(said.contains(&unsaved.display().to_string()), "{said}");
    assert_eq!(fs::metadata(&unsaved).unwrap().permissions().mode() & 0o777, 0o700);
    let kept = fs::read_dir(unsaved).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(kept).unwrap(), "one two three");
    assert_eq!(fs::read_dir(place.at("copies")).unwrap().count(), 0);
}

#[test]
fn a_second_signal_names_what_is_open_for_writing() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let mut attached = Attached::to(&place, &program, &[]);
    program.says("setattr(threading.current_thread(), 'kept', open('/data/new', 'w'))");
    let mut said = String::new();
    signal(attached.0.id(), "INT");
    attached.1.read_line(&mut said).unwrap();
    signal(attached.0.id(), "INT");
    attached.1.read_to_string(&mut said).unwrap();
    assert_eq!(attached.0.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("'/data/new'"), "{said}");
    assert_eq!(program.says(LOCAL), "local");
}

/// Its tree takes nothing while this test runs.
#[test]
fn a_third_signal_ends_a_server_whose_host_hangs_and_names_what_is_not_stored() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let hangs = ["--layer", "fault=op=write,delay=1000s"];
    let mut attached = Attached::with(&place, &program, &hangs, &[]);
    let write = "open('/data/' + threading.current_thread().name, 'w').write('precious')";
    assert_eq!(program.says(write), "8");
    for wanted in ["does not wait", "storing what is there"] {
        signal(attached.0.id(), "INT");
        let mut said = String::new();
        attached.1.read_line(&mut said).unwrap();
        assert!(said.contains(wanted), "{said}");
    }
    signal(attached.0.id(), "INT");
    within("the server ends", || attached.0.try_wait().unwrap().is_some());
    let mut said = String::new();
    attached.1.read_to_string(&mut said).unwrap();
    assert_eq!(attached.0.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("/data/") && said.contains("cannot be stored"), "{said}");
}

/// Also those which the server has received, and not answered.
#[test]
fn calls_that_wait_for_a_server_that_dies_end() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let layer = "fault=op=read,delay=1000s";
    let Attached(mut server, _err) = Attached::with(&place, &program, &["--layer", layer], &[]);
    writeln!(program.input, "{FAR}").unwrap();
    let waits = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("syscall")).is_ok_and(|call| call.starts_with("257 "))
    };
    within("all threads wait", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", program.pid)).unwrap();
        tasks.flatten().filter(waits).count() >= 4
    });
    signal(server.id(), "KILL");
    server.wait().unwrap();
    assert_eq!(program.hears(FAR), GONE);
    assert_eq!(program.says(LOCAL), "local");
}

/// Its threads never stop to open files, in the tree and of this machine; for each line it is said whether all of them got on.
const BUSY: &str = "
import errno, os, sys, threading, time
counts, wrong = [0] * 4, []
def work(number):
    while True:
        for path in '/data/sub/file', 'local':
            try: open(path).close()
            except Exception as error:
                if path == 'local' or error.errno not in (errno.ENOENT, errno.ENOTCONN): wrong.append(error)
        counts[number] += 1
for number in range(4): threading.Thread(target=work, args=(number,), daemon=True).start()
print(os.getpid(), flush=True)
for line in sys.stdin:
    before = list(counts)
    while not all(now > then + 2 for now, then in zip(counts, before)): time.sleep(0.001)
    print(wrong, flush=True)
";

#[test]
fn whenever_the_server_dies_local_files_are_found() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", BUSY]));
    for moment in 0..40 {
        let mut attached = Attached::to(&place, &program, &[]);
        // Which moment it is, is what is tried.
        thread::sleep(Duration::from_micros(moment * 373));
        signal(attached.0.id(), "KILL");
        attached.0.wait().unwrap();
        assert_eq!(program.says("on"), "[]", "{moment}");
    }
}

/// Takes the place of the server, and ends when the kernel has passed a call on to it.
const RECEIVER: &str = "
import fcntl, os, socket, sys
pid = int(sys.argv[1])
started = open(f'/proc/{pid}/stat').read().rsplit(')')[1].split()[19]
keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
keeper.connect(f'\\0outrigger-keep-{os.geteuid()}-{pid}-{started}')
keeper.send(b'a')
_, (listener, _), _, _ = socket.recv_fds(keeper, 65536, 2)
print('here', flush=True)
SECCOMP_IOCTL_NOTIF_RECV = 0xC0502100
fcntl.ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, bytearray(80))
";

/// The next server may die before it has written down which call it received, and the keeper has answered many since another server wrote
/// its last one down. The call ends with `EINTR`, and Python makes it again.
#[test]
fn a_call_that_was_received_and_not_written_down_is_interrupted() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let mut attached = Attached::to(&place, &program, &[]);
    assert_eq!(program.says(FAR), "content");
    signal(attached.0.id(), "KILL");
    attached.0.wait().unwrap();
    assert_eq!(program.says("sum(os.path.exists('local') for _ in range(2000))"), "2000");
    let pid = program.pid.to_string();
    let mut receiver = place.command("python3", &["-c", RECEIVER, &pid]);
    let mut receiver = receiver.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(receiver.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    assert_eq!(program.says(LOCAL), "local");
    assert!(receiver.wait().unwrap().success());
}

/// Has the program write a file to a tree without room, and answers what the server says in the end.
fn stored_on_a_full_disk(place: &Place, program: &mut Program) -> String {
    let layer = "fault=op=write,error=ENOSPC";
    let Attached(mut server, mut err) = Attached::with(place, program, &["--layer", layer], &[]);
    program.says("print('precious', file=open('/data/new', 'w'))");
    signal(server.id(), "INT");
    let mut said = String::new();
    err.read_to_string(&mut said).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(1), "{said}");
    said
}

#[test]
fn content_that_cannot_be_stored_is_kept_and_nobody_waits_for_it() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let said = stored_on_a_full_disk(&place, &mut program);
    assert!(said.contains("outrigger attach: '/data/new'") && said.contains("No space left"), "{said}");
    let kept = fs::read_dir(place.at("state/outrigger/unsaved")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(kept).unwrap(), "precious\n");
}

/// It is all that there is of it.
#[test]
fn content_that_can_be_neither_stored_nor_kept_stays_until_it_can_be_kept() {
    let Some(place) = place() else { return };
    let unsaved = place.file("state/outrigger/unsaved", "in the way");
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let said = stored_on_a_full_disk(&place, &mut program);
    let (_, stays) = said.split_once("what was written stays in '").expect(&said);
    let stays = stays.split('\'').next().unwrap();
    assert_eq!(fs::read_to_string(stays).unwrap(), "precious\n");
    assert!(run_true(&place).contains("cannot be copied"));
    assert_eq!(fs::read_to_string(stays).unwrap(), "precious\n");
    fs::remove_file(&unsaved).unwrap();
    assert!(run_true(&place).contains(unsaved.to_str().unwrap()));
    let kept = fs::read_dir(unsaved).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_to_string(kept).unwrap(), "precious\n");
    assert_eq!(fs::read_dir(place.at("copies")).unwrap().count(), 0);
}

#[test]
fn a_program_is_attached_to_many_times() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let mut before = None;
    for round in 0..200 {
        let attached = Attached::to(&place, &program, &[]);
        if round % 20 == 0 {
            assert_eq!(program.says(FAR), "content");
        }
        signal(attached.0.id(), if round % 2 == 0 { "INT" } else { "KILL" });
        let mut attached = attached;
        attached.0.wait().unwrap();
        let keeper = keeper(&place, &program).unwrap();
        let count = |pid: u32| fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        // The keeper closes the connection when it has seen its end.
        let now = (keeper, count(program.pid));
        within("the keeper has nothing more open", || count(keeper) <= 8);
        assert_eq!(*before.get_or_insert(now), now, "round {round}");
    }
    assert_eq!(program.says(LOCAL), "local");
}

#[test]
fn what_cannot_be_attached_to_is_named_with_the_reason() {
    let Some(place) = place() else { return };
    let mut program = Program::new(&mut place.command("python3", &["-c", THREADS]));
    let pid = program.pid.to_string();
    let attach = |options: &[&str], map: &str| {
        let words = [&["attach", "--no-hosts", "--map", map], options, &[&pid]].concat();
        place.run(&words).refused(1)
    };
    assert!(attach(&["--via", "namespace"], "/data=tree").contains("threads"));
    let deep = format!("{}/no/dir=tree", place.at("").display());
    assert!(attach(&["--via", "seccomp"], &deep).contains("make one there"));
    let attached = Attached::to(&place, &program, &[]);
    let busy = attach(&["--via", "seccomp"], "/data=tree");
    assert!(busy.contains("outrigger detach"), "{busy}");
    let own = "os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60') if threading.current_thread() is threading.main_thread() else None";
    program.says(own);
    let mut sleep = None;
    within("it has started a program", || {
        sleep = descendant(program.pid, "sleep");
        sleep.is_some()
    });
    let sleep = sleep.unwrap();
    let child = place.run(&["attach", "--no-hosts", "--map", "/data=tree", &sleep.to_string()]).refused(1);
    assert!(child.contains("filter of system calls"), "{child}");
    signal(sleep, "KILL");
    signal(attached.0.id(), "INT");
    attached.ends();
    assert_eq!(program.says(LOCAL), "local");
}
