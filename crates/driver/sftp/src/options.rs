// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can choose: the names are those of sshfs(1) and ssh_config(5).

use outrigger_core::option::option;
use outrigger_core::{Error, OptionTable, Result};
use outrigger_toolkit_remote::{
    command_words, file_option, for_ssh, is_dangerous_to_ssh, is_of_ssh, lasting_file, options_of_ssh,
};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// What [`Options::set`] takes; besides, options of ssh_config(5) go to ssh.
pub const OPTIONS: OptionTable = OptionTable {
    owner: "sftp",
    options: &[
        option("port", "N", "22, or as ssh is configured", "the port of the server"),
        option("F", "FILE", "~/.ssh/config", "the configuration file of ssh"),
        option("ssh_command", "WORDS", "ssh", "the ssh to run, with options"),
        option(
            "command",
            "WORDS",
            "",
            "what to run instead of ssh: a program that speaks SFTP on standard input and output",
        ),
        option(
            "sftp_server",
            "NAME",
            "sftp",
            "the subsystem to start at the server, or the path of a program",
        ),
        option("compression", "yes|no", "as ssh is configured", "whether ssh compresses"),
        option("C", "", "", "another name of compression=yes"),
        option("connect_timeout", "SECONDS", "30", "how long connecting may take"),
        option("timeout", "SECONDS", "30", "how long an answer may take"),
        option(
            "idmap",
            "none|user|file",
            "none",
            "how owners are translated: not at all, the login user to the local one, or by files",
        ),
        option("uidfile", "FILE", "", "with idmap=file, NAME:NUMBER lines or a passwd(5) of the server"),
        option("gidfile", "FILE", "", "the same for groups"),
        option(
            "nomap",
            "error|ignore",
            "error",
            "what to do with users and groups that are missing in uidfile= and gidfile=",
        ),
        option("follow_symlinks", "", "", "symbolic links are followed at the server"),
        option("disable_hardlink", "", "", "hard links cannot be made"),
        option(
            "no_fsync",
            "",
            "",
            "on a server without fsync@openssh.com, fsync(2) says only that the server has the content; without it that is EINVAL",
        ),
        option("max_listing", "BYTES", "1g", "the most memory that the names of one directory may take"),
    ],
};

/// Options of sshfs(1) that ask for what happens anyway: with the value in this table, or with any where it has a name for it.
pub const ACCEPTED: OptionTable = OptionTable {
    owner: "sftp",
    options: &[
        option(
            "no_check_root",
            "",
            "",
            "accepted for sshfs: the directory at the server is always looked at first",
        ),
        option("reconnect", "", "", "accepted for sshfs: lost connections are always made again"),
        option("max_conns", "N", "", "accepted for sshfs: one connection carries everything side by side"),
        option("workaround", "LIST", "", "accepted for sshfs: servers that need one are recognised"),
        option("ssh_protocol", "2", "", "accepted for sshfs"),
        option(
            "dcache_clean_interval",
            "SECONDS",
            "",
            "accepted for sshfs: the cache is bounded at every moment",
        ),
        option("dcache_min_clean_interval", "SECONDS", "", "accepted for sshfs, as dcache_clean_interval"),
        option(
            "no_rofd_flush",
            "",
            "",
            "accepted for sshfs: closing a file that was only read asks the server nothing",
        ),
    ],
};

