// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees of servers, which are started here.

use crate::trees::{Outcome, Subject, Tree, below, connected};
use outrigger_conformance::mount::{NO_SEEK, program};
use outrigger_conformance::{ftp, http, nfs, ninep, sample, sftp};
use outrigger_driver_ftp::{Options as FtpOptions, connect as connect_ftp};
use outrigger_driver_http::{Options as HttpOptions, connect as connect_http, connect_dav};
use outrigger_driver_nfs::{Nfs, Options as NfsOptions};
use outrigger_driver_ninep::{NineP, Options as NinePOptions};
use outrigger_driver_sftp::{Options as SftpOptions, Sftp};
use outrigger_remote::{Diod, Ftpd, HOST, Httpd, Nfsd, Sshd};
use outrigger_toolkit_remote::{Authority, FileOptions};
use std::any::Any;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub const SUBJECTS: &[Subject] = &[
    Subject {
        missing: || lacks(Sshd::missing()),
        direct: &[sftp::SFTP, sftp::SERVICE],
        mounted: &[sftp::SFTP, sftp::MOUNTED],
        ..Subject::new("sftp", sftp_of_openssh)
    },
    Subject {
        missing: || lacks(Diod::missing()),
        direct: &[ninep::DRIVER, ninep::DIOD, ninep::SERVICE],
        mounted: &[ninep::DRIVER, ninep::DIOD, ninep::MOUNTED, NO_SEEK],
        ..Subject::new("9p", ninep_of_diod)
    },
    Subject {
        missing: || lacks(Nfsd::Ganesha.missing()),
        direct: &[nfs::DRIVER, nfs::SERVICE, nfs::GANESHA],
        mounted: &[nfs::DRIVER, nfs::GANESHA, NO_SEEK],
        ..Subject::new("nfs", nfs_of_ganesha)
    },
    Subject {
        missing: || lacks(program().is_none().then_some("outrigger program")),
        direct: &[nfs::DRIVER, nfs::SERVICE],
        mounted: &[nfs::DRIVER, NO_SEEK],
        ..Subject::new("serve nfs", nfs_of_our_own)
    },
    Subject {
        missing: || lacks(Ftpd::Vsftpd.missing()),
        direct: &[ftp::FTP, ftp::VSFTPD, ftp::SERVICE],
        mounted: &[ftp::FTP, ftp::VSFTPD, NO_SEEK],
        ..Subject::new("ftp", |dir| ftp_of(Ftpd::Vsftpd, dir))
    },
    Subject {
        missing: || lacks(Ftpd::PureFtpd.missing()),
        direct: &[ftp::FTP, ftp::SERVICE],
        mounted: &[ftp::FTP, NO_SEEK],
        ..Subject::new("ftp MLSD", |dir| ftp_of(Ftpd::PureFtpd, dir))
    },
    Subject {
        missing: || lacks(Httpd::Dav.missing()),
        direct: &[http::DAV, http::DAV_SERVICE],
        mounted: &[http::DAV, NO_SEEK],
        ..Subject::new("dav", dav_of_apache)
    },
    Subject {
        missing: || lacks(Httpd::Nginx.missing()),
        has_sample: true,
        direct: &[http::HTTP],
        mounted: &[http::HTTP, http::HTTP_MOUNTED],
        ..Subject::new("http", http_of_nginx)
    },
];

/// What is missing, of a server that only the superuser starts.
fn lacks(program: Option<&str>) -> Option<String> {
    let is_root = rustix::process::geteuid().is_root();
    program.or((!is_root).then_some("right to be root")).map(str::to_owned)
}

/// Symbolic links lead where the cases want them to.
const LINKS: &str = ",no_contain_symlinks";

fn sftp_of_openssh(dir: &Path) -> Outcome<Tree> {
    let (host, far) = (below(dir, "sshd")?, below(dir, "tree")?);
    let server = Sshd::start(host)?;
    let configuration = server.configuration().display().to_string();
    let (location, options) = (format!("{HOST}:{}", far.display()), format!("{LINKS},F={configuration}"));
    let tree = Tree::new(location, server, move |threads| {
        let mut options = SftpOptions::default();
        options.set("F", &configuration)?;
        let path = far.as_os_str().as_encoded_bytes();
        connected(threads, Sftp::connect(HOST, path, options, threads.clone(), None))
    });
    Ok(tree.with(options))
}

