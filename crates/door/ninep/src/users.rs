// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who a client attaches as.

use crate::server::At;
use outrigger_core::{Credentials, Errno, Groups, Result};
use outrigger_proto_ninep::{NO_UID, Tattach};
use outrigger_toolkit_serve::Callers;

/// A user of the machine that has the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// Those of its other groups.
    pub groups: Vec<u32>,
}

/// What the machine that has the tree knows of users. Messages have one number, or a name, where requests need groups, too.
pub trait Users: Send + Sync {
    /// The user with this number.
    fn by_number(&self, uid: u32) -> Option<Account>;
    /// The user with this name.
    fn by_name(&self, name: &[u8]) -> Option<Account>;
    /// The name of a user.
    fn user_name(&self, uid: u32) -> Option<String>;
    /// The name of a group.
    fn group_name(&self, gid: u32) -> Option<String>;
    /// The number of a group.
    fn group_number(&self, name: &[u8]) -> Option<u32>;
}

/// Nothing is known of users: each is in no group but that of the anonymous user.
#[derive(Debug, Clone, Copy)]
pub struct NoUsers;

impl Users for NoUsers {
    fn by_number(&self, _: u32) -> Option<Account> {
        None
    }
    fn by_name(&self, _: &[u8]) -> Option<Account> {
        None
    }
    fn user_name(&self, _: u32) -> Option<String> {
        None
    }
    fn group_name(&self, _: u32) -> Option<String> {
        None
    }
    fn group_number(&self, _: &[u8]) -> Option<u32> {
        None
    }
}

/// On whose behalf the requests of a fid are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) cred: Credentials,
    /// Whether the client's user is none here: what it says of groups does not count then.
    pub(crate) is_anonymous: bool,
    /// Whether the client is a program of this machine that does not run as the superuser. Its groups are those of the user database here: a group
    /// that a request names counts only if it is one of them.
    pub(crate) is_local: bool,
}

impl Who {
    /// The user that a client names.
    ///
    /// # Errors
    /// `EPERM` for a program of this machine that names another user than its own.
    pub(crate) fn attaching(attach: &Tattach, at: &At, callers: &Callers, users: &dyn Users) -> Result<Self> {
        let number = attach.n_uname.filter(|&uid| uid != NO_UID);
        let named = || users.by_name(&attach.uname).filter(|account| !callers.squashes(account.uid));
        let account = match number {
            Some(uid) => callers.user(uid).map(|there| {
                users.by_number(there).unwrap_or_else(|| Account {
                    uid: there,
                    gid: if there == 0 { 0 } else { callers.anonymous.1 },
                    groups: Vec::new(),
                })
            }),
            None => named(),
        };
        let own = match at {
            At::Local { uid: Some(own), .. } if *own != 0 => Some(*own),
            _ => None,
        };
        if let Some(own) = own
            && number != Some(own)
            && account.as_ref().is_some_and(|account| account.uid != own)
        {
            let why = format!("a program of the user {own} of this machine attaches as another one");
            return Err(Errno::EPERM.because(why));
        }
        Ok(match account {
            None => Who { cred: callers.of_anonymous(), is_anonymous: true, is_local: own.is_some() },
            Some(Account { uid, gid, groups }) => {
                let cred = Credentials { groups: Groups::of(&groups), ..Credentials::new(uid, gid) };
                Who { cred, is_anonymous: false, is_local: own.is_some() }
            }
        })
    }

