// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which attributes of files a type of image stores, and the messages about those that it does not store.

use super::plan::Plan;
use super::source::Tally;
use super::whole;
use crate::context::Context;
use crate::say::quoted;
use crate::status::{Failure, Status};

/// What a type of image can hold beside names, content and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeps {
    /// Owners, permissions, symbolic links, several names of a file, devices.
    pub unix: bool,
    /// Extended attributes, and access lists, which are some of these.
    pub attributes: bool,
}

impl Keeps {
    /// Everything.
    pub const ALL: Keeps = Keeps { unix: true, attributes: true };
    /// Names, content and times only.
    pub const CONTENT: Keeps = Keeps { unix: false, attributes: false };
    /// Everything but extended attributes.
    pub const PLAIN: Keeps = Keeps { unix: true, attributes: false };

    /// Looks whether an image of the type `kind` can have all the files of a tree.
    ///
    /// # Errors
    /// A sentence about the first file that it cannot have.
    pub fn check(self, kind: &str, plan: &Plan) -> Result<(), Failure> {
        match plan.others.first.as_deref() {
            Some(path) if !self.unix => Err(Failure::serious(format!(
                "{kind} has regular files and directories only, with one name each: {} is another thing ({})",
                quoted(whole(&plan.shown, path)),
                plan.others.files()
            ))),
            _ => Ok(()),
        }
    }

    /// Tells what an image of the type `kind` loses of a tree, in the words of cp(1). As there, what the user has set apart is a
    /// failure; that all files get the same permissions is what such a type is.
    pub fn tell(self, context: &Context, kind: &str, plan: &Plan) {
        if !self.unix {
            context.complain(Status::Success, format_args!("{kind} has no owners and permissions"));
        }
        let lost = |kept: bool, tally: &Tally, what: &str, why: &str| {
            let Some(path) = tally.first.as_deref().filter(|_| !kept) else { return };
            let path = quoted(whole(&plan.shown, path));
            let note = format!("{what} {path}: {kind} has {why} ({})", tally.files());
            context.complain(Status::Minor, note);
        };
        let (attributes, list) = ("setting attributes for", "preserving permissions for");
        lost(self.attributes, &plan.attributed, attributes, "no extended attributes");
        lost(self.attributes, &plan.listed, list, "no access lists");
        lost(self.unix, &plan.owned, "failed to preserve ownership for", "one owner for all files");
        lost(self.unix, &plan.special, list, "no set-id and sticky bits");
    }
}
