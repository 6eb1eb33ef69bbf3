// SPDX-License-Identifier: MIT OR Apache-2.0
//! Refuses symbolic links that lead out of the tree, and shows absolute ones that stay in it as relative ones.
//!
//! A server chooses the targets of its links, and programs follow them on this machine: an absolute target leads to files of this
//! machine, and so does one with more `..` than there are directories above the link. What a target leads to depends on the place of
//! the link, so it is decided at each [`ReadLink`], by [`Locate`]; a cache below keeps the targets as the server has them, and
//! [`Abilities::targets_by_place`] keeps the kernel from caching what it was shown.
//!
//! Limits: `Locate` below gives the shortest of the paths that are known, as drivers of hosts do; where there is none, a link counts as
//! one in the root. A link with several names counts as the one nearest to the root, and an absolute target of it is not shown
//! as a relative one. While a program is on its way through a link, a server that moves the directory can lead it out.
#![forbid(unsafe_code)]

mod options;
mod target;

pub use options::{OPTIONS, Options};

use bytes::Bytes;
use outrigger_core::ops::{GetAttr, Locate, ReadLink};
use outrigger_core::{
    Abilities, Answer, Cx, Errno, Layer, Node, Place, Reply, Request, Result, Service, Target, ask,
};
use std::sync::Arc;

/// The layer.
#[derive(Debug, Clone)]
pub struct Contain {
    options: Options,
    /// Where the root of the driver's tree is at the server, if absolute targets lead there.
    root_at: Option<Bytes>,
}

/// Where a link is.
struct At {
    /// The path of the root at the server; `None` where absolute targets cannot be shown as relative ones.
    base: Option<Bytes>,
    /// How many levels the link is below the root, by the shortest way; 0 if it has a name that is not below the root.
    depth: usize,
}

impl Contain {
    /// For the tree `below`.
    pub fn new(options: Options, below: &Abilities) -> Self {
        Contain { options, root_at: below.root_at.clone() }
    }

    async fn read_link(&self, next: &Arc<dyn Service>, cx: &Cx, link: ReadLink) -> Result<Target> {
        let node = link.node;
        let target = ask(next, cx, link).await?;
        if !target::depends_on_place(&target) {
            return Ok(target);
        }
        let At { base, depth } = self.locate(next, cx, node).await?;
        let target = base.map_or_else(|| target.clone(), |base| target::relative(&target, &base, depth));
        if self.options.contain && !target::stays_inside(&target, depth) {
            return Err(Errno::EPERM.because(format!(
                "the symbolic link leads out of the tree, to {}: contain_symlinks refuses that",
                target.escape_ascii()
            )));
        }
        Ok(target)
    }

    async fn locate(&self, next: &Arc<dyn Service>, cx: &Cx, node: Node) -> Result<At> {
        let depth = match ask(next, cx, Locate { node }).await {
            Ok(path) => target::names(&path).count(),
            Err(error) if error.errno == Errno::ENOSYS => return Ok(At { base: None, depth: 1 }),
            Err(error) if error.errno == Errno::ENOENT => 0,
            Err(error) => return Err(error),
        };
        // From names at several depths, one relative target leads to several files.
        let links = ask(next, cx, GetAttr { node, handle: None }).await?.attr.nlink;
        let base = self.root_at.clone().filter(|_| depth > 0 && links == 1);
        Ok(At { base, depth })
    }
}

impl Layer for Contain {
    fn place(&self) -> Place {
        Place::anywhere("contain")
    }

    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, request: Request) -> Answer<'a> {
        match request {
            Request::ReadLink(link) => Answer::later(async move {
                self.read_link(next, cx, link).await.map_or_else(Reply::Error, Reply::Target)
            }),
            other => next.call(cx, other),
        }
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { targets_by_place: true, ..below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::reply::{Attrs, Ttl};
    use outrigger_core::{Attr, Credentials, Stack};
    use outrigger_sim::{Scripted, Sim, Step};

    /// Of a tree with one link, which is at `path`.
    fn shown(path: &'static str, target: &'static str, options: Options) -> Result<String, Errno> {
        with_links(1, path, target, options)
    }

    /// The same, of a link with so many names.
    fn with_links(
        nlink: u32,
        path: &'static str,
        target: &'static str,
        options: Options,
    ) -> Result<String, Errno> {
        let text =
            |text: &str| Step::Now(Reply::Target(Target::new(text.as_bytes().to_vec()).expect("a target")));
        let driver = Scripted::new(&Sim::new(0), move |_, request| match request {
            Request::ReadLink(_) => text(target),
            Request::Locate(_) if path.is_empty() => Step::Now(Reply::Error(Errno::ENOSYS.into())),
            Request::Locate(_) if path == "outside" => Step::Now(Reply::Error(Errno::ENOENT.into())),
            Request::Locate(_) => text(path),
            Request::GetAttr(_) => {
                let attr = Attr { nlink, ..Attr::default() };
                Step::Now(Reply::Attrs(Attrs { attr, ttl: Ttl::NEVER }))
            }
            _ => Step::Now(Reply::Error(Errno::ENOSYS.into())),
        });
        let below = Abilities { root_at: Some(Bytes::from_static(b"/srv/d")), ..driver.abilities() };
        let service =
            Stack::new(driver).push(Contain::new(options, &below)).expect("any order is good").service();
        assert!(service.abilities().targets_by_place);
        let cx = Cx::new(1, Credentials::ROOT, "test");
        let asked = ask(&*service, &cx, ReadLink { node: Node(7) });
        let mut asked = std::pin::pin!(asked);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(target) = asked.as_mut().poll(&mut context) else { panic!("it waits") };
        target.map(|target| target.to_string()).map_err(|error| error.errno)
    }

    const CONTAIN: Options = Options { contain: true, transform: false };

    #[test]
    fn a_target_is_contained_where_its_link_is_now() {
        assert_eq!(shown("/sub/link", "../x", CONTAIN).as_deref(), Ok("../x"));
        assert_eq!(shown("/link", "../x", CONTAIN), Err(Errno::EPERM));
        assert_eq!(
            shown("outside", "../x", CONTAIN),
            Err(Errno::EPERM),
            "its shortest way is outside of the tree"
        );
        assert_eq!(shown("outside", "x/y", CONTAIN).as_deref(), Ok("x/y"));
    }

    #[test]
    fn a_link_whose_place_is_not_known_counts_as_one_in_the_root() {
        assert_eq!(shown("", "../x", CONTAIN), Err(Errno::EPERM));
        assert_eq!(shown("", "/srv/d/x", CONTAIN), Err(Errno::EPERM));
        assert_eq!(shown("", "x", CONTAIN).as_deref(), Ok("x"));
    }

    #[test]
    fn an_absolute_target_in_the_tree_becomes_relative() {
        let transform = Options { contain: false, transform: true };
        for options in [CONTAIN, transform] {
            assert_eq!(shown("/sub/link", "/srv/d/x", options).as_deref(), Ok("../x"));
        }
        assert_eq!(shown("/sub/link", "/srv/x", CONTAIN), Err(Errno::EPERM));
        assert_eq!(with_links(2, "/sub/link", "/srv/d/x", CONTAIN), Err(Errno::EPERM));
        assert_eq!(shown("outside", "/srv/d/x", CONTAIN), Err(Errno::EPERM));
        assert_eq!(shown("/sub/link", "/srv/x", transform).as_deref(), Ok("/srv/x"));
        assert_eq!(shown("/sub/link", "/etc", transform).as_deref(), Ok("/etc"));
    }
}
