// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger run`: real programs with trees in their file systems.

mod support;

use outrigger_remote::{HOST, Sshd};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use support::{PROGRAM, Place, Said, can_mount, has, signal};

/// A place with a tree, and a mechanism.
struct World {
    place: Place,
    via: &'static str,
}

impl Deref for World {
    type Target = Place;
    fn deref(&self) -> &Place {
        &self.place
    }
}

impl World {
    fn new(via: &'static str) -> Self {
        let place = Place::new().trusting();
        place.file("tree/sub/file", "content\n");
        World { place, via }
    }

    /// Runs a program.
    fn program(&self, words: &[&str]) -> Said {
        self.place.run(&[&["run", "--via", self.via], words].concat())
    }
}

/// One for each mechanism that can be tried here.
fn worlds() -> impl Iterator<Item = World> {
    let namespace = can_mount().then_some("namespace");
    namespace.into_iter().chain(["seccomp"]).map(World::new)
}

/// One with namespaces.
fn place() -> Option<World> {
    can_mount().then(|| World::new("namespace"))
}

/// Runs a script of the shell, with `/data` in its root.
fn script(world: &World, options: &[&str], script: &str) -> Said {
    world.program(&[&["--no-hosts", "--map", "/data=tree"], options, &["sh", "-c", script]].concat())
}

/// A program whose streams are pipes, and which has said this line.
fn started(place: &Place, words: &[&str], line: &str) -> Child {
    let mut command = place.command(PROGRAM, words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut child, mut said) = (command.spawn().unwrap(), String::new());
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said.trim_end(), line);
    child
}

#[test]
fn a_program_and_what_it_starts_find_a_tree_that_others_do_not_see() {
    for place in worlds() {
        let found =
            script(&place, &[], "cat /data/sub/file; (cd /data/sub && ls; pwd); ls -d /data /tmp; pwd").ok();
        assert_eq!(
            found,
            format!("content\nfile\n/data/sub\n/data\n/tmp\n{}\n", place.at("").display())
                .replace("/\n", "\n")
        );
        assert!(fs::metadata("/data").is_err());
        let written =
            "umask 027; echo new >/data/new; mv /data/sub /data/moved; mkdir /data/dir; ln -s new /data/link";
        script(&place, &[], written).ok();
        assert_eq!(fs::read_to_string(place.at("tree/new")).unwrap(), "new\n");
        assert_eq!(fs::metadata(place.at("tree/new")).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_to_string(place.at("tree/moved/file")).unwrap(), "content\n");
        assert_eq!(fs::read_link(place.at("tree/link")).unwrap().to_str(), Some("new"));
    }
}

#[test]
fn permissions_that_an_access_list_sets_are_seen_at_once() {
    if !has("setfacl") {
        return;
    }
    for place in worlds() {
        let seen = script(
            &place,
            &[],
            "cd /data; : >f; chmod 600 f; stat -c %a f; setfacl -m g::rwx f; stat -c %a f; cp -a f g; stat -c %a g",
        );
        assert_eq!(seen.ok(), "600\n670\n670\n", "{}", place.via);
    }
}

#[test]
fn what_is_no_directory_is_not_made_under_a_name_with_a_slash_behind_it() {
    for place in worlds() {
        let made = script(&place, &[], "cd /data; ln -s target new/ || mkfifo fifo/ || ls").ok();
        assert_eq!(made, "sub\n", "{}", place.via);
    }
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    for place in worlds() {
        assert_eq!(script(&place, &[], "exit 7").code, Some(7));
        assert_eq!(script(&place, &[], "kill -TERM $$").code, Some(128 + 15));
        let run = |words: &[&str]| place.program(&[&["--no-hosts"], words].concat());
        let missing = run(&["--map", "/data=tree", "--", "no-such-program"]).refused(127);
        assert!(missing.contains("no-such-program"), "{missing}");
        let not_executable = run(&["--map", "/data=tree", "--", "/etc/passwd"]).refused(126);
        assert!(not_executable.contains("/etc/passwd"), "{not_executable}");
        let deep =
            run(&["--map", &format!("{}/no/dir=tree", place.at("").display()), "--", "true"]).refused(125);
        assert!(deep.contains("make one there"), "{deep}");
        let relative = run(&["--map", "data=tree", "--", "true"]).refused(125);
        assert!(relative.contains("absolute"), "{relative}");
        assert_eq!(run(&["--no-such-option"]).code, Some(125));
    }
}