/// Options of an [`crate::Sftp`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What to run instead of ssh: a program that speaks SFTP on its standard input and output (`command=WORDS`).
    pub command: Option<Vec<OsString>>,
    /// The ssh to run, with options (`ssh_command=WORDS`).
    pub ssh_command: Vec<OsString>,
    /// Options passed on to ssh, by their names in ssh_config(5).
    pub ssh: Vec<(String, String)>,
    /// The configuration file of ssh (`F=FILE`).
    pub config: Option<String>,
    /// The port of the server (`port=N`).
    pub port: Option<u16>,
    /// Whether ssh compresses (`compression=yes|no`); as it is configured when absent.
    pub compression: Option<bool>,
    /// The subsystem to start at the server, or the path of a program (`sftp_server=NAME`).
    pub server: String,
    /// How long connecting may take (`connect_timeout=SECONDS`).
    pub connect_timeout: Duration,
    /// How long an answer may take (`timeout=SECONDS`).
    pub timeout: Duration,
    /// How the owner is translated (`idmap=none|user|file`).
    pub idmap: IdMap,
    /// With [`IdMap::File`], which numbers the users of this system have at the server: lines of `NAME:NUMBER`, or a
    /// passwd(5) of the server (`uidfile=FILE`). Where it is absent, they have the same.
    pub uidfile: Option<PathBuf>,
    /// The same of groups (`gidfile=FILE`).
    pub gidfile: Option<PathBuf>,
    /// What becomes of numbers that these files do not have (`nomap=error|ignore`).
    pub nomap: NoMap,
    /// Whether symbolic links are followed at the server, so that what they lead to is shown (`follow_symlinks`).
    pub follow_symlinks: bool,
    /// Whether hard links can be made (`disable_hardlink` forbids them).
    pub hard_links: bool,
    /// Whether fsync(2) succeeds without a word of the server about its disk (`no_fsync`).
    pub no_fsync: bool,
    /// The most bytes of memory that the names of one directory may take (`max_listing=BYTES`).
    pub max_listing: usize,
}

/// How numbers of users and groups are translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdMap {
    /// Not at all: they are those of the server.
    None,
    /// What belongs to the user at the server belongs to the user here.
    User,
    /// As files say.
    File,
}

/// What becomes of a number of a user or group that no file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoMap {
    /// It is an error, `EPERM`, to look at what belongs to it, or to give it anything.
    Error,
    /// It stays what it is.
    Ignore,
}

/// What the names of a directory may take unless something else is said: those of six million files.
const LISTING: usize = 1 << 30;

impl Default for Options {
    fn default() -> Self {
        Options {
            command: None,
            ssh_command: vec!["ssh".into()],
            ssh: Vec::new(),
            config: None,
            port: None,
            compression: None,
            server: "sftp".into(),
            connect_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
            idmap: IdMap::None,
            uidfile: None,
            gidfile: None,
            nomap: NoMap::Error,
            follow_symlinks: false,
            hard_links: true,
            no_fsync: false,
            max_listing: LISTING,
        }
    }
}

/// Options of sshfs(1) and of the library below it that there are not here, and what there is instead.
const INSTEAD: &[(&str, &str)] = &[
    ("ac_attr_timeout", "cache=SECONDS says for how long attributes and content are believed"),
    ("allow_root", "allow_other lets root in, and others, whose permissions are checked"),
    ("debug", "OUTRIGGER_LOG=debug in the environment, with --foreground, or outrigger trace"),
    ("delay_connect", "x-systemd.automount in fstab(5) mounts when the directory is first used"),
    ("directport", "command='nc HOST PORT' connects to a port without ssh"),
    ("modules", "HOST:DIRECTORY is what subdir= is; names of files are left as they are"),
    ("noforget", "inode numbers follow from names, and stay the same without it"),
    ("passive", "command='PROGRAM...' runs a program that speaks SFTP on its standard input and output"),
    (
        "password_stdin",
        "a key needs no password; ssh asks on the terminal, or with BatchMode=no by SSH_ASKPASS (see ssh(1))",
    ),
    ("remember", "inode numbers follow from names, and stay the same without it"),
    ("sshfs_debug", "OUTRIGGER_LOG=debug in the environment, with --foreground, or outrigger trace"),
    ("sshfs_verbose", "LogLevel=VERBOSE makes ssh say more"),
];

