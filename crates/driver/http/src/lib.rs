// SPDX-License-Identifier: MIT OR Apache-2.0
//! A directory of an HTTP server as a tree that is only read, and of a WebDAV server as one that can be changed, in clear or over TLS
//! (RFC 9110, 9112, 9113, 4918).
//!
//! [`Http`] is the toolkit's tree of a server of whole files on the crate reqwest, which makes the connections: HTTP/2 where the server
//! offers it, keep-alive, proxies, and redirects one by one, each of which this driver permits.
//!
//! | operation | asks |
//! |---|---|
//! | listing a directory | GET of its index page: nothing for single files |
//! | lookup, getattr | HEAD; one byte with GET where the server does not know HEAD, or does not tell the size there |
//! | several names in a row, as of a LOCATION | HEAD of the last one: directories that the server does not show may be on the way to a file |
//! | reading | GET with a range: 256 KiB, then twice as much each time up to 64 MiB, while the file is read on |
//!
//! # Directories
//!
//! A path is a directory when the server redirects it to the same path with a slash, as Apache, nginx and Python do. Its names are the
//! links of its index page that lead to what is directly in it; a link to another host or directory, or with a query, is none. A name
//! that no file here can have is refused, and the listing ends with `EIO` after the rest. An index page is HTML of any server, or
//! JSON of nginx (`autoindex_format json`). JSON tells sizes and times as they are. HTML rounds times to minutes of an unknown time
//! zone, so files are listed by name there, and looked at by HEAD, over several connections at once, when a program wants to know more. A
//! directory with an `index.html` has the names that this page links to.
//!
//! With `index=trust`, what HTML of nginx tells is believed: `ls -l` of a directory is one request. Its sizes are exact, and the others
//! (`autoindex_exact_size off` above 9999 bytes, and those of other servers) are asked for as before. Its times are rounded down to
//! minutes, until the file has been asked about; nginx writes them in UTC, unless it has `autoindex_localtime on`. A file of which
//! something is cached is asked about when it is opened, and content of another size than was listed is `ESTALE`.
//!
//! # Versions
//!
//! Each part of a file is compared with the first one that was read of it since it was opened: size, `Last-Modified` and `ETag`. When one
//! differs, the file is another one by now, and reading fails with `ESTALE` until it is opened again. So it does where size or time are
//! not those that were told before content was given out, which a cache may still have; that is told to drop it. Parts that are not those
//! asked for, or are shorter or longer than the server says, are `EIO` with the reason, after a loss of the connection was tried again. A
//! server that ignores ranges sends a file from its front; a read that goes back stages all of it on this machine (`spool=`).
//!
//! # Redirects and logins
//!
//! At most ten redirects are followed, none in a circle (`ELOOP`), and none from https to http (`EACCES`). The login of the LOCATION,
//! `~/.netrc` or `password_file=` is sent by basic authentication, to the server of the LOCATION only. Certificates are checked as
//! those of FTP servers (`ca=FILE`). Proxies come from the environment: `http_proxy`, `https_proxy`, `no_proxy`.
//!
//! # What the protocol cannot do
//!
//! * Nothing can be changed: `EROFS`.
//! * There are no owners, permissions and links; files belong to the user of this process. Times have whole seconds, and a file without
//!   `Last-Modified` is of 1970.
//! * A file whose length the server does not tell, as some that programs make, is `EOPNOTSUPP`: with a size of 0 it would read as empty.
//! * Queries cannot be asked for: `?` is a character of a name.
//! * 401 and 403 are `EACCES`, 404 and 410 `ENOENT`, 429 and 503 `EAGAIN`, and all other refusals `EIO`; the reason has the status.
//!   What changes nothing is asked again before after 429 and 503, as `Retry-After` says, within `timeout=` and over fewer connections.
//! * Content that was compressed on the way is an error. A file that is stored so, as its name or type says and `Content-Encoding` too
//!   (Apache's `AddEncoding x-gzip .gz`), is read as it is if the server sends parts of it; its coding counts as part of its version.
//!
//! # WebDAV
//!
//! [`Dav`] reads files as [`Http`] does. The rest is its own:
//!
//! | operation | asks |
//! |---|---|
//! | listing a directory | PROPFIND with depth 1: names, kinds, sizes and times of all |
//! | lookup, getattr | PROPFIND with depth 0; of a directory twice where the server wants it with a slash |
//! | writing | nothing; content is staged on this machine in a spool file, also all of a file that is appended to |
//! | close, fsync, syncfs | PROPFIND and PUT of the whole file, PROPFIND for its new tag |
//! | mkdir | MKCOL |
//! | unlink, rmdir | PROPFIND, with depth 1 for rmdir, and DELETE |
//! | rename | PROPFIND, MOVE with `Overwrite: F`; PROPFIND and MOVE once more where a file is replaced, DELETE before where an empty directory is |
//! | statfs | PROPFIND of `quota-available-bytes`; 1000 GiB where the server does not tell |
//!
//! * A file that was fetched, or emptied by `O_TRUNC`, replaces only what it was made of: PUT has the entity tag (`If-Match`, or `If` with
//!   a weak one), and what another client has stored is `ESTALE`. A new one has `If-None-Match: *`, and is `EEXIST` where another client has
//!   made one. A server without tags is asked for size and time just before. Where tags and times have whole seconds (nginx, WsgiDAV), two
//!   changes in one second look the same.
//! * After PUT the server is asked for the size: less than was sent, or nothing, is `EIO`, and so is 202 (Accepted) to any change. A PUT
//!   that breaks off may leave the old file, as with Apache, nginx and lighttpd, or the beginning of the new one, as with WsgiDAV.
//! * A file that is cached is asked about when it is opened, and cached content is that of one tag.
//! * A server that tells no version with content (lighttpd without types) is asked for it by PROPFIND before and after each part begins, over
//!   one connection more than `connections=`: those that are receiving parts may have all of them.
//! * When the answer to PUT is lost, the server's file is compared with what was sent, and sent again if it is another one. Other changes are
//!   not made again: `EIO`.
//! * The server removes and replaces directories with all that is in them. So one is listed before it is removed (`ENOTEMPTY`), and MOVE
//!   replaces only what was a file just before, with its tag, where the server compares tags at MOVE. What a server hides from its listings goes with a directory.
//! * What a program has read by a handle is of one version, until this client itself stores another.
//! * Redirects are not followed. An answer of several parts (207) to a change fails as the first of them does.
//! * There are no permissions (but setting those that are shown succeeds) and no times of one's own choice (`EOPNOTSUPP`), no links, devices and locks. `attrs=ignore` has setting them succeed. `upload=` changes nothing.
//! * 412 is `ESTALE` or `EEXIST`, 409 `ENOENT`, 413 `EFBIG`, 423 `EBUSY`, 507 `ENOSPC`, all others as for HTTP.
#![forbid(unsafe_code)]

