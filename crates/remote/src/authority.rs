// SPDX-License-Identifier: MIT OR Apache-2.0
//! The authority of a URL: which host, and who logs in there (RFC 3986, 3.2).

use outrigger_core::{Errno, Result};

/// A server, and who logs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The host, without brackets.
    pub host: String,
    /// The port, if one is named.
    pub port: Option<u16>,
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password, if one is.
    pub password: Option<String>,
    /// Whether the tree begins at the root of the server, not at the directory of the user.
    pub from_root: bool,
}

impl Authority {
    /// Reads `[USER[:PASSWORD]@]HOST[:PORT][//]`.
    ///
    /// # Errors
    /// `EINVAL` for what is no such thing.
    pub fn parse(text: &str) -> Result<Self> {
        let odd = |what: &str| {
            let needed = "[USER[:PASSWORD]@]HOST[:PORT]/PATH is needed after the scheme";
            Errno::EINVAL.because(format!("{needed}: {what}"))
        };
        let (place, from_root) = text.strip_suffix("//").map_or((text, false), |place| (place, true));
        let (login, place) = match place.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, place),
        };
        let (user, password) = match login.map(|login| (login, login.split_once(':'))) {
            Some((_, Some((user, password)))) => (Some(decoded(user)), Some(decoded(password))),
            Some((user, None)) => (Some(decoded(user)), None),
            None => (None, None),
        };
        let (host, port) = match place.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => {
                (host, Some(port.parse().map_err(|_| odd("the port is not a number from 0 to 65535"))?))
            }
            None => (place, None),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let control = |text: &Option<String>| text.iter().any(|text| text.contains(['\r', '\n', '\0']));
        if host.is_empty() || control(&user) || control(&password) {
            return Err(odd("the host is missing, or there is a line break"));
        }
        Ok(Authority { host: host.to_owned(), port, user, password, from_root })
    }

    /// The URL of the root of the server, without a login.
    pub fn url(&self, scheme: &str) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{scheme}://{host}{port}/")
    }
}

/// With `%41` as `A`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| byte == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        let decoded = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_as_in_urls() {
        let authority = |host: &str, port, user: Option<&str>, password: Option<&str>, from_root| Authority {
            host: host.into(),
            port,
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
            from_root,
        };
        for (text, expected) in [
            ("h", authority("h", None, None, None, false)),
            ("u@h:2121//", authority("h", Some(2121), Some("u"), None, true)),
            ("u%40x:p%3a%2F@[::1]:21", authority("::1", Some(21), Some("u@x"), Some("p:/"), false)),
            ("u:@h", authority("h", None, Some("u"), Some(""), false)),
        ] {
            assert_eq!(Authority::parse(text), Ok(expected), "{text}");
        }
        let url = |text| Authority::parse(text).map(|server| server.url("http"));
        assert_eq!(url("u:p@[::1]:80"), Ok("http://[::1]:80/".into()));
        assert_eq!(url("h"), Ok("http://h/".into()));
        for text in ["", "u@", "h:x", "u%0aDELE:p@h"] {
            assert_eq!(Authority::parse(text).unwrap_err().errno, Errno::EINVAL, "{text}");
        }
    }
}
