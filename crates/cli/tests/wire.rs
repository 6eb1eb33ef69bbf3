// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve wire`, by ssh to a server of our own and at a socket.

mod support;

use outrigger_remote::{HOST, Line, Sshd};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use support::{PROGRAM, Place, can_mount, kill_server, signal, within};

/// A host, and a place beside it, whose directory `far` is the tree.
struct Far {
    place: Place,
    sshd: Sshd,
}

impl Far {
    /// `None` where no host can be made; says so.
    fn new() -> Option<Self> {
        if let Some(missing) = Sshd::missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        let place = Place::new().trusting();
        fs::create_dir(place.at("sshd")).unwrap();
        fs::create_dir(place.at("far")).unwrap();
        let sshd = Sshd::start(place.at("sshd")).unwrap();
        Some(Far { place, sshd })
    }

    fn location(&self, path: &str) -> String {
        format!("ssh://{HOST}{}{path}", self.place.at("far").display())
    }

    /// How the host is reached, and where outrigger is there.
    fn options(&self, configuration: &Path) -> String {
        format!("F={},command={PROGRAM}", configuration.display())
    }

    fn run(&self, args: &[&str]) -> support::Said {
        let options = self.options(&self.sshd.configuration());
        self.place.run(&[&["--opt", &options][..], args].concat())
    }

    fn mount(&self, at: &str, configuration: &Path) {
        fs::create_dir_all(self.place.at(at)).unwrap();
        self.place.run(&["mount", "-o", &self.options(configuration), &self.location(""), at]).ok();
    }
}

/// A server at a socket, ended with the test.
struct Serving(Child);

