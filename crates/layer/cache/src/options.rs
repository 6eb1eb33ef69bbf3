// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the user can choose, for the whole tree and for places in it.

use outrigger_core::option::option;
use outrigger_core::{Attr, Errno, OptionTable, Result, Time};
use std::path::PathBuf;
use std::time::Duration;

/// How long answers are fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ttls {
    /// Asked again every time.
    Never,
    /// Until this client changes something, a notice says that something changed, or the cache is flushed.
    Always,
    /// A tenth of the age of what they tell about, at most this long and at least a fifth of it: what was not changed for
    /// long is rarely changed soon (Cate, *Alex*, 1992).
    For(Duration),
    /// This many percent of the age of what they tell about, and at least a second (the read delay of *Ufo*, 1998, section 4.3).
    Percent(u32),
}

/// When a write has been made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// Before it is answered.
    Through,
    /// Before the file is closed.
    Close,
    /// Soon: before anything that depends on it, such as fsync(2), a change of attributes, or giving the file another name.
    Behind,
    /// As [`Writes::Behind`], and a file that is stored as a whole when it is closed is stored so much later at most (the write delay of
    /// *Ufo*): one that is written several times meanwhile is stored once.
    After(Duration),
    /// The same, later by this many percent of the age that the file had when it was opened, and by a second at least.
    AfterPercent(u32),
}

/// How a part of the tree is cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long answers are fresh.
    pub ttls: Ttls,
    /// When writes have been made.
    pub writes: Writes,
}

/// How a tree is cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where no place says otherwise.
    pub policy: Policy,
    /// Places with a policy of their own, for everything below them: paths from the root, and what is different there.
    pub places: Vec<(Vec<u8>, Different)>,
    /// The most files and names that are remembered.
    pub entries: usize,
    /// The most memory for what is remembered of files and names, in bytes.
    pub names: usize,
    /// The most memory for content, in bytes.
    pub memory: usize,
    /// The most content on disk, in bytes; 0 keeps none there.
    pub disk: u64,
    /// The most metadata on disk, in bytes; 0 keeps none there.
    pub disk_metadata: u64,
    /// The directory below which both are; [`None`] for the user's own.
    pub disk_dir: Option<PathBuf>,
    /// The most memory for writes that were answered and have not been made yet, in bytes.
    pub write_memory: usize,
    /// How long after a directory was listed a program that opens one in it is taken to walk through the tree; never when zero.
    pub ahead: Duration,
    /// The most content to read ahead of one reader, in bytes.
    pub read_ahead: u64,
    /// The most content of small files to read ahead of who opens them one after the other, in bytes.
    pub files_ahead: u64,
}

/// What is different in a part of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Different {
    /// How long answers are fresh there.
    pub ttls: Option<Ttls>,
    /// When writes have been made there.
    pub writes: Option<Writes>,
}

/// Ages are counted in parts of this.
const AGE_PARTS: u32 = 10;
/// The shortest time something is fresh, as a part of the longest.
const LEAST_PARTS: u32 = 5;
/// How long a negative entry is fresh, as a part of the longest.
const NEGATIVE_PARTS: u32 = 20;

/// The shortest time something is fresh whose TTL is a part of its age: a program asks for the same several times.
const SHORTEST: Duration = Duration::from_secs(1);

/// The names of sshfs(1) for its TTLs of names, attributes and links, which are one here.
const SSHFS_TTLS: &[&str] = &[
    "dir_cache",
    "dcache_timeout",
    "cache_timeout",
    "dcache_stat_timeout",
    "dcache_dir_timeout",
    "dcache_link_timeout",
    "cache_stat_timeout",
    "cache_dir_timeout",
    "cache_link_timeout",
];

/// The option for trees that recall names ([`Abilities::recalls`](outrigger_core::Abilities::recalls)) only.
pub const KEEPS_METADATA: &str = "disk_metadata";

