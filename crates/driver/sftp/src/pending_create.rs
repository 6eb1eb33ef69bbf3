// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are answered before they have been made (see [`OpenFlags::ASYNC_CREATE`]): the caller knows that the name leads nowhere,
//! and what a new file looks like in its directory is known from the last one that was made there.
//!
//! The server is asked for a file that does not exist yet, and how it looks then. Where it says that there is one, somebody else
//! was quicker: then that is opened, as any program's open would. Where the connection is lost before it has said anything, the
//! file is made on the next one; whatever is there by then is opened and keeps its content, for it may be what the lost
//! connection made. That a file is still to be made is noted for the next process before the server is asked.

use crate::attr::{kind, looks};
use crate::fault::Fault;
use crate::files::{OpenFile, must_be_regular, server_flags};
use crate::inner::Inner;
use crate::look::Look;
use crate::session::{Pending, Session};
use crate::slots::{Held, open};
use outrigger_core::ops::{Create, OpenFlags};
use outrigger_core::reply::{Created, OpenHow};
use outrigger_core::{Cx, Errno, Error, Name, Node, Result, lock};
use outrigger_proto_sftp::{Attrs, OpenFlags as Flags, Owner, Request, Times};
use outrigger_toolkit_remote::known::moment;
use outrigger_toolkit_remote::{Attempt, OwnWords};
use std::collections::HashMap;
use std::sync::Mutex as PlainMutex;
use tokio::sync::Mutex;

/// In so many directories it is known what new files look like.
const USUAL_MAX: usize = 1 << 12;
/// The kind of a regular file in a mode.
const REGULAR: u32 = 0o100_000;
/// In the first word of the note of an open file, with the permissions it is to have: it is still to be made.
const PENDING: u64 = 1 << 63;

/// What new files look like, by directory.
#[derive(Default)]
pub(crate) struct Usual(PlainMutex<HashMap<Node, Made>>);

/// What the last files looked like that were made in a directory.
struct Made {
    owner: Option<Owner>,
    /// The permissions that files got when they were asked for.
    granted: u32,
}

impl Usual {
    /// A file was made in `dir` that was to have these permissions.
    pub(crate) fn learn(&self, dir: Node, mode: u32, attrs: &Attrs) {
        let mut known = lock(&self.0);
        if known.len() >= USUAL_MAX && !known.contains_key(&dir) {
            known.clear();
        }
        if attrs.permissions.map(|has| has & 0o7777) != Some(mode & 0o7777) {
            known.remove(&dir);
            return;
        }
        let made = known.entry(dir).or_insert(Made { owner: None, granted: 0 });
        (made.owner, made.granted) = (attrs.owner, made.granted | mode & 0o7777);
    }

    /// What a file will look like that is made in `dir` at a time, in seconds, if that is known.
    fn predict(&self, dir: Node, mode: u32, now: u32) -> Option<Attrs> {
        let known = lock(&self.0);
        let made = known.get(&dir).filter(|made| mode & 0o7777 & !made.granted == 0)?;
        Some(Attrs {
            size: Some(0),
            owner: made.owner,
            permissions: Some(REGULAR | mode & 0o7777),
            times: Some(Times { atime: now, mtime: now }),
        })
    }

    /// Another directory may have this number now, or it has other attributes.
    pub(crate) fn forget(&self, dir: Node) {
        lock(&self.0).remove(&dir);
    }
}

/// Whether an open file has been made.
pub(crate) struct PendingCreate(Mutex<Stage>);

enum Stage {
    Made,
    Uncreated(Uncreated),
    Refused(Error),
}

/// A file that is to be made.
struct Uncreated {
    mode: u32,
    /// It may have been asked for on a connection that is lost, or by a former process.
    again: bool,
    asked: Option<Asked>,
}

/// What the server was asked.
struct Asked {
    session: Session,
    open: Pending,
    look: Look,
}

impl PendingCreate {
    /// Of a file that exists.
    pub(crate) fn made() -> Self {
        PendingCreate(Mutex::new(Stage::Made))
    }

    /// Of one that a former process had open.
    pub(crate) fn noted(&[pending, ..]: &OwnWords) -> Self {
        if pending & PENDING == 0 {
            PendingCreate::made()
        } else {
            PendingCreate::pending(pending as u32, true)
        }
    }

    /// What is noted of a file, with its permissions where it is to be made.
    pub(crate) fn note(mode: Option<u32>) -> OwnWords {
        [mode.map_or(0, |mode| PENDING | u64::from(mode)), 0, 0, 0]
    }

    /// Of one that is to be made, `again` where that may have been tried.
    pub(crate) fn pending(mode: u32, again: bool) -> Self {
        PendingCreate(Mutex::new(Stage::Uncreated(Uncreated { mode, again, asked: None })))
    }
}

impl Inner {
    /// Has a file made that was answered as existing, if it can be predicted what it will look like.
    pub(crate) async fn create_async(&self, cx: &Cx, op: &Create, path: &[u8]) -> Result<Option<Created>> {
        let now = u32::try_from(self.link.runtime().coarse_wall().secs).unwrap_or_default();
        let Some(attrs) = self.usual.predict(op.dir, op.mode, now).filter(|_| !self.link.follows()) else {
            return Ok(None);
        };
        let Some(session) = self.link.present() else { return Ok(None) };
        let entry = self.entry(op.dir, &op.name, &attrs)?;
        let mut opened = match self.files.add_pending(cx, entry.node, op.flags, op.mode) {
            Ok(opened) => opened,
            Err(error) => {
                self.forget(entry.node, 1);
                return Err(error);
            }
        };
        self.ask_for(&*self.files.get(opened.handle)?, &session, path).await;
        opened.how |= OpenHow::PENDING_CREATE;
        Ok(Some(Created { entry, opened }))
    }

