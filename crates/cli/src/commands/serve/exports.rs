// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is exported, and the options of an export, in the words of exports(5).

use clap::ValueEnum;
use outrigger_core::IdMap;
use outrigger_toolkit_serve::{Callers, NOBODY, Network, Squash};
use std::ffi::OsString;
use std::str::FromStr;

/// A tree and the path it is exported as.
#[derive(Debug, Clone)]
pub struct Exported {
    pub path: String,
    pub location: OsString,
}

/// Options of one export.
#[derive(Debug, Clone)]
pub struct Options {
    pub path: String,
    pub terms: Terms,
    /// The text without its path.
    pub list: String,
}

/// Splits `PATH=REST`, and writes the path as it is compared.
fn split<'a>(text: &'a str, rest: &str, example: &str) -> Result<(String, &'a str), String> {
    match text.split_once('=') {
        Some((path, rest)) if path.starts_with('/') && !rest.is_empty() => {
            let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
            match names.contains(&"..") {
                true => Err("'..' in the PATH of an export".to_owned()),
                false => Ok((format!("/{}", names.join("/")), rest)),
            }
        }
        _ => Err(format!("PATH={rest} expected, with a PATH that begins with '/', as in {example}")),
    }
}

impl FromStr for Exported {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, location) = split(text, "LOCATION", "/music=HOST:music")?;
        Ok(Exported { path, location: location.into() })
    }
}

impl FromStr for Options {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, list) = split(text, "OPTION,...", "/music=ro,allow=192.0.2.0/24")?;
        Ok(Options { path, terms: Terms::of([list])?, list: list.to_owned() })
    }
}

/// Whom `squash` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Whom {
    /// The superuser.
    Root,
    /// Everyone.
    All,
    /// No one: user numbers are taken as the client sends them.
    None,
}

/// Who may use an export, how, and what its driver gets. What is not said is decided elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Terms {
    pub read_only: Option<bool>,
    pub squash: Option<Whom>,
    pub anonymous_uid: Option<u32>,
    pub anonymous_gid: Option<u32>,
    pub any_port: Option<bool>,
    pub users: IdMap,
    pub groups: IdMap,
    pub networks: Vec<Network>,
    /// Options of drivers.
    pub driver: Vec<String>,
}

/// Those that are not of drivers, for people.
pub const WORDS: &str = "ro, rw, allow=NETWORK, secure, insecure, root_squash, no_root_squash, all_squash, anonuid=UID, anongid=GID, \
                         map=CLIENT:SERVER, map_group=CLIENT:SERVER";

/// Words of exports(5) that say what is so anyway.
const NEEDLESS: &[&str] =
    &["sync", "no_subtree_check", "wdelay", "no_wdelay", "no_all_squash", "map_identity"];

/// Words of exports(5) that mean nothing here, and what to do instead.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &["async"],
        "leave it out: a client says itself which writes have to be stored before they are answered",
    ),
    (&["subtree_check"], "leave it out: clients cannot make up handles, so none leads out of an export"),
    (&["fsid"], "leave it out: the number follows from the path and the LOCATION, and stays the same"),
    (
        &["hide", "nohide", "crossmnt"],
        "an export is one tree: give another one a path of its own with --export",
    ),
    (
        &["map_static", "map_daemon", "map_nis"],
        "map=CLIENT:SERVER says which user of the tree a user of a client is, map_group=CLIENT:SERVER which group",
    ),
    (&["sec", "xprtsec"], "there is sec=sys only: allow=NETWORK says who may ask"),
    (
        &["secure_locks", "insecure_locks", "auth_nlm", "no_auth_nlm"],
        "leave it out: clients of NFS keep their own locks when they mount with nolock, and those of 9P lock what they have opened",
    ),
    (&["mp", "mountpoint"], "leave it out: the server does not start without the LOCATION"),
    (&["refer", "replicas", "pnfs", "no_pnfs", "acl", "no_acl"], "leave it out: NFS version 3 has none"),
];

