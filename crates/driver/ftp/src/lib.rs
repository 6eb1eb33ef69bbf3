// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of an FTP server as a tree, in clear or over TLS, explicit or implicit (RFC 959, 2389, 2428, 3659, 4217).
//!
//! [`Ftp`] is an asynchronous [`Driver`](outrigger_core::Driver) on `outrigger-proto-ftp`, a codec of ours, and the toolkit for
//! drivers of servers. The crate suppaftp was considered: it gathers listings without a bound, waits without deadlines, and sends
//! one command after the other, where this driver sends several at once and waits for one round trip.
//!
//! # Servers
//!
//! Passive mode only, EPSV or PASV; data connections go to the address of the control connection, whatever PASV says. Up to
//! `connections=N` (4) control connections are kept. With MLSD a listing tells sizes, times and permissions; without it LIST of
//! Unix and Windows is read, whose times are those of the server's clock taken for UTC, to the minute or the day. Whether another
//! client has changed a file that is going to be replaced is then asked with SIZE and MDTM. Facts of files that are only told on demand
//! are demanded with OPTS MLST.
//!
//! | operation | asks |
//! |---|---|
//! | listing a directory | MLSD, or CWD and LIST: nothing for single files |
//! | lookup, getattr | MLST, or a listing of the directory above |
//! | reading | one RETR for a file that is read from the front to the back; REST to begin elsewhere, which is tried out once with the last byte of a file. Without REST, or where it is ignored, the file comes from its front, and all of it is staged when a read goes back |
//! | writing | nothing; content is staged on this machine in a spool file |
//! | close, fsync, syncfs | STOR under a temporary name, SITE CHMOD, RNFR and RNTO; APPE where content was only appended, and where that is refused the whole file as well |
//! | rename, mkdir, rmdir, unlink | RNFR and RNTO at once, MKD, RMD, DELE |
//! | chmod | SITE CHMOD |
//! | times of change | MFMT, MDTM with a time (vsftpd), or SITE UTIME in either form; of a server that knows none of them nothing is asked again |
//!
//! The first write in the middle of a file that is not staged fetches all of it. An upload that fails is reported by close(2) or
//! fsync(2), and the server keeps the old file; with `upload=direct`, or in a directory where no file can be made, a broken upload
//! leaves what had arrived. A new file is at the server once it is closed.
//!
//! # TLS
//!
//! With `ftps://` or `tls` the login, all commands and all content go over TLS, or the tree is not opened. Certificates are checked
//! against those of the system or `ca=FILE`. Data connections resume the TLS session of their control connection, which some servers
//! demand (`require_ssl_reuse` of vsftpd). TLS is explicit (`AUTH TLS`), at port 990 and with `implicit_tls` implicit: it begins before the
//! greeting. Without TLS a password is sent in clear, as by
//! other FTP clients, with a warning in the log.
//!
//! # When the connection is lost
//!
//! Requests that only ask are made again, and a read goes on where it was, unless size or time of the file show that it was changed
//! (`ESTALE`); where it was silent for `timeout=SECONDS` twice, it is taken to hang. An upload begins anew; an append goes on after what has
//! arrived. Rename, mkdir, rmdir and unlink are not made again:
//! `EIO`. A server that is silent costs `ETIMEDOUT` after at most two times `timeout=SECONDS`; one that was there and refuses connections is tried
//! again for as long.
//!
//! # When this process is killed
//!
//! With a [`Keep`] the next process goes on with nodes, open files, the login and what was staged; connections are made anew, and
//! a broken upload is taken away. Without one it stays, under a name that begins with `.outrigger-upload-`.
//!
//! # What the protocol cannot do
//!
//! * No links are made, no devices, extended attributes, locks, holes or preallocation; owners cannot be changed or seen: files
//!   belong to the user of this process. Permissions are changed where the server has SITE CHMOD.
//! * Times have whole seconds; the time of access is that of change. A server without a command for times refuses them where they are
//!   set (`EOPNOTSUPP` from utimensat(2)), not at close(2); the present time, as touch(1) sets it, is passed over there. Those of
//!   directories are set where the server permits it, and left alone elsewhere. Free space is that of AVBL; where the server does not have it, 1000 GiB are
//!   said to be free, as by sshfs, since programs refuse to write where there seems to be none.
//! * A file made with `O_EXCL` is at the server once it is closed: close(2) fails with `EEXIST` if another client has made one of the
//!   name until then. The look and the rename are two requests.
//! * `echo text > file` of a shell empties the file and closes a duplicate of it before anything is written. That an existing file was
//!   emptied is stored with what is written next, or once the last descriptor is closed; close(2) does not wait for it, nor return its
//!   error, which `outrigger umount` names. fsync(2) waits for it.
//! * fsync means that the server has the file, not that its disk has it.
//! * Names with a line break cannot be asked for (`EINVAL`), and are not shown.
//! * A file that is open and loses its last name is renamed to `.outrigger-removed-` and a number, and removed when it is closed.
//! * Symbolic links are shown where a listing tells of them.
#![forbid(unsafe_code)]

