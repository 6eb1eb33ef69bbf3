// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a passphrase or a key comes from: a private file, or the terminal. None is ever on a command line.

use crate::OPTIONS;
use crate::config::{Config, Secret};
use outrigger_core::{Errno, Error, Result};
use outrigger_host::{ask_at_terminal, private_file};
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The most bytes of a file with a secret.
const FILE_MAX: usize = 64 << 10;

/// Where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Source {
    /// The terminal.
    #[default]
    Terminal,
    /// The first line of a file.
    PassFile(PathBuf),
    /// The content of a file.
    KeyFile(PathBuf),
}

/// What follows `--layer crypt=`.
pub(crate) struct Argument {
    pub(crate) source: Source,
    /// Whether trees that are not encrypted are shown as they are.
    pub(crate) plain: bool,
}

impl Argument {
    /// Reads it.
    ///
    /// # Errors
    /// `EINVAL` with a reason, for an unknown key or two places.
    pub(crate) fn parse(list: &str) -> Result<Self> {
        let mut argument = Argument { source: Source::Terminal, plain: false };
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let path = PathBuf::from(value);
            let next = match key {
                "passfile" => Source::PassFile(path),
                "keyfile" => Source::KeyFile(path),
                "plain" if value.is_empty() => {
                    argument.plain = true;
                    continue;
                }
                _ => return Err(OPTIONS.unknown(key)),
            };
            if value.is_empty() || argument.source != Source::Terminal {
                return Err(Errno::EINVAL.because("one of passfile=FILE and keyfile=FILE is expected"));
            }
            argument.source = next;
        }
        Ok(argument)
    }
}

impl Source {
    /// The secret that opens `config`.
    ///
    /// # Errors
    /// `EACCES` where it cannot be had, or others could read the file.
    pub fn secret(&self, config: &Config) -> Result<Secret> {
        match self {
            Source::Terminal if !config.has_passphrase() => {
                Err(Errno::EACCES.because(format!("the tree has a key file: {}", spelt("keyfile"))))
            }
            Source::Terminal => asked("Passphrase: "),
            _ => self.in_file(),
        }
    }

    /// A new secret; a passphrase that is typed is asked for twice.
    ///
    /// # Errors
    /// Those of [`Source::secret`]; `EINVAL` for a passphrase that is empty, or typed otherwise the second time.
    pub fn new_secret(&self) -> Result<Secret> {
        let secret = match self {
            Source::Terminal => ask_twice()?,
            _ => self.in_file()?,
        };
        match &secret {
            Secret::Passphrase(text) if text.is_empty() => {
                Err(Errno::EINVAL.because("the passphrase is empty"))
            }
            _ => Ok(secret),
        }
    }

    fn in_file(&self) -> Result<Secret> {
        let (Source::PassFile(path) | Source::KeyFile(path)) = self else {
            return Err(Errno::EINVAL.into());
        };
        let cannot = |error: std::io::Error| {
            let Error { errno, reason } = error.into();
            let why = reason.map_or_else(|| errno.to_string(), |reason| reason.to_string());
            Errno::EACCES.because(format!("{}: {why}", path.display()))
        };
        let content = Zeroizing::new(private_file(path, FILE_MAX).map_err(cannot)?);
        if matches!(self, Source::KeyFile(_)) {
            return Ok(Secret::KeyFile(content));
        }
        let line = content.split(|&byte| byte == b'\n').next().unwrap_or_default();
        Ok(Secret::Passphrase(Zeroizing::new(line.strip_suffix(b"\r").unwrap_or(line).to_vec())))
    }
}

/// How a file is named: to the command, and to the layer.
fn spelt(option: &str) -> String {
    format!("--{option} FILE of `outrigger crypt`, or --layer crypt={option}=FILE")
}

fn asked(prompt: &str) -> Result<Secret> {
    let none = |_| {
        Errno::EACCES.because(format!(
            "there is no terminal to ask for the passphrase at: a file can have it, {}",
            spelt("passfile")
        ))
    };
    ask_at_terminal(prompt).map(Zeroizing::new).map(Secret::Passphrase).map_err(none)
}

/// A new passphrase, typed twice.
fn ask_twice() -> Result<Secret> {
    match (asked("New passphrase: ")?, asked("The same again: ")?) {
        (Secret::Passphrase(one), Secret::Passphrase(other)) if one == other => Ok(Secret::Passphrase(one)),
        _ => Err(Errno::EINVAL.because("the two passphrases differ")),
    }
}
