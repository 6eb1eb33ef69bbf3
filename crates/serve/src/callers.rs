// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which clients may ask, and on whose behalf a call is made.

use crate::notice::Seldom;
use outrigger_core::{Credentials, Cx, Errno, Groups, IdMap, Result, SetAttrs};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Ports that only the superuser of a host may use.
const RESERVED: u16 = 1024;

/// A range of addresses, as in `192.0.2.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// Why a text is no [`Network`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no network: an address, or an address and how many bits of it count, as in 192.0.2.0/24 or 2001:db8::/32"
)]
pub struct NotANetwork(String);

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let wrong = || NotANetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits <= most { Ok(Network { address, bits }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    /// Whether `address` is in it. An IPv4 address in an IPv6 one is the IPv4 address.
    pub fn has(&self, address: IpAddr) -> bool {
        fn same(one: u128, other: u128, bits: u32, of: u32) -> bool {
            bits == 0 || (one ^ other) >> (of - bits) == 0
        }
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                same(one.to_bits().into(), other.to_bits().into(), self.bits.min(32), 32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => same(one.to_bits(), other.to_bits(), self.bits, 128),
            _ => false,
        }
    }
}

/// On whose behalf calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Squash {
    /// The superuser of a client is the anonymous user.
    #[default]
    Root,
    /// Everyone is the anonymous user.
    All,
    /// Everyone is who the client says.
    None,
}

/// Which clients may ask, and what becomes of the users they name.
#[derive(Debug, Clone)]
pub struct Callers {
    /// Clients with addresses in one of these; those of this machine where there is none.
    pub networks: Vec<Network>,
    /// Whether clients may come from ports that any user of a host can use. The user that such a client names may be anyone.
    pub any_port: bool,
    /// Users of clients (`here` in the map) and of the tree (`there`). `squash` does not apply to mapped users.
    pub users: IdMap,
    /// The same for groups.
    pub groups: IdMap,
    /// On whose behalf the calls of others are made.
    pub squash: Squash,
    /// User and group of the anonymous user.
    pub anonymous: (u32, u32),
}

/// `nobody` and `nogroup`, as Linux has them.
pub const NOBODY: (u32, u32) = (65534, 65534);

impl Default for Callers {
    fn default() -> Self {
        Callers {
            networks: Vec::new(),
            any_port: false,
            users: IdMap::default(),
            groups: IdMap::default(),
            squash: Squash::Root,
            anonymous: NOBODY,
        }
    }
}

impl Callers {
    /// Whether a client at `peer` may connect.
    pub fn admit(&self, peer: SocketAddr) -> bool {
        match self.networks.is_empty() {
            true => peer.ip().to_canonical().is_loopback(),
            false => self.networks.iter().any(|network| network.has(peer.ip())),
        }
    }

    /// Whether a client at this port may do more than ask what is exported.
    pub fn trusts(&self, peer: SocketAddr) -> bool {
        self.any_port || peer.port() < RESERVED
    }

    /// On whose behalf a call of `user` is made.
    pub fn credentials(&self, user: &User) -> Credentials {
        let known = match user {
            User::Numbers { uid, gid, gids } => self.user(*uid).map(|uid| (uid, gid, gids)),
            User::Unnamed => None,
        };
        let Some((uid, gid, gids)) = known else {
            return self.of_anonymous();
        };
        let groups: Vec<u32> = gids.iter().map(|&gid| self.group(gid)).collect();
        Credentials { groups: Groups::of(&groups), ..Credentials::new(uid, self.group(*gid)) }
    }

    /// Those of the anonymous user.
    pub fn of_anonymous(&self) -> Credentials {
        let (uid, gid) = self.anonymous;
        Credentials { groups: Groups::of(&[]), ..Credentials::new(uid, gid) }
    }

    /// The user of the tree that a user of a client is; none for the anonymous one.
    pub fn user(&self, uid: u32) -> Option<u32> {
        self.users.there(uid).or_else(|| self.unmapped(&self.users, uid))
    }

    /// The group of the tree that a group of a client is. A client cannot give the group of the superuser either.
    pub fn group(&self, gid: u32) -> u32 {
        let known = self.groups.there(gid).or_else(|| self.unmapped(&self.groups, gid));
        known.unwrap_or(self.anonymous.1)
    }

    /// The number in the tree of a client's user or group that `map` has no pair for: the same number. None, for the anonymous user,
    /// where it is squashed, or belongs to a mapped user in the tree.
    fn unmapped(&self, map: &IdMap, id: u32) -> Option<u32> {
        (!self.squashes(id) && map.here(id).is_none()).then_some(id)
    }