#[test]
fn a_tree_can_cover_a_directory_and_stand_in_another_tree() {
    for place in worlds() {
        place.file("other/x", "other\n");
        place.file("covered/hidden", "");
        let covered = format!("{}=other", place.at("covered").display());
        let options = ["--map", &covered, "--map", "/data/sub=other"];
        let found = script(&place, &options, "ls covered /data/sub; cat /data/sub/x").ok();
        assert_eq!(found, "/data/sub:\nx\n\ncovered:\nx\nother\n");
        assert!(place.at("covered/hidden").exists());
    }
}

#[test]
fn lines_of_a_file_and_options_of_trees_count() {
    for place in worlds() {
        place.file("config/outrigger/mounts", format!("# mine\n/mine '{}' ro\n", place.at("tree").display()));
        let run = |words: &[&str]| {
            let output = place
                .command(PROGRAM, &[&["run", "--via", place.via], words].concat())
                .env("XDG_CONFIG_HOME", place.at("config"))
                .output()
                .unwrap();
            (String::from_utf8(output.stdout).unwrap(), output.status.code())
        };
        assert_eq!(run(&["cat", "/mine/sub/file"]), ("content\n".to_owned(), Some(0)));
        let (_, refused) = run(&["touch", "/mine/new"]);
        assert_eq!((refused, place.at("tree/new").exists()), (Some(1), false));
        let read_only =
            script(&place, &["--read-only"], "echo x 2>/dev/null >/data/new || echo refused").ok();
        assert_eq!((&*read_only, place.at("tree/new").exists()), ("refused\n", false));
        place.file("config/outrigger/mounts", "/mine\n");
        assert_eq!(run(&["true"]).1, Some(125));
    }
}

#[test]
fn a_working_directory_that_is_gone_or_covered_does_not_matter() {
    for place in worlds() {
        let program = format!(
            "{PROGRAM} run --via {1} --no-hosts --map /data={0} --map {0}/sub={0}",
            place.at("tree").display(),
            place.via
        );
        let gone = format!(
            "mkdir gone; cd gone; rmdir ../gone; {program} cat /data/sub/file; cd ../tree/sub; {program} ls"
        );
        assert_eq!(place.run_as("sh", &["-c", &gone]).ok(), "content\nsub\n");
    }
}

#[test]
fn a_program_that_is_run_can_run_another_one() {
    for place in worlds() {
        let inner = format!(
            "{PROGRAM} run --no-hosts --map /more={} cat /more/sub/file /data/sub/file",
            place.at("tree").display()
        );
        assert_eq!(script(&place, &[], &inner).ok(), "content\ncontent\n");
        // Also beside a tree that cannot be opened.
        let said = script(&place, &["--map", "/none=no-such-tree"], &inner).ok();
        assert_eq!(said, "content\ncontent\n");
    }
}

/// A host, and a place beside it.
fn far(via: &'static str) -> Option<(World, Sshd)> {
    if let Some(missing) = Sshd::missing() {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        eprintln!("SKIPPED: there is no {missing}");
        return None;
    }
    let place = World::new(via);
    fs::create_dir(place.at("sshd")).unwrap();
    place.file("far/dir/file", "far\n");
    let sshd = Sshd::start(place.at("sshd")).unwrap();
    Some((place, sshd))
}