impl Serving {
    fn start(place: &Place, args: &[&str]) -> Self {
        let socket = format!("unix:{}", place.at("socket").display());
        let mut command = place.command(PROGRAM, &[&["serve", "wire", "--listen", &socket], args].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(&socket), "{line:?}");
        Serving(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sums(place: &Place, dir: &Path) -> String {
    let command = "cd \"$0\" && find . -type f -exec sha256sum {} + | sort && find . ! -type f -printf '%p %l\\n' | sort";
    place.run_as("sh", &["-c", command, &dir.display().to_string()]).ok()
}

/// A tree with small files, a large one, odd names, a link and an empty directory.
fn tree(place: &Place, name: &str) {
    for number in 0..50_u32 {
        place.file(
            &format!("{name}/d{}/file {number}", number % 5),
            format!("{number}\n").repeat(number as usize),
        );
    }
    let large: Vec<u8> = (0..800_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    place.file(&format!("{name}/-large*"), large);
    fs::create_dir(place.at(name).join("empty")).unwrap();
    symlink("d1/file 1", place.at(name).join("link")).unwrap();
}

#[test]
fn trees_are_copied_both_ways_by_way_of_ssh() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    tree(place, "tree");
    let expected = sums(place, &place.at("tree"));
    far.run(&["cp", "-r", "tree", &far.location("/copy")]).ok();
    assert_eq!(sums(place, &place.at("far/copy")), expected);
    far.run(&["cp", "-r", &far.location("/copy"), "back"]).ok();
    assert_eq!(sums(place, &place.at("back")), expected);
    let listed = far.run(&["ls", "-lR", &far.location("/copy")]).ok();
    assert!(listed.contains("file 49") && listed.contains("link -> d1/file 1"), "{listed}");
    far.run(&["mv", &far.location("/copy/d1"), &far.location("/moved")]).ok();
    far.run(&["rm", "-r", &far.location("/copy")]).ok();
    assert!(place.at("far/moved/file 1").exists() && !place.at("far/copy").exists());
}

#[test]
fn what_is_served_may_be_any_tree_of_the_host() {
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    place.file("in/f", "inner");
    place.tar("t.tar", "in");
    let options = format!("tree={},{}", place.at("t.tar").display(), far.options(&far.sshd.configuration()));
    assert_eq!(place.run(&["--opt", &options, "cat", &format!("ssh://{HOST}/f")]).ok(), "inner");
}

#[test]
fn a_host_without_outrigger_is_named_with_what_to_do() {
    let Some(far) = Far::new() else { return };
    let options = format!("F={},command=/nowhere/outrigger", far.sshd.configuration().display());
    let said = far.place.run(&["--opt", &options, "ls", &far.location("")]).refused(2);
    assert!(["no outrigger", "command=", "sftp://"].iter().all(|part| said.contains(part)), "{said}");
    let other = "ssh_command=sh -c 'echo welcome'";
    let said = far.place.run(&["--opt", other, "ls", &far.location("")]).refused(2);
    assert!(said.contains("welcom"), "what came instead: {said}");
}

#[test]
fn mounts_of_one_host_see_what_the_others_and_programs_there_do() {
    let Some(far) = Far::new() else { return };
    if !can_mount() {
        return;
    }
    let (place, configuration) = (&far.place, far.sshd.configuration());
    place.file("far/f", "first");
    far.mount("a", &configuration);
    far.mount("b", &configuration);
    let read = |name: &str| fs::read_to_string(place.at(name)).unwrap_or_default();
    assert_eq!((read("a/f"), read("b/f")), ("first".into(), "first".into()));
    fs::write(place.at("a/f"), "second").unwrap();
    assert_eq!(read("far/f"), "second");
    within("the other mount sees it", || read("b/f") == "second");
    fs::write(place.at("far/f"), "third one").unwrap();
    within("both see it", || [read("a/f"), read("b/f")].iter().all(|read| read == "third one"));
    assert!(!place.at("b/new").exists());
    fs::write(place.at("a/new"), "").unwrap();
    within("a name that was not there is", || place.at("b/new").exists());
    place.run(&["umount", "a", "b"]).ok();
}

#[test]
fn a_mount_goes_on_when_its_process_is_killed_and_when_the_line_is_cut() {
    let Some(far) = Far::new() else { return };
    if !can_mount() {
        return;
    }
    let place = &far.place;
    let line = Line::new(far.sshd.port(), Duration::ZERO).unwrap();
    far.mount("m", &far.sshd.configuration_by(line.port()).unwrap());
    place.file("far/f", "content");
    let file = fs::File::open(place.at("m/f")).unwrap();
    kill_server(place, "KILL");
    assert_eq!(std::io::read_to_string(&file).unwrap(), "content");
    line.cut();
    fs::write(place.at("m/g"), "more").unwrap();
    assert_eq!(fs::read_to_string(place.at("far/g")).unwrap(), "more");
    drop(file);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_socket_is_for_its_user_and_goes_with_its_server() {
    let place = Place::new();
    tree(&place, "tree");
    let expected = sums(&place, &place.at("tree"));
    let mut serving = Serving::start(&place, &["tree"]);
    let socket = place.at("socket");
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    let location = |path: &str| format!("wire:unix:{}{path}", place.at("socket").display());
    place.run(&["cp", "-r", &location("/"), "copy"]).ok();
    assert_eq!(sums(&place, &place.at("copy")), expected);
    place.run(&["mkdir", &location("/new")]).ok();
    assert!(place.at("tree/new").exists());
    signal(serving.0.id(), "TERM");
    assert_eq!(serving.0.wait().unwrap().code(), Some(128 + 15));
    assert!(!socket.exists());
}

#[test]
fn a_server_that_only_reads_refuses_changes() {
    let place = Place::new();
    place.file("tree/f", "content");
    fs::set_permissions(place.at("tree"), PermissionsExt::from_mode(0o777)).unwrap();
    let _serving = Serving::start(&place, &["--read-only", "tree"]);
    let location = |path: &str| format!("wire:unix:{}{path}", place.at("socket").display());
    assert_eq!(place.run(&["cat", &location("/f")]).ok(), "content");
    let said = place.run(&["rm", &location("/f")]).refused(1);
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(place.at("tree/f").exists());
}

/// The content of a stream is longer than what one request of a new connection moves.
#[test]
fn a_stream_of_another_host_is_read_in_order_and_opened_only_where_it_is_named() {
    let place = Place::new().trusting();
    place.file("portal.conf", "numbers exec seq 200000\ne/one exec touch started\n");
    let _serving = Serving::start(&place, &["portal:portal.conf"]);
    let location = |path: &str| format!("wire:unix:{}{path}", place.at("socket").display());
    let numbers: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert!(place.run(&["cat", &location("/numbers")]).ok() == numbers);
    let said = place.run(&["cp", "-r", &location("/e"), "copy"]);
    assert!(said.code == Some(1) && said.err.contains("connects or starts a program"), "{said:?}");
    assert!(!place.at("started").exists());
}

#[test]
fn what_cannot_be_served_at_is_refused_with_what_can() {
    let place = Place::new();
    fs::create_dir(place.at("tree")).unwrap();
    for (listen, code, can) in
        [("0.0.0.0:7", 1, "ssh://HOST/PATH"), ("host:x", 2, "127.0.0.1:4564"), ("unix:", 2, "unix:/run")]
    {
        let said = place.run(&["serve", "wire", "--listen", listen, "tree"]);
        assert!(said.code == Some(code) && said.err.contains(can), "{listen}: {}", said.err);
    }
}

#[test]
fn what_is_no_client_at_standard_input_is_an_error() {
    let place = Place::new();
    fs::create_dir(place.at("tree")).unwrap();
    for garbage in ["", "hi", "GET / HTTP/1.0", "SSH-2.0-OpenSSH_9.2"] {
        let command = format!(
            "printf '%s' '{garbage}' | {PROGRAM} serve wire --stdio tree | cat >/dev/null; exit ${{PIPESTATUS[1]}}"
        );
        let said = place.run_as("bash", &["-c", &command]);
        assert!(said.code.is_some_and(|code| code != 0), "{garbage}: {}", said.err);
        assert!(said.err.contains("does not speak Outrigger's protocol"), "{garbage}: {}", said.err);
    }
    let neither = place.run(&["serve", "wire", "tree"]);
    assert!(
        neither.code != Some(0)
            && neither.err.contains("--stdio")
            && neither.err.contains("--listen unix:PATH")
    );
}
