// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that work on a mounted directory of another host.

use crate::Far;
use crate::support::{has, within};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

#[test]
fn programs_run_from_a_mount_that_believes_nothing() {
    let Some(far) = Far::new() else { return };
    fs::copy("/bin/true", far.place.at("far/true")).unwrap();
    far.mount(&["-o", "cache=never"]);
    assert!(Command::new(far.place.at("m/true")).status().unwrap().success());
}

#[test]
fn a_repository_is_cloned_and_a_program_is_built_and_run_on_a_host_that_is_far_away() {
    if !["git", "make", "cc"].into_iter().all(has) {
        return;
    }
    let Some(far) = Far::new() else { return };
    let place = &far.place;
    place
        .file("origin/Makefile", "OBJECTS = main.o answer.o\nanswer: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\n");
    place.file("origin/main.c", "int answer(void);\nint main(void) { return answer(); }\n");
    place.file("origin/answer.c", "int answer(void) { return 0; }\n");
    for number in 0..10 {
        place.file(&format!("origin/data/{}/{number}", number % 5), format!("{number}\n").repeat(100));
    }
    let git = |args: &[&str]| {
        place
            .run_as("git", &[&["-C", "origin", "-c", "user.name=a", "-c", "user.email=b"], args].concat())
            .ok()
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "all"]);
    let (_line, option) = far.line();
    far.mount_on("m", &option, &[]);
    far.run_there(
        "",
        "git",
        &["clone", "-q", "--no-hardlinks", &place.at("origin").display().to_string(), "clone"],
    );
    assert_eq!(far.run_there("clone", "git", &["status", "--porcelain"]), "");
    far.run_there("clone", "git", &["fsck", "--strict"]);
    far.run_there("clone", "make", &[]);
    far.run_there("clone", "./answer", &[]);
    assert!(far.run_there("clone", "make", &[]).contains("up to date"), "times are those that were set");
    assert_eq!(
        far.run_there("clone", "git", &["status", "--porcelain"]),
        "?? answer\n?? answer.o\n?? main.o\n"
    );
    let compared = place.run_as("diff", &["-r", "--exclude=.git", "origin/data", "far/clone/data"]);
    assert_eq!(compared.ok(), "");
}

#[test]
fn a_database_keeps_what_was_committed() {
    if !has("sqlite3") {
        return;
    }
    let Some(far) = Far::new() else { return };
    far.mount(&[]);
    for journal in ["delete", "wal"] {
        let file = format!("{journal}.db");
        let sql = format!(
            "pragma journal_mode={journal}; create table t(n integer primary key, v text); begin; \
             with recursive c(n) as (select 1 union all select n+1 from c where n<2000) \
             insert into t select n, hex(randomblob(50)) from c; commit; begin; delete from t; rollback; \
             update t set v='x' where n%2;"
        );
        far.run_there("", "sqlite3", &[&file, &sql]);
        let check = "pragma integrity_check; select count(*), sum(v='x') from t;";
        assert_eq!(far.run_there("", "sqlite3", &[&file, check]), "ok\n2000|1000\n", "{journal}");
        let there = far.place.run_as("sqlite3", &[&format!("far/{file}"), check]).ok();
        assert_eq!(there, "ok\n2000|1000\n", "{journal}, at the host");
    }
}

/// What editors do: a new file that replaces the old one, or a copy of the old one and new content in it.
#[test]
fn what_an_editor_saves_replaces_what_was_there() {
    let Some(far) = Far::new() else { return };
    let text = far.place.file("far/text", "old\n");
    fs::set_permissions(&text, fs::Permissions::from_mode(0o640)).unwrap();
    far.mount(&[]);
    let at = |name: &str| far.place.at("m").join(name);
    let reader = File::open(at("text")).unwrap();
    let save = |name: &str, content: &str| {
        let mut file = File::create(at(name)).unwrap();
        file.write_all(content.as_bytes()).unwrap();
        file.sync_all().unwrap();
    };
    save(".text.swp", "new\n");
    fs::set_permissions(at(".text.swp"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::rename(at(".text.swp"), at("text")).unwrap();
    assert_eq!(fs::read_to_string(at("text")).unwrap(), "new\n");
    assert_eq!(fs::metadata(&text).unwrap().mode() & 0o7777, 0o640);
    let mut old = [0; 4];
    reader.read_exact_at(&mut old, 0).unwrap();
    assert_eq!(&old, b"old\n", "who has it open goes on with what it was");
    drop(reader);
    fs::rename(at("text"), at("text~")).unwrap();
    save("text", "newer\n");
    assert_eq!(fs::read_to_string(far.place.at("far/text~")).unwrap(), "new\n");
    assert_eq!(fs::read_to_string(&text).unwrap(), "newer\n");
    within("nothing is left aside", || fs::read_dir(far.place.at("far")).unwrap().count() == 2);
}
