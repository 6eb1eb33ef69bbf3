// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate of `outrigger run --via seccomp`: programs that look at many local files do so without the server, and find what they found
//! before.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use support::{PROGRAM, Place, Said, has};

/// Looks at local files until the program has the gate, and makes sure of it.
const WARM: &str = "
import ctypes, errno, os, signal, socket, stat, subprocess, sys, threading
def warm():
    for _ in range(100): os.stat('/etc'); os.access('/etc', os.R_OK)
def has_gate(): return '3e5f0000-' in open('/proc/self/maps').read()
def fails(wanted, call, *arguments, **more):
    try: call(*arguments, **more)
    except OSError as error: assert error.errno == wanted, error
    else: raise AssertionError(arguments)
warm()
assert has_gate()
";

fn place() -> Place {
    let place = Place::new().trusting();
    place.file("tree/sub/file", "content\n");
    place.file("local/file", "local\n");
    fs::create_dir(place.at("copies")).unwrap();
    place
}

fn run(place: &Place, options: &[&str], words: &[&str]) -> Said {
    let copies = format!("TMPDIR={}", place.at("copies").display());
    let fixed = [&copies, PROGRAM, "--allow-programs", "run", "-v", "--via", "seccomp", "--no-hosts"];
    place.run_as("env", &[&fixed[..], &["--map", "/data-of-test=tree"], options, words].concat())
}

/// Runs Python with the gate.
fn python(place: &Place, text: &str) -> Said {
    let said = run(place, &[], &["python3", "-c", &format!("{WARM}{text}")]);
    assert_eq!(said.code, Some(0), "{said:?}");
    said
}

/// How many calls the server answered.
fn answered(said: &Said) -> u32 {
    let line = said.err.lines().find(|line| line.contains("system calls were answered")).unwrap();
    line.split(' ').find_map(|word| word.parse().ok()).unwrap()
}

#[test]
fn local_files_are_reached_without_the_server() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = "
import os
for n in range(5000):
    os.stat('local/file'); os.lstat('/etc'); os.access('/none/x', 0); os.close(os.open('local/file', 0)); os.path.exists('local/none')
    os.stat('/etc/../etc/.')
";
    // Whatever stands before Python, as a script that finds it.
    let start = answered(&run(&place, &[], &["python3", "-c", "import os"]));
    let with = run(&place, &[], &["python3", "-c", text]);
    assert!(with.code == Some(0) && with.err.contains("programs got a gate for local files"), "{with:?}");
    // What is missing below a missing directory is asked for.
    assert!((5000..5500).contains(&(answered(&with) - start)), "{start} {with:?}");
    let without = run(&place, &["--no-gate"], &["python3", "-c", text]);
    assert!(without.code == Some(0) && without.err.contains("no gate"), "{without:?}");
    assert!(answered(&without) > 30_000, "{without:?}");
    fs::create_dir(place.at("covered")).unwrap();
    let covers = format!("{}=tree", place.at("covered").display());
    let covered = run(&place, &["--map", &covers], &["python3", "-c", text]);
    assert!(covered.code == Some(0) && covered.err.contains("no gate"), "{covered:?}");
}

