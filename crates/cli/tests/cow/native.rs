// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs find as they do without an overlay, also where a file has just been copied.

use crate::support::{PROGRAM, Said, has};
use crate::{Cow, all, apart, changes, place};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// What a program in Python says in `here` with an overlay.
fn python(place: &Cow, text: &str) -> String {
    let text = format!("import ctypes, os, struct\n{text}");
    place.file("program.py", &text);
    apart(place, "here", "python3 ../program.py").ok()
}

pub fn an_editor_saves_a_file_that_it_has_looked_at(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("vim.tiny")) else { return };
    apart(&place, "here", "vim.tiny -es -u NONE -c '%s/other/mine/' -c wq many/a; cat many/a").ok();
    assert_eq!(fs::read_to_string(place.at("here/many/a")).unwrap(), "other\n");
    assert_eq!(changes(&place, "here"), ["modified many/a (content, time)"]);
}

/// By path and by descriptor, in each form of the call.
const NUMBERS: &str = "
libc = ctypes.CDLL(None)
def old(number, *words):
    buffer = ctypes.create_string_buffer(256)
    assert libc.syscall(number, *[buffer if word is None else word for word in words]) == 0, words
    return struct.unpack_from('QQ', buffer.raw)
def new(at, path, flags):
    buffer = ctypes.create_string_buffer(256)
    assert libc.syscall(332, at, path, flags, 0x7ff, buffer) == 0
    return (os.makedev(*struct.unpack_from('II', buffer.raw, 136)), struct.unpack_from('Q', buffer.raw, 32)[0])
def numbers(path):
    name, fd = path.encode(), os.open(path, os.O_RDONLY)
    found = {old(4, name, None), old(6, name, None), old(5, fd, None), old(262, -100, name, None, 0), old(262, fd, b'', None, 0x1000),
        new(-100, name, 0), new(fd, b'', 0x1000)}
    os.close(fd)
    listed = {entry.inode() for entry in os.scandir(os.path.dirname(path)) if entry.path == path}
    assert len(found) == 1 and listed == {ino for _, ino in found}, (path, found, listed)
    return found.pop()
";

/// Programs that stay on one file system leave out what seems to be on another one.
pub fn new_files_are_on_the_file_system_of_their_directory(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("tar")) else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only the superuser can mount the other file system");
        return;
    }
    let script = format!(
        "mkdir other; mount -t tmpfs none other
        {PROGRAM} run --via {via} --cow=other/kept -- sh -ec '
            cd here; mkdir new; echo x >new/file; echo y >>tree/one; ln new/file new/linked
            tar --one-file-system -cf ../all.tar . || [ $? = 1 ]; tar -tf ../all.tar | grep -c ^./new/
            stat -c %d . new new/file tree/one | uniq | wc -l; cd new; stat -c %d . file | uniq | wc -l
            find . -xdev -name file; ls -i file | grep -c \"$(stat -c %i file) \"; stat -c %i file linked | uniq | wc -l'"
    );
    let said = place.run_as("unshare", &["-m", "sh", "-c", &script]).ok();
    assert_eq!(said, "3\n1\n1\n./file\n1\n1\n");
}

pub fn a_copy_keeps_its_device_and_inode_number(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("python3")) else { return };
    let text = format!(
        "{NUMBERS}
before = {{path: numbers(path) for path in ('many/a', 'many/b', 'many/old')}}
os.utime('many/a'); open('many/b', 'a').write('more'); os.rename('many/old', 'tree/old'); open('many/new', 'w')
assert numbers('many/a') == before['many/a'] and numbers('many/b') == before['many/b'] and numbers('tree/old') == before['many/old']
os.link('many/a', 'many/linked'); assert numbers('many/linked') == before['many/a']
assert numbers('many/new') not in before.values()
d = os.open('empty', os.O_RDONLY); os.chmod('empty', 0o711)
assert os.fstat(d).st_mode == os.stat('empty').st_mode == 0o40711 and os.fstat(d).st_ino == os.stat('empty').st_ino
print(*numbers('many/a'))"
    );
    let said = python(&place, &text);
    if via == "seccomp" {
        let real = fs::metadata(place.at("here/many/a")).unwrap();
        assert_eq!(said, format!("{} {}\n", real.dev(), real.ino()));
        assert_eq!(python(&place, &format!("{NUMBERS}print(*numbers('many/a'))")), said, "the next program");
        // The other name leads to the real file still.
        let text = "open('tree/one', 'a').write('more')
assert numbers('tree/hard') != numbers('tree/one') and open('tree/hard').read() == 'one\\n'";
        python(&place, &format!("{NUMBERS}{text}"));
    }
}

