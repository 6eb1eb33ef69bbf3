// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the user can choose, and the `-o` list it is written in (mount(8), fuse(8)).
use outrigger_core::option::option;
use outrigger_core::{Keep, OptionTable, parse_size};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The options of a mount, in the order of the manual. Those that mount(8) and systemd.mount(5) keep for themselves are not
/// among them.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "mount",
    options: &[
        option("ro", "", "", "refuses every change with EROFS"),
        option("rw", "", "", "allows changes where the tree does: the opposite of ro, and the default"),
        option("suid", "", "nosuid", "honours set-user-ID and set-group-ID bits; for the superuser only"),
        option("nosuid", "", "", "the opposite of suid"),
        option("dev", "", "nodev", "honours device nodes; for the superuser only"),
        option("nodev", "", "", "the opposite of dev"),
        option("exec", "", "", "lets programs in the mount be executed: the default"),
        option("noexec", "", "", "the opposite of exec"),
        option("atime", "", "", "leaves access times to the tree: the default"),
        option("noatime", "", "", "keeps access times as they are"),
        option("diratime", "", "", "the opposite of nodiratime, and the default"),
        option("nodiratime", "", "", "keeps access times of directories as they are"),
        option("sync", "", "", "makes every write wait until it is on stable storage"),
        option("async", "", "", "the opposite of sync, and the default"),
        option("allow_other", "", "", "lets users other than the one who mounts use the mount"),
        option("uid", "N", "", "shows this user as the owner of every file"),
        option("gid", "N", "", "shows this group as the group of every file"),
        option("umask", "OCTAL", "", "shows all permissions but these for every file"),
        option(
            "attr_timeout",
            "SECONDS",
            "",
            "how long the kernel caches attributes; the driver decides if not given",
        ),
        option(
            "entry_timeout",
            "SECONDS",
            "",
            "how long the kernel caches names; the driver decides if not given",
        ),
        option(
            "negative_timeout",
            "SECONDS",
            "",
            "how long the kernel caches failed lookups (negative dentries)",
        ),
        option("timeout", "SECONDS", "", "how long a request may take before it is answered ETIMEDOUT"),
        option(
            "request_timeout",
            "SECONDS",
            "",
            "the kernel aborts the mount when one request takes longer; needs Linux 6.14",
        ),
        option("direct_io", "", "", "reads and writes past the page cache, as the program asks"),
        option("kernel_cache", "", "", "keeps content in the page cache from one open to the next"),
        option("no_kernel_cache", "", "", "the opposite of kernel_cache, and the default"),
        option("auto_cache", "", "", "sshfs' name of no_kernel_cache"),
        option("writeback", "", "", "collects writes in the page cache; excludes passthrough"),
        option("writeback_cache", "", "", "libfuse's name of writeback"),
        option(
            "no_passthrough",
            "",
            "",
            "reads and writes files of the host through the server instead of in the kernel",
        ),
        option("no_splice", "", "", "copies content through the memory of the server"),
        option("max_read", "BYTES", "no limit", "the largest read request"),
        option("max_write", "BYTES", "1 MiB", "the largest write request, at most 1 MiB"),
        option(
            "max_readahead",
            "BYTES",
            "128 KiB",
            "how far the kernel reads ahead; more than the default needs the superuser",
        ),
        option("max_background", "N", "64", "how many background requests the kernel keeps in flight"),
        option("readers", "N", "1", "how many threads wait for requests"),
        option("max_readers", "N", "16", "how many threads read requests when all are busy"),
        option("default_permissions", "", "", "the kernel checks permissions: the default"),
        option("no_default_permissions", "", "", "the driver checks permissions instead of the kernel"),
        option(
            "acl",
            "",
            "where the tree keeps access lists, the kernel checks permissions and umask= is not given",
            "the kernel obeys POSIX access lists (acl(5)); without it they are shown and decide nothing for other users",
        ),
        option("noacl", "", "", "the opposite of acl"),
        option(
            "idmap",
            "",
            "",
            "permits idmapped mounts of this mount; the driver then learns the user only when a file is made",
        ),
        option("fsname", "TEXT", "the LOCATION", "the source in the mount table"),
        option("subtype", "TEXT", "outrigger.DRIVER", "the type in the mount table, after fuse."),
    ],
};

