// SPDX-License-Identifier: MIT OR Apache-2.0
//! Owners, permissions, set-id bits.

use crate::report::{Case, Place};
use crate::subject::Flags;
use crate::tester::{Expect, Tester};
use outrigger_core::ops::{Access, FallocateMode, Forget, SetAttr, Write};
use outrigger_core::{Credentials, Errno, Groups, OpCode, Payload, SetAttrs};

const SET: &[OpCode] = &[OpCode::SetAttr];
const ALLOCATE: &[OpCode] = &[OpCode::SetAttr, OpCode::Fallocate];
const COPY: &[OpCode] = &[OpCode::SetAttr, OpCode::CopyRange];
/// A user without privileges, on whose behalf cases ask.
pub const USER: u32 = 4242;
/// Its group. A server that finds groups by itself has to know it.
pub const GROUP: u32 = 4343;
/// A group that the user is not in.
const OTHER: u32 = 4444;

pub(super) const CASES: &[Case] = &[
    Case::new("owners/new_files_belong_to_their_maker", &[], maker).root(),
    Case::new("owners/chown_changes_what_is_asked", SET, chown).root(),
    Case::new("owners/chmod_keeps_the_kind", SET, chmod),
    Case::new("owners/chmod_sets_all_twelve_bits", SET, all_bits),
    Case::new("owners/setgid_directories_pass_on_their_group", SET, setgid_dir).root(),
    Case::new("owners/chown_clears_set_id_bits", SET, chown_clears).root(),
    Case::new("owners/chown_of_a_directory_keeps_set_id_bits", SET, chown_dir).root(),
    Case::new("owners/writing_clears_set_id_bits", SET, write_clears).root(),
    Case::new("owners/allocating_clears_set_id_bits", ALLOCATE, allocate_clears).root(),
    Case::new("owners/copying_ranges_clears_set_id_bits", COPY, copy_clears).root(),
    Case::new("owners/truncating_clears_set_id_bits", SET, truncate_clears).root(),
    Case::new("owners/setgid_without_execute_survives_writing", SET, mandatory_lock_bit).root(),
    Case::new("owners/root_may_write_without_clearing", SET, root_keeps).root(),
    Case::new("owners/kill_setid_clears_for_anyone", SET, kill_setid).at(Place::Direct),
    Case::new("owners/others_are_kept_out", SET, kept_out).at(Place::Kernel).root(),
    Case::new("owners/only_the_owner_changes_attributes", SET, only_owner).at(Place::Kernel).root(),
    Case::new("owners/an_open_file_outlives_its_permissions", SET, outlives).at(Place::Kernel).root(),
    Case::new("owners/sticky_directories_protect_names", &[OpCode::Rename, OpCode::Unlink], sticky)
        .at(Place::Kernel)
        .root(),
    Case::new("owners/directory_permissions_rule_names", &[OpCode::Unlink], dir_permissions)
        .at(Place::Kernel)
        .root(),
    Case::new("owners/access_decides_by_class", &[OpCode::Access, OpCode::SetAttr, OpCode::Forget], access)
        .at(Place::Direct),
];

#[track_caller]
fn permissions(t: &Tester<'_>, path: &str) -> u32 {
    t.stat(path).must().permissions()
}

fn maker(t: &Tester<'_>) {
    t.as_user(USER, GROUP, || {
        t.write_file("f", b"");
        t.mkdir("d", 0o755).must();
    });
    for path in ["f", "d"] {
        let attr = t.stat(path).must();
        assert_eq!((attr.uid, attr.gid), (USER, GROUP), "{path}");
    }
}

fn chown(t: &Tester<'_>) {
    t.write_file("f", b"");
    let before = t.stat("f").must();
    t.chown("f", Some(USER), None).must();
    assert_eq!((t.stat("f").must().uid, t.stat("f").must().gid), (USER, before.gid));
    t.chown("f", None, Some(GROUP)).must();
    assert_eq!((t.stat("f").must().uid, t.stat("f").must().gid), (USER, GROUP));
    t.chown("f", Some(0), Some(OTHER)).must();
    assert_eq!((t.stat("f").must().uid, t.stat("f").must().gid), (0, OTHER));
}

