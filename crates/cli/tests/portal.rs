// SPDX-License-Identifier: MIT OR Apache-2.0
//! `portal:` as programs use it: shells, pipelines and signals on a mount, and commands without one.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread;
use support::{Place, can_mount, has, kill_server, signal, within};

/// A server that answers each client with what that has sent up to a newline, and closes.
fn echoes() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|count| count > 0) && stream.write_all(&byte).is_ok() {
                    if byte == *b"\n" {
                        break;
                    }
                }
            });
        }
    });
    port
}

/// A server that sends this to each client, and closes.
fn sends(content: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().for_each(|stream| stream.unwrap().write_all(content).unwrap()));
    port
}

fn mounted(config: &str, options: &str) -> Option<Place> {
    can_mount().then(|| {
        let place = Place::new().trusting();
        place.file("portal.conf", config);
        place.run(&["mount", "portal:portal.conf", "m", "-o", options]).ok();
        place
    })
}

#[test]
fn shells_and_pipelines_read_and_write_connections() {
    let Some(place) = mounted("tcp tcp\nback exec cat\nstore exec sh -c 'cat >>stored'\n", "linger=5") else {
        return;
    };
    let (echo, hello) = (echoes(), sends(b"one\ntwo\nthree\n"));
    let shell = |script: &str| place.run_as("bash", &["-ec", script]).ok();
    assert_eq!(shell(&format!("cat m/tcp/localhost/{hello}")), "one\ntwo\nthree\n");
    assert_eq!(shell(&format!("sort <m/tcp/localhost/{hello} | head -1")), "one\n");
    assert_eq!(shell(&format!("dd if=m/tcp/localhost/{hello} bs=1M status=none")), "one\ntwo\nthree\n");
    assert_eq!(shell(&format!("exec 3<>m/tcp/localhost/{echo}; echo hi >&3; cat <&3")), "hi\n");
    // Both directions of one descriptor at once, by two programs.
    let both = format!("exec 3<>m/tcp/localhost/{echo}; cat <&3 & read line; echo $line >&3; wait");
    assert_eq!(shell(&format!("echo later | {{ {both}; }}")), "later\n");
    assert_eq!(shell("exec 3<>m/back; (echo part >&3); echo rest >&3; head -c 10 <&3"), "part\nrest\n");
    shell("echo one >m/store; echo two >>m/store");
    within("both are stored", || {
        fs::read_to_string(place.at("stored"))
            .is_ok_and(|text| text.contains("one\n") && text.contains("two\n"))
    });
    assert_eq!(shell("ls m"), "back\nstore\ntcp\n");
    assert_eq!(
        shell("stat -c '%F %s %a' m/back; test ! -s m/back; touch m/back"),
        "regular empty file 0 600\n"
    );
    for (script, why) in [
        ("echo x >m/new", "Permission denied"),
        ("cat m/tcp/localhost/0", "No such file"),
        ("cat m/tcp/localhost/1", "Connection refused"),
        ("cat m/tcp", "Is a directory"),
        ("truncate -s 5 m/back", "Invalid argument"),
        ("chmod 666 m/back", "not permitted"),
        ("rm m/back", "Operation not permitted"),
        ("rmdir m/tcp", "Operation not permitted"),
        ("mv m/back m/other", "Operation not permitted"),
    ] {
        let said = place.run_as("bash", &["-c", script]);
        assert!(said.code != Some(0) && said.err.contains(why), "{script}: {said:?}");
    }
    place.run(&["umount", "m"]).ok();
}

#[test]
fn a_signal_ends_a_read_that_waits() {
    let Some(place) = mounted("tcp tcp", "ro") else { return };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = format!("m/tcp/localhost/{}", silent.local_addr().unwrap().port());
    for name in ["INT", "KILL"] {
        let mut cat = place.spawn_as("cat", &[&path]);
        let (connection, _) = silent.accept().unwrap();
        let waits = format!("/proc/{}/wchan", cat.id());
        within("it waits for a reply", || {
            fs::read_to_string(&waits).is_ok_and(|at| at.contains("fuse") || at.contains("request"))
        });
        signal(cat.id(), name);
        let status = cat.wait().unwrap();
        assert_eq!(status.signal(), Some(if name == "INT" { 2 } else { 9 }), "{status}");
        drop(connection);
    }
    place.run(&["umount", "m"]).ok();
}