/// Choices of one mount. The default is what suits a service that says everything about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// What the mount table shows as source; the service's tree when absent.
    pub fsname: Option<String>,
    /// Type after `fuse.` in the mount table; `outrigger.DRIVER` when absent.
    pub subtype: Option<String>,
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// The kernel checks permission bits. On by default: drivers need not.
    pub default_permissions: bool,
    /// No writing; implied by a service that is read-only.
    pub read_only: bool,
    /// Set-id bits are honoured (root only).
    pub suid: bool,
    /// Device nodes are honoured (root only).
    pub dev: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// Access times are not updated.
    pub noatime: bool,
    /// Access times of directories are not updated.
    pub nodiratime: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Largest read request in bytes; unlimited when absent.
    pub max_read: Option<u32>,
    /// Largest write request in bytes; at most 1 MiB.
    pub max_write: u32,
    /// Largest read-ahead in bytes; the kernel's offer (128 KiB) when absent. More than that needs root.
    pub max_readahead: Option<u32>,
    /// Background requests the kernel keeps in flight.
    pub max_background: u16,
    /// Reader threads at rest.
    pub readers: usize,
    /// Most reader threads when all are busy.
    pub max_readers: usize,
    /// Collect writes in the page cache. Excludes passthrough.
    pub writeback: bool,
    /// Let the kernel read and write backing files directly where the driver offers them (root only).
    pub passthrough: bool,
    /// Answer reads of file slices by splice instead of copying.
    pub splice: bool,
    /// Open every file for direct I/O.
    pub direct_io: bool,
    /// Keep cached content from earlier opens.
    pub kernel_cache: bool,
    /// The kernel obeys POSIX access lists (acl(5)), which implies `default_permissions`. When absent it does so where
    /// the service keeps them, unless it checks no permissions or shows other ones (`umask`).
    pub acl: Option<bool>,
    /// Permit idmapped mounts of this mount (root only). The kernel then checks all permissions itself and names the
    /// caller to the driver only when a file is made.
    pub idmap: bool,
    /// Lifetime of attributes instead of what the driver says.
    pub attr_timeout: Option<Duration>,
    /// Lifetime of names instead of what the driver says.
    pub entry_timeout: Option<Duration>,
    /// Lifetime of absent names instead of what the driver says.
    pub negative_timeout: Option<Duration>,
    /// Owner shown for every file.
    pub uid: Option<u32>,
    /// Group shown for every file.
    pub gid: Option<u32>,
    /// Permission bits taken away from every file; all others are shown.
    pub umask: Option<u32>,
    /// How long a request may take; the driver sees it as the deadline.
    pub timeout: Option<Duration>,
    /// Seconds after which the kernel gives up on the whole mount over one request; needs Linux 6.14.
    pub request_timeout: Option<u16>,
    /// Lock the request buffers into memory, so that a kill never catches the kernel half-way through copying a
    /// request: needed when a later process resumes the session.
    pub lock_buffers: bool,
    /// Look at the programs that wait (in `/proc`), so that one that was killed need not wait to the end. A process that may
    /// not open files has to do without.
    pub watch_programs: bool,
    /// Where the door keeps what a process that resumes the session has to know: files registered for passthrough.
    pub keep: Option<Kept>,
}

/// A [`Keep`] among the options; equal to itself only.
#[derive(Clone)]
pub struct Kept(pub Arc<dyn Keep>);

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            fsname: None,
            subtype: None,
            allow_other: false,
            default_permissions: true,
            read_only: false,
            suid: false,
            dev: false,
            exec: true,
            noatime: false,
            nodiratime: false,
            sync: false,
            max_read: None,
            max_write: 1 << 20,
            max_readahead: None,
            max_background: 64,
            readers: 1,
            max_readers: 16,
            writeback: false,
            passthrough: true,
            splice: true,
            direct_io: false,
            kernel_cache: false,
            acl: None,
            idmap: false,
            attr_timeout: None,
            entry_timeout: None,
            negative_timeout: None,
            uid: None,
            gid: None,
            umask: None,
            timeout: None,
            request_timeout: None,
            lock_buffers: false,
            watch_programs: true,
            keep: None,
        }
    }
}