pub fn a_default_access_list_takes_the_place_of_the_umask(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("setfacl")) else { return };
    let setup = "for d in here there; do setfacl -d -m u:1234:rwx $d/many; done";
    place.run_as("sh", &["-ec", setup]).ok();
    let script = "umask 077; cd many; touch f; mkdir d; mkfifo p; echo x >d/f; cd ../empty; touch f; mkdir d; mkfifo p";
    place.run_as("sh", &["-ec", &format!("cd there; {script}")]).ok();
    let list = "; cd ..; stat -c '%n %a' many/* many/d/f empty/*";
    let seen = apart(&place, "here", &format!("{script}{list}")).ok();
    assert_eq!(seen, place.run_as("sh", &["-ec", &format!("cd there/empty{list}")]).ok());
    place.run(&["commit", "kept"]).ok();
    assert_eq!(all(&place, "here"), all(&place, "there"));
}

pub fn who_opens_a_lock_for_reading_locks_it_for_all(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("flock")) else { return };
    // flock(1) opens with O_RDONLY and O_CREAT.
    let script = "flock many/a sh -c 'echo held >many/a; flock -n many/a echo both || echo excluded'; flock -n many/a cat many/a";
    assert_eq!(apart(&place, "here", script).ok(), "excluded\nheld\n");
    assert_eq!(fs::read_to_string(place.at("here/many/a")).unwrap(), "other\n");
}

pub fn errors_of_odd_places_are_those_of_the_system(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("python3")) else { return };
    let text = "import os
def tell(work, *words, **how):
    try: print(work.__name__, *words, work(*words, **how) is None)
    except OSError as error: print(work.__name__, *words, error.strerror)
os.symlink('nowhere', 'many/link')
for path in ('many/link/', 'many/a/', 'many/none/', 'many/', 'many/.'):
    for flags in (os.O_CREAT, os.O_CREAT | os.O_EXCL): tell(os.open, path, flags)
def in_removed():
    for path in ('new', './new'): tell(os.open, path, os.O_CREAT | os.O_WRONLY)
    tell(os.mkdir, 'made'); tell(os.stat, 'none'); tell(os.rename, '../many/a', 'a'); tell(os.symlink, 'x', 'y')
    print(os.listdir('.'), os.path.isdir('.')); os.close(os.open('.', os.O_RDONLY))
here = os.getcwd()
os.mkdir('made'); os.chdir('made'); os.rmdir('../made'); in_removed()
os.mkdir('../made'); in_removed(); os.chdir('..'); print(os.getcwd() == here)
os.chdir('empty'); os.rmdir('../empty'); in_removed(); os.chdir('..'); print(os.getcwd() == here, sorted(os.listdir('.')))
";
    place.file("program.py", text);
    let natively = place.run_as("sh", &["-ec", "cd there; python3 ../program.py"]).ok();
    assert_eq!(apart(&place, "here", "python3 ../program.py").ok(), natively);
}

/// A program that is given directories open by its shell.
fn given(place: &Cow, shell: &str, script: &str) -> Said {
    let run = format!("{shell} {PROGRAM} run --via {} --cow=kept -- sh -ec '{script}'", place.via);
    place.run_as("bash", &["-c", &run])
}

pub fn a_directory_that_is_given_open_leads_to_the_overlay(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("python3")) else { return };
    let before = all(&place, "here");
    place.file(
        "program.py",
        "
import os
os.unlink('one', dir_fd=8); os.write(os.open('new', os.O_CREAT | os.O_WRONLY, dir_fd=8), b'mine')
os.chmod(8, 0o700); os.fchdir(8); os.unlink('../many/a'); os.mkdir('../many/made')
print(sorted(os.listdir(8)), os.read(9, 3))",
    );
    let said = given(&place, "exec 8<here/tree 9<here/many/b;", "python3 program.py");
    assert_eq!(said.ok(), "['hard', 'link', 'new', 'sub'] b'oth'\n");
    assert_eq!(all(&place, "here"), before);
    let told = changes(&place, "here");
    for line in ["removed  tree/one", "added    tree/new", "removed  many/a", "added    many/made/"] {
        assert!(told.iter().any(|told| told == line), "{line}: {told:?}");
    }
}

#[test]
fn a_directory_that_cannot_be_opened_again_is_closed() {
    let Some(place) = place("namespace") else { return };
    let said =
        given(&place, "exec 8<here/empty; rmdir here/empty;", "! ls /proc/self/fd/8/ 2>/dev/null; ls here");
    assert!(said.err.contains("descriptor 8, '") && said.err.contains("is closed"), "{said:?}");
    assert_eq!(said.ok(), "many\ntree\n");
}

/// acct(2), and open_by_handle_at(2).
#[test]
fn capabilities_that_lead_past_the_root_directory_are_given_up() {
    let Some(place) = place("namespace") else { return };
    let script = "chmod 0 tree/one; cat tree/one; grep ^Cap /proc/self/status";
    let said = apart(&place, "here", script).ok();
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("one"));
    let sets: Vec<u64> =
        lines.map(|line| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()).collect();
    assert_eq!(sets.len(), 5);
    assert!(sets.iter().all(|set| set & (1 << 20 | 1 << 2) == 0), "{sets:x?}");
}
