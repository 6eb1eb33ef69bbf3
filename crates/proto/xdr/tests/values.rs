// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values as RFC 4506 has them on the wire, and bytes that are none.

use bytes::Bytes;
use outrigger_proto_xdr::*;
use std::fmt;

fn encode(value: &impl Xdr) -> Bytes {
    let mut out = Encoder::new(0);
    value.encode(&mut out);
    let encoded = out.finish();
    assert_eq!(encoded.len(), value.encoded_len());
    encoded.into_bytes()
}

fn decode<T: Xdr>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut input = Decoder::new(Bytes::copy_from_slice(bytes));
    let value = T::decode(&mut input)?;
    assert_eq!((input.at(), input.remaining()), (bytes.len(), 0), "bytes are left over");
    Ok(value)
}

/// `value` has these bytes, and no beginning of them is one.
fn same<T: Xdr + PartialEq + fmt::Debug>(value: T, bytes: &[u8]) {
    assert_eq!(encode(&value)[..], *bytes, "{value:?}");
    for cut in 0..bytes.len() {
        assert!(
            matches!(decode::<T>(&bytes[..cut]), Err(DecodeError::Short { .. })),
            "{value:?} cut at {cut}"
        );
    }
    assert!(T::MIN_LEN <= bytes.len());
    assert_eq!(decode::<T>(bytes), Ok(value));
}

/// The printed form of a value.
struct Shown<'a, T>(&'a T);

impl<T: Xdr> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.print(f)
    }
}

fn text<const MAX: usize>(bytes: &'static [u8]) -> Text<MAX> {
    Text::new(bytes).unwrap()
}

xdr_struct! {
    /// The structure of RFC 4506, 7.
    pub struct File {
        /// Its name.
        pub filename: Text<255>,
        /// Its kind.
        pub kind: FileKind,
        /// Its owner.
        pub owner: Text<32>,
        /// Its content.
        pub data: Data<65535>,
    }

    /// Nothing at all.
    pub struct Empty {}
}

xdr_enum! {
    /// The union of RFC 4506, 7.
    pub enum FileKind: "kind of file" {
        /// Text.
        Ascii = 0,
        /// Data, made by a program.
        Data(Text<255>) = 1,
        /// A program, with its interpreter.
        Exec(Text<255>) = 2,
    }
}

xdr_status! {
    /// A code.
    pub struct Code {
        /// An error that has a name.
        NAMED = 5,
    }
}

/// RFC 4506, 7: the example of a file, with its bytes.
#[test]
fn the_example_of_the_rfc() {
    let file = File {
        filename: text(b"sillyprog"),
        kind: FileKind::Exec(text(b"lisp")),
        owner: text(b"john"),
        data: Data::new(&b"(quit)"[..]).unwrap(),
    };
    let shown = r#"{filename="sillyprog" kind=Exec "lisp" owner="john" data=<6 bytes>}"#;
    assert_eq!(file.to_string(), shown);
    let mut bytes = b"\0\0\0\x09sillyprog\0\0\0\0\0\0\x02\0\0\0\x04lisp\0\0\0\x04john".to_vec();
    bytes.extend_from_slice(b"\0\0\0\x06(quit)\0\0");
    assert_eq!(bytes.len(), 48);
    same(file, &bytes);
}

#[test]
fn integers_and_booleans() {
    same(-2_i32, b"\xff\xff\xff\xfe");
    same(0x0102_0304_u32, b"\x01\x02\x03\x04");
    same(0x0102_0304_0506_0708_u64, b"\x01\x02\x03\x04\x05\x06\x07\x08");
    same(true, b"\0\0\0\x01");
    same(false, b"\0\0\0\0");
    same((), b"");
    assert_eq!(decode::<bool>(b"\0\0\0\x02"), Err(DecodeError::Value { at: 4, what: "boolean", value: 2 }));
}

