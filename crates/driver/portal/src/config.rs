// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration: which prefixes of paths lead to which providers.
//!
//! ```text
//! # PREFIX      PROVIDER
//! tcp           tcp
//! mail          tcp mail.example.org 25
//! web           tls www.example.org ca=/etc/ssl/own.pem
//! sockets       unix /run
//! lines/*       exec wc -l --
//! notes         fs /srv/notes
//! ```
//!
//! One provider a line, in words that are quoted as for a shell. Relative paths are in the directory of the file.

use outrigger_core::{Errno, Error, Name, Result};
use outrigger_toolkit_remote::Tls;
use std::cmp::Ordering;
use std::ffi::OsString;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// What holds without a configuration file.
pub(crate) const USUAL: &str = "tcp tcp\ntls tls\nunix unix /\n";

/// The most bytes of a configuration.
pub(crate) const SIZE_MAX: usize = 64 << 10;

/// Stands in a prefix for a name that becomes an argument.
const ARGUMENT: &str = "*";

/// What paths lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) rules: Vec<Rule>,
}

impl Provider {
    /// Looks whether there is what it names. Sockets and programs may come later.
    ///
    /// # Errors
    /// What is missing, or is something else.
    fn check(&self) -> Result<()> {
        match self {
            Provider::Tcp { tls: Some(Trust { ca: Some(file) }), .. } => {
                Tls::new("localhost", Some(file)).map(drop).map_err(|error| {
                    let why = error.why();
                    error.errno.because(format!("ca={}", why))
                })
            }
            Provider::Fs(path) => match std::fs::metadata(path) {
                Ok(found) if found.is_dir() || found.is_file() => Ok(()),
                Ok(_) => {
                    Err(wrong(format!("fs {}: it is neither a directory nor a regular file", path.display())))
                }
                Err(error) => {
                    let error = Error::from(error);
                    Err(error.errno.because(format!("fs {}: {}", path.display(), error.why())))
                }
            },
            Provider::Tcp { .. } | Provider::Unix(_) | Provider::Exec { .. } => Ok(()),
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The names of the prefix; none for the root.
    pub(crate) prefix: Vec<Name>,
    pub(crate) provider: Provider,
}

/// What makes the connections below a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Provider {
    /// TCP, and with `tls` that over it. A host or a port that is not said here is the next name of the path.
    Tcp { host: Option<String>, port: Option<u16>, tls: Option<Trust> },
    /// Sockets in a directory of this machine, or one socket.
    Unix(PathBuf),
    /// A program, which gets so many names of the path as its last arguments, and runs in this directory.
    Exec { command: Vec<OsString>, arguments: usize, dir: PathBuf },
    /// Files in a directory of this machine, or one file.
    Fs(PathBuf),
}

/// Whom TLS believes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trust {
    /// A file of certificates, in place of those that the system has.
    pub(crate) ca: Option<PathBuf>,
}

impl Config {
    /// Reads `text`, which messages call `shown`; relative paths in it are in `base`. What `is_new`, and was not read by a process
    /// before this one, has all files and directories that it names.
    ///
    /// # Errors
    /// `EINVAL` with the number of the line and what is wrong there; `EPERM` for a program, unless those may be started; those of what
    /// a line names and is not there.
    pub(crate) fn parse(
        text: &str,
        (shown, base): (&str, &Path),
        (is_new, may_start_programs): (bool, bool),
    ) -> Result<Self> {
        let mut rules: Vec<Rule> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let at = |error: Error| error.errno.because(format!("{shown}:{}: {}", number + 1, error.why()));
            let Some(rule) = rule(line, base).map_err(at)? else { continue };
            if matches!(rule.provider, Provider::Exec { .. }) && !may_start_programs {
                return Err(at(Errno::EPERM.because(
                    "exec starts a program: put --allow-programs in front of the command, as in outrigger --allow-programs mount",
                )));
            }
            if is_new {
                rule.provider.check().map_err(at)?;
            }
            if let Some(other) = rules.iter().find(|other| overlap(&other.prefix, &rule.prefix)) {
                return Err(at(clash(&rule.prefix, &other.prefix)));
            }
            rules.push(rule);
        }
        Ok(Config { rules })
    }
}

/// Why two prefixes cannot stand side by side: a path would lead to two things.
fn clash(this: &[Name], earlier: &[Name]) -> Error {
    let (shown, other) = (shown_path(this), shown_path(earlier));
    wrong(match this.len().cmp(&earlier.len()) {
        Ordering::Equal => format!("the prefix {shown} has a line already"),
        Ordering::Greater => format!("the prefix {shown} is below {other}, which has a line already"),
        Ordering::Less => format!("the prefix {shown} is above {other}, which has a line already"),
    })
}

fn wrong(why: impl Into<String>) -> Error {
    Errno::EINVAL.because(why.into())
}