#[test]
fn tls_is_spoken_with_servers_whose_certificate_is_trusted() {
    if !has("openssl") {
        return;
    }
    let place = Place::new();
    let made = "req -x509 -newkey rsa:2048 -nodes -keyout key -out own.pem -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost";
    place.run_as("openssl", &made.split(' ').collect::<Vec<_>>()).ok();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut server = place
        .command("openssl", &["s_server", "-accept", &port, "-key", "key", "-cert", "own.pem", "-www"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    within("it listens", || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
    place.file("portal.conf", "own tls ca=own.pem\nsystem tls\n");
    if can_mount() {
        place.run(&["mount", "portal:portal.conf", "m"]).ok();
        let script = format!(
            "exec 3<>m/own/localhost/{port}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; grep -c 'TLSv1.3' <&3"
        );
        let said = place.run_as("bash", &["-c", &script]).ok();
        assert!(said.trim().parse::<u32>().is_ok_and(|count| count > 0), "{said}");
        let said = place.run_as("cat", &[&format!("m/system/localhost/{port}")]);
        assert!(said.err.contains("Permission denied"), "{said:?}");
        place.run(&["umount", "m"]).ok();
    }
    let refused = place.run(&["cat", &format!("portal:portal.conf::/system/localhost/{port}")]);
    assert!(refused.code == Some(1) && refused.err.contains("ca=FILE"), "{refused:?}");
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn commands_need_no_mount_and_programs_need_permission() {
    let place = Place::new();
    let port = sends(b"hello\n");
    assert_eq!(place.run(&["ls", "portal:"]).ok(), "tcp\ntls\nunix\n");
    assert_eq!(place.run(&["cat", &format!("portal:::/tcp/localhost/{port}")]).ok(), "hello\n");
    place.file("sub/portal.conf", "# one\n\necho/* exec echo\nf fs .\n");
    let refused = place.run(&["ls", "portal:sub/portal.conf"]).refused(2);
    assert!(refused.contains("sub/portal.conf:3: ") && refused.contains("--allow-programs"), "{refused}");
    let trusted = [
        "--allow-programs",
        "cat",
        "portal:sub/portal.conf::/echo/a b",
        "portal:sub/portal.conf::/f/portal.conf",
    ];
    assert_eq!(place.run(&trusted).ok(), "a b\n# one\n\necho/* exec echo\nf fs .\n");
    place.file("odd", "tcp\n");
    let refused = place.run(&["ls", "portal:odd"]).refused(2);
    assert!(refused.contains("odd:1: "), "{refused}");
    let refused = place.run(&["ls", "portal:none"]).refused(2);
    assert!(refused.contains("'none'"), "{refused}");
    let refused = place.run(&["cat", "portal:::/tcp/localhost/1"]).refused(1);
    assert!(refused.contains("Connection refused") && refused.contains("localhost port 1"), "{refused}");
}

#[test]
fn when_the_server_dies_open_connections_end_and_new_ones_are_made() {
    let Some(place) = mounted("t tcp localhost\n", "timeout=5") else { return };
    let echo = echoes();
    fs::remove_file(place.at("portal.conf")).unwrap();
    let open = || File::options().read(true).write(true).open(place.at(&format!("m/t/{echo}"))).unwrap();
    let asks = |mut file: &File| {
        file.write_all(b"x\n").unwrap();
        let mut said = String::new();
        file.read_to_string(&mut said).unwrap();
        said
    };
    let lost = open();
    (&lost).write_all(b"some").unwrap();
    kill_server(&place, "KILL");
    let error = (&lost).read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN: {error}");
    let error = (&lost).write(b"more").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(107), "ENOTCONN: {error}");
    assert_eq!(asks(&open()), "x\n");
    drop(lost);
    place.run(&["umount", "m"]).ok();
}

#[test]
fn run_shows_connections_to_a_program() {
    let place = Place::new();
    let echo = echoes();
    let script = format!("exec 3<>/p/tcp/localhost/{echo}; echo there >&3; cat <&3");
    if can_mount() {
        let said =
            place.run(&["run", "--via", "namespace", "--map", "/p=portal:", "--", "bash", "-c", &script]);
        assert_eq!(said.ok(), "there\n");
    }
    // A copy cannot stand for what comes from elsewhere.
    let copied =
        ["run", "--via", "seccomp", "--map", "/p=portal:", "--", "cat", &format!("/p/tcp/localhost/{echo}")];
    let said = place.run(&copied);
    assert!(said.code == Some(1) && said.err.contains("not supported"), "{said:?}");
}

/// What copying `from` in the tree of `portal.conf` has made of `to`, and how it ended.
fn copied(place: &Place, options: &[&str], from: &str, to: &str) -> (support::Said, Option<Vec<u8>>) {
    let source = format!("portal:portal.conf::{from}");
    let said = place.run(&[&["cp"], options, &[&source, to]].concat());
    (said, fs::read(place.at(to)).ok())
}

#[test]
fn a_copy_of_a_stream_is_all_of_it_or_says_that_it_is_not() {
    let place = Place::new().trusting();
    // Pieces that come one by one: the second only after the first was taken.
    let pieces = "sh -c 'for piece in a b c; do echo $piece; sleep 0.2; done'";
    place.file(
        "portal.conf",
        format!("slow exec {pieces}\nhalf exec sh -c 'seq 100; exit 3'\nfails exec false\nmuch exec head -c 20000000 /dev/zero\n"),
    );
    for (number, options) in [&[][..], &["--sparse=always"]].into_iter().enumerate() {
        let (said, content) = copied(&place, options, "/slow", &format!("slow{number}"));
        assert_eq!(said.ok(), "");
        assert_eq!(content.as_deref(), Some(&b"a\nb\nc\n"[..]), "{options:?}");
        let (said, content) = copied(&place, options, "/much", &format!("much{number}"));
        assert_eq!(said.ok(), "");
        assert!(content.is_some_and(|content| content == vec![0; 20_000_000]), "{options:?}");
    }
    let (said, part) = copied(&place, &[], "/half", "half");
    assert!(said.code == Some(1) && said.err.contains("exit status 3"), "{said:?}");
    assert!(said.err.contains("has the first 292 bytes"), "{said:?}");
    assert_eq!(part.map(|part| part.len()), Some(292), "what came is kept, as by GNU cp");
    let (said, nothing) = copied(&place, &[], "/fails", "fails");
    assert!(said.code == Some(1) && said.err.contains("exit status 1") && nothing.is_none(), "{said:?}");
}

#[test]
fn a_server_that_sends_much_is_copied_to_its_end() {
    let place = Place::new();
    let port = sends(&[b'x'; 5_000_000]);
    place.file("portal.conf", format!("t tcp localhost {port}\n"));
    let (said, content) = copied(&place, &[], "/t", "out");
    assert_eq!((said.ok(), content.map(|content| content.len())), (String::new(), Some(5_000_000)));
}

#[test]
fn differences_to_a_stream_are_those_to_all_of_it() {
    let place = Place::new().trusting();
    place.file("portal.conf", "slow exec sh -c 'for piece in a b c; do echo $piece; sleep 0.2; done'\nhalf exec sh -c 'seq 3; exit 3'\n");
    place.file("same", "a\nb\nc\n");
    place.file("other", "a\nb\n");
    let diff = |options: &[&str], file: &str| {
        place.run(&[&["diff"], options, &["portal:portal.conf::/slow", file]].concat())
    };
    assert_eq!(diff(&[], "same").ok(), "");
    assert_eq!(diff(&["-q"], "same").ok(), "");
    let said = diff(&[], "other");
    assert_eq!((said.code, &*said.out), (Some(1), "3d2\n< c\n"), "{said:?}");
    let said = place.run(&["diff", "portal:portal.conf::/half", "same"]);
    assert!(said.code == Some(2) && said.err.contains("exit status 3"), "{said:?}");
}

#[test]
fn what_goes_through_a_directory_opens_no_stream() {
    let place = Place::new().trusting();
    place.file("portal.conf", "e/one exec touch started\ne/two exec touch started\n");
    fs::create_dir(place.at("e")).unwrap();
    place.file("e/one", "");
    let said = place.run(&["cp", "-r", "portal:portal.conf::/e", "copy"]);
    assert!(said.code == Some(1) && said.err.lines().count() == 2, "{said:?}");
    assert!(said.err.contains("e/one': opening it connects or starts a program"), "{said:?}");
    let said = place.run(&["diff", "-r", "portal:portal.conf::/e", "e"]);
    assert!(said.code == Some(2) && said.err.contains("connects or starts a program"), "{said:?}");
    assert!(!place.at("started").exists() && fs::read_dir(place.at("copy")).unwrap().next().is_none());
}

#[test]
fn a_signal_with_a_handler_ends_waiting_for_a_peer_and_nothing_is_lost() {
    let Some(place) = mounted("tcp tcp\nstuck exec sleep 1000\n", "linger=0") else { return };
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = format!("m/tcp/localhost/{}", server.local_addr().unwrap().port());
    let start = |script: &str| {
        let mut shell = place.command("bash", &["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = shell.stdout.take().unwrap();
        expect(&mut out, "opened\n");
        (shell, out)
    };
    // A reader, whose handler returns: what comes afterwards is read. A signal that comes before it waits ends no waiting: there are more.
    let script = format!(
        "trap 'trap \"\" USR1; echo >heard' USR1; exec 3<{path}; echo opened; read line <&3 || read line <&3; echo got $line"
    );
    let (mut reader, mut out) = start(&script);
    within("the handler has run", || {
        signal(reader.id(), "USR1");
        place.at("heard").exists()
    });
    let (mut peer, _) = server.accept().unwrap();
    peer.write_all(b"this\n").unwrap();
    expect(&mut out, "got this\n");
    assert!(reader.wait().unwrap().success());
    // A writer to a program that takes nothing.
    let (mut writer, _) =
        start("trap 'exit 7' USR1; exec 3>m/stuck; echo opened; printf '%1000000d' 1 >&3; exit 8");
    within("the writer has ended", || {
        signal(writer.id(), "USR1");
        writer.try_wait().unwrap().is_some()
    });
    assert_eq!(writer.wait().unwrap().code(), Some(7));
    place.run(&["umount", "m"]).ok();
}

fn expect(out: &mut impl Read, said: &str) {
    let mut buffer = vec![0; said.len()];
    out.read_exact(&mut buffer).unwrap();
    assert_eq!(String::from_utf8_lossy(&buffer), said);
}

/// Whether a process with this number runs.
fn runs(number: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", number.trim())).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn programs_end_with_the_mount_and_with_its_server() {
    let config = "both exec sh -c 'sleep 1231 & echo $! >below; echo $$ >started; wait'\n";
    for how in [&["umount", "m"][..], &["umount", "-l", "m"], &["umount", "-f", "m"], &[]] {
        let Some(place) = mounted(config, "linger=1000") else { return };
        // Closed, but where the server is killed.
        let open = how.is_empty().then(|| File::open(place.at("m/both")).unwrap());
        if open.is_none() {
            place.run_as("bash", &["-c", "true >m/both"]).ok();
        }
        within("it is started", || {
            fs::read_to_string(place.at("started")).is_ok_and(|number| number.ends_with('\n'))
        });
        let [program, below] = ["started", "below"].map(|name| fs::read_to_string(place.at(name)).unwrap());
        match how {
            [] => kill_server(&place, "KILL"),
            how => drop(place.run(how).ok()),
        }
        within("the program is killed", || !runs(&program));
        match how {
            // The kernel kills what the server has started, and no more.
            [] => signal(below.trim().parse().unwrap(), "KILL"),
            _ => within("so is what it has started", || !runs(&below)),
        }
        drop(open);
        place.run(&["umount", "m"]);
    }
}

#[test]
fn what_was_written_before_the_mount_ends_is_taken() {
    let Some(place) = mounted("store exec sh -c 'sleep 0.5; cat >stored'\n", "linger=30") else { return };
    place.run_as("bash", &["-c", "echo kept >m/store"]).ok();
    place.run(&["umount", "m"]).ok();
    within("it is stored", || fs::read_to_string(place.at("stored")).is_ok_and(|text| text == "kept\n"));
    let mut write = place.command(support::PROGRAM, &["write", "portal:portal.conf::/store"]);
    let mut write = write.stdin(Stdio::piped()).spawn().unwrap();
    write.stdin.take().unwrap().write_all(b"also\n").unwrap();
    assert!(write.wait().unwrap().success());
    assert_eq!(fs::read_to_string(place.at("stored")).unwrap(), "also\n");
}

#[test]
fn files_of_this_machine_are_emptied_and_cut() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("files/a", "much old content\n");
    place.file("portal.conf", "f fs files\n");
    let has = |content: &str| assert_eq!(fs::read_to_string(place.at("files/a")).unwrap(), content);
    place.run(&["mount", "portal:portal.conf", "m"]).ok();
    let shell = |script: &str| place.run_as("bash", &["-ec", script]).ok();
    shell("echo new >m/f/a");
    has("new\n");
    shell("echo more >>m/f/a");
    has("new\nmore\n");
    shell("truncate -s 3 m/f/a");
    has("new");
    shell(": >m/f/a");
    has("");
    place.run(&["umount", "m"]).ok();
    place.file("files/a", "much old content\n");
    let via = ["run", "--via", "namespace", "--map", "/p=portal:portal.conf", "--"];
    place.run(&[&via[..], &["bash", "-ec", "echo run >/p/f/a"]].concat()).ok();
    has("run\n");
}
