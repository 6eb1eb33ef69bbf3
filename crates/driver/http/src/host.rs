// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server: what a tree asks of it, as requests.

use crate::client::{Answer, Ask, Fault, Manner, Refused, Web, follow, unfit, version};
use bytes::{Bytes, BytesMut};
use outrigger_core::{Errno, FileKind, Parallel, Result, lock};
use outrigger_proto_http::{Index, Indexed, Part, Unfit, Url};
use outrigger_toolkit_remote::{
    Begun, FileServer, Found, Listing, Parts, Readings, Refusal, Version, repeated,
};
use reqwest::header::TRANSFER_ENCODING;
use reqwest::{Method, StatusCode, Version as HttpVersion};
use std::collections::HashMap;
use std::sync::Mutex;
use tokio::time::timeout;

/// What a name of an index page takes in memory beside its text, in bytes: what it says, twice while names are put in order.
pub(crate) const ENTRY: usize = 448;

/// Of so many files it is noted when they were changed.
const SEEN_MAX: usize = 1 << 16;

pub(crate) const MANNER: Manner = Manner { schemes: ["http", "https"], permitted: follow };

/// An HTTP server, for [`FileTree`](outrigger_toolkit_remote::FileTree).
pub struct Host {
    pub(crate) web: Web,
    pub(crate) readings: Readings<Transfer>,
    /// Sizes and times of HTML index pages are taken as they are.
    trusts_index: bool,
    /// What files are by HEAD, whose times such a page has rounded.
    seen: Mutex<HashMap<Vec<u8>, (u64, i64)>>,
}

/// A file that is being received, part by part.
pub struct Transfer {
    /// Where the file was found after all redirects.
    url: Url,
    parts: Parts,
    /// What brings the part; `None` when all of it has come.
    body: Option<Answer>,
    /// Another part was begun since it was looked whether the file still is the same.
    pub(crate) has_new_part: bool,
    /// Where it is, and what it was when it was begun, where reading does not tell its version, and listing it does.
    pub(crate) listed: Option<(Vec<u8>, Version)>,
}

impl Host {
    pub(crate) fn new(web: Web, trusts_index: bool) -> Self {
        Host { web, readings: Readings::default(), trusts_index, seen: Mutex::default() }
    }

    /// Notes what a file is, so that a listing need not show another time for it.
    fn note(&self, path: &[u8], found: &Found) {
        let Some(file) = found.size.zip(found.modified).filter(|_| self.trusts_index) else { return };
        let mut seen = lock(&self.seen);
        if seen.len() >= SEEN_MAX {
            seen.clear();
        }
        seen.insert(path.to_vec(), file);
    }

    /// A name of an index page of a directory, with the time at which the file was changed, in the minute of the page.
    fn trusted(&self, dir: &[u8], listed: Indexed) -> Found {
        let (size, minute) = (listed.size, listed.minute.filter(|_| self.trusts_index && !listed.is_dir));
        let (Some(size), Some(minute)) = (size, minute) else { return found(listed) };
        let path = [dir, if dir.ends_with(b"/") { b"" } else { b"/" }, &listed.name].concat();
        let seen = lock(&self.seen).get(&path).copied();
        let seen = seen.filter(|&(known, at)| known == size && at - at.rem_euclid(60) == minute);
        let modified = Some(seen.map_or(minute, |(_, at)| at));
        Found { size: Some(size), modified, is_rounded: seen.is_none(), ..found(listed) }
    }

    pub(crate) async fn ask(&self, ask: Ask<'_>) -> Result<Answer, Fault> {
        self.web.ask(&ask, || !ask.is_beside && self.readings.end_one()).await
    }