impl Options {
    /// Sets the option `key` as `-o key=value` names it.
    ///
    /// # Errors
    /// `EINVAL` for an unknown option or a value it does not take; the reason says which are taken.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "command" => self.command = Some(command_words(&OPTIONS, key, value)?),
            "ssh_command" => self.ssh_command = command_words(&OPTIONS, key, value)?,
            "F" => self.config = Some(lasting_file(value)),
            "port" => self.port = Some(OPTIONS.number(key, value, ..)?),
            "compression" | "C" => self.compression = Some(OPTIONS.switch(key, value)?),
            "sftp_server" if !value.is_empty() && !value.starts_with('-') => self.server = value.into(),
            "connect_timeout" => self.connect_timeout = OPTIONS.time_limit(key, value)?,
            "timeout" => self.timeout = OPTIONS.time_limit(key, value)?,
            "idmap" => {
                let all = [("none", IdMap::None), ("user", IdMap::User), ("file", IdMap::File)];
                self.idmap = OPTIONS.one_of(key, value, &all)?;
            }
            "uidfile" => self.uidfile = Some(file_option(&OPTIONS, key, value)?),
            "gidfile" => self.gidfile = Some(file_option(&OPTIONS, key, value)?),
            "nomap" => {
                let both = [("error", NoMap::Error), ("ignore", NoMap::Ignore)];
                self.nomap = OPTIONS.one_of(key, value, &both)?;
            }
            "follow_symlinks" => self.follow_symlinks = OPTIONS.switch(key, value)?,
            "disable_hardlink" => self.hard_links = !OPTIONS.switch(key, value)?,
            "no_fsync" => self.no_fsync = OPTIONS.switch(key, value)?,
            "max_listing" => self.max_listing = OPTIONS.bytes(key, value)?,
            _ if is_accepted(key, value)? => {}
            _ if is_of_ssh(key) => self.ssh.push(for_ssh(key, value)),
            _ => return Err(unknown(key)),
        }
        Ok(())
    }
}

/// Whether the option `key` with this value can have a program started, here or at the server, have ssh(1) talk to another host
/// than the one that was named, or weaken what it checks.
#[must_use]
pub(crate) fn is_dangerous(key: &str, value: &str) -> bool {
    matches!(key, "command" | "ssh_command" | "F" | "sftp_server") || is_dangerous_to_ssh(key, value)
}

/// Whether an option asks for nothing that has to be done.
fn is_accepted(key: &str, value: &str) -> Result<bool> {
    match ACCEPTED.options.iter().find(|option| option.name == key) {
        None => Ok(false),
        Some(option) if option.value == value || option.value.starts_with(char::is_alphabetic) => Ok(true),
        Some(_) => Err(ACCEPTED.unfit(key, value)),
    }
}