/// What [`Options::set`] takes; `cache` and `write` also for one place and all below it, as `cache:/PATH=` and `write:/PATH=`.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "cache",
    options: &[
        option(
            "cache",
            "SECONDS|PERCENT%|always|never|yes|no",
            "20",
            "cache lifetime: a tenth of the time since the last change, at most this, or so many percent of it; cache:/PATH= for a part of the tree",
        )
        .also(SSHFS_TTLS),
        option(
            "write",
            "through|close|behind|SECONDS",
            "close for mounts of hosts, through elsewhere",
            "through: write-through; close: written before close(2) returns; behind: write-back; SECONDS or PERCENT%: write-back, and ftp and dav store a file up to so long after it was closed, in seconds or percent of the age that it had before; write:/PATH= for a part of the tree",
        ),
        option("cache_memory", "BYTES", "128m", "the most memory for content"),
        option("cache_entries", "N", "200000", "the most files and names that are remembered")
            .also(&["dcache_max_size", "cache_max_size"]),
        option("sshfs_sync", "", "", "the same as write=through"),
        option("cache_names", "BYTES", "64m", "the most memory for files and names"),
        option("disk_cache", "BYTES", "0", "the most content kept on disk; mounts of hosts only"),
        option(
            KEEPS_METADATA,
            "BYTES",
            "0",
            "the most metadata (listings, attributes, targets of links) kept on disk, so that they need not be asked for again while cache= lasts; trees of SSH, FTP, HTTP and WebDAV servers only",
        ),
        option("cache_dir", "DIR", "~/.cache", "the directory below which content and metadata are kept on disk"),
        option("write_memory", "BYTES", "16m", "the most memory for writes that wait"),
        option(
            "ahead",
            "SECONDS",
            "5",
            "a directory opened so soon after the one it is in begins a walk, for which the others are listed ahead; 0: never",
        ),
        option("sync_readdir", "", "", "the same as ahead=0"),
        option("read_ahead", "BYTES", "8m", "the most content read ahead for one reader"),
        option("files_ahead", "BYTES", "4m", "the most content of small files read ahead"),
        option("no_readahead", "", "", "the same as read_ahead=0,files_ahead=0"),
        option("sync_read", "", "", "the same as no_readahead"),
    ],
};

impl Default for Options {
    fn default() -> Self {
        Options {
            policy: Policy { ttls: Ttls::For(Duration::from_secs(20)), writes: Writes::Through },
            places: Vec::new(),
            entries: 200_000,
            names: 64 << 20,
            memory: 128 << 20,
            disk: 0,
            disk_metadata: 0,
            disk_dir: None,
            write_memory: 16 << 20,
            ahead: Duration::from_secs(5),
            read_ahead: 8 << 20,
            files_ahead: 4 << 20,
        }
    }
}

impl Ttls {
    /// How long attributes, or the names in a directory with these attributes, are fresh at the time of day `now`.
    pub(crate) fn period(self, attr: &Attr, now: Time) -> Duration {
        match self {
            Ttls::Never => Duration::ZERO,
            Ttls::Always => Duration::MAX,
            Ttls::For(most) => (age(attr, now) / AGE_PARTS).clamp(most / LEAST_PARTS, most),
            Ttls::Percent(percent) => (age(attr, now).saturating_mul(percent) / 100).max(SHORTEST),
        }
    }

    /// How long a negative entry is fresh: shorter than anything else, for programs wait for files to appear.
    pub(crate) fn negative(self) -> Duration {
        self.part(NEGATIVE_PARTS)
    }

    /// The shortest time something is fresh that exists.
    pub(crate) fn least(self) -> Duration {
        self.part(LEAST_PARTS)
    }

    fn part(self, parts: u32) -> Duration {
        match self {
            Ttls::Never => Duration::ZERO,
            Ttls::Always => Duration::MAX,
            Ttls::For(most) => most / parts,
            Ttls::Percent(_) => SHORTEST,
        }
    }

    fn parse(value: &str) -> Result<Self> {
        if let Some(percent) = percent("cache", value)? {
            return Ok(if percent == 0 { Ttls::Never } else { Ttls::Percent(percent) });
        }
        match value {
            "never" | "no" => Ok(Ttls::Never),
            "always" => Ok(Ttls::Always),
            _ => Ok(match OPTIONS.seconds("cache", value)? {
                Duration::ZERO => Ttls::Never,
                period => Ttls::For(period),
            }),
        }
    }
}

