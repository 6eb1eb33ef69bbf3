// SPDX-License-Identifier: MIT OR Apache-2.0
//! Certificates and keys in PEM files.

use outrigger_core::{Errno, Error, Result};
use outrigger_host::private_file;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The longest file with a key, in bytes.
const KEY_MAX: usize = 1 << 20;

/// The certificates in a PEM file.
///
/// # Errors
/// `EINVAL` for a file that has none, or cannot be read; the reason names the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let wrong = |error: pem::Error| match error {
        pem::Error::Io(error) => refused(path, &in_words(&error)),
        error => refused(path, &error),
    };
    let found: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<_, _>>().map_err(wrong)?;
    if found.is_empty() { Err(refused(path, &"no certificate is in this file")) } else { Ok(found) }
}

/// What one side shows: the certificate in the file `cert`, with those that lead to its authority behind it, and its key in the file
/// `key`, which only its user can read.
///
/// # Errors
/// `EINVAL` for files that do not have them, and for the key of another certificate; `EACCES` for a key that others can read.
pub fn own(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>> {
    let chain = certificates(cert)?;
    let text = private_file(key, KEY_MAX).map_err(|error| {
        let errno =
            if error.kind() == io::ErrorKind::PermissionDenied { Errno::EACCES } else { Errno::EINVAL };
        errno.because(format!("{}: {}", key.display(), in_words(&error)))
    })?;
    let secret = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| refused(key, &"no key is in this file that can be used without a password"))?;
    let own = CertifiedKey::from_der(chain, secret, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            refused(key, &format_args!("it is not the key of the certificate in {}", cert.display()))
        }
        error => refused(key, &error),
    })?;
    Ok(Arc::new(own))
}

/// By what a file is known to have been changed: file system, number, size, and times in nanoseconds; `None` for one that is not there.
pub(crate) type Stamp = Option<(u64, u64, u64, [i64; 4])>;

/// The stamp of a file.
pub(crate) fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    Some((meta.dev(), meta.ino(), meta.size(), times))
}

fn refused(path: &Path, why: &dyn fmt::Display) -> Error {
    Errno::EINVAL.because(format!("{}: {why}", path.display()))
}

/// Without the number that the standard library puts behind errors of the system.
fn in_words(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |code| Errno(code).message().to_owned())
}