/// Whether one of two prefixes is the other, or is in it.
fn overlap(one: &[Name], other: &[Name]) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn shown_path(prefix: &[Name]) -> String {
    let names = prefix.iter().map(|name| format!("/{}", name.escape_ascii()));
    if prefix.is_empty() { "/".to_owned() } else { names.collect() }
}

/// What one line says; nothing where it is empty or a comment.
fn rule(line: &str, base: &Path) -> Result<Option<Rule>> {
    if let Some(odd) = line.chars().find(|c| c.is_control() && *c != '\t') {
        return Err(wrong(format!("the character {odd:?} is not permitted")));
    }
    let words = shell_words::split(line).map_err(|error| wrong(format!("{error}: quote as for a shell")))?;
    let (prefix, provider, rest) = match &words[..] {
        [] => return Ok(None),
        [prefix, provider, rest @ ..] => (prefix, provider, rest),
        [_] => return Err(wrong("PREFIX PROVIDER expected, as in: tcp tcp")),
    };
    let (prefix, arguments) = split(prefix)?;
    if arguments > 0 && provider != "exec" {
        return Err(wrong(format!("'*' in a prefix is an argument of exec, and {provider} takes none")));
    }
    let provider = match &**provider {
        "tcp" => tcp(rest, None)?,
        "tls" => tls(rest, base)?,
        "unix" => Provider::Unix(one_path(provider, rest, base)?),
        "fs" => Provider::Fs(one_path(provider, rest, base)?),
        "exec" if rest.is_empty() => return Err(wrong("exec COMMAND expected")),
        "exec" => {
            let command = rest.iter().map(OsString::from).collect();
            Provider::Exec { command, arguments, dir: base.to_owned() }
        }
        other => return Err(wrong(format!("no provider '{other}'; there are tcp, tls, unix, exec and fs"))),
    };
    Ok(Some(Rule { prefix, provider }))
}

/// The names of a prefix, and how many arguments follow them.
fn split(prefix: &str) -> Result<(Vec<Name>, usize)> {
    let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
    let names: Vec<&str> = parts.iter().copied().take_while(|part| *part != ARGUMENT).collect();
    let arguments = parts.len() - names.len();
    if parts[names.len()..].iter().any(|part| *part != ARGUMENT) {
        return Err(wrong(format!("'{prefix}': only '*' can follow '*'")));
    }
    let name = |part: &str| Name::try_from(part).map_err(|error| wrong(format!("'{part}': {}", error.why())));
    let names = names.into_iter().map(name).collect::<Result<Vec<_>>>()?;
    // A file cannot be the root: a mount needs a directory.
    match names.is_empty() {
        true => Err(wrong("a prefix has a name, as in: tcp tcp")),
        false => Ok((names, arguments)),
    }
}

fn tcp(words: &[String], tls: Option<Trust>) -> Result<Provider> {
    let (host, port) = match words {
        [] => (None, None),
        [host] => (Some(host), None),
        [host, port] => (Some(host), Some(port)),
        _ => return Err(wrong("tcp or tls, [HOST [PORT]] expected")),
    };
    if let Some(host) = host.filter(|host| !is_host(host)) {
        return Err(wrong(format!("'{host}' is no host")));
    }
    let host = host.map(|host| without_brackets(host).to_owned());
    let port = port.map(|port| self::port(port).ok_or_else(|| wrong(format!("'{port}' is no port"))));
    Ok(Provider::Tcp { host, port: port.transpose()?, tls })
}

fn tls(words: &[String], base: &Path) -> Result<Provider> {
    let is_option = |word: &&String| word.contains('=');
    let (options, place): (Vec<_>, Vec<_>) = words.iter().partition(is_option);
    let mut trust = Trust { ca: None };
    for option in options {
        match option.split_once('=') {
            Some(("ca", file)) if !file.is_empty() => trust.ca = Some(base.join(file)),
            _ => return Err(wrong(format!("tls has no option '{option}'; it has ca=FILE"))),
        }
    }
    tcp(&place.into_iter().cloned().collect::<Vec<_>>(), Some(trust))
}

fn one_path(provider: &str, words: &[String], base: &Path) -> Result<PathBuf> {
    match words {
        [path] if !path.is_empty() => Ok(base.join(path)),
        _ => Err(wrong(format!("{provider} PATH expected"))),
    }
}