/// A percentage, if the value of an option is meant as one.
fn percent(option: &str, value: &str) -> Result<Option<u32>> {
    let Some(number) = value.strip_suffix('%') else { return Ok(None) };
    let percent = number.parse().ok().filter(|percent| (0..=100).contains(percent));
    percent.ok_or_else(|| OPTIONS.unfit(option, value)).map(Some)
}

/// How long ago something was changed, at the time of day `now`.
pub(crate) fn age(attr: &Attr, now: Time) -> Duration {
    let changed = attr.mtime.max(attr.ctime);
    Duration::from_secs(now.secs.saturating_sub(changed.secs).max(0) as u64)
}

/// Words for [`Writes`].
const WRITES: &[(&str, Writes)] =
    &[("through", Writes::Through), ("close", Writes::Close), ("behind", Writes::Behind)];

/// The longest write delay: a day.
const LATEST: Duration = Duration::from_secs(24 * 3600);

impl Writes {
    /// Whether close(2) waits for nothing.
    pub(crate) fn is_behind(self) -> bool {
        matches!(self, Writes::Behind | Writes::After(_) | Writes::AfterPercent(_))
    }

    /// How long after it was closed a file may be stored that had this age when it was opened; `None` where that is not put off.
    pub(crate) fn delay(self, age: Duration) -> Option<Duration> {
        match self {
            Writes::Through | Writes::Close | Writes::Behind => None,
            Writes::After(delay) => Some(delay),
            Writes::AfterPercent(percent) => {
                Some((age.saturating_mul(percent) / 100).clamp(SHORTEST, LATEST))
            }
        }
    }

    fn parse(value: &str) -> Result<Self> {
        if let Some(percent) = percent("write", value)? {
            return Ok(if percent == 0 { Writes::Close } else { Writes::AfterPercent(percent) });
        }
        if !value.starts_with(|first: char| first.is_ascii_digit()) {
            return OPTIONS.one_of("write", value, WRITES);
        }
        match OPTIONS.seconds("write", value)? {
            Duration::ZERO => Ok(Writes::Close),
            delay if delay <= LATEST => Ok(Writes::After(delay)),
            _ => {
                Err(Errno::EINVAL
                    .because(format!("cache: option write cannot be \"{value}\": a day at most")))
            }
        }
    }
}

impl Policy {
    fn with(self, different: Different) -> Self {
        Policy { ttls: different.ttls.unwrap_or(self.ttls), writes: different.writes.unwrap_or(self.writes) }
    }
}

impl Options {
    /// Whether writes are delayed anywhere.
    pub fn delays(&self) -> bool {
        self.writes().any(|writes| writes != Writes::Through)
    }

    /// Whether closing files waits anywhere.
    pub(crate) fn closes_later(&self) -> bool {
        self.writes().any(|writes| matches!(writes, Writes::After(_) | Writes::AfterPercent(_)))
    }

    fn writes(&self) -> impl Iterator<Item = Writes> {
        let places = self.places.iter().filter_map(|(_, different)| different.writes);
        places.chain([self.policy.writes])
    }