#[test]
fn real_programs_work_on_a_host_and_what_they_write_is_there_in_the_end() {
    for via in worlds().map(|world| world.via) {
        let Some((place, sshd)) = far(via) else { return };
        let option = format!("F={}", sshd.configuration().display());
        let map = format!("/far={HOST}:{}", place.at("far").display());
        let script = "cd /far && git init -q repo && cd repo && cp -r /usr/include/linux/netfilter . && git add . \
                  && git -c user.name=a -c user.email=a@b commit -qm one && git status --short && git fsck --strict \
                  && tar cf ../repo.tar . && grep -rl NF_ACCEPT . | head -1 >../found && make -s -f - <<'END'\nall:\n\t@echo made >../made\nEND";
        let said = place.program(&["--map", &map, "--opt", &option, "sh", "-ec", script]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let same = ["-r", "/usr/include/linux/netfilter", "far/repo/netfilter"];
        place.run_as("diff", &same).ok();
        assert_eq!(fs::read_to_string(place.at("far/made")).unwrap(), "made\n");
        place.run_as("tar", &["df", "far/repo.tar", "-C", "far/repo"]).ok();
        let by_host = format!("/sftp/{HOST}{}/dir/file", place.at("far").display());
        assert_eq!(place.program(&["--opt", &option, "cat", &by_host]).ok(), "far\n");
    }
}

/// When a program ends, the kernel closes its files; the program gets no error from that.
#[test]
fn what_is_lost_when_a_program_ends_is_named_and_no_success() {
    for via in worlds().map(|world| world.via) {
        let Some((place, mut sshd)) = far(via) else { return };
        let option = format!("F={}", sshd.configuration().display());
        let map = format!("/far={HOST}:{}", place.at("far").display());
        let script = "exec 3>/far/dir/kept; echo new >&3; echo written; read line; echo more >&3";
        let words =
            ["run", "--via", via, "--timeout", "5", "--map", &map, "--opt", &option, "sh", "-c", script];
        let mut child = started(&place, &words, "written");
        sshd.stop();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{via}: {said}");
        assert!(said.contains("/dir/kept"), "{via}: {said}");
    }
}

#[test]
fn storing_that_takes_long_is_said_and_a_signal_gives_it_up_with_the_names_of_files() {
    if !has("python3") {
        return;
    }
    for via in worlds().map(|world| world.via).chain(["ptrace"]) {
        let Some((place, sshd)) = far(via) else { return };
        let option = format!("F={}", sshd.configuration().display());
        let map = format!("/far={HOST}:{}", place.at("far").display());
        let script = "import os, sys; f = os.open('/far/dir/kept', os.O_CREAT | os.O_WRONLY); os.write(f, b'new'); \
                      print('written', flush=True); sys.stdin.readline(); os.write(f, b'more'); os._exit(0)";
        let words = ["run", "--via", via, "--map", &map, "--opt", &option, "python3", "-c", script];
        let mut child = started(&place, &words, "written");
        sshd.signal_sessions(Signal::STOP);
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let (mut said, mut line) = (BufReader::new(child.stderr.take().unwrap()), String::new());
        let mut hear = |what: &str| {
            while !line.contains(what) {
                line.clear();
                assert_ne!(said.read_line(&mut line).unwrap(), 0, "{via}: it has ended");
            }
        };
        if via == "namespace" {
            // The kernel closes the file before it lets the program end, and that waits.
            hear("has not answered");
            signal(child.id(), "INT");
        }
        hear("Ctrl-C gives up");
        signal(child.id(), "INT");
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("/dir/kept"), "{via}: {line}{rest}");
        assert_eq!(child.wait().unwrap().code(), Some(125), "{via}: {rest}");
    }
}

/// Attributes that a cache keeps say nothing of that.
#[test]
fn what_another_client_of_a_host_has_written_meanwhile_is_not_undone() {
    for via in ["seccomp", "ptrace"] {
        let Some((place, sshd)) = far(via) else { return };
        let option = format!("F={}", sshd.configuration().display());
        let map = format!("/far={HOST}:{}", place.at("far").display());
        for then in ["true", "sync /far/dir/file"] {
            place.file("far/dir/file", "far\n");
            let script = format!(
                "exec 5<>/far/dir/file; echo ours >&5; echo opened; read line; echo more >&5; {then}; exec 5>&-; true"
            );
            let words = ["run", "--via", via, "--map", &map, "--opt", &option, "sh", "-c", &script];
            let mut child = started(&place, &words, "opened");
            place.file("far/dir/file", "of others, and longer\n");
            child.stdin.take().unwrap().write_all(b"go\n").unwrap();
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "{via}, {then}: {said}");
            assert!(said.contains("changed by another program"), "{via}, {then}: {said}");
            let stored = fs::read_to_string(place.at("far/dir/file")).unwrap();
            assert_eq!(stored, "of others, and longer\n", "{via}, {then}");
            let unsaved = said.rsplit_once(" is in '").unwrap().1.split('\'').next().unwrap();
            assert_eq!(fs::read_to_string(unsaved).unwrap(), "ours\nmore\n", "{via}, {then}");
        }
    }
}

