// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stored index with damage that its checksum does not show, used on a real archive.
#![no_main]

mod archive_common;

use outrigger_driver_archive::{Archive, ArchiveDriver, MemSource, Source};
use std::sync::Arc;

/// The archive whose index seeds the corpus.
const ARCHIVE: &[u8] = include_bytes!("../corpus/archive_gzip/tree.tar.gz");

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let source: Arc<dyn Source> = Arc::new(MemSource::new("x.tar.gz", ARCHIVE));
    let index = data.to_vec().into();
    if let Some(archive) = Archive::with_index(source, index, &archive_common::options(false)) {
        archive_common::walk(&ArchiveDriver::new(archive), false);
    }
});
