// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs find whose system calls are answered, whatever these come by.

use crate::support::{PROGRAM, Place, Said, has, within};
use std::fs::{self, Permissions};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// A place with a tree, whose copies are in a directory of it, and where programs are run in one way.
pub struct Answered {
    place: Place,
    pub via: &'static str,
}

impl Deref for Answered {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

pub fn place(via: &'static str) -> Answered {
    let place = Place::new().trusting();
    place.file("tree/sub/file", "content\n");
    fs::create_dir(place.at("copies")).unwrap();
    Answered { place, via }
}

pub fn command(place: &Answered, options: &[&str], words: &[&str]) -> Command {
    let fixed = ["run", "--via", place.via, "--no-hosts", "--map", "/data=tree"];
    let mut command = place.command(PROGRAM, &[&fixed[..], options, words].concat());
    command.env("TMPDIR", place.at("copies"));
    command
}

pub fn run(place: &Answered, options: &[&str], words: &[&str]) -> Said {
    let copies = format!("TMPDIR={}", place.at("copies").display());
    let fixed = [&copies, PROGRAM, "--allow-programs", "run", "--via", place.via, "--no-hosts", "--map"];
    place.run_as("env", &[&fixed[..], &["/data=tree"], options, words].concat())
}

pub fn script(place: &Answered, script: &str) -> Said {
    run(place, &[], &["sh", "-ec", script])
}

/// Runs Python, which calls the system as it is told.
fn python(place: &Answered, text: &str) -> Said {
    let said = run(place, &[], &["python3", "-c", &format!("import os\n{text}")]);
    assert_eq!(said.code, Some(0), "{said:?}");
    said
}

pub fn paths_lead_into_trees_and_out_of_them(via: &'static str) {
    let place = place(via);
    std::os::unix::fs::symlink("/data/sub", place.at("into")).unwrap();
    std::os::unix::fs::symlink(place.at("outside"), place.at("tree/out")).unwrap();
    std::os::unix::fs::symlink("loop", place.at("tree/loop")).unwrap();
    place.file("outside", "outside\n");
    let text = "cat into/file tree/out /data/out; cd into; cat file ../out; pwd -P; cd -P ../..; pwd; ls -d /data/../tmp /usr/../data; ls -ld /data/.. >/dev/null";
    for options in [&[][..], &["--no-gate"]] {
        let said = run(&place, options, &["sh", "-ec", text]);
        let wanted =
            "content\noutside\noutside\ncontent\noutside\n/data/sub\n/\n/data/../tmp\n/usr/../data\n";
        assert_eq!(said.ok(), wanted, "{options:?}");
    }
    let said = run(&place, &["--no-gate"], &["cat", "/data/loop", "/data/none", "/data/sub/file/x"]);
    let errors: Vec<_> = said.err.lines().map(|line| line.rsplit(": ").next().unwrap()).collect();
    let wanted = ["Too many levels of symbolic links", "No such file or directory", "Not a directory"];
    assert_eq!(errors, wanted, "{said:?}");
}

pub fn programs_and_scripts_of_trees_are_executed(via: &'static str) {
    let place = place(via);
    let executable = |name: &str, text: &[u8]| {
        let path = place.file(name, text);
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    };
    executable("tree/bin/show", &fs::read("/bin/echo").unwrap());
    executable("tree/bin/script", b"#!/bin/sh -e\necho $0 \"$@\"; cat \"${0%/*}/../sub/file\"\n");
    executable("tree/bin/of-tree", b"#!/data/bin/show -n\n");
    executable("local", b"#!/data/bin/show local\n");
    executable("tree/bin/odd", b"neither\n");
    place.file("tree/bin/plain", "#!/bin/sh\n");
    let said = script(
        &place,
        "/data/bin/show a; /data/bin/script b c; cd /data/bin; ./of-tree; echo; ./script; cd /; PATH=/data/bin:$PATH show found; readlink /proc/self/exe | grep -c outrigger-run || :",
    );
    let wanted = "a\n/data/bin/script b c\ncontent\n./of-tree\n./script\ncontent\nfound\n0\n";
    assert_eq!(said.ok(), wanted);
    assert_eq!(run(&place, &[], &["./local", "d"]).ok(), "local ./local d\n");
    assert_eq!(run(&place, &[], &["/data/bin/show", "first"]).ok(), "first\n");
    run(&place, &[], &["/data/bin/plain"]).refused(126);
    run(&place, &[], &["/data/bin/none"]).refused(127);
}

pub fn descriptors_are_those_of_real_files(via: &'static str) {
    if !has("python3") {
        return;
    }
    let place = place(via);
    let text = "
import mmap, socket
d = os.open('/data', os.O_RDONLY | os.O_DIRECTORY)
f = os.open('sub/file', os.O_RDONLY, dir_fd=d)
assert os.fstat(f) == os.stat('/data/sub/file') == os.stat('sub/file', dir_fd=d)
assert os.readlink(f'/proc/self/fd/{f}') == '/data/sub/file' and os.path.realpath('/dev/fd/%d' % f) == '/data/sub/file'
assert mmap.mmap(f, 0, prot=mmap.PROT_READ)[:] == b'content\\n'
assert open(f'/proc/self/fd/{f}').read() == 'content\\n'
assert not os.get_inheritable(f)
a, b = socket.socketpair()
socket.send_fds(a, [b'x'], [f])
assert os.pread(socket.recv_fds(b, 1, 1)[1][0], 9, 0) == b'content\\n'
os.fchdir(d)
assert os.getcwd() == '/data' and os.listdir('.') == ['sub'] and open('sub/file').read() == 'content\\n'
p = os.open('sub/file', os.O_PATH)
assert open(f'/proc/self/fd/{p}').read() == 'content\\n'
assert sorted(os.listdir(os.open('sub', os.O_RDONLY))) == ['file']
for flags in (os.O_RDWR, os.O_CREAT | os.O_RDWR):
    try:
        os.open('/data/sub', flags)
    except IsADirectoryError:
        pass
";
    python(&place, text);
}

pub fn what_is_written_is_stored_when_it_is_closed_and_by_fsync(via: &'static str) {
    if !has("python3") {
        return;
    }
    let place = place(via);
    let tree = place.at("tree");
    let text = format!(
        "
import mmap
real = lambda name: open('{tree}/' + name).read()
f = open('/data/new', 'w')
f.write('one'); f.flush(); os.fsync(f.fileno())
assert real('new') == 'one'
f.write(' two'); f.flush()
assert open('/data/new').read() == 'one two' and os.stat('/data/new').st_size == 7
os.rename('/data/new', '/data/sub/moved')
assert real('sub/moved') == 'one two'
f.write(' three'); f.close()
os.stat('/data/sub/moved')
assert real('sub/moved') == 'one two three'
with open('/data/sub/moved', 'a') as f:
    f.write(' four')
os.utime('/data/sub/moved', (1, 2))
assert real('sub/moved') == 'one two three four' and os.stat('{tree}/sub/moved').st_mtime == 2
with open('/data/timed', 'w') as f:
    f.write('x'); f.flush(); os.utime(f.fileno(), (1, 3)); os.fchmod(f.fileno(), 0o640)
found = os.stat('/data/timed')
assert (found.st_mtime, found.st_mode & 0o777) == (3, 0o640)
with open('/data/mapped', 'w+b') as f:
    f.truncate(4096)
    m = mmap.mmap(f.fileno(), 4096)
m[:5] = b'later'
m.close()
os.stat('/data/mapped')
assert real('mapped')[:5] == 'later'
os.truncate('/data/mapped', 3)
assert real('mapped') == 'lat' and open('/data/mapped').read() == 'lat'
with open('/data/gone', 'w') as f:
    os.unlink('/data/gone'); f.write('x')
try:
    open('/data/mapped', 'x')
except FileExistsError:
    pass
os.link('/data/mapped', '/data/second')
with open('/data/second', 'w') as f:
    f.write('both')
assert open('/data/mapped').read() == 'both'
open('/data/last', 'w').write('last')
",
        tree = tree.display()
    );
    python(&place, &text);
    let real = |name: &str| fs::read_to_string(tree.join(name)).unwrap();
    assert_eq!((real("last"), real("mapped"), real("second")), ("last".into(), "both".into(), "both".into()));
    assert!(!tree.join("gone").exists());
    let timed = fs::metadata(tree.join("timed")).unwrap();
    assert_eq!((timed.mtime(), timed.mode() & 0o777), (3, 0o640));
    assert_eq!(fs::read_dir(place.at("copies")).unwrap().count(), 0, "the copies are gone");
}

pub fn what_others_change_is_seen(via: &'static str) {
    let place = place(via);
    let real = place.at("tree");
    let text = format!(
        "cat /data/sub/file; echo other >{0}/sub/file; cat /data/sub/file; ls /data; mv {0}/sub {0}/dir; touch {0}/x; ls /data; cat /data/dir/file; rm -r {0}/dir; mkdir {0}/x.d; rm {0}/x; ln -s sub {0}/x; readlink /data/x; ls /data",
        real.display()
    );
    assert_eq!(script(&place, &text).ok(), "content\nother\nsub\ndir\nx\nother\nsub\nx\nx.d\n");
}

pub fn a_file_that_others_replace_is_not_the_one_that_is_written(via: &'static str) {
    if !has("python3") {
        return;
    }
    let place = place(via);
    let tree = place.at("tree");
    let text = format!(
        "
before = open('/data/file', 'w')
before.write('before'); before.flush()
os.remove('{0}/file')
with open('/data/file', 'w') as after:
    after.write('after')
assert open('/data/file').read() == 'after' and os.stat('/data/file').st_size == 5
before.write(' and on'); before.close()
before = open('/data/other', 'w')
os.remove('{0}/other'); os.mkdir('{0}/other'); open('{0}/other/in', 'w').write('in')
assert open('/data/other/in').read() == 'in' and os.listdir('/data/other') == ['in']
before.close()
",
        tree.display()
    );
    python(&place, &text);
    assert_eq!(fs::read_to_string(tree.join("file")).unwrap(), "after");
}

pub fn names_between_trees_and_this_machine_cannot_be_exchanged(via: &'static str) {
    let place = place(via);
    place.file("local", "local\n");
    let said = python(
        &place,
        "
for call, a, b in ((os.rename, '/data/sub/file', 'x'), (os.rename, 'local', '/data/x'), (os.link, 'local', '/data/x'),
                   (os.rename, '/data/none', 'x'), (os.rename, 'none', '/data/x'), (os.rename, '/data', '/data/x'), (os.rmdir, '/data', None)):
    try:
        call(a, b) if b else call(a)
    except OSError as error:
        print(error.errno)
",
    );
    assert_eq!(said.out, "18\n18\n18\n2\n2\n16\n16\n");
    script(&place, "mv local /data/moved; mv /data/sub/file here").ok();
    assert_eq!(fs::read_to_string(place.at("tree/moved")).unwrap(), "local\n");
    assert_eq!(fs::read_to_string(place.at("here")).unwrap(), "content\n");
}

pub fn content_that_cannot_be_stored_is_kept_and_no_success(via: &'static str) {
    let place = place(via);
    let layer = ["--layer", "fault=op=write,error=ENOSPC"];
    let words = [&layer[..], &["run", "--via", via, "--no-hosts", "--map", "/data=tree"]].concat();
    let said = place.run(&[&words[..], &["sh", "-c", "echo precious >/data/new"]].concat());
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("/data/new") && said.err.contains("No space left"), "{said:?}");
    let kept = fs::read_dir(place.at("state/outrigger/unsaved")).unwrap().next().unwrap().unwrap().path();
    assert!(said.err.contains(kept.to_str().unwrap()), "{said:?}");
    assert_eq!(fs::read_to_string(kept).unwrap(), "precious\n");
    if !has("python3") {
        return;
    }
    let fsync = "import os; f = os.open('/data/x', os.O_CREAT | os.O_WRONLY); os.write(f, b'x')\ntry: os.fsync(f)\nexcept OSError as e: print(e.errno)";
    let said = place.run(&[&words[..], &["python3", "-c", fsync]].concat());
    assert_eq!((&*said.out, said.code == Some(0)), ("28\n", false), "{said:?}");
}

