// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is copied, followed, kept and replaced.

/// Which symbolic links in the source are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deref {
    /// None.
    Never,
    /// Those named as operands.
    Operands,
    /// All.
    Always,
}

/// What happens to a file that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced.
    Replace,
    /// It stays.
    Keep,
    /// The user is asked.
    Ask,
}

/// How holes are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sparse {
    /// Holes of the source become holes.
    Auto,
    /// Every long enough run of zeroes becomes a hole.
    Always,
    /// No holes.
    Never,
}

/// Which attributes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Preserve {
    /// Permissions and access control lists.
    pub mode: bool,
    /// Permissions get the default of a new file even where the source has others (`--no-preserve=mode`).
    pub default_mode: bool,
    /// Owner and group.
    pub ownership: bool,
    /// Times of last access and modification.
    pub timestamps: bool,
    /// Which names are the same file.
    pub links: bool,
    /// Extended attributes.
    pub xattr: bool,
    /// Not being able to keep an extended attribute is an error.
    pub require_xattr: bool,
}

impl Preserve {
    /// Everything, as far as the destination can hold it.
    pub const ALL: Preserve = Preserve {
        mode: true,
        default_mode: false,
        ownership: true,
        timestamps: true,
        links: true,
        xattr: true,
        require_xattr: false,
    };
}

/// How a [`super::Copier`] works.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command, for messages.
    pub command: &'static str,
    /// Directories are copied with what is in them.
    pub recursive: bool,
    /// Which symbolic links are followed.
    pub deref: Deref,
    /// Which attributes are kept.
    pub preserve: Preserve,
    /// What happens to files that have the name already.
    pub existing: Existing,
    /// Only files newer than what has the name already are copied.
    pub update: bool,
    /// A file that cannot be opened for writing is removed and made anew.
    pub force: bool,
    /// A file that has the name already is removed first.
    pub remove_destination: bool,
    /// Content is not copied.
    pub attributes_only: bool,
    /// How holes are treated.
    pub sparse: Sparse,
    /// Content may be shared or copied inside the tree.
    pub inside: bool,
    /// Hard links instead of copies.
    pub hard_link: bool,
    /// Symbolic links instead of copies.
    pub symbolic_link: bool,
    /// Each file is named on standard output.
    pub verbose: bool,
    /// The names are JSON.
    pub json: bool,
    /// The copy is half of a move: messages say so.
    pub moving: bool,
}

impl Options {
    /// Of this command: files that are replaced, without directories, and nothing kept. Names are printed as `json` or not at all.
    pub fn plain(command: &'static str, json: bool) -> Self {
        Options {
            command,
            recursive: false,
            deref: Deref::Always,
            preserve: Preserve::default(),
            existing: Existing::Replace,
            update: false,
            force: false,
            remove_destination: false,
            attributes_only: false,
            sparse: Sparse::Auto,
            inside: true,
            hard_link: false,
            symbolic_link: false,
            verbose: false,
            json,
            moving: false,
        }
    }
}
