// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger run --urls`: programs to which URLs are names of files.

mod support;

use outrigger_remote::{FtpServer, Ftpd, HOST, HttpServer, Httpd, Sshd};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use support::{PROGRAM, Place, Said, has};

/// Whether a server can be started; says so when not.
fn can(missing: Option<&str>) -> bool {
    if let Some(missing) = missing {
        assert!(std::env::var_os("CI").is_none(), "{missing} must be here");
        eprintln!("SKIPPED: there is no {missing}");
    }
    missing.is_none()
}

/// A web server, and a place beside it.
fn http() -> Option<(Place, HttpServer)> {
    if !can(Httpd::Nginx.missing()) {
        return None;
    }
    let place = Place::new();
    fs::create_dir(place.at("httpd")).unwrap();
    fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
    let server = Httpd::Nginx.start(&place.at("httpd")).unwrap();
    fs::create_dir_all(server.root().join("d d/deep")).unwrap();
    fs::write(server.root().join("d d/one"), "one\n").unwrap();
    fs::write(server.root().join("d d/deep/two"), "two\n").unwrap();
    Some((place, server))
}

/// A host that SSH reaches, and a place beside it with a directory `far`.
struct Far {
    place: Place,
    sshd: Sshd,
    url: String,
}

impl Far {
    fn new() -> Option<Self> {
        if !can(Sshd::missing()) {
            return None;
        }
        let place = Place::new().trusting();
        fs::create_dir(place.at("sshd")).unwrap();
        place.file("far/sub/file", "far\n");
        let sshd = Sshd::start(place.at("sshd")).unwrap();
        let url = format!("sftp://{HOST}{}", place.at("far").display());
        Some(Far { place, sshd, url })
    }

    /// Runs a script, in which `$U` is the URL of the directory.
    fn script(&self, shell: &str, script: &str) -> Said {
        let option = format!("F={}", self.sshd.configuration().display());
        let url = format!("U={}", self.url);
        self.place.run(&["run", "--opt", &option, "--urls", "env", &url, shell, "-ec", script])
    }
}

fn run(place: &Place, words: &[&str]) -> Said {
    place.run(&[&["run", "--urls"], words].concat())
}

#[test]
fn web_pages_are_read_by_their_urls() {
    let Some((place, server)) = http() else { return };
    let host = format!("127.0.0.1:{}", server.port());
    let urls = [
        format!("http://{host}/d%20d/one"),
        format!("http:/{host}/d%20d/one"),
        format!("HTTP://{host}/d d/deep/../one"),
        format!("{}/http://{host}/d%20d/one", place.at("").display()),
    ];
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    assert_eq!(run(&place, &[&["cat"], &urls[..]].concat()).ok(), "one\n".repeat(4));
    let dir = format!("http://{host}/d%20d");
    let found = run(&place, &["find", &dir]).ok();
    let mut found: Vec<_> = found.lines().map(|line| line.strip_prefix(&dir).unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, ["", "/deep", "/deep/two", "/one"]);
    assert_eq!(run(&place, &["grep", "-rl", "o", &dir]).ok().lines().count(), 2);
    assert_eq!(run(&place, &["cp", "-r", &dir, "copy"]).code, Some(0));
    place.run_as("diff", &["-r", "httpd/root/d d", "copy"]).ok();
    let none = run(&place, &["cat", &format!("{dir}/none"), &format!("{dir}/one?y=z")]);
    assert_eq!((none.code, none.err.matches("No such file").count()), (Some(1), 2), "{none:?}");
    let written = run(&place, &["sh", "-c", &format!("echo x >{dir}/new")]);
    assert!(written.err.contains("Read-only"), "{written:?}");
}

