// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listing a directory: several pieces are on their way at a time, and kept as long as the directory is open.
//!
//! The server sends names with their attributes, so nothing is asked for single files, unless a server leaves attributes out.

use crate::attr::kind;
use crate::fault::Fault;
use crate::link::{Again, Link};
use crate::session::{Pending, Session};
use crate::slots::Held;
use bytes::Bytes;
use outrigger_core::{BoxFuture, Errno, Error, FileKind, Name, Result};
use outrigger_proto_sftp::{Attrs, Named, Request};
use outrigger_toolkit_remote::REPEATS;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Pieces asked for at once: at first, so that a small directory ends with the second one, and at most.
const PIECES: usize = 2;
const PIECES_MAX: usize = 16;
/// What a name takes in a listing beside itself and its line, in bytes.
const ATTRS: usize = 40;

/// One name, and what the server says about it.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) attrs: Attrs,
}

/// The listing of an open directory.
pub(crate) struct Listing {
    link: Link,
    path: Arc<[u8]>,
    /// No program waits for it yet.
    ahead: bool,
    state: Mutex<State>,
}

struct State {
    items: Vec<Item>,
    /// How many bytes of memory they take.
    size: usize,
    /// Where the rest comes from, unless this is all.
    source: Option<Source>,
    failed: Option<Error>,
    /// The first name that is none of a file: something may be missing.
    odd: Option<Bytes>,
    /// Whether names were returned: another listing may not go on where this one was.
    was_read: bool,
    /// How often it was begun anew.
    repeats: u32,
}

/// What the server says at once.
#[derive(Default)]
struct Piece {
    items: Vec<Item>,
    /// The first of what is no name of a file, and how many bytes all of these take.
    odd: Option<Bytes>,
    dropped: usize,
}

struct Source {
    held: Held,
    pieces: VecDeque<Pending>,
    /// The piece that is waited for: it stays when a reader gives up.
    next: Option<BoxFuture<'static, Result<Option<Piece>, Fault>>>,
    received: usize,
}

impl State {
    fn new(held: Held) -> Self {
        let source = Some(Source { held, pieces: VecDeque::new(), next: None, received: 0 });
        State { items: Vec::new(), size: 0, source, failed: None, odd: None, was_read: false, repeats: 0 }
    }
}

/// A handle of the directory at `path`.
async fn open(link: &Link, path: &[u8]) -> Result<Held, Fault> {
    let open = Request::OpenDir { path };
    link.run(Again::Always, async |session: Session| {
        let handle = session.begin(&open).await.handle().await?;
        Ok(Held::new(session, handle))
    })
    .await
}

impl Listing {
    /// Opens the directory at `path`, and asks for its first names; `ahead` says that no program waits for them yet.
    ///
    /// # Errors
    /// Why the server does not open it.
    pub(crate) async fn begin(link: &Link, path: &[u8], ahead: bool) -> Result<Arc<Self>> {
        let state = Mutex::new(State::new(open(link, path).await?));
        let listing = Listing { link: link.clone(), path: path.into(), ahead, state };
        if let Some(source) = &mut listing.state.lock().await.source {
            listing.ask(source).await;
        }
        Ok(Arc::new(listing))
    }

    /// The names from number `first` on, `count` of them or all, and whether these are the last.
    ///
    /// # Errors
    /// Why there are no more.
    pub(crate) async fn from(&self, first: usize, count: usize) -> Result<(Vec<Item>, bool)> {
        let mut state = self.state.lock().await;
        // As many as fit, or a short directory would be returned without its end when that comes a moment later.
        while state.source.is_some() && state.items.len() < first.saturating_add(count) {
            if let Err(fault) = self.receive(&mut state).await
                && let Err(fault) = self.begin_anew(&mut state, fault).await
            {
                (state.source, state.failed) = (None, Some(fault.into()));
            }
        }
        let there = state.items.get(first..).unwrap_or_default();
        let names = there[..there.len().min(count)].to_vec();
        match &state.failed {
            Some(error) if there.is_empty() => Err(error.clone()),
            failed => {
                let is_all = failed.is_none() && state.source.is_none() && names.len() == there.len();
                state.was_read |= !names.is_empty();
                Ok((names, is_all))
            }
        }
    }

    /// Lists the directory on the next connection, where this one was lost before names were returned.
    async fn begin_anew(&self, state: &mut State, fault: Fault) -> Result<(), Fault> {
        if !fault.is_lost_connection() || state.was_read || state.repeats == REPEATS {
            return Err(fault);
        }
        let repeats = state.repeats + 1;
        *state = State { repeats, ..State::new(open(&self.link, &self.path).await?) };
        Ok(())
    }

