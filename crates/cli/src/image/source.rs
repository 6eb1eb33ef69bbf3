// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree in the order in which it goes into an image, which does not depend on the order of its directories.

use super::{failed, whole};
use crate::context::Context;
use crate::copy::STREAM;
use crate::say::quoted;
use crate::status::{Failure, Status};
use bytes::Bytes;
use outrigger_client::{Inode, Unreadable};
use outrigger_core::{Attr, Cancel, Errno, FileKind, Name, Node, Time, XattrName};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

/// One name of the tree.
#[derive(Clone)]
pub struct Found {
    /// Where it is: names with slashes between them; nothing for the root.
    pub path: Vec<u8>,
    /// What it leads to.
    pub inode: Rc<Inode>,
    /// Its attributes as the image gets them. The time of last access is that of modification: reading changes the other.
    pub attr: Attr,
    /// Set for a file that has several names in the tree.
    pub link: Option<Link>,
}

/// What is known of a file with several names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The first of its names in this walk.
    pub first: Vec<u8>,
    /// How many of its names there are; as many as were seen so far in the first walk.
    pub names: u32,
    /// How many this walk has come to, this one included.
    pub seen: u32,
    /// The number of the file among those with several names, from 0 on.
    pub number: usize,
}

impl Found {
    /// The last component of its path.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
    }

    /// Whether it is a further name of a file that was there before.
    pub fn is_further_name(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.seen > 1)
    }

    /// Its extended attributes, sorted by the bytes of their names: trees list them in any order.
    ///
    /// # Errors
    /// A sentence with the path below `shown`.
    pub fn attributes(&self, shown: &str) -> Result<Vec<(XattrName, Bytes)>, Failure> {
        let unread = |error| failed("cannot read the extended attributes of", shown, &self.path, &error);
        let mut names = match self.inode.xattrs() {
            Err(error) if error.errno == Errno::EOPNOTSUPP => return Ok(Vec::new()),
            names => names.map_err(unread)?,
        };
        names.sort_unstable_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
        let mut attributes = Vec::with_capacity(names.len());
        for name in names {
            match self.inode.xattr(&name) {
                // It was removed after it was listed.
                Err(error) if error.errno == Errno::ENODATA => {}
                value => attributes.push((name, value.map_err(unread)?)),
            }
        }
        Ok(attributes)
    }
}

/// Files that have something in common.
#[derive(Debug, Default)]
pub struct Tally {
    /// The path of the first one.
    pub first: Option<Vec<u8>>,
    /// How many there are.
    pub count: u64,
}

impl Tally {
    /// Another one.
    pub fn add(&mut self, found: &Found) {
        self.first.get_or_insert_with(|| found.path.clone());
        self.count += 1;
    }

    /// How many there are, as words.
    pub fn files(&self) -> String {
        format!("{} file{}", self.count, if self.count == 1 { "" } else { "s" })
    }
}

/// Where the names of a tree go, one by one.
pub trait Sink {
    /// Takes the next name; a directory comes before what is in it.
    ///
    /// # Errors
    /// A sentence that names the file. It ends the walk.
    fn put(&mut self, found: &Found) -> Result<(), Failure>;

    /// All that is in this directory was put.
    ///
    /// # Errors
    /// As [`Sink::put`].
    fn leave(&mut self, _directory: &Found) -> Result<(), Failure> {
        Ok(())
    }
}

/// A tree to make an image of.
pub struct Source {
    root: Rc<Inode>,
    /// How messages call it.
    shown: String,
    /// No file is newer than this in the image.
    latest: Option<Time>,
    cancel: Cancel,
    /// The files with several names, each held so that its number stays its own.
    links: HashMap<Node, (Link, Rc<Inode>)>,
    /// Whether a walk has counted them.
    counted: bool,
    /// Files that were changed while a walk after the first one put them into a sink.
    changed: Tally,
}

/// A directory in progress.
struct Frame {
    found: Found,
    /// What is in it, the next one last.
    rest: Vec<(Name, Rc<Inode>)>,
}

impl Source {
    /// The tree below `root`, which users call `shown`. Modification times after `latest` become that.
    ///
    /// # Errors
    /// When `root` is no directory.
    pub fn new(cancel: Cancel, root: Inode, shown: String, latest: Option<Time>) -> Result<Self, Failure> {
        if !root.is_dir() {
            return Err(Failure::serious(format!("cannot make an image of '{shown}': it is no directory")));
        }
        Ok(Source {
            root: Rc::new(root),
            shown,
            latest,
            cancel,
            links: HashMap::new(),
            counted: false,
            changed: Tally::default(),
        })
    }

