// SPDX-License-Identifier: MIT OR Apache-2.0
//! The host of a LOCATION that ssh reaches: what it may be.

use super::url::decoded;
use crate::status::Failure;

/// What follows `sftp://`.
pub fn after_sftp(text: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"sftp://";
    text.split_at_checked(SCHEME.len())
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME))
        .map(|(_, rest)| rest)
}

/// `[USER@]HOST`, and the port after it. A colon in front of `@` belongs to the user.
pub fn split_port(text: &str) -> (&str, Option<&str>) {
    let place = text.rfind('@').map_or(0, |at| at + 1);
    match text[place..].rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (&text[..place + name.len()], Some(port)),
        _ => (text, None),
    }
}

/// Refuses `sftp://` with a host or user that ssh cannot know, a password, or a port that is none.
///
/// # Errors
/// A sentence about what is odd, without a password.
pub fn check_authority(rest: &[u8]) -> Result<(), Failure> {
    let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
    let text = String::from_utf8_lossy(&decoded(&rest[..end])).into_owned();
    let refused = |why: &str| {
        let place = text.rsplit_once('@').map_or(&*text, |(_, place)| place).escape_debug();
        Err(Failure::serious(format!("cannot open sftp://{place}: {why}")))
    };
    let (host, port) = split_port(&text);
    if host.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
        return refused(
            "ssh takes no password from a LOCATION, where others could see it: it asks for one, or uses a key",
        );
    }
    if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port != 0)) {
        return refused("the port is a number from 1 to 65535");
    }
    if !is_host(host) {
        return refused(
            "a host is letters, digits, '.', '-' and '_', or an address in brackets, with USER@ before it",
        );
    }
    Ok(())
}

/// Whether ssh could know a host of this name: letters, digits, `.`, `-` and `_`, or an address in brackets; with a user in
/// front. Anything else before a colon is part of a file name.
pub fn is_host(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    let word = |text: &str, more: &[u8]| {
        text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let address =
        address.map(|text| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":.%-_".contains(&byte)));
    user.is_none_or(|user| word(user, b"._-+@\\")) && address.unwrap_or_else(|| word(host, b".-_"))
}

#[cfg(test)]
mod tests {
    use crate::location::Location;
    use std::ffi::OsStr;

    /// What reads as one host must never lead to another one, and no password may show up in a mount table.
    #[test]
    fn odd_hosts_passwords_and_ports_in_urls_are_refused() {
        for good in
            ["sftp://h", "sftp://u@h:22/x", "SFTP://u@[::1]:22/", "sftp://h.example/~/x", "sftp://u@h/a:b@c"]
        {
            assert!(Location::of(OsStr::new(good)).is_ok(), "{good}");
        }
        for odd in [
            "sftp://trusted:22@real/x",
            "sftp://u:pw@h/",
            "sftp://h:22abc/",
            "sftp://h:99999/x",
            "sftp://h:/x",
            "sftp://h:0/",
            "sftp://u@-oX/",
            "sftp://h;x/",
            "sftp://h%20x/",
            "sftp://u%0aX@h/",
            "sftp://[::1]x/",
            "sftp:///x",
        ] {
            let Err(refused) = Location::of(OsStr::new(odd)) else { panic!("{odd}") };
            assert!(!refused.to_string().contains("pw") && !refused.to_string().contains('\n'), "{refused}");
        }
    }
}