    /// Asks for as many pieces as may be on their way.
    async fn ask(&self, source: &mut Source) {
        let (session, handle) = (&source.held.session, &source.held.handle);
        let request = Request::ReadDir { handle };
        // The more there were, the more are to come.
        let at_once = if source.received == 0 { PIECES } else { source.received.min(PIECES_MAX) };
        while source.pieces.len() < at_once {
            source.pieces.push_back(match self.ahead {
                true => session.begin_ahead(&request).await,
                false => session.begin(&request).await,
            });
        }
    }

    /// Receives one piece.
    async fn receive(&self, state: &mut State) -> Result<(), Fault> {
        let Some(source) = &mut state.source else { return Ok(()) };
        if source.next.is_none() {
            self.ask(source).await;
            let Some(piece) = source.pieces.pop_front() else { return Ok(()) };
            let (link, path, session) =
                (self.link.clone(), Arc::clone(&self.path), source.held.session.clone());
            source.next = Some(Box::pin(async move { received(&link, &session, &path, piece).await }));
        }
        let Some(next) = &mut source.next else { return Ok(()) };
        let items = next.await;
        source.next = None;
        source.received += 1;
        match items? {
            Some(Piece { items, odd, dropped }) => {
                state.size += dropped;
                state.odd = state.odd.take().or(odd);
                state.items.extend(items.into_iter().inspect(|item| {
                    state.size += size_of::<Item>() + item.name.as_bytes().len();
                }));
            }
            None => {
                state.source = None;
                return match state.odd.take() {
                    Some(name) => {
                        let name = name[..name.len().min(SHOWN)].escape_ascii().to_string();
                        let why = format!(
                            "the server lists '{name}', which is no name of a file: others may be missing"
                        );
                        Err(Errno::EIO.because(why).into())
                    }
                    None => Ok(()),
                };
            }
        }
        let max = self.link.options().max_listing;
        if state.size <= max {
            return Ok(());
        }
        let names = state.items.len();
        let why = format!(
            "the server lists {names} names in one directory, and more: max_listing= permits no more than {max} bytes of memory"
        );
        // Not EOVERFLOW, after which ls(1) goes on reading.
        Err(Errno::EFBIG.because(why).into())
    }
}

/// The names in a piece of the listing of the directory at `path`; `None` after the last one.
async fn received(
    link: &Link,
    session: &Session,
    path: &[u8],
    piece: Pending,
) -> Result<Option<Piece>, Fault> {
    let names = piece.names().await?;
    session.note_piece(names.iter().map(|named| named.name.len() + named.line.len() + ATTRS).sum());
    if names.is_empty() { Ok(None) } else { items(link, session, path, names).await.map(Some) }
}

/// What the server listed, less what is no name; attributes that it left out, or that are those of a link to be followed, are
/// asked for.
async fn items(link: &Link, session: &Session, path: &[u8], names: Vec<Named>) -> Result<Piece, Fault> {
    let (mut items, mut odd, mut dropped) = (Vec::with_capacity(names.len()), None, 0);
    for Named { name, attrs, .. } in names {
        if &name[..] == b"." || &name[..] == b".." {
            continue;
        }
        // A copy: the packet it is in is much longer.
        match Name::new(Bytes::copy_from_slice(&name)) {
            Ok(name) => items.push(Item { name, attrs }),
            Err(_) => {
                dropped += size_of::<Item>() + name.len();
                odd.get_or_insert(name);
            }
        }
    }
    let follows = |attrs: &Attrs| link.follows() && kind(attrs) == FileKind::Symlink;
    let mut asked = Vec::new();
    for (index, Item { name, attrs, .. }) in items.iter().enumerate() {
        if (attrs.permissions.is_none() || follows(attrs))
            && let Ok(path) = outrigger_toolkit_remote::join(path.to_vec(), name)
        {
            asked.push((index, link.look(session, &path).await));
        }
    }
    for (index, look) in asked {
        match look.attrs().await {
            Ok(attrs) => items[index].attrs = attrs,
            // Removed meanwhile, or not to be looked at: listed as the server listed it.
            Err(Fault::Refused(_)) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(Piece { items, odd, dropped })
}

/// How much of a name is shown that is none, in bytes.
const SHOWN: usize = 64;
