// SPDX-License-Identifier: MIT OR Apache-2.0
//! A VDI, VHD, VMDK or VHDX image: nothing panics, nothing is read outside of the file, and nothing takes long.
#![no_main]

#[path = "../../crates/proto/disk/tests/support/bounded.rs"]
mod bounded;

use bounded::{Bounded, content, disk};
use libfuzzer_sys::fuzz_target;
use outrigger_proto_disk::Bytes;
use outrigger_proto_disk::form::Form;
use outrigger_proto_disk::vhd::Vhd;
use outrigger_proto_disk::vmdk::Vmdk;
use std::sync::Mutex;

/// How much of a disk is read, in bytes.
const MOST: u64 = 4 << 20;

fuzz_target!(|bytes: &[u8]| {
    let file = || -> Bytes { Box::new(Bounded(bytes.to_vec())) };
    let below = || -> Option<Bytes> { Some(Box::new(Bounded(vec![0x5a; 3_000]))) };
    let Ok(form) = Form::of(&file()) else { return };
    let _ = disk(bytes.to_vec()).map(|disk| content(&disk, MOST));
    let with_others: Option<Bytes> = match form {
        Form::Vhd => Vhd::open(file(), below()).ok().map(|disk| Box::new(Mutex::new(disk)) as Bytes),
        Form::Vmdk => {
            let extents = (0..8).map(|_| file()).collect();
            Vmdk::open(file(), extents, below()).ok().map(|disk| Box::new(Mutex::new(disk)) as Bytes)
        }
        _ => None,
    };
    let _ = with_others.map(|disk| content(&disk, MOST));
});
