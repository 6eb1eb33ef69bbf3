// SPDX-License-Identifier: MIT OR Apache-2.0
//! `mount.outrigger`: what mount(8) runs for `mount -t outrigger SOURCE DIR -o ...` and for lines in fstab(5).
//!
//! It is the same program, which looks at the name it was started under. The arguments, according to mount(8):
//! `mount.TYPE SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE.SUBTYPE]`.
//!
//! `umount.fuse.outrigger` is what umount(8) runs for a mount whose type in the mount table is `fuse.outrigger.DRIVER`:
//! `umount.TYPE DIR [-nlfvr] [-N NAMESPACE] [-t TYPE.SUBTYPE]`. It waits until everything is written.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Exit status of mount(8): wrong usage.
pub const USAGE: u8 = 1;
/// Exit status of mount(8): nothing was mounted.
pub const FAILED: u8 = 32;

/// What mount(8) or umount(8) wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Run this command line of ours.
    Run(Vec<OsString>),
    /// Only pretend (`-f`).
    Nothing,
    /// Print this.
    Say(String),
}

/// What `--help` of mount(8)'s helper prints.
const HELP: &str = "Usage: mount.outrigger LOCATION DIR [-r] [-o OPTIONS]
What mount(8) runs for `mount -t outrigger` and for lines of the type outrigger in fstab(5).
See mount.outrigger(8), `outrigger mount --help` and, for the options of each kind of tree, `outrigger drivers NAME`.";

/// The same of umount(8)'s.
const UMOUNT_HELP: &str = "Usage: umount.fuse.outrigger DIR [-lf]
What umount(8) runs for a mount of outrigger. See `outrigger umount --help`.";

/// What a helper is asked to print instead of doing anything.
fn said(argument: &OsStr, help: &str) -> Option<Wanted> {
    match argument.to_str()? {
        "-h" | "--help" => Some(Wanted::Say(help.to_owned())),
        "-V" | "--version" => Some(Wanted::Say(format!("outrigger {}", env!("CARGO_PKG_VERSION")))),
        _ => None,
    }
}

/// Whether the program was started as the helper of mount(8).
pub fn is_helper(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "mount.outrigger")
}

/// Whether the program was started as the helper of umount(8).
pub fn is_umount_helper(program: &OsStr) -> bool {
    let names = ["umount.outrigger", "umount.fuse.outrigger"];
    Path::new(program).file_name().is_some_and(|name| names.iter().any(|known| name == *known))
}

/// Turns the arguments of umount(8)'s helper, without the program's name, into a command line of ours.
///
/// # Errors
/// A sentence about what is wrong with them.
pub fn translate_umount(mut arguments: impl Iterator<Item = OsString>) -> Result<Wanted, String> {
    let mut command: Vec<OsString> = ["outrigger", "umount"].map(OsString::from).into();
    let mut places = Vec::new();
    while let Some(argument) = arguments.next() {
        if let Some(said) = said(&argument, UMOUNT_HELP) {
            return Ok(said);
        }
        match argument.to_str() {
            Some("-N" | "-t") => drop(arguments.next()),
            // umount(8) gives short options one by one or together.
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        'l' => command.push("--lazy".into()),
                        'f' => command.push("--force".into()),
                        'n' | 'v' | 'r' => {}
                        _ => {
                            return Err(format!(
                                "{flags}: no such option; umount(8) gives -nlfvr, -N and -t"
                            ));
                        }
                    }
                }
            }
            _ => places.push(argument),
        }
    }
    let [dir] = <[OsString; 1]>::try_from(places)
        .map_err(|_| "give what to unmount: umount.outrigger DIR [-nlfvr]".to_owned())?;
    command.extend(["--".into(), dir]);
    Ok(Wanted::Run(command))
}