mod client;
mod content;
mod dav;
mod host;
mod options;

pub use dav::DavHost;
pub use host::Host;
pub use options::{DAV_OPTIONS, INDEX, OPTIONS, Options, set};

use crate::client::Web;
use outrigger_core::registry::{DriverInfo, Follows, Given, Lasts, Scheme, Site};
use outrigger_core::{Error, Keep, OptionTable, Result, Runtime, Serve, Service};
use outrigger_toolkit_remote::{Authority, FileOptions, FileTree, Start};
use std::sync::Arc;

/// The description of this driver in `outrigger drivers`, the manual and completion.
pub const DRIVER: DriverInfo = DriverInfo {
    name: "http",
    opens: "directories of HTTP servers, by their index pages, and single files",
    location: "http://[USER@]HOST[:PORT]/PATH, https://...",
    options: &[&INDEX, &OPTIONS],
    cached: true,
    recalls: true,
    schemes: &[HTTP, Scheme { name: "https", open: |at, given, site| open(at, given, site, true), ..HTTP }],
    ..DriverInfo::NONE
};

/// That of the tree that can be changed.
pub const DAV_DRIVER: DriverInfo = DriverInfo {
    name: "dav",
    opens: "directories of WebDAV servers",
    location: "dav://[USER@]HOST[:PORT]/PATH, davs://... over TLS",
    writable: true,
    options: &[&DAV_OPTIONS],
    schemes: &[DAV, Scheme { name: "davs", open: |at, given, site| open_dav(at, given, site, true), ..DAV }],
    ..DRIVER
};