#[test]
fn files_of_hosts_are_changed_by_their_urls() {
    let Some(far) = Far::new() else { return };
    let work = "cp $U/sub/file here; echo new >$U/new; mv $U/new $U/sub/moved; ln -s moved $U/sub/link; readlink $U/sub/link; \
        mkdir $U/dir; mv here $U/dir/back; rm $U/sub/file; ls $U $U/sub; cat sftp:/${U#sftp://}/sub/link; printf '#!/bin/sh -e\\necho ran $0\\n' >$U/program; \
        chmod 755 $U/program; $U/program";
    let said = far.script("bash", work);
    let url = &far.url;
    assert_eq!(
        said.ok(),
        format!("moved\n{url}:\ndir\nsub\n\n{url}/sub:\nlink\nmoved\nnew\nran {url}/program\n")
    );
    assert_eq!(fs::read_to_string(far.place.at("far/dir/back")).unwrap(), "far\n");
    assert!(!far.place.at("here").exists() && !far.place.at("sftp:").exists());
    if !has("vim.tiny") {
        return;
    }
    far.script("sh", "HOME=/nonexistent vim.tiny -u NONE -N -es -c %s/far/near/ -c wq $U/dir/back").ok();
    assert_eq!(fs::read_to_string(far.place.at("far/dir/back")).unwrap(), "near\n");
}

/// `cp -r` appends listed names to the URL: these are not percent-encoded, and must not be decoded.
#[test]
fn percent_signs_in_names_that_a_web_server_has_are_themselves() {
    let Some((place, server)) = http() else { return };
    let dir = server.root().join("d d");
    fs::write(dir.join("ab"), "decoded\n").unwrap();
    fs::write(dir.join("a%62"), "as written\n").unwrap();
    run(&place, &["cp", "-r", &format!("http://127.0.0.1:{}/d%20d", server.port()), "copy"]).ok();
    place.run_as("diff", &["-r", "httpd/root/d d", "copy"]).ok();
}

/// The same of a host where files can be made.
#[test]
fn percent_signs_in_names_that_can_be_made_are_themselves() {
    let Some(far) = Far::new() else { return };
    far.place.file("from/a b", "blank\n");
    far.place.file("from/a%20b", "percent\n");
    far.script("sh", "cp -r from $U/to; cp -r $U/to back").ok();
    for copy in ["far/to", "back"] {
        far.place.run_as("diff", &["-r", "from", copy]).ok();
    }
}

#[test]
fn directories_are_entered_by_their_urls() {
    let Some(far) = Far::new() else { return };
    let dir = format!("/sftp/{HOST}{}", far.place.at("far").display());
    for shell in ["bash", "dash"] {
        if !has(shell) {
            continue;
        }
        let script = format!(
            "cd $U/sub; pwd -P; readlink /proc/self/cwd; cat file ../sub/file; cat $U/sub/file; cd ..; pwd -P; ls; cat {}",
            far.place.file("local", "local\n").display()
        );
        assert_eq!(
            far.script(shell, &script).ok(),
            format!("{dir}/sub\n{dir}/sub\nfar\nfar\nfar\n{dir}\nsub\nlocal\n"),
            "{shell}"
        );
    }
}

#[test]
fn local_names_win_and_are_not_made_by_chance() {
    let Some(far) = Far::new() else { return };
    let refused = far.script("sh", "mkdir -p $U/x/y");
    assert!(refused.code != Some(0) && refused.err.contains("'sftp:'"), "{refused:?}");
    assert_eq!(fs::read_dir(far.place.at("far")).unwrap().count(), 1);
    let beside = far.script("sh", "cat other/$U/sub/file");
    assert!(beside.err.contains("No such file"), "a directory that is missing: {beside:?}");
    let local = format!("work/sftp:/{}/sub/file", &far.url["sftp://".len()..]);
    far.place.file(&local, "here\n");
    let said = far.script("bash", "cd work; cat $U/sub/file; cd ..; cat $U/sub/file");
    assert_eq!(said.ok(), "here\nfar\n");
    // Where a LOCATION would name that file, there is no host, and never the file.
    far.place.file(local.strip_prefix("work/").unwrap(), "here\n");
    let elsewhere = far.script("sh", "cd /; cat $U/sub/file");
    assert!(elsewhere.code != Some(0) && elsewhere.out.is_empty(), "{elsewhere:?}");
}

#[test]
fn dots_in_urls_lead_nowhere_above_the_host() {
    let Some((place, server)) = http() else { return };
    place.file("local", "local\n");
    let (host, local) = (format!("http://127.0.0.1:{}", server.port()), place.at("local"));
    let above = format!("{host}/../..{}", local.display());
    assert!(run(&place, &["cat", &above]).err.contains("No such file"));
    assert_eq!(run(&place, &["rm", "-f", &above]).ok(), "");
    assert_eq!(fs::read_to_string(local).unwrap(), "local\n");
    assert_eq!(run(&place, &["cat", &format!("{host}/../d%20d/deep/../../../d d/one")]).ok(), "one\n");
}