fn ninep_of_diod(dir: &Path) -> Outcome<Tree> {
    let server = Diod::start(dir)?;
    let (at, root) = (format!("127.0.0.1:{}", server.port()), server.root().display().to_string());
    let tree = Tree::new(format!("9p://{at}{root}"), server, move |threads| {
        let options = NinePOptions { aname: Some(root), ..NinePOptions::default() };
        connected(threads, NineP::connect(at, options, threads.clone(), None))
    });
    Ok(tree.with(LINKS))
}

fn nfs_of(server: impl Any, (port, mountport): (u16, u16), export: String) -> Tree {
    let tree = Tree::new(format!("nfs://127.0.0.1:{port}{export}"), server, move |threads| {
        let options = NfsOptions { port: Some(port), mountport: Some(mountport), ..NfsOptions::default() };
        let host = "127.0.0.1".to_owned();
        connected(threads, Nfs::connect(host, Some(export.as_bytes()), options, threads.clone(), None))
    });
    tree.with(format!("{LINKS},mountport={mountport}"))
}

fn nfs_of_ganesha(dir: &Path) -> Outcome<Tree> {
    let server = Nfsd::Ganesha.start(dir)?;
    let (ports, export) = ((server.port(), server.mount_port()), server.export());
    Ok(nfs_of(server, ports, export))
}

/// A process that ends with this.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `mem:` by `outrigger serve nfs`.
fn nfs_of_our_own(_: &Path) -> Outcome<Tree> {
    let mut command = Command::new(program().ok_or("there is no outrigger program")?);
    command.args(["serve", "nfs", "--listen", "127.0.0.1:0", "--insecure", "--squash", "none", "mem:"]);
    let mut server = Serving(command.stdout(Stdio::piped()).spawn()?);
    let mut said = BufReader::new(server.0.stdout.take().ok_or("no output")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    let port = line.strip_prefix("127.0.0.1:").and_then(|rest| rest.split_whitespace().next());
    let port =
        port.and_then(|port| port.parse().ok()).ok_or_else(|| format!("it does not listen: {line}"))?;
    Ok(nfs_of((server, said), (port, port), "/".to_owned()))
}

/// No logins but those that are given.
fn files() -> FileOptions {
    FileOptions { netrc: None, ..FileOptions::default() }
}

fn ftp_of(kind: Ftpd, dir: &Path) -> Outcome<Tree> {
    let server = kind.start(dir)?;
    let place = server.place(server.port());
    let tree = Tree::new(format!("ftp://{place}"), server, move |threads| {
        let options = FtpOptions { files: files(), ..FtpOptions::default() };
        connected(threads, connect_ftp(Authority::parse(&place)?, options, threads.clone(), None))
    });
    Ok(tree.with(LINKS))
}

fn dav_of_apache(dir: &Path) -> Outcome<Tree> {
    let server = Httpd::Dav.start(dir)?;
    let place = format!("127.0.0.1:{}", server.port());
    let tree = Tree::new(format!("dav://{place}"), server, move |threads| {
        let options = HttpOptions { files: files(), ..HttpOptions::default() };
        connected(threads, connect_dav(Authority::parse(&place)?, options, threads.clone(), None))
    });
    Ok(tree.with(LINKS))
}

fn http_of_nginx(dir: &Path) -> Outcome<Tree> {
    let server = Httpd::Nginx.start(dir)?;
    sample::build(&server.root())?;
    let place = format!("127.0.0.1:{}", server.port());
    let tree = Tree::new(format!("http://{place}"), server, move |threads| {
        let options = HttpOptions { files: files(), ..HttpOptions::default() };
        connected(threads, connect_http(Authority::parse(&place)?, options, threads.clone(), None))
    });
    Ok(tree.with(LINKS))
}
