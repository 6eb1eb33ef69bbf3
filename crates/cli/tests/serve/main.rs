// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve` with clients that others wrote: tools of libnfs and diod, and the kernel of Debian in a virtual machine.

mod kernel;
mod kernel_ninep;
mod mounted;
mod ninep;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use support::{PROGRAM, Place, Said, has, signal};

/// A server in the foreground, ended with the test.
pub struct Serving {
    child: Child,
    /// What it prints on standard output, without its first line.
    out: BufReader<ChildStdout>,
    /// Where it listens; 0 for a socket with a name.
    pub port: u16,
}

impl Serving {
    /// Starts `outrigger serve nfs` with these arguments at a free port, or at `port`.
    pub fn start(place: &Place, port: u16, args: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let command = place.command(PROGRAM, &[&["serve", "nfs", "--listen", &listen], args].concat());
        Serving::of(command)
    }

    /// Starts `outrigger serve 9p` with these arguments at a free port.
    pub fn ninep(place: &Place, args: &[&str]) -> Self {
        let arguments = [&["serve", "9p", "--listen", "127.0.0.1:0"], args].concat();
        Serving::of(place.command(PROGRAM, &arguments))
    }

    /// Starts this command.
    pub fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let port = match line.strip_prefix("127.0.0.1:") {
            Some(address) => address.split(' ').next().unwrap().parse().unwrap(),
            None if line.starts_with("unix:") => 0,
            None => panic!("{line:?}"),
        };
        Serving { child, out, port }
    }

    /// How libnfs names a file.
    pub fn url(&self, path: &str) -> String {
        let port = self.port;
        format!("nfs://127.0.0.1{path}?nfsport={port}&mountport={port}&version=3")
    }

    /// Ends it with this signal, and gives its exit status.
    pub fn end(mut self, name: &str) -> Option<i32> {
        signal(self.child.id(), name);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program of libnfs as a user without privileges: as the superuser it takes a random reserved port, which may be in use.
fn libnfs(place: &Place, program: &str, args: &[&str]) -> Said {
    fs::set_permissions(place.at(""), fs::Permissions::from_mode(0o755)).unwrap();
    place.run_as("setpriv", &[&["--reuid=1001", "--clear-groups", program][..], args].concat())
}

/// Clients at any port, as whom they say.
const EVERYONE: [&str; 3] = ["--insecure", "--squash", "none"];

#[test]
fn libnfs_lists_reads_and_copies() {
    if !has("nfs-ls") {
        return;
    }
    let place = Place::new();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    place.file("tree/dir/large", &content);
    place.file("tree/dir/small", "small");
    let serving = Serving::start(&place, 0, &[&["tree"][..], &EVERYONE].concat());
    fs::set_permissions(place.at("tree/dir"), fs::Permissions::from_mode(0o777)).unwrap();
    let listed = libnfs(&place, "nfs-ls", &["-R", &serving.url("/")]).ok();
    assert!(listed.contains(" dir\n") && listed.contains("12000000 dir/large"), "{listed}");
    fs::create_dir(place.at("there")).unwrap();
    fs::set_permissions(place.at("there"), fs::Permissions::from_mode(0o777)).unwrap();
    let (copy, there) = (serving.url("/dir/copy"), place.at("there/large"));
    libnfs(&place, "nfs-cp", &[&serving.url("/dir/large"), there.to_str().unwrap()]).ok();
    assert!(fs::read(&there).unwrap() == content);
    libnfs(&place, "nfs-cp", &[there.to_str().unwrap(), &copy]).ok();
    assert!(fs::read(place.at("tree/dir/copy")).unwrap() == content);
}

/// What is there all the time is listed once, whatever comes and goes meanwhile.
#[test]
fn a_directory_of_100_000_names_is_listed_while_it_changes() {
    if !has("nfs-ls") {
        return;
    }
    let place = Place::patient(Duration::from_secs(120));
    let many = place.at("tree/many");
    fs::create_dir_all(&many).unwrap();
    (0..100_000).for_each(|number| drop(fs::File::create(many.join(format!("stays-{number}"))).unwrap()));
    let serving = Serving::start(&place, 0, &[&["tree"][..], &EVERYONE].concat());
    let (over, changes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let listed = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let number = changes.fetch_add(1, Ordering::Relaxed);
                let at = |name: &str, number: usize| many.join(format!("{name}-{number}"));
                fs::File::create(at("comes", number)).unwrap();
                fs::rename(at("comes", number), at("moves", number)).unwrap();
                if let Some(before) = number.checked_sub(100) {
                    fs::remove_file(at("moves", before)).unwrap();
                }
            }
        });
        let as_another =
            ["100", "setpriv", "--reuid=1001", "--clear-groups", "nfs-ls", &serving.url("/many")];
        let listed = place.command("timeout", &as_another).output();
        over.store(true, Ordering::Relaxed);
        listed.unwrap()
    });
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let stays = names.iter().filter(|name| name.starts_with("stays-")).count();
    assert_eq!((stays, names.iter().collect::<HashSet<_>>().len()), (100_000, names.len()));
    assert!(changes.into_inner() > 1000, "hardly anything changed");
}

