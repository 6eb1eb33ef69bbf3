// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pipes, sockets and devices.

use crate::report::Case;
use crate::tester::{Expect, Tester};
use outrigger_core::{FileKind, OpCode};

pub(super) const CASES: &[Case] = &[
    Case::new("special/fifo_and_socket", &[OpCode::MkNod], pipes),
    Case::new("special/mknod_makes_regular_files", &[OpCode::MkNod], regular),
    Case::new("special/device_numbers_are_kept", &[OpCode::MkNod], devices).root(),
    Case::new(
        "special/have_names_and_links",
        &[OpCode::MkNod, OpCode::Link, OpCode::Rename, OpCode::Unlink],
        moved,
    ),
];

fn pipes(t: &Tester<'_>) {
    for (name, kind) in [("f", FileKind::Fifo), ("s", FileKind::Socket)] {
        t.mknod(name, kind, 0o640, 0).must();
        let attr = t.stat(name).must();
        assert_eq!((attr.kind(), attr.permissions(), attr.nlink), (kind, 0o640, 1));
    }
}

fn regular(t: &Tester<'_>) {
    t.mknod("r", FileKind::Regular, 0o600, 0).must();
    let attr = t.stat("r").must();
    assert_eq!((attr.kind(), attr.permissions(), attr.size), (FileKind::Regular, 0o600, 0));
    assert_eq!(t.read_file("r"), b"");
}

fn devices(t: &Tester<'_>) {
    // Major 8, minor 1; major 259, minor 300.
    for (name, rdev) in [("a", 0x801), ("b", 0x2c | 259 << 8 | 0x100 << 12)] {
        for kind in [FileKind::CharDevice, FileKind::BlockDevice] {
            let name = format!("{name}-{kind:?}");
            t.mknod(&name, kind, 0o600, rdev).must();
            let attr = t.stat(&name).must();
            assert_eq!((attr.kind(), attr.rdev), (kind, rdev));
        }
    }
}

fn moved(t: &Tester<'_>) {
    t.mknod("f", FileKind::Fifo, 0o600, 0).must();
    t.link("f", "g").must();
    t.rename("f", "h").must();
    t.unlink("g").must();
    let attr = t.stat("h").must();
    assert_eq!((attr.kind(), attr.nlink), (FileKind::Fifo, 1));
}
