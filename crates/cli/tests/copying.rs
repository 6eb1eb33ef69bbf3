// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `cp`, `mv`, `rm` and `write` promise beyond GNU's: between trees, against planted links, when interrupted.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn outrigger(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrigger"));
    command.args(args).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    outrigger(dir, args).output().expect("outrigger starts")
}

fn succeeds(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn fails(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    assert!(!output.status.success(), "{args:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn script(dir: &Path, text: &str) {
    let status = Command::new("sh").args(["-ec", text]).current_dir(dir).status().expect("sh starts");
    assert!(status.success(), "{text}");
}

/// Every file with all that tar keeps of it.
fn listing(dir: &Path) -> String {
    let list = "find . -printf '%p %y %m %n %U:%G %s %T@ %l\\n' | sort | sed 's/ d \\([^ ]*\\) \\([^ ]*\\) \\([^ ]*\\) [0-9]* / d \\1 \\2 \\3 /'";
    let output = Command::new("sh").args(["-ec", list]).current_dir(dir).output().expect("sh starts");
    String::from_utf8(output.stdout).expect("names in ASCII")
}

const TREE: &str = r#"
mkdir -p a/s/deep; echo one >a/f; ln a/f a/s/hard; ln -s f a/l; mkfifo a/p; seq 100000 >a/numbers
truncate -s 3M a/sparse; echo end >>a/sparse; chmod 2755 a/s; chmod 4711 a/f; chmod 500 a/s/deep
touch -d '2001-02-03 04:05:06' a/f a/numbers a/sparse a/p a/s/deep a/s a; touch -h -d '2001-02-03 04:05:06' a/l
"#;

#[test]
fn an_archive_is_copied_with_everything() {
    let temp = TempDir::new().expect("a temporary directory");
    script(temp.path(), &format!("{TREE}\ntar cJf a.tar.xz a"));
    succeeds(temp.path(), &["cp", "-a", "a.tar.xz::/a", "copy"]);
    assert_eq!(listing(&temp.path().join("copy")), listing(&temp.path().join("a")));
    script(temp.path(), "for f in f numbers sparse; do cmp a/$f copy/$f; done; test copy/f -ef copy/s/hard");
    // The content of a tree goes into a new directory of any name.
    succeeds(temp.path(), &["cp", "-a", "a.tar.xz::", "whole"]);
    assert_eq!(listing(&temp.path().join("whole/a")), listing(&temp.path().join("a")));
    assert!(succeeds(temp.path(), &["diff", "-r", "--no-dereference", "a.tar.xz::/a/s", "a/s"]).is_empty());
}

#[test]
fn moving_out_of_a_read_only_tree_keeps_the_source() {
    let temp = TempDir::new().expect("a temporary directory");
    script(temp.path(), &format!("{TREE}\ntar cf a.tar a"));
    let message = fails(temp.path(), &["mv", "a.tar::/a/f", "f"]);
    assert!(message.contains("cannot remove 'a.tar::/a/f': Read-only file system"), "{message}");
    script(temp.path(), "cmp f a/f; tar tf a.tar a/f");
}

#[test]
fn holes_stay_holes() {
    let temp = TempDir::new().expect("a temporary directory");
    script(temp.path(), "truncate -s 64M sparse; echo end >>sparse; head -c 8M /dev/zero >zeroes");
    let blocks = |name: &str| fs::metadata(temp.path().join(name)).expect(name).blocks();
    if blocks("sparse") > 1024 {
        return println!("SKIPPED: the temporary directory has no holes");
    }
    for (arguments, name) in [
        (&["cp", "sparse", "auto"][..], "auto"),
        (&["cp", "--reflink=never", "sparse", "pumped"], "pumped"),
        (&["cp", "--sparse=always", "zeroes", "always"], "always"),
    ] {
        succeeds(temp.path(), arguments);
        assert!(blocks(name) < 1024, "{name} has {} blocks", blocks(name));
    }
    script(temp.path(), "cmp sparse auto; cmp sparse pumped; cmp zeroes always");
    succeeds(temp.path(), &["cp", "--sparse=never", "--reflink=never", "zeroes", "never"]);
    assert!(blocks("never") >= 16384);
}

/// As GNU's `cp -a` does; only root may set them.
/// The host's kernel declares a page for each file of sysfs, and nothing for those of procfs.
#[test]
fn what_the_host_makes_up_when_it_is_read_is_copied_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    for path in ["/sys/class/net/lo/mtu", "/proc/self/status"] {
        let declared = fs::metadata(path).unwrap().len();
        let copy = dir.path().join("copy");
        succeeds(dir.path(), &["cp", path, "copy"]);
        let copied = fs::read(&copy).unwrap();
        assert!(!copied.is_empty() && copied.len() as u64 != declared, "{path}");
        assert!(!succeeds(dir.path(), &["cat", path]).is_empty());
    }
}

#[test]
fn attributes_of_symbolic_links_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    symlink("target", dir.path().join("link")).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    if rustix::fs::lsetxattr(dir.path().join("link"), "trusted.name", b"value", none).is_err() {
        println!("SKIPPED: needs root and extended attributes");
        return;
    }
    succeeds(dir.path(), &["cp", "-a", "link", "copy"]);
    let mut value = [0_u8; 16];
    let length = rustix::fs::lgetxattr(dir.path().join("copy"), "trusted.name", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"value");
}

