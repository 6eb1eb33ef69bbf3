// SPDX-License-Identifier: MIT OR Apache-2.0
//! What holds whichever way changes are kept apart.

use crate::support::{PROGRAM, has, signal};
use crate::{Cow, all, apart, changes, place};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Stdio};

pub fn the_real_files_stay_as_they_are_and_the_next_program_goes_on(via: &'static str) {
    let Some(place) = place(via) else { return };
    let before = all(&place, "here");
    let seen = apart(&place, "here", "pwd; echo more >>tree/one; rm many/a; cat tree/one; ls many").ok();
    let here = place.at("here");
    assert_eq!(seen, format!("{}\none\nmore\nb\nholes\nold\npipe\n", here.display()));
    assert_eq!(all(&place, "here"), before);
    assert_eq!(changes(&place, "here"), ["removed  many/a", "modified tree/one (content, time)"]);
    let again = apart(&place, "here", "cat tree/one; echo new >many/a; cat many/a; ls ../kept").ok();
    assert_eq!(again, "one\nmore\nnew\n", "the overlay itself is not seen");
    assert_eq!(
        changes(&place, "here"),
        ["modified many/a (content, time)", "modified tree/one (content, time)"]
    );
    assert_eq!(all(&place, "here"), before);
    place.run(&["discard", "kept"]).ok();
    assert!(!place.at("kept").exists() && all(&place, "here") == before);
    let gone = place.run(&["discard", "kept"]).refused(1);
    assert!(gone.contains("there is no overlay at 'kept'"), "{gone}");
    let gone = place.run(&["diff", "kept"]).refused(2);
    assert!(gone.contains("No such file or directory"), "{gone}");
}

pub fn each_kind_of_change_is_told(via: &'static str) {
    let Some(place) = place(via) else { return };
    let script = "chmod 600 tree/one; chown 7:8 many/b; ln -sfn elsewhere tree/link; touch -d 2002-02-02 many/old
        rm -r tree/sub; echo file >tree/sub; rm -r empty; ln -s tree empty; mkdir -m 1777 new; echo x >new/x; mknod new/pipe p
        rm many/a; mkdir many/a; printf 'a b' >'new/n\\n w'; setfattr -n user.k -v v many; truncate -s 2M many/holes";
    apart(&place, "here", script).ok();
    let expected = [
        "replaced empty (directory by symlink)",
        "modified many (xattr)",
        "replaced many/a (file by directory)",
        "modified many/b (owner)",
        "modified many/holes (content, time)",
        "modified many/old (time)",
        "added    new/",
        "added    new/n\\n w",
        "added    new/pipe",
        "added    new/x",
        "modified tree/link (content)",
        "modified tree/one (mode)",
        "removed  tree/sub/deep/three",
        "removed  tree/sub/deep/",
        "removed  tree/sub/two",
        "replaced tree/sub (directory by file)",
    ];
    assert_eq!(changes(&place, "here"), expected);
    let json = place.run(&["diff", "--json", "kept"]);
    let all: Vec<Value> = json.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| {
        let path = place.at("here").join(name);
        all.iter().find(|object| object["path"] == *path.to_str().unwrap()).unwrap()
    };
    assert_eq!((&of("many/b")["what"][0], &of("many/b")["change"]), (&"owner".into(), &"modified".into()));
    assert_eq!((&of("empty")["kind"], &of("empty")["was"]), (&"symlink".into(), &"directory".into()));
    assert_eq!((all.len(), json.code), (expected.len(), Some(1)));
}