fn chmod(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.mkdir("d", 0o755).must();
    for path in ["f", "d"] {
        let kind = t.stat(path).must().kind();
        t.chmod(path, 0o711).must();
        let attr = t.stat(path).must();
        assert_eq!((attr.kind(), attr.permissions()), (kind, 0o711));
    }
}

fn all_bits(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.mkdir("d", 0o755).must();
    for mode in [0, 0o1, 0o20, 0o400, 0o1777, 0o2755, 0o4755, 0o7777] {
        for path in ["f", "d"] {
            t.chmod(path, mode).must();
            assert_eq!(permissions(t, path), mode, "{path}");
        }
    }
}

fn setgid_dir(t: &Tester<'_>) {
    t.mkdir("d", 0o777).must();
    t.chown("d", None, Some(OTHER)).must();
    t.chmod("d", 0o2777).must();
    t.as_user(USER, GROUP, || {
        t.write_file("d/f", b"");
        t.mkdir("d/sub", 0o755).must();
    });
    let (file, sub) = (t.stat("d/f").must(), t.stat("d/sub").must());
    assert_eq!((file.uid, file.gid), (USER, OTHER));
    assert_eq!(sub.gid, OTHER);
    assert_eq!(sub.permissions(), 0o2755, "directories inherit the bit");
    assert_eq!(file.permissions() & 0o2000, 0, "files do not");
}

fn chown_clears(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.chmod("f", 0o6755).must();
    t.chown("f", Some(USER), Some(GROUP)).must();
    assert_eq!(permissions(t, "f"), 0o755);
}

fn chown_dir(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.chmod("d", 0o6755).must();
    t.chown("d", Some(USER), Some(GROUP)).must();
    assert_eq!(permissions(t, "d"), 0o6755);
}

fn write_clears(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.chmod("f", 0o6777).must();
    t.as_user(USER, GROUP, || {
        let fd = t.open("f", Flags::WRITE).must();
        t.fs.write_at(fd, 0, b"y").must();
        t.close(fd);
    });
    assert_eq!(permissions(t, "f"), 0o777);
}

fn allocate_clears(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.chmod("f", 0o6777).must();
    t.as_user(USER, GROUP, || {
        let fd = t.open("f", Flags::WRITE).must();
        match t.fs.fallocate(fd, FallocateMode::empty(), 0, 10_000) {
            Err(Errno::EOPNOTSUPP) => t.skip("the file system cannot allocate"),
            allocated => allocated.must(),
        }
        t.close(fd);
    });
    assert_eq!(permissions(t, "f"), 0o777);
}

fn copy_clears(t: &Tester<'_>) {
    t.write_file("from", b"content");
    t.write_file("f", b"x");
    t.chmod("f", 0o6777).must();
    t.as_user(USER, GROUP, || {
        let (from, to) = (t.open("from", Flags::READ).must(), t.open("f", Flags::WRITE).must());
        assert_eq!(t.fs.copy_range(from, 0, to, 0, 7).must(), 7);
        t.close(from);
        t.close(to);
    });
    assert_eq!(permissions(t, "f"), 0o777);
}

fn truncate_clears(t: &Tester<'_>) {
    t.write_file("f", b"xyz");
    t.chmod("f", 0o6777).must();
    t.as_user(USER, GROUP, || t.truncate("f", 1).must());
    assert_eq!(permissions(t, "f"), 0o777);
}

fn mandatory_lock_bit(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.chown("f", Some(USER), Some(GROUP)).must();
    t.chmod("f", 0o2666).must();
    t.as_user(USER, GROUP, || {
        let fd = t.open("f", Flags::WRITE).must();
        t.fs.write_at(fd, 0, b"y").must();
        t.close(fd);
    });
    assert_eq!(permissions(t, "f"), 0o2666);
}

fn root_keeps(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.chmod("f", 0o6755).must();
    let fd = t.open("f", Flags::WRITE).must();
    t.fs.write_at(fd, 0, b"y").must();
    t.close(fd);
    assert_eq!(permissions(t, "f"), 0o6755);
}

