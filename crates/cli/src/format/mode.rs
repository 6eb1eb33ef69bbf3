// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modes as `ls -l` writes them.

use outrigger_core::FileKind;

/// The letter of a kind of file; `?` for a mode that names none.
pub fn letter(mode: u32) -> char {
    match FileKind::of_mode(mode) {
        Some(FileKind::Regular) => '-',
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        Some(FileKind::CharDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        None => '?',
    }
}

/// Ten characters: the kind and the permissions.
pub fn text(mode: u32) -> String {
    let mut out = String::with_capacity(10);
    out.push(letter(mode));
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (class, (bit, with_x, without_x)) in special.into_iter().enumerate() {
        let bits = mode >> (6 - 3 * class);
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (mode & bit != 0, bits & 1 != 0) {
            (true, true) => with_x,
            (true, false) => without_x,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// The kind in words, as stat(1) has them.
pub fn kind_name(mode: u32, size: u64) -> &'static str {
    match FileKind::of_mode(mode) {
        Some(FileKind::Regular) if size == 0 => "regular empty file",
        Some(FileKind::Regular) => "regular file",
        Some(FileKind::Directory) => "directory",
        Some(FileKind::Symlink) => "symbolic link",
        Some(FileKind::Fifo) => "fifo",
        Some(FileKind::Socket) => "socket",
        Some(FileKind::CharDevice) => "character special file",
        Some(FileKind::BlockDevice) => "block special file",
        None => "weird file",
    }
}

/// Major and minor number of a device node, from the 32 bits in which `dev_t` travels (makedev(3)).
pub fn device(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let cases = [
            (0o100_644, "-rw-r--r--"),
            (0o104_755, "-rwsr-xr-x"),
            (0o106_644, "-rwSr-Sr--"),
            (0o041_777, "drwxrwxrwt"),
            (0o041_776, "drwxrwxrwT"),
            (0o120_777, "lrwxrwxrwx"),
            (0o010_600, "prw-------"),
            (0, "?---------"),
        ];
        for (mode, expected) in cases {
            assert_eq!(text(mode), expected);
        }
    }

    #[test]
    fn devices() {
        assert_eq!(device(0x0803), (8, 3));
        assert_eq!(device(0x1230_0845), (8, 0x12345));
    }
}