/// Programs that change much.
const SCRIPTS: [(&str, &str); 7] = [
    (
        "make install",
        "umask 022; printf 'install:\\n\\tinstall -d out/bin out/lib\\n\\tinstall -m 755 tree/one out/bin/prog\\n\\tln -sf prog out/bin/alias\\n\\tinstall -m 640 tree/sub/two tree/one\\n' >Makefile; make -s install",
    ),
    (
        "git commit",
        "export GIT_AUTHOR_DATE=2001-01-01T00:00:00Z GIT_COMMITTER_DATE=2001-01-01T00:00:00Z GIT_CONFIG_GLOBAL=/dev/null
            git init -q --template= -b main .; rm .git/config; git init -q --template= .; git -c user.name=a -c user.email=a@b add tree
            git -c user.name=a -c user.email=a@b commit -qm one; git rm -q tree/link; git -c user.name=a -c user.email=a@b commit -qm two
            rm .git/index; git fsck --strict",
    ),
    ("tar x", "tar cf t.tar tree many/old; echo changed >tree/one; rm -r tree/sub; mkdir tree/sub; tar xf t.tar; rm t.tar"),
    ("rm -r", "rm -r tree many"),
    ("mv", "mv tree moved; mv moved/sub empty/sub2; mv many/a moved/one; mv many tree"),
    (
        "attributes",
        "chmod -R g+w,o-rwx tree; chown -R 5:6 many; chmod 2711 empty; setfattr -n user.new -v x tree/one; setfattr -x user.mine tree/sub/two
            touch -d 1999-01-01 tree; chown -h 3:4 tree/link",
    ),
    (
        "kinds",
        "rm tree/link; mkdir tree/link; echo in >tree/link/in; rm -r tree/sub; ln -s one tree/sub; rm many/a; mkfifo many/a; rm many/pipe
            echo file >many/pipe; rmdir empty; echo file >empty; ln many/b many/b2; ln many/b many/b3; truncate -s 3M many/holes; cp -a many copied",
    ),
];

pub fn a_commit_leaves_what_the_program_would_have_left(via: &'static str) {
    for (what, script) in SCRIPTS {
        let Some(place) = place(via) else { return };
        place.run_as("sh", &["-ec", &format!("cd there; {script}")]).ok();
        apart(&place, "here", script).ok();
        let told = changes(&place, "here");
        assert!(!told.is_empty(), "{what}");
        let done = place.run(&["commit", "kept"]).ok();
        assert_eq!(done.lines().count(), told.len(), "{what}: {done}");
        // Names of one file part when one of them is copied.
        let parted = |text: String| text.replace(" 2 4 \n", " 1 4 \n").replace(" 2 9 \n", " 1 9 \n");
        assert_eq!(parted(all(&place, "here")), parted(all(&place, "there")), "{what}");
        assert!(!place.at("kept").exists());
    }
}

pub fn files_that_were_changed_meanwhile_are_conflicts(via: &'static str) {
    let Some(place) = place(via) else { return };
    apart(
        &place,
        "here",
        "echo mine >>tree/one; rm many/b; mkdir made; echo mine >made/x; rm -r tree/sub; echo q >many/q; echo q >many/old",
    )
    .ok();
    place.file("here/tree/one", "theirs\n");
    place.file("here/many/b", "theirs\n");
    place.file("here/made/x", "theirs\n");
    fs::remove_file(place.at("here/many/old")).unwrap();
    place.file("here/tree/sub/deep/added", "theirs\n");
    let before = all(&place, "here");
    let said = place.run(&["commit", "kept"]);
    assert_eq!((said.code, &*said.out), (Some(1), ""), "{said:?}");
    for (name, how) in [
        ("tree/one", "was changed"),
        ("many/b", "was changed"),
        ("made/x", "was made"),
        ("many/old", "was removed"),
        ("tree/sub/deep/added", "is new"),
    ] {
        assert!(said.err.contains(&format!("here/{name}' {how}")), "{name}: {said:?}");
    }
    assert_eq!((said.err.lines().count(), all(&place, "here")), (6, before));
    place.run(&["commit", "--force", "kept"]).ok();
    assert_eq!(fs::read_to_string(place.at("here/tree/one")).unwrap(), "one\nmine\n");
    assert_eq!(fs::read_to_string(place.at("here/made/x")).unwrap(), "mine\n");
    assert!(!place.at("here/many/b").exists() && !place.at("here/tree/sub").exists());
}

/// A program with the overlay `kept` that writes a line when it was started, and then does what its standard input says.
fn waiting(place: &Cow, script: &str) -> Child {
    let words = ["run", "--via", place.via, "--cow=kept", "--", "sh", "-c", script];
    let mut command = place.command(PROGRAM, &words);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child.stdout = Some(out.into_inner());
    child
}

pub fn an_overlay_is_of_one_program_at_a_time(via: &'static str) {
    let Some(place) = place(via) else { return };
    let mut child = waiting(&place, "echo x >here/new; echo started; read line");
    for (words, code) in [
        (&["commit", "kept"][..], 1),
        (&["discard", "kept"], 1),
        (&["run", "--via", via, "--cow=kept", "true"], 125),
    ] {
        let said = place.run(words).refused(code);
        assert!(said.contains("in use"), "{said}");
    }
    assert_eq!(changes(&place, "here"), ["added    new"], "looking is permitted");
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    place.run(&["commit", "kept"]).ok();
    assert_eq!(fs::read_to_string(place.at("here/new")).unwrap(), "x\n");
}

