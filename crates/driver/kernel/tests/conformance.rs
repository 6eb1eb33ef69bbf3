// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on images, each checked with its own tool afterwards.

mod support;

use outrigger_conformance::{Direct, Target, run};
use std::sync::Arc;
use support::{Image, kind};

fn every_case_holds(name: &str, least: usize) {
    let Some(kind) = kind(name) else { return };
    let image = Image::new(kind);
    let kernel = Arc::new(image.open());
    {
        let direct = Direct::new(kernel.clone());
        let report =
            run(&direct, &Target { abilities: direct.abilities(), has_sample: false, exceptions: &[] });
        println!("{report}");
        report.must_hold(least);
    }
    kernel.unmount().expect("it unmounts");
    image.must_be_clean();
}

#[test]
fn ext4() {
    every_case_holds("ext4", 170);
}