#[test]
fn a_program_that_waits_for_a_host_that_is_gone_is_not_silent() {
    for via in worlds().map(|world| world.via) {
        let Some((place, mut sshd)) = far(via) else { return };
        let option = format!("F={}", sshd.configuration().display());
        let map = format!("/far={HOST}:{}", place.at("far").display());
        let script = "ls /far >/dev/null; echo looked; read line; exec cat /far/dir/file";
        let words = ["run", "--via", via, "--map", &map, "--opt", &option, "sh", "-c", script];
        let mut child = started(&place, &words, "looked");
        sshd.stop();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(HOST) && line.contains("has not answered for 10 s"), "{via}: {line}");
        signal(child.id(), "KILL");
        child.wait().unwrap();
    }
}

/// Without anything done in the tree before, and for another user than the one who runs it.
#[test]
fn the_root_of_a_tree_is_shown_as_it_is_from_the_beginning() {
    for place in worlds() {
        fs::set_permissions(place.at("tree"), fs::Permissions::from_mode(0o1777)).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        fs::File::open(place.at("tree")).unwrap().set_modified(time).unwrap();
        let shown = "stat -c '%a %Y' /data; cp -a /data copy; stat -c '%a %Y' copy";
        assert_eq!(script(&place, &[], shown).ok(), "1777 1000000000\n".repeat(2), "{}", place.via);
    }
    let Some(place) = place() else { return };
    fs::set_permissions(place.at("tree"), fs::Permissions::from_mode(0o1777)).unwrap();
    let other = "setpriv --reuid 65534 --clear-groups sh -ec 'echo made >/data/new; cat /data/new'";
    assert_eq!(script(&place, &[], other).ok(), "made\n");
    let missing = place.run(&["run", "--no-hosts", "--map", "/data=no-such-tree", "stat", "/data"]);
    assert_eq!((missing.code, &*missing.out), (Some(1), ""), "{missing:?}");
}

/// Programs get a number; the reason is said once, whoever asks again.
#[test]
fn why_a_tree_cannot_be_opened_is_said_once() {
    let Some((place, sshd)) = far("namespace") else { return };
    fs::write(place.at("sshd/known"), "").unwrap();
    let (option, map) = (format!("F={}", sshd.configuration().display()), format!("/far={HOST}:/"));
    let words = ["--map", "/none=no-such-tree", "sh", "-c", "cat /far/x /none/x /far/x; cat /far/x"];
    let said = place.run(&[&["run", "--map", &map, "--opt", &option], &words[..]].concat());
    let own: Vec<&str> = said.err.lines().filter(|line| line.starts_with("outrigger run: ")).collect();
    let [host, none] = own[..] else { panic!("{said:?}") };
    assert!(host.contains(HOST) && host.contains("Host key verification failed"), "{said:?}");
    assert!(host.contains("log in once with `ssh "), "{said:?}");
    assert!(none.ends_with("'no-such-tree': No such file or directory"), "{said:?}");
    assert_eq!(said.err.matches("cat: /far/x: Permission denied").count(), 3, "{said:?}");
    let file = place.run(&["run", "--mounts", "no-such-file", "true"]).refused(125);
    assert!(file.contains("'no-such-file': No such file"), "{file}");
}

/// A program that writes a line when it was started, and then does what its standard input says.
fn waiting(place: &World, then: &str) -> Child {
    let script = format!("echo started; read line; {then}");
    // A shell that runs tests in the background ignores these, and that is inherited.
    let shell = ["env", "--default-signal=INT,QUIT", "sh", "-c", &script];
    let words = [&["run", "--via", place.via, "--no-hosts", "--map", "/data=tree"][..], &shell].concat();
    let mut command = place.command(PROGRAM, &words);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    let mut out = BufReader::new(out);
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "started\n");
    child.stdout = Some(out.into_inner());
    child
}

#[test]
fn a_status_lists_programs_with_their_trees_as_long_as_they_are_served() {
    for place in worlds() {
        let listed = |server: u32| {
            let said = place.run(&["status", "--json"]).out;
            let mut all = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            all.find(|line| line["pid"] == server && line["mechanism"].is_string())
        };
        let mut child = waiting(&place, "exit 0");
        let view = listed(child.id()).unwrap();
        assert_eq!((view["mechanism"].as_str(), view["shown_by"].as_str()), (Some(place.via), Some("run")));
        assert_eq!(view["places"], serde_json::json!([{ "path": "/data", "source": "tree" }]));
        assert_eq!(view["argv"][2], "sh", "{view}");
        let text = place.run(&["status"]).ok();
        assert!(text.contains(&format!("by {}, served by process {}", place.via, child.id())), "{text}");
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        child.wait().unwrap();
        assert_eq!(listed(child.id()), None, "it has ended");
        let mut killed = waiting(&place, "exit 0");
        assert!(listed(killed.id()).is_some());
        signal(killed.id(), "KILL");
        killed.wait().unwrap();
        assert_eq!(listed(killed.id()), None, "it was killed");
    }
}