pub fn the_death_of_the_server_loses_nothing_that_was_done(via: &'static str) {
    let Some(place) = place(via) else { return };
    let script = "cd here; echo x >new; rm -r tree; echo started; read line; echo y >late";
    let mut child = waiting(&place, script);
    let mut input = child.stdin.take().unwrap();
    signal(child.id(), "KILL");
    child.wait().unwrap();
    // Who was traced has ended already.
    assert!(input.write_all(b"go\n").is_ok() || via == "ptrace");
    // Nothing of the program itself can be read any more, if it is not in memory: it may be killed for that.
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    apart(&place, "here", "cat new; ! ls tree 2>/dev/null").ok();
    place.run(&["commit", "kept"]).ok();
    assert!(
        place.at("here/new").exists() && !place.at("here/tree").exists() && !place.at("here/late").exists()
    );
}

pub fn without_room_the_program_gets_an_error_and_nothing_is_lost(via: &'static str) {
    let Some(place) = place(via) else { return };
    if !has("unshare") {
        return;
    }
    // The overlay is in a small file system of its own first, and the real files are later.
    let script = format!(
        "mkdir small; mount -t tmpfs -o size=1m none small
        {PROGRAM} run --via {via} --cow=small/kept -- sh -c 'cd here; echo x >new; head -c 4M /dev/zero >big || echo full; rm big; cat tree/one'
        {PROGRAM} diff small/kept; {PROGRAM} commit small/kept
        mkdir real; mount -t tmpfs -o size=1m none real; echo old >real/file
        {PROGRAM} run --via {via} --cow=kept -- sh -ec 'cd real; echo first >a; head -c 4M /dev/zero >file'
        {PROGRAM} commit kept || echo refused; cat real/file; ls -A real; {PROGRAM} diff kept | wc -l
        mount -o remount,size=8m real; {PROGRAM} commit kept; stat -c %s real/file"
    );
    let said = place.run_as("unshare", &["-m", "sh", "-c", &script]);
    let here = place.at("here").join("new");
    let real = place.at("real");
    let expected = format!(
        "full\none\nadded    {new}\nadded    {new}\nadded    {real}/a\nrefused\nold\na\nfile\n1\nmodified {real}/file (content, time)\n4194304\n",
        new = here.display(),
        real = real.display()
    );
    assert_eq!(said.out, expected, "{said:?}");
    assert!(said.err.contains("1 of 2 changes are applied"), "{said:?}");
}

pub fn a_user_without_privileges_has_an_overlay(via: &'static str) {
    let Some(place) = place(via) else { return };
    if !has("setpriv") || !has("unshare") {
        return;
    }
    fs::copy(PROGRAM, place.at("program")).unwrap();
    place.file("script", USERS_SCRIPT.replace("run --cow", &format!("run --via {via} --cow")));
    let setup = "chmod 755 .; chown -R nobody:nogroup here; mkdir mine; chown nobody:nogroup mine; mkdir -m 1777 shared; echo r >shared/roots
        mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        exec setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all timeout 50 sh script";
    let said = place.run_as("unshare", &["-m", "sh", "-c", setup]);
    let dir = place.at("").display().to_string();
    let lines: Vec<String> = said.out.lines().map(|line| line.replace(&dir, "")).collect();
    assert_eq!(lines, USERS_LINES, "{said:?}");
    let new = fs::metadata(place.at("here/new")).unwrap();
    assert_eq!((new.uid(), new.permissions().mode() & 0o7777), (65534, 0o600));
    assert_eq!(fs::read_to_string(place.at("shared/mine")).unwrap(), "shared\n");
}