    /// Asks the server for a file that is to be made.
    async fn ask_for(&self, file: &OpenFile, session: &Session, path: &[u8]) {
        let mut stage = file.create.0.lock().await;
        let Stage::Uncreated(pending) = &mut *stage else { return };
        let request = Request::Open {
            path,
            flags: server_flags(file.flags) | Flags::CREAT | Flags::EXCL,
            attrs: permissions(pending.mode),
        };
        let open = session.begin(&request).await;
        let look = self.link.look(session, path).await;
        pending.asked = Some(Asked { session: session.clone(), open, look });
    }

    /// Asks for what a former process was about to make, before anything else is asked.
    pub(crate) async fn ask_for_pending(&self, session: &Session) {
        for file in self.files.all() {
            if let Ok(path) = self.inodes.path(file.node) {
                self.ask_for(&file, session, &path).await;
            }
        }
    }

    /// Waits until an open file has been made; its attributes, if a request had to wait for that.
    ///
    /// # Errors
    /// Why it could not be made.
    pub(crate) async fn until_made(&self, file: &OpenFile) -> Result<Option<Attrs>> {
        let mut stage = file.create.0.lock().await;
        let (mode, again, asked) = match &mut *stage {
            Stage::Made => return Ok(None),
            Stage::Refused(error) => return Err(error.clone()),
            Stage::Uncreated(pending) => {
                let again = std::mem::replace(&mut pending.again, true);
                (pending.mode, again, pending.asked.take())
            }
        };
        let made = self.make(file, mode, again, asked).await;
        if made.is_err() {
            self.is_not_made(file.node);
        }
        match made {
            Ok((held, attrs, is_new)) => {
                self.is_made(file, held, &attrs);
                *stage = Stage::Made;
                drop(stage);
                Ok(Some(if is_new { self.as_wanted(file, attrs, mode).await } else { attrs }))
            }
            Err(error) => {
                self.files.is_made(file.handle);
                *stage = Stage::Refused(error.clone());
                Err(error)
            }
        }
    }

    /// Creates a file, or opens the one that another client, or this one on an earlier connection, has created; whether it is new.
    async fn make(
        &self,
        file: &OpenFile,
        mode: u32,
        again: bool,
        asked: Option<Asked>,
    ) -> Result<(Held, Attrs, bool)> {
        let path = self.inodes.path(file.node)?;
        let theirs = server_flags(file.flags);
        let (made, again) = match asked {
            Some(asked) => match asked.answer().await {
                Err(fault) if fault.is_lost_connection() => (self.make_file(&path, theirs, mode).await, true),
                made => (made, again),
            },
            None => (self.make_file(&path, theirs, mode).await, true),
        };
        let fault = match made {
            Ok((held, attrs)) => return Ok((held, attrs, true)),
            Err(fault) => fault,
        };
        let lost = fault.is_lost_connection();
        let error = self.why(fault, Attempt::Make { path: &path }).await;
        if error.errno != Errno::EEXIST && !lost {
            return Err(error);
        }
        let empties = !again && file.flags.contains(OpenFlags::TRUNC);
        let other = self.open_other(&path, if empties { theirs | Flags::TRUNC } else { theirs }).await;
        let (held, attrs) = other.map_err(|other| if lost { error } else { other })?;
        Ok((held, attrs, false))
    }

    /// Opens what is there already.
    async fn open_other(&self, path: &[u8], flags: Flags) -> Result<(Held, Attrs)> {
        let attrs = self.look(path).await?;
        must_be_regular(kind(&attrs))?;
        let opened = open(&self.link, path, flags, Attrs::NONE).await;
        let attempt = Attempt::Open { path, writes: flags.contains(Flags::WRITE) };
        let held = self.explained(opened, attempt).await?;
        let size = if flags.contains(Flags::TRUNC) { Some(0) } else { attrs.size };
        Ok((held, Attrs { size, ..attrs }))
    }

    fn is_made(&self, file: &OpenFile, held: Held, attrs: &Attrs) {
        file.is_made(held);
        file.saw(attrs);
        file.slots().iter().for_each(|slot| slot.known().is(looks(attrs), moment()));
        self.files.is_made(file.handle);
    }

    /// The attributes of a new file, with the permissions it was to have.
    async fn as_wanted(&self, file: &OpenFile, attrs: Attrs, mode: u32) -> Attrs {
        self.dirs_of(file.node).for_each(|(dir, _)| self.usual.learn(dir, mode, &attrs));
        match self.inodes.path(file.node) {
            // Boxed, for setting attributes waits until a file has been made.
            Ok(path) => Box::pin(self.complete_mode(&path, attrs, mode)).await,
            Err(_) => attrs,
        }
    }

    /// There is no file of the name that a node was to have.
    fn is_not_made(&self, node: Node) {
        for (dir, name) in self.dirs_of(node) {
            self.inodes.table().removed(dir, &name);
            self.usual.forget(dir);
        }
    }

    fn dirs_of(&self, node: Node) -> impl Iterator<Item = (Node, Name)> {
        self.inodes.table().names(node).unwrap_or_default().into_iter()
    }
}

impl Asked {
    /// What the server answers.
    async fn answer(self) -> Result<(Held, Attrs), Fault> {
        let Asked { session, open, look } = self;
        let held = Held::new(session, open.handle().await?);
        let attrs = look.attrs().await?;
        Ok((held, attrs))
    }
}

/// Permissions to ask for.
pub(crate) fn permissions(mode: u32) -> Attrs {
    Attrs { permissions: Some(mode & 0o7777), ..Attrs::NONE }
}