    /// Whether `squash` has this number stand for the anonymous user.
    pub fn squashes(&self, id: u32) -> bool {
        match self.squash {
            Squash::None => false,
            Squash::Root => id == 0,
            Squash::All => true,
        }
    }

    /// Logs that `what` was refused in `export` to a user whom the client may have allowed it: on this side it is another user. Not more often than
    /// `seldom` says.
    pub fn tell_of_squashing(&self, cx: &Cx, (export, what): (&str, &str), seldom: &Seldom) {
        if let Some((who, instead)) = self.why_anonymous(&cx.cred)
            && let Some(more) = seldom.due()
        {
            let peer = cx.origin.peer.as_ref().map_or("a client", |peer| &peer.address);
            tracing::warn!(
                "{peer} was refused '{what}' in '/{export}': {who} of a client is user {} here ({instead}){more}",
                cx.cred.uid
            );
        }
    }

    /// Which user of a client is the anonymous user, and which options give it another number.
    fn why_anonymous(&self, cred: &Credentials) -> Option<(&'static str, &'static str)> {
        if (cred.uid, cred.gid) != self.anonymous {
            return None;
        }
        match self.squash {
            Squash::None if self.users.is_empty() => None,
            Squash::None => Some((
                "a user whose number is that of somebody else here",
                "--map CLIENT:SERVER says who it is",
            )),
            Squash::Root => {
                Some(("root", "--squash root; --squash none lets it be root here, --map 0:UID another user"))
            }
            Squash::All => Some((
                "every user",
                "--squash all; --squash none lets users keep their numbers, --map maps single ones",
            )),
        }
    }

    /// The owner, user and group, that clients see for one of the tree.
    pub fn shown(&self, (uid, gid): (u32, u32)) -> (u32, u32) {
        let shown = |map: &IdMap, id, nobody| {
            // The number of a file's owner may be that of another user at the client.
            map.here(id).unwrap_or_else(|| if map.there(id).is_some() { nobody } else { id })
        };
        if self.users.is_empty() && self.groups.is_empty() {
            return (uid, gid);
        }
        (shown(&self.users, uid, NOBODY.0), shown(&self.groups, gid, NOBODY.1))
    }

    /// Attributes with the owner in the tree whom the one that a client sets means.
    ///
    /// # Errors
    /// `EPERM` for a number that means somebody else in the tree.
    pub fn meant(&self, attrs: SetAttrs) -> Result<SetAttrs> {
        let meant = |map: &IdMap, id: Option<u32>| match id.map(|id| (id, map.there(id))) {
            None => Ok(None),
            Some((_, Some(there))) => Ok(Some(there)),
            Some((id, None)) if map.here(id).is_some() => {
                Err(Errno::EPERM.because(format!("the number {id} is somebody else's here")))
            }
            Some((id, None)) => Ok(Some(id)),
        };
        Ok(SetAttrs { uid: meant(&self.users, attrs.uid)?, gid: meant(&self.groups, attrs.gid)?, ..attrs })
    }
}