mod host;
mod options;
mod session;

pub use host::Host;
pub use options::{OPTIONS, Options, SHARED};

use crate::session::Dialer;
use outrigger_core::registry::{DriverInfo, Follows, Given, Lasts, Scheme, Site};
use outrigger_core::{Error, Keep, Result, Runtime, Serve, Service};
use outrigger_toolkit_remote::{Authority, FileOptions, FileTree, Readings, Start, Tls, Ways};
use std::sync::{Arc, OnceLock};

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "ftp",
    opens: "directories of FTP servers, in clear or over TLS",
    location: "ftp://[USER@]HOST[:PORT]/PATH, ftps://...; PATH starts at the login directory, //PATH at the root",
    writable: true,
    options: &[&SHARED, &OPTIONS],
    cached: true,
    recalls: true,
    schemes: &[FTP, Scheme { name: "ftps", open: |at, given, site| open(at, given, site, true), ..FTP }],
    ..DriverInfo::NONE
};

const FTP: Scheme = Scheme {
    name: "ftp",
    follows: Follows::Authority,
    lasts: Lasts::Stored,
    open: |at, given, site| open(at, given, site, false),
};

fn open(at: &str, given: &dyn Given, site: &Site<'_>, tls: bool) -> Result<Arc<dyn Service>, Error> {
    let mut options = Options { files: FileOptions::at(site, tls), ..Options::default() };
    given.apply(&mut |key, value| options.set(key, value))?;
    let (server, runtime, keep) = (Authority::parse(at)?, Arc::clone(site.runtime), site.keep.cloned());
    let opened = site.wait_for(connect(server, options, runtime, keep))?;
    Ok(Arc::new(Serve(opened)))
}

/// The port at which TLS begins at once.
const IMPLICIT: u16 = 990;

/// A directory of an FTP server, served as a tree.
pub type Ftp = FileTree<Host>;

/// Connects to a server and serves the directory of the user who logs in, or the server's root. Tasks run on `runtime`. With
/// `keep`, the tree outlives this process.
///
/// # Errors
/// Why there is no connection, and `EACCES` when the login is refused or the certificate is not the server's; `EUCLEAN` when
/// `keep` has something else.
pub async fn connect(
    server: Authority,
    mut options: Options,
    runtime: Arc<dyn Runtime>,
    keep: Option<Arc<dyn Keep>>,
) -> Result<Ftp> {
    options.files.tls |= options.implicit_tls;
    options.implicit_tls |= options.files.tls && server.port == Some(IMPLICIT);
    options.files.check("ftps://")?;
    let files = options.files.clone();
    let start = Start::find(keep.as_deref(), &server, &files)?;
    let (login, pool) = (start.login.clone(), start.pool(&files));
    let Authority { host, port, from_root, .. } = server;
    let tls = files.tls.then(|| Tls::new(&host, files.ca.as_deref())).transpose()?;
    let usual = if options.implicit_tls { IMPLICIT } else { 21 };
    let (port, without_epsv, lists_all) = (port.unwrap_or(usual), options.no_epsv.into(), false.into());
    let dialer = Arc::new(Dialer { host, port, login, options, tls, without_epsv, lists_all });
    let (features, readings, times) = (OnceLock::new(), Readings::default(), Ways::default());
    let (base, clock) = (Vec::new(), Arc::clone(&runtime));
    let mut host = Host { dialer, pool, features, readings, times, base, runtime: clock };
    let home = async || {
        let session = host.lease().await?;
        let home = session.home.clone();
        session.give_back();
        Ok(home)
    };
    let base = start.base(from_root, home).await?;
    host.base.clone_from(&base);
    FileTree::open(host, base, files, runtime, keep)
}