const USERS_SCRIPT: &str = "./program run --cow=mine/kept -- sh -c '
    id -un; cd here; umask 077; echo new >new; rm -r tree; git init -q repo 2>&1; ls; chmod 4711 many/b; cat many/b
    (echo x >>/etc/passwd) 2>/dev/null || echo no passwd; rm -f /etc/hostname 2>/dev/null || echo no hostname
    mkdir /home/other 2>/dev/null || echo no home; touch /rooted 2>/dev/null || echo no root
    chown 0 many/a 2>/dev/null || echo no chown; echo shared >../shared/mine; rm -f ../shared/roots 2>/dev/null || echo sticky
    (echo x >../shared/roots) 2>/dev/null || echo no write; chmod 777 ../shared 2>/dev/null || echo no chmod
    cat /etc/shadow 2>/dev/null || echo no shadow; exec 3>/tmp/x.$$; rm /tmp/x.$$; grep CapEff /proc/self/status'
./program diff mine/kept | grep -v repo/; ./program commit mine/kept | grep -v repo/; git -C here/repo fsck; ls mine here";

const USERS_LINES: [&str; 45] = [
    "nobody",
    "empty",
    "many",
    "new",
    "repo",
    "other",
    "no passwd",
    "no hostname",
    "no home",
    "no root",
    "no chown",
    "sticky",
    "no write",
    "no chmod",
    "no shadow",
    "CapEff:\t0000000000000000",
    "modified here/many/b (mode)",
    "added    here/new",
    "removed  here/tree/hard",
    "removed  here/tree/link",
    "removed  here/tree/one",
    "removed  here/tree/sub/deep/three",
    "removed  here/tree/sub/deep/",
    "removed  here/tree/sub/two",
    "removed  here/tree/sub/",
    "removed  here/tree/",
    "added    shared/mine",
    "modified here/many/b (mode)",
    "added    here/new",
    "added    shared/mine",
    "removed  here/tree/hard",
    "removed  here/tree/link",
    "removed  here/tree/one",
    "removed  here/tree/sub/deep/three",
    "removed  here/tree/sub/deep/",
    "removed  here/tree/sub/two",
    "removed  here/tree/sub/",
    "removed  here/tree/",
    "here:",
    "empty",
    "many",
    "new",
    "repo",
    "",
    "mine:",
];

pub fn what_is_behind_a_new_symlink_stays(via: &'static str) {
    for script in ["mv tree tree2; ln -s tree2 tree", "rm -r tree; ln -s ../backup tree"] {
        let Some(place) = place(via) else { return };
        place.run_as("cp", &["-a", "here/tree", "backup"]).ok();
        place.run_as("sh", &["-ec", &format!("cd there; {script}")]).ok();
        let backup = all(&place, "backup");
        apart(&place, "here", script).ok();
        place.run(&["commit", "kept"]).ok();
        assert_eq!(all(&place, "backup"), backup, "{script}");
        let parted = |text: String| text.replace(" 2 4 \n", " 1 4 \n");
        assert_eq!(parted(all(&place, "here")), parted(all(&place, "there")), "{script}");
    }
}

pub fn a_directory_becomes_a_fifo(via: &'static str) {
    let Some(place) = place(via) else { return };
    apart(&place, "here", "rm -r tree; mkfifo tree").ok();
    place.run_as("timeout", &["60", PROGRAM, "commit", "kept"]).ok();
    place.run_as("test", &["-p", "here/tree"]).ok();
}

pub fn directories_that_their_owner_made_read_only_are_committed(via: &'static str) {
    let Some(place) = place(via) else { return };
    if !has("setpriv") || !has("unshare") {
        return;
    }
    let scripts = [
        "chmod u+w d; touch d/x",
        "chmod u+w d; touch d/x; chmod u-w d",
        "chmod u+w d; rm -r d",
        "chmod u+w d; rm d/f; chmod a-w d",
        "rm e/f; chmod a-w e",
        "chmod u+w d; rm d/f; rmdir d; echo file >d",
        "mkdir -p g/h; echo x >g/h/x; chmod 500 g/h g",
    ];
    fs::copy(PROGRAM, place.at("program")).unwrap();
    let mut script = String::from("set -e; ");
    for (number, changes) in scripts.iter().enumerate() {
        script += &format!(
            "for w in a b; do mkdir -p $w{number}/d $w{number}/e; touch $w{number}/d/f $w{number}/e/f; chmod 555 $w{number}/d; done
            (cd a{number}; {changes}); ./program run --via {via} --cow=mine/kept -- sh -ec 'cd mine/b{number}; {changes}'
            ./program commit mine/kept >&2; "
        )
        .replace("$w", "mine/${w}")
        .replace("(cd a", "(cd mine/a");
        script += &format!(
            "for w in a b; do (cd mine/${{w}}{number}; find . -printf '%p %m %y\\n' | sort >../$w); done; diff mine/a mine/b; "
        );
    }
    script += &format!(
        "./program run --via {via} --cow=mine/kept -- sh -ec 'echo x >drop/x'; ./program commit mine/kept >&2"
    );
    place.file("script", &script);
    let setup = "chmod 755 .; mkdir mine; mkdir -m 733 drop; chown nobody:nogroup mine; mknod fuse c 10 229; chmod 666 fuse
        mount --bind fuse /dev/fuse
        exec setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all timeout 100 sh script";
    place.run_as("unshare", &["-m", "sh", "-ec", setup]).ok();
    assert_eq!(fs::read_to_string(place.at("drop/x")).unwrap(), "x\n");
}