#[test]
fn passwords_in_urls_are_refused_with_a_reason() {
    let Some(far) = Far::new() else { return };
    let said = run(&far.place, &["cat", "ftp://me:secret@127.0.0.1/x", "ftp://me:secret@127.0.0.1/y"]);
    assert_eq!((said.code, said.err.matches("Permission denied").count()), (Some(1), 2), "{said:?}");
    assert_eq!(said.err.matches("outrigger run: a URL with a password").count(), 1, "{said:?}");
}

#[test]
fn ftp_servers_are_read_and_written_by_their_urls() {
    if !can(Ftpd::Vsftpd.missing()) {
        return;
    }
    let place = Place::new();
    fs::set_permissions(place.at(""), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(place.at("ftpd")).unwrap();
    let server: FtpServer = Ftpd::Vsftpd.start(&place.at("ftpd")).unwrap();
    let login = server.place(server.port());
    let (user, host) = login.rsplit_once('@').unwrap();
    let (user, password) = user.split_once(':').unwrap();
    let name = host.split(':').next().unwrap();
    let netrc = place.file("netrc", format!("machine {name} login {user} password {password}\n"));
    fs::set_permissions(&netrc, Permissions::from_mode(0o600)).unwrap();
    let script = format!("echo new >ftp://{user}@{host}/new; cp ftp://{user}@{host}/new copy");
    let option = format!("netrc={}", netrc.display());
    place.run(&["run", "--opt", &option, "--urls", "sh", "-ec", &script]).ok();
    assert_eq!(fs::read_to_string(place.at("copy")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(place.at("ftpd/root/new")).unwrap(), "new\n");
}

#[test]
fn urls_are_names_of_files_only_where_that_was_asked_for() {
    let Some((place, server)) = http() else { return };
    let url = format!("http://127.0.0.1:{}/d%20d/one", server.port());
    let said = place.run(&["run", "--via", "seccomp", "cat", &url]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("No such file"), "{said:?}");
    let namespace = place.run(&["run", "--urls", "--via", "namespace", "cat", &url]).refused(125);
    assert!(namespace.contains("--via seccomp"), "{namespace}");
    assert_eq!(place.run(&["run", "--urls", "--no-hosts", "cat", &url]).code, Some(125));
    assert_eq!(place.run(&["run", "--urls", "--cow", "cat", &url]).code, Some(125));
    assert_eq!(place.run(&["run", "--urls", "--map", "/http=httpd", "cat", &url]).code, Some(1));
}

#[test]
fn a_program_that_runs_finds_urls() {
    let Some((place, server)) = http() else { return };
    let script = format!("read line; cat http://127.0.0.1:{}/d%20d/one", server.port());
    let mut program = place.command("sh", &["-c", &script]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut attach = place.command(PROGRAM, &["attach", "--urls", &program.id().to_string()]);
    let mut server = attach.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("attached to 'sh'"), "{said}");
    program.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(program.wait_with_output().unwrap().stdout, b"one\n");
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// Those that look whether there is a file of that name, as git does, are not to be run with `--urls`.
#[test]
fn programs_that_take_urls_themselves_go_on_to_do_so() {
    let Some((place, server)) = http() else { return };
    let url = format!("http://127.0.0.1:{}", server.port());
    let repository = format!("{url}/repo.git");
    if has("curl") {
        assert_eq!(run(&place, &["curl", "-s", &format!("{url}/d%20d/one")]).ok(), "one\n");
    }
    if !has("git") {
        return;
    }
    let git = "git -c user.name=a -c user.email=a@b";
    let make = format!(
        "{git} init -q repo; echo one >repo/one; {git} -C repo add .; {git} -C repo commit -qm one; \
         {git} clone -q --bare repo httpd/root/repo.git; {git} -C httpd/root/repo.git update-server-info"
    );
    place.run_as("sh", &["-ec", &make]).ok();
    place.run(&["run", "--via", "seccomp", "git", "clone", "-q", &repository, "copy"]).ok();
    assert_eq!(fs::read_to_string(place.at("copy/one")).unwrap(), "one\n");
}
