// SPDX-License-Identifier: MIT OR Apache-2.0
//! What several parts ask of the host and must ask for in the same careful way.
//!
//! * [`Confined`] starts processes: none gets a descriptor or a variable that was meant for us.
//! * [`users_caches`] and [`users_state`] are the directories of this user's programs.
//! * [`HostFile`] is a file whose content stands for a tree.
//! * [`PrivateDir`] keeps files where other users can neither put nor exchange any.
//! * [`ask_no_one`] gives up the terminal.
//! * [`ask_at_terminal`] and [`private_file`] are where secrets come from.
//! * [`MountEntry`] is a mount, as the kernel's table has it.
//! * [`locked_by`] says who has locked a file.
//! * [`send_with`] and [`receive_with`] pass descriptors on.

mod file;
mod locks;
mod mountinfo;
mod private;
mod rights;
mod secret;
mod start;
mod terminal;
mod users;

pub use file::HostFile;
pub use locks::locked_by;
pub use mountinfo::MountEntry;
pub use private::{PrivateDir, own_dir};
pub use rights::{receive_with, send_with};
pub use secret::{ask_at_terminal, private_file};
pub use start::{
    Confined, allow_descriptors, close_all_but, close_inherited, give_umask_back, named_descriptors,
    seal_descriptors, take_umask,
};
pub use terminal::ask_no_one;
pub use users::{users_caches, users_config, users_state};
