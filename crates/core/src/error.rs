// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: an errno for the program that asked, and a reason for the person who has to find out why.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The result of an operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error number of Linux (see errno(3)).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($number);)*

            /// The symbolic name, as in `ENOENT`; `None` for a number Linux does not define.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some(stringify!($name)),)* _ => None }
            }

            /// What strerror(3) says in the C locale.
            pub fn message(self) -> &'static str {
                match self.0 { $($number => $text,)* _ => "Unknown error" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    EINTR = 4, "Interrupted system call";
    EIO = 5, "Input/output error";
    ENXIO = 6, "No such device or address";
    E2BIG = 7, "Argument list too long";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Resource temporarily unavailable";
    ENOMEM = 12, "Cannot allocate memory";
    EACCES = 13, "Permission denied";
    EFAULT = 14, "Bad address";
    ENOTBLK = 15, "Block device required";
    EBUSY = 16, "Device or resource busy";
    EEXIST = 17, "File exists";
    EXDEV = 18, "Invalid cross-device link";
    ENODEV = 19, "No such device";
    ENOTDIR = 20, "Not a directory";
    EISDIR = 21, "Is a directory";
    EINVAL = 22, "Invalid argument";
    ENFILE = 23, "Too many open files in system";
    EMFILE = 24, "Too many open files";
    ENOTTY = 25, "Inappropriate ioctl for device";
    ETXTBSY = 26, "Text file busy";
    EFBIG = 27, "File too large";
    ENOSPC = 28, "No space left on device";
    ESPIPE = 29, "Illegal seek";
    EROFS = 30, "Read-only file system";
    EMLINK = 31, "Too many links";
    EPIPE = 32, "Broken pipe";
    ERANGE = 34, "Numerical result out of range";
    EDEADLK = 35, "Resource deadlock avoided";
    ENAMETOOLONG = 36, "File name too long";
    ENOLCK = 37, "No locks available";
    ENOSYS = 38, "Function not implemented";
    ENOTEMPTY = 39, "Directory not empty";
    ELOOP = 40, "Too many levels of symbolic links";
    ENODATA = 61, "No data available";
    ETIME = 62, "Timer expired";
    EREMOTE = 66, "Object is remote";
    EPROTO = 71, "Protocol error";
    EBADMSG = 74, "Bad message";
    EOVERFLOW = 75, "Value too large for defined data type";
    EILSEQ = 84, "Invalid or incomplete multibyte or wide character";
    EUSERS = 87, "Too many users";
    EMSGSIZE = 90, "Message too long";
    EOPNOTSUPP = 95, "Operation not supported";
    EADDRINUSE = 98, "Address already in use";
    EADDRNOTAVAIL = 99, "Cannot assign requested address";
    ENETDOWN = 100, "Network is down";
    ENETUNREACH = 101, "Network is unreachable";
    ECONNABORTED = 103, "Software caused connection abort";
    ECONNRESET = 104, "Connection reset by peer";
    ENOTCONN = 107, "Transport endpoint is not connected";
    ETIMEDOUT = 110, "Connection timed out";
    ECONNREFUSED = 111, "Connection refused";
    EHOSTDOWN = 112, "Host is down";
    EHOSTUNREACH = 113, "No route to host";
    EALREADY = 114, "Operation already in progress";
    EINPROGRESS = 115, "Operation now in progress";
    ESTALE = 116, "Stale file handle";
    EUCLEAN = 117, "Structure needs cleaning";
    EREMOTEIO = 121, "Remote I/O error";
    EDQUOT = 122, "Disk quota exceeded";
    ECANCELED = 125, "Operation canceled";
}

impl Errno {
    /// This errno with a reason a person can act on.
    pub fn because(self, reason: impl Into<Arc<str>>) -> Error {
        Error { errno: self, reason: Some(reason.into()) }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

/// Why an operation failed. Two errors are equal when both errno and reason are.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// What the calling program gets.
    pub errno: Errno,
    /// What `status`, `trace` and logs add: what was tried, on what, and what went wrong.
    pub reason: Option<Arc<str>>,
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error { errno, reason: None }
    }
}

impl From<io::Error> for Error {
    /// Keeps the system's errno; anything else becomes `EIO` with the error's text as its reason.
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Errno(number).into(),
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                Errno::EIO.because("unexpected end of data")
            }
            None => Errno::EIO.because(error.to_string()),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error.reason {
            None => io::Error::from_raw_os_error(error.errno.0),
            Some(_) => io::Error::new(io::Error::from_raw_os_error(error.errno.0).kind(), error),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{:?} ({reason})", self.errno),
            None => write!(f, "{:?}", self.errno),
        }
    }
}

impl Error {
    /// The reason alone, for a message that names what failed anyway; what the number means where there is none.
    pub fn why(&self) -> String {
        self.reason.as_deref().map_or_else(|| self.errno.to_string(), str::to_owned)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{}: {reason}", self.errno),
            None => write!(f, "{}", self.errno),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_keeps_its_number() {
        assert_eq!(Error::from(io::Error::from_raw_os_error(28)), Errno::ENOSPC.into());
        assert_eq!(Error::from(io::Error::other("odd")).errno, Errno::EIO);
        assert_eq!(io::Error::from(Errno::ENOENT.because("gone")).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn unknown_numbers_still_print() {
        assert_eq!(format!("{:?}", Errno(4242)), "errno 4242");
    }
}
