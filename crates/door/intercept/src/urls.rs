// SPDX-License-Identifier: MIT OR Apache-2.0
//! URLs as names of files: `https://host/x` is `/https/host/x`.
//!
//! For the kernel a URL is a path through a directory `https:`. Where there is none, the path leads to a tree. See
//! `docs/design/0031-urls.md`.

/// A scheme whose URLs are names of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheme {
    /// The scheme, in lower case. Its hosts stand below the directory of this name in the root.
    pub name: &'static str,
    /// Whether `%` and two digits mean a byte in paths. Where programs can make files, a name has to be the one that they gave.
    pub decodes: bool,
}

/// Which URLs are names of files: none by default.
#[derive(Debug, Clone)]
pub struct Urls {
    schemes: Vec<Scheme>,
    decoded: fn(&[u8]) -> Vec<u8>,
}

/// A URL in a path.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    /// How long the part of the path is that ends with the colon. If something is there, it is no URL.
    pub end: usize,
    /// The path that the URL stands for.
    pub path: Vec<u8>,
    /// Whether it has a password.
    pub has_password: bool,
}

impl Default for Urls {
    fn default() -> Self {
        Urls::new(Vec::new(), <[u8]>::to_vec)
    }
}

impl Urls {
    /// Those of some schemes. `decoded` replaces `%` and two digits by what they mean.
    pub fn new(schemes: Vec<Scheme>, decoded: fn(&[u8]) -> Vec<u8>) -> Self {
        Urls { schemes, decoded }
    }

    /// The URL in a path, which may be absolute: programs put their working directory before it, and make one slash of two.
    pub fn find(&self, path: &[u8]) -> Option<Url> {
        if self.schemes.is_empty() {
            return None;
        }
        let mut colons = path.windows(2).enumerate().filter(|(_, pair)| pair == b":/").map(|(at, _)| at + 1);
        colons.find_map(|end| {
            let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
            let scheme = self.scheme(&path[start..end])?;
            let (path, has_password) = self.path(scheme, &path[end..])?;
            Some(Url { end, path, has_password })
        })
    }

    /// Whether a path ends with a scheme and its colon: a directory there would hide all URLs of that scheme.
    pub fn would_be_hidden(&self, path: &[u8]) -> bool {
        let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
        path[..end].rsplit(|&byte| byte == b'/').next().is_some_and(|name| self.scheme(name).is_some())
    }

    /// Whether a path is the directory of all hosts of a scheme.
    pub fn is_of_hosts(&self, path: &[u8]) -> bool {
        path.strip_prefix(b"/")
            .is_some_and(|name| self.schemes.iter().any(|scheme| scheme.name.as_bytes() == name))
    }

    /// The scheme that a name with a colon is.
    fn scheme(&self, name: &[u8]) -> Option<&Scheme> {
        let name = name.strip_suffix(b":")?;
        self.schemes.iter().find(|scheme| name.eq_ignore_ascii_case(scheme.name.as_bytes()))
    }

    /// The path for what follows the colon, and whether there is a password in it.
    fn path(&self, scheme: &Scheme, rest: &[u8]) -> Option<(Vec<u8>, bool)> {
        let start = rest.iter().position(|&byte| byte != b'/')?;
        let rest = &rest[start..];
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = (self.decoded)(authority);
        if matches!(&authority[..], b"." | b"..") || authority.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return None;
        }
        let user = authority.iter().rposition(|&byte| byte == b'@').unwrap_or(0);
        let has_password = authority[..user].contains(&b':');
        let path = if scheme.decodes { (self.decoded)(path) } else { path.to_vec() };
        Some(([b"/", scheme.name.as_bytes(), b"/", &authority, &path].concat(), has_password))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls() -> Urls {
        let scheme = |name, decodes| Scheme { name, decodes };
        // What `%` means is not this module's to know.
        let decoded =
            |text: &[u8]| String::from_utf8_lossy(text).replace("%20", " ").replace("%2F", "/").into();
        Urls::new(vec![scheme("https", true), scheme("sftp", false)], decoded)
    }

    #[test]
    fn a_scheme_with_a_colon_begins_a_url_wherever_it_stands() {
        for (path, end, wanted) in [
            ("https://h/x", 6, "/https/h/x"),
            ("https:/h/x/", 6, "/https/h/x/"),
            ("HTTPS:///h", 6, "/https/h"),
            ("https://h:8080/a%20b?y=z#f", 6, "/https/h:8080/a b?y=z#f"),
            ("https://u%20v@h/x", 6, "/https/u v@h/x"),
            ("sftp://h/a%20b/../c", 5, "/sftp/h/a%20b/../c"),
            ("./sftp:/h", 7, "/sftp/h"),
            ("/home/me/sftp:/h/x", 14, "/sftp/h/x"),
            ("a:/sftp://h/x", 8, "/sftp/h/x"),
        ] {
            let path_of = |url: Url| (url.end, String::from_utf8(url.path).unwrap(), url.has_password);
            let found = urls().find(path.as_bytes()).map(path_of);
            assert_eq!(found, Some((end, wanted.to_owned(), false)), "{path}");
        }
        for path in [
            "https:",
            "https:/",
            "https://",
            "https:x",
            "https//h/x",
            "http://h/x",
            "xhttps://h/x",
            "https://../x",
            "https://a%2Fb/x",
            "",
        ] {
            assert_eq!(urls().find(path.as_bytes()), None, "{path}");
        }
        assert!(urls().find(b"sftp://u:pw@h/x").unwrap().has_password);
        assert!(Urls::default().find(b"https://h/x").is_none());
    }

    #[test]
    fn names_that_would_hide_urls_are_known() {
        for (path, hides) in
            [("sftp:", true), ("a/SFTP:/", true), ("sftp:/h", false), ("sftp", false), ("", false)]
        {
            assert_eq!(urls().would_be_hidden(path.as_bytes()), hides, "{path}");
        }
    }
}