pub fn an_open_file_is_changed_also_when_its_first_name_is_gone(via: &'static str) {
    let Some(place) = place(via) else { return };
    if !has("python3") {
        return;
    }
    let script = "python3 -c \"
import os
file = os.open('first', os.O_CREAT | os.O_RDWR, 0o644)
os.link('first', 'second'); os.unlink('first')
os.fchmod(file, 0o604); os.utime(file, (1, 1)); os.setxattr(file, 'user.k', b'v'); os.write(file, b'x')
\"; stat -c '%a %s' second; getfattr -n user.k --only-values second";
    assert_eq!(apart(&place, "here", script).ok(), "604 1\nv");
    assert_eq!(changes(&place, "here"), ["added    second"]);
}

pub fn a_part_of_the_changes_is_committed_and_the_rest_stays(via: &'static str) {
    let Some(place) = place(via) else { return };
    let script =
        "echo mine >many/a; mkdir -p new/sub; echo x >new/sub/x; echo y >new/y; rm -r tree; chmod 700 empty";
    apart(&place, "here", script).ok();
    let said = place.run(&["commit", "kept", "--only", "here/none"]);
    assert!(said.code == Some(1) && said.err.contains("no change is at or below"), "{said:?}");
    let shown = place.run(&["diff", "kept", "--only", "here/new/sub"]);
    let done = place.run(&["commit", "kept", "--only", "here/new/sub/x", "--only", "here/many"]);
    assert_eq!((done.out.lines().count(), done.code), (4, Some(0)), "{done:?}");
    assert_eq!((shown.out.lines().count(), shown.code), (3, Some(1)), "{shown:?}");
    assert_eq!(fs::read_to_string(place.at("here/many/a")).unwrap(), "mine\n");
    assert_eq!(fs::read_to_string(place.at("here/new/sub/x")).unwrap(), "x\n");
    assert!(place.at("here/tree/one").exists() && !place.at("here/new/y").exists());
    let left = changes(&place, "here");
    assert_eq!(
        (left.len(), &*left[0], &*left[1]),
        (10, "modified empty (mode)", "added    new/y"),
        "{left:?}"
    );
    // A program goes on with what is committed, and changes of others are noticed.
    apart(&place, "here", "echo again >>many/a").ok();
    place.file("here/new/sub/x", "theirs\n");
    let said = place.run(&["commit", "kept"]);
    assert!(said.code == Some(1) && said.err.contains("new/sub/x' was changed"), "{said:?}");
    assert!(!said.err.contains("many/a"), "{said:?}");
    place.run(&["commit", "kept", "--only", "here/many"]).ok();
    assert_eq!(fs::read_to_string(place.at("here/many/a")).unwrap(), "mine\nagain\n");
    place.run(&["commit", "--force", "kept"]).ok();
    assert!(!place.at("here/tree").exists() && !place.at("kept").exists());
    assert_eq!(fs::read_to_string(place.at("here/new/y")).unwrap(), "y\n");
}

