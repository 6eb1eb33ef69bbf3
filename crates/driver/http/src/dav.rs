// SPDX-License-Identifier: MIT OR Apache-2.0
//! A WebDAV server (RFC 4918): a tree that is listed in one request for a directory, and that can be changed.

use crate::client::{Answer, Ask, Fault, Manner, Refused, Web, stay, tag_hash};
use crate::content::Content;
use crate::host::{ENTRY, Host, Transfer};
use bytes::BytesMut;
use outrigger_core::{Errno, Error, FileKind, Parallel, Result, Time};
use outrigger_proto_http::{Member, Multistatus, Url};
use outrigger_toolkit_remote::{
    Begun, FileServer, Found, Listing, Put, Readings, Refusal, Staged, Version, changed_by_others, is_below,
    repeated,
};
use reqwest::{Method, StatusCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MADE_BY_OTHERS: &str = "another client has made a file of this name meanwhile";
const PROPERTIES: &str = r#"<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:prop><D:resourcetype/><D:getcontentlength/><D:getlastmodified/><D:getetag/></D:prop></D:propfind>"#;
/// RFC 4331. It is not asked for with the others, since some servers have to add up for it.
const QUOTA: &str = r#"<?xml version="1.0" encoding="utf-8"?><D:propfind xmlns:D="DAV:"><D:prop><D:resourcetype/><D:quota-available-bytes/></D:prop></D:propfind>"#;

pub(crate) const MANNER: Manner = Manner { schemes: ["dav", "davs"], permitted: stay };

/// A WebDAV server, for [`FileTree`](outrigger_toolkit_remote::FileTree).
pub struct DavHost {
    /// What reads files.
    http: Host,
    /// Reading a file tells nothing of its version, as with lighttpd: only listing it does.
    tells_when_listed: AtomicBool,
}

fn method(name: &str) -> Method {
    Method::from_bytes(name.as_bytes()).expect("a name of letters")
}

fn with_slash(path: &[u8]) -> Vec<u8> {
    if path.ends_with(b"/") { path.to_vec() } else { [path, b"/"].concat() }
}

impl DavHost {
    pub(crate) fn new(web: Web) -> Self {
        DavHost { http: Host::new(web, false), tells_when_listed: AtomicBool::new(false) }
    }

    pub(crate) async fn reach(&self) -> Result<()> {
        self.http.reach().await
    }

    fn url(&self, path: &[u8]) -> Url {
        self.http.web.url(path)
    }

    /// What the server says of what is at a path, with `depth` 1 also of what is in it.
    async fn find(&self, path: &[u8], depth: &str, what: &'static str) -> Result<Multistatus, Fault> {
        self.find_as(path, (depth, what), false).await
    }

    async fn find_as(
        &self,
        path: &[u8],
        (depth, what): (&str, &'static str),
        is_beside: bool,
    ) -> Result<Multistatus, Fault> {
        let url = self.url(path);
        let (fields, content) = (vec![("depth", depth.to_owned())], Content::Xml(what));
        let ask = Ask { fields, content, is_beside, ..Ask::new(method("PROPFIND"), &url) };
        let mut answer = match self.http.ask(ask.clone()).await {
            Err(Fault::Refused(refused)) if refused.wants_slash => {
                let url = &self.url(&with_slash(path));
                self.http.ask(Ask { url, ..ask }).await
            }
            answer => answer,
        }
        .map_err(|fault| match fault {
            Fault::Refused(refused) if refused.is_unknown() => no_webdav(refused.status).into(),
            fault => fault,
        })?;
        match answer.response.status() {
            StatusCode::MULTI_STATUS => self.multistatus(&url, &mut answer).await,
            status => Err(no_webdav(status).into()),
        }
    }

    async fn multistatus(&self, url: &Url, answer: &mut Answer) -> Result<Multistatus, Fault> {
        let page = self.http.page(answer).await?;
        let all = Multistatus::of(url, &page).map_err(|odd| Errno::EPROTO.because(odd.to_string()))?;
        self.http.must_fit(page.len() + all.members.len() * ENTRY)?;
        Ok(all)
    }

    async fn member(&self, path: &[u8], what: &'static str) -> Result<Member, Fault> {
        own(self.find(path, "0", what).await?)
    }

    /// Begins to read a file whose version is known from listing it only: before and afterwards it is the same.
    async fn begin_as_listed(&self, path: &[u8], offset: u64) -> Result<Begun<Transfer>, Fault> {
        let listed = version(&self.member(path, PROPERTIES).await?);
        let mut begun = self.http.begin(path, offset).await?;
        self.check_still(path, listed).await?;
        begun.version = Version { size: begun.version.size.or(listed.size), ..listed };
        begun.transfer.iter_mut().for_each(|transfer| transfer.listed = Some((path.to_vec(), listed)));
        Ok(begun)
    }

    /// Fails when a file is another one by now, which is a loss: it is asked for again. The file is being received meanwhile.
    async fn check_still(&self, path: &[u8], listed: Version) -> Result<(), Fault> {
        if version(&own(self.find_as(path, ("0", PROPERTIES), true).await?)?) == listed {
            return Ok(());
        }
        Err(Fault::Lost(Errno::EIO.because("the file was changed at the server while it was read")))
    }

    async fn look(&self, path: &[u8]) -> Result<Found, Fault> {
        match found(self.member(path, PROPERTIES).await?) {
            Found { kind: FileKind::Regular, size: None, .. } => self.http.look(path).await,
            found => Ok(found),
        }
    }

    /// Has something done. An answer about single resources may say that it was not.
    async fn have_done(&self, ask: Ask<'_>) -> Result<(), Fault> {
        let (method, url) = (ask.method.clone(), ask.url);
        let mut answer = self.http.ask(ask).await?;
        match answer.response.status() {
            StatusCode::MULTI_STATUS => {}
            StatusCode::ACCEPTED => {
                let why = "the server says that it may do it later (202 Accepted), and does not say when it is done";
                return Err(Errno::EIO.because(why).into());
            }
            _ => return Ok(()),
        }
        let failed = self.multistatus(url, &mut answer).await?.failed;
        match failed.and_then(|status| StatusCode::from_u16(status).ok()) {
            None => Ok(()),
            Some(status) => {
                let advice = ", of something in it: a part may be done".to_owned();
                Err(Fault::Refused(Refused { method, status, wants_slash: false, busy: None, advice }))
            }
        }
    }

    /// Has something done to a resource if it is still what it is now.
    async fn have_done_if_still(&self, ask: Ask<'_>, path: &[u8], now: &Member) -> Result<(), Fault> {
        let condition = now.tag.as_deref().map(|tag| only_if(ask.url, tag));
        // To some servers no weak tag is ever the same.
        let is_weak = now.tag.as_deref().is_some_and(|tag| !is_strong(tag));
        self.have_done_on(ask, condition, is_weak, (path, now)).await
    }

    /// Has something done on a condition about the resource at `path`. Where the server may judge that wrongly, and finds it not met though
    /// the resource still is what it was `then`, it is left out.
    async fn have_done_on(
        &self,
        ask: Ask<'_>,
        condition: Option<(&'static str, String)>,
        may_misjudge: bool,
        (path, then): (&[u8], &Member),
    ) -> Result<(), Fault> {
        let has_condition = condition.is_some();
        let mut fields = ask.fields.clone();
        fields.extend(condition);
        match self.have_done(Ask { fields, ..ask.clone() }).await {
            Err(Fault::Refused(refused))
                if has_condition
                    && may_misjudge
                    && refused.status == StatusCode::PRECONDITION_FAILED
                    && version(&self.member(path, PROPERTIES).await?) == version(then) =>
            {
                self.have_done(ask).await
            }
            done => done,
        }
    }

    /// Puts a file in place of the one that it was made of, or where there is none.
    async fn put(&self, path: &[u8], staged: &Arc<Staged>) -> Result<(), Fault> {
        let (state, url) = (staged.state(), self.url(path));
        let ask = Ask { content: Content::File(Arc::clone(staged)), ..Ask::new(Method::PUT, &url) };
        let put = match state.seen {
            _ if state.is_new => {
                self.check_free(path).await?;
                self.have_done(Ask { fields: vec![("if-none-match", "*".to_owned())], ..ask }).await
            }
            None => self.have_done(ask).await,
            Some(seen) => {
                let now = self.member(path, PROPERTIES).await?;
                if version(&now) != seen {
                    return Err(changed_by_others().into());
                }
                self.have_done_if_still(ask, path, &now).await
            }
        };
        match put {
            Err(Fault::Refused(refused)) if refused.wants_slash => Err(Errno::EISDIR.into()),
            Err(Fault::Refused(refused)) if refused.status == StatusCode::PRECONDITION_FAILED => {
                Err(if state.is_new { Errno::EEXIST.because(MADE_BY_OTHERS) } else { changed_by_others() }
                    .into())
            }
            done => done,
        }
    }

    /// Fails where something has a name: some servers (nginx) store a file whatever `If-None-Match` says.
    async fn check_free(&self, path: &[u8]) -> Result<(), Fault> {
        match self.member(path, PROPERTIES).await {
            Ok(_) => Err(Errno::EEXIST.because(MADE_BY_OTHERS).into()),
            Err(Fault::Refused(refused)) if refused.error().errno == Errno::ENOENT => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Whether the server has exactly what is staged.
    async fn has(&self, path: &[u8], staged: &Staged) -> Result<bool, Fault> {
        let Begun { transfer, version, .. } = self.begin(path, 0).await?;
        if version.size != Some(staged.state().size) {
            return Ok(false);
        }
        let (Some(mut transfer), mut at) = (transfer, 0) else { return Ok(true) };
        loop {
            let mut piece = BytesMut::with_capacity(1 << 17);
            match self.receive(&mut transfer, &mut piece).await? {
                0 => return Ok(at == staged.state().size),
                len if staged.read(at, len)? != piece => return Ok(false),
                len => at += len as u64,
            }
        }
    }

    async fn delete(&self, path: &[u8], now: &Member) -> Result<(), Fault> {
        let url = self.url(&if now.is_dir { with_slash(path) } else { path.to_vec() });
        self.have_done_if_still(Ask::new(Method::DELETE, &url), path, now).await
    }

    /// Gives what is at a path another name, which nothing has, or which this file has that is replaced.
    async fn give_name(
        &self,
        source: &Member,
        [from, to]: [&[u8]; 2],
        target: Option<&Member>,
    ) -> Result<(), Fault> {
        if is_below(from, to) {
            return Err(Errno::EINVAL.because("a directory cannot go into itself").into());
        }
        let place = |path: &[u8]| self.url(&if source.is_dir { with_slash(path) } else { path.to_vec() });
        let (path, from, to) = (to, place(from), place(to));
        let overwrite = if target.is_some() { "T" } else { "F" };
        let fields = vec![("destination", to.as_str().to_owned()), ("overwrite", overwrite.to_owned())];
        let ask = Ask { fields, ..Ask::new(method("MOVE"), &from) };
        let Some(target) = target else { return self.have_done(ask).await };
        // A collection that another client has put there meanwhile would go with all that is in it. Some servers know this field for
        // locks only.
        let tag = target.tag.as_deref().filter(|tag| is_strong(tag));
        self.have_done_on(ask, tag.map(|tag| if_tag(&to, tag)), true, (path, target)).await
    }

    /// Renames as rename(2) does. The server replaces a directory with all that is in it: it is not asked to.
    async fn rename_over(&self, from: &[u8], to: &[u8]) -> Result<(), Fault> {
        let (source, paths) = (self.member(from, PROPERTIES).await?, [from, to]);
        let refused = match self.give_name(&source, paths, None).await {
            Err(Fault::Refused(refused)) => refused,
            done => return done,
        };
        let target = match self.member(to, PROPERTIES).await {
            Err(Fault::Refused(_)) => return Err(Fault::Refused(refused)),
            target => target?,
        };
        match (source.is_dir, target.is_dir) {
            (false, true) => Err(Errno::EISDIR.into()),
            (true, false) => Err(Errno::ENOTDIR.into()),
            // For another reason it would be refused again, with the directory gone.
            (true, true) if refused.status != StatusCode::PRECONDITION_FAILED => Err(Fault::Refused(refused)),
            (true, true) => {
                self.remove_dir(to).await?;
                self.give_name(&source, paths, None).await
            }
            (false, false) => self.give_name(&source, paths, Some(&target)).await,
        }
    }
}

impl FileServer for DavHost {
    const TELLS_PLACES: bool = true;
    const TELLS_VERSIONS: bool = true;
    const HIDES_DIRECTORIES: bool = true;
    const STORES_IF_UNCHANGED: bool = true;
    const APPENDS: bool = false;
    const PARALLEL: Parallel = Parallel { reads: 1, listings: 4 };

    type Transfer = Transfer;
    type Refusal = Refused;

    fn driver(&self) -> &'static str {
        "dav"
    }

    fn shown(&self) -> String {
        self.http.web.shown()
    }

    fn readings(&self) -> &Readings<Transfer> {
        &self.http.readings
    }

    async fn stat(&self, path: &[u8]) -> Result<Found, Fault> {
        match repeated(|_| self.look(path)).await {
            // WebDAV may be in a directory only.
            Err(Fault::Refused(_) | Fault::Known(_)) if path == b"/" => Ok(Found::new(FileKind::Directory)),
            looked => looked,
        }
    }

    async fn list(&self, path: &[u8]) -> Result<Listing, Fault> {
        let path = with_slash(path);
        let Multistatus { own, members, odd, .. } = repeated(|_| self.find(&path, "1", PROPERTIES)).await?;
        if own.is_some_and(|own| !own.is_dir) {
            return Err(Errno::ENOTDIR.into());
        }
        Ok(Listing { names: members.into_iter().map(found).collect(), odd })
    }

    async fn begin(&self, path: &[u8], offset: u64) -> Result<Begun<Transfer>, Fault> {
        if !self.tells_when_listed.load(Ordering::Relaxed) {
            let begun = self.http.begin(path, offset).await?;
            if begun.version.modified.is_some() || begun.version.tag.is_some() {
                return Ok(begun);
            }
            self.tells_when_listed.store(true, Ordering::Relaxed);
        }
        repeated(|_| self.begin_as_listed(path, offset)).await
    }

    async fn receive(&self, transfer: &mut Transfer, buffer: &mut BytesMut) -> Result<usize, Fault> {
        let received = self.http.receive(transfer, buffer).await?;
        if let Some((path, begun)) = &transfer.listed
            && std::mem::take(&mut transfer.has_new_part)
        {
            self.check_still(path, *begun).await?;
        }
        Ok(received)
    }

    async fn send(&self, path: &[u8], _: Put, staged: &Arc<Staged>, _: u64) -> Result<(), Fault> {
        let (outcome, state) = (self.put(path, staged).await, staged.state());
        // It may have been done before its answer was lost: then this client is the other one. Of files that exclude others, many look the
        // same, most of them empty.
        let may_be_done = match &outcome {
            Err(Fault::Lost(_)) => !state.exclusive || state.size > 0,
            Err(Fault::Known(error)) => {
                !state.exclusive && matches!(error.errno, Errno::ESTALE | Errno::EEXIST)
            }
            _ => false,
        };
        if may_be_done && self.has(path, staged).await.unwrap_or(false) { Ok(()) } else { outcome }
    }

    async fn rename(&self, from: &[u8], to: &[u8], _: Option<u32>) -> Result<Option<Version>, Fault> {
        match self.rename_over(from, to).await {
            // Another way to replace what has the name is not looked for.
            Err(Fault::Refused(refused)) => Err(Fault::Known(refused.error())),
            done => done.map(|()| None),
        }
    }

    async fn rename_new(&self, from: &[u8], to: &[u8]) -> Result<(), Fault> {
        self.give_name(&self.member(from, PROPERTIES).await?, [from, to], None).await
    }

    async fn make_dir(&self, path: &[u8], _: u32) -> Result<(), Fault> {
        self.have_done(Ask::new(method("MKCOL"), &self.url(&with_slash(path)))).await
    }

    async fn remove_dir(&self, path: &[u8]) -> Result<(), Fault> {
        // The server removes a directory with all that is in it.
        match self.find(path, "1", PROPERTIES).await? {
            Multistatus { own: Some(own), members, odd: None, .. } if members.is_empty() => {
                if own.is_dir {
                    self.delete(path, &own).await
                } else {
                    Err(Errno::ENOTDIR.into())
                }
            }
            _ => Err(Errno::ENOTEMPTY.into()),
        }
    }

    async fn remove(&self, path: &[u8]) -> Result<(), Fault> {
        let now = self.member(path, PROPERTIES).await?;
        if now.is_dir { Err(Errno::EISDIR.into()) } else { self.delete(path, &now).await }
    }

    async fn set_mode(&self, _: &[u8], _: u32) -> Result<(), Fault> {
        Err(Errno::EOPNOTSUPP.because("WebDAV has no permissions").into())
    }

    async fn set_time(&self, _: &[u8], _: Time) -> Result<(), Fault> {
        Err(Errno::EOPNOTSUPP.because("WebDAV has no way to set times").into())
    }

    async fn free_space(&self, path: &[u8]) -> Result<Option<u64>, Fault> {
        Ok(repeated(|_| self.member(path, QUOTA)).await?.free)
    }
}

/// What an answer says of the resource that was asked about.
fn own(answer: Multistatus) -> Result<Member, Fault> {
    answer.own.ok_or_else(|| {
        let odd = answer.odd.unwrap_or_default();
        let why = format!("the server was asked about a path and tells of '{odd}'");
        Errno::EPROTO.because(why).into()
    })
}

fn no_webdav(status: StatusCode) -> Error {
    let why = format!(
        "the server has no WebDAV at this place: it answers PROPFIND with {status}; dav://HOST/PATH names a directory where it has (run --map /NAME=dav://HOST/PATH), and http:// and https:// read what is there"
    );
    Errno::EOPNOTSUPP.because(why)
}

fn found(member: Member) -> Found {
    let kind = if member.is_dir { FileKind::Directory } else { FileKind::Regular };
    let Version { size, modified, tag } = version(&member);
    Found { name: member.name.into(), size, modified, tag, ..Found::new(kind) }
}

fn version(member: &Member) -> Version {
    Version { size: member.size, modified: member.modified, tag: member.tag.as_deref().map(tag_hash) }
}

fn is_strong(tag: &str) -> bool {
    tag.len() > 1 && tag.starts_with('"') && tag.ends_with('"')
}

/// The field with which a request does nothing when the resource does not have this tag any more. A weak one, which servers give in the second
/// after a change, may be named in that of WebDAV only.
fn only_if(url: &Url, tag: &str) -> (&'static str, String) {
    if is_strong(tag) { ("if-match", tag.to_owned()) } else { if_tag(url, tag) }
}

/// The same by WebDAV (RFC 4918, 10.4), which can be of another resource than the one asked for.
fn if_tag(url: &Url, tag: &str) -> (&'static str, String) {
    ("if", format!("<{url}> ([{tag}])"))
}
