// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changing attributes, all or none as far as the protocol permits.
//!
//! A server applies what one request asks for piece by piece and goes on after a failure. So what may fail alone is asked
//! first: the size, then the owner, then what the owner may always change.

use crate::attr::{changed_at, kind, seconds};
use crate::fault::Fault;
use crate::files::{For, OpenFile, without_setid};
use crate::inner::Inner;
use crate::link::Again;
use crate::session::Session;
use outrigger_core::ops::SetAttr;
use outrigger_core::order::Kind;
use outrigger_core::reply::Attrs as AttrsReply;
use outrigger_core::{Cx, Errno, FileKind, Node, Result, SetAttrs};
use outrigger_proto_sftp::{Attrs, Owner, Request, StatusCode, Times};
use outrigger_toolkit_remote::known::Change;
use outrigger_toolkit_remote::{Attempt, REPEATS};
use std::sync::Arc;

/// What attributes are set on.
struct Subject {
    /// The file, where it is to be known that it was changed.
    node: Option<Node>,
    /// Where it is; nowhere when it was removed.
    path: Result<Vec<u8>>,
    /// It, where it is open for writing by the handle that was given.
    open: Option<Arc<OpenFile>>,
    is_link: bool,
}

impl Inner {
    pub(crate) async fn set_attr(&self, cx: &Cx, op: SetAttr) -> Result<AttrsReply> {
        let wanted = self.people.meant(&op.attrs)?;
        let file = op.handle.and_then(|handle| self.files.get(handle).ok());
        let open = file.filter(|file| file.writes());
        let is_link = self.inodes.kind(op.node)? == FileKind::Symlink;
        if is_link && (op.attrs.mode.is_some() || op.attrs.size.is_some()) {
            return Err(
                Errno::EOPNOTSUPP.because("symbolic links have neither permissions nor a size to set")
            );
        }
        let subject = Subject { node: Some(op.node), path: self.inodes.path(op.node), open, is_link };
        let attrs = self.set_all(cx, &subject, &wanted).await;
        self.usual.forget(op.node);
        self.attrs_of(op.node, &attrs?)
    }

    async fn set_all(&self, cx: &Cx, subject: &Subject, wanted: &SetAttrs) -> Result<Attrs> {
        let mut now = None;
        if let Some(bytes) = wanted.size {
            let size = Attrs { size: Some(bytes), ..Attrs::NONE };
            let resized = self.set_noted(subject, size, Change::Size(bytes)).await;
            let path = subject.path.as_deref().unwrap_or_default();
            now = Some(self.explained(resized, Attempt::Resize { path }).await?);
            subject.node.iter().for_each(|node| self.files.is_resized(*node, bytes));
        }
        let rest = async {
            now = self.set_owner(subject, wanted, now).await?;
            now = self.set_mode_and_times(subject, wanted, now).await?;
            let attrs = match now {
                Some(attrs) => attrs,
                None => self.look_at_subject(subject).await?,
            };
            let clears =
                self.clears_setid(cx, wanted.kill_setid) && wanted.size.is_some() && wanted.mode.is_none();
            match attrs.permissions.and_then(without_setid).filter(|_| clears) {
                Some(cleared) => self.set(subject, Attrs { permissions: Some(cleared), ..Attrs::NONE }).await,
                None => Ok(attrs),
            }
        };
        let rest: Result<Attrs, Fault> = rest.await;
        self.explained(rest, Attempt::SetAttr).await
    }

    async fn set_owner(
        &self,
        subject: &Subject,
        wanted: &SetAttrs,
        now: Option<Attrs>,
    ) -> Result<Option<Attrs>, Fault> {
        let owner = match (wanted.uid, wanted.gid) {
            (None, None) => return Ok(now),
            (Some(uid), Some(gid)) => Owner { uid, gid },
            (uid, gid) => {
                let now = self.known_or_asked(subject, now).await?.owner.unwrap_or_default();
                Owner { uid: uid.unwrap_or(now.uid), gid: gid.unwrap_or(now.gid) }
            }
        };
        let owner = Attrs { owner: Some(owner), ..Attrs::NONE };
        self.set(subject, owner).await.map(Some)
    }

    async fn set_mode_and_times(
        &self,
        subject: &Subject,
        wanted: &SetAttrs,
        now: Option<Attrs>,
    ) -> Result<Option<Attrs>, Fault> {
        let clock = self.link.runtime().wall();
        let times = match (wanted.atime, wanted.mtime) {
            (None, None) => None,
            (Some(atime), Some(mtime)) => {
                Some(Times { atime: seconds(atime, clock), mtime: seconds(mtime, clock) })
            }
            (None, Some(mtime))
                if let Some(atime) = subject.open.as_ref().and_then(|open| open.seen_atime()) =>
            {
                Some(Times { atime, mtime: seconds(mtime, clock) })
            }
            (atime, mtime) => {
                let now = self.known_or_asked(subject, now).await?.times.unwrap_or_default();
                Some(Times {
                    atime: atime.map_or(now.atime, |time| seconds(time, clock)),
                    mtime: mtime.map_or(now.mtime, |time| seconds(time, clock)),
                })
            }
        };
        let permissions = wanted.mode.map(|mode| mode & 0o7777);
        if times.is_none() && permissions.is_none() {
            return Ok(now);
        }
        let attrs = Attrs { permissions, times, ..Attrs::NONE };
        let set = match times {
            Some(times) => self.set_noted(subject, attrs, Change::Time(changed_at(times.mtime))).await,
            None => self.set(subject, attrs).await,
        };
        set.map(Some)
    }