/// Why an option is refused that there is not.
fn unknown(key: &str) -> Error {
    let accepted = ACCEPTED.options.iter().map(|option| option.name);
    OPTIONS.unknown_beside(key, INSTEAD, accepted.chain(options_of_ssh()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::Errno;

    #[test]
    fn options_of_sshfs_and_ssh_are_taken() {
        let mut options = Options::default();
        for (key, value) in [
            ("reconnect", ""),
            ("max_conns", "4"),
            ("workaround", "rename"),
            ("ssh_protocol", "2"),
            ("idmap", "user"),
            ("idmap", "file"),
            ("uidfile", "/etc/uids"),
            ("gidfile", "gids"),
            ("nomap", "ignore"),
            ("no_rofd_flush", ""),
            ("dcache_clean_interval", "60"),
            ("compression", "no"),
            ("port", "2022"),
            ("IdentityFile", "~/.ssh/key"),
            ("no_check_root", ""),
            ("StrictHostKeyChecking", "no"),
            ("identityfile", "/other"),
            ("disable_hardlink", ""),
            ("timeout", "2.5"),
            ("command", "sftp-server -e '-l x'"),
        ] {
            assert_eq!(options.set(key, value), Ok(()), "{key}={value}");
        }
        let ssh =
            [("IdentityFile", "~/.ssh/key"), ("StrictHostKeyChecking", "no"), ("identityfile", "/other")];
        let expected = Options {
            command: Some(["sftp-server", "-e", "-l x"].map(OsString::from).to_vec()),
            ssh: ssh.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
            port: Some(2022),
            compression: Some(false),
            timeout: Duration::from_millis(2500),
            idmap: IdMap::File,
            uidfile: Some("/etc/uids".into()),
            gidfile: Some(std::env::current_dir().expect("a directory").join("gids")),
            nomap: NoMap::Ignore,
            hard_links: false,
            ..Options::default()
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn files_of_ssh_are_found_from_every_directory() {
        let here = std::env::current_dir().unwrap();
        for (file, lasts) in [
            (".ssh/key", here.join(".ssh/key").display().to_string()),
            ("~/.ssh/key", "~/.ssh/key".into()),
            ("/key", "/key".into()),
            ("none", "none".into()),
            ("%d/key", "%d/key".into()),
        ] {
            assert_eq!(lasting_file(file), lasts);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_a_reason() {
        let wrong = [
            ("port", "70000"),
            ("max_listing", "many"),
            ("idmap", "files"),
            ("nomap", "never"),
            ("uidfile", ""),
            ("command", ""),
            ("command", "a 'b"),
            ("timeout", "0"),
            ("timeout", "-1"),
            ("follow_symlinks", "maybe"),
            ("sftp_server", "-oProxyCommand=x"),
            ("colour", "red"),
            ("no_check_root", "maybe"),
            ("identityfil", "key"),
            ("Reconect", ""),
            ("IdentityFil", "key"),
            ("forwardagent", "no"),
            ("ssh_protocol", "1"),
            ("reconnect", "no"),
            // Of caches, which are another part.
            ("sshfs_sync", ""),
            ("dir_cache", "no"),
            ("dcache_timeout", "5"),
            ("dcache_max_size", "5"),
            ("X", "1"),
            ("directport", "2222"),
            ("remember", "10"),
            ("passive", ""),
        ];
        for (key, value) in wrong {
            let error = Options::default().set(key, value).expect_err(key);
            assert_eq!(error.errno, Errno::EINVAL);
            assert!(error.reason.is_some_and(|reason| reason.contains(key)), "{key}");
        }
    }

    #[test]
    fn what_there_is_instead_of_an_option_of_sshfs_is_said() {
        for (key, instead) in INSTEAD {
            let error = Options::default().set(key, "").expect_err(key);
            assert_eq!(
                (error.errno, error.reason.as_deref().map(|why| why.ends_with(instead))),
                (Errno::EINVAL, Some(true))
            );
        }
    }

    #[test]
    fn a_mistyped_option_is_unknown_and_dangerous_are_those_that_are_known_and_open_something() {
        let said = |key: &str| {
            Options::default().set(key, "").expect_err(key).reason.unwrap_or_default().to_string()
        };
        let expected =
            "sftp has no option Reconect (did you mean reconnect?); `outrigger drivers sftp` lists them";
        assert_eq!(said("Reconect"), expected);
        assert!(said("IdentityFil").contains("did you mean IdentityFile?"));
        for (key, value, dangerous) in [
            ("Reconect", "", false),
            ("command", "sh", true),
            ("ProxyCommand", "sh", true),
            ("proxyjump", "other", true),
            ("HOSTNAME", "other", true),
            ("UserKnownHostsFile", "/dev/null", true),
            ("StrictHostKeyChecking", "yes", false),
            ("stricthostkeychecking", "yes", false),
            ("StrictHostKeyChecking", "no", true),
            // Without a terminal, ssh refuses a host it does not know otherwise.
            ("StrictHostKeyChecking", "accept-new", true),
            ("ForwardAgent", "no", false),
            ("ForwardAgent", "yes", true),
            ("PasswordAuthentication", "no", false),
            ("Port", "22", false),
        ] {
            assert_eq!(is_dangerous(key, value), dangerous, "{key}={value}");
        }
    }
}
