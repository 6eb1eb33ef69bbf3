// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger attach` and `outrigger detach`: trees for programs that run.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use support::{PROGRAM, Place, can_mount, has, signal, within};

/// A place with a tree.
fn place() -> Option<Place> {
    if !can_mount() {
        return None;
    }
    let place = Place::new();
    place.file("tree/sub/file", "content\n");
    Some(place)
}

/// A shell that reads commands from a pipe; dropping this kills it.
struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Shell { child, input, output }
    }

    fn new(place: &Place) -> Self {
        Self::start(&mut place.command("sh", &[]))
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// What a line of commands prints, also where it fails.
    fn says(&mut self, line: &str) -> String {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{{ {line}; }} 2>&1; echo; echo end").unwrap();
        let mut said = String::new();
        while !said.ends_with("\nend\n") {
            assert_ne!(self.output.read_line(&mut said).unwrap(), 0, "the shell has ended: {said}");
        }
        said.strip_suffix("\nend\n").unwrap().trim_end().to_owned()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that is attached.
struct Attached(Child);

impl Attached {
    fn to(place: &Place, process: u32, maps: &[&str]) -> Self {
        let process = process.to_string();
        let mut args = vec!["attach", "--no-hosts"];
        maps.iter().for_each(|map| args.extend(["--map", map]));
        args.push(&process);
        let mut child = place.command(PROGRAM, &args).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("attached to "), "{said}");
        Attached(child)
    }

    fn ends(mut self, status: i32) {
        within("the server ends", || self.0.try_wait().unwrap().is_some());
        assert_eq!(self.0.wait().unwrap().code(), Some(status));
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_runs_finds_a_tree_until_it_is_taken_away() {
    let Some(place) = place() else { return };
    let mut shell = Shell::new(&place);
    let here = shell.says("pwd");
    for _ in 0..2 {
        let attached = Attached::to(&place, shell.id(), &["/data=tree"]);
        assert_eq!(shell.says("pwd; cat tree/sub/file"), format!("{here}\ncontent"));
        assert_eq!(
            shell.says("cd /data/sub; pwd; sh -c 'cat file; echo new >/data/new'; cat ../new"),
            "/data/sub\ncontent\nnew"
        );
        assert!(!Path::new("/data").exists());
        assert_eq!(shell.says(&format!("cd {here}; exec 4</data/sub/file; echo more >>/data/new")), "");
        place.run(&["detach", &shell.id().to_string()]).ok();
        assert_eq!(shell.says("ls -d /data || cat <&4; exec 4<&-").lines().last(), Some("content"));
        attached.ends(0);
        assert_eq!(fs::read_to_string(place.at("tree/new")).unwrap(), "new\nmore\n");
    }
    let nothing = place.run(&["detach", &std::process::id().to_string()]).refused(1);
    assert!(nothing.contains("nothing is attached"), "{nothing}");
    for command in ["attach", "detach"] {
        let wrong = place.run(&[command, "abc"]);
        assert!(wrong.code == Some(2) && wrong.err.contains("PID is a number"), "{wrong:?}");
    }
}

#[test]
fn a_signal_to_the_server_takes_the_trees_away_and_the_program_writes_to_the_end() {
    let Some(place) = place() else { return };
    let mut shell = Shell::new(&place);
    for name in ["INT", "TERM"] {
        let attached = Attached::to(&place, shell.id(), &["/data=tree"]);
        assert_eq!(shell.says("exec 4>/data/new; echo one >&4"), "");
        signal(attached.0.id(), name);
        within("the trees are taken away", || shell.says("ls -d /data >&- 2>&- || echo gone") == "gone");
        assert_eq!(shell.says("echo two >&4; exec 4>&-"), "");
        attached.ends(0);
        assert_eq!(fs::read_to_string(place.at("tree/new")).unwrap(), "one\ntwo\n");
    }
}

#[test]
fn the_working_directory_stays_where_its_name_does_not_lead_there() {
    let Some(place) = place() else { return };
    let mut shell = Shell::new(&place);
    shell.says("mkdir gone; cd gone; rmdir ../gone");
    let _attached = Attached::to(&place, shell.id(), &["/data=tree"]);
    assert_eq!(shell.says("cat /data/sub/file; ls ../tree/sub 2>&1 | tail -1"), "content\nfile");
    let mut covered = Shell::new(&place);
    covered.says("cd tree/sub");
    let _other = Attached::to(&place, covered.id(), &[&format!("{}=mem:", place.at("tree").display())]);
    assert_eq!(covered.says(&format!("cat file; ls {}", place.at("tree").display())), "content");
}

/// Calls that wait go on to wait, whichever way the kernel begins them again.
#[test]
fn programs_that_wait_go_on_to_wait() {
    let Some(place) = place() else { return };
    if !has("python3") {
        return;
    }
    let script = "import sys, time, os, select, signal
signal.signal(signal.SIGALRM, lambda *a: None)
for wait in sys.stdin.readline, lambda: select.select([0], [], [])[0], lambda: time.sleep(0.5) or 'slept', lambda: signal.sigwait([signal.SIGUSR1]):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    print('waits', flush=True)
    said = wait()
    print(bool(said), os.path.exists('/data/sub'), flush=True)
";
    let mut shell = Shell::start(&mut place.command("python3", &["-c", script]));
    let line = |shell: &mut Shell| {
        let mut said = String::new();
        shell.output.read_line(&mut said).unwrap();
        said
    };
    let mut first = None;
    for (number, tell) in ["line\n", "line\n", "", "USR1"].into_iter().enumerate() {
        assert_eq!(line(&mut shell), "waits\n");
        let map = format!("/{}=tree", if number == 0 { "data" } else { "other" });
        let attached = Attached::to(&place, shell.id(), &[&map]);
        match tell {
            "USR1" => signal(shell.id(), tell),
            _ => shell.input.as_mut().unwrap().write_all(tell.as_bytes()).unwrap(),
        }
        assert_eq!(line(&mut shell), "True True\n", "{number}");
        if number == 0 {
            // The other ones come in addition.
            first = Some(attached);
        } else {
            signal(attached.0.id(), "INT");
            attached.ends(0);
        }
    }
    drop(shell.input.take());
    assert_eq!(shell.child.wait().unwrap().code(), Some(0));
    first.unwrap().ends(0);
}

#[test]
fn a_process_that_cannot_be_attached_to_is_named_with_the_reason() {
    let Some(place) = place() else { return };
    let attach =
        |process: &str, map: &str| place.run(&["attach", "--no-hosts", "--map", map, process]).refused(1);
    let refused = |process: u32, map: &str, why: &str| {
        let said = attach(&process.to_string(), map);
        assert!(said.contains(why), "{said}");
    };
    assert!(attach("99999999", "/data=tree").contains("there is no process 99999999"));
    // This process: tests have threads of their own.
    let own = std::process::id().to_string();
    let own =
        place.run(&["attach", "--via", "namespace", "--no-hosts", "--map", "/data=tree", &own]).refused(1);
    assert!(own.contains("threads"), "{own}");
    let traced = place.run(&["attach", "--via", "ptrace", "--map", "/data=tree", "1"]);
    assert!(traced.err.contains("possible values: auto, namespace, seccomp]"), "{traced:?}");
    let mut shell = Shell::new(&place);
    refused(shell.id(), &format!("{}/no/dir=tree", place.at("").display()), "make one there");
    assert_eq!(shell.says("cat tree/sub/file; ls -d /data 2>&1 | wc -l"), "content\n1");
    assert!(fs::symlink_metadata("/data").is_err());
    if has("setpriv") {
        let mut other =
            Shell::start(&mut place.command("setpriv", &["--reuid", "1", "--clear-groups", "sh"]));
        assert_eq!(other.says("id -u"), "1");
        refused(other.id(), "/data=tree", "attach to it as that user");
    }
    if has("strace") {
        let process = shell.id().to_string();
        let mut tracer =
            place.command("strace", &["-o", "trace", "-p", &process]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(tracer.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.contains("attached"), "{said}");
        refused(shell.id(), "/data=tree", &format!("traced by process {}", tracer.id()));
        tracer.kill().unwrap();
        tracer.wait().unwrap();
    }
    assert_eq!(shell.says("echo alive"), "alive");
}

#[test]
fn whichever_side_dies_the_other_one_goes_on() {
    let Some(place) = place() else { return };
    let mut shell = Shell::new(&place);
    let mut server = Attached::to(&place, shell.id(), &["/data=tree"]);
    shell.says("cd /data");
    server.0.kill().unwrap();
    assert_eq!(server.0.wait().unwrap().signal(), Some(9));
    let said = shell.says("cat /data/sub/file; cat tree/sub/file; cd /; ls -d /tmp");
    assert!(said.contains("not connected") && said.ends_with("/tmp"), "{said}");
    place.run(&["detach", &shell.id().to_string()]).ok();
    let mut again = Attached::to(&place, shell.id(), &["/data=tree"]);
    let said = shell.says("cat /data/sub/file; sleep 1000 & echo $!");
    let (content, sleeper) = said.split_once('\n').unwrap();
    assert_eq!(content, "content");
    drop(shell.input.take());
    shell.child.kill().unwrap();
    shell.child.wait().unwrap();
    // What the program has started has the trees still.
    assert!(again.0.try_wait().unwrap().is_none());
    signal(again.0.id(), "TERM");
    again.ends(0);
    signal(sleeper.parse().unwrap(), "KILL");
}

/// Also one with threads, which could not be attached to otherwise.
#[test]
fn a_program_that_was_started_with_trees_gets_more_and_loses_all() {
    let Some(place) = place() else { return };
    if !has("python3") {
        return;
    }
    let script = "import os, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(os.getpid(), flush=True)
for line in sys.stdin: print(os.path.exists(line.strip()), flush=True)
";
    let args = ["run", "--no-hosts", "--map", "/data=tree", "python3", "-c", script];
    let mut program = Shell::start(&mut place.command(PROGRAM, &args));
    let mut line = String::new();
    program.output.read_line(&mut line).unwrap();
    let process: u32 = line.trim().parse().unwrap();
    let mut exists = |path: &str| {
        writeln!(program.input.as_mut().unwrap(), "{path}").unwrap();
        let mut said = String::new();
        program.output.read_line(&mut said).unwrap();
        said == "True\n"
    };
    let attached = Attached::to(&place, process, &["/more/deep=tree"]);
    assert!(exists("/data/sub/file") && exists("/more/deep/sub/file"));
    place.run(&["detach", &process.to_string()]).ok();
    attached.ends(0);
    assert!(!exists("/data") && !exists("/more") && exists("/tmp"));
    drop(program.input.take());
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_program_is_attached_to_many_times() {
    let Some(place) = place() else { return };
    let mut shell = Shell::new(&place);
    let descriptors = |process: u32| fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    let mounts =
        |process: u32| fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap().lines().count();
    let mut before = None;
    for number in 0..1000 {
        let attached = Attached::to(&place, shell.id(), &["/data=tree"]);
        if number % 100 == 0 {
            assert_eq!(shell.says("cat /data/sub/file"), "content");
        }
        signal(attached.0.id(), "INT");
        attached.ends(0);
        let now = (descriptors(shell.id()), mounts(shell.id()));
        assert_eq!(*before.get_or_insert(now), now);
    }
}

#[test]
fn a_user_without_privileges_attaches() {
    let Some(place) = place() else { return };
    if !has("setpriv") || !has("unshare") {
        return;
    }
    fs::copy(PROGRAM, place.at("program")).unwrap();
    place.file(
        "script",
        "exec 3<>in
        sh -c 'exec 3<>in; echo $$ >pid; read -r line <&3; eval \"$line\"' >out &
        while ! [ -s pid ]; do sleep 0.1; done
        ./program attach --no-hosts --map /data=tree $(cat pid) 2>said & server=$!
        while ! grep attached said; do kill -0 $server; sleep 0.1; done
        echo 'pwd; cat /data/sub/file; echo new >/data/new; grep CapEff /proc/self/status; grep CapEff /proc/$$/status' >in
        wait %1; wait $server; echo $?
        ",
    );
    File::create(place.at("out")).unwrap();
    let setup = "chmod 755 .; mkfifo in; touch pid said; chown -R nobody .; mknod fuse c 10 229; chmod 666 fuse
        mount --bind fuse /dev/fuse
        exec setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set=-all timeout 30 bash -e script";
    let said = place.run_as("unshare", &["-m", "sh", "-c", setup]).ok();
    assert!(said.ends_with("\n0\n"), "{said}");
    let capabilities = "CapEff:\t0000000000000000\n";
    let expected =
        format!("{}\ncontent\n{capabilities}{capabilities}", place.at("").display()).replace("/\n", "\n");
    assert_eq!(fs::read_to_string(place.at("out")).unwrap(), expected);
    within("the file is stored", || {
        fs::read_to_string(place.at("tree/new")).is_ok_and(|text| text == "new\n")
    });
}
