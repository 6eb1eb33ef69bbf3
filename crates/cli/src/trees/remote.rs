// SPDX-License-Identifier: MIT OR Apache-2.0
//! Directories of other hosts as trees.

use super::Trees;
use super::layers::{User, on_disk};
use crate::drivers::{self, DriverOptions, opened, scheme, that_has};
use crate::location::{Base, Location, without_password};
use crate::messages;
use crate::status::Failure;
use outrigger_client::Client;
use outrigger_core::registry::{Address, HostTree};
use outrigger_core::{Errno, Keep, Runtime};
use outrigger_layer_cache::{
    KEEPS_METADATA, Metadata, OnDisk, Options as CacheOptions, Policy, Ttls, Writes,
};
use outrigger_layer_contain::Options as LinkOptions;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

/// A tree that a command has opened.
#[derive(Clone)]
pub struct Opened {
    /// The tree.
    pub client: Client,
    /// All of a host's, when it is that.
    pub(super) host: Option<Arc<dyn HostTree>>,
}

impl Opened {
    /// A path in the tree from the one a LOCATION names: on another host it is relative to the home of the user.
    ///
    /// # Errors
    /// A sentence about a home that is not known.
    pub fn path(&self, trees: &Trees, path: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let Some(host) = self.host.as_ref().filter(|_| !path.starts_with(b"/")) else { return Ok(path) };
        let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
        let absolute = host.absolute(&path, &trees.site(&runtime, None));
        absolute.map_err(|error| Failure::serious(format!("{}: {error}", String::from_utf8_lossy(&path))))
    }
}

/// How the tree of an SSH server is cached for a command or a mount. Takes the options of the cache out of `options`. `None` when
/// the user has put a cache among the layers.
///
/// # Errors
/// A sentence about a value that makes no sense, or about options that say how what is not there is to be.
pub(super) fn cached(
    options: &mut DriverOptions,
    layers: &[String],
    user: User,
) -> Result<Option<CacheOptions>, Failure> {
    let keeps = options.has(&[KEEPS_METADATA]);
    let given = options.take(|key| match user {
        User::Command => AHEAD.contains(&key) || keeps && is_about_keeping(key),
        User::Mount => CacheOptions::knows(key),
    });
    if layers.iter().any(|spec| super::layers::name(spec) == "cache") {
        return match given.first() {
            None => Ok(None),
            Some(key) => Err(Failure::serious(format!(
                "option {key} is about the cache that trees of hosts have anyway, and --layer cache replaces that: \
                 give all options to the one or to the other"
            ))),
        };
    }
    let mut cache = match user {
        User::Command => for_a_command(),
        User::Mount => CacheOptions::default(),
    };
    if user == User::Mount {
        cache.policy.writes = Writes::Close;
    }
    given.apply(|key, value| cache.set(key, value))?;
    Ok(Some(cache))
}

/// What becomes of the symbolic links of a host; without an option about that they are contained if `contain`. Takes these options out
/// of `options`.
///
/// # Errors
/// A sentence about a value that makes no sense.
pub(super) fn links(options: &mut DriverOptions, contain: bool) -> Result<LinkOptions, Failure> {
    let mut links = LinkOptions { contain, ..LinkOptions::default() };
    options.take(LinkOptions::knows).apply(|key, value| links.set(key, value))?;
    Ok(links)
}

/// Options of a command whose metadata stay known when it has ended.
fn is_about_keeping(key: &str) -> bool {
    ["cache", KEEPS_METADATA, "cache_dir"].contains(&key.split(':').next().unwrap_or(key))
}

/// Whether a command's tree of a host is cached though it is not by itself: what is known of it is to stay known.
pub(super) fn keeps(options: &DriverOptions) -> bool {
    options.has(&[KEEPS_METADATA])
}

/// What the cache of such a tree keeps on disk: `name` identifies it, and `options` are those of its driver. What cannot be used any more
/// is said once.
///
/// # Errors
/// Those of [`on_disk`].
pub(super) fn kept(
    trees: &Trees,
    cache: Option<&CacheOptions>,
    options: &DriverOptions,
    name: impl FnOnce() -> Result<String, Failure>,
) -> Result<OnDisk, Failure> {
    let Some(cache) = cache.filter(|cache| cache.disk > 0 || cache.disk_metadata > 0) else {
        return Ok(OnDisk::default());
    };
    let (user, layers) = (rustix::process::geteuid().as_raw(), &trees.options().layer);
    let seen = format!("{user} {} {layers:?}", options.listed());
    let disk = on_disk(cache, (&name()?, &seen), &trees.runtime)?;
    if disk.metadata.as_ref().is_some_and(Metadata::is_damaged) {
        let what = "what was kept of the metadata is damaged or of another release: all is asked for anew";
        messages::warn(format_args!("outrigger: disk_metadata: {what}"));
    }
    Ok(disk)
}

