// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended attributes, xattr(7).

use crate::report::Case;
use crate::tester::{Expect, Tester};
use outrigger_core::ops::XattrFlags;
use outrigger_core::{Errno, OpCode};

const XATTR: &[OpCode] = &[OpCode::GetXattr, OpCode::SetXattr, OpCode::ListXattr, OpCode::RemoveXattr];
const ANY: XattrFlags = XattrFlags::empty();

pub(super) const CASES: &[Case] = &[
    Case::new("xattrs/a_new_file_has_none", XATTR, none),
    Case::new("xattrs/set_get_list_remove", XATTR, round_trip),
    Case::new("xattrs/of_directories", XATTR, directory),
    Case::new("xattrs/values_are_any_bytes", XATTR, any_bytes),
    Case::new("xattrs/empty_values", XATTR, empty_value),
    Case::new("xattrs/create_refuses_existing", XATTR, create),
    Case::new("xattrs/replace_refuses_missing", XATTR, replace),
    Case::new("xattrs/replacing_changes_the_length", XATTR, replace_length),
    Case::new("xattrs/missing_is_enodata", XATTR, missing),
    Case::new("xattrs/names_of_255_bytes", XATTR, long_name),
    Case::new("xattrs/many", XATTR, many),
    Case::new("xattrs/follow_a_rename", &[OpCode::SetXattr, OpCode::GetXattr, OpCode::Rename], renamed),
    Case::new(
        "xattrs/belong_to_the_file_not_the_name",
        &[OpCode::SetXattr, OpCode::GetXattr, OpCode::Link],
        linked,
    ),
    Case::new("xattrs/setting_marks_ctime", &[OpCode::SetXattr, OpCode::RemoveXattr], ctime),
    Case::new(
        "xattrs/user_attributes_need_a_file_or_directory",
        &[OpCode::SetXattr, OpCode::SymLink],
        symlink,
    ),
    Case::new("xattrs/unknown_namespaces_are_refused", &[OpCode::SetXattr], namespace),
    Case::new("xattrs/trusted_is_for_root", XATTR, trusted).root(),
];

/// Sets an attribute; the case ends where the file system has no extended attributes.
#[track_caller]
fn set(t: &Tester<'_>, path: &str, name: &str, value: &[u8]) {
    match t.set_xattr(path, name, value, ANY) {
        Err(Errno::EOPNOTSUPP) => t.skip("the file system has no such attributes"),
        result => result.must(),
    }
}

fn none(t: &Tester<'_>) {
    t.write_file("f", b"");
    assert!(t.user_xattrs("f").is_empty());
}

fn round_trip(t: &Tester<'_>) {
    t.write_file("f", b"");
    set(t, "f", "user.colour", b"red");
    set(t, "f", "user.size", b"large");
    assert_eq!(t.get_xattr("f", "user.colour").must(), b"red");
    assert_eq!(t.user_xattrs("f"), ["user.colour", "user.size"]);
    t.remove_xattr("f", "user.colour").must();
    assert_eq!(t.user_xattrs("f"), ["user.size"]);
    t.get_xattr("f", "user.colour").must_fail(Errno::ENODATA);
}

fn directory(t: &Tester<'_>) {
    t.mkdir("d", 0o755).must();
    set(t, "d", "user.x", b"1");
    t.write_file("d/f", b"");
    assert_eq!(t.get_xattr("d", "user.x").must(), b"1");
    assert!(t.user_xattrs("d/f").is_empty(), "files do not inherit them");
}

fn any_bytes(t: &Tester<'_>) {
    t.write_file("f", b"");
    let value: Vec<u8> = (0..=255).collect();
    set(t, "f", "user.bytes", &value);
    assert_eq!(t.get_xattr("f", "user.bytes").must(), value);
}

fn empty_value(t: &Tester<'_>) {
    t.write_file("f", b"");
    set(t, "f", "user.empty", b"");
    assert_eq!(t.get_xattr("f", "user.empty").must(), b"");
    assert_eq!(t.user_xattrs("f"), ["user.empty"]);
    for value in [&b"full"[..], b"", b"again"] {
        set(t, "f", "user.empty", value);
        assert_eq!(t.get_xattr("f", "user.empty").must(), value);
    }
}

