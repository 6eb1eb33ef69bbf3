// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server says about success and failure.

use std::fmt;

/// `SSH_FX_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusCode {
    /// It was done.
    Ok,
    /// The file or directory ends here.
    Eof,
    /// There is no such file. OpenSSH says this for `ENOENT`, `ENOTDIR`, `EBADF` and `ELOOP`.
    NoSuchFile,
    /// The user may not. OpenSSH: `EPERM`, `EACCES`, `EFAULT`.
    PermissionDenied,
    /// Any error that has no code of its own.
    Failure,
    /// The server did not understand the packet. OpenSSH: `EINVAL`, `ENAMETOOLONG`.
    BadMessage,
    /// There is no connection.
    NoConnection,
    /// The connection was lost.
    ConnectionLost,
    /// The server does not know the request. OpenSSH: `ENOSYS`.
    OpUnsupported,
    /// A code of later versions, or of none.
    Other(u32),
}

impl StatusCode {
    /// Every code that the draft names, in its order.
    pub const ALL: [StatusCode; 9] = [
        StatusCode::Ok,
        StatusCode::Eof,
        StatusCode::NoSuchFile,
        StatusCode::PermissionDenied,
        StatusCode::Failure,
        StatusCode::BadMessage,
        StatusCode::NoConnection,
        StatusCode::ConnectionLost,
        StatusCode::OpUnsupported,
    ];

    /// The code with this number.
    pub fn of(number: u32) -> Self {
        StatusCode::ALL.get(number as usize).copied().unwrap_or(StatusCode::Other(number))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            StatusCode::Other(number) => number,
            code => StatusCode::ALL.iter().position(|&known| known == code).unwrap_or_default() as u32,
        }
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StatusCode::Ok => "success",
            StatusCode::Eof => "end of file",
            StatusCode::NoSuchFile => "no such file",
            StatusCode::PermissionDenied => "permission denied",
            StatusCode::Failure => "failure",
            StatusCode::BadMessage => "bad message",
            StatusCode::NoConnection => "no connection",
            StatusCode::ConnectionLost => "connection lost",
            StatusCode::OpUnsupported => "operation unsupported",
            StatusCode::Other(number) => return write!(f, "status {number}"),
        })
    }
}
