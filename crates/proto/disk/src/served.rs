// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the process of the kernel code gets bytes of an image that is no file of the host: it asks the process that opened the
//! image, over a socket. One question is answered before the next one is sent.
//!
//! A question is 12 bytes: where the range starts (64 bits) and how long it is (32 bits). The answer begins with 32 bits: 0, and
//! then the bytes follow, or an errno. All numbers are little-endian.

/// A range of an image that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Where it starts, in bytes.
    pub offset: u64,
    /// How long it is, in bytes.
    pub length: u32,
}

impl Question {
    /// How long it is as bytes.
    pub const LEN: usize = 12;
    /// The longest range that may be asked for, in bytes.
    pub const MOST: u32 = 1 << 20;

    /// As it travels.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// What has arrived, if it may be asked of an image of `size` bytes.
    pub fn decode(bytes: [u8; Self::LEN], size: u64) -> Option<Self> {
        let question =
            Question { offset: crate::bytes::le64(&bytes, 0), length: crate::bytes::le32(&bytes, 8) };
        let end = question.offset.checked_add(question.length.into())?;
        (question.length <= Self::MOST && end <= size).then_some(question)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_arrives_as_it_was_sent_and_only_within_the_image() {
        let question = Question { offset: 0x0123_4567_89ab, length: 4096 };
        let end = question.offset + 4096;
        assert_eq!(Question::decode(question.encode(), end), Some(question));
        assert_eq!(Question::decode(question.encode(), end - 1), None);
        let beyond = Question { offset: u64::MAX, length: 1 };
        assert_eq!(Question::decode(beyond.encode(), u64::MAX), None);
        let long = Question { offset: 0, length: Question::MOST + 1 };
        assert_eq!(Question::decode(long.encode(), u64::MAX), None);
    }
}
