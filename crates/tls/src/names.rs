// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whom a certificate names (RFC 5280): its subject alternative names, and the common name of its subject.

use std::net::{Ipv4Addr, Ipv6Addr};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The names in a certificate: those of hosts, addresses, URIs and mail addresses first, and then common names, each once. Without names of other kinds,
/// such as those of directories, and without what has a control character. What is no certificate has no names.
pub(crate) fn names(certificate: &[u8]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in read(certificate).unwrap_or_default() {
        if !name.is_empty() && !name.contains(char::is_control) && !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

fn read(certificate: &[u8]) -> x509_cert::der::Result<Vec<String>> {
    let certificate = Certificate::from_der(certificate)?;
    let fields = certificate.tbs_certificate();
    let general = fields.get_extension::<SubjectAltName>()?;
    let general = general.iter().flat_map(|(_, names)| &names.0).filter_map(text);
    let common = fields.subject().iter().filter(|attribute| attribute.oid == COMMON_NAME);
    let common = common.filter_map(|attribute| DirectoryString::try_from(&attribute.value).ok());
    Ok(general.chain(common.map(String::from)).collect())
}

/// A general name as text, if it is of a kind that is shown.
fn text(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::Rfc822Name(text)
        | GeneralName::DnsName(text)
        | GeneralName::UniformResourceIdentifier(text) => Some(text.as_str().to_owned()),
        GeneralName::IpAddress(address) => match address.as_bytes().len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(address.as_bytes()).ok()?).to_string()),
            _ => Some(Ipv6Addr::from(<[u8; 16]>::try_from(address.as_bytes()).ok()?).to_string()),
        },
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const SEQUENCE: u8 = 0x30;
    const OBJECT: u8 = 0x06;
    const OCTETS: u8 = 0x04;
    const BITS: u8 = 0x03;
    /// Kinds of general names.
    const MAIL: u8 = 0x81;
    pub(crate) const DNS: u8 = 0x82;
    const URI: u8 = 0x86;
    const ADDRESS: u8 = 0x87;
    const NUMBER: u8 = 0x88;

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

    /// A certificate with these common names and general names.
    pub(crate) fn certificate(common: &[&[u8]], general: &[(u8, &[u8])]) -> Vec<u8> {
        let common = common.iter().map(|name| {
            let attribute = [element(OBJECT, &[&[0x55, 4, 3]]), element(0x0c, &[name])].concat();
            element(0x31, &[&element(SEQUENCE, &[&attribute])])
        });
        let subject = element(SEQUENCE, &[&common.collect::<Vec<_>>().concat()]);
        let general: Vec<u8> = general.iter().flat_map(|(tag, name)| element(*tag, &[name])).collect();
        let octets = element(OCTETS, &[&element(SEQUENCE, &[&general])]);
        let other = element(SEQUENCE, &[&element(OBJECT, &[&[0x55, 29, 15]]), &element(OCTETS, &[b"x"])]);
        let critical = element(0x01, &[&[0xff]]);
        let extension = element(SEQUENCE, &[&element(OBJECT, &[&[0x55, 29, 17]]), &critical, &octets]);
        let extensions = element(0xa3, &[&element(SEQUENCE, &[&other, &extension])]);
        // Ed25519 (RFC 8410).
        let algorithm = element(SEQUENCE, &[&element(OBJECT, &[&[0x2b, 0x65, 0x70]])]);
        let key = element(SEQUENCE, &[&algorithm, &element(BITS, &[&[0; 33]])]);
        let (version, serial) = (element(0xa0, &[&[2, 1, 2]]), element(2, &[&[1]]));
        let issuer = element(SEQUENCE, &[]);
        let validity =
            element(SEQUENCE, &[&element(0x17, &[b"250101000000Z"]), &element(0x17, &[b"350101000000Z"])]);
        let fields = [&version[..], &serial, &algorithm, &issuer, &validity, &subject, &key, &extensions];
        element(SEQUENCE, &[&element(SEQUENCE, &fields), &algorithm, &element(BITS, &[&[0; 65]])])
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
            (NUMBER, &[0x2a, 3, 4]),
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
        let whole = certificate(&[b"name"], &[]);
        assert!(!names(&whole).is_empty() && names(&whole[..whole.len() - 1]).is_empty(), "cut");
    }
}
