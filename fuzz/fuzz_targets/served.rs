// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the process of the kernel code asks for, behind the size of the image in 8 bytes: what is taken for a question is a range of
//! the image that is not too long, and travels as it has come.
#![no_main]
use libfuzzer_sys::fuzz_target;
use outrigger_proto_disk::served::Question;

fuzz_target!(|bytes: &[u8]| {
    let Some((size, questions)) = bytes.split_first_chunk::<8>() else { return };
    let size = u64::from_le_bytes(*size);
    let (questions, _) = questions.as_chunks::<{ Question::LEN }>();
    for asked in questions {
        let Some(question) = Question::decode(*asked, size) else { continue };
        assert!(question.length <= Question::MOST);
        assert!(question.offset <= size && u64::from(question.length) <= size - question.offset);
        assert_eq!(question.encode(), *asked);
    }
});