/// The name that identifies what a URL names.
pub(super) fn name_of_url(scheme: &str, rest: &[u8]) -> String {
    format!("{scheme} {}", without_password(scheme, rest).escape_ascii())
}

/// Whether a former process has left what it knew of the tree.
pub(super) fn is_known(disk: &OnDisk) -> bool {
    disk.metadata.as_ref().is_some_and(Metadata::knows_tree)
}

/// Options of the cache that commands take as well.
const AHEAD: &[&str] = &["ahead", "sync_readdir", "read_ahead", "files_ahead", "no_readahead", "sync_read"];

/// The cache of a command reads ahead, and writes through. The TTL limits the age of what was read ahead.
fn for_a_command() -> CacheOptions {
    let policy = Policy { ttls: Ttls::For(Duration::from_secs(5)), writes: Writes::Through };
    CacheOptions { policy, memory: 32 << 20, ..CacheOptions::default() }
}

/// Whether trees of other hosts, and the cache of a mount of them, take these options, as far as that shows before one is opened.
///
/// # Errors
/// What is wrong with one of them.
pub fn check_options(trees: &Trees, text: &OsStr, lists: &[String]) -> Result<(), Failure> {
    let (location, mut options) = (Location::parse(text), DriverOptions::parse(lists));
    if !location.nested.is_empty() || !super::is_remote(&location.base) {
        return Ok(());
    }
    cached(&mut options, &trees.options().layer, User::Mount)?;
    links(&mut options, true)?;
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    let site = trees.site(&runtime, None);
    match &location.base {
        Base::Remote { host, port, path } => {
            let (_, open) = that_has(|driver| driver.hosts, "directories of hosts")?;
            let address = Address { host, port: *port, path };
            drivers::check(&options, |given| open(&address, given, &site).map(drop))
        }
        Base::Url { scheme: name, rest } => match (scheme(name), str::from_utf8(rest)) {
            (Some(scheme), Ok(rest)) => {
                drivers::check(&options, |given| (scheme.open)(rest, given, &site).map(drop))
            }
            _ => Ok(()),
        },
        Base::Host(_) | Base::Program(_) => Ok(()),
    }
}