#[test]
fn the_death_of_the_server_leaves_the_program_with_errors() {
    let Some(place) = place() else { return };
    let mut child = waiting(&place, "cat /data/sub/file || echo an error; cat tree/sub/file");
    signal(child.id(), "KILL");
    let mut input = child.stdin.take().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    input.write_all(b"go\n").unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "an error\ncontent\n");
}

#[test]
fn signals_reach_the_program() {
    for place in worlds() {
        for (name, number) in [("INT", 2), ("TERM", 15)] {
            let mut child = waiting(&place, "exit 1");
            // It waits for a line, which does not come.
            let _input = child.stdin.take();
            signal(child.id(), name);
            assert_eq!(
                child.wait().unwrap().code(),
                Some(128 + number),
                "no terminal has sent {name} to both"
            );
        }
    }
}

#[test]
fn what_a_program_leaves_running_has_the_trees_until_it_ends() {
    for place in worlds() {
        place.file("gate", "");
        let gate = place.at("gate").display().to_string();
        let leaves = format!(
            "(while [ -e {gate} ]; do sleep 0.05; done; echo late >/data/late) >/dev/null 2>&1 & exit 3"
        );
        let args = ["run", "--via", place.via, "--no-hosts", "--map", "/data=tree", "sh", "-c", &leaves];
        let mut server = place.command(PROGRAM, &args).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("still run"), "{said}");
        fs::remove_file(&gate).unwrap();
        assert_eq!(server.wait().unwrap().code(), Some(3));
        assert_eq!(fs::read_to_string(place.at("tree/late")).unwrap(), "late\n");
        place.file("gate", "");
        let leaves = format!("(while [ -e {gate} ]; do sleep 0.05; done) >/dev/null 2>&1 & exit 0");
        let forever = ["run", "--via", place.via, "--no-hosts", "--map", "/data=tree", "sh", "-c", &leaves];
        let mut server = place.command(PROGRAM, &forever).stderr(Stdio::piped()).spawn().unwrap();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut said).unwrap();
        signal(server.id(), "TERM");
        assert_eq!(server.wait().unwrap().code(), Some(0));
        fs::remove_file(&gate).unwrap();
    }
}

