// SPDX-License-Identifier: MIT OR Apache-2.0
//! A WebDAV server of our own, by commands and mounted.

mod support;

use outrigger_remote::{HttpServer, Httpd};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use support::{Place, can_mount, has, kill_server, within};

/// A server, and a place beside it.
struct Far {
    place: Place,
    server: HttpServer,
}

impl Far {
    /// `None` where no server can be; says so.
    fn new() -> Option<Self> {
        if let Some(missing) = Httpd::Dav.missing() {
            assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new();
        fs::create_dir(place.at("httpd")).unwrap();
        fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
        let server = Httpd::Dav.start(&place.at("httpd")).unwrap();
        Some(Far { place, server })
    }

    fn at(&self, path: &str) -> String {
        format!("dav://127.0.0.1:{}{path}", self.server.port())
    }

    fn mount(&self, more: &[&str]) {
        self.place.run(&[&["mount", &self.at("/"), "m"], more].concat()).ok();
    }

    /// A file that another client has written.
    fn by_others(&self, name: &str, text: &str) {
        let path = self.server.root().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    }
}

/// A tree with many small files, a large one, odd names and an empty directory.
fn tree(place: &Place, name: &str) {
    for number in 0..50_u32 {
        let text = format!("{number}\n").repeat(number as usize);
        place.file(&format!("{name}/d{}/file {number}", number % 5), text);
    }
    for odd in ["-large*", "100%", "what?", "#1", "\u{fc}ber", "'\"<&>", "a\\b", "%41"] {
        place.file(&format!("{name}/odd/{odd}"), odd);
    }
    let large: Vec<u8> =
        (0..1_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    place.file(&format!("{name}/large"), large);
    fs::create_dir(place.at(name).join("empty")).unwrap();
}

fn sums(place: &Place, dir: &Path) -> String {
    let command = "cd \"$0\" && find . -type f -exec sha256sum {} + | sort && find . -type d | sort";
    place.run_as("sh", &["-c", command, &dir.display().to_string()]).ok()
}

#[test]
fn trees_are_copied_both_ways_by_commands_and_through_a_mount() {
    let Some(far) = Far::new() else { return };
    let (place, at_server) = (&far.place, far.server.root());
    tree(place, "tree");
    let expected = sums(place, &place.at("tree"));
    place.run(&["cp", "-r", "tree", &far.at("/")]).ok();
    assert_eq!(sums(place, &at_server.join("tree")), expected);
    place.run(&["cp", "-r", &far.at("/tree"), "back"]).ok();
    assert_eq!(sums(place, &place.at("back")), expected);
    far.mount(&[]);
    place.run_as("cp", &["-r", "tree", "m/mounted"]).ok();
    assert_eq!(sums(place, &at_server.join("mounted")), expected);
    place.run_as("cp", &["-r", "m/tree", "again"]).ok();
    assert_eq!(sums(place, &place.at("again")), expected);
    place.run_as("rm", &["-r", "m/mounted"]).ok();
    place.run(&["rm", "-r", &far.at("/tree")]).ok();
    assert_eq!(fs::read_dir(at_server).unwrap().count(), 0);
}

#[test]
fn commands_say_what_they_say_elsewhere_and_no_password() {
    let Some(far) = Far::new() else { return };
    let run = |args: &[&str]| far.place.run(args);
    run(&["mkdir", "-p", &far.at("/a/b%20c")]).ok();
    far.place.file("one", "one\n");
    run(&["cp", "one", &far.at("/a/b%20c/f")]).ok();
    assert_eq!(run(&["cat", &far.at("/a/b%20c/f")]).ok(), "one\n");
    assert_eq!(run(&["ls", &far.at("/a")]).ok(), "b c\n");
    let full = run(&["rmdir", &far.at("/a/b%20c")]).refused(1);
    assert!(full.contains("Directory not empty"), "{full}");
    run(&["mv", &far.at("/a/b%20c/f"), &far.at("/a/g")]).ok();
    assert_eq!(fs::read_to_string(far.server.root().join("a/g")).unwrap(), "one\n");
    let refused = run(&["cat", &far.at("/private/a/g")]).refused(1);
    assert!(refused.contains("401") && refused.contains("dav://USER@"), "{refused}");
    let login = far.at("/private/a/g").replace("dav://", "dav://alice:secret@");
    assert_eq!(run(&["cat", &login]).ok(), "one\n");
    let refused = run(&["cat", &login.replace("secret", "hush")]).refused(1);
    assert!(refused.contains("the login of alice") && !refused.contains("hush"), "{refused}");
    let certificate = far.server.certificate().display().to_string();
    let tls = format!("davs://localhost:{}/a/g", far.server.tls_port());
    assert_eq!(run(&["cat", "--opt", &format!("ca={certificate}"), &tls]).ok(), "one\n");
    let untrusted = run(&["cat", &tls]).refused(1);
    assert!(untrusted.contains("ca=FILE"), "{untrusted}");
}

#[test]
fn files_change_through_a_mount_as_on_a_disk() {
    let Some(far) = Far::new() else { return };
    let (m, at_server) = (far.place.at("m"), far.server.root());
    far.mount(&[]);
    fs::write(m.join("f"), "one two three").unwrap();
    File::options().write(true).open(m.join("f")).unwrap().write_all_at(b"TWO", 4).unwrap();
    File::options().append(true).open(m.join("f")).unwrap().write_all(b" four").unwrap();
    assert_eq!(fs::read_to_string(at_server.join("f")).unwrap(), "one TWO three four");
    File::options().write(true).open(m.join("f")).unwrap().set_len(7).unwrap();
    assert_eq!(fs::read_to_string(at_server.join("f")).unwrap(), "one TWO");
    fs::create_dir_all(m.join("d/e")).unwrap();
    fs::rename(m.join("f"), m.join("d/g")).unwrap();
    fs::rename(m.join("d"), m.join("h")).unwrap();
    assert_eq!(fs::read_to_string(at_server.join("h/g")).unwrap(), "one TWO");
    assert_eq!(fs::remove_dir(m.join("h")).unwrap_err().raw_os_error(), Some(39));
    fs::write(m.join("new"), "over").unwrap();
    fs::rename(m.join("new"), m.join("h/g")).unwrap();
    assert_eq!(fs::read_to_string(at_server.join("h/g")).unwrap(), "over");
    // A program that is still reading a file when that is removed goes on.
    let mut open = File::open(m.join("h/g")).unwrap();
    fs::remove_file(m.join("h/g")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    drop(open);
    assert_eq!(text, "over");
    fs::remove_dir_all(m.join("h")).unwrap();
    far.place.run(&["umount", "m"]).ok();
    assert_eq!(fs::read_dir(at_server).unwrap().count(), 0);
}

#[test]
fn what_another_client_changes_while_a_file_is_open_is_not_replaced() {
    let Some(far) = Far::new() else { return };
    far.by_others("f", "before");
    far.mount(&[]);
    let mut file = File::options().append(true).open(far.place.at("m/f")).unwrap();
    file.write_all(b" ours").unwrap();
    far.by_others("f", "of another client");
    assert!(file.sync_all().is_err());
    drop(file);
    assert_eq!(fs::read_to_string(far.server.root().join("f")).unwrap(), "of another client");
}

#[test]
fn a_mount_survives_the_death_of_its_process_and_of_its_server() {
    let Some(mut far) = Far::new() else { return };
    far.mount(&[]);
    let mut file = File::create(far.place.at("m/f")).unwrap();
    file.write_all(b"before, ").unwrap();
    kill_server(&far.place, "KILL");
    file.write_all(b"after").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(far.server.root().join("f")).unwrap(), b"before, after");
    far.server.stop();
    far.server.start().unwrap();
    file.write_all(b", again").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(far.place.at("m/f")).unwrap(), b"before, after, again");
}

/// A file that is written several times is stored once, and at once when it is synchronised, its mount ends or its process dies.
#[test]
fn with_a_write_delay_a_file_is_stored_once() {
    let Some(far) = Far::new() else { return };
    let puts = |name: &str| {
        let start = format!("PUT /{name} ");
        far.server.requests().iter().filter(|asked| asked.starts_with(&start)).count()
    };
    let (m, at_server) = (far.place.at("m"), far.server.root());
    far.mount(&["-o", "write=3600"]);
    let write = |name: &str| {
        for text in ["one", "two", "three"] {
            fs::write(m.join(name), text).unwrap();
            assert_eq!(fs::read_to_string(m.join(name)).unwrap(), text);
        }
        assert_eq!(fs::metadata(m.join(name)).unwrap().len(), 5);
    };
    for name in ["synchronised", "renamed", "orphan", "gone", "left"] {
        write(name);
    }
    assert_eq!(fs::read_dir(&at_server).unwrap().count(), 0);
    File::open(m.join("synchronised")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read_to_string(at_server.join("synchronised")).unwrap(), "three");
    fs::rename(m.join("renamed"), m.join("new")).unwrap();
    assert_eq!(fs::read_to_string(at_server.join("new")).unwrap(), "three");
    fs::remove_file(m.join("gone")).unwrap();
    assert_eq!(fs::read_dir(&at_server).unwrap().count(), 2);
    kill_server(&far.place, "KILL");
    // The next process takes over with the first request.
    within("it is stored", || {
        fs::metadata(&m).unwrap();
        fs::read(at_server.join("orphan")).is_ok_and(|content| content == b"three")
    });
    write("last");
    far.place.run(&["umount", "m"]).ok();
    for name in ["left", "last"] {
        assert_eq!(fs::read_to_string(at_server.join(name)).unwrap(), "three");
    }
    for (name, count) in [("synchronised", 1), ("renamed", 1), ("gone", 0), ("orphan", 1), ("last", 1)] {
        assert_eq!(puts(name), count, "{name}");
    }
}

/// What is still to be stored, and cannot be, is named: once by `flush --wait`, and by `status` until a program gets the error.
#[test]
fn a_file_that_cannot_be_stored_at_last_is_named() {
    let Some(far) = Far::new() else { return };
    far.mount(&["-o", "write=3600"]);
    let status = || far.place.run(&["status", "m"]).ok();
    fs::write(far.place.at("m/f"), "ours").unwrap();
    assert!(status().contains("1 file left to write"), "{}", status());
    far.by_others("f", "of another client");
    let refused = far.place.run(&["flush", "--wait", "m"]).refused(1);
    assert!(refused.contains("/f"), "{refused}");
    far.place.run(&["flush", "--wait", "m"]).ok();
    assert!(status().contains("not complete: /f ("), "{}", status());
    fs::write(far.place.at("m/g"), "ours").unwrap();
    far.by_others("g", "of another client");
    let refused = far.place.run(&["flush", "--wait", "m"]).refused(1);
    assert!(refused.contains("/g") && !refused.contains("/f"), "{refused}");
    assert_eq!(fs::read_to_string(far.server.root().join("f")).unwrap(), "of another client");
    far.place.file("d/f", "");
    fs::create_dir(far.place.at("n")).unwrap();
    let refused = far.place.run(&["mount", "--layer", "cache=write=30", "d", "n"]).refused(1);
    assert!(refused.contains("write=SECONDS") && refused.contains("write=behind"), "{refused}");
}

#[test]
fn a_program_sees_hosts_by_their_scheme() {
    let Some(far) = Far::new() else { return };
    far.by_others("f", "content\n");
    let path = format!("/dav/127.0.0.1:{}", far.server.port());
    let command = format!("cat {path}/f && echo new > {path}/new");
    assert_eq!(far.place.run(&["run", "--", "sh", "-c", &command]).ok(), "content\n");
    assert_eq!(fs::read_to_string(far.server.root().join("new")).unwrap(), "new\n");
}

/// No program has to look at what close(2) answers, and one that ends gets no answer.
#[test]
fn content_that_the_server_refuses_when_a_program_closes_it_is_named_in_the_end() {
    let Some(far) = Far::new() else { return };
    if !has("python3") {
        return;
    }
    let path = format!("/dav/127.0.0.1:{}/f", far.server.port());
    let own = far.server.root().join("f");
    let run = |then: &str| {
        far.by_others("f", "one\n");
        let text = format!(
            "import os\nf = os.open('{path}', os.O_WRONLY | os.O_APPEND)\nos.write(f, b'mine')
open('{}', 'w').write('of another client')\ntry: {then}\nexcept OSError: pass",
            own.display()
        );
        far.place.run(&["run", "--via", "namespace", "--", "python3", "-c", &text])
    };
    for then in ["os.close(f)", "os._exit(0)"] {
        let said = run(then);
        assert!(said.code == Some(125) && said.err.contains("/f is lost"), "{then}: {said:?}");
        assert_eq!(fs::read_to_string(&own).unwrap(), "of another client", "{then}");
    }
    run(&format!("os.close(f)\nexcept OSError: open('{path}', 'w').write('again')\ntry: pass")).ok();
    assert_eq!(fs::read_to_string(&own).unwrap(), "again");
}

/// As Apache with `<Location /dav>`: the root of the host refuses PROPFIND.
#[test]
fn a_program_sees_a_directory_with_webdav_below_a_root_without() {
    if !can_mount() {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let path = format!("/dav/{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Clients may have gone.
            std::thread::spawn(move || answer_below_dav(stream));
        }
    });
    let place = Place::new();
    assert_eq!(place.run(&["run", "--", "cat", &format!("{path}/dav/f")]).ok(), "content\n");
    let refused = place.run(&["run", "--", "ls", &path]).refused(2);
    assert!(refused.contains("not supported"), "{refused}");
}