    /// The same, for something new that is to have the group `gid` of the client: the user's own one where it cannot be that.
    pub(crate) fn with_group(&self, gid: u32, callers: &Callers) -> Credentials {
        let cred = self.cred.clone();
        if self.is_anonymous || gid == NO_UID {
            return cred;
        }
        let gid = callers.group(gid);
        let is_in_it = cred.groups.known().is_some_and(|groups| groups.contains(&gid));
        if self.is_local && !is_in_it { cred } else { Credentials { gid, ..cred } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_proto_ninep::{NO_FID, Text};
    use outrigger_toolkit_serve::{NOBODY, Squash};

    struct Two;

    impl Users for Two {
        fn by_number(&self, uid: u32) -> Option<Account> {
            (uid == 7).then(|| Account { uid: 7, gid: 70, groups: vec![70, 71] })
        }
        fn by_name(&self, name: &[u8]) -> Option<Account> {
            match name {
                b"seven" => self.by_number(7),
                b"root" => Some(Account { uid: 0, gid: 0, groups: vec![0] }),
                _ => None,
            }
        }
        fn user_name(&self, _: u32) -> Option<String> {
            None
        }
        fn group_name(&self, _: u32) -> Option<String> {
            None
        }
        fn group_number(&self, _: &[u8]) -> Option<u32> {
            None
        }
    }

    fn attach(name: &'static str, n_uname: Option<u32>) -> Tattach {
        let uname = Text::new(name).unwrap();
        Tattach { fid: 1, afid: NO_FID, uname, aname: Text::default(), n_uname }
    }

    fn who(callers: &Callers, at: &At, name: &'static str, number: Option<u32>) -> Result<Who> {
        Who::attaching(&attach(name, number), at, callers, &Two)
    }

    const FAR: At =
        At::Socket(std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 700));

    #[test]
    fn numbers_count_more_than_names_and_who_is_squashed_is_anonymous() {
        let none = Callers { squash: Squash::None, ..Callers::default() };
        let root = Callers::default();
        let all = Callers { squash: Squash::All, ..Callers::default() };
        let seven = Credentials { groups: Groups::of(&[70, 71]), ..Credentials::new(7, 70) };
        for (callers, name, number, expected) in [
            (&none, "", Some(7), Some(seven.clone())),
            (&root, "root", Some(7), Some(seven.clone())),
            (&root, "seven", Some(NO_UID), Some(seven.clone())),
            (&root, "seven", None, Some(seven)),
            (&root, "root", None, None),
            (&root, "", Some(0), None),
            (&root, "glenda", None, None),
            (&all, "", Some(7), None),
        ] {
            let is_anonymous = expected.is_none();
            let cred = expected.unwrap_or_else(|| callers.of_anonymous());
            assert_eq!(
                who(callers, &FAR, name, number),
                Ok(Who { cred, is_anonymous, is_local: false }),
                "{name} {number:?}"
            );
        }
        let unknown = who(&none, &FAR, "", Some(9)).unwrap().cred;
        assert_eq!((unknown.uid, unknown.gid), (9, NOBODY.1));
    }

    #[test]
    fn a_program_of_this_machine_is_its_own_user() {
        let none = Callers { squash: Squash::None, ..Callers::default() };
        let at = |uid| At::Local { path: "s".into(), uid: Some(uid) };
        assert_eq!(who(&none, &at(9), "", Some(7)).unwrap_err().errno, Errno::EPERM);
        assert_eq!(who(&none, &at(9), "seven", None).unwrap_err().errno, Errno::EPERM);
        assert!(who(&none, &at(7), "", Some(7)).is_ok() && who(&none, &at(0), "", Some(7)).is_ok());
    }

    #[test]
    fn the_group_of_something_new_is_the_clients_unless_it_is_squashed() {
        let callers = Callers::default();
        let who = who(&callers, &FAR, "", Some(7)).unwrap();
        assert_eq!(who.with_group(5, &callers).gid, 5);
        assert_eq!(who.with_group(0, &callers).gid, NOBODY.1);
        assert_eq!(who.with_group(NO_UID, &callers).gid, 70);
        let nobody = Who { cred: callers.of_anonymous(), is_anonymous: true, is_local: false };
        assert_eq!(nobody.with_group(5, &callers).gid, NOBODY.1);
    }

    /// With another group, it could read and change what only that group may.
    #[test]
    fn a_program_of_this_machine_makes_files_of_its_own_groups_only() {
        let callers = Callers::default();
        let at = |uid| At::Local { path: "s".into(), uid: Some(uid) };
        let own = who(&callers, &at(7), "", Some(7)).unwrap();
        let roots = who(&callers, &at(0), "", Some(7)).unwrap();
        for (gid, expected) in [(42, [70, 42]), (71, [71, 71]), (70, [70, 70])] {
            let found = [&own, &roots].map(|who| who.with_group(gid, &callers).gid);
            assert_eq!(found, expected, "group {gid}");
        }
    }
}