/// Whether a name can be that of a host.
pub(crate) fn is_host(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

/// An IPv6 address without the brackets around it that it has in a URL.
pub(crate) fn without_brackets(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.filter(|inner| inner.parse::<Ipv6Addr>().is_ok()).unwrap_or(host)
}

/// The port that a name says.
pub(crate) fn port(name: &str) -> Option<u16> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|port| plain && *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Config> {
        Config::parse(text, ("file", Path::new("/base")), (false, true))
    }

    fn provider(line: &str) -> Provider {
        read(line).expect(line).rules.remove(0).provider
    }

    #[test]
    fn each_provider_is_read_with_what_it_takes() {
        assert_eq!(provider("t tcp"), Provider::Tcp { host: None, port: None, tls: None });
        let fixed = Provider::Tcp { host: Some("h".into()), port: Some(25), tls: None };
        assert_eq!(provider("/a/b/ tcp h 25 # mail"), fixed);
        let trust = Some(Trust { ca: Some("/base/own.pem".into()) });
        assert_eq!(
            provider("t tls ca=own.pem h"),
            Provider::Tcp { host: Some("h".into()), port: None, tls: trust }
        );
        assert_eq!(provider("u unix '/run/my dir'"), Provider::Unix("/run/my dir".into()));
        assert_eq!(provider("f fs notes"), Provider::Fs("/base/notes".into()));
        let command = ["sh", "-c", "a b"].map(OsString::from).to_vec();
        assert_eq!(
            provider("e/*/* exec sh -c 'a b'"),
            Provider::Exec { command, arguments: 2, dir: "/base".into() }
        );
        assert_eq!(read("\n  # nothing\n\n").expect("empty").rules, []);
        assert_eq!(read(USUAL).expect("the built-in one").rules.len(), 3);
    }

    #[test]
    fn what_is_wrong_is_said_with_file_and_line() {
        for (line, why) in [
            ("tcp", "PREFIX PROVIDER"),
            ("t udp", "no provider 'udp'"),
            ("t tcp h 0", "no port"),
            ("t tcp h 65536", "no port"),
            ("t tcp h +5", "no port"),
            ("t tcp 'h h'", "no host"),
            ("t tcp a 1 b", "[HOST [PORT]]"),
            ("t tls verify=no", "ca=FILE"),
            ("u unix", "unix PATH"),
            ("e exec", "exec COMMAND"),
            ("t/* tcp", "argument of exec"),
            ("e/*/x exec a", "only '*'"),
            ("../x tcp", "'..'"),
            ("/ tcp", "has a name"),
            ("t 'tcp", "quote"),
            ("t tcp \0", "not permitted"),
            ("t tcp\rx", "not permitted"),
        ] {
            let error = read(&format!("# first\n\n{line}")).expect_err(line);
            let said = error.to_string();
            assert!(
                error.errno == Errno::EINVAL && said.contains("file:3: ") && said.contains(why),
                "{line}: {said}"
            );
        }
        let long = format!("{} tcp", "n".repeat(256));
        assert!(read(&long).expect_err("too long").to_string().contains("file:1: "));
    }

    #[test]
    fn prefixes_do_not_overlap_and_programs_need_permission() {
        for (text, why) in [
            ("a tcp\na tls", "the prefix /a has a line already"),
            ("a tcp\na/b tls", "the prefix /a/b is below /a, which has a line already"),
            ("a/b exec x\na tcp", "the prefix /a is above /a/b, which has a line already"),
        ] {
            let said = read(text).expect_err(text).to_string();
            assert!(said.contains(&format!("file:2: {why}")), "{text}: {said}");
        }
        assert!(read("a/b tcp\na/c tcp").is_ok());
        let refused =
            Config::parse("\ne exec true", ("f", Path::new("/")), (true, false)).expect_err("not permitted");
        assert_eq!(refused.errno, Errno::EPERM);
        assert!(refused.to_string().contains("f:2: ") && refused.to_string().contains("--allow-programs"));
    }

    #[test]
    fn what_a_line_names_is_there_when_the_configuration_is_read_first() {
        let temp = tempfile::tempdir().expect("a directory");
        std::fs::write(temp.path().join("plain"), "no certificate").expect("written");
        let read = |line: &str, is_new| {
            Config::parse(&format!("\n{line}"), ("file", temp.path()), (is_new, true)).map(drop)
        };
        for (line, why) in [
            ("t tls ca=none.pem", "none.pem"),
            ("t tls ca=plain", "no certificate"),
            ("f fs none", "none: No such file"),
            ("f fs /dev/null", "/dev/null: it is neither"),
        ] {
            let said = read(line, true).expect_err(line).to_string();
            assert!(said.contains("file:2: ") && said.contains(why), "{line}: {said}");
            assert_eq!(read(line, false), Ok(()), "a process that takes a mount over: {line}");
        }
        for line in ["f fs .", "f fs plain", "u unix none", "e exec none"] {
            assert_eq!(read(line, true), Ok(()), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_with_its_line(text in "[ -~\n\t'\"\\\\*/é]{0,200}") {
            if let Err(error) = read(&text) {
                prop_assert!(error.to_string().contains("file:"));
            }
        }
    }
}
