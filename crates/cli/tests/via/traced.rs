// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is so by tracing only.

use crate::answers::{Answered, command, run};
use crate::support::{PROGRAM, has, is_running, signal, within};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

fn place() -> Answered {
    crate::answers::place("ptrace")
}

/// A filter of another run answers before ours would: the program stops at all calls then.
#[test]
fn a_run_in_one_that_has_a_filter_has_its_own_trees_beside_those_of_the_other() {
    let outer = crate::answers::place("seccomp");
    outer.file("more/name", "more\n");
    let inner = format!("{PROGRAM} run --via ptrace --no-hosts --map /more={}", outer.at("more").display());
    let work = "cat /data/sub/file /more/name; echo new >/data/new; cd /more; pwd; cat /data/new name";
    let said = run(&outer, &[], &["sh", "-ec", &format!("{inner} -- sh -ec '{work}'")]);
    assert_eq!(said.ok(), "content\nmore\n/more\nnew\nmore\n");
}

#[test]
fn other_tracers_are_refused_and_say_so() {
    let place = place();
    let inner = format!("{PROGRAM} run --via ptrace --no-hosts --map /more=tree true");
    let said = run(&place, &[], &["sh", "-c", &inner]);
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("is traced by process"), "{said:?}");
    if has("strace") {
        let said = run(&place, &[], &["strace", "true"]);
        assert!(said.code != Some(0) && said.err.contains("Operation not permitted"), "{said:?}");
    }
}

/// The kernel ends all other threads, of which the tracer has to take note before the call can go on.
#[test]
fn a_thread_that_is_not_the_first_one_executes_a_program() {
    let place = place();
    let text = "\
import os, threading, time
for _ in range(5): threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
threading.Thread(target=lambda: os.execv('/data/cat', ['cat', '/data/sub/file'])).start()
time.sleep(99)";
    fs::copy("/bin/cat", place.at("tree/cat")).unwrap();
    assert_eq!(run(&place, &[], &["python3", "-c", text]).ok(), "content\n");
}

/// A descriptor that was closed on the way would end the locks of the process on its file (fcntl_locking(2)).
#[test]
fn opening_a_file_ends_no_lock_on_it() {
    let place = place();
    let text = "\
import fcntl, os
one = open('/data/sub/file', 'r+')
fcntl.lockf(one, fcntl.LOCK_EX)
two = os.open('/data/sub/file', os.O_RDWR)
if os.fork() == 0:
    try: fcntl.lockf(open('/data/sub/file', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError: os._exit(0)
    os._exit(1)
print(os.wait()[1], two == one.fileno() + 1)";
    assert_eq!(run(&place, &[], &["python3", "-c", text]).ok(), "0 True\n");
}

#[test]
fn a_program_is_stopped_and_goes_on() {
    let place = place();
    let work = "echo $$; kill -STOP $$; cat /data/sub/file; kill -TSTP $$; echo end; read line";
    let mut command = command(&place, &[], &["sh", "-c", work]);
    let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    let program: u32 = lines.next().unwrap().parse().unwrap();
    let (sender, said) = mpsc::channel();
    let reader = thread::spawn(move || lines.for_each(|line| sender.send(line).unwrap()));
    for next in ["content", "end"] {
        // Whether it has stopped already cannot be seen: tracing stops it, too.
        let mut line = None;
        within("it goes on", || {
            signal(program, "CONT");
            line = said.try_recv().ok();
            line.is_some()
        });
        assert_eq!(line.unwrap(), next);
    }
    drop(server.stdin.take());
    assert_eq!(server.wait().unwrap().code(), Some(1), "the end of its input");
    reader.join().unwrap();
}

/// Without it there would be local files under the names of trees.
#[test]
fn programs_end_with_the_server() {
    let place = place();
    let work = "sleep 1000 & echo $! $$; wait";
    let mut server = command(&place, &[], &["sh", "-c", work]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    signal(server.id(), "KILL");
    server.wait().unwrap();
    for program in line.split_whitespace() {
        let program = program.parse().unwrap();
        within("it has ended", || !is_running(program));
    }
}

/// It would open a copy by its path. Nothing is done to the file before that is known.
#[test]
fn a_program_that_does_not_see_the_copies_is_refused_before_a_file_is_emptied() {
    if !has("unshare") {
        return;
    }
    let place = place();
    let hide = format!("mount -t tmpfs none {}; echo new >/data/sub/file", place.at("copies").display());
    let said = run(&place, &[], &["unshare", "--mount", "sh", "-c", &hide]);
    assert!(said.code == Some(2) && said.err.contains("another root directory"), "{said:?}");
    assert_eq!(fs::read_to_string(place.at("tree/sub/file")).unwrap(), "content\n");
}

/// The memory for paths is there before anything is done to a file.
#[test]
fn a_program_without_memory_for_paths_is_refused_before_a_file_is_emptied() {
    let place = place();
    let said = run(&place, &[], &["sh", "-c", "ulimit -v 60000; echo new >/data/sub/file"]);
    assert!(said.code == Some(2) && said.err.contains("Cannot allocate memory"), "{said:?}");
    assert_eq!(fs::read_to_string(place.at("tree/sub/file")).unwrap(), "content\n");
}

/// Also while the program is made to map memory, or to open a file.
#[test]
fn a_stop_is_not_lost_while_a_file_is_opened() {
    let place = place();
    let text = "\
import mmap, os, random, signal, struct, time
count = mmap.mmap(-1, 4096)
for _ in range(60):
    child = os.fork()
    if child == 0:
        os.open('/data/sub/file', os.O_RDONLY)
        while True: struct.pack_into('l', count, 0, struct.unpack_from('l', count, 0)[0] + 1)
    time.sleep(random.random() / 2000)
    os.kill(child, signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    before = bytes(count[:8])
    time.sleep(0.002)
    assert before == bytes(count[:8]), 'it runs although it is stopped'
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print('end')";
    assert_eq!(run(&place, &[], &["python3", "-c", text]).ok(), "end\n");
}

/// The number of the first thread is then that of the new program, which must not get registers of the old one.
#[test]
fn a_thread_executes_a_program_while_the_first_one_opens_files() {
    let place = place();
    let text = "\
import os, random, threading, time
def execute():
    time.sleep(random.random() / 1000)
    os.execv('/bin/true', ['true'])
for _ in range(150):
    child = os.fork()
    if child == 0:
        threading.Thread(target=execute).start()
        while True: os.close(os.open('/data/sub/file', os.O_RDONLY))
    assert os.waitpid(child, 0)[1] == 0
print('end')";
    assert_eq!(run(&place, &[], &["python3", "-c", text]).ok(), "end\n");
}

/// What its listener passes on would not come to the tracer, and be local.
#[test]
fn a_filter_with_a_listener_is_refused_in_a_run_that_traces() {
    let place = place();
    let inner = format!("{PROGRAM} run --via seccomp --no-hosts --map /more=tree cat /data/sub/file");
    let said = run(&place, &[], &["sh", "-c", &inner]);
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("answered by another one"), "{said:?}");
}
