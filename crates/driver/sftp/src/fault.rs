// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong with a request, and which error number that is.

use outrigger_core::{Errno, Error};
use outrigger_mux as mux;
use outrigger_proto_sftp::{DecodeError, Reply, Status, StatusCode};
use outrigger_toolkit_remote::errno_of;

/// Why a request was not answered as hoped.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The server says so.
    Refused(Status),
    /// No answer came.
    Lost(mux::Error),
    /// The answer makes no sense.
    Odd(String),
    /// It was not asked: there is no connection, or the server cannot do it.
    Known(Error),
}

impl Fault {
    /// The answer is none to the request.
    pub(crate) fn unfit(reply: Reply) -> Self {
        match reply {
            Reply::Status(status) => Fault::Refused(status),
            Reply::Handle(_) => Fault::Odd("it answered with a handle that no request asked for".into()),
            Reply::Data(_) => Fault::Odd("it answered with content that no request asked for".into()),
            Reply::Names(_) => Fault::Odd("it answered with names that no request asked for".into()),
            Reply::Attrs(_) => Fault::Odd("it answered with attributes that no request asked for".into()),
            Reply::Extended(_) => Fault::Odd("it answered in a way that no request asked for".into()),
        }
    }

    /// The code of a refusal.
    pub(crate) fn code(&self) -> Option<StatusCode> {
        match self {
            Fault::Refused(status) => Some(status.code),
            _ => None,
        }
    }

    /// Whether the server refused without saying more than that, or in terms that fit several errors.
    pub(crate) fn is_vague(&self) -> bool {
        let Fault::Refused(status) = self else { return false };
        let vague =
            matches!(status.code, StatusCode::Failure | StatusCode::NoSuchFile | StatusCode::BadMessage);
        vague && errno_in(status).is_none()
    }

    /// Whether the request may be made again, knowing that its repetition does no harm.
    pub(crate) fn is_lost_connection(&self) -> bool {
        matches!(self, Fault::Lost(mux::Error::Lost { .. }))
    }

    /// The fault of work that consists of several requests, of which the server has seen at least one: the work may not be done again
    /// as if nothing had been sent.
    pub(crate) fn after_others(self) -> Self {
        match self {
            Fault::Lost(mux::Error::Lost { why, .. }) => Fault::Lost(mux::Error::Lost { why, sent: true }),
            other => other,
        }
    }

    /// Whether the server has never seen the request, so that it may be made again whatever it is.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self, Fault::Lost(mux::Error::Lost { sent: false, .. }))
    }
}

impl From<mux::Error> for Fault {
    fn from(error: mux::Error) -> Self {
        Fault::Lost(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Known(error)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Fault::Known(errno.into())
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Fault::Odd(error.to_string())
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Refused(status) => {
                let errno = errno_in(&status).unwrap_or_else(|| usual(status.code));
                let words = String::from_utf8_lossy(&status.message);
                // The usual words say no more than the number does.
                let code = status.code.to_string();
                if words.is_empty() || words.eq_ignore_ascii_case(&code) || words == errno.message() {
                    return if errno == Errno::EIO {
                        errno.because(format!("the server says: {code}"))
                    } else {
                        errno.into()
                    };
                }
                errno.because(format!("the server says: {}", words.escape_debug()))
            }
            Fault::Lost(mux::Error::TimedOut { after, .. }) => {
                Errno::ETIMEDOUT.because(format!("the server has not answered for {} s", after.as_secs_f32()))
            }
            Fault::Lost(mux::Error::Lost { why, sent }) => {
                let rest = if sent { "; whether the request was done is not known" } else { "" };
                Errno::EIO.because(format!("the connection to the server was lost ({why}){rest}"))
            }
            Fault::Odd(what) => Errno::EPROTO.because(format!("the server breaks the protocol: {what}")),
            Fault::Known(error) => error,
        }
    }
}

/// The error number of a code that stands for one error only, or for one above all.
fn usual(code: StatusCode) -> Errno {
    match code {
        StatusCode::NoSuchFile => Errno::ENOENT,
        StatusCode::PermissionDenied => Errno::EACCES,
        StatusCode::BadMessage => Errno::EINVAL,
        StatusCode::OpUnsupported => Errno::EOPNOTSUPP,
        _ => Errno::EIO,
    }
}

fn errno_in(status: &Status) -> Option<Errno> {
    errno_of(&status.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn codes_and_words_become_error_numbers() {
        let cases: [(StatusCode, &'static str, Errno, bool); 7] = [
            (StatusCode::NoSuchFile, "No such file", Errno::ENOENT, true),
            (StatusCode::PermissionDenied, "Permission denied", Errno::EACCES, false),
            (StatusCode::Failure, "Failure", Errno::EIO, true),
            (StatusCode::Failure, "Directory not empty", Errno::ENOTEMPTY, false),
            (StatusCode::Failure, "no space left on device", Errno::ENOSPC, false),
            (StatusCode::OpUnsupported, "", Errno::EOPNOTSUPP, false),
            (StatusCode::Other(11), "", Errno::EIO, false),
        ];
        for (code, words, errno, vague) in cases {
            let fault = Fault::Refused(Status { code, message: Bytes::from_static(words.as_bytes()) });
            assert_eq!(fault.is_vague(), vague, "{code} {words}");
            assert_eq!(Error::from(fault).errno, errno, "{code} {words}");
        }
    }

    #[test]
    fn what_a_server_says_is_passed_on_to_people() {
        let message = Bytes::from_static(b"quota of project x\x1b[2J is used up");
        let error = Error::from(Fault::Refused(Status { code: StatusCode::Failure, message }));
        let reason = error.reason.expect("a reason");
        assert!(reason.contains("quota of project x\\u{1b}[2J"), "{reason}");
    }
}