    /// Whether the server can be reached, whatever it says.
    pub(crate) async fn reach(&self) -> Result<()> {
        match self.web.ask_once(&Ask::new(Method::HEAD, &self.web.url(b"/"))).await {
            Err(Fault::Lost(error)) => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) async fn look(&self, path: &[u8]) -> Result<Found, Fault> {
        let url = self.web.url(path);
        let asked = self.ask(Ask::new(Method::HEAD, &url)).await;
        // With the answer its connection is given back, which may be needed for the next question.
        let told = match asked.map(|answer| (answer.response.url().path().ends_with('/'), answer.told)) {
            Ok((true, _)) => return Ok(Found::new(FileKind::Directory)),
            Ok((false, told)) => Some(told),
            Err(Fault::Refused(refused)) if refused.wants_slash => {
                return Ok(Found::new(FileKind::Directory));
            }
            Err(Fault::Refused(refused)) if refused.is_unknown() => None,
            Err(Fault::Refused(refused)) if refused.error().errno == Errno::ENOENT => {
                return self.look_with_slash(url, refused).await;
            }
            Err(fault) => return Err(fault),
        };
        let Version { size, modified, .. } = match told {
            Some(told) if told.size().is_some() => version(&told, told.size()),
            _ => self.look_at_part(&url).await?,
        };
        if size.is_none() {
            let why = "the server does not tell how long the file is, so it cannot be shown as one";
            return Err(Errno::EOPNOTSUPP.because(why).into());
        }
        Ok(Found { size, modified, ..Found::new(FileKind::Regular) })
    }

    /// What is at a path where there is no file: perhaps a directory that the server only knows with a slash. One that wants a login
    /// says so.
    async fn look_with_slash(&self, mut url: Url, missing: Refused) -> Result<Found, Fault> {
        url.set_path(&format!("{}/", url.path()));
        match self.ask(Ask::new(Method::HEAD, &url)).await {
            Err(Fault::Refused(Refused { status, .. })) if status != StatusCode::UNAUTHORIZED => {
                Err(Fault::Refused(missing))
            }
            asked => asked.map(|_| Found::new(FileKind::Directory)),
        }
    }

    /// What a file is of which HEAD does not tell the size: its first byte is asked for.
    async fn look_at_part(&self, url: &Url) -> Result<Version, Fault> {
        let range = (0, 0);
        let Answer { response, told, .. } = self.ask(Ask::part(url, range)).await?;
        let size = match response.status() {
            StatusCode::PARTIAL_CONTENT => Some(told.part(range).map_err(unfit)?.size),
            _ => told.size(),
        };
        Ok(version(&told, size))
    }

    async fn names(&self, path: &[u8]) -> Result<Listing, Fault> {
        let mut url = self.web.url(path);
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        let mut answer = self.ask(Ask::new(Method::GET, &url)).await?;
        let page = self.page(&mut answer).await?;
        let (base, kind) = (answer.response.url(), &answer.told.media_type);
        let no_index =
            || Errno::EIO.because(format!("the server sends no index of the directory, but {kind:?}"));
        let index = match () {
            () if kind.contains("html") => {
                if !ends(&answer) && !is_whole(&page) {
                    let why = "the index of the directory ends in the middle: the connection was lost";
                    return Err(Errno::EIO.because(why).into());
                }
                Index::of_html(base, &page)
            }
            () if kind.contains("json") => Index::of_json(&page).ok_or_else(no_index)?,
            () => return Err(no_index().into()),
        };
        self.must_fit(page.len() + index.names.len() * ENTRY)?;
        let names = index.names.into_iter().map(|listed| self.trusted(path, listed));
        Ok(Listing { names: names.collect(), odd: index.odd })
    }

    /// The content of an answer that is an index page. The library sees to it that all of it has come, if the answer says where it ends.
    pub(crate) async fn page(&self, answer: &mut Answer) -> Result<BytesMut, Fault> {
        let mut page = BytesMut::new();
        while let Some(piece) = self.piece(answer).await? {
            self.must_fit(page.len() + piece.len())?;
            page.extend_from_slice(&piece);
        }
        if answer.told.is_plain { Ok(page) } else { Err(unfit(Unfit::Compressed).into()) }
    }

    pub(crate) fn must_fit(&self, bytes: usize) -> Result<()> {
        let most = self.web.options.max_listing;
        if bytes <= most {
            return Ok(());
        }
        Err(Errno::EFBIG.because(format!(
            "the listing takes more than {most} bytes of memory; max_listing=BYTES permits more"
        )))
    }

    /// What comes next of the content of an answer; `None` at its end.
    async fn piece(&self, answer: &mut Answer) -> Result<Option<Bytes>, Fault> {
        match timeout(self.web.options.timeout, answer.response.chunk()).await {
            Ok(piece) => piece.map_err(|error| Fault::Lost(self.web.why(&error))),
            Err(_) => Err(Fault::Lost(self.web.silent("more of an answer"))),
        }
    }

    async fn begin_once(&self, path: &[u8], offset: u64) -> Result<Begun<Transfer>, Fault> {
        let (url, range) = (self.web.url(path), Parts::first(offset));
        let answer = match self.ask(Ask::part(&url, range)).await {
            Err(Fault::Refused(refused)) if refused.status == StatusCode::RANGE_NOT_SATISFIABLE => {
                return self.begin_at_end(&url, offset).await;
            }
            // Some servers (webfsd) refuse a part that would reach beyond the end of the file.
            Err(Fault::Refused(refused)) if refused.status == StatusCode::BAD_REQUEST => {
                let size = self.ask(Ask::new(Method::HEAD, &url)).await?.told.size();
                match size {
                    Some(size) if size <= offset => return self.begin_at_end(&url, offset).await,
                    Some(size) if size <= range.1 => self.ask(Ask::part(&url, (offset, size - 1))).await?,
                    _ => return Err(Fault::Refused(refused)),
                }
            }
            answer => answer?,
        };
        let told = &answer.told;
        let (at, end, size) = match answer.response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let Part { first, end, size } = told.part(range).map_err(unfit)?;
                (first, Some(end), Some(size))
            }
            _ if !told.is_plain => return Err(unfit(Unfit::Compressed).into()),
            _ => (0, told.size(), told.size()),
        };
        let (url, version) = (answer.response.url().clone(), version(told, size));
        let parts = Parts::begun(at, end, version);
        let transfer = Transfer { url, parts, body: Some(answer), has_new_part: false, listed: None };
        Ok(Begun { transfer: Some(transfer), at, version })
    }

    /// A transfer that has nothing to bring, of a file that ends at `offset` or before.
    async fn begin_at_end(&self, url: &Url, offset: u64) -> Result<Begun<Transfer>, Fault> {
        let Answer { told, .. } = self.ask(Ask::new(Method::HEAD, url)).await?;
        if told.size().is_some_and(|size| size > offset) {
            return Err(Errno::EIO
                .because("the server refuses a part of the file that it says there is")
                .into());
        }
        Ok(Begun { transfer: None, at: offset, version: version(&told, told.size()) })
    }

    /// Asks for the next part of a file. When that is refused it is a loss: the file is then asked for by its own name again, and has
    /// to be the same.
    async fn go_on(&self, transfer: &mut Transfer, range: (u64, u64)) -> Result<(), Fault> {
        let answer = match self.ask(Ask::part(&transfer.url, range)).await {
            Err(Fault::Refused(refused)) => return Err(Fault::Lost(refused.error())),
            answer => answer?,
        };
        if answer.response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(Fault::Lost(Errno::EIO.because("the server sends no parts of the file any more")));
        }
        let Part { end, size, .. } = answer.told.part(range).map_err(unfit)?;
        transfer.parts.go_on(end, version(&answer.told, Some(size)))?;
        (transfer.body, transfer.has_new_part) = (Some(answer), true);
        Ok(())
    }
}

