// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom a certificate names (RFC 5280): its subject alternative names, and the common name of its subject.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Tags of DER (X.690): universal ones.
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The version of a certificate, and its extensions, in `TBSCertificate`.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// Kinds of a `GeneralName` that are shown: mail address, DNS name, URI, IP address.
const MAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const ADDRESS: u8 = 0x87;
/// Kinds of strings whose bytes are UTF-8, or a part of it.
const STRINGS: [u8; 3] = [0x0c, 0x13, 0x16];
/// 2.5.4.3, a common name, and 2.5.29.17, subject alternative names.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 29, 17];
/// How many elements stand before the subject: number, algorithm, issuer, validity.
const BEFORE_SUBJECT: usize = 4;

/// The names in a certificate: those of hosts, addresses, URIs and mail addresses first, and then common names, each once. Without names of other kinds,
/// such as those of directories, and without what has a control character.
pub fn names(certificate: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let read = read(certificate, |name| {
        if !name.is_empty() && !name.contains(char::is_control) && !found.contains(&name) {
            found.push(name);
        }
    });
    // Nobody is named by what is no certificate.
    if read.is_some() { found } else { Vec::new() }
}

/// Gives the names to `name`; `None` where it is no certificate.
fn read(certificate: &[u8], mut name: impl FnMut(String)) -> Option<()> {
    let mut fields = Der(Der(Der(certificate).of(SEQUENCE)?).of(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.next()?;
    }
    for _ in 0..BEFORE_SUBJECT {
        fields.next()?;
    }
    let subject = fields.of(SEQUENCE)?;
    while let Some((tag, content)) = fields.next() {
        if tag == EXTENSIONS {
            alternative_names(content, &mut name)?;
        }
    }
    common_names(subject, &mut name)
}

fn alternative_names(extensions: &[u8], name: &mut impl FnMut(String)) -> Option<()> {
    let mut extensions = Der(Der(extensions).of(SEQUENCE)?);
    while !extensions.0.is_empty() {
        let mut extension = Der(extensions.of(SEQUENCE)?);
        if extension.of(OBJECT)? != ALTERNATIVE_NAMES {
            continue;
        }
        // Whether it is critical may stand between.
        let content = loop {
            let (tag, content) = extension.next()?;
            if tag == OCTETS {
                break content;
            }
        };
        let mut all = Der(Der(content).of(SEQUENCE)?);
        while !all.0.is_empty() {
            let (tag, content) = all.next()?;
            shown(tag, content).map(&mut *name);
        }
    }
    Some(())
}

/// A general name as text, if it is of a kind that is shown.
fn shown(tag: u8, content: &[u8]) -> Option<String> {
    match tag {
        MAIL | DNS | URI => String::from_utf8(content.to_vec()).ok(),
        ADDRESS => match content.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(content).ok()?).to_string()),
            _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(content).ok()?).to_string()),
        },
        _ => None,
    }
}

fn common_names(subject: &[u8], name: &mut impl FnMut(String)) -> Option<()> {
    let mut parts = Der(subject);
    while !parts.0.is_empty() {
        let mut part = Der(parts.of(SET)?);
        while !part.0.is_empty() {
            let mut attribute = Der(part.of(SEQUENCE)?);
            let kind = attribute.of(OBJECT)?;
            let (tag, value) = attribute.next()?;
            if kind == COMMON_NAME && STRINGS.contains(&tag) {
                String::from_utf8(value.to_vec()).ok().map(&mut *name);
            }
        }
    }
    Some(())
}

/// Elements of DER, one behind the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next element: tag and content; `None` at the end, and for what is none or has a tag or a length that no certificate needs.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        const MANY: u8 = 0x1f;
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        (tag & MANY != MANY).then_some((tag, content))
    }

    /// The content of the next element, if it has this tag.
    fn of(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = content.len();
        let mut bytes = vec![tag];
        match length {
            0..=0x7f => bytes.push(length as u8),
            0x80..=0xff => bytes.extend([0x81, length as u8]),
            _ => bytes.extend([0x82, (length >> 8) as u8, length as u8]),
        }
        [bytes, content].concat()
    }

    /// A certificate with these common names and general names, without what nobody looks at.
    fn certificate(common: &[&[u8]], general: &[(u8, &[u8])]) -> Vec<u8> {
        let common = common.iter().map(|name| {
            let attribute = [element(OBJECT, &[COMMON_NAME]), element(0x0c, &[name])].concat();
            element(SET, &[&element(SEQUENCE, &[&attribute])])
        });
        let subject = element(SEQUENCE, &[&common.collect::<Vec<_>>().concat()]);
        let general: Vec<u8> = general.iter().flat_map(|(tag, name)| element(*tag, &[name])).collect();
        let octets = element(OCTETS, &[&element(SEQUENCE, &[&general])]);
        let other = element(SEQUENCE, &[&element(OBJECT, &[&[0x55, 29, 15]]), &element(OCTETS, &[b"x"])]);
        let critical = element(0x01, &[&[0xff]]);
        let extension = element(SEQUENCE, &[&element(OBJECT, &[ALTERNATIVE_NAMES]), &critical, &octets]);
        let extensions = element(EXTENSIONS, &[&element(SEQUENCE, &[&other, &extension])]);
        let before = element(SEQUENCE, &[]).repeat(BEFORE_SUBJECT);
        let key = element(SEQUENCE, &[]);
        let version = element(VERSION, &[&[2, 1, 2]]);
        let fields = element(SEQUENCE, &[&version, &before, &subject, &key, &extensions]);
        element(SEQUENCE, &[&fields, &key])
    }

    #[test]
    fn names_of_all_kinds_are_found_and_control_characters_are_not_shown() {
        let general: &[(u8, &[u8])] = &[
            (DNS, b"a.example"),
            (ADDRESS, &[192, 0, 2, 7]),
            (ADDRESS, &[0; 16]),
            (ADDRESS, &[1; 5]),
            (MAIL, b"u@a.example"),
            (URI, b"spiffe://a/b"),
            (0x88, &[1]),
            (DNS, b"b\n.example"),
            (DNS, b"a.example"),
        ];
        assert_eq!(
            names(&certificate(&[b"a.example", "Bär".as_bytes()], general)),
            ["a.example", "192.0.2.7", "::", "u@a.example", "spiffe://a/b", "Bär"]
        );
        let long = "n".repeat(300);
        assert_eq!(names(&certificate(&[long.as_bytes()], &[])), [long]);
        assert!(names(b"").is_empty() && names(&certificate(&[], &[])).is_empty());
    }

    proptest! {
        #[test]
        fn what_is_cut_or_changed_is_read_without_a_panic(cut in 0..200_usize, at in 0..200_usize, byte: u8) {
            let mut bytes = certificate(&[b"name"], &[(DNS, b"a.example"), (ADDRESS, &[192, 0, 2, 7])]);
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len().saturating_sub(cut));
            prop_assert!(names(&bytes).len() <= bytes.len());
        }
    }
}