pub fn changes_of_a_read_only_tree_are_refused_at_once(via: &'static str) {
    let place = place(via);
    let text = "echo x >/data/sub/file || echo 1; mkdir /data/dir || echo 2; rm -f /data/sub/file || echo 3; chmod 600 /data/sub/file || echo 4; cat /data/sub/file";
    let said = run(&place, &["--read-only"], &["sh", "-c", text]);
    assert_eq!((&*said.out, said.err.matches("Read-only").count()), ("1\n2\n3\n4\ncontent\n", 4), "{said:?}");
}

pub fn a_lock_that_other_clients_do_not_see_is_granted_with_a_warning(via: &'static str) {
    if !has("flock") || !has("python3") {
        return;
    }
    let place = place(via);
    place.file("local", "");
    let said = run(&place, &[], &["flock", "-n", "local", "true"]);
    assert_eq!((&*said.err, said.code), ("", Some(0)), "a local lock is one for all");
    let posix = "import fcntl; f = open('/data/sub/file', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_UN)";
    for words in [&["flock", "-n", "/data/sub/file", "true"][..], &["python3", "-c", posix]] {
        let said = run(&place, &[], words);
        assert!(said.code == Some(0) && said.err.lines().count() == 1, "{said:?}");
        assert!(
            said.err.contains("a lock of '/data/sub/file' holds among the programs of this run only"),
            "{said:?}"
        );
    }
}

