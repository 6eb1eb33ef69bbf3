// SPDX-License-Identifier: MIT OR Apache-2.0
//! Timestamps: which operation marks which, as POSIX has it.

use crate::report::{Case, Place};
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::{Attr, OpCode, SetTime, Time};

const SET: &[OpCode] = &[OpCode::SetAttr];
/// Seconds of a time long past.
const PAST: i64 = 1_000_000_000;

pub(super) const CASES: &[Case] = &[
    Case::new("times/creation_sets_all", &[], creation),
    Case::new("times/utimens_sets_to_the_nanosecond", SET, utimens),
    Case::new("times/utimens_omit_leaves_alone", SET, omit),
    Case::new("times/utimens_now_is_now", SET, now),
    Case::new("times/before_1970_and_after_2106", SET, far),
    Case::new("times/of_a_symlink", &[OpCode::SetAttr, OpCode::SymLink], of_symlink),
    Case::new("times/writing_marks_mtime_and_ctime", SET, write),
    Case::new("times/reading_marks_atime_only", SET, read).at(Place::Direct),
    Case::new("times/noatime_is_respected", &[OpCode::SetAttr, OpCode::Open], noatime).at(Place::Direct),
    Case::new("times/truncating_marks_mtime_and_ctime", SET, truncate),
    Case::new("times/chmod_marks_ctime_only", SET, chmod),
    Case::new("times/link_marks_ctime", &[OpCode::SetAttr, OpCode::Link], link),
    Case::new(
        "times/unlink_marks_ctime_of_the_rest",
        &[OpCode::SetAttr, OpCode::Link, OpCode::Unlink],
        unlink,
    ),
    Case::new("times/rename_keeps_mtime", &[OpCode::SetAttr, OpCode::Rename], rename),
    Case::new("times/names_added_mark_the_directory", &[OpCode::SetAttr, OpCode::SymLink], dir_add),
    Case::new(
        "times/names_removed_mark_the_directory",
        &[OpCode::SetAttr, OpCode::Unlink, OpCode::RmDir],
        dir_remove,
    ),
    Case::new("times/rename_marks_both_directories", &[OpCode::SetAttr, OpCode::Rename], dir_rename),
    Case::new("times/failures_mark_nothing", SET, failures),
    Case::new("times/birth_does_not_change", SET, birth),
];

/// Attributes before and after `change`, between which the clock ticked; both times were set to the past before.
#[track_caller]
fn around(t: &Tester<'_>, path: &str, change: impl FnOnce()) -> (Attr, Attr) {
    t.set_times(path, PAST);
    let before = t.stat(path).must();
    t.tick();
    change();
    (before, t.stat(path).must())
}

#[track_caller]
fn assert_marked(t: &Tester<'_>, path: &str, change: impl FnOnce()) {
    let (before, after) = around(t, path, change);
    assert!(after.mtime > before.mtime, "mtime of {path}");
    assert!(after.ctime > before.ctime, "ctime of {path}");
}

fn creation(t: &Tester<'_>) {
    let before = t.tick();
    t.write_file("f", b"");
    let attr = t.stat("f").must();
    for time in [attr.atime, attr.mtime, attr.ctime] {
        assert!(time >= before && time.secs < before.secs + 3600, "{time:?}, the clock was {before:?}");
    }
}

fn utimens(t: &Tester<'_>) {
    t.write_file("f", b"");
    let (atime, mtime) = (Time::new(1_111_111_111, 123_456_789), Time::new(1_222_222_222, 987_654_321));
    t.utimens("f", Some(SetTime::To(atime)), Some(SetTime::To(mtime))).must();
    let attr = t.stat("f").must();
    assert_eq!((attr.atime, attr.mtime), (atime, mtime));
}

fn omit(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.set_times("f", PAST);
    t.utimens("f", None, Some(SetTime::To(Time::new(PAST + 5, 0)))).must();
    t.utimens("f", Some(SetTime::To(Time::new(PAST + 9, 0))), None).must();
    let attr = t.stat("f").must();
    assert_eq!((attr.atime.secs, attr.mtime.secs), (PAST + 9, PAST + 5));
}