/// An option with a value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("option {name}={value}: {expected} expected")]
pub struct OptionsError {
    /// The option.
    pub name: String,
    /// The value given.
    pub value: String,
    /// What would have been understood.
    pub expected: &'static str,
}

impl Options {
    /// Reads a comma-separated `-o` list. Also gives the options it does not know, verbatim and in order: they
    /// belong to the driver. A backslash makes the next comma part of the value.
    ///
    /// # Errors
    /// [`OptionsError`] when a known option has an unusable value.
    pub fn parse(list: &str) -> Result<(Self, Vec<String>), OptionsError> {
        let mut options = Self::default();
        let mut others = Vec::new();
        for item in split(list) {
            if !options.set(&item)? {
                others.push(item);
            }
        }
        Ok((options, others))
    }

    /// Applies one `name` or `name=value`. False when the name is not known here.
    ///
    /// # Errors
    /// [`OptionsError`] when the value cannot be used.
    pub fn set(&mut self, item: &str) -> Result<bool, OptionsError> {
        match item.split_once('=') {
            Some((name, value)) => self.set_value(name, value),
            None => Ok(self.set_switch(item)),
        }
    }

    /// Whether the kernel is to obey the access lists of a service, which keeps some or not.
    pub(crate) fn obeys_acl(&self, kept: bool) -> bool {
        self.acl.unwrap_or(kept && self.default_permissions && self.umask.is_none())
    }

    fn set_switch(&mut self, name: &str) -> bool {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "suid" => self.suid = true,
            "nosuid" => self.suid = false,
            "dev" => self.dev = true,
            "nodev" => self.dev = false,
            "exec" => self.exec = true,
            "noexec" => self.exec = false,
            "noatime" => self.noatime = true,
            // When a file was last read, the tree says: the kernel's own rules for that have no effect here.
            "atime" | "relatime" | "norelatime" | "strictatime" | "nostrictatime" | "lazytime"
            | "nolazytime" => self.noatime = false,
            "nodiratime" => self.nodiratime = true,
            "diratime" => self.nodiratime = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "allow_other" => self.allow_other = true,
            "default_permissions" => self.default_permissions = true,
            "no_default_permissions" => self.default_permissions = false,
            "writeback" | "writeback_cache" => self.writeback = true,
            "no_passthrough" => self.passthrough = false,
            "no_splice" => self.splice = false,
            "direct_io" => self.direct_io = true,
            "kernel_cache" => self.kernel_cache = true,
            "auto_cache" | "no_kernel_cache" => self.kernel_cache = false,
            "acl" => self.acl = Some(true),
            "noacl" => self.acl = Some(false),
            "idmap" => self.idmap = true,
            // Meant for mount(8), fstab and systemd, or the behaviour we have anyway.
            "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "nofail" | "_netdev"
            | "big_writes" | "async_read" | "nonempty" | "auto_unmount" => {}
            _ => return name.starts_with("x-") || name.starts_with("comment"),
        }
        true
    }

    fn set_value(&mut self, name: &str, value: &str) -> Result<bool, OptionsError> {
        match name {
            "fsname" => self.fsname = Some(value.to_owned()),
            "subtype" => self.subtype = Some(value.to_owned()),
            "max_read" => self.max_read = Some(bytes(name, value)?),
            "max_write" => self.max_write = bytes(name, value)?.clamp(4096, 1 << 20),
            "max_readahead" => self.max_readahead = Some(bytes(name, value)?),
            "max_background" => self.max_background = number::<u16>(name, value)?.max(1),
            "readers" => self.readers = number::<usize>(name, value)?.clamp(1, 256),
            "max_readers" => self.max_readers = number::<usize>(name, value)?.clamp(1, 256),
            "attr_timeout" => self.attr_timeout = Some(seconds(name, value)?),
            "entry_timeout" => self.entry_timeout = Some(seconds(name, value)?),
            "negative_timeout" => self.negative_timeout = Some(seconds(name, value)?),
            "timeout" => self.timeout = Some(seconds(name, value)?),
            "request_timeout" => self.request_timeout = Some(number(name, value)?),
            "uid" => self.uid = Some(id(value).ok_or_else(|| unusable(name, value, USER))?),
            "gid" => self.gid = Some(id(value).ok_or_else(|| unusable(name, value, GROUP))?),
            "umask" => self.umask = Some(octal(name, value)?),
            _ => return Ok(name.starts_with("x-") || name == "comment"),
        }
        Ok(true)
    }
}