pub fn looking_at_files_does_not_read_them(via: &'static str) {
    let place = place(via);
    place.file("tree/big", vec![b'x'; 1 << 20]);
    let layer = ["--layer", "fault=op=read,error=EIO", "run", "--via", via, "--no-hosts"];
    let words = [
        &layer[..],
        &["--map", "/data=tree", "sh", "-c", "stat -c %s /data/big; ls -l /data >/dev/null && cat /data/big"],
    ];
    let said = place.run(&words.concat());
    assert_eq!((&*said.out, said.code), ("1048576\n", Some(1)), "{said:?}");
    assert!(said.err.contains("Input/output error"), "{said:?}");
}

pub fn a_tree_that_does_not_answer_stops_no_other_call(via: &'static str) {
    let place = place(via);
    place.file("slow/file", "slow\n");
    let slow = format!("/slow={}", place.at("slow").display());
    let words = ["--layer", "fault=op=read,delay=2s", "run", "--via", via, "--no-hosts", "--map", &slow];
    let text =
        "for i in 1 2 3 4 5 6; do cat /slow/file & done; for i in 1 2 3 4 5 6 7 8; do cat local; done; wait";
    place.file("local", "local\n");
    let said = place.run(&[&words[..], &["sh", "-c", text]].concat()).ok();
    assert_eq!(said, "local\n".repeat(8) + &"slow\n".repeat(6));
}

