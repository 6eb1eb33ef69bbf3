// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes that are kept apart by tracing: what the program does itself there.

use crate::support::{PROGRAM, has};
use crate::{all, changes, place};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Its calls are answered by another run already. A third one cannot trace what is traced, and says so.
#[test]
fn a_run_whose_calls_are_answered_by_another_one_keeps_changes_apart() {
    let Some(place) = place("ptrace") else { return };
    let before = all(&place, "here");
    let third = format!("{PROGRAM} run --via ptrace --no-hosts --map /more=there true");
    let script = format!(
        "cd here; cat /data/tree/one; echo more >>tree/one; rm -r many; mkdir many; echo new >many/a; cat tree/one many/*; cd ..; ! {third}"
    );
    let inner = [PROGRAM, "run", "--via", "ptrace", "--cow=kept", "--", "sh", "-ec", &script];
    let outer = ["run", "--via", "seccomp", "--no-hosts", "--map", "/data=there", "--"];
    let said = place.run(&[&outer[..], &inner].concat());
    assert!(said.err.contains("is traced by process"), "{said:?}");
    assert_eq!(said.ok(), "one\none\nmore\nnew\n");
    assert_eq!(all(&place, "here"), before);
    let told = changes(&place, "here");
    assert!(told.contains(&"modified tree/one (content, time)".to_owned()), "{told:?}");
    assert!(told.contains(&"removed  many/b".to_owned()), "{told:?}");
}

/// The program opens copies by itself: those that it has just made, too, whatever their permissions say, and these stay what they are.
#[test]
fn a_user_makes_files_that_may_not_be_written() {
    let Some(place) = place("ptrace").filter(|_| has("setpriv") && has("python3")) else { return };
    fs::copy(PROGRAM, place.at("program")).unwrap();
    let text = "
import os, threading
def make(n):
    for i in range(20):
        f = os.open(f'made{n}-{i}', os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o400); os.write(f, b'x')
        assert os.stat(f'made{n}-{i}').st_mode & 0o7777 in (0o400, 0o600)
threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
modes = {os.stat(name).st_mode & 0o7777 for name in os.listdir('.') if name.startswith('made')}
assert modes == {0o400}, modes
for path, flags in (('made0-0', os.O_WRONLY), ('tree/secret', os.O_RDONLY | os.O_CREAT)):
    try: os.open(path, flags, 0o600)
    except PermissionError: continue
    raise SystemExit(path)";
    place.file("script.py", text);
    let setup = "chmod 755 .; echo no >here/tree/secret; chmod 0 here/tree/secret; chown -R nobody:nogroup here; mkdir mine; chown nobody:nogroup mine
        exec setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all \
            ./program run --via ptrace --cow=mine/kept sh -c 'cd here; exec python3 ../script.py'";
    place.run_as("sh", &["-ec", setup]).ok();
    let secret = fs::metadata(place.at("here/tree/secret")).unwrap();
    assert_eq!(secret.permissions().mode() & 0o7777, 0);
}

/// Root's programs without privileges could not open what was emptied for them.
#[test]
fn a_program_with_less_privileges_is_refused_before_anything_is_changed() {
    let Some(place) = place("ptrace").filter(|_| has("setpriv")) else { return };
    let before = all(&place, "here");
    let less = "setpriv --bounding-set=-all --inh-caps=-all sh -c";
    let other = "setpriv --reuid nobody --regid nogroup --clear-groups sh -c";
    let script = format!(
        "chmod 755 .. .; echo mine >many/b; for as in '{less}' '{other}'; do for file in tree/one many/b; do
            $as \"cat $file >/dev/null\" && echo seen; $as \"echo x >$file\" || echo refused; done; done; cat tree/one many/b"
    );
    let said = crate::apart(&place, "here", &format!("set +e; {script}"));
    // Another user does not come to the overlay.
    assert_eq!(said.out, "seen\nrefused\nseen\nrefused\nseen\nrefused\nrefused\none\nmine\n", "{said:?}");
    assert_eq!(all(&place, "here"), before);
}

/// A name that changes from a file to a symbolic link and back while the program opens it leads to no real file.
#[test]
fn names_that_change_meanwhile_lead_to_no_real_file() {
    let Some(place) = place("ptrace").filter(|_| has("python3")) else { return };
    let before = all(&place, "here");
    let text = "
import os, threading
os.chdir('here'); os.mkdir('made'); os.mkdir('made/sub'); open('made/sub/one', 'w').write('made')
real = os.path.abspath('tree')
done = False
def change():
    while not done:
        os.rename('made/sub', 'made/away'); os.symlink(real, 'made/sub'); os.unlink('made/sub'); os.rename('made/away', 'made/sub')
thread = threading.Thread(target=change); thread.start()
opened = 0
try:
    for _ in range(400):
        try: f = os.open('made/sub/one', os.O_RDWR | os.O_APPEND)
        except OSError: continue
        os.write(f, b'x'); os.close(f); opened += 1
finally:
    done = True; thread.join()
assert opened, 'it is opened sometimes'";
    place.run(&["run", "--via", "ptrace", "--cow=kept", "--", "python3", "-c", text]).ok();
    assert_eq!(all(&place, "here"), before);
}
