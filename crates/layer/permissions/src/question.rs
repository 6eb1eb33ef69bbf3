// SPDX-License-Identifier: MIT OR Apache-2.0
//! What has to be known of a tree for a decision, and what is.

use crate::known::{Known, List, Owner};
use bytes::Bytes;
use outrigger_core::acl::{self, Acl};
use outrigger_core::ops::{Access, GetAttr, GetXattr, Lookup};
use outrigger_core::{Errno, Name, Node, Op, Reply, Request, Result, XattrName};
use std::sync::Arc;

/// Something that has to be known of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// Owner and mode.
    Attr(Node),
    /// Which of these permissions the driver grants.
    Granted(Node, u32),
    /// The access list.
    List(Node),
    /// What a name leads to.
    Entry(Node, Name),
}

/// The answer to a [`Question`].
#[derive(Debug, Clone)]
pub(crate) enum Fact {
    Attr(Owner),
    Granted(u32),
    List(List),
    Entry(Option<(Node, Owner)>),
}

impl Question {
    pub fn request(&self) -> Request {
        match self {
            Question::Attr(node) => GetAttr { node: *node, handle: None }.into(),
            Question::Granted(node, mask) => Access { node: *node, mask: *mask }.into(),
            Question::List(node) => GetXattr { node: *node, name: list_name() }.into(),
            Question::Entry(dir, name) => Lookup { dir: *dir, name: name.clone() }.into(),
        }
    }

    /// What `reply` says, remembered in `known` unless there was a change since `changes`.
    pub fn fact(&self, reply: Reply, known: &Known, changes: u64) -> Result<Fact> {
        match self {
            Question::Attr(node) => {
                let attrs = GetAttr::result(reply)?;
                known.learn(changes, *node, &attrs);
                Ok(Fact::Attr((&attrs.attr).into()))
            }
            Question::Granted(..) => Access::result(reply).map(|granted| Fact::Granted(granted.0)),
            Question::List(node) => {
                let list = match GetXattr::result(reply) {
                    Ok(value) => Acl::decode(&value)?.map(Arc::new),
                    Err(error) if NO_LIST.contains(&error.errno) => None,
                    Err(error) => return Err(error),
                };
                known.learn_list(changes, *node, &list);
                Ok(Fact::List(list))
            }
            // A name that leads nowhere is an answer.
            Question::Entry(..) => match Lookup::result(reply) {
                Ok(entry) => Ok(Fact::Entry(Some((entry.node, (&entry.attr).into())))),
                Err(error) if error.errno == Errno::ENOENT => Ok(Fact::Entry(None)),
                Err(error) => Err(error),
            },
        }
    }
}

/// Of a file without an access list, or on a file system without any.
const NO_LIST: [Errno; 2] = [Errno::ENODATA, Errno::EOPNOTSUPP];

fn list_name() -> XattrName {
    XattrName::new(Bytes::from_static(acl::ACCESS)).expect("a name of some bytes without NUL")
}

/// How a tree tells which permissions it grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// By owner, group and mode.
    None,
    /// By those and the access lists of its files, which can be read.
    Read,
    /// It has access lists, and decides itself.
    Asked,
}

/// More than a rename has, which needs to know most: two directories, what two names lead to, and permissions of each.
const MOST: usize = 12;

/// What was asked for one request.
#[derive(Default)]
pub(crate) struct Facts([Option<(Question, Fact)>; MOST]);

impl Facts {
    pub fn add(&mut self, question: Question, fact: Fact) -> Result<()> {
        let free = self.0.iter_mut().find(|slot| slot.is_none());
        *free.ok_or_else(|| Errno::EIO.because("a request with too many questions"))? =
            Some((question, fact));
        Ok(())
    }

    pub fn get(&self, question: &Question) -> Option<Fact> {
        self.0.iter().flatten().find(|(asked, _)| asked == question).map(|(_, fact)| fact.clone())
    }
}
