// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images in files, as the registry knows them. The control of an opened one is [`crate::Opened`].

use crate::{Medium, Options, in_use_by_host, is_disk};
use outrigger_core::registry::{Content, Files, Given, Lasts, Opened, Recognised, Site, Warning};
use outrigger_core::{Errno, Result};
use std::io;
use std::sync::Arc;

/// What the registry knows of disk images in files.
pub(crate) const FILES: Files = Files {
    what: "a disk image with a known file system or partition table",
    chosen_by: &["type", "offset"],
    needs_path: true,
    recognise,
    lasts: Lasts::Process,
    open,
};

fn recognise(content: &Arc<dyn Content>) -> Result<Recognised> {
    Ok(if is_disk(&Disk(&**content))? { Recognised::Yes } else { Recognised::No })
}

fn open(content: Arc<dyn Content>, given: &dyn Given, site: &Site<'_>) -> Result<Opened> {
    let path = content.path().ok_or_else(|| Errno::EINVAL.because("a disk image in another tree"))?;
    let mut options = Options { hold: site.hold, ..Options::default() };
    given.apply(&mut |key, value| options.set(key, value))?;
    options.read_only |= !content.may_write();
    let mut warnings = Vec::new();
    if options.read_only
        && let Some(who) = in_use_by_host(path)
        && !who.contains("mounted read-only")
    {
        let text = format!("may change while it is read, because {who}");
        warnings.push(Warning { text, name: None, is_loss: false });
    }
    let opened = crate::open(path, &options)?;
    if opened.is_bare() {
        let text = "no partition has a known file system; `outrigger inspect` shows what they are".to_owned();
        warnings.push(Warning { text, name: None, is_loss: false });
    }
    Ok(Opened { service: opened.service(), control: Some(Box::new(opened)), warnings })
}

/// A file as a disk.
struct Disk<'a>(&'a dyn Content);

impl Medium for Disk<'_> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.0.read_at(buffer, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => (buffer, offset) = (&mut buffer[count..], offset + count as u64),
            }
        }
        Ok(())
    }
}
