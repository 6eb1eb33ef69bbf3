// SPDX-License-Identifier: MIT OR Apache-2.0
//! Users and groups, which 9P2000 knows by their names.

use nix::unistd::{Gid, Group, User};
use outrigger_core::lock;
use outrigger_proto_ninep::Text;
use std::collections::HashMap;
use std::sync::Mutex;

/// The number of those who have none here.
const NOBODY: u32 = 65_534;
/// How many names are remembered of each kind.
const NAMES: usize = 4096;

/// Who is meant by names of the server: the user whose name is sent there is the one here; others are those of the same name in the user
/// database of this system, or what their number says; nobody else.
pub(crate) struct People {
    uname: Vec<u8>,
    /// The user here, and the group.
    own: (u32, u32),
    users: Mutex<HashMap<Text, u32>>,
    groups: Mutex<HashMap<Text, u32>>,
}

impl People {
    pub(crate) fn new(uname: &str, own: (u32, u32)) -> Self {
        People { uname: uname.into(), own, users: Mutex::default(), groups: Mutex::default() }
    }

    /// The number of a user.
    pub(crate) fn user(&self, name: &Text) -> u32 {
        number(&self.users, name, |text| match **name == self.uname[..] {
            true => Some(self.own.0),
            false => User::from_name(text).ok().flatten().map(|user| user.uid.as_raw()),
        })
    }

    /// The number of a group. Plan 9 has a group for each user.
    pub(crate) fn group(&self, name: &Text) -> u32 {
        number(&self.groups, name, |text| match **name == self.uname[..] {
            true => Some(self.own.1),
            false => Group::from_name(text).ok().flatten().map(|group| group.gid.as_raw()),
        })
    }

    /// The name of a group, as the server has it where that is known.
    pub(crate) fn group_name(&self, gid: u32) -> Option<Text> {
        let seen =
            lock(&self.groups).iter().find(|(_, number)| **number == gid).map(|(name, _)| name.clone());
        seen.filter(|_| gid != NOBODY).or_else(|| {
            let group = Group::from_gid(Gid::from_raw(gid)).ok().flatten()?;
            Text::new(group.name.into_bytes())
        })
    }
}

fn number(known: &Mutex<HashMap<Text, u32>>, name: &Text, find: impl FnOnce(&str) -> Option<u32>) -> u32 {
    if let Some(&number) = lock(known).get(name) {
        return number;
    }
    let text = std::str::from_utf8(name).ok().filter(|text| !text.is_empty() && !text.contains('\0'));
    let found = text.and_then(|text| find(text).or_else(|| text.parse().ok())).unwrap_or(NOBODY);
    let mut known = lock(known);
    if known.len() >= NAMES {
        known.clear();
    }
    known.insert(name.clone(), found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &'static str) -> Text {
        Text::new(name).unwrap()
    }

    #[test]
    fn names_are_ours_those_of_this_system_numbers_or_nobodys() {
        let people = People::new("glenda", (7, 70));
        for (name, user, group) in [
            ("glenda", 7, 70),
            ("root", 0, 0),
            ("4711", 4711, 4711),
            ("no such one", NOBODY, NOBODY),
            ("", NOBODY, NOBODY),
            ("nul\0", NOBODY, NOBODY),
        ] {
            assert_eq!((people.user(&text(name)), people.group(&text(name))), (user, group), "{name}");
        }
        assert_eq!(people.group_name(70), Some(text("glenda")), "as the server calls it");
        assert_eq!(people.group_name(0), Some(text("root")));
        assert_eq!(people.group_name(NOBODY - 1), None);
    }

    #[test]
    fn a_server_of_many_names_takes_no_more_memory_than_one_of_a_few() {
        let people = People::new("glenda", (7, 70));
        for number in 0..3 * NAMES {
            people.user(&Text::new(number.to_string()).unwrap());
        }
        assert!(lock(&people.users).len() <= NAMES);
    }
}
