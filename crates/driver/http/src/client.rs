// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests: connections, redirects, logins, and what is wrong with an answer.

use crate::content::Content;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_http::{Told, Unfit, Url, decode_path, encode_path};
use outrigger_toolkit_remote::{
    Authority, Fault as AnyFault, FileOptions, Lease, Login, Outage, Pool, Refusal, Start, Tls, Version,
    hash, quoted,
};
use reqwest::header::{ACCEPT_ENCODING, HeaderValue, LOCATION, RANGE, RETRY_AFTER};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, Method, Response, StatusCode};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The most redirects that one request follows.
const REDIRECTS: usize = 10;

/// The first pause before a server is asked again that has too much to do and does not say for how long, and the longest.
const BUSY_PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// An answer that refuses something.
#[derive(Debug, Clone)]
pub struct Refused {
    pub(crate) method: Method,
    pub(crate) status: StatusCode,
    /// Whether it leads to the same path with a slash: there is a directory.
    pub(crate) wants_slash: bool,
    /// The server has too much to do just now, and may have said for how long.
    pub(crate) busy: Option<Option<Duration>>,
    /// What to do about it, if that is known.
    pub(crate) advice: String,
}

/// Why something was not done.
pub(crate) type Fault = AnyFault<Refused>;

impl Refusal for Refused {
    fn error(&self) -> Error {
        let errno = match (self.status.as_u16(), self.method.as_str()) {
            _ if self.wants_slash => Errno::EISDIR,
            (400, "PROPFIND") => Errno::EINVAL,
            (401 | 403 | 407, _) => Errno::EACCES,
            (404 | 410, _) => Errno::ENOENT,
            (405, "MKCOL") => Errno::EEXIST,
            (405 | 501, _) => Errno::EOPNOTSUPP,
            (409, "PUT" | "MKCOL" | "MOVE") => Errno::ENOENT,
            (412, "MOVE") => Errno::EEXIST,
            (412, _) => Errno::ESTALE,
            (413, _) => Errno::EFBIG,
            (414, _) => Errno::ENAMETOOLONG,
            (423, _) => Errno::EBUSY,
            (429 | 503, _) => Errno::EAGAIN,
            (507, _) => Errno::ENOSPC,
            _ => Errno::EIO,
        };
        errno.because(format!("the server says: {}{}", self.status, self.advice))
    }

    fn usual(&self) -> Option<Errno> {
        None
    }

    fn is_for_good(&self) -> bool {
        matches!(self.status.as_u16(), 405 | 501)
    }
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) url: &'a Url,
    /// The first and the last byte of what is asked for, if not all.
    pub(crate) range: Option<(u64, u64)>,
    /// Other fields.
    pub(crate) fields: Vec<(&'static str, String)>,
    pub(crate) content: Content,
    /// It is asked by who still receives an answer: it has a connection of its own, or those who wait for each other might have all.
    pub(crate) is_beside: bool,
}

impl<'a> Ask<'a> {
    /// One without fields and content.
    pub(crate) fn new(method: Method, url: &'a Url) -> Self {
        Ask { method, url, range: None, fields: Vec::new(), content: Content::None, is_beside: false }
    }

    /// For a part of what is there.
    pub(crate) fn part(url: &'a Url, range: (u64, u64)) -> Self {
        Ask { range: Some(range), ..Ask::new(Method::GET, url) }
    }
}

