// SPDX-License-Identifier: MIT OR Apache-2.0
//! The man pages that do not come from the definition of the command line, in the macros of man(7).

use crate::drivers::{DRIVERS, options};
use crate::mounted::OPTIONS as MOUNT_OPTIONS;
use crate::trees::LAYERS;
use outrigger_core::OptionInfo;
use outrigger_core::registry::{DriverInfo, LayerInfo};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

const MOUNT: &str = include_str!("mount.outrigger.8");

/// How outrigger-drivers(7) begins.
const KINDS_OF_TREES: &str = r#".\" SPDX-License-Identifier: MIT OR Apache-2.0
.TH outrigger\-drivers 7 "" "outrigger @VERSION@" "Miscellaneous"
.SH NAME
outrigger\-drivers \- the kinds of trees outrigger opens
.SH DESCRIPTION
A driver answers for one kind of tree.
Which one is needed follows from the LOCATION;
.B outrigger drivers
prints this list.
Options go to the driver with
.BI \-\-opt " KEY=VALUE,..."
and, when mounting, also with
.BI \-o " KEY=VALUE,..." .
.SS LOCATION
A path of the host, or a kind of tree and a colon.
Each
.B ::
after it opens the file before it as a tree, and names a path in it:
.PP
.EX
package.deb::/data.tar.xz::/usr/share/doc
.EE
.PP
What is the name of an existing file is that file, whatever else it could be; of a text with
.B ::
the longest beginning that exists is the file of the host.
So a name that a pattern of the shell produced is never taken for a host or a program.
.IB HOST : PATH
is refused where HOST is a file here: the path in an archive is written after two colons.
.BI sftp:// HOST / PATH
is always a host.
.PP
A name that does not exist yet and looks like a kind of tree is written with
.B ./
in front; a
.B ::
in a name is written as
.BR :::: .
.PP
A LOCATION
.BI fuse: COMMAND\fR,\fP
and options that can start programs
.RB ( command= ,
.BR ssh_command= ,
.BR F= ,
.BR sftp_server= ,
.B ProxyCommand=
and others of
.BR ssh_config (5)),
need
.B \-\-allow\-programs
in front of the command:
.PP
.EX
outrigger \-\-allow\-programs ls 'fuse:squashfuse image.sqsh'::/
.EE
.PP
.B outrigger mount \-o
takes these options without it in front of the LOCATION,
and so does
.BR fstab (5)
in any place.
.SH DRIVERS
"#;

/// What is promised of writes that are answered before they were made.
const WRITES: &str = r#".SH DELAYED WRITES
.B write=
says when what a program writes is at the other end:
.BR through ,
before the write returns;
.BR close ,
before the file is closed;
.BR behind ,
soon after.
With
.B behind
new files are made later, too, unless a program wants to be the one who makes them
.RB ( O_EXCL ).
What goes wrong then,
.BR fsync (2)
tells, and
.BR close (2)
if it is known by then.
A program that looks at neither may miss it;
.B outrigger flush \-\-wait
and
.B outrigger umount
name what was lost.
"#;

/// Writes them into `dir`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(dir: &Path) -> io::Result<()> {
    fs::write(dir.join("mount.outrigger.8"), mount())?;
    fs::write(dir.join("outrigger-drivers.7"), drivers())
}

/// mount.outrigger(8), with the options from the tables that completion reads, too.
fn mount() -> String {
    let mut options = String::new();
    describe_options(&mut options, MOUNT_OPTIONS.iter().flat_map(|table| table.options), |_, _| false);
    MOUNT.replace("@VERSION@", env!("CARGO_PKG_VERSION")).replace("@OPTIONS@", &options)
}

/// Kinds of trees, from the same table as `outrigger drivers`.
fn drivers() -> String {
    let mut page = KINDS_OF_TREES.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    DRIVERS.iter().for_each(|driver| describe(&mut page, driver));
    page.push_str(".SH LAYERS\n.B \\-\\-layer\nputs a layer on a tree; the first one named is the nearest to the driver.\n");
    LAYERS.iter().for_each(|layer| describe_layer(&mut page, layer));
    page.push_str(WRITES);
    page.push_str(".SH SEE ALSO\n.BR outrigger (1),\n.BR outrigger\\-mount (1),\n.BR mount.outrigger (8)\n");
    page
}

fn describe(page: &mut String, driver: &DriverInfo) {
    let DriverInfo { name, opens, location, writable, others, .. } = driver;
    let access = if *writable { "Read and write." } else { "Read only." };
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        ".SS {}\nOpens {}.\n{access}\n.TP\nLOCATION\n.I {}\n",
        escaped(name),
        escaped(opens),
        escaped(location),
    );
    describe_options(page, options(driver), driver.is_dangerous);
    if !others.is_empty() {
        let _ = write!(page, ".PP\nFurther options: {}.\n", escaped(others));
    }
}

fn describe_layer(page: &mut String, layer: &LayerInfo) {
    let _ = write!(page, ".SS {}\n{}.\n", escaped(&layer.spelt()), escaped(&capitalised(layer.does)));
    describe_options(page, layer.options.iter().flat_map(|table| table.options), |_, _| false);
}

/// Those that are `dangerous` with a value are refused unless the user allows them.
fn describe_options(
    page: &mut String,
    options: impl Iterator<Item = &'static OptionInfo>,
    dangerous: fn(&str, &str) -> bool,
) {
    for option in options {
        let name = escaped(&option.to_string());
        let _ = write!(page, ".TP\n.B {name}\n{}.\n", escaped(&capitalised(option.help)));
        if !option.aliases.is_empty() {
            let _ = writeln!(page, "Also called {}.", escaped(&option.aliases.join(", ")));
        }
        if dangerous(option.name, option.value) {
            page.push_str("Needs\n.B \\-\\-allow\\-programs\nin front of the command.\n");
        }
        if !option.default.is_empty() {
            let _ = writeln!(page, "Default: {}.", escaped(option.default));
        }
    }
}

/// A clause as the beginning of a sentence.
fn capitalised(clause: &str) -> String {
    let mut letters = clause.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Text as roff takes it: a bare `-` would be a hyphen, and a backslash starts an escape.
pub fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_and_option_is_described() {
        let page = drivers();
        for driver in DRIVERS {
            assert!(page.contains(&format!(".SS {}\n", driver.name)), "{page}");
            for option in options(driver) {
                assert!(page.contains(&format!(".B {}\n", escaped(&option.to_string()))), "{option}");
            }
        }
        let wrong = page.lines().find(|line| line.is_empty() || line.starts_with('\''));
        assert_eq!(wrong, None, "no line roff would take otherwise");
    }
}
