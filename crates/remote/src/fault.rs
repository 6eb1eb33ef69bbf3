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