#[test]
fn several_trees_of_any_kind_are_exported_under_their_names() {
    if !has("nfs-ls") {
        return;
    }
    let place = Place::new();
    place.file("tree/in", "a directory");
    place.file("src/member", "of an archive");
    place.tar("a.tar.gz", "src");
    let serving = Serving::start(
        &place,
        0,
        &[&["--export", "/dir=tree", "--export", "/archive=a.tar.gz"][..], &EVERYONE].concat(),
    );
    let read = |path: &str| libnfs(&place, "nfs-cat", &[&serving.url(path)]).ok();
    assert_eq!(read("/dir/in"), "a directory");
    assert_eq!(read("/archive/member"), "of an archive");
}

#[test]
fn a_client_at_a_port_that_anyone_can_use_is_refused() {
    if !has("nfs-cat") {
        return;
    }
    let place = Place::new();
    place.file("tree/secret", "secret");
    let serving = Serving::start(&place, 0, &["tree"]);
    let stranger = libnfs(&place, "nfs-cat", &[&serving.url("/secret")]);
    assert!(!stranger.out.contains("secret") && stranger.code != Some(0), "{stranger:?}");
}

#[test]
fn wrong_arguments_are_named() {
    let place = Place::new();
    place.file("tree/in", "");
    let serving = Serving::start(&place, 0, &["tree"]);
    let taken = format!("127.0.0.1:{}", serving.port);
    let refused = place.run(&["serve", "nfs", "tree", "--listen", &taken]).refused(1);
    assert!(refused.contains(&taken) && refused.contains("in use"), "{refused}");
    let twice = ["serve", "nfs", "--listen", "0", "--export", "/one=tree", "--export", "/one/=tree"];
    assert!(place.run(&twice).refused(1).contains("'/one'"));
    assert!(place.run(&["serve", "nfs", "nothing", "--listen", "0"]).refused(1).contains("'nothing'"));
    for (option, value) in
        [("--allow", "host"), ("--listen", "nowhere"), ("--export", "one=tree"), ("--anonymous", "x")]
    {
        let said = place.run(&["serve", "nfs", "tree", option, value]);
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.err.contains(value), "{said:?}");
    }
}

