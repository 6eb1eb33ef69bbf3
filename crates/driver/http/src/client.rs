// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests: connections, redirects, logins, and what is wrong with an answer.

use outrigger_core::{Errno, Error, Result};
use outrigger_proto_http::{Told, Unfit, Url, decode_path, encode_path};
use outrigger_toolkit_remote::{
    Authority, Fault as AnyFault, FileOptions, Lease, Login, Outage, Pool, Refusal, Start, Tls, Version,
    hash, quoted, within,
};
use reqwest::header::{ACCEPT_ENCODING, RANGE};
use reqwest::redirect::{Action, Attempt, Policy};
use reqwest::{Client, Method, Response, StatusCode};
use std::sync::Arc;

/// The most redirects that one request follows.
const REDIRECTS: usize = 10;

/// An answer that refuses something.
#[derive(Debug, Clone)]
pub struct Refused {
    pub(crate) status: StatusCode,
    /// What to do about it, if that is known.
    advice: String,
}

/// Why something was not done.
pub(crate) type Fault = AnyFault<Refused>;

impl Refused {
    /// Whether it leads elsewhere and was not followed, as [`follow`] has it.
    pub(crate) fn is_redirect(&self) -> bool {
        matches!(self.status.as_u16(), 301 | 302 | 303 | 307 | 308)
    }
}

impl Refusal for Refused {
    fn error(&self) -> Error {
        let errno = match self.status.as_u16() {
            _ if self.is_redirect() => Errno::EISDIR,
            401 | 403 | 407 => Errno::EACCES,
            404 | 410 => Errno::ENOENT,
            405 | 501 => Errno::EOPNOTSUPP,
            414 => Errno::ENAMETOOLONG,
            429 | 503 => Errno::EAGAIN,
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

/// The method, what is asked for, and the first and the last byte of it, if not all.
pub(crate) type Ask<'a> = (Method, &'a Url, Option<(u64, u64)>);

/// A server, and how it is asked.
pub(crate) struct Web {
    client: Client,
    tls: Tls,
    origin: Url,
    login: Login,
    outage: Outage,
    /// As many requests are under way at once as there may be connections.
    pool: Arc<Pool<()>>,
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
    pub(crate) fn new(server: &Authority, start: &Start, options: FileOptions) -> Result<Self> {
        let (login, pool, outage) = (start.login.clone(), start.pool(&options), Outage::default());
        let text = server.url(if options.tls { "https" } else { "http" });
        let odd = |why: &dyn std::fmt::Display| Errno::EINVAL.because(format!("{text}: {why}"));
        let origin = Url::parse(&text).map_err(|error| odd(&error))?;
        let tls = Tls::new(&server.host, options.ca.as_deref())?;
        let client = Client::builder()
            .tls_backend_preconfigured(tls.config(&["h2", "http/1.1"]))
            .redirect(Policy::custom(follow))
            .referer(false)
            .user_agent(concat!("outrigger/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(options.timeout)
            .pool_max_idle_per_host(options.connections)
            .build()
            .map_err(|error| odd(&error))?;
        if !options.tls && login != Login::anonymous() {
            tracing::warn!(host = server.host, "the password is sent in clear; https:// protects it");
        }
        Ok(Web { client, tls, origin, login, outage, pool, options })
    }

    /// The server, without a login.
    pub(crate) fn shown(&self) -> String {
        self.origin.as_str().trim_end_matches('/').to_owned()
    }

    /// Where the file at a path is.
    pub(crate) fn url(&self, path: &[u8]) -> Url {
        let mut url = self.origin.clone();
        url.set_path(&encode_path(path));
        url
    }

    /// Asks; the answer, if it is none that refuses. `reclaim` may end a transfer that waits for nothing when there are as many as
    /// may be.
    pub(crate) async fn ask(&self, ask: Ask<'_>, reclaim: impl Fn() -> bool) -> Result<Answer, Fault> {
        let limit = self.options.timeout;
        let lease = self.pool.lease(limit, |()| true, reclaim, || async { Ok(()) }).await?;
        let response = self.outage.connect(limit, || self.send(&ask)).await.map_err(Fault::Lost)??;
        let field = |name: &str| response.headers().get(name)?.to_str().ok();
        let (status, told) = (response.status(), Told::by(field));
        if status.is_success() {
            return Ok(Answer { response, told, _lease: lease });
        }
        Err(Fault::Refused(Refused { status, advice: self.advice(status) }))
    }

    /// Sends a request. The outer error is one of connecting, after which the server may be tried again.
    async fn send(&self, (method, url, range): &Ask<'_>) -> Result<Result<Response, Fault>> {
        // Content that is compressed on the way has another size, and no ranges.
        let mut request =
            self.client.request(method.clone(), Url::clone(url)).header(ACCEPT_ENCODING, "identity");
        if let Some((first, last)) = range {
            request = request.header(RANGE, format!("bytes={first}-{last}"));
        }
        if self.login != Login::anonymous() && url.origin() == self.origin.origin() {
            request = request.basic_auth(&self.login.user, Some(self.login.password.reveal()));
        }
        let sent = within(self.options.timeout, "waiting for an answer", async {
            Ok::<_, Error>(request.send().await)
        });
        let error = match sent.await {
            Ok(Ok(response)) => return Ok(Ok(response)),
            Ok(Err(error)) => error,
            Err(error) => return Ok(Err(Fault::Lost(error))),
        };
        match error.is_redirect() {
            true => Ok(Err(Fault::Known(self.tls.why_lost(&error)))),
            false if error.is_connect() => Err(self.why(&error)),
            false => Ok(Err(Fault::Lost(self.why(&error)))),
        }
    }

    /// Why a request came to nothing.
    pub(crate) fn why(&self, error: &reqwest::Error) -> Error {
        let why = self.tls.why_lost(error);
        let said = format!("{}: {}", self.shown(), why.reason.as_deref().unwrap_or(why.errno.message()));
        match why.errno {
            _ if error.is_timeout() => Errno::ETIMEDOUT.because(said),
            // The resolver has no error numbers.
            Errno::EIO if error.is_connect() => Errno::EHOSTUNREACH.because(said),
            errno => errno.because(said),
        }
    }

    fn advice(&self, status: StatusCode) -> String {
        match status.as_u16() {
            401 if self.login == Login::anonymous() => {
                let (scheme, host) = (self.origin.scheme(), self.origin.host_str().unwrap_or_default());
                format!("; {scheme}://USER@{host}/ or ~/.netrc names a user")
            }
            401 => format!("; it refuses the login of {}", quoted(self.login.user.as_bytes())),
            _ => String::new(),
        }
    }
}

/// What becomes of a redirect: one to the same path with a slash says that there is a directory.
fn follow(attempt: Attempt<'_>) -> Action {
    let (next, before) = (attempt.url(), attempt.previous());
    let last = &before[before.len() - 1];
    if decode_path(next.path().as_bytes()) == [&decode_path(last.path().as_bytes())[..], b"/"].concat() {
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

/// What a file of this size is, as the answer says.
pub(crate) fn version(told: &Told, size: Option<u64>) -> Version {
    let tag = told.tag.as_ref().map(|tag| hash(&[tag.as_bytes()]));
    Version { size, modified: told.modified, tag }
}

/// The error for content that is not what was asked for.
pub(crate) fn unfit(unfit: Unfit) -> Error {
    Errno::EIO.because(unfit.to_string())
}