    /// Sets attributes by which a file is known again.
    async fn set_noted(&self, subject: &Subject, attrs: Attrs, change: Change) -> Result<Attrs, Fault> {
        let change = match &subject.open {
            Some(open) => match self.begin_by(open, For::Anything, change).await {
                Err(fault) if open.is_dead() => return Err(fault),
                begun => begun.ok(),
            },
            None => subject
                .node
                .and_then(|node| self.files.begin(node, change, self.link.runtime().coarse_wall())),
        };
        let set = self.set(subject, attrs).await;
        set.inspect(|_| change.into_iter().for_each(|change| change.done(0)))
    }

    async fn known_or_asked(&self, subject: &Subject, now: Option<Attrs>) -> Result<Attrs, Fault> {
        match now {
            Some(now) => Ok(now),
            None => self.look_at_subject(subject).await,
        }
    }

    async fn look_at_subject(&self, subject: &Subject) -> Result<Attrs, Fault> {
        let held = subject.open.as_ref().and_then(|open| open.present());
        match (held, &subject.path) {
            (_, Ok(path)) => self.look(path).await,
            (Some(held), _) => {
                held.session.begin(&Request::FStat { handle: &held.handle }).await.attrs().await
            }
            (None, Err(error)) => Err(error.clone().into()),
        }
    }

    /// Sets attributes and looks at the result, in one round trip.
    async fn set(&self, subject: &Subject, attrs: Attrs) -> Result<Attrs, Fault> {
        let note =
            |session: &Session| subject.node.iter().for_each(|&node| self.note_unsynced(node, session));
        if let Some(open) = &subject.open
            && let Some((session, done)) = self.set_by_handle(open, attrs).await?
        {
            note(&session);
            return done;
        }
        let path = subject.path.as_ref().map_err(|error| Fault::Known(error.clone()))?;
        let set = match subject.is_link {
            true => Request::LSetStat { path, attrs },
            false => Request::SetStat { path, attrs },
        };
        self.link
            .run(Again::IfServerExited, |session| {
                let (set, note) = (&set, &note);
                async move {
                    let set = session.begin(set).await;
                    let look = self.link.look(&session, path).await;
                    set.done().await?;
                    note(&session);
                    look.attrs().await
                }
            })
            .await
    }

    /// Sets attributes of an open file, after all that was written by this handle before, and looks at the result. `None` where
    /// that has to be done by its path: the file cannot be opened any more, or the server cannot do it.
    ///
    /// # Errors
    /// `ESTALE` where there is another file at its path.
    async fn set_by_handle(
        &self,
        file: &OpenFile,
        attrs: Attrs,
    ) -> Result<Option<(Session, Result<Attrs, Fault>)>, Fault> {
        let turn = file.order.turn(Kind::Set);
        if self.until_made(file).await.is_err() {
            return Ok(None);
        }
        let mut repeats = 0;
        loop {
            let held = match self.handle_for(file, For::Anything).await {
                Ok(held) => held,
                Err(fault) if file.is_dead() => return Err(fault),
                Err(_) => return Ok(None),
            };
            Again::IfServerExited.prepare(&held.session).await;
            let (set, look) =
                (Request::FSetStat { handle: &held.handle, attrs }, Request::FStat { handle: &held.handle });
            turn.comes(held.session.epoch).await;
            // Where nothing is being written, nothing has to be waited for.
            let (set, look) = match turn.is_calm() {
                true => (held.session.begin(&set).await, held.session.begin(&look).await),
                false => (held.session.begin_after(&set).await, held.session.begin_after(&look).await),
            };
            turn.sent(held.session.epoch);
            let done = async {
                set.done().await?;
                look.attrs().await
            };
            let done: Result<Attrs, Fault> = done.await;
            done.iter().for_each(|attrs| file.saw(attrs));
            repeats += 1;
            match &done {
                // Some servers set attributes by path only.
                Err(fault) if fault.code() == Some(StatusCode::OpUnsupported) => {}
                Err(fault)
                    if repeats <= REPEATS
                        && self.link.may_repeat(Again::IfServerExited, &held.session, fault).await =>
                {
                    continue;
                }
                _ => return Ok(Some((held.session.clone(), done))),
            }
            turn.is_first().await;
            return Ok(None);
        }
    }

    /// Gives a new file the permissions it was to have, where the server's umask took some away.
    pub(crate) async fn complete_mode(&self, path: &[u8], attrs: Attrs, mode: u32) -> Attrs {
        let has = attrs.permissions.unwrap_or(mode) & 0o7777;
        if mode & !has & 0o7777 == 0 || kind(&attrs) == FileKind::Symlink {
            return attrs;
        }
        let subject = Subject { node: None, path: Ok(path.to_vec()), open: None, is_link: false };
        let whole = Attrs { permissions: Some(has | mode & 0o7777), ..Attrs::NONE };
        // The file is there; permissions that the server refuses are not worth an error.
        self.set(&subject, whole).await.unwrap_or(attrs)
    }
}