#[test]
fn handles_are_made_with_a_key_that_only_its_user_can_read() {
    let place = Place::new();
    place.file("tree/in", "");
    assert_eq!(Serving::start(&place, 0, &["tree"]).end("TERM"), Some(143));
    let key = place.at("state/outrigger/nfs.key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&key).unwrap();
    Serving::start(&place, 0, &["tree"]);
    assert_eq!(fs::read(&key).unwrap(), before);
    fs::set_permissions(place.at("state/outrigger"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(place.run(&["serve", "nfs", "tree", "--listen", "0"]).refused(1).contains("nfs.key"));
}

#[test]
fn two_servers_do_not_share_a_directory_and_a_key_that_others_can_read_is_refused() {
    let place = Place::new();
    place.file("tree/in", "");
    let first = Serving::start(&place, 0, &["tree"]);
    let refused = place.run(&["serve", "nfs", "tree", "--listen", "0"]).refused(1);
    assert!(refused.contains("--state DIR"), "{refused}");
    // Nor does it let clients in before that is known.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = free.to_string();
    let mut second = place
        .command(PROGRAM, &["serve", "nfs", "tree", "--listen", &listen])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let listening = format!("0100007F:{:04X} 00000000:0000 0A", free.port());
    while second.try_wait().unwrap().is_none() {
        assert!(!fs::read_to_string("/proc/net/tcp").unwrap().contains(&listening), "it listens");
    }
    Serving::start(&place, 0, &["tree", "--state", "another"]);
    assert_eq!(first.end("TERM"), Some(143));
    fs::set_permissions(place.at("state/outrigger/nfs.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = place.run(&["serve", "nfs", "tree", "--listen", "0"]).refused(1);
    assert!(refused.contains("0644") && refused.contains("chmod 600"), "{refused}");
}

#[test]
fn words_of_exports_are_understood_for_each_export_or_explained() {
    let place = Place::new();
    place.file("one/in", "");
    place.file("two/in", "");
    let exports = ["--export", "/one=one", "--export", "/two=two", "--insecure"];
    let mut serving = Serving::start(
        &place,
        0,
        &[
            &exports[..],
            &[
                "-o",
                "sync,no_subtree_check",
                "--export-options",
                "/one=ro,no_root_squash",
                "--export-options",
                "/two=all_squash,anonuid=1001,anongid=1001",
            ],
        ]
        .concat(),
    );
    fs::set_permissions(place.at("two"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(place.at("one"), fs::Permissions::from_mode(0o777)).unwrap();
    if has("nfs-cp") {
        let copy =
            |to: &str| libnfs(&place, "nfs-cp", &[place.at("one/in").to_str().unwrap(), &serving.url(to)]);
        assert_ne!(copy("/one/new").code, Some(0));
        copy("/two/new").ok();
        assert!(!place.at("one/new").exists() && place.at("two/new").exists());
    }
    signal(serving.child.id(), "TERM");
    let mut rest = String::new();
    serving.out.read_to_string(&mut rest).unwrap();
    let port = serving.port;
    let mount = format!(
        "mount -t nfs -o vers=3,proto=tcp,port={port},mountport={port},mountproto=tcp,nolock 127.0.0.1:/one DIR"
    );
    assert!(rest.contains(&mount), "{rest}");
    for (options, advice) in [("async", "leave it out"), ("crossmnt", "--export")] {
        assert!(
            place.run(&["serve", "nfs", "one", "--listen", "0", "-o", options]).refused(1).contains(advice)
        );
    }
    let unknown = ["serve", "nfs", "one", "--listen", "0", "--export-options", "/three=ro"];
    assert!(place.run(&unknown).refused(1).contains("'/three'"));
    let misspelt = ["--listen", "0", "--export", "/x=one", "--export-options", "/x=roo"];
    let refused = place.run(&[&["serve", "nfs"][..], &misspelt].concat()).refused(1);
    let expected = ["export '/x': roo: ", "options of exports are ro, rw, ", "local has no option roo"];
    assert!(expected.iter().all(|part| refused.contains(part)), "{refused}");
}

#[test]
fn who_is_refused_is_told_without_being_asked_for() {
    if !has("nfs-cat") {
        return;
    }
    let place = Place::new();
    place.file("tree/in", "content");
    let mut command = place.command(PROGRAM, &["serve", "nfs", "--listen", "0", "tree"]);
    command.env_remove("OUTRIGGER_LOG").stderr(Stdio::piped());
    let mut serving = Serving::of(command);
    libnfs(&place, "nfs-cat", &[&serving.url("/in")]);
    libnfs(&place, "nfs-cat", &[&serving.url("/in")]);
    signal(serving.child.id(), "TERM");
    let mut said = String::new();
    serving.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("127.0.0.1") && said.contains("option insecure"), "{said}");
    assert_eq!(said.lines().count(), 1, "a client cannot fill the log: {said}");
}

/// The superuser of a client is the anonymous user at the server, unless `--squash none` is given.
#[test]
fn a_refusal_by_squashing_names_what_lets_the_user_in() {
    let place = Place::new();
    place.file("tree/in", "content");
    for (more, is_let_in) in [(&[][..], false), (&["--squash", "none"], true), (&["--map", "0:0"], true)] {
        let args = [&["serve", "nfs", "--listen", "0", "--insecure", "tree"], more].concat();
        let mut command = place.command(PROGRAM, &args);
        command.env_remove("OUTRIGGER_LOG").stderr(Stdio::piped());
        let mut serving = Serving::of(command);
        let port = serving.port;
        let file = format!("nfs://127.0.0.1:{port}/new");
        let made = place.run(&["--opt", &format!("mountport={port}"), "touch", &file]);
        assert_eq!(made.code == Some(0), is_let_in, "{more:?}: {made:?}");
        signal(serving.child.id(), "TERM");
        let mut said = String::new();
        serving.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let names_it = ["root of a client is user 65534 here", "--squash none", "--map 0:UID"];
        assert_eq!(names_it.iter().all(|part| said.contains(part)), !is_let_in, "{more:?}: {said}");
        assert_eq!(place.at("tree/new").exists(), is_let_in, "{more:?}");
        let _ = fs::remove_file(place.at("tree/new"));
    }
}

/// A file that is made exclusively, by a server that is killed before the file has its verifier.
#[test]
fn an_exclusive_creation_is_repeated_after_the_server_was_killed_in_it() {
    let place = Place::new();
    place.file("tree/in", "");
    place.file("new", "content");
    let arguments = [&["tree"][..], &EVERYONE].concat();
    let slow = [&["--layer", "fault=op=setattr,delay=600s"][..], &arguments].concat();
    let serving = Serving::start(&place, 0, &slow);
    let port = serving.port;
    let file = format!("nfs://127.0.0.1:{port}/new");
    let mut client = place.command(PROGRAM, &["--opt", &format!("mountport={port}"), "cp", "new", &file]);
    let mut client = client.spawn().unwrap();
    // It is made when the tree has a new name, or the server a file without a name.
    let nameless = || {
        let files = fs::read_dir(format!("/proc/{}/fd", serving.child.id())).unwrap();
        let paths = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        paths.map(|path| path.to_string_lossy().into_owned()).any(|path| path.contains("tree/#"))
    };
    while fs::read_dir(place.at("tree")).unwrap().count() == 1 && !nameless() {
        assert!(client.try_wait().unwrap().is_none(), "the client has ended");
    }
    serving.end("KILL");
    let _serving = Serving::start(&place, port, &arguments);
    assert!(client.wait().unwrap().success());
    assert_eq!(fs::read(place.at("tree/new")).unwrap(), b"content");
    assert_eq!(fs::read_dir(place.at("tree")).unwrap().count(), 2);
}

#[test]
fn a_service_manager_is_told_when_clients_can_come() {
    let place = Place::new();
    place.file("tree/in", "");
    let socket = UnixDatagram::bind(place.at("notify")).unwrap();
    let mut command = place.command(PROGRAM, &["--json", "serve", "nfs", "--listen", "0", "tree"]);
    command.env("NOTIFY_SOCKET", place.at("notify")).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut message = [0; 64];
    let mut told = || {
        let count = socket.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..count]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    signal(child.id(), "TERM");
    assert_eq!(told(), "STOPPING=1");
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.wait().unwrap();
    assert!(out.contains("\"mount\":\"mount -t nfs ") && out.lines().count() == 1, "{out}");
}

/// The new server waits until the kernel code of the killed one has written everything.
#[test]
fn an_image_is_served_again_after_a_kill() {
    if !support::can_serve() || !has("mkfs.ext4") || !has("nfs-cp") {
        return;
    }
    let place = Place::new();
    fs::File::create(place.at("disk.img")).unwrap().set_len(16 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", place.at("disk.img").to_str().unwrap()]).ok();
    let content: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    let file = place.file("content", &content);
    let args = ["disk.img", "--insecure", "--squash", "all", "--anonymous", "0:0"];
    let mut serving = Serving::start(&place, 0, &args);
    for number in 0..3 {
        libnfs(&place, "nfs-cp", &[file.to_str().unwrap(), &serving.url(&format!("//{number}"))]).ok();
        let port = serving.port;
        assert_eq!(serving.end("KILL"), None);
        serving = Serving::start(&place, port, &args);
        // libnfs has asked for stable storage when it closed the file.
        let listed = libnfs(&place, "nfs-ls", &[&serving.url("/")]).ok();
        assert!(listed.contains(&format!(" {number}\n")), "{listed}");
    }
    assert_eq!(serving.end("TERM"), Some(143));
}

#[test]
fn exports_that_lie_in_others_are_shown_there() {
    let place = Place::new();
    place.file("top/file", "top");
    place.file("top/b/hidden", "hidden");
    place.file("base/inner", "inner");
    place.file("deep/d/x", "x");
    let exports = ["/=top", "/b=base", "/e=base", "/e/d=deep"].map(|export| ["--export", export]).concat();
    let serving = Serving::start(&place, 0, &[&["--insecure", "--squash", "none"], &exports[..]].concat());
    let location = |path: &str| format!("nfs://127.0.0.1:{}{path}", serving.port);
    let opt = format!("mountport={}", serving.port);
    let run = |words: &[&str]| place.run(&[&["--opt", &opt], words].concat()).ok();
    for (path, names) in
        [("/", "b\ne\nfile\n"), ("/b", "inner\n"), ("/e", "d\ninner\n"), ("/e/d", "d\n"), ("/e/d/d", "x\n")]
    {
        assert_eq!(run(&["ls", &location(path)]), names, "{path}");
    }
    assert!(run(&["find", &location("/"), "-name", "x"]).ends_with("/e/d/d/x\n"));
}
