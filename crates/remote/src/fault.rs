// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a request to a server failed.

use outrigger_core::{Errno, Error};
use std::fmt::Debug;

/// The words in which a server refuses something.
pub trait Refusal: Debug + Clone + Send + Sync + 'static {
    /// What it means by itself, with the server's words as the reason.
    fn error(&self) -> Error;

    /// The error to report where it fits several and nothing shows which: such a refusal is looked into.
    fn usual(&self) -> Option<Errno>;

    /// Whether the server does not do such a thing at all, whatever file it is asked about and whenever.
    fn is_for_good(&self) -> bool;

    /// Whether it does not know the request, or this form of it.
    fn is_unknown(&self) -> bool {
        self.error().errno == Errno::EOPNOTSUPP
    }
}

/// What a server says, for a message: only what would control a terminal is escaped, so that it reads as the server has written it.
pub fn quoted(said: &[u8]) -> String {
    let mut text = String::with_capacity(said.len());
    for char in String::from_utf8_lossy(said).chars() {
        match char.is_control() {
            true => text.extend(char.escape_debug()),
            false => text.push(char),
        }
    }
    text
}

/// Why something was not done; `R` is a refusal of the protocol.
#[derive(Debug, Clone)]
pub enum Fault<R> {
    /// The server says so.
    Refused(R),
    /// The connection was lost, so whether it was done is not known.
    Lost(Error),
    /// It was not asked.
    Known(Error),
}

impl<R> Fault<R> {
    /// The same with advice behind its reason, where the connection was lost for this error.
    #[must_use]
    pub fn advised(self, errno: Errno, advice: &str) -> Self {
        match self {
            Fault::Lost(error) if error.errno == errno => {
                let why = error.reason.as_deref().unwrap_or(errno.message());
                Fault::Lost(errno.because(format!("{why}; {advice}")))
            }
            fault => fault,
        }
    }
}

impl<R> From<Error> for Fault<R> {
    fn from(error: Error) -> Self {
        Fault::Known(error)
    }
}

impl<R> From<Errno> for Fault<R> {
    fn from(errno: Errno) -> Self {
        Fault::Known(errno.into())
    }
}

impl<R: Refusal> From<Fault<R>> for Error {
    fn from(fault: Fault<R>) -> Self {
        match fault {
            Fault::Refused(refusal) => refusal.error(),
            Fault::Lost(error) | Fault::Known(error) => error,
        }
    }
}