/// What differs between the schemes.
pub(crate) struct Manner {
    /// That without TLS, and that with it.
    pub(crate) schemes: [&'static str; 2],
    /// What becomes of each redirect.
    pub(crate) permitted: fn(Attempt<'_>) -> Action,
}

/// A server, and how it is asked.
pub(crate) struct Web {
    client: Client,
    scheme: &'static str,
    tls: Tls,
    origin: Url,
    login: Login,
    outage: Outage,
    /// As many requests are under way at once as there may be connections.
    pool: Arc<Pool<()>>,
    /// One more, for questions about what is being received.
    beside: Arc<Pool<()>>,
    pub(crate) options: FileOptions,
}

/// An answer whose content is still to come, and the right to have a connection for it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response,
    pub(crate) told: Told,
    _lease: Lease<()>,
}

impl Web {
    /// Does not connect yet.
    ///
    /// # Errors
    /// `EINVAL` for a host that no URL can have, and those of [`Tls::new`].
    pub(crate) fn new(
        server: &Authority,
        start: &Start,
        options: FileOptions,
        manner: &Manner,
    ) -> Result<Self> {
        let (login, pool, outage) = (start.login.clone(), start.pool(&options), Outage::default());
        let beside = Pool::new(1, false);
        let text = server.url(if options.tls { "https" } else { "http" });
        let odd = |why: &dyn std::fmt::Display| Errno::EINVAL.because(format!("{text}: {why}"));
        let origin = Url::parse(&text).map_err(|error| odd(&error))?;
        let tls = Tls::new(&server.host, options.ca.as_deref())?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls.config(&["h2", "http/1.1"]))
            .redirect(Policy::custom(manner.permitted))
            .referer(false)
            .user_agent(concat!("outrigger/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(options.timeout)
            .pool_max_idle_per_host(options.connections)
            .build()
            .map_err(|error| odd(&error))?;
        if !options.tls && login != Login::anonymous() {
            let protects = manner.schemes[1];
            tracing::warn!(host = server.host, "the password is sent in clear; {protects}:// protects it");
        }
        let scheme = manner.schemes[usize::from(options.tls)];
        Ok(Web { client, scheme, tls, origin, login, outage, pool, beside, options })
    }

    /// The server, without a login.
    pub(crate) fn shown(&self) -> String {
        let origin = self.origin.as_str().trim_end_matches('/');
        [self.scheme, origin.trim_start_matches(self.origin.scheme())].concat()
    }

    /// Where the file at a path is.
    pub(crate) fn url(&self, path: &[u8]) -> Url {
        let mut url = self.origin.clone();
        url.set_path(&encode_path(path));
        url
    }

    /// Asks; the answer, if it is none that refuses. `reclaim` may end a transfer that waits for nothing when there are as many as
    /// may be. A server that has too much to do is asked again later, by fewer at once, within the time that it may be silent.
    pub(crate) async fn ask(&self, ask: &Ask<'_>, reclaim: impl Fn() -> bool) -> Result<Answer, Fault> {
        let pool = if ask.is_beside { &self.beside } else { &self.pool };
        let limit = self.options.timeout;
        let (until, mut pause) = (Instant::now() + limit, BUSY_PAUSES[0]);
        loop {
            let lease = pool.lease(limit, |()| true, &reclaim, || async { Ok(()) }).await?;
            let refused = match self.ask_once(ask).await? {
                Ok((response, told)) => return Ok(Answer { response, told, _lease: lease }),
                Err(refused) => refused,
            };
            let wait = refused.busy.map(|told| told.unwrap_or(pause).max(pause));
            let left = until.saturating_duration_since(Instant::now());
            let Some(wait) = wait.filter(|wait| is_safe(&ask.method) && *wait < left) else {
                return Err(Fault::Refused(refused));
            };
            // Once for each request: many refusals of one say nothing of the others.
            if pause == BUSY_PAUSES[0] {
                pool.narrow();
            }
            // Others ask meanwhile.
            drop(lease);
            sleep(wait).await;
            pause = (pause * 2).min(BUSY_PAUSES[1]);
        }
    }

    /// Asks without waiting for a connection, or for a server that has too much to do: the answer, or the refusal.
    pub(crate) async fn ask_once(&self, ask: &Ask<'_>) -> Result<Result<(Response, Told), Refused>, Fault> {
        let dial = || self.send(ask);
        let response = self.outage.connect(self.options.timeout, dial).await.map_err(Fault::Lost)??;
        let field = |name: &str| response.headers().get(name)?.to_str().ok();
        let told = Told::by(response.url().path().as_bytes(), field);
        match response.status().is_success() {
            true => Ok(Ok((response, told))),
            false => Ok(Err(self.refused(ask.method.clone(), &response))),
        }
    }

    fn refused(&self, method: Method, response: &Response) -> Refused {
        let (status, asked) = (response.status(), response.url());
        let place = response.headers().get(LOCATION).filter(|_| status.is_redirection());
        let place = place.and_then(|place| asked.join(place.to_str().ok()?).ok());
        let wants_slash = place.as_ref().is_some_and(|place| is_with_slash(place, asked));
        let later =
            |value: &HeaderValue| Some(Duration::from_secs(value.to_str().ok()?.trim().parse().ok()?));
        let is_busy = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        let busy = is_busy.then(|| response.headers().get(RETRY_AFTER).and_then(later));
        let advice = match place {
            Some(place) if !wants_slash => {
                format!("; it leads to {}: name that place", quoted(shown(place).as_bytes()))
            }
            _ => self.advice(status),
        };
        Refused { method, status, wants_slash, busy, advice }
    }

    /// Sends a request. The outer error is one of connecting, after which the server may be tried again.
    async fn send(&self, ask: &Ask<'_>) -> Result<Result<Response, Fault>> {
        let Ask { method, url, range, fields, content, .. } = ask;
        // Content that is compressed on the way has another size, and no ranges.
        let mut request =
            self.client.request(method.clone(), Url::clone(url)).header(ACCEPT_ENCODING, "identity");
        for (name, value) in fields {
            request = request.header(*name, value);
        }
        if let Some((first, last)) = range {
            request = request.header(RANGE, format!("bytes={first}-{last}"));
        }
        if self.login != Login::anonymous() && url.origin() == self.origin.origin() {
            request = request.basic_auth(&self.login.user, Some(self.login.password.reveal()));
        }
        let (request, progress) = content.put_into(request);
        let mut sent = pin!(request.send());
        let answer = loop {
            let before = progress.load(Ordering::Relaxed);
            let answer = timeout(self.options.timeout, sent.as_mut()).await;
            if answer.is_ok() || progress.load(Ordering::Relaxed) == before {
                break answer;
            }
        };
        let error = match answer {
            Ok(Ok(response)) => return Ok(Ok(response)),
            Ok(Err(error)) => error,
            Err(_) => return Ok(Err(Fault::Lost(self.silent("answer")))),
        };
        match error.is_redirect() {
            true => Ok(Err(Fault::Known(self.tls.why_lost(&error)))),
            false if error.is_connect() => Err(self.why(&error)),
            false => Ok(Err(Fault::Lost(self.why(&error)))),
        }
    }

    /// The error for a server of which nothing came for as long as it may be silent.
    pub(crate) fn silent(&self, what: &str) -> Error {
        let (place, seconds) = (self.shown(), self.options.timeout.as_secs_f32());
        Errno::ETIMEDOUT.because(format!("{place}: no {what} within {seconds} s"))
    }

    /// Why a request came to nothing.
    pub(crate) fn why(&self, error: &reqwest::Error) -> Error {
        let why = self.tls.why_lost(error);
        let said = format!("{}: {}", self.shown(), why.reason.as_deref().unwrap_or(why.errno.message()));
        match why.errno {
            _ if error.is_timeout() => Errno::ETIMEDOUT.because(said),
            // The resolver has no error numbers.
            Errno::EIO if error.is_connect() => Errno::EHOSTUNREACH.because(said + &self.by_proxy()),
            errno if error.is_connect() => errno.because(said + &self.by_proxy()),
            errno => errno.because(said),
        }
    }

    /// That the environment names a proxy, where it does: what refuses may be that one.
    fn by_proxy(&self) -> String {
        let names = [format!("{}_proxy", self.scheme), "all_proxy".to_owned()];
        let set = |name: &String| [name.clone(), name.to_uppercase()].into_iter().find(is_set);
        match names.iter().find_map(set) {
            Some(name) => format!(
                " ({name} is set: the proxy may be what refuses; its login stands in its URL, and no_proxy names hosts that are reached without it)"
            ),
            None => String::new(),
        }
    }

    fn advice(&self, status: StatusCode) -> String {
        match status.as_u16() {
            401 if self.login == Login::anonymous() => {
                let (scheme, host) = (self.scheme, self.origin.host_str().unwrap_or_default());
                format!("; {scheme}://USER@{host}/ or ~/.netrc names a user")
            }
            407 => {
                "; that is the proxy: its login stands in its URL, http_proxy=http://USER:PASSWORD@HOST:PORT"
                    .to_owned()
            }
            401 => format!("; it refuses the login of {}", quoted(self.login.user.as_bytes())),
            _ => String::new(),
        }
    }
}

/// Whether this is the same path as `last` with a slash.
fn is_with_slash(next: &Url, last: &Url) -> bool {
    decode_path(next.path().as_bytes()) == [&decode_path(last.path().as_bytes())[..], b"/"].concat()
}

/// A place for a message: what is behind it may be secret.
fn shown(mut place: Url) -> String {
    // Only URLs without a host cannot have a login.
    let _ = (place.set_username(""), place.set_password(None));
    place.set_query(None);
    place.set_fragment(None);
    place.into()
}

/// What becomes of a redirect: one to the same path with a slash says that there is a directory.
pub(crate) fn follow(attempt: Attempt<'_>) -> Action {
    let (next, before) = (attempt.url(), attempt.previous());
    let last = &before[before.len() - 1];
    if is_with_slash(next, last) {
        return attempt.stop();
    }
    let refused = match () {
        () if before.contains(next) => Errno::ELOOP.because("the server redirects in a circle"),
        () if before.len() > REDIRECTS => {
            Errno::ELOOP.because(format!("the server redirects more than {REDIRECTS} times"))
        }
        () if last.scheme() == "https" && next.scheme() != "https" => {
            Errno::EACCES.because("the server redirects from https to a place without TLS")
        }
        () => return attempt.follow(),
    };
    attempt.error(refused)
}

/// What becomes of a redirect of a server that is changed: a change is made there or nowhere.
pub(crate) fn stay(attempt: Attempt<'_>) -> Action {
    attempt.stop()
}

/// What a file of this size is, as the answer says.
pub(crate) fn version(told: &Told, size: Option<u64>) -> Version {
    let mut tag = told.tag.as_deref().map(tag_hash);
    // A coding alone tells no versions apart.
    if let Some(coding) = told.coding.as_ref().filter(|_| tag.is_some() || told.modified.is_some()) {
        tag = Some(hash(&[coding.as_bytes(), &tag.unwrap_or_default().to_le_bytes()]));
    }
    Version { size, modified: told.modified, tag }
}

/// Servers give a weak tag to what was changed just now, and the same as a strong one later.
pub(crate) fn tag_hash(tag: &str) -> u64 {
    hash(&[tag.strip_prefix("W/").unwrap_or(tag).as_bytes()])
}

/// The error for content that is not what was asked for.
pub(crate) fn unfit(unfit: Unfit) -> Error {
    Errno::EIO.because(unfit.to_string())
}

/// Whether a request changes nothing (RFC 9110, 9.2.1), so that it can be made again.
fn is_safe(method: &Method) -> bool {
    matches!(method.as_str(), "GET" | "HEAD" | "PROPFIND")
}

/// Whether the environment has something under this name.
fn is_set(name: &String) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}