/// The items of a list; `\,` is a comma inside an item.
fn split(list: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut chars = list.chars();
    while let Some(c) = chars.next() {
        let escaped =
            if c == '\\' { chars.clone().next().filter(|next| matches!(next, ',' | '\\')) } else { None };
        if let (Some(item), Some(next)) = (items.last_mut(), escaped) {
            item.push(next);
            chars.next();
        } else if c == ',' {
            items.push(String::new());
        } else if let Some(item) = items.last_mut() {
            item.push(c);
        }
    }
    items.retain(|item| !item.is_empty());
    items
}

fn unusable(name: &str, value: &str, expected: &'static str) -> OptionsError {
    OptionsError { name: name.to_owned(), value: value.to_owned(), expected }
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, OptionsError> {
    value.parse().map_err(|_| unusable(name, value, "a whole number, not too large,"))
}

fn bytes(name: &str, value: &str) -> Result<u32, OptionsError> {
    let bytes = parse_size(value).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| unusable(name, value, "a number of bytes below 4g, as 65536 or 64k,"))
}

/// What is expected of `uid=` and `gid=`.
const USER: &str = "the number of a user (`id -u NAME` prints it; at most 4294967294)";
const GROUP: &str = "the number of a group (`getent group NAME` prints it; at most 4294967294)";

/// The number of a user or group; the highest one is "no user" to the kernel.
fn id(value: &str) -> Option<u32> {
    value.parse().ok().filter(|&id| id != u32::MAX)
}

fn octal(name: &str, value: &str) -> Result<u32, OptionsError> {
    u32::from_str_radix(value, 8)
        .ok()
        .filter(|mask| *mask <= 0o777)
        .ok_or_else(|| unusable(name, value, "an octal number up to 777"))
}

fn seconds(name: &str, value: &str) -> Result<Duration, OptionsError> {
    value
        .parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| unusable(name, value, "seconds, zero or more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_and_the_rest_is_handed_on() {
        let list = r"ro,allow_other,attr_timeout=1.5,umask=022,uid=7,fsname=a\,b,password=x\,y,_netdev,x-gvfs-hide,ssh_command=z";
        let (options, others) = Options::parse(list).unwrap();
        let expected = Options {
            read_only: true,
            allow_other: true,
            attr_timeout: Some(Duration::from_millis(1500)),
            umask: Some(0o22),
            uid: Some(7),
            fsname: Some("a,b".into()),
            ..Options::default()
        };
        assert_eq!(options, expected);
        assert_eq!(others, ["password=x,y", "ssh_command=z"]);
    }

    #[test]
    fn unusable_values_are_named() {
        for (item, name) in [
            ("attr_timeout=-1", "attr_timeout"),
            ("attr_timeout=NaN", "attr_timeout"),
            ("umask=8", "umask"),
            ("umask=1777", "umask"),
            ("uid=me", "uid"),
            ("max_background=70000", "max_background"),
        ] {
            assert_eq!(Options::parse(item).unwrap_err().name, name, "{item}");
        }
    }

    #[test]
    fn every_option_of_the_table_is_known() {
        for option in OPTIONS.options {
            let value = match option.value {
                "" => option.name.to_owned(),
                _ => format!("{}=7", option.name),
            };
            assert_eq!(Options::parse(&value).map(|(_, others)| others), Ok(vec![]), "{option}");
        }
    }

    #[test]
    fn the_last_word_counts() {
        let (options, others) = Options::parse("ro,noexec,,rw,exec").unwrap();
        assert_eq!((options, others), (Options::default(), vec![]));
    }
}
