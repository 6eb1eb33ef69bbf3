// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who logs in, and the password: from a LOCATION, a file of its own, `~/.netrc` or the terminal. Passwords go to no log and no command line.

use crate::authority::Authority;
use crate::netrc::{find_in_netrc, private_text};
use crate::options::FileOptions;
use outrigger_core::{Errno, Result};
use std::fmt;

/// A password: it does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: String) -> Self {
        Secret(text)
    }

    /// The text, to be sent.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What a server says, with stars for the password, however it is written: servers repeat what they refuse, some of them as a
    /// URL has it, any of its bytes as `%41`, in hexadecimal digits, or in base64, alone or as a part of something longer.
    pub fn masked(&self, said: &[u8]) -> Vec<u8> {
        let word = self.0.as_bytes();
        let mut said = masked(said, |text| begins_as_in_url(text, word));
        said = masked(&said, |text| begins_as_hex(text, word));
        for encoded in in_base64(word) {
            said = masked(&said, |text| begins_as_base64(text, &encoded));
        }
        said
    }
}

/// A text with stars for the pieces of it that `begins` finds: how long one is at the front of a text, if there is one.
fn masked(text: &[u8], begins: impl Fn(&[u8]) -> Option<usize>) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        match begins(rest).filter(|&len| len > 0) {
            Some(len) => {
                out.extend_from_slice(b"***");
                rest = &rest[len..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

/// How much of the front of a text is `word`, in upper or lower case, any of its bytes perhaps as `%41`.
fn begins_as_in_url(text: &[u8], word: &[u8]) -> Option<usize> {
    let mut at = 0;
    for byte in word {
        let hex = || std::str::from_utf8(text.get(at + 1..at + 3)?).ok();
        let decoded = || u8::from_str_radix(hex()?, 16).ok();
        match text.get(at)? {
            b'%' if decoded().is_some_and(|found| found.eq_ignore_ascii_case(byte)) => at += 3,
            found if found.eq_ignore_ascii_case(byte) => at += 1,
            _ => return None,
        }
    }
    Some(at)
}

/// How much of the front of a text is `word` in hexadecimal digits, perhaps with something between its bytes, as in `73:23` and `\x73\x23`.
fn begins_as_hex(text: &[u8], word: &[u8]) -> Option<usize> {
    const BETWEEN: [&[u8]; 5] = [b"\\x", b"0x", b" ", b":", b"-"];
    // A single byte would be found in any number.
    if word.len() < 2 {
        return None;
    }
    let mut at = 0;
    for byte in word {
        while at > 0
            && let Some(between) = BETWEEN.into_iter().find(|word| text[at..].starts_with(word))
        {
            at += between.len();
        }
        let digits = text.get(at..at + 2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        let found = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if !found.eq_ignore_ascii_case(byte) {
            return None;
        }
        at += 2;
    }
    Some(at)
}

/// How much of the front of a text is `encoded`, in upper or lower case and in either alphabet, with what fills it up.
fn begins_as_base64(text: &[u8], encoded: &[u8]) -> Option<usize> {
    let plain = |byte: u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        _ => byte.to_ascii_lowercase(),
    };
    let found = text.get(..encoded.len())?;
    let is_it = found.iter().zip(encoded).all(|(&one, &other)| plain(one) == plain(other));
    let fill = text[encoded.len()..].iter().take_while(|&&byte| byte == b'=').count();
    is_it.then_some(encoded.len() + fill)
}

/// A word in base64 without what fills it up, and what shows of it where it begins one or two bytes after a multiple of three, as
/// after the name of a user. What is shorter than this would be found in anything.
fn in_base64(word: &[u8]) -> Vec<Vec<u8>> {
    const SHORTEST: usize = 4;
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encoded = |before: usize| {
        let mut bits: Vec<bool> = vec![false; 8 * before];
        bits.extend(word.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 != 0)));
        let digit = |bits: &[bool]| {
            DIGITS[(0..6).fold(0, |sum, at| sum << 1 | usize::from(bits.get(at) == Some(&true)))]
        };
        let digits: Vec<u8> = bits.chunks(6).map(digit).collect();
        // The digits that other bytes have a part in.
        let (first, known) = ((8 * before).div_ceil(6), bits.len() / 6);
        (digits, first, known)
    };
    let mut forms = vec![encoded(0).0];
    forms.extend((0..3).map(encoded).map(|(digits, first, known)| digits[first.min(known)..known].to_vec()));
    forms.retain(|form| form.len() >= SHORTEST);
    forms
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A user and a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
}

impl Login {
    /// Without an account, as RFC 1635 has it.
    pub fn anonymous() -> Self {
        Login { user: "anonymous".into(), password: Secret::new("anonymous@".into()) }
    }

    /// The login for a server: that of the LOCATION where it is complete, else what `password_file` or `netrc` has, else what the
    /// terminal answers for a user without a password, else anonymous.
    ///
    /// # Errors
    /// `EACCES` when a user has no password and there is no terminal to ask at; `EINVAL` for a password without a user; those of
    /// reading the files.
    pub fn find(at: &Authority, options: &FileOptions) -> Result<Self> {
        let (host, user) = (&at.host, at.user.clone());
        if let (Some(user), Some(password)) = (&user, &at.password) {
            return Ok(Login { user: user.clone(), password: Secret::new(password.clone()) });
        }
        if let Some(path) = &options.password_file {
            let user =
                user.ok_or_else(|| Errno::EINVAL.because("password_file takes USER@ before the host"))?;
            let text = private_text(path)?;
            let text =
                text.ok_or_else(|| Errno::ENOENT.because(format!("{}: no such file", path.display())))?;
            let password = Secret::new(text.lines().next().unwrap_or_default().to_owned());
            return Ok(Login { user, password });
        }
        let entry = match &options.netrc {
            Some(path) if !path.exists() && options.netrc != FileOptions::default().netrc => {
                return Err(Errno::ENOENT.because(format!("netrc={}: no such file", path.display())));
            }
            Some(path) => find_in_netrc(path, host, user.as_deref())?,
            None => None,
        };
        let entry = entry.unwrap_or_default();
        let Some(user) = user.or(entry.login) else { return Ok(Login::anonymous()) };
        let password = match entry.password {
            Some(password) => password,
            None => ask_at_terminal(&format!("Password of {user} at {host}: "))?,
        };
        Ok(Login { user, password })
    }
}

/// Asks at the terminal of this process, without showing what is typed.
///
/// # Errors
/// `EACCES` where there is no terminal.
fn ask_at_terminal(prompt: &str) -> Result<Secret> {
    let none = |_| {
        let why = format!(
            "{prompt}there is no terminal to ask at; ~/.netrc or password_file=FILE can have the password"
        );
        Errno::EACCES.because(why)
    };
    let line = outrigger_host::ask_at_terminal(prompt).map_err(none)?;
    Ok(Secret::new(String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    fn find(at: &str, password_file: Option<PathBuf>) -> Result<Login> {
        let options = FileOptions { netrc: None, password_file, ..FileOptions::default() };
        Login::find(&Authority::parse(at).expect("an authority"), &options)
    }

    #[test]
    fn a_password_does_not_print() {
        let login = find("u:hush@h", None).expect("complete");
        assert_eq!(login.password.reveal(), "hush");
        assert!(!format!("{login:?}").contains("hush"));
        assert_eq!(find("h", None), Ok(Login::anonymous()));
    }

    #[test]
    fn what_a_server_says_is_shown_without_the_password() {
        let mask = |password: &str, said: &str| {
            String::from_utf8(Secret::new(password.into()).masked(said.as_bytes())).expect("text")
        };
        assert_eq!(mask("p@ss w/ü", "no P@SS W/ü, p%40ss%20w%2f%c3%bcx"), "no ***, ***x");
        assert_eq!(mask("", "Login incorrect."), "Login incorrect.");
        assert_eq!(
            mask("s#cret", "no 7323637265740a, 73:23:63:72:65:54, 0x73 0x23 0x63 0x72 0x65 0x74"),
            "no ***0a, ***, 0x***"
        );
        assert_eq!(mask("a", "port 61, 7323"), "port 61, 7323");
    }

    #[test]
    fn a_password_file_has_the_password_of_the_user_and_is_private() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("password");
        assert_eq!(find("u@h", Some(path.clone())).unwrap_err().errno, Errno::ENOENT);
        fs::write(&path, "hush hush\r\nmore\n").expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("permissions");
        assert_eq!(find("u@h", Some(path.clone())).unwrap_err().errno, Errno::EACCES);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
        let login = find("u@h", Some(path.clone())).expect("complete");
        assert_eq!((&*login.user, login.password.reveal()), ("u", "hush hush"));
        assert_eq!(find("h", Some(path)).unwrap_err().errno, Errno::EINVAL);
    }
}