#[test]
fn paths_lead_into_trees_by_all_ways() {
    if !has("python3") {
        return;
    }
    let place = place();
    symlink("/data-of-test/sub", place.at("into")).unwrap();
    symlink("/data-of-test/sub/new", place.at("dangling")).unwrap();
    symlink("/", place.at("root")).unwrap();
    symlink(place.at("local"), place.at("tree/out")).unwrap();
    let text = "
read = lambda path, **more: os.read(os.open(path, os.O_RDONLY, **more), 99)
for path in ('/data-of-test/sub/file', '//data-of-test//sub/./file', '/usr/../data-of-test/sub/file', 'into/file', 'root/data-of-test/sub/file',
             'root/usr/../data-of-test/sub/file', 'local/../into/file', '/data-of-test/sub/../sub/file'):
    assert read(path) == b'content\\n' and os.stat(path).st_size == 8 and os.access(path, os.R_OK), path
for path in ('/usr/../data-of-test', 'root/data-of-test', 'into', 'root/data-of-test/sub/..', '/data-of-test/..', 'into/../sub'):
    assert stat.S_ISDIR(os.stat(path).st_mode), path
assert os.readlink('into') == '/data-of-test/sub' and stat.S_ISLNK(os.lstat('into').st_mode)
assert read('/data-of-test/out/file') == b'local\\n' and read('into/../out/file') == b'local\\n'
for path in ('dangling', '/data-of-test/none', '/data-of-test/none/x', 'into/none', 'none', 'local/none', '/none-of-these', 'none/x', 'root/none'):
    fails(errno.ENOENT, os.stat, path)
    fails(errno.ENOENT, os.open, path, os.O_RDONLY)
fails(errno.ENOTDIR, os.stat, 'local/file/x')
os.close(os.open('dangling', os.O_CREAT | os.O_WRONLY))
assert os.stat('dangling').st_size == 0
os.mkdir('/data-of-test/made'); assert os.path.isdir('/data-of-test/made')
os.rmdir('/data-of-test/made'); assert not os.path.exists('/data-of-test/made')
";
    python(&place, text);
    assert!(place.at("tree/sub/new").exists() && !place.at("tree/made").exists());
}

#[test]
fn relative_paths_begin_where_programs_are() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = "
read = lambda path, **more: os.read(os.open(path, os.O_RDONLY, **more), 99)
home = os.getcwd()
local = os.open('local', os.O_RDONLY | os.O_DIRECTORY)
tree = os.open('/data-of-test/sub', os.O_RDONLY | os.O_DIRECTORY)
a, b = socket.socketpair(socket.AF_UNIX)
socket.send_fds(a, [b'x'], [tree]); passed = socket.recv_fds(b, 1, 1)[1][0]
named = os.open('/data-of-test/sub', os.O_PATH)
for fd, wanted in ((local, b'local\\n'), (tree, b'content\\n'), (passed, b'content\\n'), (os.dup(tree), b'content\\n'), (named, b'content\\n')):
    assert read('file', dir_fd=fd) == wanted and os.stat('file', dir_fd=fd).st_size == len(wanted)
    fails(errno.ENOENT, os.stat, 'none', dir_fd=fd)
    fails(errno.ENOENT, os.open, 'none', os.O_RDONLY, dir_fd=fd)
open('/data-of-test/sub/second', 'w').write('second')
assert os.stat('second', dir_fd=tree).st_size == 6 and read('second', dir_fd=passed) == b'second'
assert read('../../data-of-test/sub/file', dir_fd=tree) == b'content\\n'
def at(wanted, where):
    assert os.getcwd() == where and read('file') == wanted and os.stat('file').st_size == len(wanted)
    fails(errno.ENOENT, os.stat, 'none')
os.chdir('/data-of-test/sub'); at(b'content\\n', '/data-of-test/sub')
assert read('/etc/../' + home + '/local/file') == b'local\\n'
warm(); assert has_gate()
os.chdir(home + '/local'); at(b'local\\n', home + '/local')
os.fchdir(tree); at(b'content\\n', '/data-of-test/sub')
for command, wanted in ((['cat', 'file'], b'content\\n'), (['cat', home + '/local/file'], b'local\\n')):
    assert subprocess.run(command, capture_output=True).stdout == wanted
child = os.fork()
if child == 0: at(b'content\\n', '/data-of-test/sub'); os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os.fchdir(local); at(b'local\\n', home + '/local')
";
    python(&place, text);
}