fn kill_setid(t: &Tester<'_>) {
    t.write_file("f", b"xyz");
    let node = t.direct().node_of(&t.path("f")).must();
    t.chmod("f", 0o6755).must();
    let fd = t.open("f", Flags::WRITE).must();
    let (_, handle, _) = t.direct().opened(fd).must();
    let data = Payload::from(b"y".to_vec());
    t.direct().ask(Write { node, handle, offset: 0, data, cached: false, kill_setid: true }).must();
    t.close(fd);
    assert_eq!(permissions(t, "f"), 0o755);
    t.chmod("f", 0o6755).must();
    let attrs = SetAttrs { size: Some(0), kill_setid: true, ..SetAttrs::default() };
    t.direct().ask(SetAttr { node, handle: None, attrs }).must();
    assert_eq!(permissions(t, "f"), 0o755);
    if t.direct().abilities().ops.has(OpCode::Forget) {
        t.direct().ask(Forget { node, count: 1 }).must();
    }
}

fn kept_out(t: &Tester<'_>) {
    t.write_file("secret", b"x");
    t.chmod("secret", 0o600).must();
    t.write_file("public", b"x");
    t.chmod("public", 0o644).must();
    t.as_user(USER, GROUP, || {
        t.open("secret", Flags::READ).must_fail(Errno::EACCES);
        t.open("public", Flags::WRITE).must_fail(Errno::EACCES);
        assert_eq!(t.read_file("public"), b"x");
    });
}

fn only_owner(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.chmod("f", 0o666).must();
    t.as_user(USER, GROUP, || {
        t.chmod("f", 0o777).must_fail(Errno::EPERM);
        t.chown("f", Some(USER), None).must_fail(Errno::EPERM);
    });
}

fn outlives(t: &Tester<'_>) {
    t.mkdir("d", 0o777).must();
    t.as_user(USER, GROUP, || {
        t.write_file("d/f", b"before");
        let fd = t.open("d/f", Flags::BOTH).must();
        t.chmod("d/f", 0).must();
        t.open("d/f", Flags::READ).must_fail(Errno::EACCES);
        t.fs.write_at(fd, 0, b"after!").must();
        t.fs.fsync(fd, false).must();
        assert_eq!(t.fs.read_at(fd, 0, 6).must(), b"after!");
        t.close(fd);
    });
    assert_eq!(t.read_file("d/f"), b"after!");
}

fn sticky(t: &Tester<'_>) {
    t.mkdir("d", 0o777).must();
    t.chmod("d", 0o1777).must();
    t.write_file("d/root", b"");
    t.as_user(USER, GROUP, || {
        t.unlink("d/root").must_fail(Errno::EPERM);
        t.rename("d/root", "d/x").must_fail(Errno::EPERM);
        t.write_file("d/own", b"");
        t.unlink("d/own").must();
    });
}

fn dir_permissions(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    t.write_file("d/f", b"");
    t.mkdir("closed", 0o700).must();
    t.write_file("closed/f", b"");
    t.as_user(USER, GROUP, || {
        t.unlink("d/f").must_fail(Errno::EACCES);
        t.open("d/new", Flags::NEW).must_fail(Errno::EACCES);
        t.stat("closed/f").must_fail(Errno::EACCES);
        t.open("closed", Flags::READ).must_fail(Errno::EACCES);
    });
}

fn access(t: &Tester<'_>) {
    t.write_file("f", b"x");
    t.chown("f", Some(USER), Some(GROUP)).must();
    t.chmod("f", 0o640).must();
    let node = t.direct().node_of(&t.path("f")).must();
    let granted = |uid, gid, mask| t.as_user(uid, gid, || t.direct().ask(Access { node, mask })).must().0;
    assert_eq!(granted(USER, OTHER, 0o7), 0o6);
    assert_eq!(granted(USER, OTHER, 0o1), 0);
    assert_eq!(granted(USER + 1, GROUP, 0o7), 0o4);
    assert_eq!(granted(USER + 1, GROUP, 0o2), 0);
    assert_eq!(granted(USER + 1, OTHER, 0o7), 0);
    assert_eq!(granted(USER + 1, OTHER, 0), 0);
    assert_eq!(granted(0, 0, 0o7), 0o6);
    let member = Credentials { groups: Groups::of(&[OTHER, GROUP]), ..Credentials::new(USER + 1, OTHER) };
    let mut found = None;
    t.fs.as_user(member, &mut || found = Some(t.direct().ask(Access { node, mask: 0o7 }).must().0));
    assert_eq!(found, Some(0o4), "by a supplementary group");
    t.direct().ask(Forget { node, count: 1 }).must();
}