impl FileServer for Host {
    const READ_ONLY: bool = true;
    const TELLS_PLACES: bool = true;
    const TELLS_VERSIONS: bool = true;
    const HIDES_DIRECTORIES: bool = true;
    const HIDES_NAMES: bool = true;
    const PARALLEL: Parallel = Parallel { reads: 1, listings: 4 };

    type Transfer = Transfer;
    type Refusal = Refused;

    fn driver(&self) -> &'static str {
        "http"
    }

    fn shown(&self) -> String {
        self.web.shown()
    }

    fn is_asked_at_open(&self) -> bool {
        self.trusts_index
    }

    fn readings(&self) -> &Readings<Transfer> {
        &self.readings
    }

    async fn stat(&self, path: &[u8]) -> Result<Found, Fault> {
        match path {
            b"/" => Ok(Found::new(FileKind::Directory)),
            _ => repeated(|_| self.look(path)).await.inspect(|found| self.note(path, found)),
        }
    }

    async fn list(&self, path: &[u8]) -> Result<Listing, Fault> {
        repeated(|_| self.names(path)).await
    }

    async fn begin(&self, path: &[u8], offset: u64) -> Result<Begun<Transfer>, Fault> {
        repeated(|_| self.begin_once(path, offset)).await
    }

    async fn receive(&self, transfer: &mut Transfer, buffer: &mut BytesMut) -> Result<usize, Fault> {
        let before = buffer.len();
        loop {
            let Some(body) = &mut transfer.body else {
                match transfer.parts.next() {
                    Some(range) if buffer.len() == before => self.go_on(transfer, range).await?,
                    _ => return Ok(buffer.len() - before),
                }
                continue;
            };
            match self.piece(body).await? {
                Some(piece) => {
                    transfer.parts.came(piece.len())?;
                    buffer.extend_from_slice(&piece);
                    if !transfer.parts.is_nearly_there() {
                        return Ok(buffer.len() - before);
                    }
                }
                None => {
                    transfer.body = None;
                    transfer.parts.ended()?;
                }
            }
        }
    }
}

/// A name of an index page. Its size and time are used only where the page has both: HEAD tells both, and with one of them missing the file
/// would seem to have changed between the two.
fn found(Indexed { name, is_dir, size, modified, .. }: Indexed) -> Found {
    let kind = if is_dir { FileKind::Directory } else { FileKind::Regular };
    let (size, modified) = size.zip(modified).unzip();
    Found { name: name.into(), size: size.filter(|_| !is_dir), modified, ..Found::new(kind) }
}

/// Whether an answer says where its content ends. Else it ends with the connection, also with one that is lost.
fn ends(answer: &Answer) -> bool {
    let response = &answer.response;
    answer.told.length.is_some()
        || response.headers().contains_key(TRANSFER_ENCODING)
        || response.version() > HttpVersion::HTTP_11
}

/// Whether a page has the end that all pages of indexes have. Some servers add comments.
fn is_whole(page: &[u8]) -> bool {
    const END: &[u8] = b"</html>";
    let mut rest = page.trim_ascii_end();
    while rest.ends_with(b"-->") {
        let Some(at) = rest.windows(4).rposition(|part| part == b"<!--") else { return false };
        rest = rest[..at].trim_ascii_end();
    }
    rest.len().checked_sub(END.len()).is_some_and(|at| rest[at..].eq_ignore_ascii_case(END))
}
