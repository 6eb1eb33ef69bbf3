// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a worker of a mount by NFS leaves to the next one: in the place where that of a mount by FUSE leaves `/dev/fuse` and what was
//! negotiated.

use super::kernel::Superblock;
use outrigger_core::{Errno, Error, Result};
use outrigger_door_nfs::{KEY_LEN, Root};
use outrigger_guard::Inherited;
use std::net::TcpListener;
use std::os::fd::IntoRawFd;

/// What there is of a mount besides its tree.
pub struct Left {
    /// Where the kernel connects to.
    pub listener: TcpListener,
    /// What handles are made with.
    pub key: [u8; KEY_LEN],
    /// The mount, as the kernel knows it.
    pub superblock: Superblock,
    /// The root, as the kernel knows it.
    pub root: Root,
}

/// Bytes of the number of a superblock, and of its inode.
const NUMBER: usize = 4;
const INODE: usize = 8;

impl Left {
    /// What [`Left::of`] reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let number = self.superblock.number().to_le_bytes();
        let inode = self.superblock.inode().unwrap_or_default().to_le_bytes();
        [&self.key[..], &number, &inode, &self.root.to_bytes()].concat()
    }

    /// What the workers before have left.
    ///
    /// # Errors
    /// `EPROTO` when it is something else.
    pub fn of(inherited: Inherited) -> Result<Self> {
        let listener = inherited.device.try_clone().map_err(Error::from)?.into();
        // It stays open for the workers to come.
        let _ = inherited.device.into_raw_fd();
        let (key, superblock, root) = read(&inherited.negotiated)?;
        Ok(Left { listener, key, superblock, root })
    }
}

fn read(bytes: &[u8]) -> Result<([u8; KEY_LEN], Superblock, Root)> {
    let short = || Errno::EPROTO.because("what is known of the mount is incomplete");
    let (key, rest) = bytes.split_first_chunk::<KEY_LEN>().ok_or_else(short)?;
    let (number, rest) = rest.split_first_chunk::<NUMBER>().ok_or_else(short)?;
    let (inode, rest) = rest.split_first_chunk::<INODE>().ok_or_else(short)?;
    let inode = Some(u64::from_le_bytes(*inode)).filter(|&inode| inode != 0);
    Ok((*key, Superblock::known(u32::from_le_bytes(*number), inode), Root::from_bytes(rest)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_refused() {
        for len in [0, KEY_LEN, KEY_LEN + NUMBER, KEY_LEN + NUMBER + INODE] {
            assert_eq!(read(&vec![1; len]).map(drop).unwrap_err().errno, Errno::EPROTO, "{len}");
        }
    }
}
