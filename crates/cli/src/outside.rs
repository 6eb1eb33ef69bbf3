// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver and the layer of docs/GUIDE.md in the program: one line in each list is all that they take outside of this file.

use outrigger_core::ops::{GetAttr, Lookup, Read, ReadDir};
use outrigger_core::registry::{DriverInfo, Follows, Lasts, LayerInfo, Made, Scheme};
use outrigger_core::reply::{Attrs, Data, Dirent, Dirents, Entry, Ttl};
use outrigger_core::{
    Abilities, Answer, Attr, BlockingDriver, Cx, Errno, FileKind, Generation, Identity, Inline, Layer, Name,
    Node, OpCode, OpSet, Place, Prompt, Request, Result, Service, Traverse, Visit,
};
use std::sync::Arc;

pub const DRIVER: DriverInfo = DriverInfo {
    name: "notes",
    opens: "notes that are compiled into the program",
    location: "notes:[PATH]",
    schemes: &[Scheme {
        name: "notes",
        follows: Follows::Path,
        lasts: Lasts::Stored,
        open: |_, _, site| {
            let notes = Notes(vec![(Name::try_from("hello")?, b"Hello, world!\n".to_vec())]);
            Ok(Arc::new(Inline::new(notes, Arc::clone(site.runtime))))
        },
    }],
    ..DriverInfo::NONE
};

pub const LAYER: LayerInfo = LayerInfo {
    name: "shout",
    argument: "",
    does: "asks for every name in lower case",
    options: &[],
    make: |_argument, _site| Ok(Made::layer(Shout)),
};

/// Files that never change. Node 1 is the root, node 2 the first file.
pub struct Notes(Vec<(Name, Vec<u8>)>);

impl Notes {
    fn content(&self, node: Node) -> Result<&[u8]> {
        let file = usize::try_from(node.0).ok().and_then(|number| self.0.get(number.checked_sub(2)?));
        Ok(&file.ok_or(Errno::ESTALE)?.1)
    }

    fn attr(&self, node: Node) -> Result<Attr> {
        let ino = node.0;
        if node == Node::ROOT {
            return Ok(Attr { ino, mode: FileKind::Directory.bits() | 0o555, nlink: 2, ..Attr::default() });
        }
        let size = self.content(node)?.len() as u64;
        Ok(Attr { ino, size, mode: FileKind::Regular.bits() | 0o444, nlink: 1, ..Attr::default() })
    }
}

impl BlockingDriver for Notes {
    fn abilities(&self) -> Abilities {
        let ops = OpSet::of(&[OpCode::Lookup, OpCode::GetAttr, OpCode::ReadDir, OpCode::Read]);
        let identity = Identity::Persistent;
        let plain = Abilities::new("notes", "notes:", ops);
        Abilities { identity, read_only: true, stateless_files: true, stateless_dirs: true, ..plain }
    }

    fn lookup(&self, _: &Cx, Lookup { dir, name }: Lookup) -> Result<Entry> {
        let place =
            self.0.iter().position(|(own, _)| dir == Node::ROOT && *own == name).ok_or(Errno::ENOENT)?;
        let node = Node(place as u64 + 2);
        let (attr, ttl) = (self.attr(node)?, Ttl::FOREVER);
        Ok(Entry { node, generation: Generation(0), attr, entry_ttl: ttl, attr_ttl: ttl })
    }

    fn getattr(&self, _: &Cx, op: GetAttr) -> Result<Attrs> {
        Ok(Attrs { attr: self.attr(op.node)?, ttl: Ttl::FOREVER })
    }

    fn readdir(&self, _: &Cx, op: ReadDir) -> Result<Dirents> {
        if op.node != Node::ROOT {
            return Err(Errno::ENOTDIR.into());
        }
        let rest = self.0.iter().enumerate().skip(op.cookie as usize);
        let dirent = |(place, (name, _)): (usize, &(Name, Vec<u8>))| {
            let (ino, cookie, kind) = (place as u64 + 2, place as u64 + 1, Some(FileKind::Regular));
            Dirent { ino, cookie, kind, name: name.clone() }
        };
        Ok(Dirents { entries: rest.map(dirent).collect(), eof: true })
    }

    fn read(&self, _: &Cx, op: Read) -> Result<Data> {
        let rest = self.content(op.node)?.get(op.offset as usize..).unwrap_or_default();
        Ok(rest[..rest.len().min(op.len as usize)].to_vec().into())
    }
}

impl Prompt for Notes {}

/// Asks for every name in lower case.
struct Shout;

impl Visit for Shout {
    fn name(&mut self, name: &mut Name) {
        *name = Name::new(name.to_ascii_lowercase()).unwrap_or_else(|_| name.clone());
    }
}

impl Layer for Shout {
    fn place(&self) -> Place {
        Place::anywhere("shout")
    }
    fn call<'a>(&'a self, next: &'a Arc<dyn Service>, cx: &'a Cx, mut request: Request) -> Answer<'a> {
        request.traverse(&mut Shout);
        next.call(cx, request)
    }
}