/// Turns the helper's arguments, without the program's name, into a command line of ours.
///
/// # Errors
/// A sentence about what is wrong with them.
pub fn translate(arguments: impl Iterator<Item = OsString>) -> Result<Wanted, String> {
    let mut arguments = arguments;
    let mut places = Vec::new();
    let mut options = Vec::new();
    while let Some(argument) = arguments.next() {
        if let Some(said) = said(&argument, HELP) {
            return Ok(said);
        }
        match argument.to_str() {
            Some("-o") => options.push(arguments.next().ok_or("-o needs options after it")?),
            Some("-t") => options.extend(arguments.next().as_deref().and_then(subtype)),
            Some("-N") => drop(arguments.next()),
            Some("-f") => return Ok(Wanted::Nothing),
            Some("-s" | "-n" | "-v" | "-r" | "-w") => {
                if argument == "-r" {
                    options.push("ro".into());
                }
            }
            Some(other) if other.starts_with('-') && other.len() > 1 => {
                return Err(format!("{other}: no such option; mount(8) gives -sfnv, -o and -t"));
            }
            _ => places.push(argument),
        }
    }
    let [mut source, dir] = <[OsString; 2]>::try_from(places)
        .map_err(|_| "give what to mount and where: mount.outrigger SOURCE DIR [-o OPTIONS]".to_owned())?;
    // What is mounted as tmpfs is any word.
    if options.iter().any(|list| list == "type=tmpfs") {
        options.retain(|list| list != "type=tmpfs");
        source = "tmpfs:".into();
    }
    // What mount(8) passes on is from fstab(5) or typed out.
    let mut command: Vec<OsString> = ["outrigger", "--allow-programs", "mount"].map(OsString::from).into();
    for list in options {
        command.extend(["-o".into(), list]);
    }
    command.extend(["--".into(), source, dir]);
    Ok(Wanted::Run(command))
}

/// What the second part of a type asks for: in `outrigger.ext4` the file system of a disk image.
fn subtype(kind: &OsStr) -> Option<OsString> {
    let subtype = kind.to_str()?.strip_prefix("outrigger.")?;
    Some(format!("type={subtype}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> impl Iterator<Item = OsString> + '_ {
        text.split(' ').map(OsString::from)
    }

    #[test]
    fn the_arguments_of_mount_are_understood() {
        let cases = [
            ("/a.tar /mnt -o ro,_netdev", "outrigger --allow-programs mount -o ro,_netdev -- /a.tar /mnt"),
            (
                "mem: /mnt -s -n -v -t fuse.outrigger -o rw",
                "outrigger --allow-programs mount -o rw -- mem: /mnt",
            ),
            (
                "/i /mnt -o noatime -t outrigger.ext4",
                "outrigger --allow-programs mount -o noatime -o type=ext4 -- /i /mnt",
            ),
            (
                "none /mnt -o size=9m -t outrigger.tmpfs",
                "outrigger --allow-programs mount -o size=9m -- tmpfs: /mnt",
            ),
            ("/a.tar /mnt -r", "outrigger --allow-programs mount -o ro -- /a.tar /mnt"),
        ];
        for (given, expected) in cases {
            assert_eq!(translate(words(given)), Ok(Wanted::Run(words(expected).collect())), "{given}");
        }
        assert_eq!(translate(words("/a /mnt -f")), Ok(Wanted::Nothing));
        for given in ["--help", "-h", "/a /mnt -V"] {
            assert!(matches!(translate(words(given)), Ok(Wanted::Say(_))), "{given}");
            assert!(matches!(translate_umount(words(given)), Ok(Wanted::Say(_))), "{given}");
        }
    }

    #[test]
    fn the_arguments_of_umount_are_understood() {
        for (given, expected) in [
            ("/mnt", "outrigger umount -- /mnt"),
            ("/mnt -n -v -r -N 5 -t fuse.outrigger.kernel", "outrigger umount -- /mnt"),
            ("/mnt -lf", "outrigger umount --lazy --force -- /mnt"),
        ] {
            assert_eq!(translate_umount(words(given)), Ok(Wanted::Run(words(expected).collect())), "{given}");
        }
        for given in ["-l", "/a /b", "/a -x"] {
            assert!(translate_umount(words(given)).is_err(), "{given}");
        }
    }

    #[test]
    fn wrong_usage_is_named() {
        for given in ["/a", "/a /b /c", "/a /b -x", "/a /b -o"] {
            assert!(translate(words(given)).is_err(), "{given}");
        }
    }
}
