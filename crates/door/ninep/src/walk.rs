// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaching to a tree, and walking along names.

use crate::answer::Asking;
use crate::convert;
use crate::export::{Export, Held};
use crate::fids::{File, Found, Grip, State};
use crate::users::Who;
use outrigger_core::ops::{GetAttr, Lookup, Parent, Walk};
use outrigger_core::reply::Entry;
use outrigger_core::{Credentials, Cx, Errno, FileKind, Name, Node, Result};
use outrigger_proto_ninep::{List, NO_FID, NO_UID, Qid, Rattach, Reply, Rwalk, Tattach, Text, Twalk};
use outrigger_toolkit_serve::Squash;
use std::sync::Arc;

/// How far a walk has come.
struct Way {
    at: Found,
    qids: Vec<Qid>,
}

impl Way {
    /// Takes over the reference of `entry`, which `name` leads to.
    fn step(&mut self, entry: &Entry, name: Option<Name>) {
        let held = Held::of(&self.at.export, entry);
        let dir = std::mem::replace(&mut self.at.node, held);
        self.at.place = name.map(|name| (dir, name));
        (self.at.kind, self.at.dev) = (entry.attr.kind(), entry.attr.dev);
        self.qids.push(convert::qid(&entry.attr));
    }
}

/// The export with the longest path that `path` begins with, and the names that follow.
fn place<'a, 'b>(exports: &'a [Arc<Export>], path: &'b [u8]) -> Option<(&'a Arc<Export>, Vec<&'b [u8]>)> {
    let names: Vec<&[u8]> = names(path).collect();
    let depth = |export: &Export| {
        let own: Vec<&[u8]> = self::names(export.name.as_bytes()).collect();
        names.starts_with(&own).then_some(own.len())
    };
    let found = exports.iter().filter_map(|export| Some((export, depth(export)?)));
    let (export, depth) = found.max_by_key(|(_, depth)| *depth)?;
    Some((export, names[depth..].to_vec()))
}