/// The group of the tree's root is another one than that of the user, who may nevertheless make files in it.
#[test]
fn a_user_without_privileges_runs_a_program() {
    let Some(place) = place() else { return };
    if !has("setpriv") || !has("unshare") {
        return;
    }
    fs::copy(PROGRAM, place.at("program")).unwrap();
    // Auto: where the device cannot be opened, system calls are answered.
    for (mode, via) in [("666", "namespace"), ("000", "seccomp")] {
        let setup = format!("chmod 755 .; chown -R nobody tree; rm -f fuse tree/new; mknod fuse c 10 229; chmod {mode} fuse; mount --bind fuse /dev/fuse
        exec setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all timeout 30 ./program run -v \
            --no-hosts --map /data=tree --map /more/below=tree sh -ec 'id -un; cat /data/sub/file; stat -c %U:%G /data; echo new >/data/new; \
            ls /more; grep CapEff /proc/self/status; touch /root-file 2>/dev/null || echo refused'");
        let said = place.run_as("unshare", &["-m", "sh", "-c", &setup]);
        assert!(said.err.starts_with(&format!("outrigger run: via {via}")), "{said:?}");
        assert_eq!(said.ok(), "nobody\ncontent\nnobody:nogroup\nbelow\nCapEff:\t0000000000000000\nrefused\n");
        assert_eq!(fs::read_to_string(place.at("tree/new")).unwrap(), "new\n");
    }
}

/// The lines of an audit.
fn operations(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_operation_on_a_tree_is_written_down_once() {
    let Some(place) = place() else { return };
    let work = "echo new >/data/new; mv /data/new /data/sub/moved; cat /data/sub/file /data/none; ls /tmp >/dev/null";
    place.file("audit", "from before\n");
    fs::set_permissions(place.at("audit"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(script(&place, &["--audit", "audit"], work).out, "content\n");
    assert_eq!(fs::metadata(place.at("audit")).unwrap().permissions().mode() & 0o777, 0o600);
    let all = operations(&fs::read_to_string(place.at("audit")).unwrap());
    let found = |op: &str, paths: &[&str]| {
        let mut found =
            all.iter().filter(|line| line["op"] == op && line["paths"] == serde_json::json!(paths));
        let first = found.next().unwrap_or_else(|| panic!("no {op} {paths:?} in {all:#?}"));
        assert!(first["pid"].as_u64().unwrap() > 0 && first["uid"] == 0, "{first}");
        assert!(first["time"].as_f64().unwrap() > 1e9 && first["us"].as_f64().is_some(), "{first}");
        first.clone()
    };
    assert_eq!(found("write", &["/data/new"])["bytes"], 4);
    assert_eq!(found("rename", &["/data/new", "/data/sub/moved"])["state"], "done");
    assert_eq!(found("read", &["/data/sub/file"])["bytes"], 8);
    assert_eq!(found("lookup", &["/data/none"])["error"], "ENOENT");
    assert!(all.iter().all(|line| line["state"] != "waiting"), "{all:#?}");
    let mut ids: Vec<_> = all.iter().map(|line| line["id"].as_u64().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "a line for each");
    let on_stderr = script(&place, &["--audit", "-"], "rm /data/sub/moved");
    let removed = |line: &serde_json::Value| line["op"] == "unlink" && line["paths"][0] == "/data/sub/moved";
    assert!(operations(&on_stderr.err).iter().any(removed), "{on_stderr:?}");
}

#[test]
fn an_audit_by_calls_says_which_process_asked() {
    let place = World::new("seccomp");
    let said = script(&place, &["--audit", "audit"], "echo $$; mkdir /data/new; exec cat /data/sub/file");
    let (process, _) = said.out.split_once('\n').unwrap();
    let all = operations(&fs::read_to_string(place.at("audit")).unwrap());
    let opened = all.iter().filter(|line| line["op"] == "open" && line["paths"][0] == "/data/sub/file");
    let asked: Vec<_> = opened.map(|line| line["pid"].to_string()).collect();
    assert!(!asked.is_empty() && asked.iter().all(|pid| pid == process), "{process}: {all:#?}");
    assert!(all.iter().any(|line| line["op"] == "mkdir" && line["pid"] != 0), "{all:#?}");
}

#[test]
fn a_wrong_option_in_the_file_of_mounts_is_named_with_its_line_when_its_tree_is_used() {
    let place = World::new("seccomp");
    for option in ["nosuch=1", "port=2,nosuch"] {
        place.file("mounts", format!("/right tree\n\n/wrong sftp://h/x {option}\n"));
        let script = ["sh", "-c", "cat /right/sub/file; cat /wrong/x"];
        let said = place.program(&[&["--mounts", "mounts"], &script[..]].concat());
        assert_eq!((said.code, &*said.out), (Some(1), "content\n"), "{said:?}");
        assert!(said.err.contains("mounts:3: ") && said.err.contains("nosuch"), "{said:?}");
        assert!(said.err.contains("cat: /wrong/x: Invalid argument"), "{said:?}");
        // What takes the place of the line is right.
        let other = ["--mounts", "mounts", "--map", "/wrong=tree", "cat", "/wrong/sub/file"];
        assert_eq!(place.program(&other).ok(), "content\n");
    }
}

#[test]
fn an_option_for_all_trees_that_one_does_not_have_is_said_to_be_that() {
    let place = World::new("seccomp");
    let map = ["--no-hosts", "--map", "/web=http://127.0.0.1:1/"];
    let said = place.program(&[&["--opt", "IdentityFile=key"], &map[..], &["cat", "/web/x"]].concat());
    for expected in ["has no option IdentityFile", "--opt is for all trees"] {
        assert!(said.err.contains(expected), "{said:?}");
    }
}

#[test]
fn an_audit_that_cannot_be_written_is_no_success() {
    let Some(place) = place() else { return };
    let refused = script(&place, &["--audit", "none/audit"], "echo ran").refused(125);
    assert!(refused.contains("none/audit"), "{refused}");
    let full = script(&place, &["--audit", "/dev/full"], "cat /data/sub/file");
    assert_eq!((&*full.out, full.code), ("content\n", Some(125)), "{full:?}");
    assert!(full.err.contains("operations are missing"), "{full:?}");
}
