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
    /// The path that its scheme and host stand for.
    pub host: Vec<u8>,
    /// The path at the host, as it is written.
    pub path: Vec<u8>,
    /// Whether `%` and two digits may mean a byte in it.
    pub decodes: bool,
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
            self.url(scheme, path, end)
        })
    }

    /// The path of a URL, of which each name is the one that is written, if `exists` says so of the path up to it. A program that puts
    /// together names that it has listed means these; who writes a URL means the others. `..` takes the name before it away, and leads
    /// nowhere above the host (RFC 3986, 5.2.4).
    pub fn path(&self, url: &Url, exists: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut path = url.host.clone();
        let names = url.path.split(|&byte| byte == b'/');
        for name in names.filter(|name| !name.is_empty() && *name != b".") {
            if name == b".." {
                let before = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                path.truncate(before.max(url.host.len()));
                continue;
            }
            let above = path.len();
            path.push(b'/');
            path.extend_from_slice(name);
            if url.decodes
                && let Some(decoded) = self.decoded_name(name)
                && !exists(&path)
            {
                path.truncate(above + 1);
                path.extend_from_slice(&decoded);
            }
        }
        if [&b"/"[..], b"/.", b"/.."].iter().any(|end| url.path.ends_with(end)) {
            path.push(b'/');
        }
        path
    }

    /// The other name that is meant, where there is one.
    fn decoded_name(&self, name: &[u8]) -> Option<Vec<u8>> {
        let decoded = (self.decoded)(name);
        let is_name =
            !matches!(&decoded[..], b"." | b"..") && !decoded.iter().any(|byte| matches!(byte, b'/' | 0));
        (is_name && decoded != name).then_some(decoded)
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

    /// The URL in a path, with the end of its scheme. One without a host is none.
    fn url(&self, scheme: &Scheme, path: &[u8], end: usize) -> Option<Url> {
        let rest = &path[end..];
        let start = rest.iter().position(|&byte| byte != b'/').filter(|slashes| (1..=2).contains(slashes))?;
        let rest = &rest[start..];
        let (authority, path) =
            rest.split_at(rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len()));
        let authority = (self.decoded)(authority);
        if matches!(&authority[..], b"." | b"..") || authority.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return None;
        }
        let user = authority.iter().rposition(|&byte| byte == b'@').unwrap_or(0);
        let has_password = authority[..user].contains(&b':');
        let host = [b"/", scheme.name.as_bytes(), b"/", &authority[..]].concat();
        Some(Url { end, host, path: path.to_vec(), decodes: scheme.decodes, has_password })
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
            ("HTTPS://h", 6, "/https/h"),
            ("https://h:8080/a%20b?y=z#f", 6, "/https/h:8080/a b?y=z#f"),
            ("https://u%20v@h/x", 6, "/https/u v@h/x"),
            ("sftp://h/a%20b/../c", 5, "/sftp/h/c"),
            ("sftp://h/a%20b//./c/..", 5, "/sftp/h/a%20b/"),
            ("https://h/../../other/../x%20y", 6, "/https/h/x y"),
            ("https://h/..", 6, "/https/h/"),
            ("https://h/a%2Fb", 6, "/https/h/a%2Fb"),
            ("./sftp:/h", 7, "/sftp/h"),
            ("/home/me/sftp:/h/x", 14, "/sftp/h/x"),
            ("a:/sftp://h/x", 8, "/sftp/h/x"),
        ] {
            let url = urls().find(path.as_bytes()).expect(path);
            let found = String::from_utf8(urls().path(&url, |_| false)).unwrap();
            assert_eq!((url.end, &*found, url.has_password), (end, wanted, false), "{path}");
        }
        for path in [
            "https:",
            "https:/",
            "https://",
            "https:///h/x",
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
    fn names_that_exist_as_they_are_written_are_not_decoded() {
        let url = urls().find(b"https://h/a%20b/c%20d/e%20f").unwrap();
        let path = urls().path(&url, |path| path == b"/https/h/a b/c%20d");
        assert_eq!(String::from_utf8(path).unwrap(), "/https/h/a b/c%20d/e f");
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