/// Whether a tree is exported by a name that begins with `path`: clients that do not know the names of trees try those of a path one by one.
fn is_above(exports: &[Arc<Export>], path: &[u8]) -> bool {
    let above: Vec<&[u8]> = names(path).collect();
    exports.iter().any(|export| names(export.name.as_bytes()).collect::<Vec<_>>().starts_with(&above))
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

impl Asking {
    /// Makes a fid stand for the root of a tree, or for a directory in it.
    pub(crate) async fn attach(&self, call: Tattach, new: &mut Grip) -> Result<Reply> {
        let state = new.state_mut()?;
        if call.afid != NO_FID {
            return Err(Errno::EINVAL.because("there is no login: the afid is that of none"));
        }
        let (shared, client) = (&self.session.shared, &self.session.client);
        let Some((export, names)) = place(&shared.exports, &call.aname) else {
            if let Some(more) = shared.refusals.export.due() {
                let (at, path) = (&client.at, call.aname.escape_ascii());
                tracing::warn!("{at} was refused: nothing is exported as '{path}'{more}");
            }
            return Err(match is_above(&shared.exports, &call.aname) {
                true => Errno::EPERM.because("only what is below it is exported"),
                false => Errno::ENOENT.because("nothing is exported by that name"),
            });
        };
        shared.enter(client, export)?;
        let who = Arc::new(Who::attaching(&call, &client.at, &export.callers, &*shared.users)?);
        if who.is_anonymous
            && export.callers.squash != Squash::All
            && call.n_uname.is_none_or(|uid| uid == NO_UID)
            && shared.users.by_name(&call.uname).is_none()
            && let Some(more) = shared.refusals.user.due()
        {
            let (at, name, dialect) = (&client.at, call.uname.escape_ascii(), self.session.dialect.name());
            tracing::warn!(
                "{at} attaches by {dialect} as '{name}', whom this machine does not know: all that it does is done as the anonymous \
                 user (in {dialect} a client has one user, by name){more}"
            );
        }
        // As the superuser: whether the client's users may use what is there, each request decides.
        let cx = self.cx(&Credentials::ROOT);
        let (attr, at) = self.descend(&cx, export, who, &names).await?;
        *state = State::File(File { at, open: None });
        Ok(Rattach { qid: attr }.into())
    }

    /// The directory that `names` lead to.
    async fn descend(
        &self,
        cx: &Cx,
        export: &Arc<Export>,
        who: Arc<Who>,
        names: &[&[u8]],
    ) -> Result<(Qid, Found)> {
        let root = Held::root(export);
        let attr = export.ask(cx, GetAttr { node: Node::ROOT, handle: None }).await?.attr;
        let (kind, dev, qid) = (attr.kind(), attr.dev, convert::qid(&attr));
        let at = Found { export: Arc::clone(export), who, node: root, kind, dev, place: None };
        let mut way = Way { at, qids: vec![qid] };
        for name in names {
            let name = convert::name(name)?;
            let entry = export.ask(cx, Lookup { dir: way.at.node.node, name }).await?;
            way.step(&entry, None);
        }
        match (way.at.kind, way.qids.last()) {
            (FileKind::Directory, Some(&qid)) => Ok((qid, way.at)),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    /// Makes a fid stand for what names lead to. Where not all do, it stands for nothing.
    pub(crate) async fn walk(&self, call: &Twalk, from: &mut Grip, new: &mut Grip) -> Result<Reply> {
        let file = from.file()?;
        if call.fid == call.newfid && file.open.is_some() {
            return Err(Errno::EBADF.because("an open fid stays where it is"));
        }
        let mut way = Way { at: file.at.clone(), qids: Vec::with_capacity(call.names.len()) };
        if call.fid != call.newfid {
            new.state_mut()?;
        }
        let walked = self.along(&mut way, &call.names).await;
        let is_whole = way.qids.len() == call.names.len();
        match walked {
            Err(error) if way.qids.is_empty() => return Err(error),
            _ if is_whole => {
                let to = if call.fid == call.newfid { from } else { new };
                *to.state_mut()? = State::File(File { at: way.at, open: None });
            }
            _ => {}
        }
        let qids = List::new(way.qids).ok_or_else(|| Errno::EIO.because("a walk that went too far"))?;
        Ok(Rwalk { qids }.into())
    }

    async fn along(&self, way: &mut Way, names: &[Text]) -> Result<()> {
        let mut rest = names;
        while let Some(first) = rest.first() {
            if way.at.kind != FileKind::Directory {
                return Err(Errno::ENOTDIR.into());
            }
            if **first == *b".." {
                self.up(way).await?;
                rest = &rest[1..];
                continue;
            }
            let end = rest.iter().position(|name| **name == *b"..").unwrap_or(rest.len());
            let (down, others) = rest.split_at(end);
            self.down(way, down).await?;
            rest = others;
        }
        Ok(())
    }

    async fn up(&self, way: &mut Way) -> Result<()> {
        let (dir, cx) = (way.at.node.node, self.cx(&way.at.who.cred));
        if dir == Node::ROOT {
            // What is above an export is not exported.
            let attr = way.at.export.ask(&cx, GetAttr { node: dir, handle: None }).await?.attr;
            way.qids.push(convert::qid(&attr));
            return Ok(());
        }
        let entry = way.at.export.ask(&cx, Parent { dir }).await?;
        way.step(&entry, None);
        Ok(())
    }

    async fn down(&self, way: &mut Way, names: &[Text]) -> Result<()> {
        let (dir, cx) = (way.at.node.node, self.cx(&way.at.who.cred));
        let mut wrong = None;
        let good =
            names.iter().map_while(|text| convert::name(text).map_err(|error| wrong = Some(error)).ok());
        let good: Vec<Name> = good.collect();
        let walked = match &good[..] {
            [] => Vec::new(),
            [name] => vec![way.at.export.ask(&cx, Lookup { dir, name: name.clone() }).await?],
            _ => way.at.export.ask(&cx, Walk { dir, names: good.clone() }).await?,
        };
        let (count, wanted) = (walked.len(), good.len());
        for (entry, name) in walked.iter().zip(good) {
            way.step(entry, Some(name));
        }
        match wrong {
            _ if count < wanted => Err(Errno::ENOENT.into()),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
