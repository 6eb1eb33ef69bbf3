// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of an FTP server (pure-ftpd), over lines on which an answer takes 5 ms: listing, much content, many small files.

use super::Bench;
use super::far::{self, Far, OURS, copy_script, create_script, large_size, row};
use crate::mounts;
use crate::scratch::Ground;
use crate::table::{Goal, Row, Table};
use anyhow::{Context, Result, ensure};
use outrigger_remote::{FtpServer, Ftpd, Line};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const RCLONE: &str = "rclone";
/// The same with asynchronous writeback, as rclone has it.
const BEHIND: &str = "outrigger, write=behind";
const CURLFTPFS: &str = "curlftpfs";
/// `curl`, which is as fast as the protocol is.
const CURL: &str = "curl";

/// The server, the way to it, and what it has.
struct Ftp {
    server: FtpServer,
    line: Line,
    store: PathBuf,
    /// The password as rclone(1) takes it.
    obscured: String,
}

/// Measures the group.
///
/// # Errors
/// When the server is missing or cannot be started, or a mount does not come up.
pub fn measure(bench: &Bench) -> Result<Vec<Table>> {
    if let Some(missing) = Ftpd::PureFtpd.missing() {
        eprintln!("SKIPPED: {missing} is missing; the group ftp is left out (make deps)");
        return Ok(Vec::new());
    }
    let ground = Ground::tmpfs(&bench.scratch, "ftp", 2 << 30, 100_000)?;
    let ftp = prepare(bench, ground.dir())?;
    let url = format!("ftp://{}", ftp.server.place(ftp.line.port()));
    let get = format!("curl -sS {url}/large -o /dev/null");
    let put = format!("curl -sS -T {} {url}/copy", ftp.store.join("large").display());
    let (mb, small) = (large_size(bench) >> 20, bench.scaled(1000));
    let faster = |row: Row| {
        let row = row.goal(Goal::Below { subject: BEHIND, factor: 1.0, than: RCLONE });
        row.goal(Goal::Below { subject: OURS, factor: 1.0, than: CURLFTPFS })
    };
    let like_curl = || Goal::Below { subject: OURS, factor: 1.15, than: CURL };
    let one = |what: &str, script: &str, curl| row(bench, &ftp, what, script, curl);
    let rows = vec![
        faster(one("ls -lR of 4000 files in 211 directories", r#"ls -lR "$1/tree""#, None)?),
        faster(one(&format!("read of {mb} MiB"), r#"cat "$1/large" > /dev/null"#, Some((CURL, &get)))?)
            .goal(like_curl()),
        faster(one(&format!("write of {mb} MiB"), &copy_script(&ftp.store), Some((CURL, &put)))?)
            .goal(like_curl()),
        faster(one(&format!("read of {small} files of 4 KiB"), r#"cat "$1"/small/*"#, None)?),
        faster(one(&format!("write of {small} files of 4 KiB"), &create_script(bench, &ftp.store), None)?),
    ];
    let title = format!("a mount made for each sample, {} ms away", bench.way.delay.as_millis());
    Ok(vec![Table { name: "ftp", title, rows }])
}

/// Starts the server and makes what is read.
fn prepare(bench: &Bench, dir: &Path) -> Result<Ftp> {
    let dir = dir.join("ftpd");
    fs::create_dir(&dir)?;
    let server = Ftpd::PureFtpd.start(&dir)?;
    let store = server.root();
    far::fill(bench, &store)?;
    let obscured = match &bench.peers.rclone {
        Some(rclone) => {
            let output = Command::new(rclone).args(["obscure", "secret"]).output()?;
            ensure!(output.status.success(), "rclone obscure: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).context("rclone obscure prints UTF-8")?.trim().to_owned()
        }
        None => String::new(),
    };
    let line = Line::ftp(server.port(), bench.way.delay, bench.way.rate)?;
    Ok(Ftp { server, line, store, obscured })
}

impl Far for Ftp {
    fn store(&self) -> &Path {
        &self.store
    }

    fn subjects(&self, bench: &Bench) -> Vec<&'static str> {
        let rclone = bench.peers.rclone.as_ref().map(|_| RCLONE);
        let curlftpfs = bench.peers.curlftpfs.as_ref().map(|_| CURLFTPFS);
        [OURS, BEHIND].into_iter().chain(rclone).chain(curlftpfs).collect()
    }

    fn command(&self, bench: &Bench, subject: &'static str, dir: &Path) -> Result<Command> {
        let place = self.server.place(self.line.port());
        if [OURS, BEHIND].contains(&subject) {
            let options = if subject == BEHIND { "cache=20,write=behind" } else { "cache=20" };
            return Ok(mounts::outrigger(&bench.outrigger, &format!("ftp://{place}/"), dir, options));
        }
        if subject == CURLFTPFS {
            let mut command = far::peer(&bench.peers.curlftpfs)?;
            command.args(["-f", &format!("ftp://{place}/")]).arg(dir);
            return Ok(command);
        }
        let (port, obscured) = (self.line.port(), &self.obscured);
        let remote = format!(":ftp,host=localhost,port={port},user=alice,pass={obscured}:/");
        far::rclone(bench, &remote, dir)
    }
}
