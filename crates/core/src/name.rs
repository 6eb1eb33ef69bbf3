// SPDX-License-Identifier: MIT OR Apache-2.0
//! Byte strings with a meaning: file names, symbolic-link targets, names of extended attributes.
//!
//! None of them is required to be UTF-8; all print with escapes.

use crate::error::{Errno, Error};
use bytes::Bytes;
use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;

macro_rules! byte_string {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Bytes);

        impl $name {
            /// The bytes.
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }

            /// The bytes as the host spells paths.
            pub fn as_os_str(&self) -> &OsStr {
                OsStr::from_bytes(&self.0)
            }

            /// The shared buffer that holds it.
            pub fn into_bytes(self) -> Bytes {
                self.0
            }
        }

        impl Deref for $name {
            type Target = [u8];
            fn deref(&self) -> &[u8] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&String::from_utf8_lossy(&self.0))
            }
        }
    };
}

byte_string! {
    /// One component of a path: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
    Name
}
byte_string! {
    /// What a symbolic link points to, verbatim: 1 to 4095 bytes, no NUL.
    Target
}
byte_string! {
    /// The name of an extended attribute with its namespace, as in `user.colour`: 1 to 255 bytes, no NUL.
    XattrName
}

/// The longest file name every part accepts, in bytes (Linux `NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// The longest symbolic-link target, in bytes (Linux `PATH_MAX` less its NUL).
pub const TARGET_MAX: usize = 4095;
/// The longest name of an extended attribute, in bytes (Linux `XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;

fn checked(bytes: Bytes, max: usize, empty: Errno, long: Errno) -> Result<Bytes, Error> {
    if bytes.is_empty() {
        Err(empty.because("an empty name"))
    } else if bytes.len() > max {
        Err(long.because(format!("a name of {} bytes; at most {max} fit", bytes.len())))
    } else if bytes.contains(&0) {
        Err(Errno::EINVAL.because("a name with a NUL byte"))
    } else {
        Ok(bytes)
    }
}

impl Name {
    /// Checks and wraps one path component.
    ///
    /// # Errors
    /// `ENAMETOOLONG` beyond 255 bytes, `ENOENT` for an empty name (as path lookup has it),
    /// `EINVAL` for `.`, `..`, `/` or NUL inside.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        let bytes = checked(bytes.into(), NAME_MAX, Errno::ENOENT, Errno::ENAMETOOLONG)?;
        if bytes.contains(&b'/') || &bytes[..] == b"." || &bytes[..] == b".." {
            return Err(Errno::EINVAL.because(format!("\"{}\" is not a file name", bytes.escape_ascii())));
        }
        Ok(Name(bytes))
    }
}

impl Target {
    /// Checks and wraps a symbolic-link target.
    ///
    /// # Errors
    /// `ENAMETOOLONG` beyond 4095 bytes, `ENOENT` when empty, `EINVAL` for a NUL byte.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        checked(bytes.into(), TARGET_MAX, Errno::ENOENT, Errno::ENAMETOOLONG).map(Target)
    }
}

impl XattrName {
    /// Checks and wraps the name of an extended attribute.
    ///
    /// # Errors
    /// `ERANGE` when empty or beyond 255 bytes (see xattr(7)), `EINVAL` for a NUL byte.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, Error> {
        checked(bytes.into(), XATTR_NAME_MAX, Errno::ERANGE, Errno::ERANGE).map(XattrName)
    }
}

impl TryFrom<&OsStr> for Name {
    type Error = Error;
    fn try_from(name: &OsStr) -> Result<Self, Error> {
        Name::new(Bytes::copy_from_slice(name.as_bytes()))
    }
}

impl TryFrom<&str> for Name {
    type Error = Error;
    fn try_from(name: &str) -> Result<Self, Error> {
        Name::new(Bytes::copy_from_slice(name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_components_are_refused() {
        let long = "x".repeat(256);
        let cases: &[(&str, Errno)] = &[
            ("", Errno::ENOENT),
            (".", Errno::EINVAL),
            ("..", Errno::EINVAL),
            ("a/b", Errno::EINVAL),
            ("a\0b", Errno::EINVAL),
            (&long, Errno::ENAMETOOLONG),
        ];
        for (name, errno) in cases {
            assert_eq!(Name::try_from(*name).unwrap_err().errno, *errno, "{name:?}");
        }
    }

    #[test]
    fn a_name_of_255_arbitrary_bytes_is_accepted() {
        let bytes = vec![0xff_u8; 255];
        assert_eq!(Name::new(bytes.clone()).unwrap().as_bytes(), &bytes[..]);
    }
}