    /// Gives every name of the tree to `sink`: a directory, then what is in it, sorted by the bytes of the names. The first walk
    /// counts the names of files that have several.
    ///
    /// # Errors
    /// What cannot be read, what `sink` says, a file whose content is a stream, a file with more names than the first walk has counted,
    /// and that the user has interrupted the command.
    pub fn walk(&mut self, sink: &mut dyn Sink) -> Result<(), Failure> {
        self.links.values_mut().for_each(|(link, _)| link.seen = 0);
        let root = Found {
            path: Vec::new(),
            attr: self.settled(self.root.attr()),
            inode: Rc::clone(&self.root),
            link: None,
        };
        sink.put(&root)?;
        let mut frames = vec![self.enter(root)?];
        while let Some(mut frame) = frames.pop() {
            if self.cancel.is_raised() {
                return Err(Failure::new("interrupted"));
            }
            let Some((name, inode)) = frame.rest.pop() else {
                sink.leave(&frame.found)?;
                continue;
            };
            let path = below(&frame.found.path, &name);
            frames.push(frame);
            if inode.opens_stream() {
                let why = Errno::EINVAL.because(STREAM);
                return Err(failed("cannot put into the image", &self.shown, &path, &why));
            }
            let link = self.link(&inode, &path)?;
            let found = Found { attr: self.settled(inode.attr()), path, inode, link };
            sink.put(&found)?;
            if self.counted && is_read(&found) && !is_unchanged(&found) {
                self.changed.add(&found);
            }
            if found.inode.is_dir() {
                frames.push(self.enter(found)?);
            }
        }
        self.counted = true;
        Ok(())
    }

    /// Tells which files were changed while the image was made: what it has of them may be of two versions.
    pub fn tell_changes(&self, context: &Context) {
        if let Some(path) = &self.changed.first {
            let path = quoted(whole(&self.shown, path));
            let files = self.changed.files();
            context.complain(Status::Minor, format_args!("{path} was changed while it was read ({files})"));
        }
    }

    fn enter(&self, found: Found) -> Result<Frame, Failure> {
        let cannot = |error| failed("cannot read the directory", &self.shown, &found.path, &error);
        let mut rest = Vec::new();
        for entry in found.inode.entries().map_err(cannot)? {
            let (name, inode) = entry.map_err(|Unreadable { name, error }| match name {
                Some(name) => failed("cannot look at", &self.shown, &below(&found.path, &name), &error),
                None => cannot(error),
            })?;
            rest.push((name, Rc::new(inode)));
        }
        rest.sort_unstable_by(|(one, _), (other, _)| other.as_bytes().cmp(one.as_bytes()));
        Ok(Frame { found, rest })
    }

    /// The attributes that a file gets in the image.
    fn settled(&self, attr: &Attr) -> Attr {
        let mtime = self.latest.map_or(attr.mtime, |latest| attr.mtime.min(latest));
        Attr { mtime, atime: mtime, ..attr.clone() }
    }

    fn link(&mut self, inode: &Rc<Inode>, path: &[u8]) -> Result<Option<Link>, Failure> {
        if inode.is_dir() || inode.attr().nlink < 2 {
            return Ok(None);
        }
        let (number, counted) = (self.links.len(), self.counted);
        let link = match self.links.entry(inode.node()) {
            Entry::Occupied(known) => &mut known.into_mut().0,
            Entry::Vacant(free) => {
                let link = Link { first: Vec::new(), names: 0, seen: 0, number };
                &mut free.insert((link, Rc::clone(inode))).0
            }
        };
        link.seen += 1;
        if link.seen == 1 {
            link.first = path.to_vec();
        }
        link.names += u32::from(!counted);
        if link.seen > link.names {
            // Archives say with the first name how many there are.
            let why = Errno::EBUSY.because("the file has got another name while the image was made");
            return Err(failed("cannot put into the image", &self.shown, path, &why));
        }
        Ok(Some(link.clone()))
    }
}

/// Whether its content goes into the image with this name.
fn is_read(found: &Found) -> bool {
    found.attr.kind() == FileKind::Regular && !found.is_further_name()
}

/// Whether it is as it was when its directory was read.
fn is_unchanged(found: &Found) -> bool {
    found.inode.attr_now().is_ok_and(|now| now.version() == found.inode.attr().version())
}

