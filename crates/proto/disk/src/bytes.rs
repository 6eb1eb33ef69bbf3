// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers, identifiers and names at places in bytes. What lies beyond the end is zero.

/// The bytes from `place` on.
pub(crate) fn at<const N: usize>(bytes: &[u8], place: usize) -> [u8; N] {
    bytes.get(place..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

/// 16 bits, little-endian.
pub(crate) fn le16(bytes: &[u8], place: usize) -> u16 {
    u16::from_le_bytes(at(bytes, place))
}

/// 32 bits, little-endian.
pub(crate) fn le32(bytes: &[u8], place: usize) -> u32 {
    u32::from_le_bytes(at(bytes, place))
}

/// 64 bits, little-endian.
pub(crate) fn le64(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(at(bytes, place))
}

/// 16 bits, big-endian.
pub(crate) fn be16(bytes: &[u8], place: usize) -> u16 {
    u16::from_be_bytes(at(bytes, place))
}

/// 32 bits, big-endian.
pub(crate) fn be32(bytes: &[u8], place: usize) -> u32 {
    u32::from_be_bytes(at(bytes, place))
}

/// 64 bits, big-endian.
pub(crate) fn be64(bytes: &[u8], place: usize) -> u64 {
    u64::from_be_bytes(at(bytes, place))
}

/// A UUID in the order of its bytes (RFC 9562); none when there is none.
pub(crate) fn uuid(bytes: &[u8], place: usize) -> Option<String> {
    let bytes: [u8; 16] = at(bytes, place);
    let digits = |range: std::ops::Range<usize>| -> String {
        bytes[range].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let groups = [0..4, 4..6, 6..8, 8..10, 10..16].map(digits);
    (bytes != [0; 16]).then(|| groups.join("-"))
}

/// A text of at most `length` bytes that ends at the first zero, without blanks around it; none when it is empty.
pub(crate) fn text(bytes: &[u8], place: usize, length: usize) -> Option<String> {
    let end = bytes.len().min(place.saturating_add(length));
    let field = bytes.get(place..end)?.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(field).trim().to_owned()).filter(|text| !text.is_empty())
}

/// A GUID as it is written: the first three numbers are little-endian (UEFI, appendix A).
pub(crate) fn guid(bytes: &[u8], place: usize) -> String {
    let rest: [u8; 8] = at(bytes, place + 8);
    let tail = rest[2..].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!(
        "{:08x}-{:04x}-{:04x}-{:02x}{:02x}-{tail}",
        le32(bytes, place),
        le16(bytes, place + 4),
        le16(bytes, place + 6),
        rest[0],
        rest[1],
    )
}

/// A name in UTF-16, little-endian, that ends at the first zero.
pub(crate) fn utf16(bytes: &[u8]) -> String {
    let units = bytes.chunks_exact(2).map(|pair| le16(pair, 0)).take_while(|&unit| unit != 0);
    char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_written_as_everybody_does() {
        let bytes: Vec<u8> = (0..16).collect();
        assert_eq!(guid(&bytes, 0), "03020100-0504-0706-0809-0a0b0c0d0e0f");
    }

    #[test]
    fn what_is_not_there_is_zero() {
        assert_eq!((le64(&[1, 2], 0), le16(&[1, 2], 0), le32(&[], usize::MAX - 8)), (0, 0x201, 0));
    }

    #[test]
    fn a_name_ends_at_the_zero() {
        assert_eq!(utf16(b"a\0\xe9\0\0\0b\0"), "a\u{e9}");
        assert_eq!(utf16(b"\x00\xd8a\0x"), "\u{fffd}a");
    }
}