pub fn a_compiler_builds_in_a_tree(via: &'static str) {
    if !has("gcc") || !has("make") {
        return;
    }
    let place = place(via);
    place.file(
        "tree/src/main.c",
        "#include \"own.h\"\n#include <stdio.h>\nint main(void) { puts(OWN); return 0; }\n",
    );
    place.file("tree/src/own.h", "#define OWN \"own\"\n");
    place.file("tree/src/Makefile", "both: main main-static\nmain: main.c own.h\n\tgcc -o $@ main.c\nmain-static: main.c own.h\n\tgcc -static -o $@ main.c\n");
    let text = "cd /data/src; make -s; ./main; ./main-static; make -q; cd ..; cp -a src copy; copy/main; tar cf - copy | tar df -; grep -rlI OWN . | sort";
    let said = script(&place, text).ok();
    assert_eq!(said, "own\nown\nown\n./copy/main.c\n./copy/own.h\n./src/main.c\n./src/own.h\n");
}

pub fn threads_and_signals_do_not_disturb_calls(via: &'static str) {
    if !has("python3") {
        return;
    }
    let place = place(via);
    let text = "
import signal, threading
signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def work(number):
    for turn in range(50):
        name = f'/data/{number}-{turn % 5}'
        with open(name, 'w') as f:
            f.write(name * turn)
        assert open(name).read() == name * turn, name
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
for turn in range(50):
    os.chdir('/data/sub'); assert os.getcwd() == '/data/sub'
    os.chdir('/tmp'); assert os.getcwd() == '/tmp'
[thread.join() for thread in threads]
signal.setitimer(signal.ITIMER_REAL, 0)
";
    python(&place, text);
    assert_eq!(fs::read_to_string(place.at("tree/7-4")).unwrap(), "/data/7-4".repeat(49));
    within("the copies are gone", || fs::read_dir(place.at("copies")).unwrap().count() == 0);
}