#[test]
fn a_program_that_begins_in_a_tree_or_in_proc_is_there() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = format!("{WARM}print(os.stat('file').st_size, open('file').read(), end='')");
    fs::write(place.at("script"), text).unwrap();
    let script = place.at("script").display().to_string();
    let said = run(&place, &[], &["sh", "-c", &format!("cd /data-of-test/sub && exec python3 {script}")]);
    assert_eq!(said.ok(), "8 content\n");
    let text = format!("{WARM}
f = os.open('/data-of-test/sub/file', os.O_RDONLY)
assert os.readlink(str(f)) == '/data-of-test/sub/file' and os.stat(str(f)).st_ino == os.stat('/data-of-test/sub/file').st_ino
");
    fs::write(place.at("script"), text).unwrap();
    let said = run(
        &place,
        &[],
        &["sh", "-c", &format!("exec 9</proc/self/fd; cd /proc/self/fd && exec python3 {script}")],
    );
    said.ok();
}

#[test]
fn paths_of_open_files_are_those_of_the_tree() {
    if !has("python3") {
        return;
    }
    let place = place();
    symlink("/proc/self/fd", place.at("fds")).unwrap();
    let text = "
f = os.open('/data-of-test/sub/file', os.O_RDONLY)
for base in ('/proc/self/fd', '/dev/fd', '/proc/self/../self/fd', 'fds', '/proc/%d/fd' % os.getpid(), '/usr/../proc/self/fd'):
    path = f'{base}/{f}'
    assert not base.startswith('/proc/') or '..' in base or os.readlink(path) == '/data-of-test/sub/file', path
    assert os.read(os.open(path, os.O_RDONLY), 9) == b'content\\n' and os.stat(path).st_size == 8, path
d = os.open('/proc/self/fd', os.O_RDONLY)
assert os.readlink(str(f), dir_fd=d) == '/data-of-test/sub/file'
assert os.path.samestat(os.stat(str(f), dir_fd=d), os.stat('/data-of-test/sub/file'))
os.chdir('/data-of-test/sub')
assert os.readlink('/proc/self/cwd') == '/data-of-test/sub' and open('/proc/self/cwd/file').read() == 'content\\n'
assert os.stat('/dev/null').st_rdev and os.read(os.open('/dev/zero', os.O_RDONLY), 2) == b'\\0\\0'
";
    python(&place, text);
}

#[test]
fn the_directory_of_copies_stays_closed() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = "
open('/data-of-test/sub/file').read()
name = [name for name in os.listdir('copies') if name.startswith('outrigger-run-')][0]
home = os.getcwd()
for path in (f'{home}/copies/{name}/files', f'copies/../copies/{name}/files/', f'copies/{name}/files{home}/local/file', f'copies/{name}/written'):
    fails(errno.EACCES, os.stat, path); fails(errno.EACCES, os.open, path, os.O_RDONLY); fails(errno.EACCES, os.listdir, path)
d = os.open('copies', os.O_RDONLY)
fails(errno.EACCES, os.stat, name + '/files', dir_fd=d); fails(errno.EACCES, os.open, name + '/files', os.O_RDONLY, dir_fd=d)
d = os.open(f'copies/{name}', os.O_RDONLY)
fails(errno.EACCES, os.stat, 'files', dir_fd=d); fails(errno.EACCES, os.open, 'files', os.O_RDONLY, dir_fd=d)
os.chdir('copies'); fails(errno.EACCES, os.stat, name + '/files'); fails(errno.EACCES, os.open, name + '/written', os.O_RDONLY)
os.chdir(name); fails(errno.EACCES, os.stat, 'files'); fails(errno.EACCES, os.listdir, 'written')
";
    python(&place, text);
}

#[test]
fn addresses_that_cannot_be_read_are_errors() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = "
import mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
buffer = ctypes.create_string_buffer(512)
start = libc.mmap(None, 8192, 3, 0x22, -1, 0)
libc.munmap(ctypes.c_void_p(start + 4096), 4096)
def calls(path):
    path = ctypes.c_void_p(path)
    results = []
    for call in (lambda: libc.stat(path, buffer), lambda: libc.lstat(path, buffer), lambda: libc.access(path, 0), lambda: libc.open(path, 0),
                 lambda: libc.readlink(path, buffer, 9), lambda: libc.openat(-100, path, 0)):
        ctypes.set_errno(0)
        results.append(0 if call() >= 0 else ctypes.get_errno())
    return results