#[test]
fn opaque_data_and_its_padding() {
    same(text::<9>(b""), b"\0\0\0\0");
    same(text::<9>(b"abc"), b"\0\0\0\x03abc\0");
    same(Opaque::<9>::new(&b"abcd"[..]).unwrap(), b"\0\0\0\x04abcd");
    same(Inline::<9>::new(b"abcde").unwrap(), b"\0\0\0\x05abcde\0\0\0");
    same(*b"\x01\x02\x03\x04\x05\x06", b"\x01\x02\x03\x04\x05\x06\0\0");
    assert_eq!(decode::<Text<9>>(b"\0\0\0\x03abcX"), Ok(text(b"abc")), "padding of any value");
    assert_eq!(decode::<[u8; 3]>(b"abcX"), Ok(*b"abc"), "padding of any value");
}

#[test]
fn decoded_content_shares_the_buffer_of_the_message() {
    let message = Bytes::from_static(b"\0\0\0\x04abcd");
    let data = Data::<9>::decode(&mut Decoder::new(message.clone())).unwrap();
    assert_eq!(data.as_ptr(), message[4..].as_ptr());
}

#[test]
fn lists_options_and_results() {
    same(List(vec![7_u32, 8]), b"\0\0\0\x01\0\0\0\x07\0\0\0\x01\0\0\0\x08\0\0\0\0");
    same(Array::<u32, 2>::new(vec![7, 8]).unwrap(), b"\0\0\0\x02\0\0\0\x07\0\0\0\x08");
    same(None::<u64>, b"\0\0\0\0");
    same(Some(9_u32), b"\0\0\0\x01\0\0\0\x09");
    same(Ok::<u32, Code>(9), b"\0\0\0\0\0\0\0\x09");
    same(Err::<u32, Code>(Code::NAMED), b"\0\0\0\x05");
    same(Err::<u32, Code>(Code::new(77).unwrap()), b"\0\0\0\x4d");
    same(Empty {}, b"");
    let shown = |list: &List<u32>| Shown(list).to_string();
    assert_eq!(shown(&List(vec![])), "[]");
    assert_eq!(shown(&List((0..16).collect())), "[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15]");
    assert_eq!(shown(&List((0..99).collect())), "[0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 and 83 more]");
    assert_eq!(Shown(&Ok::<u32, Code>(9)).to_string(), "OK 9");
    assert_eq!(Shown(&Err::<u32, Code>(Code::NAMED)).to_string(), "NAMED");
    assert_eq!(Shown(&None::<u32>).to_string(), "-");
    assert_eq!(Empty {}.to_string(), "{}");
}

/// Room for what these lengths promise would end the process.
#[test]
fn lengths_are_checked_before_anything_is_allocated() {
    fn refused<T: Xdr>() -> DecodeError {
        decode::<T>(b"\xff\xff\xff\xff\0\0\0\0").map(|_| ()).unwrap_err()
    }
    const ANY: usize = u32::MAX as usize;
    let over = DecodeError::Length { at: 4, len: u32::MAX, max: 16 };
    assert_eq!(refused::<Text<16>>(), over);
    assert_eq!(refused::<Inline<16>>(), over);
    assert_eq!(refused::<Array<u64, 16>>(), over);
    let short = DecodeError::Short { at: 4 };
    assert_eq!(refused::<Data<ANY>>(), short, "longer than the message");
    assert_eq!(refused::<Array<u64, ANY>>(), short);
    assert_eq!(refused::<Array<[u8; 4096], ANY>>(), short);
}

#[test]
fn values_that_there_are_not_are_refused() {
    let error = decode::<FileKind>(b"\0\0\0\x03").unwrap_err();
    assert_eq!(error, DecodeError::Value { at: 4, what: "kind of file", value: 3 });
    assert_eq!(error.to_string(), "3 before byte 4 is no kind of file");
    assert!(decode::<Code>(b"\0\0\0\0").is_err(), "no error");
    assert_eq!(Code::new(0), None);
    assert_eq!(Code::NAMED.code(), 5);
}