/// The directory of a host; with `keep`, it outlives this process.
///
/// # Errors
/// A sentence that says what ssh said.
pub(super) fn at(
    trees: &Trees,
    address: &Address<'_>,
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn HostTree>, Failure> {
    let (driver, open) = that_has(|driver| driver.hosts, "directories of hosts")?;
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    let site = trees.site(&runtime, keep);
    let &Address { host, port, path } = address;
    let shown = || Location::remote(host, port, path);
    opened(
        driver,
        options,
        |given| open(address, given, &site),
        |error| {
            Failure::serious(match (&error.reason, error.errno) {
                // Why there is no connection is said in ssh's words, and what the server says comes with the path.
                (Some(why), _) => {
                    let at = port.map_or_else(|| host.to_owned(), |port| format!("{host}, port {port}"));
                    format!(
                        "cannot open {at}: {why}{}{}",
                        accepts_key(host, port, why),
                        other_scheme(host, path)
                    )
                }
                (None, Errno::ENOTDIR) => {
                    let shown = shown();
                    format!(
                        "cannot open '{shown}': {error} (if it is an archive, '{shown}::/' is the tree in it)"
                    )
                }
                (None, _) => format!("cannot open '{}': {error}", shown()),
            })
            .with(error.errno)
        },
    )
}

/// What to do where ssh does not know the key of a host. Where it knows another one, ssh says what that may mean.
fn accepts_key(host: &str, port: Option<u16>, why: &str) -> String {
    if !why.contains("Host key verification failed") || why.contains("HAS CHANGED") {
        return String::new();
    }
    let port = port.map_or_else(String::new, |port| format!("-p {port} "));
    format!(" (log in once with `ssh {port}{}` to accept its key)", shell_words::quote(host))
}

/// What may have been meant by `HOST:PATH` that ssh cannot reach: it has no place for a port, and always stands for SSH.
fn other_scheme(host: &str, path: &[u8]) -> String {
    let digits = path.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let port = (1..=5).contains(&digits) && path.get(digits).is_none_or(|next| b":/".contains(next));
    let place = host.rsplit_once('@').map_or(host, |(_, place)| place);
    match std::str::from_utf8(&path[..digits]) {
        Ok(port_number) if port => {
            format!(
                " (with a port it is sftp://{host}:{port_number}/, or ftp://{host}:{port_number}/ for FTP)"
            )
        }
        _ if place.starts_with("ftp") => format!(" (FTP is ftp://{host}/)"),
        _ => String::new(),
    }
}

/// A name that identifies the directory of a host permanently.
///
/// # Errors
/// A sentence about a home that is not known.
pub(super) fn lasting_name(trees: &Trees, tree: &dyn HostTree) -> Result<String, Failure> {
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    tree.key(&trees.site(&runtime, None)).map_err(Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(given: &str, layers: &[&str]) -> Result<Option<CacheOptions>, Failure> {
        let layers: Vec<String> = layers.iter().map(|&layer| layer.to_owned()).collect();
        cached(&mut DriverOptions::parse(&[given.to_owned()]), &layers, User::Mount)
    }

    #[test]
    fn what_sshfs_calls_otherwise_means_the_same() {
        let usual = (Ttls::For(Duration::from_secs(20)), Writes::Close, 200_000);
        for (given, expected) in [
            ("", usual),
            ("dir_cache=yes,reconnect", usual),
            ("sshfs_sync", (usual.0, Writes::Through, usual.2)),
            ("dir_cache=no", (Ttls::Never, usual.1, usual.2)),
            ("cache=no", (Ttls::Never, usual.1, usual.2)),
            ("dcache_timeout=5", (Ttls::For(Duration::from_secs(5)), usual.1, usual.2)),
            (
                "cache_stat_timeout=7,dcache_dir_timeout=7",
                (Ttls::For(Duration::from_secs(7)), usual.1, usual.2),
            ),
            ("dcache_timeout=0", (Ttls::Never, usual.1, usual.2)),
            ("dcache_timeout=5,dir_cache=yes", (Ttls::For(Duration::from_secs(5)), usual.1, usual.2)),
            ("dcache_max_size=7,cache=always", (Ttls::Always, usual.1, 7)),
        ] {
            let Ok(Some(cache)) = cache(given, &["readonly"]) else { panic!("{given}") };
            assert_eq!((cache.policy.ttls, cache.policy.writes, cache.entries), expected, "{given}");
        }
        for given in ["dir_cache=maybe", "sshfs_sync=no", "dcache_timeout=soon", "dcache_max_size=x"] {
            assert!(cache(given, &[]).is_err(), "{given}");
        }
    }

    #[test]
    fn who_may_have_meant_another_scheme_is_told_so() {
        for (host, path, expected) in [
            ("me@h", "2121:", "ftp://me@h:2121/"),
            ("h", "2121", "sftp://h:2121/"),
            ("h", "2121/d", "ftp://h:2121/"),
            ("ftp.debian.org", "", "ftp://ftp.debian.org/"),
            ("me@ftp.h", "d", "ftp://me@ftp.h/"),
        ] {
            let told = other_scheme(host, path.as_bytes());
            assert!(told.contains(expected), "{host}:{path}: {told}");
        }
        for (host, path) in [("h", ""), ("h", "d"), ("h", "2026-11"), ("sftp.h", "/srv"), ("h", "123456")] {
            assert_eq!(other_scheme(host, path.as_bytes()), "", "{host}:{path}");
        }
    }

    #[test]
    fn a_host_whose_key_is_unknown_is_told_with_the_command_that_accepts_it() {
        let unknown = "ssh: Host key verification failed.";
        assert_eq!(
            accepts_key("me@h", Some(22), unknown),
            " (log in once with `ssh -p 22 me@h` to accept its key)"
        );
        assert_eq!(accepts_key("h", None, unknown), " (log in once with `ssh h` to accept its key)");
        let changed = "ssh: WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!; Host key verification failed.";
        for other in [changed, "ssh: Permission denied (publickey)."] {
            assert_eq!(accepts_key("h", None, other), "", "{other}");
        }
    }

    #[test]
    fn options_of_a_cache_that_another_one_replaces_are_refused() {
        for own in ["cache", "cache=5"] {
            assert!(matches!(cache("port=1", &[own]), Ok(None)), "{own}");
            for given in ["cache=5", "write:/a=behind", "dir_cache=no"] {
                let Err(refused) = cache(given, &["readonly", own]) else { panic!("{given}") };
                assert!(refused.to_string().contains("--layer cache"), "{refused}");
            }
        }
    }
}