fn now(t: &Tester<'_>) {
    t.write_file("f", b"");
    let created = t.stat("f").must().mtime;
    t.set_times("f", PAST);
    t.utimens("f", Some(SetTime::Now), Some(SetTime::Now)).must();
    let attr = t.stat("f").must();
    for time in [attr.atime, attr.mtime] {
        // The kernel's own clock for timestamps may lag some milliseconds behind the driver's.
        assert!(
            (created.secs - 1..created.secs + 3600).contains(&time.secs),
            "{time:?}, created at {created:?}"
        );
    }
}

fn far(t: &Tester<'_>) {
    t.write_file("f", b"");
    for secs in [-1, -1_000_000_000, 0, 4_294_967_296, 8_000_000_000] {
        t.set_times("f", secs);
        assert_eq!(t.stat("f").must().mtime, Time::new(secs, 0));
    }
}

fn of_symlink(t: &Tester<'_>) {
    t.symlink("nowhere", "l").must();
    t.set_times("l", PAST);
    assert_eq!(t.stat("l").must().mtime, Time::new(PAST, 0));
}

fn write(t: &Tester<'_>) {
    t.write_file("f", b"x");
    let fd = t.open("f", Flags::WRITE).must();
    assert_marked(t, "f", || {
        t.fs.write_at(fd, 0, b"y").must();
    });
    t.close(fd);
}

fn read(t: &Tester<'_>) {
    t.write_file("f", b"x");
    let (before, after) = around(t, "f", || drop(t.read_file("f")));
    assert!(after.atime > before.atime);
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
}

fn noatime(t: &Tester<'_>) {
    t.write_file("f", b"x");
    let fd = t.open("f", Flags::READ | Flags::NOATIME).must();
    let (before, after) = around(t, "f", || drop(t.fs.read_at(fd, 0, 1).must()));
    assert_eq!(after.atime, before.atime);
    t.close(fd);
}

fn truncate(t: &Tester<'_>) {
    t.write_file("f", b"xyz");
    assert_marked(t, "f", || t.truncate("f", 1).must());
    assert_marked(t, "f", || t.truncate("f", 100).must());
}

fn chmod(t: &Tester<'_>) {
    t.write_file("f", b"x");
    let (before, after) = around(t, "f", || t.chmod("f", 0o600).must());
    assert!(after.ctime > before.ctime);
    assert_eq!((after.mtime, after.atime), (before.mtime, before.atime));
}

fn link(t: &Tester<'_>) {
    t.write_file("f", b"x");
    let (before, after) = around(t, "f", || t.link("f", "g").must());
    assert!(after.ctime > before.ctime);
    assert_eq!(after.mtime, before.mtime);
}

fn unlink(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.link("f", "g").must();
    let (before, after) = around(t, "f", || t.unlink("g").must());
    assert!(after.ctime > before.ctime);
    assert_eq!(after.mtime, before.mtime);
}

fn rename(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.set_times("f", PAST);
    t.rename("f", "g").must();
    let attr = t.stat("g").must();
    assert_eq!((attr.mtime.secs, attr.atime.secs), (PAST, PAST));
}

fn dir_add(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    assert_marked(t, "d", || t.write_file("d/f", b""));
    assert_marked(t, "d", || t.mkdir("d/d", 0o755).must());
    assert_marked(t, "d", || t.symlink("x", "d/l").must());
}

fn dir_remove(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("d/f", b"");
    t.mkdir("d/d", 0o755).must();
    assert_marked(t, "d", || t.unlink("d/f").must());
    assert_marked(t, "d", || t.rmdir("d/d").must());
}

fn dir_rename(t: &Tester<'_>) {
    t.mkdir("a", 0o755).must();
    t.mkdir("b", 0o755).must();
    t.write_file("a/f", b"");
    t.set_times("b", PAST);
    let before = t.stat("b").must();
    assert_marked(t, "a", || t.rename("a/f", "b/f").must());
    let after = t.stat("b").must();
    assert!(after.mtime > before.mtime && after.ctime > before.ctime, "of the new directory");
}

fn failures(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("d/f", b"x");
    let (before, after) = around(t, "d", || {
        t.mkdir("d/f", 0o755).unwrap_err();
        t.open("d/f", Flags::NEW).unwrap_err();
    });
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
}

fn birth(t: &Tester<'_>) {
    t.write_file("f", b"x");
    let Some(birth) = t.stat("f").must().btime else { t.skip("the tree knows no creation times") };
    let (_, after) = around(t, "f", || t.chmod("f", 0o600).must());
    assert_eq!(after.btime, Some(birth));
    assert!(after.ctime >= birth);
}