for bad in (0, 1, start + 4096, (1 << 64) - 8): assert calls(bad) == [errno.EFAULT] * 6, bad
for text in (b'/etc', b'/data-of-test/sub', b'local'):
    at = start + 4096 - len(text) - 1
    ctypes.memmove(at, text + b'\\0', len(text) + 1)
    assert calls(at) == [0, 0, 0, 0, errno.EINVAL, 0], text
    ctypes.memmove(start + 4095, b'x', 1)
    assert calls(at) == [errno.EFAULT] * 6, text
path = ctypes.create_string_buffer(b'/etc')
ctypes.set_errno(0)
assert libc.stat(path, ctypes.c_void_p(8)) == -1 and ctypes.get_errno() == errno.EFAULT
";
    python(&place, text);
}

#[test]
fn signals_threads_and_children_do_not_disturb_it() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = "
os.mkfifo('fifo')
class Woken(Exception): pass
def wake(*_): raise Woken
signal.signal(signal.SIGALRM, wake); signal.setitimer(signal.ITIMER_REAL, 0.05)
try: os.open('fifo', os.O_RDONLY)
except Woken: pass
else: raise AssertionError
signal.signal(signal.SIGALRM, lambda *_: os.stat('/data-of-test/sub/file') and os.stat('/etc')); signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def work(number):
    for turn in range(300):
        assert os.stat('/data-of-test/sub/file').st_size == 8 and os.stat('local/file').st_size == 6
        assert not os.path.exists(f'local/{number}') and open('local/file').read() == 'local\\n'
        if turn % 30 == number:
            assert subprocess.run(['cat', '/data-of-test/sub/file'], capture_output=True).stdout == b'content\\n'
            assert os.spawnlp(os.P_WAIT, 'test', 'test', '-e', 'local/file') == 0
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
signal.setitimer(signal.ITIMER_REAL, 0)
pid = os.fork()
if pid == 0: work(9); os._exit(0 if has_gate() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
";
    python(&place, text);
}

#[test]
fn programs_are_told_nothing_of_it() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = "
import resource
assert not any('PRELOAD' in name for name in os.environ)
before = os.open('/etc', os.O_RDONLY)
assert sorted(os.listdir('/proc/self/fd'), key=int)[:4] == ['0', '1', '2', str(before)], os.listdir('/proc/self/fd')
lines = [line for line in open('/proc/self/maps') if line.startswith('3e5f')]
assert len(lines) == 1 and ' r-xs ' in lines[0], lines
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(0x3e5f0000), 4096, 3) == -1 and ctypes.get_errno() == errno.EACCES
";
    python(&place, text);
}

/// The gate makes other calls than the program, which its own filter may not permit.
#[test]
fn a_program_with_a_filter_of_its_own_does_without() {
    if !has("python3") {
        return;
    }
    let place = place();
    let text = "
import struct
class Program(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
steps = ((0x20, 0, 0, 0), (0x15, 0, 1, 437), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7fff0000))
steps = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = Program(4, ctypes.addressof(steps))
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == 'prctl': assert libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(program), 0, 0) == 0
else: assert libc.syscall(317, 1, 0, ctypes.byref(program)) == 0
for _ in range(100):
    os.close(os.open('/etc', os.O_RDONLY)); os.stat('local/file'); assert open('/data-of-test/sub/file').read() == 'content\\n'
child = [sys.executable, '-c', 'import os\\nfor _ in range(99): os.stat(\"/etc\")\\nassert \"3e5f0000-\" not in open(\"/proc/self/maps\").read()']
assert subprocess.run(child).returncode == 0
";
    for how in ["prctl", "seccomp"] {
        let said = run(&place, &[], &["python3", "-c", &format!("{WARM}{text}"), how]);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
}
