// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control connection: command lines out, replies in (RFC 959, 4.2).

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// The longest line a server may send, in bytes.
pub const LINE_MAX: usize = 16 << 10;
/// The longest reply, in bytes.
pub const REPLY_MAX: usize = 256 << 10;
/// Telnet's escape byte. The standard has it doubled (RFC 959, 4.1 by way of RFC 854), and common servers do not undo that: the same
/// command would mean one name here and another there.
const IAC: u8 = 0xff;

/// What a peer sent that is no FTP, or an argument that FTP cannot carry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Bad {
    /// The argument has a byte that would end the line.
    #[error("FTP cannot carry a name with a line break, a zero byte or the byte 0xFF")]
    Argument,
    /// A line is longer than [`LINE_MAX`].
    #[error("a line of more than {LINE_MAX} bytes")]
    LongLine,
    /// A reply is longer than [`REPLY_MAX`].
    #[error("a reply of more than {REPLY_MAX} bytes")]
    LongReply,
    /// A line that should begin with a code of three digits.
    #[error("a reply that does not begin with a code; perhaps no FTP server listens there")]
    NoCode,
    /// A passive address that cannot be read.
    #[error("a passive address that makes no sense")]
    Address,
    /// A line of a listing that cannot be read, or has no name of a file in the directory.
    #[error("a line of a listing that makes no sense")]
    Listed,
    /// A directory that cannot be read out of the answer to PWD.
    #[error("an answer to PWD without a path")]
    Path,
}

/// A command line; `argument` may be any bytes but those that end it.
///
/// # Errors
/// [`Bad::Argument`] for CR, LF and NUL, since a name with a line break would be a second command, and for 0xFF.
pub fn command(verb: &str, argument: &[u8]) -> Result<Vec<u8>, Bad> {
    if argument.iter().any(|byte| matches!(*byte, b'\r' | b'\n' | 0 | IAC)) {
        return Err(Bad::Argument);
    }
    let mut line = verb.as_bytes().to_vec();
    if !argument.is_empty() {
        line.push(b' ');
    }
    line.extend_from_slice(argument);
    line.extend_from_slice(b"\r\n");
    Ok(line)
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The code: 100 to 599.
    pub code: u16,
    /// The text of each line, without codes at the first and the last one.
    pub lines: Vec<Bytes>,
}

impl Reply {
    /// Whether more replies to the same command follow.
    pub fn is_preliminary(&self) -> bool {
        self.code < 200
    }

    /// Whether it was done, or waits for more (the codes below 400).
    pub fn is_good(&self) -> bool {
        self.code < 400
    }

    /// Whether the command, or this form of it, is not known.
    pub fn is_unknown(&self) -> bool {
        matches!(self.code, 500 | 501 | 502 | 504)
    }

    /// Whether the command is refused for all files and at all times.
    pub fn refuses_for_good(&self) -> bool {
        // ProFTPD answers so to every APPE where AllowStoreRestart is off, with a code that says the opposite.
        const SETTING: &[u8] = b"Append/Restart not permitted";
        let names_a_setting = self.text().windows(SETTING.len()).any(|words| words == SETTING);
        matches!(self.code, 500 | 502 | 504) || self.code == 451 && names_a_setting
    }

    /// The text of the last line.
    pub fn text(&self) -> &[u8] {
        self.lines.last().map_or(b"", |line| &line[..])
    }
}

/// Puts replies together from what arrives.
#[derive(Debug, Default)]
pub struct Replies {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no end of a line.
    searched: usize,
    /// Of the reply that has begun.
    code: Option<u16>,
    lines: Vec<Bytes>,
    size: usize,
}