#[test]
fn more_than_a_type_takes_cannot_be_made() {
    let too_long = TooLong { len: 3, max: 2 };
    assert_eq!(Text::<2>::new(&b"abc"[..]), Err(too_long));
    assert_eq!(Inline::<2>::new(b"abc").map(|_| ()), Err(too_long));
    assert_eq!(Array::<u32, 2>::new(vec![1, 2, 3]).map(|_| ()), Err(too_long));
    assert_eq!(Array::<u32, 2>::new(vec![1, 2]).unwrap().into_vec(), [1, 2]);
}

#[test]
fn what_a_peer_sends_prints_on_one_line() {
    let shown = |bytes: &'static [u8]| Shown(&text::<99>(bytes)).to_string();
    assert_eq!(shown("Käse".as_bytes()), "\"Käse\"");
    assert_eq!(shown(b"a\nb\r\x1b[2J\0\"\\"), r#""a\nb\r\u{1b}[2J\0\"\\""#);
    assert_eq!(shown(b"\xff\xfe ok \xc3"), r#""\xff\xfe ok \xc3""#);
    assert_eq!(shown("left \u{202e} right".as_bytes()), r#""left \u{202e} right""#);
    assert_eq!(Shown(&Inline::<9>::new(b"\x00\xab").unwrap()).to_string(), "00ab");
    assert_eq!(Shown(&Opaque::<9>::default()).to_string(), "-");
}

#[test]
fn handles_in_place_are_equal_by_their_bytes() {
    use std::collections::HashSet;
    let of = |bytes: &[u8]| Inline::<64>::new(bytes).unwrap();
    let set: HashSet<_> = [of(b"a"), of(b"a"), of(b"a\0"), of(b"")].into_iter().collect();
    assert_eq!(set.len(), 3);
}

/// Content stays where it is; the bytes are those of a copy.
#[test]
fn long_content_is_a_piece_of_its_own() {
    for len in [COPIED_MAX, COPIED_MAX + 1, COPIED_MAX + 2, COPIED_MAX + 4] {
        let content = Bytes::from(vec![7; len]);
        let data = Data::<4096>::new(content.clone()).unwrap();
        let mut out = Encoder::record(0);
        (5_u32).encode(&mut out);
        data.encode(&mut out);
        (6_u32).encode(&mut out);
        data.encode(&mut out);
        let encoded = out.finish();
        let is_copied = len <= COPIED_MAX;
        assert_eq!(encoded.data.as_ptr() == content.as_ptr(), !is_copied);
        let once = [encode(&text_of(&content)), encode(&6_u32), encode(&text_of(&content))].concat();
        let expected = [&(0x8000_0004 + once.len() as u32).to_be_bytes()[..], b"\0\0\0\x05", &once].concat();
        let (head, body) = encoded.clone().into_head_and_body();
        assert_eq!([&head[..], &body].concat(), expected);
        assert_eq!(encoded.into_bytes(), expected);
    }
    let mut out = Encoder::new(0);
    let content = Bytes::from(vec![7; 2048]);
    Data::<4096>::new(content.clone()).unwrap().encode(&mut out);
    let (_, body) = out.finish().into_head_and_body();
    assert_eq!(body.as_ptr(), content.as_ptr(), "no padding, no copy");
}

fn text_of(content: &Bytes) -> Text<4096> {
    Text::new(content.clone()).unwrap()
}

#[test]
fn content_may_come_from_elsewhere() {
    for len in [0_u32, 5, 4096] {
        let mut out = Encoder::record(0);
        (9_u32).encode(&mut out);
        Data::<4096>::default().encode(&mut out);
        let outside = out.finish_without_data(len);
        assert!(outside.data.is_empty());
        let content = vec![1; len as usize];
        let sent = [&outside.head[..], &content, &outside.tail].concat();
        let mut whole = Encoder::record(0);
        (9_u32).encode(&mut whole);
        Data::<4096>::new(content).unwrap().encode(&mut whole);
        assert_eq!(sent, whole.finish().into_bytes());
    }
}

#[test]
#[should_panic(expected = "the last field is empty data")]
fn content_from_elsewhere_needs_a_place() {
    let mut out = Encoder::record(0);
    (9_u32).encode(&mut out);
    out.finish_without_data(1);
}
