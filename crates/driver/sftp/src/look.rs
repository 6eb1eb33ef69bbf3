// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looking at a path: at a symbolic link itself, or at what it leads to.
//!
//! With `follow_symlinks` there are no links for programs, so every place that learns what a name leads to has
//! to ask in the same way, or one name would be two files. A link that leads nowhere is shown as the link it is, so that it
//! can be seen and removed.

use crate::fault::Fault;
use crate::inner::Inner;
use crate::link::{Again, Link};
use crate::session::{Pending, Session};
use outrigger_core::{Errno, FileKind, Node, Result, Target};
use outrigger_proto_sftp::{Attrs, Request};

/// Attributes that were asked for.
pub(crate) struct Look {
    /// Of what a link leads to, when links are followed.
    target: Option<Pending>,
    itself: Pending,
}

impl Look {
    /// Asks for the attributes of what is at a path, or of what it leads to if `follow`.
    pub(crate) async fn at(session: &Session, path: &[u8], follow: bool) -> Self {
        let target = match follow {
            true => Some(session.begin(&Request::Stat { path }).await),
            false => None,
        };
        Look { target, itself: session.begin(&Request::LStat { path }).await }
    }

    /// Waits for them.
    pub(crate) async fn attrs(self) -> Result<Attrs, Fault> {
        match self.target {
            None => self.itself.attrs().await,
            Some(target) => match target.attrs().await {
                Err(Fault::Refused(_)) => self.itself.attrs().await,
                found => found,
            },
        }
    }
}

impl Link {
    /// Whether symbolic links are followed at the server.
    pub(crate) fn follows(&self) -> bool {
        self.options().follow_symlinks
    }

    /// Asks for the attributes that programs see at a path.
    pub(crate) async fn look(&self, session: &Session, path: &[u8]) -> Look {
        Look::at(session, path, self.follows()).await
    }
}

impl Inner {
    /// The target of a symbolic link, as the server has it.
    pub(crate) async fn read_link(&self, node: Node) -> Result<Target> {
        if self.inodes.kind(node)? != FileKind::Symlink {
            return Err(Errno::EINVAL.because("only symbolic links have a target"));
        }
        let path = self.inodes.path(node)?;
        Target::new(self.link.ask(Again::Always, &Request::ReadLink { path: &path }, Pending::name).await?)
    }
}