const HTTP: Scheme = Scheme {
    name: "http",
    follows: Follows::Authority,
    lasts: Lasts::Stored,
    open: |at, given, site| open(at, given, site, false),
};

const DAV: Scheme = Scheme { name: "dav", open: |at, given, site| open_dav(at, given, site, false), ..HTTP };

fn open(at: &str, given: &dyn Given, site: &Site<'_>, tls: bool) -> Result<Arc<dyn Service>, Error> {
    let (server, options) = asked_for(at, given, site, tls, &OPTIONS)?;
    let opened = connect(server, options, Arc::clone(site.runtime), site.keep.cloned());
    Ok(Arc::new(Serve(site.wait_for(opened)?)))
}

fn open_dav(at: &str, given: &dyn Given, site: &Site<'_>, tls: bool) -> Result<Arc<dyn Service>, Error> {
    let (server, options) = asked_for(at, given, site, tls, &DAV_OPTIONS)?;
    let opened = connect_dav(server, options, Arc::clone(site.runtime), site.keep.cloned());
    Ok(Arc::new(Serve(site.wait_for(opened)?)))
}

fn asked_for(
    at: &str,
    given: &dyn Given,
    site: &Site<'_>,
    tls: bool,
    table: &OptionTable,
) -> Result<(Authority, Options)> {
    let mut options = Options { files: FileOptions::at(site, tls), ..Options::default() };
    given.apply(&mut |key, value| set(table, &mut options, key, value))?;
    Ok((Authority::parse(at)?, options))
}

/// An HTTP server, served as a tree.
pub type Http = FileTree<Host>;

/// A WebDAV server, served as a tree.
pub type Dav = FileTree<DavHost>;

/// Looks whether the server is there, unless that is known, and serves it from its root. Tasks run on `runtime`. With `keep`, the tree outlives this process.
///
/// # Errors
/// Why there is no connection, and `EACCES` when the certificate is not the server's; `EUCLEAN` when `keep` has something else.
pub async fn connect(
    server: Authority,
    options: Options,
    runtime: Arc<dyn Runtime>,
    keep: Option<Arc<dyn Keep>>,
) -> Result<Http> {
    let Options { files: options, trusts_index } = options;
    options.check("https://")?;
    let start = Start::find(keep.as_deref(), &server, &options)?;
    let host = Host::new(Web::new(&server, &start, options.clone(), &host::MANNER)?, trusts_index);
    let reach = async || if options.is_known { Ok(()) } else { host.reach().await };
    let base = start.base(true, async || reach().await.map(|()| Vec::new())).await?;
    FileTree::open(host, base, options, runtime, keep)
}

/// The same for a WebDAV server.
///
/// # Errors
/// As [`connect`].
pub async fn connect_dav(
    server: Authority,
    options: Options,
    runtime: Arc<dyn Runtime>,
    keep: Option<Arc<dyn Keep>>,
) -> Result<Dav> {
    let options = options.files;
    options.check("davs://")?;
    let start = Start::find(keep.as_deref(), &server, &options)?;
    let host = DavHost::new(Web::new(&server, &start, options.clone(), &dav::MANNER)?);
    let reach = async || if options.is_known { Ok(()) } else { host.reach().await };
    let base = start.base(true, async || reach().await.map(|()| Vec::new())).await?;
    FileTree::open(host, base, options, runtime, keep)
}