    /// Reads `20` or `cache=20,cache:/build=always`.
    ///
    /// # Errors
    /// As [`Options::set`].
    pub fn parse(list: &str) -> Result<Self> {
        let mut options = Options::default();
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or(("cache", item));
            options.set(key, value)?;
        }
        Ok(options)
    }

    /// Whether `key` is an option of this layer.
    pub fn knows(key: &str) -> bool {
        match key.split_once(':') {
            Some((base, _)) => matches!(base, "cache" | "write"),
            None => OPTIONS.has(key),
        }
    }

    /// Sets one option: `cache` (`never`, `always`, seconds, or percent of an age) and `write` (`through`, `close`, `behind`, seconds, or percent of an age), for a place and
    /// all below it as `cache:/PATH` and `write:/PATH`; `cache_entries` (a number), `cache_names`, `cache_memory`, `disk_cache`,
    /// `disk_metadata`, `write_memory`, `read_ahead` and `files_ahead` (bytes; `k`, `m` and `g` are understood); `cache_dir` (an absolute path);
    /// `ahead` (seconds); `sync_readdir`, `no_readahead` and `sync_read`, without a value.
    ///
    /// # Errors
    /// `EINVAL` for an option that does not exist or a value it cannot have; the reason names both.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if !Options::knows(key) {
            return Err(OPTIONS.unknown(key));
        }
        let (key, place) = key.split_once(':').unwrap_or((key, ""));
        match OPTIONS.name(key).unwrap_or(key) {
            // How long is another option of sshfs(1).
            "cache" if value == "yes" => {}
            "cache" => self.at(place, Different { ttls: Some(Ttls::parse(value)?), writes: None }),
            "write" => self.at(place, Different { ttls: None, writes: Some(Writes::parse(value)?) }),
            "cache_entries" => self.entries = OPTIONS.number(key, value, ..)?,
            "cache_names" => self.names = OPTIONS.bytes(key, value)?,
            "cache_memory" => self.memory = OPTIONS.bytes(key, value)?,
            "disk_cache" => self.disk = OPTIONS.bytes(key, value)?,
            KEEPS_METADATA => self.disk_metadata = OPTIONS.bytes(key, value)?,
            "cache_dir" if value.starts_with('/') => self.disk_dir = Some(value.into()),
            "write_memory" => self.write_memory = OPTIONS.bytes(key, value)?,
            "ahead" => self.ahead = OPTIONS.seconds(key, value)?,
            "sshfs_sync" if value.is_empty() => self.policy.writes = Writes::Through,
            "sync_readdir" if value.is_empty() => self.ahead = Duration::ZERO,
            "no_readahead" | "sync_read" if value.is_empty() => (self.read_ahead, self.files_ahead) = (0, 0),
            "read_ahead" => self.read_ahead = OPTIONS.bytes(key, value)?,
            "files_ahead" => self.files_ahead = OPTIONS.bytes(key, value)?,
            _ => return Err(OPTIONS.unfit(key, value)),
        }
        Ok(())
    }

    fn at(&mut self, place: &str, different: Different) {
        match place {
            "" => self.policy = self.policy.with(different),
            path => self.places.push((path.trim_matches('/').into(), different)),
        }
    }
}

/// Policies by path.
pub(crate) struct Policies {
    policy: Policy,
    /// What is above comes first, so that what is below inherits from it.
    places: Vec<(Vec<u8>, Different)>,
}

impl Policies {
    pub(crate) fn new(options: &Options) -> Self {
        let mut places = options.places.clone();
        places.sort_by_key(|(path, _)| path.len());
        Policies { policy: options.policy, places }
    }

    /// Whether the policy depends on the path.
    pub(crate) fn differ(&self) -> bool {
        !self.places.is_empty()
    }