pub fn another_owner_is_seen_while_the_file_is_open(via: &'static str) {
    if !has("python3") || !rustix::process::geteuid().is_root() {
        return;
    }
    let text = "
f = os.open('/data/new', os.O_RDWR | os.O_CREAT, 0o755)
os.write(f, b'x'); os.chown('/data/new', 1, 2)
print([(found.st_uid, found.st_gid) for found in (os.fstat(f), os.stat('/data/new'))])
";
    assert_eq!(python(&place(via), text).out, "[(1, 2), (1, 2)]\n");
}

/// What the server finds out about a relative path must hold when the kernel looks.
pub fn what_threads_make_where_another_one_changes_the_directory_is_in_one_of_both(via: &'static str) {
    if !has("python3") {
        return;
    }
    let text = "
import os, sys, threading
dirs = ['/data/made', sys.argv[1]]
[os.mkdir(name) for name in dirs]
os.chdir(dirs[0])
ended, wrong = threading.Event(), set()
def change():
    while not ended.is_set():
        [os.chdir(name) for name in dirs]
def make(number):
    for turn in range(100):
        os.mkdir(f'd{number}.{turn}')
        with open(f'f{number}.{turn}', 'w') as f: f.write('x')
        if os.getcwd() not in dirs: wrong.add(os.getcwd())
threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
changing = threading.Thread(target=change)
changing.start()
[thread.join() for thread in threads]
ended.set()
changing.join()
print(wrong or len(set(os.listdir(dirs[0])) | set(os.listdir(dirs[1]))))
";
    for options in [&[][..], &["--no-gate"]] {
        let place = place(via);
        let local = place.at("local");
        let said = run(&place, options, &["python3", "-c", text, local.to_str().unwrap()]);
        assert_eq!(said.ok(), "800\n", "{options:?}");
        let made = [place.at("tree/made"), local].map(|dir| fs::read_dir(dir).unwrap().count());
        assert!(made.iter().sum::<usize>() >= 800, "{made:?}");
    }
}

/// What goes through all temporary files comes to no tree, and not to the root directory.
pub fn the_directory_of_copies_leads_nowhere(via: &'static str) {
    let place = place(via);
    place.file("kept", "kept\n");
    let (copies, kept) = (place.at("copies"), place.at("kept").display().to_string());
    let all = format!("{}/*", copies.display());
    let said = script(
        &place,
        &format!(
            "cat /data/sub/file; for dir in {all}; do
                if ls $dir/files || cat $dir/files{kept} || rm -rf $dir/files{kept} || ls $dir/files/..; then exit 1; fi
            done 2>/dev/null; rm -rf {all} 2>/dev/null || true; find {all} 2>/dev/null | wc -l; cat /data/sub/file {kept}"
        ),
    );
    assert_eq!(said.ok(), "content\n3\ncontent\nkept\n");
    assert_eq!(fs::read_dir(copies).unwrap().count(), 0);
}