#[test]
fn a_planted_link_is_not_written_through() {
    let temp = TempDir::new().expect("a temporary directory");
    script(
        temp.path(),
        "mkdir -p src dst/src; echo new >src/f; echo secret >victim; ln -s ../../victim dst/src/f",
    );
    let message = fails(temp.path(), &["cp", "-r", "src", "dst"]);
    assert!(message.contains("not writing through symbolic link 'dst/src/f'"), "{message}");
    assert_eq!(fs::read_to_string(temp.path().join("victim")).expect("victim"), "secret\n");
    succeeds(temp.path(), &["cp", "-rf", "src", "dst"]);
    script(temp.path(), "cmp src/f dst/src/f; test ! -L dst/src/f; grep -q secret victim");
    // A directory is not entered through a link either.
    script(temp.path(), "mkdir -p src/d outside; touch src/d/x; ln -s ../../outside dst/src/d");
    let message = fails(temp.path(), &["cp", "-r", "src", "dst"]);
    assert!(
        message.contains("cannot overwrite non-directory 'dst/src/d' with directory 'src/d'"),
        "{message}"
    );
    script(temp.path(), "test ! -e outside/x");
}

#[test]
fn removal_does_not_follow_links() {
    let temp = TempDir::new().expect("a temporary directory");
    script(temp.path(), "mkdir -p keep/me doomed; touch keep/me/file; ln -s ../keep doomed/link");
    succeeds(temp.path(), &["rm", "-r", "doomed"]);
    assert!(temp.path().join("keep/me/file").exists() && !temp.path().join("doomed").exists());
}

#[test]
fn very_deep_trees_are_no_problem() {
    let temp = TempDir::new().expect("a temporary directory");
    let make = "mkdir deep; cd -P deep; i=0; while [ $i -lt 2000 ]; do mkdir d; cd -P d; i=$((i+1)); done; echo x >f";
    script(temp.path(), make);
    succeeds(temp.path(), &["cp", "-a", "deep", "copy"]);
    assert!(succeeds(temp.path(), &["diff", "-r", "deep", "copy"]).is_empty());
    // Fewer descriptors than directories.
    script(temp.path(), &format!("ulimit -n 1000; {} rm -r deep copy", env!("CARGO_BIN_EXE_outrigger")));
    assert_eq!(fs::read_dir(temp.path()).expect("a directory").count(), 0);
}

#[test]
fn many_files_arrive_side_by_side() {
    let temp = TempDir::new().expect("a temporary directory");
    let make = "for d in $(seq 20); do mkdir -p a/$d; for f in $(seq 50); do echo $d$f >a/$d/$f; done; done";
    script(temp.path(), make);
    succeeds(temp.path(), &["cp", "-a", "a", "copy"]);
    assert_eq!(listing(&temp.path().join("copy")), listing(&temp.path().join("a")));
    assert!(succeeds(temp.path(), &["diff", "-r", "a", "copy"]).is_empty());
}

#[test]
fn each_file_is_an_object_in_json() {
    let temp = TempDir::new().expect("a temporary directory");
    script(temp.path(), "mkdir a; echo one >a/f");
    let lines = succeeds(temp.path(), &["--json", "cp", "-rv", "a", "b"]);
    let files: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect();
    assert_eq!(files[1]["source"], "a/f");
    assert_eq!(files[1]["destination"], "b/f");
    assert_eq!((files[0]["kind"].as_str(), files[1]["size"].as_u64()), (Some("directory"), Some(4)));
}

#[test]
fn the_root_of_the_host_is_left_alone() {
    let temp = TempDir::new().expect("a temporary directory");
    // On a layer that refuses every change, and asking for none: nothing happens whatever the command does.
    for arguments in [&["chmod", "-R", "u+", "/"][..], &["chown", "-R", ":", "/"]] {
        let arguments = &[&["--layer", "readonly"], arguments].concat();
        let message = fails(temp.path(), arguments);
        assert!(message.contains("dangerous to operate recursively on '/'"), "{message}");
    }
}