/// Answers requests to a server that has WebDAV in `/dav` only, where the file `f` is.
fn answer_below_dav(mut stream: std::net::TcpStream) -> Option<()> {
    let mut from = BufReader::new(stream.try_clone().ok()?);
    loop {
        let head: Vec<String> =
            from.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        from.read_exact(&mut vec![0; length.unwrap_or(0)]).ok()?;
        let asked = head.first()?.rsplit_once(' ')?.0;
        let told = |href: &str, what: &str| {
            let all = "<d:multistatus xmlns:d=\"DAV:\"><d:response><d:href>HREF</d:href><d:propstat><d:prop>WHAT</d:prop><d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response></d:multistatus>";
            ("207 Multi-Status", all.replace("HREF", href).replace("WHAT", what))
        };
        let (status, body) = match asked {
            "PROPFIND /dav" | "PROPFIND /dav/" => {
                told("/dav/", "<d:resourcetype><d:collection/></d:resourcetype>")
            }
            "PROPFIND /dav/f" => told(
                "/dav/f",
                "<d:resourcetype/><d:getcontentlength>8</d:getcontentlength><d:getetag>\"1\"</d:getetag>",
            ),
            "GET /dav/f" => ("206 Part\r\nContent-Range: bytes 0-7/8\r\nETag: \"1\"", "content\n".to_owned()),
            _ => ("405 Method Not Allowed", String::new()),
        };
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// Content that was cached a moment ago is not worked on when another client has replaced it.
#[test]
fn a_file_is_asked_about_when_it_is_opened() {
    let Some(far) = Far::new() else { return };
    far.by_others("f", "1111");
    far.mount(&[]);
    assert_eq!(fs::read(far.place.at("m/f")).unwrap(), b"1111");
    far.by_others("f", "2222");
    let file = File::options().read(true).write(true).open(far.place.at("m/f")).unwrap();
    let mut content = [0; 4];
    file.read_exact_at(&mut content, 0).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    drop(file);
    assert_eq!((&content, &fs::read(far.server.root().join("f")).unwrap()[..]), (b"2222", &b"x222"[..]));
}

#[test]
fn programs_that_set_the_permissions_there_are_work() {
    let Some(far) = Far::new() else { return };
    far.mount(&[]);
    let script = "git init -q m/g; cd m/g; echo one >f; git add f; touch new
        git -c user.name=Someone -c user.email=someone@example.org commit -qm one; git fsck --strict; git status --porcelain
        if chmod 600 f 2>/dev/null; then exit 1; fi; sed -i s/one/two/ f; mv new f; test ! -s f";
    assert_eq!(far.place.run_as("sh", &["-ec", script]).ok(), "?? new\n");
    far.place.run(&["umount", "m"]).ok();
    far.mount(&["-o", "attrs=ignore"]);
    let script = "echo one >f; chmod 700 f; touch -d 2001-01-01 f; cp -p f m/kept; chmod 600 m/kept; tar cf a.tar f; tar xf a.tar -C m
        cat m/kept m/f; stat -c %a m/kept";
    assert_eq!(far.place.run_as("sh", &["-ec", script]).ok(), "one\none\n644\n");
    for text in ["A", "B"] {
        let mut command = far.place.command(support::PROGRAM, &["write", &far.at("/w")]);
        let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(fs::read_to_string(far.server.root().join("w")).unwrap(), text);
    }
}

/// A server whose root is of no use: it is asked about before anything is mounted.
#[test]
fn what_cannot_be_used_is_not_mounted() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    for (status, why) in [("401 Unauthorized", "401"), ("405 Method Not Allowed", "no WebDAV")] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let location = format!("dav://bob:wrong@{}/", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // Clients may have gone.
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(
                    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes(),
                );
            }
        });
        let refused = place.run(&["mount", &location, "m"]).refused(1);
        assert!(refused.contains(why) && !place.is_mounted(), "{refused}");
    }
}

/// Each line is made by a descriptor of its own. A time that changes without a reason would keep an editor from saving.
#[test]
fn a_file_that_was_stored_keeps_its_time_and_is_stored_again() {
    let Some(far) = Far::new() else { return };
    let root = format!("/dav/127.0.0.1:{}", far.server.port());
    for via in ["namespace", "seccomp", "ptrace"] {
        let file = format!("{root}/{via}");
        let script = "echo 1 >\"$0\" && stat -c %y \"$0\" && cat \"$0\" && stat -c %y \"$0\" && echo 2 >>\"$0\" && echo 3 >>\"$0\"";
        let said = far.place.run(&["run", "--via", via, "--", "sh", "-c", script, &file]).ok();
        let [first, "1", second] = said.lines().collect::<Vec<_>>()[..] else { panic!("{via}: {said}") };
        assert_eq!(first, second, "{via}");
        assert_eq!(fs::read_to_string(far.server.root().join(via)).unwrap(), "1\n2\n3\n", "{via}");
    }
}