fn create(t: &Tester<'_>) {
    t.write_file("f", b"");
    set(t, "f", "user.x", b"1");
    t.set_xattr("f", "user.x", b"2", XattrFlags::CREATE).must_fail(Errno::EEXIST);
    assert_eq!(t.get_xattr("f", "user.x").must(), b"1");
    t.set_xattr("f", "user.y", b"2", XattrFlags::CREATE).must();
}

fn replace(t: &Tester<'_>) {
    t.write_file("f", b"");
    set(t, "f", "user.x", b"1");
    t.set_xattr("f", "user.y", b"2", XattrFlags::REPLACE).must_fail(Errno::ENODATA);
    t.set_xattr("f", "user.x", b"2", XattrFlags::REPLACE).must();
    assert_eq!(t.get_xattr("f", "user.x").must(), b"2");
    assert_eq!(t.user_xattrs("f"), ["user.x"]);
}

fn replace_length(t: &Tester<'_>) {
    t.write_file("f", b"");
    for len in [10, 1000, 3, 500] {
        set(t, "f", "user.x", &vec![len as u8; len]);
        assert_eq!(t.get_xattr("f", "user.x").must(), vec![len as u8; len]);
    }
}

fn missing(t: &Tester<'_>) {
    t.write_file("f", b"");
    set(t, "f", "user.other", b"other");
    t.get_xattr("f", "user.x").must_fail(Errno::ENODATA);
    t.remove_xattr("f", "user.x").must_fail(Errno::ENODATA);
}

fn long_name(t: &Tester<'_>) {
    t.write_file("f", b"");
    let name = format!("user.{}", "n".repeat(250));
    set(t, "f", &name, b"x");
    assert_eq!(t.get_xattr("f", &name).must(), b"x");
    t.set_xattr("f", &format!("{name}n"), b"x", ANY).must_fail(Errno::ERANGE);
}

fn many(t: &Tester<'_>) {
    t.write_file("f", b"");
    let names: Vec<String> = (0..50).map(|i| format!("user.name{i:02}")).collect();
    for name in &names {
        set(t, "f", name, name.as_bytes());
    }
    assert_eq!(t.user_xattrs("f"), names);
    for name in &names {
        assert_eq!(t.get_xattr("f", name).must(), name.as_bytes());
    }
}

fn renamed(t: &Tester<'_>) {
    t.write_file("f", b"");
    set(t, "f", "user.x", b"1");
    t.rename("f", "g").must();
    assert_eq!(t.get_xattr("g", "user.x").must(), b"1");
}

fn linked(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.link("f", "g").must();
    set(t, "f", "user.x", b"1");
    assert_eq!(t.get_xattr("g", "user.x").must(), b"1");
}

fn ctime(t: &Tester<'_>) {
    t.write_file("f", b"");
    for change in ["set", "remove"] {
        let before = t.stat("f").must();
        t.tick();
        match change {
            "set" => set(t, "f", "user.x", b"1"),
            _ => t.remove_xattr("f", "user.x").must(),
        }
        let after = t.stat("f").must();
        assert!(after.ctime > before.ctime, "{change}");
        assert_eq!(after.mtime, before.mtime);
    }
}

fn symlink(t: &Tester<'_>) {
    t.symlink("x", "l").must();
    t.set_xattr("l", "user.x", b"1", ANY).must_fail_with_one_of(&[Errno::EPERM, Errno::EOPNOTSUPP]);
}

fn namespace(t: &Tester<'_>) {
    t.write_file("f", b"");
    t.set_xattr("f", "bogus.x", b"1", ANY).must_fail(Errno::EOPNOTSUPP);
    t.set_xattr("f", "plain", b"1", ANY).must_fail(Errno::EOPNOTSUPP);
}

fn trusted(t: &Tester<'_>) {
    t.write_file("f", b"");
    set(t, "f", "trusted.x", b"1");
    assert_eq!(t.get_xattr("f", "trusted.x").must(), b"1");
    t.as_user(4242, 4242, || {
        t.get_xattr("f", "trusted.x").must_fail(Errno::ENODATA);
        t.set_xattr("f", "trusted.x", b"2", ANY).must_fail(Errno::EPERM);
        let names = t.fs.list_xattrs(&t.path("f")).must();
        assert!(!names.iter().any(|name| name.starts_with(b"trusted.")), "others do not see them");
    });
}
