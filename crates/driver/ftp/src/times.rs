// SPDX-License-Identifier: MIT OR Apache-2.0
//! Setting times of files: no command for it is in every server, and some take one of them for something else.

use crate::session::{Fault, Refused};
use outrigger_core::{Errno, Time};
use outrigger_proto_ftp::stamp;
use outrigger_toolkit_remote::Refusal;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A command that sets the time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// MFMT, which FEAT tells of.
    Mfmt,
    /// MDTM with a time before the name (vsftpd). Other servers take both for the name of a file.
    Mdtm,
    /// SITE UTIME with the time before the name.
    TimeName,
    /// SITE UTIME with times after the name.
    NameTimes,
}

impl Way {
    /// What a server without MFMT may have.
    pub(crate) const OTHERS: &[Way] = &[Way::Mdtm, Way::TimeName, Way::NameTimes];

    /// The verb and its argument.
    pub(crate) fn command(self, path: &[u8], time: Time) -> (&'static str, Vec<u8>) {
        let stamp = stamp(time.secs);
        let with = |before: &str, after: &str| [before.as_bytes(), path, after.as_bytes()].concat();
        match self {
            Way::Mfmt => ("MFMT", with(&format!("{stamp} "), "")),
            Way::Mdtm => ("MDTM", with(&format!("{stamp} "), "")),
            Way::TimeName => ("SITE", with(&format!("UTIME {stamp} "), "")),
            Way::NameTimes => ("SITE", with("UTIME ", &format!(" {stamp} {stamp} {stamp} UTC"))),
        }
    }
}

/// What is known of how a server sets times.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// A time was set.
    worked: AtomicBool,
    /// The server knows no way.
    fails: AtomicBool,
    /// The ways that it does not know, each a bit.
    unknown: AtomicU8,
}

impl Times {
    /// False once it is known that the server has no way.
    pub(crate) fn may_be_set(&self) -> bool {
        !self.fails.load(Ordering::Relaxed)
    }

    /// Whether the server may know a way.
    pub(crate) fn may_have(&self, way: Way) -> bool {
        self.unknown.load(Ordering::Relaxed) >> way as u8 & 1 == 0
    }

    /// A time was set.
    pub(crate) fn worked(&self) {
        self.worked.store(true, Ordering::Relaxed);
    }

    /// All of `ways` that the server may know were refused like this.
    pub(crate) fn refused(&self, ways: &[Way], refusals: Vec<(Way, Refused)>) -> Fault {
        let worked = self.worked.load(Ordering::Relaxed);
        let mut about_file = None;
        for (way, refused) in &refusals {
            match refused.is_unknown() && !worked {
                true => _ = self.unknown.fetch_or(1 << *way as u8, Ordering::Relaxed),
                false => about_file = about_file.or(Some((*way, refused))),
            }
        }
        match about_file {
            // MDTM alone was perhaps asked for the time of a file whose name begins with a time.
            Some((way, refused)) if worked || way != Way::Mdtm => return Fault::Refused(refused.clone()),
            _ => {}
        }
        self.fails.store(!ways.iter().any(|way| self.may_have(*way)), Ordering::Relaxed);
        let said = refusals.iter().find_map(|(_, refused)| refused.error().reason).unwrap_or_default();
        let why = format!("the server has no command that sets the time of a file ({said})");
        Errno::EOPNOTSUPP.because(why).into()
    }
}