/// Who a client says that its caller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum User {
    /// A client that names no user.
    Unnamed,
    /// A user with groups, by the numbers of the client.
    Numbers {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
        /// Supplementary groups.
        gids: Vec<u32>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().has(address.parse().unwrap())
    }

    #[test]
    fn networks() {
        assert!(has("192.0.2.0/24", "192.0.2.255") && !has("192.0.2.0/24", "192.0.3.0"));
        assert!(has("192.0.2.7", "192.0.2.7") && !has("192.0.2.7", "192.0.2.6"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && !has("0.0.0.0/0", "2001:db8::1"));
        assert!(has("2001:db8::/32", "2001:db8:1::9") && !has("2001:db8::/32", "2001:db9::"));
        assert!(has("192.0.2.0/24", "::ffff:192.0.2.1"));
        assert_eq!("192.0.2.7".parse::<Network>().unwrap().to_string(), "192.0.2.7/32");
        for wrong in ["", "192.0.2.0/33", "192.0.2/24", "host", "192.0.2.0/-1", "2001:db8::/129"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_this_machine_may_ask_unless_networks_are_named() {
        let here = "127.0.0.1:700".parse().unwrap();
        let there = "192.0.2.1:700".parse().unwrap();
        let some = Callers { networks: vec!["192.0.2.0/24".parse().unwrap()], ..Callers::default() };
        assert!(Callers::default().admit(here) && !Callers::default().admit(there));
        assert!(!some.admit(here) && some.admit(there));
    }

    #[test]
    fn the_superuser_of_a_client_is_none_here_unless_that_is_wanted() {
        let root = |squash| {
            let callers = Callers { squash, ..Callers::default() };
            callers.credentials(&numbers(0, 0, &[0, 5]))
        };
        let nobody = Credentials { groups: Groups::of(&[]), ..Credentials::new(NOBODY.0, NOBODY.1) };
        assert_eq!(root(Squash::Root), nobody);
        assert_eq!(root(Squash::All), nobody);
        assert_eq!(root(Squash::None), Credentials { groups: Groups::of(&[0, 5]), ..Credentials::ROOT });
    }

    #[test]
    fn the_group_of_the_superuser_is_squashed_with_the_user() {
        let seen = Callers::default().credentials(&numbers(1000, 0, &[0, 5]));
        assert_eq!(
            seen,
            Credentials { groups: Groups::of(&[NOBODY.1, 5]), ..Credentials::new(1000, NOBODY.1) }
        );
    }

    fn map(pairs: &[(u32, u32)]) -> IdMap {
        let mut map = IdMap::default();
        assert!(pairs.iter().all(|&(client, server)| map.add(client, server)));
        map
    }

    fn numbers(uid: u32, gid: u32, gids: &[u32]) -> User {
        User::Numbers { uid, gid, gids: gids.to_vec() }
    }

    #[test]
    fn who_is_in_a_map_is_the_user_there_and_others_are_squashed() {
        let (users, groups) = (map(&[(1000, 501), (0, 7)]), map(&[(100, 20)]));
        let of =
            |squash| Callers { users: users.clone(), groups: groups.clone(), squash, ..Callers::default() };
        let nobody = Credentials { groups: Groups::of(&[]), ..Credentials::new(NOBODY.0, NOBODY.1) };
        let user =
            |uid, gid, gids: &[u32]| Credentials { groups: Groups::of(gids), ..Credentials::new(uid, gid) };
        for (squash, caller, expected) in [
            (Squash::None, numbers(1000, 100, &[100, 5]), user(501, 20, &[20, 5])),
            (Squash::None, numbers(8, 5, &[]), user(8, 5, &[])),
            // Somebody else's numbers in the tree.
            (Squash::None, numbers(501, 100, &[]), nobody.clone()),
            (Squash::None, numbers(8, 20, &[20, 5]), user(8, NOBODY.1, &[NOBODY.1, 5])),
            (Squash::Root, numbers(0, 0, &[0, 100]), user(7, NOBODY.1, &[NOBODY.1, 20])),
            (Squash::All, numbers(1000, 5, &[100]), user(501, NOBODY.1, &[20])),
            (Squash::All, numbers(8, 100, &[100]), nobody.clone()),
            (Squash::None, User::Unnamed, nobody.clone()),
        ] {
            assert_eq!(of(squash).credentials(&caller), expected, "{squash:?} {caller:?}");
        }
    }

    #[test]
    fn owners_are_shown_and_set_with_the_numbers_of_clients() {
        let (users, groups) = (map(&[(1000, 501), (501, 1001)]), map(&[(100, 20)]));
        let callers = Callers { users, groups, squash: Squash::None, ..Callers::default() };
        for (owner, shown) in [
            ((501, 20), (1000, 100)),
            ((1001, 5), (501, 5)),
            ((0, 0), (0, 0)),
            // At a client these are others, whose files they are not.
            ((1000, 100), NOBODY),
        ] {
            assert_eq!(callers.shown(owner), shown, "{owner:?}");
        }
        let set = |uid, gid| SetAttrs { uid, gid, mode: Some(0o600), ..SetAttrs::default() };
        let meant = |uid, gid| callers.meant(set(uid, gid));
        assert_eq!(meant(Some(1000), Some(100)), Ok(set(Some(501), Some(20))));
        assert_eq!(meant(Some(501), None), Ok(set(Some(1001), None)));
        assert_eq!(meant(Some(0), Some(5)), Ok(set(Some(0), Some(5))));
        assert_eq!(meant(None, None), Ok(set(None, None)));
        for refused in [meant(Some(1001), None), meant(None, Some(20))] {
            assert_eq!(refused.map_err(|error| error.errno), Err(Errno::EPERM));
        }
        assert_eq!(Callers::default().shown((1000, 100)), (1000, 100));
    }
}
