// SPDX-License-Identifier: MIT OR Apache-2.0
//! An NFS server, mounted by `nfs://`: at once, through the relay of the guide, and with the layer that encrypts.

use super::Bench;
use super::nfs::servers::{self, Server};
use crate::mounts::{self, Mount};
use crate::programs::{Process, run, seconds};
use crate::scratch::Ground;
use crate::table::{Goal, Table, Unit};
use crate::{files, trees};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const DIRECT: &str = "direct";
const RELAY: &str = "relay";
const CRYPT: &str = "crypt";
/// Bytes of the file that is read.
const SIZE: usize = 256 << 20;
/// Files of the program that is built, and functions of each.
const FILES: usize = 60;
const FUNCTIONS: usize = 60;
/// Unpacks `$1` in a directory of `$2`, looks for features of the compiler, compiles, links, runs, and deletes.
pub(super) const BUILD: &str = r##"
set -e
cd "$2"; mkdir build; cd build; tar xf "$1"
for header in stdio stdlib string unistd errno fcntl signal time limits math; do
    echo "#include <$header.h>" >conftest.c; cc -c conftest.c; rm conftest.c conftest.o
done
for file in part*.c; do cc -O1 -c "$file"; done
cc -o program ./*.o; ./program
cd ..; rm -r build
"##;

/// Measures the group.
///
/// # Errors
/// When a tree cannot be made, or a server does not come up.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    let ground = Ground::ext4(&bench.scratch, "relay", 4 << 30, 200_000)?;
    let (store, plain) = (ground.dir().join("store"), ground.dir().join("plain"));
    fs::create_dir_all(store.join(CRYPT))?;
    fs::create_dir(&plain)?;
    let archive = program(bench, ground.dir())?;
    let server = servers::outrigger(bench, "nfs", &[Path::new("--state"), ground.dir(), &store])?;
    let (_relay, relayed) = relay(bench, &server)?;
    let pass = ground.dir().join("pass");
    fs::write(&pass, "a passphrase\n")?;
    fs::set_permissions(&pass, Permissions::from_mode(0o600))?;
    let init = ["crypt", "init", "--passfile"];
    run(Command::new(&bench.outrigger).args(init).arg(&pass).arg(store.join(CRYPT)))?;
    let mounts = [
        mount(bench, DIRECT, server.address, "", None)?,
        mount(bench, RELAY, relayed, "", None)?,
        mount(bench, CRYPT, server.address, CRYPT, Some(format!("crypt=passfile={}", pass.display())))?,
    ];
    let size = if bench.quick { SIZE / 10 } else { SIZE };
    for mount in [&mounts[0], &mounts[2]] {
        trees::big_file(&mount.dir.join("big"), size)?;
    }
    for mount in &mounts {
        fs::create_dir(mount.dir.join(format!("of-{}", mount.name)))?;
    }
    let build = |mount: &Mount| {
        let own = mount.dir.join(format!("of-{}", mount.name));
        seconds(Command::new("sh").args(["-c", BUILD, "sh"]).args([&archive, &own])).map(Some)
    };
    let read = |mount: &Mount| files::read_rate(&mount.dir.join("big"), true);
    let below = |subject, factor, than| Goal::Below { subject, factor, than };
    let rows = vec![
        bench
            .on_mounts("untar, configure, compile, delete", Unit::Seconds, &mounts, build)?
            .goal(below(RELAY, 1.04, DIRECT))
            .goal(below(CRYPT, 1.1, RELAY)),
        bench.on_mounts("read a file", Unit::MegabytesPerSecond, &mounts, read)?.goal(Goal::Above {
            subject: RELAY,
            factor: 0.92,
            than: DIRECT,
        }),
    ];
    Ok(vec![Table { name: "relay", title: "an NFS server of this machine".to_owned(), rows }])
}

/// An archive of a C program.
pub(super) fn program(bench: &Bench, ground: &Path) -> Result<PathBuf> {
    let (tree, archive) = (ground.join("tree"), ground.join("tree.tar"));
    fs::create_dir(&tree)?;
    let mut main = String::new();
    let mut sum = String::from("0");
    for file in 0..bench.scaled(FILES) {
        let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for function in 0..FUNCTIONS {
            writeln!(
                text,
                "int part{file}_{function}(int n) {{ char b[64]; snprintf(b, sizeof b, \"%d\", n); return atoi(b) + {function}; }}"
            )?;
        }
        fs::write(tree.join(format!("part{file}.c")), text)?;
        writeln!(main, "int part{file}_0(int);")?;
        write!(sum, " + part{file}_0(0)")?;
    }
    fs::write(tree.join("partmain.c"), format!("{main}int main(void) {{ return {sum}; }}\n"))?;
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg("."))?;
    Ok(archive)
}

/// The relay of the guide, and where it listens.
fn relay(bench: &Bench, server: &Server) -> Result<(Process, SocketAddr)> {
    let program = bench.outrigger.with_file_name("examples").join(RELAY);
    let mut command = Command::new(program);
    command.args([&server.address.to_string(), "/", "127.0.0.1:0"]);
    let mut process = Process::start(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
    let mut line = String::new();
    let errors = process.stderr().context("standard error is a pipe")?;
    BufReader::new(errors).read_line(&mut line)?;
    let address = line.split(' ').next().and_then(|address| address.parse().ok());
    Ok((process, address.with_context(|| format!("{command:?} says {line:?}"))?))
}

fn mount(
    bench: &Bench,
    name: &'static str,
    at: SocketAddr,
    path: &str,
    layer: Option<String>,
) -> Result<Mount> {
    let dir = bench.mountpoint(&format!("nfs-{name}"));
    let mut server = mounts::outrigger(&bench.outrigger, &format!("nfs://{at}/{path}"), &dir, "");
    if let Some(layer) = layer {
        server.args(["--layer", &layer]);
    }
    Mount::start(name, dir, server)
}
