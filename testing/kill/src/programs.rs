// SPDX-License-Identifier: MIT OR Apache-2.0
//! FUSE programs other than ours, each on a fresh store of its own.

use crate::mounted::Place;
use crate::operations::Operation;
use anyhow::Result;
pub use outrigger_remote::programs::{find, tool};
use std::fs::{self, File};
use std::path::Path;

/// A program and what it serves.
#[derive(Debug)]
pub struct Program {
    /// Its name, also that of its processes.
    pub name: &'static str,
    /// The commands it takes.
    pub needs: &'static [&'static str],
    /// Whether it changes nothing. It then serves the content of the plain directory.
    pub is_read_only: bool,
    /// Whether and how a death inside a request leaves its store so that no successor can use what it was at, also without
    /// us.
    pub torn: Option<Torn>,
    /// Requests it is never sent, by the names of operations, and why.
    pub unasked: &'static [(&'static str, &'static str)],
    /// Makes a store in an empty directory, and gives the command without the mountpoint.
    pub store: fn(&Place, &Path) -> Result<Vec<String>>,
}

/// What a program leaves half done.
#[derive(Debug)]
pub struct Torn {
    /// In which operation; nothing: in all that change something.
    operation: Option<&'static str>,
    /// How.
    pub how: &'static str,
}

impl Torn {
    /// Whether a death inside this operation may do so.
    pub fn concerns(&self, operation: &Operation) -> bool {
        self.operation.map_or_else(|| operation.asks_for_change(), |name| name == operation.name)
    }
}

/// Mirrors a directory.
pub static BINDFS: Program = Program {
    name: "bindfs",
    needs: &["bindfs"],
    is_read_only: false,
    torn: None,
    unasked: &[],
    store: |_, store| Ok(words(&["bindfs", &at(store, "")])),
};

/// A directory of another host, here of this one.
pub static SSHFS: Program = Program {
    name: "sshfs",
    needs: &["sshfs", "sshd", "ssh-keygen"],
    is_read_only: false,
    torn: None,
    unasked: &[("setxattr", "sshfs has no extended attributes, and says so when it is mounted")],
    store: |place, store| Ok(place.sshd()?.sshfs(store)),
};

/// A file system of Windows in an image.
pub static NTFS_3G: Program = Program {
    name: "ntfs-3g",
    needs: &["ntfs-3g", "mkntfs"],
    is_read_only: false,
    torn: Some(Torn {
        operation: None,
        how: "ntfs-3g notes that a file has grown before it notes where its content is, frees a removed file before its \
              name, and gives a renamed file its second name before it takes the first; no successor knows what to make of \
              that",
    }),
    unasked: &[],
    store: |_, store| {
        let image = at(store, "image");
        File::create(&image)?.set_len(128 << 20)?;
        tool("mkntfs", &["-q", "-Q", "-F", "-s", "512", "-p", "0", "-H", "1", "-S", "1", &image])?;
        Ok(words(&["ntfs-3g", &image]))
    },
};

/// An encrypted directory.
pub static GOCRYPTFS: Program = Program {
    name: "gocryptfs",
    needs: &["gocryptfs"],
    is_read_only: false,
    torn: Some(Torn {
        operation: Some("truncate"),
        how: "gocryptfs cuts off the last block of a truncated file before it writes what is left of it",
    }),
    unasked: &[],
    store: |_, store| {
        let [vault, password] = ["vault", "password"].map(|name| at(store, name));
        fs::create_dir(&vault)?;
        fs::write(&password, "secret\n")?;
        tool("gocryptfs", &["-q", "-init", "-scryptn=10", "-passfile", &password, &vault])?;
        Ok(words(&["gocryptfs", "-q", "-passfile", &password, &vault]))
    },
};

/// A directory above another.
pub static FUSE_OVERLAYFS: Program = Program {
    name: "fuse-overlayfs",
    needs: &["fuse-overlayfs"],
    is_read_only: false,
    torn: None,
    unasked: &[],
    store: |_, store| {
        let [lower, upper, work] = directories(store, ["lower", "upper", "work"])?;
        let option = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        Ok(words(&["fuse-overlayfs", "-o", &option]))
    },
};

/// Two directories as one.
pub static MERGERFS: Program = Program {
    name: "mergerfs",
    needs: &["mergerfs"],
    is_read_only: false,
    torn: None,
    unasked: &[],
    store: |_, store| {
        let branches = directories(store, ["one", "two"])?.join(":");
        Ok(words(&["mergerfs", &branches]))
    },
};

/// A compressed image.
pub static SQUASHFUSE: Program = Program {
    name: "squashfuse",
    needs: &["squashfuse", "mksquashfs"],
    is_read_only: true,
    torn: None,
    unasked: &[],
    store: |place, store| {
        let image = at(store, "image");
        tool("mksquashfs", &[&at(&place.plain_dir(), ""), &image, "-quiet", "-no-progress"])?;
        Ok(words(&["squashfuse", &image]))
    },
};

impl Program {
    /// What is not installed of what it takes.
    pub fn missing(&self) -> Option<&'static str> {
        self.needs.iter().copied().find(|name| find(name).is_none())
    }
}

fn directories<const N: usize>(store: &Path, names: [&str; N]) -> Result<[String; N]> {
    let paths = names.map(|name| at(store, name));
    paths.iter().try_for_each(fs::create_dir)?;
    Ok(paths)
}

fn at(store: &Path, name: &str) -> String {
    store.join(name).display().to_string()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}
