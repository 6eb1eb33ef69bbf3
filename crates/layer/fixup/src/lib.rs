// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `fixup`: named workarounds for what stands at one of its ends.
//!
//! Drivers recognise what their servers cannot do; what no driver can see is here.
//!
//! | name | for |
//! |---|---|
//! | `ino32` | programs of 32 bits without large-file support, which get `EOVERFLOW` for larger inode numbers (stat(2)): these become hashes of 32 bits, two of which may meet |
//! | `no-exclusive` | servers that refuse to make a file exclusively, as some NFS servers do, or keep the verifier in its times: the name is looked up first, so two clients at once may both succeed |
#![forbid(unsafe_code)]

use outrigger_core::hash::siphash13;
use outrigger_core::ops::{Forget, Lookup, OpenFlags};
use outrigger_core::option::option;
use outrigger_core::registry::{LayerInfo, Made};
use outrigger_core::{
    Answer, Attr, Cx, Errno, FileKind, Layer, Name, Node, OptionTable, Place, Recalled, Reply, Request,
    Result, Service, Traverse, Visit, ask,
};
use std::sync::Arc;

/// `--layer fixup=NAME,...`.
pub const LAYER: LayerInfo = LayerInfo {
    name: "fixup",
    argument: "NAME,...",
    does: "works around what programs and servers cannot do",
    options: &[&OPTIONS],
    make: |list, _| Ok(Made::layer(Fixup::parse(list)?)),
};

/// The names of workarounds.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "fixup",
    options: &[
        option("ino32", "", "", "shows inode numbers of 32 bits, for old programs"),
        option(
            "no-exclusive",
            "",
            "",
            "makes files without asking the server that they be new, but looks first",
        ),
    ],
};

/// The layer: which workarounds are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fixup {
    ino32: bool,
    no_exclusive: bool,
}

impl Fixup {
    /// Reads a list of names.
    ///
    /// # Errors
    /// `EINVAL` for a name that there is not, and for no name at all.
    pub fn parse(list: &str) -> Result<Self> {
        let mut fixup = Fixup::default();
        for name in list.split(',') {
            match name {
                "ino32" => fixup.ino32 = true,
                "no-exclusive" => fixup.no_exclusive = true,
                _ => return Err(OPTIONS.unknown(name)),
            }
        }
        Ok(fixup)
    }
}

/// An inode number that fits into 32 bits; never 0.
fn short(ino: u64) -> u64 {
    if ino >> 32 == 0 { ino } else { siphash13(&ino.to_le_bytes()) >> 32 | 1 }
}

struct Shorten;

impl Visit for Shorten {
    fn attr(&mut self, attr: &mut Attr) {
        attr.ino = short(attr.ino);
    }
}

impl Layer for Fixup {
    fn place(&self) -> Place {
        Place::anywhere("fixup")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        let answer = match request {
            Request::Create(mut op) if self.no_exclusive && op.flags.contains(OpenFlags::EXCL) => {
                op.flags.remove(OpenFlags::EXCL);
                Answer::later(async move {
                    match ask(&**next, cx, Lookup { dir: op.dir, name: op.name.clone() }).await {
                        Ok(entry) => {
                            next.call(&cx.aside(), Forget { node: entry.node, count: 1 }.into()).await;
                            Reply::Error(Errno::EEXIST.into())
                        }
                        Err(error) if error.errno == Errno::ENOENT => next.call(cx, op.into()).await,
                        Err(error) => Reply::Error(error),
                    }
                })
            }
            other => next.call(cx, other),
        };
        if !self.ino32 {
            return answer;
        }
        answer.map(|mut reply| {
            if let Reply::Dirents(listed) = &mut reply {
                listed.entries.iter_mut().for_each(|dirent| dirent.ino = short(dirent.ino));
            }
            reply.traverse(&mut Shorten);
            reply
        })
    }

    fn recall(&self, next: &Arc<dyn Service>, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled> {
        let recalled = next.recall(dir, name, kind)?;
        Ok(if self.ino32 { Recalled { ino: short(recalled.ino), ..recalled } } else { recalled })
    }
}

#[cfg(test)]
mod tests;
