// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file handle in the 64 bits of a [`Node`], so that identity needs no memory and survives a restart.
//!
//! The handles of one file system differ in two 32-bit words: the inode number and its generation. All other words
//! (the high half of an inode number, the subvolume) equal those of the root's handle, which is the template. A
//! handle that differs elsewhere does not pack, and its node comes from the table.

use crate::handle::FileHandle;
use outrigger_core::Node;

/// Where a kind of handle keeps the inode number and the generation, in words.
struct Form {
    kind: i32,
    words: usize,
    ino: usize,
    generation: usize,
}

/// `enum fid_type` of the kernel's `<linux/exportfs.h>` and the file systems' own encoders.
const FORMS: &[Form] = &[
    // FILEID_INO32_GEN: ext2, ext3, ext4, f2fs, xfs with small inode numbers.
    Form { kind: 1, words: 2, ino: 0, generation: 1 },
    // The same number from shmem_encode_fh: generation, inode number, its high half.
    Form { kind: 1, words: 3, ino: 1, generation: 0 },
    // XFS_FILEID_TYPE_64FLAG on it: 64 bits of inode number, generation.
    Form { kind: 0x81, words: 3, ino: 0, generation: 2 },
    // FILEID_BTRFS_WITHOUT_PARENT: object (64), subvolume (64), generation.
    Form { kind: 0x4d, words: 5, ino: 0, generation: 4 },
];

/// How handles of one file system pack.
#[derive(Debug)]
pub(crate) struct Packing {
    template: FileHandle,
    ino: usize,
    generation: usize,
}

impl Packing {
    /// The packing of the file system to which `root`, a handle of a directory, belongs; `None` when its handles
    /// have a form that is not known.
    pub(crate) fn of(root: &FileHandle) -> Option<Self> {
        let fits = |form: &&Form| form.kind == root.kind() && form.words == root.words().len();
        let form = FORMS.iter().find(fits)?;
        let packing = Packing { template: *root, ino: form.ino, generation: form.generation };
        packing.pack(root).is_some().then_some(packing)
    }

    /// The node of a handle. Its low half, the inode number, is never 0, and it is never [`Node::ROOT`].
    pub(crate) fn pack(&self, handle: &FileHandle) -> Option<Node> {
        let (words, template) = (handle.words(), self.template.words());
        if handle.kind() != self.template.kind() || words.len() != template.len() {
            return None;
        }
        let varies = |at: usize| at == self.ino || at == self.generation;
        let same = words.iter().zip(template).enumerate().all(|(at, (a, b))| varies(at) || a == b);
        let (ino, generation) = (words[self.ino], words[self.generation]);
        let node = Node(u64::from(generation) << 32 | u64::from(ino));
        (same && ino != 0 && node != Node::ROOT).then_some(node)
    }

    /// The handle of a node that [`Packing::pack`] made.
    pub(crate) fn unpack(&self, node: Node) -> FileHandle {
        let mut words = self.template;
        words.set(self.ino, node.0 as u32);
        words.set(self.generation, (node.0 >> 32) as u32);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_packs_and_unpacks() {
        for form in FORMS {
            let mut content = vec![7_u32; form.words];
            let packing = Packing::of(&FileHandle::new(form.kind, &content)).expect("a known form");
            content[form.ino] = u32::MAX;
            content[form.generation] = 0xdead_beef;
            let handle = FileHandle::new(form.kind, &content);
            let node = packing.pack(&handle).expect("only the two words differ");
            assert_eq!(node, Node(0xdead_beef_ffff_ffff));
            assert_eq!(packing.unpack(node), handle);
        }
    }

    #[test]
    fn what_would_collide_does_not_pack() {
        let packing = Packing::of(&FileHandle::new(0x4d, &[256, 0, 5, 0, 9])).expect("btrfs");
        let cases: &[(&str, i32, &[u32])] = &[
            ("another subvolume", 0x4d, &[257, 0, 6, 0, 9]),
            ("a large inode number", 0x4d, &[257, 1, 5, 0, 9]),
            ("another kind", 1, &[257, 0, 5, 0, 9]),
            ("another length", 0x4d, &[257, 0, 5, 0]),
            ("inode 0", 0x4d, &[0, 0, 5, 0, 9]),
            ("the number of the root", 0x4d, &[1, 0, 5, 0, 0]),
        ];
        for (what, kind, words) in cases {
            assert_eq!(packing.pack(&FileHandle::new(*kind, words)), None, "{what}");
        }
        assert!(Packing::of(&FileHandle::new(0xfb, &[1, 2, 3])).is_none(), "an unknown form");
    }
}
