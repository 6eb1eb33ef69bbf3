// SPDX-License-Identifier: MIT OR Apache-2.0
//! Targets of symbolic links as this side sees them.
//!
//! A server chooses the targets of its links, and programs follow them on this machine: an absolute target leads to
//! files of ours. The user may have such links shown as relative ones, where they lead into the tree, and all others refused.

use crate::inner::Inner;
use crate::link::Again;
use crate::options::Options;
use crate::session::Pending;
use bytes::Bytes;
use outrigger_core::{Errno, Node, Result, Target};
use outrigger_proto_sftp::Request;
use outrigger_toolkit_remote::shown_target;

impl Inner {
    pub(crate) async fn read_link(&self, node: Node) -> Result<Target> {
        use outrigger_core::FileKind;
        if self.inodes.kind(node)? != FileKind::Symlink {
            return Err(Errno::EINVAL.because("only symbolic links have a target"));
        }
        let path = self.inodes.path(node)?;
        let request = Request::ReadLink { path: &path };
        let target = self.link.ask(Again::Always, &request, Pending::name).await?;
        let depth = self.inodes.table().path(node)?.len();
        let shown = shown(&target, self.inodes.base(), depth, self.options())?;
        Target::new(shown)
    }
}

/// The target that is shown for one of the server, of a link `depth` levels below the root, which is at `base`.
fn shown(target: &Bytes, base: &[u8], depth: usize, options: &Options) -> Result<Bytes> {
    shown_target(target, (base, depth), options.transform_symlinks, options.contain_symlinks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(transform: bool, contain: bool) -> Options {
        Options { transform_symlinks: transform, contain_symlinks: contain, ..Options::default() }
    }

    fn target(text: &'static str, depth: usize, options: &Options) -> Option<String> {
        let shown = shown(&Bytes::from_static(text.as_bytes()), b"/srv/tree", depth, options).ok()?;
        Some(String::from_utf8(shown.to_vec()).expect("text"))
    }

    #[test]
    fn targets_are_shown_as_they_are_unless_the_user_wants_otherwise() {
        for text in ["/srv/tree/a", "/etc/passwd", "../../x", "a", "/srv/tree"] {
            assert_eq!(target(text, 1, &options(false, false)).as_deref(), Some(text));
        }
    }

    #[test]
    fn absolute_targets_in_the_tree_become_relative() {
        for (text, depth, expected) in [
            ("/srv/tree/a/b", 1, "a/b"),
            ("/srv/tree/a/b", 3, "../../a/b"),
            ("/srv/tree", 1, "."),
            ("/srv/tree/", 2, ".."),
            ("/srv/treehouse", 1, "/srv/treehouse"),
            ("/etc", 2, "/etc"),
            ("../x", 2, "../x"),
        ] {
            assert_eq!(target(text, depth, &options(true, false)).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn targets_that_could_lead_out_are_refused() {
        let refused = [
            ("/etc/passwd", 1),
            ("..", 1),
            ("../..", 2),
            ("a/..", 1),
            ("a/../../b", 3),
            ("./../x", 1),
            ("../a/../../b", 2),
            ("/srv/tree/a/../../..", 1),
            ("/srv/treehouse", 1),
        ];
        for (text, depth) in refused {
            assert_eq!(target(text, depth, &options(false, true)), None, "{text}");
        }
        let allowed = [
            ("a/b", 1, "a/b"),
            ("../x", 2, "../x"),
            ("./a", 1, "./a"),
            ("/srv/tree/a", 2, "../a"),
            ("..", 2, ".."),
        ];
        for (text, depth, expected) in allowed {
            assert_eq!(target(text, depth, &options(false, true)).as_deref(), Some(expected), "{text}");
        }
    }
}
