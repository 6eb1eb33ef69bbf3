// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every call that changes a file, by each way that leads to one: the real files stay as they are.

use crate::support::{PROGRAM, Said, has, signal};
use crate::{Cow, all, changes, place};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

/// How calls are answered. By a namespace, the kernel finds all these ways by itself.
#[derive(Clone, Copy)]
struct By {
    via: &'static str,
    /// Whether the server is under a filter, as in a container: a program that is traced stops at each call then.
    is_filtered: bool,
}

/// Tests that are run for each way.
macro_rules! each_way {
    ($($test:ident)*) => {
        mod seccomp {
            $(#[test] fn $test() { super::$test(super::By { via: "seccomp", is_filtered: false }); })*
        }
        mod ptrace {
            $(#[test] fn $test() { super::$test(super::By { via: "ptrace", is_filtered: false }); })*
        }
        mod ptrace_of_all_calls {
            $(#[test] fn $test() { super::$test(super::By { via: "ptrace", is_filtered: true }); })*
        }
    };
}

each_way! {
    files_are_written_by_every_kind_of_path
    files_are_emptied_without_being_written
    attributes_are_changed_by_descriptors_that_only_read
    names_are_made_moved_and_removed_apart
    what_cannot_be_kept_apart_is_refused
    what_the_user_gave_for_writing_is_written
    each_name_is_listed_once
    without_the_server_nothing_can_be_opened_any_more
}

/// What the programs below begin with: calls by their numbers, and what is expected of them.
const PRELUDE: &str = r#"
import ctypes, errno, fcntl, mmap, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *words):
    words = [ctypes.c_char_p(word.encode()) if isinstance(word, str) else ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()
def fails(wanted, work, *words):
    try:
        result = work(*words)
    except OSError as error:
        result = -error.errno
    assert result in [-number for number in wanted], (work, words, result)
AT = -100
"#;

/// A filter of the server's own, which has pidfd_getfd(2) fail, as in containers.
const FILTER: &str = "
class Filter(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('at', ctypes.c_void_p)]
steps = ctypes.create_string_buffer(struct.pack('HBBIHBBIHBBIHBBI', 0x20, 0, 0, 0, 0x15, 0, 1, 438, 6, 0, 0, 0x50001, 6, 0, 0, 0x7fff0000))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(Filter(4, ctypes.addressof(steps)))) == 0
os.execv(sys.argv[1], sys.argv[1:])";

/// Runs Python in `here` with an overlay.
fn python(place: &Cow, by: By, text: &str) -> Said {
    let text = format!("{PRELUDE}os.chdir('here')\n{text}");
    let filter = format!("{PRELUDE}{FILTER}");
    let before = if by.is_filtered { &["python3", "-c", &filter][..] } else { &[] };
    let words = [PROGRAM, "run", "--via", by.via, "--cow=kept", "--", "python3", "-c", &text];
    let words = [before, &words].concat();
    place.run_as(words[0], &words[1..])
}

/// Everything about the real files: also their times, as no call may come to them.
fn real(place: &Cow) -> String {
    let list = "find . -exec stat -c '%n %f %u %g %h %s %Y %Z %i' {} + | sort";
    all(place, "here") + &place.run_as("sh", &["-ec", &format!("cd here; {list}")]).ok()
}

/// Runs a program that fails if a call does not do what it should, and answers what differs then; the real files do not.
fn kept(by: By, text: &str) -> Option<Vec<String>> {
    let place = place(by.via).filter(|_| has("python3"))?;
    let before = real(&place);
    let said = python(&place, by, text);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(real(&place), before);
    Some(changes(&place, "here"))
}

fn files_are_written_by_every_kind_of_path(by: By) {
    let text = "
d = os.open('tree', os.O_RDONLY | os.O_DIRECTORY)
p = os.open('tree', os.O_PATH)
def more(path, **how): 
    f = os.open(path, os.O_WRONLY | os.O_APPEND, **how)
    os.write(f, b'more'); os.close(f)
more('one', dir_fd=d)
more('sub/two', dir_fd=p)
more('/proc/self/cwd/tree/sub/deep/three')
more(f'/proc/self/fd/{d}/../many/a')
f = os.open('many/b', os.O_RDONLY)
more(f'/proc/self/fd/{f}')
assert os.read(f, 99) == b'other\\n', 'what was open stays'
assert open('many/b').read() == 'other\\nmore' and open('tree/link').read() == 'one\\nmore'
os.symlink('../tree/one', 'many/link'); more('many/link')
m = open('many/holes', 'r+b')
mmap.mmap(m.fileno(), 4096)[:4] = b'hole'
os.ftruncate(m.fileno(), 8192); os.posix_fallocate(m.fileno(), 0, 12288)
assert os.fstat(m.fileno()).st_size == 12288 == os.stat('many/holes').st_size
os.chdir('tree'); more('hard'); os.fchdir(os.open('/', os.O_RDONLY)); os.fchdir(d); more('../many/old')
fails([errno.ELOOP], os.open, 'link', os.O_WRONLY | os.O_NOFOLLOW)
fails([errno.EOPNOTSUPP], os.open, '.', os.O_TMPFILE | os.O_RDWR)
fails([errno.EISDIR], os.open, '.', os.O_RDWR)
fails([errno.EEXIST], os.open, 'one', os.O_CREAT | os.O_EXCL | os.O_WRONLY)
assert os.open('one', os.O_RDONLY | os.O_CREAT) >= 0
";
    let Some(told) = kept(by, text) else { return };
    let expected = [
        "modified many/a (content, time)",
        "modified many/b (content, time)",
        "modified many/holes (content, time)",
        "added    many/link",
        "modified many/old (content, time)",
        "modified tree/hard (content, time)",
        "modified tree/one (content, time)",
        "modified tree/sub/deep/three (content, time)",
        "modified tree/sub/two (content, time)",
    ];
    assert_eq!(told, expected);
}

fn files_are_emptied_without_being_written(by: By) {
    let text = "
os.close(os.open('tree/one', os.O_RDONLY | os.O_TRUNC))
os.truncate('many/a', 2)
assert call(85, 'many/b', 0o600) >= 0, 'creat'
how = struct.pack('QQQ', os.O_WRONLY | os.O_TRUNC, 0, 0)
assert call(437, AT, 'many/old', ctypes.c_char_p(how), 24) >= 0, 'openat2'
how = struct.pack('QQQ', os.O_WRONLY, 0, 4)
assert call(437, AT, 'tree/link', ctypes.c_char_p(how), 24) == -errno.ELOOP, 'RESOLVE_NO_SYMLINKS'
assert [os.stat(f).st_size for f in ('tree/one', 'many/a', 'many/b', 'many/old')] == [0, 2, 0, 0]
";
    let Some(told) = kept(by, text) else { return };
    let content = ["many/a", "many/b", "tree/one"].map(|name| format!("modified {name} (content, time)"));
    let expected = [&content[..2], &["modified many/old (time)".to_owned()], &content[2..]].concat();
    assert_eq!(told, expected, "the third one was empty before");
}

fn attributes_are_changed_by_descriptors_that_only_read(by: By) {
    let text = "
def opened(path, flags=os.O_RDONLY): return os.open(path, flags)
os.fchmod(opened('tree/one'), 0o640)
os.fchown(opened('many/a'), 5, 6)
os.utime(opened('many/b'), (1, 2))
os.setxattr(opened('many/old'), 'user.new', b'x')
os.removexattr(opened('tree/sub/two'), 'user.mine')
os.fchmod(opened('empty'), 0o711)
p = opened('many/holes', os.O_PATH)
assert call(260, p, '', 7, 8, 0x1000) == 0, 'fchownat'
assert call(452, p, '', 0o600, 0x1000) in (0, -errno.ENOSYS, -errno.EBADF), 'fchmodat2'
fails([errno.EBADF], os.fchmod, p, 0o777)
os.chmod(f'/proc/self/fd/{opened(\"tree/sub/deep/three\")}', 0o600)
assert call(90, 'tree/sub/two', 0o600) == 0, 'chmod'
assert (os.stat('tree/one').st_mode & 0o7777, os.stat('many/a').st_uid, os.stat('many/b').st_mtime) == (0o640, 5, 2)
assert os.stat('empty').st_mode & 0o7777 == 0o711 and os.getxattr('many/old', 'user.new') == b'x'
assert os.listxattr('tree/sub/two') == []
os.lchown('tree/link', 3, 4); assert os.lstat('tree/link').st_uid == 3
os.utime('tree/hard', (3, 3)); os.utime('many', (5, 5)); assert os.stat('many').st_mtime == 5
";
    let Some(told) = kept(by, text) else { return };
    for (name, what) in [
        ("empty/", ""),
        ("empty", "mode"),
        ("many/a", "owner"),
        ("many/b", "time"),
        ("many/holes", "owner"),
        ("many/old", "xattr"),
        ("tree/hard", "time"),
        ("tree/one", "mode"),
        ("tree/link", "owner"),
        ("tree/sub/deep/three", "mode"),
        ("tree/sub/two", "mode, xattr"),
    ] {
        let line = told.iter().find(|line| line.contains(&format!("modified {name} ")));
        assert!(what.is_empty() || line.is_some_and(|line| line.contains(what)), "{name}: {told:?}");
    }
}

fn names_are_made_moved_and_removed_apart(by: By) {
    let text = "
d = os.open('many', os.O_RDONLY)
os.mkdir('made', dir_fd=d); os.mknod('made/pipe', 0o10644, dir_fd=d); os.symlink('x', 'made/link', dir_fd=d)
os.link('a', 'b2', src_dir_fd=d, dst_dir_fd=d)
p = os.open('tree/one', os.O_PATH)
assert call(265, p, '', AT, 'tree/linked', 0x1000) == 0, 'linkat'
f = os.open('tree/sub/two', os.O_RDONLY)
assert call(265, AT, f'/proc/self/fd/{f}', AT, 'tree/followed', 0x400) == 0, 'AT_SYMLINK_FOLLOW'
os.rename('b', 'moved', src_dir_fd=d, dst_dir_fd=d)
assert call(316, AT, 'many/old', AT, 'many/holes', 2) == 0, 'RENAME_EXCHANGE'
assert call(316, AT, 'many/old', AT, 'many/holes', 1) == -errno.EEXIST, 'RENAME_NOREPLACE'
fails([errno.EXDEV], os.rename, 'tree/sub', 'tree/sub2')
fails([errno.EXDEV], os.rename, 'many/a', '/dev/shm/outrigger-none')
fails([errno.EXDEV], os.link, 'many/a', '/dev/shm/outrigger-none')
os.unlink('tree/sub/deep/three'); os.rmdir('tree/sub/deep'); os.rmdir('empty')
fails([errno.ENOTEMPTY], os.rmdir, 'tree')
fails([errno.ENOENT], os.stat, 'empty'); fails([errno.ENOENT], os.unlink, 'tree/sub/deep/three')
assert sorted(os.listdir('many')) == ['a', 'b2', 'holes', 'made', 'moved', 'old', 'pipe'], os.listdir('many')
assert sorted(os.listdir(d)) == sorted(os.listdir('many')) and sorted(os.listdir('tree/sub')) == ['two']
assert sorted(os.listdir('many/made')) == ['link', 'pipe'] and os.stat('many/old').st_size == 1 << 20
assert open('tree/linked').read() == 'one\\n' and open('tree/followed').read() == 'two\\n'
s = socket.socket(socket.AF_UNIX); s.bind('many/socket'); s.listen(); os.chdir('many')
fails([errno.EADDRINUSE], socket.socket(socket.AF_UNIX).bind, 'socket')
c = socket.socket(socket.AF_UNIX); c.connect('socket'); s.accept()[0].send(b'hello'); assert c.recv(9) == b'hello'
os.unlink('socket')
if os.fork() == 0:
    open('pipe', 'w').write('through'); os._exit(0)
assert open('pipe').read() == 'through'
";
    let Some(told) = kept(by, text) else { return };
    for line in [
        "removed  empty/",
        "removed  many/b",
        "added    many/b2",
        "added    many/made/",
        "added    many/made/link",
        "added    many/made/pipe",
        "added    many/moved",
        "added    tree/followed",
        "added    tree/linked",
        "removed  tree/sub/deep/three",
        "removed  tree/sub/deep/",
    ] {
        assert!(told.iter().any(|told| told == line), "{line}: {told:?}");
    }
}

/// Nothing that changes a file, or where names lead, is left to the kernel.
fn what_cannot_be_kept_apart_is_refused(by: By) {
    let text = "
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FICLONE = 0x80086601, 0x40086602, 0x40049409
f = os.open('tree/one', os.O_RDONLY)
flags = ctypes.c_long(0)
assert call(16, f, FS_IOC_GETFLAGS, ctypes.byref(flags)) in (0, -errno.EOPNOTSUPP, -errno.ENOTTY)
flags.value |= 0x80
fails([errno.EOPNOTSUPP], call, 16, f, FS_IOC_SETFLAGS, ctypes.byref(flags))
fails([errno.EOPNOTSUPP], call, 16, os.open('tree', os.O_RDONLY), FS_IOC_SETFLAGS, ctypes.byref(flags))
fails([errno.EBADF, errno.EINVAL, errno.EOPNOTSUPP], call, 16, f, FICLONE, os.open('many/a', os.O_RDONLY))
REFUSED = [(165, 'none', '/mnt', 'tmpfs', 0, 0), (166, '/mnt', 0), (155, '.', '.'), (161, '.'), (163, 'tree/one'), (167, 'tree/one', 0),
    (168, 'tree/one'), (179, 0, '/', 0, 0), (304, AT, 0, 0), (308, f, 0), (428, AT, '.', 1), (429, f, '', f, '', 4), (430, 'tmpfs', 0),
    (442, AT, '.', 0, 0, 0), (443, f, 0, 0, 0)]
for words in REFUSED: fails([errno.EPERM], call, *words)
for number in (425, 426, 427, 78, 463, 466, 469, 500, 0x40000000 | 87): fails([errno.ENOSYS], call, number, 'tree/one')
fails([errno.ENOSYS, errno.EINVAL], call, 0x40000000 | 2, 'tree/one', 1, 0)
assert call(303, AT, 'tree/one', ctypes.create_string_buffer(struct.pack('Ii', 0, 0), 136), ctypes.byref(ctypes.c_int()), 0) < 0
fails([errno.EBUSY], os.rmdir, '/run'); fails([errno.EBUSY], os.chmod, '/dev', 0o755); fails([errno.EBUSY], os.rename, '/run', '/run2')
if os.fork() == 0:
    os.execv('../small', ['small'])
";
    let Some(place) = place(by.via).filter(|_| has("python3")) else { return };
    // The header of a program of 32 bits.
    place.file("small", [&b"\x7fELF\x01\x01\x01"[..], &[0; 64]].concat());
    place.run_as("chmod", &["755", "small"]).ok();
    let before = real(&place);
    let said = python(&place, by, text);
    assert!(said.code == Some(0) && said.err.contains("a program of 32 bits"), "{said:?}");
    assert!(said.err.contains("PermissionError"), "{said:?}");
    assert_eq!((real(&place), changes(&place, "here")), (before, Vec::new()));
}

fn what_the_user_gave_for_writing_is_written(by: By) {
    let Some(place) = place(by.via) else { return };
    let via = by.via;
    let script =
        "echo one; echo two >>/dev/stdout; echo three >>/dev/fd/1; echo four >>/proc/self/fd/1; echo new >new
        echo no >>/proc/$outside/fd/9";
    // What another process has open is not given, though it may be the same file.
    let run = format!(
        "exec 9>>theirs; export outside=$$; {PROGRAM} run --via {via} --cow=kept sh -ec 'cd here; {script}' >>given; exit $?"
    );
    place.run_as("sh", &["-c", &run]).ok();
    assert_eq!(fs::read_to_string(place.at("theirs")).unwrap(), "");
    assert_eq!(fs::read_to_string(place.at("given")).unwrap(), "one\ntwo\nthree\nfour\n");
    let theirs = format!("modified {} (content, time)", place.at("theirs").display());
    assert_eq!(changes(&place, "here"), ["added    new", &theirs]);
}

/// Where the server may not share descriptors, as in containers, it is the same.
#[test]
fn each_name_is_listed_once_without_shared_descriptors() {
    each_name_is_listed_once(By { via: "seccomp", is_filtered: true });
}

/// A directory is listed while names in it come and go.
fn each_name_is_listed_once(by: By) {
    let Some(place) = place(by.via).filter(|_| has("python3")) else { return };
    let script = "cd here/many; for n in $(seq 1500); do echo $n >f$n; done";
    place.run_as("sh", &["-c", script]).ok();
    let text = "
import subprocess
os.chdir('many')
names, made = [], 0
for entry in os.scandir('.'):
    names.append(entry.name)
    if entry.name.startswith('f'):
        os.unlink(entry.name) if made % 2 else open(entry.name, 'a').write('more')
        open('new%d' % made, 'w').close()
        made += 1
old = [name for name in names if name.startswith('f')]
assert (len(old), made) == (1500, 1500) and len(set(names)) == len(names), (len(old), made)
now = os.listdir('.')
assert len(set(now)) == len(now) == 750 + 1500 + 5, len(now)
d = os.open('.', os.O_RDONLY)
assert sorted(os.listdir(d)) == sorted(os.listdir(d)) == sorted(now), 'it begins anew'
subprocess.check_call(['rm', '-r', '../many'])
assert not os.path.exists('../many')
os.mkdir('../many'); os.chdir('../many'); assert os.listdir('.') == []
";
    let said = python(&place, by, text);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(fs::read_dir(place.at("here/many")).unwrap().count(), 1505);
    assert_eq!(fs::metadata(place.at("here/many/f1")).unwrap().nlink(), 1);
}

#[test]
fn where_no_namespace_can_be_made_changes_are_kept_apart_by_calls() {
    let another = format!("{PROGRAM} run --via seccomp --no-hosts --map /data=there");
    for (outer, via) in [("", "seccomp (not namespace: "), (&*another, "ptrace (not namespace: ")] {
        let Some(place) = place("seccomp").filter(|_| has("unshare") && has("setpriv")) else { return };
        let before = real(&place);
        // A user namespace of its own has limits of its own.
        let setup = format!(
            "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all {outer} {PROGRAM} run -v \
                --cow=kept sh -ec 'cd here; echo more >>tree/one; rm many/a; cat tree/one; ls many'"
        );
        let said = place.run_as("unshare", &["-Ur", "sh", "-c", &setup]);
        assert!(said.err.starts_with(&format!("outrigger run: via {via}no user namespace")), "{said:?}");
        assert_eq!(said.ok(), "one\nmore\nb\nholes\nold\npipe\n");
        assert_eq!(real(&place), before);
        assert_eq!(changes(&place, "here"), ["removed  many/a", "modified tree/one (content, time)"]);
    }
}

/// Without the server nobody would keep changes apart.
fn without_the_server_nothing_can_be_opened_any_more(by: By) {
    let Some(place) = place(by.via).filter(|_| has("python3")) else { return };
    let before = real(&place);
    let script = "
import os
f = os.open('here/new', os.O_CREAT | os.O_WRONLY)
print('started', flush=True); input()
os.write(f, b'late\\n'); print(os.fstat(f).st_size)
for flags in (os.O_WRONLY, os.O_RDONLY):
    try: os.open('here/many/a', flags)
    except OSError as error: print(error.errno)";
    let words = ["run", "--via", by.via, "--cow=kept", "--", "python3", "-c", script];
    let mut server = place.command(PROGRAM, &words);
    let mut server =
        server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("started"));
    let mut input = server.stdin.take().unwrap();
    signal(server.id(), "KILL");
    server.wait().unwrap();
    // Programs that were traced have ended.
    let is_traced = by.via == "ptrace";
    let written = input.write_all(b"go\n");
    assert!(is_traced || written.is_ok());
    let refused = rustix::io::Errno::NOTCONN.raw_os_error().to_string();
    let said = if is_traced { &[][..] } else { &["5", &refused, &refused] };
    assert_eq!(lines.collect::<Vec<_>>(), said);
    assert_eq!(real(&place), before);
    assert_eq!(changes(&place, "here"), ["added    new"]);
    assert_eq!(
        fs::read_to_string(place.at("kept/upper").join(place.at("here/new").strip_prefix("/").unwrap()))
            .unwrap(),
        if is_traced { "" } else { "late\n" }
    );
}