pub fn a_part_of_the_changes_is_given_up_and_the_rest_stays(via: &'static str) {
    let Some(place) = place(via) else { return };
    let script = "echo mine >many/a; rm many/b; mkdir -p new/sub; echo x >new/sub/x; echo y >new/y; rm -r tree; chmod 700 empty";
    apart(&place, "here", script).ok();
    let none = place.run(&["diff", "kept", "--only", "here/none"]);
    assert_eq!((&*none.out, none.code), ("", Some(0)), "{none:?}");
    for command in ["commit", "discard"] {
        let said = place.run(&[command, "kept", "--only", "here/none"]).refused(1);
        assert!(none.err.ends_with(said.split_once(": ").unwrap().1), "{none:?} {said}");
    }
    let said = place.run(&["discard", "kept", "--only", "here/tree/one", "--only", "here/many"]).refused(1);
    assert!(said.contains("here/tree', which the program has removed"), "{said}");
    assert_eq!(changes(&place, "here").len(), 15, "nothing was discarded");
    place.run(&["discard", "kept", "--only", "here/many", "--only", "here/new/sub/x"]).ok();
    let left = changes(&place, "here");
    assert!(left.iter().all(|line| !line.contains("many") && !line.contains("new/sub/x")), "{left:?}");
    assert_eq!(left.len(), 12, "{left:?}");
    place.file("here/many/a", "theirs\n");
    assert_eq!(
        apart(&place, "here", "cat many/[ab]; ls new new/sub; ! ls tree").ok(),
        "theirs\nother\nnew:\nsub\ny\n\nnew/sub:\n"
    );
    // What was hidden before is no conflict.
    apart(&place, "here", "rm many/a").ok();
    place.run(&["discard", "kept", "--only", "here/tree"]).ok();
    place.run(&["commit", "kept"]).ok();
    assert!(place.at("here/tree/one").exists() && place.at("here/many/b").exists());
    assert!(!place.at("here/many/a").exists() && !place.at("kept").exists());
}

pub fn a_name_makes_no_line_of_diff_or_commit(via: &'static str) {
    let Some(place) = place(via) else { return };
    apart(&place, "here", "echo x >\"$(printf 'a\\nremoved  etc')\"; mkdir \"$(printf 'b\\033')\"").ok();
    let at = |name: &str| format!("added    \"{}/{name}\"", place.at("here").display());
    let expected = [at("a\\nremoved  etc"), at("b\\033/")];
    let shown = place.run(&["diff", "kept"]).out;
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    let json = place.run(&["diff", "--json", "kept"]).out;
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["path"], format!("{}/a\nremoved  etc", place.at("here").display()));
    assert_eq!(place.run(&["commit", "kept"]).ok(), shown);
}

pub fn directories_that_their_owner_may_not_look_into_are_shown_and_committed(via: &'static str) {
    let Some(place) = place(via) else { return };
    if !has("setpriv") || !has("unshare") {
        return;
    }
    fs::copy(PROGRAM, place.at("program")).unwrap();
    let script = format!(
        "mkdir -p mine/d/in mine/e/in; echo old >mine/d/in/f; chmod 000 mine/e
        ./program run --via {via} --cow=mine/kept -- sh -ec 'cd mine; echo new >d/in/f; chmod 000 d; chmod 700 e
            mkdir -p n/s; echo x >n/s/f; chmod 600 n/s; chmod 000 n'
        ./program diff mine/kept && exit 1; stat -c '%a %n' mine/e mine/kept/upper$PWD/mine/[den]
        ./program commit mine/kept | wc -l; stat -c '%a %n' mine/[den]; ls mine"
    );
    place.file("script", &script);
    let setup = "chmod 755 .; mkdir mine; chown nobody:nogroup mine; mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
        exec setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all timeout 50 sh script";
    let said = place.run_as("unshare", &["-m", "sh", "-ec", setup]);
    let dir = place.at("").display().to_string();
    let lines: Vec<String> = said.out.lines().map(|line| line.replace(&dir, "/")).collect();
    let expected = [
        "modified /mine/d (mode)",
        "modified /mine/d/in/f (content, time)",
        "modified /mine/e (mode)",
        "added    /mine/n/",
        "added    /mine/n/s/",
        "added    /mine/n/s/f",
        "0 mine/e",
        "0 mine/kept/upper/mine/d",
        "700 mine/kept/upper/mine/e",
        "0 mine/kept/upper/mine/n",
        "6",
        "0 mine/d",
        "700 mine/e",
        "0 mine/n",
        "d",
        "e",
        "n",
    ];
    assert_eq!(lines, expected, "{said:?}");
    let read = |name: &str| fs::read_to_string(place.at(name)).unwrap();
    assert_eq!((read("mine/d/in/f"), read("mine/n/s/f")), ("new\n".into(), "x\n".into()));
    let inner = fs::metadata(place.at("mine/n/s")).unwrap();
    assert_eq!(inner.permissions().mode() & 0o7777, 0o600);
}