/// Sends SIGINT and waits.
fn interrupt(mut child: Child) -> (Option<i32>, String) {
    let pid = rustix::process::Pid::from_child(&child);
    // Standard input stays open until the signal is sent, lest its end is seen first.
    let stdin = child.stdin.take();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("the process exists");
    let ended = child.wait().expect("the process ends");
    drop(stdin);
    let mut stderr = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("messages in UTF-8");
    (ended.code(), stderr)
}

/// Waits until `happened`, looking again and again.
fn wait_until(what: &str, happened: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen in a minute");
        std::thread::yield_now();
    }
}

#[test]
fn an_interrupted_copy_takes_its_incomplete_file_away() {
    let temp = TempDir::new().expect("a temporary directory");
    fs::write(temp.path().join("big"), vec![1; 4 << 20]).expect("written");
    fs::write(temp.path().join("old"), "old").expect("written");
    let arguments = ["--layer", "fault=op=read,delay=3600s", "cp", "--reflink=never", "big", "new"];
    let child = outrigger(temp.path(), &arguments).stdin(Stdio::piped()).spawn().expect("outrigger starts");
    wait_until("making the destination", || temp.path().join("new").exists());
    let (status, stderr) = interrupt(child);
    assert_eq!(status, Some(130), "{stderr}");
    assert!(stderr.contains("removed incomplete 'new'"), "{stderr}");
    assert!(!temp.path().join("new").exists());
}

#[test]
fn an_interrupted_write_leaves_the_old_content() {
    let temp = TempDir::new().expect("a temporary directory");
    fs::write(temp.path().join("file"), "old").expect("written");
    let mut child =
        outrigger(temp.path(), &["write", "file"]).stdin(Stdio::piped()).spawn().expect("outrigger starts");
    child.stdin.as_mut().expect("a pipe").write_all(b"new").expect("written");
    let files = || fs::read_dir(temp.path()).expect("a directory").flatten().collect::<Vec<_>>();
    let written = || files().iter().any(|file| file.metadata().is_ok_and(|metadata| metadata.len() == 3));
    wait_until("making the hidden file", || files().len() == 2 && written());
    let (status, stderr) = interrupt(child);
    assert_eq!(status, Some(130), "{stderr}");
    assert_eq!(files().len(), 1);
    assert_eq!(fs::read_to_string(temp.path().join("file")).expect("file"), "old");
}

fn write(dir: &Path, arguments: &[&str], content: &str) -> Output {
    let mut child = outrigger(dir, arguments).stdin(Stdio::piped()).spawn().expect("outrigger starts");
    child.stdin.take().expect("a pipe").write_all(content.as_bytes()).expect("written");
    child.wait_with_output().expect("the process ends")
}

#[test]
fn writing_replaces_or_appends() {
    let temp = TempDir::new().expect("a temporary directory");
    script(temp.path(), "echo old >file; chmod 640 file; ln -s file link; echo old >hard; ln hard hard2");
    let content = |name: &str| fs::read_to_string(temp.path().join(name)).expect(name);
    assert!(write(temp.path(), &["write", "file"], "new\n").status.success());
    assert_eq!(content("file"), "new\n");
    assert_eq!(fs::metadata(temp.path().join("file")).expect("file").mode() & 0o777, 0o640);
    assert!(write(temp.path(), &["write", "-a", "file"], "more\n").status.success());
    assert_eq!(content("file"), "new\nmore\n");
    assert!(write(temp.path(), &["write", "link"], "through\n").status.success());
    assert_eq!(content("file"), "through\n");
    assert!(write(temp.path(), &["write", "hard"], "both\n").status.success());
    assert_eq!(content("hard2"), "both\n");
    let refused = write(temp.path(), &["write", "."], "x");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("cannot write '.': Is a directory"));
}

#[test]
fn a_reader_that_goes_away_ends_cat_quietly() {
    let temp = TempDir::new().expect("a temporary directory");
    let big = File::create(temp.path().join("big")).expect("made");
    big.set_len(64 << 20).expect("grown");
    let script = format!(
        "{} cat big | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_outrigger")
    );
    let output =
        Command::new("bash").args(["-c", &script]).current_dir(temp.path()).output().expect("bash starts");
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"141\n"[..], &b""[..]));
}

#[test]
fn a_link_as_operand_is_followed() {
    let temp = TempDir::new().expect("a temporary directory");
    script(temp.path(), "echo new >f; echo old >target");
    symlink("target", temp.path().join("link")).expect("linked");
    succeeds(temp.path(), &["cp", "f", "link"]);
    script(temp.path(), "test -L link; cmp f target");
}