pub fn directories_have_the_permissions_that_they_have_in_the_tree(via: &'static str) {
    let place = place(via);
    fs::create_dir(place.at("tree/d")).unwrap();
    fs::set_permissions(place.at("tree/d"), Permissions::from_mode(0o2511)).unwrap();
    let said = script(&place, "stat -c %a /data/d; cp -a /data/d /data/copy; tar cf d.tar -C /data d");
    assert_eq!(said.ok(), "2511\n");
    assert_eq!(fs::metadata(place.at("tree/copy")).unwrap().permissions().mode() & 0o7777, 0o2511);
    let listed = place.run_as("tar", &["tvf", "d.tar"]).ok();
    assert!(listed.starts_with("dr-x--s--x"), "{listed}");
}

/// Opening it fails before anything is done to it.
pub fn a_file_is_not_emptied_or_made_for_a_program_that_has_no_room_for_it(via: &'static str) {
    let place = place(via);
    let text = "\
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
files = []
while True:
    try: files.append(os.open('/dev/null', 0))
    except OSError: break
for path, flags in [('/data/sub/file', os.O_WRONLY | os.O_TRUNC), ('/data/new', os.O_WRONLY | os.O_CREAT | os.O_EXCL)]:
    try: os.open(path, flags)
    except OSError as error: print(error.errno)
os.close(files.pop())
os.open('/data/new', os.O_WRONLY | os.O_CREAT | os.O_EXCL)";
    assert_eq!(python(&place, text).out, "24\n24\n");
    assert_eq!(fs::read_to_string(place.at("tree/sub/file")).unwrap(), "content\n");
    assert!(place.at("tree/new").exists());
}

pub fn programs_in_namespaces_of_their_own_and_without_privileges_change_files_of_trees(via: &'static str) {
    let place = place(via);
    let ways: [&[&str]; 4] = [
        &["unshare", "-Ur"],
        &["unshare", "--pid", "--fork"],
        &["unshare", "--mount"],
        &["setpriv", "--bounding-set=-all", "--inh-caps=-all"],
    ];
    for (number, way) in ways.into_iter().enumerate().filter(|(_, way)| has(way[0])) {
        let script = format!(
            "echo {number} >/data/sub/file; cat /data/sub/file; ls /data; cd /data; echo {number} >new-{number}"
        );
        let said = run(&place, &[], &[way, &["sh", "-ec", &script][..]].concat());
        assert!(said.code == Some(0) && said.out.starts_with(&format!("{number}\n")), "{way:?}: {said:?}");
        for name in ["sub/file", &format!("new-{number}")] {
            let content = fs::read_to_string(place.at("tree").join(name)).unwrap();
            assert_eq!(content, format!("{number}\n"), "{way:?}: {name}");
        }
    }
}

/// A copy that gets another file's name while a program opens it is not taken for that file.
pub fn what_is_read_is_of_one_file_while_others_replace_it(via: &'static str) {
    let place = place(via);
    let (file, new) = (place.at("tree/sub/file"), place.at("tree/sub/new"));
    let text = "\
import threading
def look():
    while True: os.stat('/data/sub/file')
for _ in range(2): threading.Thread(target=look, daemon=True).start()
for _ in range(600):
    try: text = open('/data/sub/file').read()
    except OSError: continue
    if len(set(text.split())) != 1: print(repr(text))
print('end', flush=True)
os._exit(0)";
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u32.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                fs::write(&new, format!("version-{number} ").repeat(1 + number as usize % 3)).unwrap();
                fs::rename(&new, &file).unwrap();
                thread::yield_now();
            }
        });
        let said = run(&place, &[], &["python3", "-c", &format!("import os\n{text}")]);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(said.ok(), "end\n");
    });
}

pub fn who_opens_a_fifo_waits_for_the_other_one_and_not_for_ever(via: &'static str) {
    let place = place(via);
    let text = "\
os.mkfifo('/data/fifo')
for _ in range(50):
    if os.fork() == 0:
        with open('/data/fifo', 'w') as out: out.write('x')
        os._exit(0)
    with open('/data/fifo') as inp: assert inp.read() == 'x'
    os.wait()
print('end')";
    assert_eq!(python(&place, text).out, "end\n");
}