impl Terms {
    /// Those in `lists` of words with commas between them, the later ones first.
    ///
    /// # Errors
    /// A sentence about a word that is not understood as it stands. What no one knows here is an option of a driver.
    pub fn of<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut terms = Terms::default();
        for item in lists.into_iter().flat_map(|list| list.split(',')).filter(|item| !item.is_empty()) {
            let (word, value) =
                item.split_once('=').map_or((item, None), |(word, value)| (word, Some(value)));
            terms.take(item, word, value)?;
        }
        Ok(terms)
    }

    fn take(&mut self, item: &str, word: &str, value: Option<&str>) -> Result<(), String> {
        let number = || {
            let number =
                value.and_then(|value| value.parse::<u32>().ok()).filter(|&number| number != u32::MAX);
            number.ok_or_else(|| format!("{item}: a number is needed, as in {word}=1000"))
        };
        match (word, value) {
            ("ro" | "read_only", None) => self.read_only = Some(true),
            ("rw", None) => self.read_only = Some(false),
            ("root_squash", None) => self.squash = Some(Whom::Root),
            ("no_root_squash", None) => self.squash = Some(Whom::None),
            ("all_squash", None) => self.squash = Some(Whom::All),
            ("squash", value) => {
                let whom = value.and_then(|value| Whom::from_str(value, false).ok());
                self.squash =
                    Some(whom.ok_or_else(|| format!("{item}: squash=root, squash=all or squash=none"))?);
            }
            ("anonuid", _) => self.anonymous_uid = Some(number()?),
            ("anongid", _) => self.anonymous_gid = Some(number()?),
            ("anonymous", value) => {
                let (uid, gid) =
                    anonymous(value.unwrap_or_default()).map_err(|why| format!("{item}: {why}"))?;
                (self.anonymous_uid, self.anonymous_gid) = (Some(uid), Some(gid));
            }
            ("map", value) => map(&mut self.users, value.unwrap_or_default())?,
            ("map_group", value) => map(&mut self.groups, value.unwrap_or_default())?,
            ("secure", None) => self.any_port = Some(false),
            ("insecure", None) => self.any_port = Some(true),
            ("allow", value) => {
                let network = value.unwrap_or_default().parse::<Network>();
                self.networks.push(network.map_err(|error| error.to_string())?);
            }
            ("sec", Some("sys")) => {}
            (word, None) if NEEDLESS.contains(&word) => {}
            _ => match ADVICE.iter().find(|(words, _)| words.contains(&word)) {
                Some((_, advice)) => return Err(format!("{item}: {advice}")),
                None => self.driver.push(item.to_owned()),
            },
        }
        Ok(())
    }

    /// These, and what they leave open as `others` have it; options of the driver of both.
    pub fn or(self, others: &Terms) -> Self {
        let networks = if self.networks.is_empty() { others.networks.clone() } else { self.networks };
        let ids = |mut own: IdMap, others: &IdMap| {
            own.complete(others);
            own
        };
        Terms {
            read_only: self.read_only.or(others.read_only),
            squash: self.squash.or(others.squash),
            anonymous_uid: self.anonymous_uid.or(others.anonymous_uid),
            anonymous_gid: self.anonymous_gid.or(others.anonymous_gid),
            any_port: self.any_port.or(others.any_port),
            users: ids(self.users, &others.users),
            groups: ids(self.groups, &others.groups),
            networks,
            driver: others.driver.iter().chain(&self.driver).cloned().collect(),
        }
    }

    /// Who may ask, for a server with this user and group.
    pub fn callers(&self, (uid, gid): (u32, u32)) -> Callers {
        let squash = match (self.squash, uid) {
            (Some(Whom::Root), _) | (None, 0) => Squash::Root,
            // Files cannot be given to another user.
            (Some(Whom::All), _) | (None, _) => Squash::All,
            (Some(Whom::None), _) => Squash::None,
        };
        let own = if uid == 0 { NOBODY } else { (uid, gid) };
        Callers {
            networks: self.networks.clone(),
            any_port: self.any_port.unwrap_or(false),
            users: self.users.clone(),
            groups: self.groups.clone(),
            squash,
            anonymous: (self.anonymous_uid.unwrap_or(own.0), self.anonymous_gid.unwrap_or(own.1)),
        }
    }
}

/// Adds the numbers of a user or group at clients and in the tree to a map.
///
/// # Errors
/// A sentence about a text that is no such pair, or that does not go with those before.
pub fn map(map: &mut IdMap, text: &str) -> Result<(), String> {
    let numbers = text.split_once(':').map(|(client, server)| (client.parse(), server.parse()));
    match numbers {
        Some((Ok(client), Ok(server))) if map.add(client, server) => Ok(()),
        Some((Ok(u32::MAX), Ok(_)) | (Ok(_), Ok(u32::MAX))) => {
            Err(format!("{text}: {} stands for no user or group", u32::MAX))
        }
        Some((Ok(_), Ok(_))) => Err(format!(
            "{text}: one of the two is mapped already, and a number can be that of one user or group only: squash=all with \
             anonuid=UID makes many one"
        )),
        _ => Err(format!("'{text}': two numbers expected, that at clients and that here, as in 1000:501")),
    }
}

