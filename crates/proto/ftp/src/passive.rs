// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a server waits for the data connection. Of its address only the port is read: a client that believed the host would
//! connect to any machine a hostile server names.

use crate::{Bad, Reply};

impl Reply {
    /// The port in the answer to EPSV or PASV; `None` where the server answers something else.
    pub fn data_port(&self) -> Option<Result<u16, Bad>> {
        match self.code {
            229 => Some(epsv(self.text())),
            227 => Some(pasv(self.text())),
            _ => None,
        }
    }
}

/// The port in the answer to EPSV (RFC 2428): `(|||PORT|)`, with any delimiter.
///
/// # Errors
/// [`Bad::Address`] where there is none.
pub fn epsv(text: &[u8]) -> Result<u16, Bad> {
    let start = text.iter().position(|&byte| byte == b'(').ok_or(Bad::Address)?;
    let inner = &text[start + 1..];
    let &delimiter = inner.first().ok_or(Bad::Address)?;
    let mut fields = inner.split(|&byte| byte == delimiter);
    let port = fields.nth(3).ok_or(Bad::Address)?;
    // The delimiter that ends the port must be there.
    fields.next().ok_or(Bad::Address)?;
    number(port).and_then(|port| u16::try_from(port).ok()).filter(|&port| port != 0).ok_or(Bad::Address)
}

/// The port in the answer to PASV (RFC 959): six numbers, whatever stands around them.
///
/// # Errors
/// [`Bad::Address`] where there are none.
pub fn pasv(text: &[u8]) -> Result<u16, Bad> {
    let start = text.iter().position(u8::is_ascii_digit).ok_or(Bad::Address)?;
    let mut numbers = text[start..].split(|byte| !byte.is_ascii_digit()).take(6).map(number);
    let mut next = || numbers.next().flatten().filter(|&number| number < 256).ok_or(Bad::Address);
    for _ in 0..4 {
        next()?;
    }
    let port = (next()? << 8 | next()?) as u16;
    if port == 0 { Err(Bad::Address) } else { Ok(port) }
}

fn number(digits: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(digits).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_code_says_how_the_port_is_written() {
        let reply = |code, text: &'static str| Reply {
            code,
            lines: vec![bytes::Bytes::from_static(text.as_bytes())],
        };
        assert_eq!(reply(229, "ok (|||6446|)").data_port(), Some(Ok(6446)));
        assert_eq!(reply(227, "ok 1,2,3,4,4,1").data_port(), Some(Ok(1025)));
        assert_eq!(reply(229, "ok 1,2,3,4,4,1").data_port(), Some(Err(Bad::Address)));
        assert_eq!(reply(500, "(|||6446|)").data_port(), None);
    }

    #[test]
    fn ports_are_read_and_nonsense_is_not() {
        assert_eq!(epsv(b"Extended Passive Mode OK (|||6446|)"), Ok(6446));
        assert_eq!(epsv(b"ok (!!!21!)"), Ok(21));
        for text in ["(|||0|)", "(|||99999|)", "(|||21)", "(||21|)", "()", "(", "6446", "(|||-1|)"] {
            assert_eq!(epsv(text.as_bytes()), Err(Bad::Address), "{text}");
        }
        assert_eq!(pasv(b"Entering Passive Mode (192,168,1,2,4,1)."), Ok(1025));
        assert_eq!(pasv(b"ok 1,2,3,4,0,21"), Ok(21));
        for text in ["(1,2,3,4,5)", "(1,2,3,4,256,1)", "(1,2,3,4,0,0)", "", "(1,,3,4,5,6)"] {
            assert_eq!(pasv(text.as_bytes()), Err(Bad::Address), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_address_or_refused(bytes: Vec<u8>) {
            let _ = (epsv(&bytes), pasv(&bytes));
        }

        #[test]
        fn every_port_is_read(port in 1_u16..) {
            prop_assert_eq!(epsv(format!("229 (|||{port}|)").as_bytes()), Ok(port));
            prop_assert_eq!(pasv(format!("(10,0,0,1,{},{})", port >> 8, port & 255).as_bytes()), Ok(port));
        }
    }
}
