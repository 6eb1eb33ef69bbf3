// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of users and groups, from the host's databases: a tree only knows numbers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Remembers each name that was asked for.
#[derive(Debug, Default)]
pub struct Owners {
    users: RefCell<HashMap<u32, Option<Rc<str>>>>,
    groups: RefCell<HashMap<u32, Option<Rc<str>>>>,
}

impl Owners {
    /// The name of a user, when the host knows one.
    pub fn user(&self, uid: u32) -> Option<Rc<str>> {
        let find = || uzers::get_user_by_uid(uid).map(|user| user.name().to_string_lossy().into());
        self.users.borrow_mut().entry(uid).or_insert_with(find).clone()
    }

    /// The name of a group, when the host knows one.
    pub fn group(&self, gid: u32) -> Option<Rc<str>> {
        let find = || uzers::get_group_by_gid(gid).map(|group| group.name().to_string_lossy().into());
        self.groups.borrow_mut().entry(gid).or_insert_with(find).clone()
    }
}

/// The number of the user called `name`, or `name` as a number.
pub fn uid_of(name: &str) -> Option<u32> {
    uzers::get_user_by_name(name).map(|user| user.uid()).or_else(|| name.parse().ok())
}

/// The number of the group called `name`, or `name` as a number.
pub fn gid_of(name: &str) -> Option<u32> {
    uzers::get_group_by_name(name).map(|group| group.gid()).or_else(|| name.parse().ok())
}
