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
