// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve wire` by TCP, where both sides show certificates, and `wire://`.

mod support;

use outrigger_remote::Authority;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use support::{PROGRAM, Place, Said, can_mount, has, is_running, kill_server, signal, within};

/// A server whose clients connect by TCP, and a place beside it, whose directory `far` is the tree.
struct Far {
    place: Place,
    authority: Authority,
    port: u16,
    serving: Serving,
}

/// The process of a server, ended with the test.
struct Serving {
    process: Child,
    said: Arc<Mutex<String>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Serving {
    /// Waits until the server has said this.
    fn says(&self, part: &str) {
        within(&format!("the server says '{part}', and not: {}", self.said.lock().unwrap()), || {
            self.said.lock().unwrap().contains(part)
        });
    }
}

/// A place with an authority, which has certified the server, for `localhost`, and the client alice.
fn place() -> Option<(Place, Authority)> {
    if !has("openssl") {
        return None;
    }
    let place = Place::new();
    for name in ["far", "certs", "other"] {
        fs::create_dir(place.at(name)).unwrap();
    }
    let authority = Authority::new(&place.at("certs"), "authority").unwrap();
    authority.certify("server", "DNS:localhost").unwrap();
    authority.certify("alice", "DNS:alice.example").unwrap();
    Some((place, authority))
}

/// Starts a server with these options, and the certificate `cert`, at a port; the port that it listens at.
fn serve(
    place: &Place,
    authority: &Authority,
    (cert, port): (&str, u16),
    options: &[&str],
) -> (Serving, u16) {
    let [pem, key, ca] =
        [&format!("{cert}.pem"), &format!("{cert}.key"), "ca.pem"].map(|name| authority.file(name));
    let listen = format!("127.0.0.1:{port}");
    let files = ["--tls-cert", &pem, "--tls-key", &key, "--tls-client-ca", &ca];
    let words = [&["serve", "wire", "--listen", &listen], &files[..], options, &["far"]].concat();
    let mut command = place.command(PROGRAM, &words);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let said = Arc::new(Mutex::new(String::new()));
    let (errors, hears) = (BufReader::new(process.stderr.take().unwrap()), Arc::clone(&said));
    thread::spawn(move || {
        for line in errors.lines().map_while(Result::ok) {
            hears.lock().unwrap().push_str(&format!("{line}\n"));
        }
    });
    let port = line.strip_prefix("127.0.0.1:").and_then(|rest| rest.split(' ').next()?.parse().ok());
    (Serving { process, said }, port.unwrap_or_else(|| panic!("{line:?}")))
}

impl Far {
    fn new(options: &[&str]) -> Option<Self> {
        Far::with_certificate("server", options, |_| {})
    }

    /// One that shows the certificate `cert`, which `make` may make.
    fn with_certificate(cert: &str, options: &[&str], make: impl Fn(&Authority)) -> Option<Self> {
        let (place, authority) = place()?;
        make(&authority);
        let (serving, port) = serve(&place, &authority, (cert, 0), options);
        Some(Far { place, authority, port, serving })
    }

    fn location(&self, path: &str) -> String {
        format!("wire://localhost:{}{path}", self.port)
    }

    /// The options of a client that shows the certificate `name`.
    fn options(&self, name: &str) -> String {
        let [cert, key, ca] =
            [&format!("{name}.pem"), &format!("{name}.key"), "ca.pem"].map(|file| self.authority.file(file));
        format!("cert={cert},key={key},ca={ca}")
    }

    fn run(&self, args: &[&str]) -> Said {
        self.run_with(&self.options("alice"), args)
    }

    fn run_with(&self, options: &str, args: &[&str]) -> Said {
        self.place.run(&[&["--opt", options][..], args].concat())
    }