/// The path of `name` in the directory `path`.
fn below(path: &[u8], name: &Name) -> Vec<u8> {
    if path.is_empty() { name.as_bytes().to_vec() } else { [path, b"/", name.as_bytes()].concat() }
}

/// How many bytes of a file are stored, holes apart.
pub fn stored(attr: &Attr) -> u64 {
    match attr.kind() {
        FileKind::Regular => {
            attr.size.min(attr.blocks.saturating_mul(512).max(u64::from(attr.blocks == 0) * attr.size))
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::cpio::Cpio;
    use super::super::stream::Stream;
    use super::*;
    use crate::progress::Progress;
    use outrigger_client::{Client, Settings};
    use outrigger_core::Inline;
    use outrigger_core::ops::OpenFlags;
    use outrigger_driver_mem::{Mem, Options};
    use outrigger_runtime::Threads;
    use std::sync::Arc;

    /// The paths that a walk comes to, and those that are further names.
    #[derive(Default)]
    struct Paths(Vec<String>, Vec<String>);

    impl Sink for Paths {
        fn put(&mut self, found: &Found) -> Result<(), Failure> {
            let path = String::from_utf8(found.path.clone()).unwrap();
            if found.is_further_name() { &mut self.1 } else { &mut self.0 }.push(path);
            Ok(())
        }
    }

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    /// A tree in memory, in which file `b` has these names, too.
    fn tree(further: &[&str]) -> (Inode, Source) {
        let runtime = Arc::new(Threads::new());
        let mem = Inline::new(Mem::new(Options::default(), runtime.clone()), runtime.clone());
        let client = Client::new(Arc::new(mem), runtime, Settings::default());
        let root = client.root().unwrap();
        let (made, file) = root.create(&name("b"), 0o644, OpenFlags::READ_WRITE).unwrap();
        file.write_all_at(0, Bytes::from_static(b"content")).unwrap();
        further.iter().for_each(|further| drop(root.link(&made, &name(further)).unwrap()));
        let source = Source::new(Cancel::default(), client.root().unwrap(), "tree".to_owned(), None).unwrap();
        (root, source)
    }

    /// The second walk, into a cpio archive.
    fn archived(source: &mut Source) -> Result<Vec<u8>, Failure> {
        let (mut out, progress) = (Vec::new(), Progress::default());
        let mut cpio = Cpio::new(Stream::new(&mut out, &progress, "tree".to_owned()));
        source.walk(&mut cpio)?;
        cpio.finish()?;
        Ok(out)
    }

    #[test]
    fn a_name_that_a_file_gets_between_two_walks_is_an_error_and_no_empty_file() {
        for (further, new) in [(&["c"][..], "a"), (&["c"], "d"), (&[], "a"), (&[], "c")] {
            let (root, mut source) = tree(further);
            source.walk(&mut Paths::default()).unwrap();
            root.link(&root.lookup(&name("b")).unwrap(), &name(new)).unwrap();
            let failure = archived(&mut source).unwrap_err();
            assert!(failure.message.contains("another name while the image was made"), "{failure}");
        }
    }

    #[test]
    fn content_comes_with_the_first_name_that_is_left() {
        let (root, mut source) = tree(&["a", "c"]);
        let mut paths = Paths::default();
        source.walk(&mut paths).unwrap();
        assert_eq!((paths.0, paths.1), (vec![String::new(), "a".into()], vec!["b".into(), "c".into()]));
        root.unlink(&name("a")).unwrap();
        let mut paths = Paths::default();
        source.walk(&mut paths).unwrap();
        assert_eq!((paths.0, paths.1), (vec![String::new(), "b".into()], vec!["c".into()]));
        let archive = archived(&mut source).unwrap();
        assert!(archive.windows(7).any(|bytes| bytes == b"content"));
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_counted() {
        struct Writes(Inode);
        impl Sink for Writes {
            fn put(&mut self, found: &Found) -> Result<(), Failure> {
                if found.path == b"b" {
                    let file = self.0.lookup(&name("b")).unwrap().open(OpenFlags::WRITE_ONLY).unwrap();
                    file.write_all_at(0, Bytes::from_static(b"changed")).unwrap();
                }
                Ok(())
            }
        }
        let (root, mut source) = tree(&[]);
        source.walk(&mut Paths::default()).unwrap();
        source.walk(&mut Paths::default()).unwrap();
        assert_eq!(source.changed.count, 0);
        source.walk(&mut Writes(root)).unwrap();
        assert_eq!((source.changed.count, source.changed.first.as_deref()), (1, Some(&b"b"[..])));
    }
}
