// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that a driver has opened, and what can be done with one besides asking it.

use super::{Given, Site};
use crate::error::{Errno, Error, Result};
use crate::service::{Answer, Service};
use crate::supervise::History;
use bytes::Bytes;
use std::any::Any;
use std::ffi::OsString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Opens a directory of this machine.
pub type OpenDirectory = fn(&Path, &dyn Given, &Site<'_>) -> Result<Arc<dyn Service>, Error>;

/// Opens a directory of a host.
pub type OpenHost = fn(&Address<'_>, &dyn Given, &Site<'_>) -> Result<Arc<dyn HostTree>, Error>;

/// Starts a command, which is a program and its arguments, and opens what it serves: of a program with several trees the one
/// with this name.
pub type OpenCommand = fn(Vec<OsString>, &[u8], &dyn Given, &Site<'_>) -> Result<Opened, Error>;

/// A tree that was opened.
pub struct Opened {
    /// The tree.
    pub service: Arc<dyn Service>,
    /// What can be done with it besides.
    pub control: Option<Arc<dyn Control>>,
    /// What the user should know about it.
    pub warnings: Vec<Warning>,
}

/// A sentence about a tree that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The sentence.
    pub text: String,
    /// A name out of the file, shown quoted at its end.
    pub name: Option<Vec<u8>>,
    /// Whether something in the file is not in the tree, so that a command which reads all of it has not done everything.
    pub is_loss: bool,
}

/// What can be done with an opened tree besides asking it. Commands that are about one driver find its type by [`Any`].
pub trait Control: Any + Send + Sync {
    /// Ends the tree. When this returns, everything is stored, and other processes can open what it is in.
    ///
    /// # Errors
    /// Why that is not so, as a sentence.
    fn close(&self) -> Result<()>;

    /// Has the host hold up every process that opens what the tree is in, until [`Control::release`] or [`Control::close`]. This
    /// process gets `SIGIO` when one does.
    ///
    /// # Errors
    /// `EAGAIN` while another process has it open; any other where it cannot be.
    fn reserve(&self) -> Result<()> {
        Err(Errno::EINVAL.into())
    }

    /// Ends [`Control::reserve`].
    fn release(&self) {}

    /// What became of the processes that serve the tree, where the driver guards it by itself.
    fn history(&self) -> Option<History> {
        None
    }

    /// The process that could serve a mount of the tree without a detour, if there is one.
    fn direct(&self) -> Option<Arc<dyn Direct>> {
        None
    }

    /// Why a mount of the tree cannot go on in a process of another release, and what to do instead, where that is special.
    fn why_no_upgrade(&self) -> Option<&'static str> {
        None
    }
}

/// A process that can serve a mount by itself. What is said in an order is the door's; the driver passes it on.
pub trait Direct: Send + Sync {
    /// Asks something of the process. A descriptor may go with it.
    fn order(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Answer<'_>;

    /// The order after which the process serves the mount, until it is answered: nothing is asked of the tree meanwhile.
    fn hand_over(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Answer<'_>;

    /// Gives this order, to which no answer comes, to every process that gets the mount from here on. It replaces the one that was
    /// given like this before.
    fn before_hand_over(&self, order: Option<(Bytes, OwnedFd)>);
}

/// A directory of a host as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address<'a> {
    /// `[USER@]HOST`.
    pub host: &'a str,
    /// The port, where one is named.
    pub port: Option<u16>,
    /// The path at the host, relative to the home of the user unless it begins with a slash.
    pub path: &'a [u8],
}

/// A directory of a host that was opened.
pub trait HostTree: Send + Sync {
    /// The tree.
    fn service(&self) -> Arc<dyn Service>;

    /// The absolute path at the host of one that is relative to the home of the user.
    ///
    /// # Errors
    /// Why the home is not known.
    fn absolute(&self, path: &[u8], site: &Site<'_>) -> Result<Vec<u8>>;

    /// What identifies the directory permanently: how the host is reached, and where it is there.
    ///
    /// # Errors
    /// As [`HostTree::absolute`].
    fn key(&self, site: &Site<'_>) -> Result<String>;
}