    fn mount(&self, at: &str) {
        fs::create_dir_all(self.place.at(at)).unwrap();
        self.place.run(&["mount", "-o", &self.options("alice"), &self.location("/"), at]).ok();
    }
}

#[test]
fn who_shows_a_certificate_lists_reads_and_writes_and_is_named_in_the_log() {
    let Some(far) = Far::new(&["--allow-client", "bob", "--allow-client", "ALICE.example"]) else { return };
    let large: Vec<u8> = (0..800_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    far.place.file("tree/d/large", &large);
    far.place.file("tree/small", "small");
    far.run(&["cp", "-r", "tree", &far.location("/copy")]).ok();
    assert!(fs::read(far.place.at("far/copy/d/large")).unwrap() == large);
    far.run(&["cp", "-r", &far.location("/copy"), "back"]).ok();
    assert!(fs::read(far.place.at("back/d/large")).unwrap() == large);
    let listed = far.run(&["ls", "-R", &far.location("/")]).ok();
    assert!(listed.contains("large") && listed.contains("small"), "{listed}");
    far.run(&["rm", "-r", &far.location("/copy")]).ok();
    assert!(!far.place.at("far/copy").exists());
    far.serving.says("alice.example at 127.0.0.1:");
    far.serving.says("is gone");
}

#[test]
fn a_client_in_the_file_of_authorities_needs_no_other_one_and_its_key_may_be_in_the_same_file() {
    let Some((place, authority)) = place() else { return };
    let own = outrigger_remote::own_certificate(&place.at("other/key"), &place.at("other/pem"));
    own.unwrap();
    let both = [fs::read(place.at("other/pem")).unwrap(), fs::read(place.at("other/key")).unwrap()].concat();
    let both = place.file("other/both", both);
    fs::set_permissions(&both, PermissionsExt::from_mode(0o600)).unwrap();
    let all =
        [fs::read(authority.file("ca.pem")).unwrap(), fs::read(place.at("other/pem")).unwrap()].concat();
    fs::write(authority.file("ca.pem"), all).unwrap();
    let (serving, port) = serve(&place, &authority, ("server", 0), &["--read-only"]);
    let far = Far { place, authority, port, serving };
    let options = format!("cert={},ca={}", both.display(), far.authority.file("server.pem"));
    far.place.file("far/f", "content");
    assert_eq!(far.run_with(&options, &["cat", &far.location("/f")]).ok(), "content");
    let said = far.run_with(&options, &["rm", &far.location("/f")]).refused(1);
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn clients_see_what_the_others_change() {
    let Some(far) = Far::new(&[]).filter(|_| can_mount()) else { return };
    far.place.file("far/f", "first");
    far.mount("a");
    far.mount("b");
    let read = |name: &str| fs::read_to_string(far.place.at(name)).unwrap_or_default();
    assert_eq!((read("a/f"), read("b/f")), ("first".into(), "first".into()));
    fs::write(far.place.at("a/f"), "second").unwrap();
    within("the other mount sees it", || read("b/f") == "second");
    assert_eq!(read("far/f"), "second");
    far.place.run(&["umount", "a", "b"]).ok();
}

#[test]
fn a_mount_goes_on_when_its_process_is_killed_and_when_the_server_is_started_again() {
    let Some(mut far) = Far::new(&[]).filter(|_| can_mount()) else { return };
    far.place.file("far/f", "content");
    far.mount("m");
    let file = fs::File::open(far.place.at("m/f")).unwrap();
    kill_server(&far.place, "KILL");
    assert_eq!(std::io::read_to_string(&file).unwrap(), "content");
    far.serving.says("is gone");
    signal(far.serving.process.id(), "KILL");
    far.serving.process.wait().unwrap();
    (far.serving, _) = serve(&far.place, &far.authority, ("server", far.port), &[]);
    fs::write(far.place.at("m/g"), "more").unwrap();
    assert_eq!(fs::read_to_string(far.place.at("far/g")).unwrap(), "more");
    drop(file);
    far.place.run(&["umount", "m"]).ok();
}

#[test]
fn a_client_that_is_not_let_in_and_the_server_both_say_why() {
    let other = |far: &Far| {
        let authority = Authority::new(&far.place.at("other"), "another authority").unwrap();
        authority.certify("mallory", "DNS:mallory.example").unwrap();
        format!(
            "cert={},key={},ca={}",
            authority.file("mallory.pem"),
            authority.file("mallory.key"),
            far.authority.file("ca.pem")
        )
    };
    let expired = |far: &Far| {
        far.authority.certify_expired("late", "DNS:late.example").unwrap();
        far.options("late")
    };
    let allowed: &[&str] = &["--allow-client", "bob"];
    type Options<'a> = &'a dyn Fn(&Far) -> String;
    let cases: [(&[&str], Options<'_>, &str, &str); 4] = [
        (&[], &other, "does not know who has signed the certificate in", "is none of those in"),
        (&[], &expired, "has expired", "its certificate is not taken: certificate expired"),
        (&[], &|far| format!("ca={}", far.authority.file("ca.pem")), "cert=FILE", "it shows no certificate"),
        (
            allowed,
            &|far| far.options("alice"),
            "it may let in other clients only",
            "for alice.example, alice, whom no --allow-client names",
        ),
    ];
    for (options, client, here, there) in cases {
        let Some(far) = Far::new(options) else { return };
        let said = far.run_with(&client(&far), &["ls", &far.location("/")]).refused(2);
        assert!(said.contains(here) && said.contains(&far.location("/")), "{said}");
        far.serving.says("127.0.0.1:");
        far.serving.says(there);
    }
}

#[test]
fn a_server_that_is_not_believed_and_the_client_both_say_why() {
    let another = |authority: &Authority| authority.certify("another", "DNS:another.example").unwrap();
    let late = |authority: &Authority| authority.certify_expired("late", "DNS:localhost").unwrap();
    let none = |_: &Authority| {};
    type Make<'a> = &'a dyn Fn(&Authority);
    let cases: [(&str, Make<'_>, bool, &str); 4] = [
        ("another", &another, true, "another.example"),
        ("late", &late, true, "certificate expired"),
        ("server", &none, false, "none of the certificates in ca=FILE"),
        ("server", &none, true, ""),
    ];
    for (cert, make, is_known, why) in cases {
        let Some(far) = Far::with_certificate(cert, &[], make) else { return };
        let options = match is_known {
            true => far.options("alice"),
            false => {
                let other = Authority::new(&far.place.at("other"), "another authority").unwrap();
                far.options("alice").replace(&far.authority.file("ca.pem"), &other.file("ca.pem"))
            }
        };
        let listed = far.run_with(&options, &["ls", &far.location("/")]);
        if why.is_empty() {
            listed.ok();
            continue;
        }
        let said = listed.refused(2);
        assert!(said.contains(why) && said.contains("TLS with localhost"), "{said}");
        far.serving.says("it does not take the certificate in");
    }
}

#[test]
fn what_is_no_tls_is_refused_on_both_sides() {
    let Some(far) = Far::new(&[]) else { return };
    let mut plain = TcpStream::connect(("127.0.0.1", far.port)).unwrap();
    plain.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    plain.read_to_end(&mut Vec::new()).unwrap();
    far.serving.says("what it sends is no TLS");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let location = format!("wire://localhost:{}/", listener.local_addr().unwrap().port());
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 hello\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let said = far.run(&["ls", &location]).refused(2);
    assert!(said.contains("what the server sends is no TLS"), "{said}");
    answering.join().unwrap();
}

#[test]
fn strangers_who_say_nothing_make_room_for_clients() {
    let Some(far) = Far::new(&[]) else { return };
    let connect = |_| TcpStream::connect(("127.0.0.1", far.port)).unwrap();
    let mut silent: Vec<TcpStream> = (0..200).map(connect).collect();
    far.run(&["ls", &far.location("/")]).ok();
    far.serving.says("it did not show who it is, and others wait");
    // The first of them are gone before their time is over.
    for stream in &mut silent[..100] {
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
    let descriptors = fs::read_dir(format!("/proc/{}/fd", far.serving.process.id())).unwrap().count();
    assert!(descriptors < 150, "{descriptors}");
    assert!(is_running(far.serving.process.id()));
}

#[test]
fn certificates_are_read_again_when_they_were_changed() {
    let Some(far) = Far::new(&[]) else { return };
    far.run(&["ls", &far.location("/")]).ok();
    let new = Authority::new(&far.place.at("other"), "authority").unwrap();
    new.certify("server", "DNS:localhost").unwrap();
    for name in ["server.key", "server.pem"] {
        // Those between are not of one kind: what was read before is shown.
        far.run(&["ls", &far.location("/")]).ok();
        fs::rename(new.file(name), far.authority.file(name)).unwrap();
    }
    let said = far.run(&["ls", &far.location("/")]).refused(2);
    assert!(said.contains("none of the certificates in ca=FILE"), "{said}");
    let options = far.options("alice").replace(&far.authority.file("ca.pem"), &new.file("ca.pem"));
    far.run_with(&options, &["ls", &far.location("/")]).ok();
    far.serving.says("is not the key of the certificate in");
    far.serving.says("read again");
    fs::copy(new.file("ca.pem"), far.authority.file("ca.pem")).unwrap();
    let said = far.run_with(&options, &["ls", &far.location("/")]).refused(2);
    assert!(said.contains("does not know who has signed"), "{said}");
}

#[test]
fn options_that_do_not_go_together_are_refused_with_what_is_needed() {
    let Some((place, authority)) = place() else { return };
    let [cert, key] = ["server.pem", "server.key"].map(|name| authority.file(name));
    let cases: [(&[&str], &str); 4] = [
        (
            &["--listen", "127.0.0.1:0"],
            "--tls-cert FILE and --tls-key FILE and --tls-client-ca FILE are missing",
        ),
        (
            &["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key],
            "--tls-client-ca FILE is missing",
        ),
        (&["--stdio", "--allow-client", "alice"], "--allow-client: it is for --listen ADDRESS:PORT"),
        (
            &["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", "none"],
            "none: No such file or directory",
        ),
    ];
    for (options, why) in cases {
        let said = place.run(&[&["serve", "wire"], options, &["far"]].concat()).refused(1);
        assert!(said.contains(why), "{said}");
    }
    fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    for (options, location, why) in [
        (format!("cert={cert},key={key}"), "wire://localhost:1/", "chmod 600"),
        (format!("key={key}"), "wire://localhost:1/", "cert=FILE"),
        (format!("cert={key}"), "wire://localhost:1/", "no certificate is in this file"),
        (format!("ca={cert}"), "wire:unix:/nowhere", "wire://HOST/ has"),
        (format!("ca={cert}"), "wire://alice@localhost/", "has no users"),
    ] {
        let said = place.run(&["--opt", &options, "ls", location]).refused(2);
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn the_certificates_that_the_manual_makes_let_a_client_in() {
    if !has("openssl") {
        return;
    }
    let manual = include_str!("../../../docs/SECURITY.md");
    let (_, recipe) = manual.split_once("### Certificates for `serve wire`").unwrap();
    let mut blocks = recipe.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let (made, used) = (blocks.next().unwrap(), blocks.next().unwrap());
    let place = Place::new();
    place.file("tree/in", "content");
    place.run_as("sh", &["-ec", made]).ok();
    let mut commands = used.lines();
    let words = commands.next().unwrap().strip_prefix("outrigger ").unwrap();
    let words = words.replace("0.0.0.0", "127.0.0.1:0").replace("/srv/tree", "tree");
    let mut command = place.command(PROGRAM, &words.split(' ').collect::<Vec<_>>());
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let (first, hint) = (lines.next().unwrap(), lines.next().unwrap());
    let _serving = Serving { process, said: Arc::default() };
    let address = first.split(' ').next().unwrap();
    let port = address.rsplit(':').next().unwrap();
    assert!(hint.contains("cert=FILE,key=FILE,ca=FILE"), "{hint}");
    let words = commands.next().unwrap().strip_prefix("outrigger ").unwrap();
    let words = words.replace("wire://HOST/", &format!("wire://localhost:{port}/"));
    assert_eq!(place.run(&words.split(' ').collect::<Vec<_>>()).ok(), "in\n");
    let refused = place.run(&["ls", "--opt", "ca=ca.pem", &format!("wire://localhost:{port}/")]);
    assert_ne!(refused.code, Some(0), "a client without a certificate");
}