/// A user and a group by number.
pub fn anonymous(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').map(|(uid, gid)| (uid.parse(), gid.parse()));
    match numbers {
        Some((Ok(uid), Ok(gid))) => Ok((uid, gid)),
        _ => Err(format!("two numbers expected, as in {}:{}", NOBODY.0, NOBODY.1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(list: &str) -> Terms {
        Terms::of([list]).unwrap()
    }

    #[test]
    fn words_of_exports_mean_the_same_here() {
        let line = "ro,sync,no_subtree_check,sec=sys,all_squash,anonuid=1000,anongid=100,insecure";
        let terms = terms(line);
        assert_eq!((terms.read_only, terms.any_port, &terms.driver), (Some(true), Some(true), &Vec::new()));
        let callers = terms.callers((0, 0));
        assert_eq!((callers.squash, callers.anonymous), (Squash::All, (1000, 100)));
        assert_eq!(Terms::of(["rw,no_root_squash"]).unwrap().callers((0, 0)).squash, Squash::None);
    }

    #[test]
    fn what_means_nothing_here_is_refused_with_advice() {
        for (item, advice) in [
            ("async", "leave it out"),
            ("fsid=0", "leave it out"),
            ("crossmnt", "--export"),
            ("sec=krb5p", "allow=NETWORK"),
            ("insecure_locks", "nolock"),
            ("anonuid=me", "a number"),
            ("anonuid=4294967295", "a number"),
            ("squash=some", "squash=root"),
            ("allow=host", "'host'"),
            ("anonymous=1", "two numbers"),
            ("map_static=/etc/nfs.map", "map=CLIENT:SERVER"),
            ("map=1000", "two numbers"),
            ("map=me:501", "two numbers"),
            ("map_group=4294967295:5", "no user or group"),
            ("map=1000:501,map=1001:501", "mapped already"),
        ] {
            let refused = Terms::of([item]).unwrap_err();
            assert!(refused.contains(advice), "{item}: {refused}");
        }
    }

    #[test]
    fn an_export_has_its_own_words_and_else_those_of_all() {
        let all = terms("ro,allow=192.0.2.0/24,patience=9,anonuid=5");
        let one = terms("rw,allow=198.51.100.0/24,squash=none,io=direct").or(&all);
        assert_eq!(one.read_only, Some(false));
        assert_eq!(one.networks, ["198.51.100.0/24".parse().unwrap()]);
        assert_eq!((one.squash, one.anonymous_uid), (Some(Whom::None), Some(5)));
        assert_eq!(one.driver, ["patience=9", "io=direct"]);
        assert_eq!(Terms::default().or(&all), all);
        let mapped = terms("map=1000:501,map=1001:1000,map_group=100:20");
        let own = terms("map=7:8").or(&mapped).callers((0, 0));
        assert_eq!(
            (own.users.there(7), own.users.there(1000), own.groups.here(20)),
            (Some(8), Some(501), Some(100))
        );
        assert_eq!(terms("ro").or(&mapped).callers((0, 0)).users.there(1001), Some(1000));
    }

    #[test]
    fn a_server_without_privileges_has_one_user() {
        let callers = Terms::default().callers((1000, 100));
        assert_eq!((callers.squash, callers.anonymous), (Squash::All, (1000, 100)));
        assert_eq!(Terms::default().callers((0, 0)).anonymous, NOBODY);
    }

    #[test]
    fn paths_are_compared_as_names() {
        let one: Exported = "//a/./b/=x=y".parse().unwrap();
        assert_eq!((&*one.path, one.location), ("/a/b", "x=y".into()));
        assert!("/a/../b=x".parse::<Exported>().is_err() && "a=x".parse::<Exported>().is_err());
        let options: Options = "/a/b=ro,anonuid=3".parse().unwrap();
        assert_eq!(
            (&*options.path, options.terms.read_only, options.terms.anonymous_uid),
            ("/a/b", Some(true), Some(3))
        );
    }
}