    /// The policy of a path from the root, which begins with a name; that of the root is empty.
    pub(crate) fn of(&self, path: &[u8]) -> Policy {
        let is_below = |place: &[u8]| {
            let rest = path.strip_prefix(place);
            rest.is_some_and(|rest| place.is_empty() || rest.is_empty() || rest[0] == b'/')
        };
        let places = self.places.iter().filter(|(place, _)| is_below(place));
        places.fold(self.policy, |policy, (_, different)| policy.with(*different))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, &str)]) -> Options {
        let mut options = Options::default();
        list.iter().for_each(|(key, value)| options.set(key, value).expect("a good option"));
        options
    }

    #[test]
    fn a_tenth_of_the_age_within_bounds() {
        let attr =
            |mtime, ctime| Attr { mtime: Time::new(mtime, 0), ctime: Time::new(ctime, 0), ..Attr::default() };
        let ttls = Ttls::For(Duration::from_secs(20));
        let now = Time::new(10_000, 0);
        for (mtime, ctime, seconds) in
            [(0, 0, 20), (9_900, 0, 10), (0, 9_900, 10), (9_990, 0, 4), (20_000, 0, 4), (i64::MIN, 0, 20)]
        {
            assert_eq!(ttls.period(&attr(mtime, ctime), now), Duration::from_secs(seconds), "{mtime}");
        }
        let part = options(&[("cache", "20%")]).policy.ttls;
        for (mtime, seconds) in [(9_900, 20), (9_000, 200), (9_999, 1), (20_000, 1)] {
            assert_eq!(part.period(&attr(mtime, 0), now), Duration::from_secs(seconds), "{mtime}");
        }
        assert_eq!(options(&[("cache", "0%")]).policy.ttls, Ttls::Never);
        for value in ["101%", "-1%", "%", "1.5%"] {
            assert!(Options::default().set("cache", value).is_err(), "{value}");
        }
        assert_eq!(Ttls::Never.period(&attr(0, 0), now), Duration::ZERO);
    }

    #[test]
    fn places_have_policies_of_their_own_and_inherit_the_rest() {
        let options = options(&[
            ("cache", "5"),
            ("cache:/a", "7"),
            ("cache:/a/b/", "always"),
            ("cache:c", "0"),
            ("cache:/a", "9"),
        ]);
        let policies = Policies::new(&options);
        let seconds = |seconds| Ttls::For(Duration::from_secs(seconds));
        for (path, ttls) in [
            ("/", seconds(5)),
            ("/x/y", seconds(5)),
            ("/x/a/b", seconds(5)),
            ("/ab", seconds(5)),
            ("/a", seconds(9)),
            ("/a/x", seconds(9)),
            ("/a/b", Ttls::Always),
            ("/a/b/c/d", Ttls::Always),
            ("/c", Ttls::Never),
            ("/c/a/b", Ttls::Never),
        ] {
            assert_eq!(policies.of(&path.as_bytes()[1..]).ttls, ttls, "{path}");
        }
        assert!(policies.differ() && !Policies::new(&Options::default()).differ());
    }

    #[test]
    fn a_write_delay_of_none_is_that_a_file_is_stored_when_it_is_closed() {
        let writes = |value| options(&[("write", value)]).policy.writes;
        assert_eq!((writes("0"), writes("0.0")), (Writes::Close, Writes::Close));
        assert_eq!(writes("2.5"), Writes::After(Duration::from_millis(2500)));
        assert_eq!((writes("0%"), writes("5%")), (Writes::Close, Writes::AfterPercent(5)));
        let hours = |count: u64| Duration::from_secs(3600 * count);
        let delays = [0, 20, 10_000].map(|age| Writes::AfterPercent(5).delay(hours(age)));
        assert_eq!(delays, [Some(SHORTEST), Some(hours(1)), Some(LATEST)]);
        let place = options(&[("write:/a", "30")]);
        assert!(place.closes_later() && place.delays() && !options(&[("write", "behind")]).closes_later());
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (key, value) in [
            ("cache", "soon"),
            ("cache", "-1"),
            ("cache", "inf"),
            ("write", "later"),
            ("write", "86401"),
            ("write", "-1"),
            ("write", "3s"),
            ("write", "101%"),
            ("cache_entries", "many"),
            ("cache_names", "1e9"),
            ("disk_cache", "much"),
            ("disk_metadata", "all"),
            ("cache_dir", "here"),
            ("colour", "red"),
            ("colour:/a", "red"),
        ] {
            let error = Options::default().set(key, value).unwrap_err();
            assert!(error.reason.is_some_and(|reason| reason.contains(key)), "{key}={value}");
        }
        assert!(Options::knows("cache:/x") && Options::knows("cache") && !Options::knows("size"));
        assert_eq!(options(&[("cache_names", "3m")]).names, 3 << 20);
    }

    #[test]
    fn places_differ_in_one_thing_and_inherit_the_other() {
        let policies =
            Policies::new(&options(&[("cache", "always"), ("write:/a", "behind"), ("cache:/a/b", "never")]));
        for (path, ttls, writes) in [
            ("/", Ttls::Always, Writes::Through),
            ("/a", Ttls::Always, Writes::Behind),
            ("/a/b/c", Ttls::Never, Writes::Behind),
        ] {
            assert_eq!(policies.of(&path.as_bytes()[1..]), Policy { ttls, writes }, "{path}");
        }
    }
}
