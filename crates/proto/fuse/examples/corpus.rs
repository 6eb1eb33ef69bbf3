// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the seed corpus of the fuzz target `fuse_request`: one well-formed message for every operation.
//!
//! `cargo run -p outrigger-proto-fuse --example corpus -- fuzz/corpus/fuse_request`
use outrigger_proto_fuse::{InHeader, InitFlags, InitIn, Opcode, encode_request};
use std::{env, fs, io, path::PathBuf};

/// A body that is long enough for every fixed structure, followed by two names and some data.
fn body(opcode: Opcode) -> Vec<u8> {
    match opcode {
        Opcode::Init => {
            InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: InitFlags::all() }.encode()
        }
        Opcode::Lookup | Opcode::Unlink | Opcode::Rmdir | Opcode::Removexattr | Opcode::Symlink => {
            b"name\0target\0".to_vec()
        }
        _ => {
            let mut body = vec![0; fixed(opcode)];
            body.extend_from_slice(b"name\0other\0");
            body
        }
    }
}

/// Bytes before the first name.
fn fixed(opcode: Opcode) -> usize {
    match opcode {
        Opcode::Mkdir | Opcode::Rename | Opcode::Link | Opcode::Getxattr | Opcode::Setxattr => 8,
        Opcode::Mknod | Opcode::Rename2 | Opcode::Create | Opcode::Tmpfile => 16,
        _ => 88,
    }
}

fn main() -> io::Result<()> {
    let folder =
        env::args_os().nth(1).map_or_else(|| PathBuf::from("fuzz/corpus/fuse_request"), PathBuf::from);
    fs::create_dir_all(&folder)?;
    for opcode in Opcode::ALL {
        let header = InHeader { unique: 2, nodeid: 1, pid: 1, ..InHeader::default() };
        fs::write(folder.join(opcode.name()), encode_request(header, *opcode, &[&body(*opcode)]))?;
    }
    let groups: Vec<u8> = [16u32, 32, 1, 100].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let header = InHeader { unique: 4, nodeid: 1, total_extlen: 2, ..InHeader::default() };
    let message = encode_request(header, Opcode::Mkdir, &[&[0; 8], b"name\0", &groups]);
    fs::write(folder.join("mkdir_groups"), message)
}