impl Replies {
    /// Adds what arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether nothing is left of what arrived.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.code.is_none()
    }

    /// The next whole reply; `None` when more has to arrive.
    ///
    /// # Errors
    /// When what arrived is no reply, or too long for one.
    pub fn take_next(&mut self) -> Result<Option<Reply>, Bad> {
        while let Some(line) = self.line()? {
            self.size += line.len();
            if self.size > REPLY_MAX {
                return Err(Bad::LongReply);
            }
            if let Some(reply) = self.take(line)? {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    fn line(&mut self) -> Result<Option<Bytes>, Bad> {
        let Some(found) = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n') else {
            self.searched = self.buffer.len();
            return if self.searched > LINE_MAX { Err(Bad::LongLine) } else { Ok(None) };
        };
        let end = self.searched + found;
        self.searched = 0;
        if end > LINE_MAX {
            return Err(Bad::LongLine);
        }
        let mut line = self.buffer.split_to(end);
        self.buffer.advance(1);
        if line.last() == Some(&b'\r') {
            line.truncate(end - 1);
        }
        Ok(Some(line.freeze()))
    }

    fn take(&mut self, line: Bytes) -> Result<Option<Reply>, Bad> {
        let code = code_of(&line);
        let separator = line.get(3).copied().unwrap_or(b' ');
        match (self.code, code) {
            (None, None) => Err(Bad::NoCode),
            (None, Some(code)) if separator == b'-' => {
                self.code = Some(code);
                self.lines = vec![line.slice(4..)];
                Ok(None)
            }
            (None, Some(code)) => Ok(Some(self.finish(code, &line))),
            (Some(begun), Some(code)) if begun == code && separator == b' ' => {
                Ok(Some(self.finish(code, &line)))
            }
            // Some servers repeat the code on each line, others begin it with a space.
            (Some(begun), Some(code)) if begun == code && separator == b'-' => {
                self.lines.push(line.slice(4..));
                Ok(None)
            }
            (Some(_), _) => {
                self.lines.push(line);
                Ok(None)
            }
        }
    }

    fn finish(&mut self, code: u16, line: &Bytes) -> Reply {
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(line.slice(line.len().min(4)..));
        (self.code, self.size) = (None, 0);
        Reply { code, lines }
    }
}

fn code_of(line: &[u8]) -> Option<u16> {
    let digits = line.get(..3)?;
    let is_code = matches!(digits[0], b'1'..=b'5')
        && digits.iter().all(u8::is_ascii_digit)
        && matches!(line.get(3), None | Some(b' ' | b'-'));
    is_code.then(|| digits.iter().fold(0, |code, digit| code * 10 + u16::from(digit - b'0')))
}

/// The directory in the answer to PWD: `"PATH"`, where a quote in the path is doubled.
///
/// # Errors
/// [`Bad::Path`] where there is none, or a relative one.
pub fn pwd(text: &[u8]) -> Result<Vec<u8>, Bad> {
    let start = text.iter().position(|&byte| byte == b'"').ok_or(Bad::Path)?;
    let mut path = Vec::new();
    let mut rest = &text[start + 1..];
    loop {
        match rest {
            [b'"', b'"', tail @ ..] => {
                path.push(b'"');
                rest = tail;
            }
            [b'"', ..] => break,
            [byte, tail @ ..] => {
                path.push(*byte);
                rest = tail;
            }
            [] => return Err(Bad::Path),
        }
    }
    if path.starts_with(b"/") && !path.contains(&0) { Ok(path) } else { Err(Bad::Path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &[u8]) -> Result<Vec<(u16, Vec<String>)>, Bad> {
        let mut replies = Replies::default();
        let mut found = Vec::new();
        // Byte by byte, as slowly as a network may be.
        for byte in text {
            replies.push(&[*byte]);
            while let Some(reply) = replies.take_next()? {
                let text = |line: &Bytes| String::from_utf8_lossy(line).into_owned();
                found.push((reply.code, reply.lines.iter().map(text).collect()));
            }
        }
        Ok(found)
    }

    #[test]
    fn replies_of_one_line_and_of_several() {
        let text = b"220 ready\r\n211-Features:\r\n SIZE\r\n 211 is no end\r\n211-MDTM\r\n211 End\r\n226\r\n";
        let expected = [
            (220, vec!["ready".to_owned()]),
            (211, ["Features:", " SIZE", " 211 is no end", "MDTM", "End"].map(str::to_owned).to_vec()),
            (226, vec![String::new()]),
        ];
        assert_eq!(all(text).as_deref(), Ok(&expected[..]));
    }

    #[test]
    fn what_is_no_reply_or_has_no_end_is_refused() {
        assert_eq!(all(b"hello\r\n"), Err(Bad::NoCode));
        assert_eq!(all(b"620 x\r\n"), Err(Bad::NoCode));
        assert_eq!(all(&[b'2'; LINE_MAX + 2]), Err(Bad::LongLine));
        let mut endless = b"211-\r\n".to_vec();
        endless.extend(b"x\r\n".repeat(REPLY_MAX + 1));
        assert_eq!(all(&endless), Err(Bad::LongReply));
    }

    #[test]
    fn refusals_of_a_file_are_told_from_those_of_the_command() {
        for (code, text, unknown, for_good) in [
            (500, "what?", true, true),
            (501, "not so", true, false),
            (550, "denied", false, false),
            (451, "local error", false, false),
            (451, "f: Append/Restart not permitted, try again", false, true),
        ] {
            let reply = Reply { code, lines: vec![Bytes::from_static(text.as_bytes())] };
            assert_eq!((reply.is_unknown(), reply.refuses_for_good()), (unknown, for_good), "{code} {text}");
        }
    }

    #[test]
    fn a_name_cannot_smuggle_a_second_command() {
        for name in [&b"a\r\nDELE b"[..], b"a\nb", b"a\0b"] {
            assert_eq!(command("RETR", name), Err(Bad::Argument));
        }
        assert_eq!(command("RETR", b"a \xfe ").as_deref(), Ok(&b"RETR a \xfe \r\n"[..]));
        assert_eq!(command("PASV", b"").as_deref(), Ok(&b"PASV\r\n"[..]));
    }

    #[test]
    fn the_working_directory_may_have_quotes() {
        assert_eq!(pwd(b"\"/a \"\"b\"\"\" is current").as_deref(), Ok(&b"/a \"b\""[..]));
        for text in [&b"/a"[..], b"\"/a", b"\"a\"", b"\"/a\0\""] {
            assert_eq!(pwd(text), Err(Bad::Path));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_replies_or_refused(bytes: Vec<u8>) {
            let _ = (all(&bytes), pwd(&bytes));
        }
    }
}
