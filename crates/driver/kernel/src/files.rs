// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images in files, as the registry knows them.

use crate::served::Served;
use crate::{Kernel, Opened as Image, Options, in_use_by_host, is_disk};
use bytes::Bytes;
use outrigger_core::registry::{
    Content, Control, Direct, Files, Given, Lasts, Opened, Recognised, Site, Warning,
};
use outrigger_core::supervise::History;
use outrigger_core::{Answer, Result};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What the registry knows of disk images in files.
pub(crate) const FILES: Files = Files {
    what: "a disk image with a known file system or partition table",
    chosen_by: &["type", "offset"],
    reads_all: true,
    recognise,
    lasts: Lasts::Process,
    open,
};

fn recognise(content: &Arc<dyn Content>) -> Result<Recognised> {
    Ok(if is_disk(&*Served::new(Arc::clone(content)))? { Recognised::Yes } else { Recognised::No })
}

fn open(content: Arc<dyn Content>, given: &dyn Given, site: &Site<'_>) -> Result<Opened> {
    let mut options = Options { hold: site.hold, ..Options::default() };
    given.apply(&mut |key, value| options.set(key, value))?;
    options.read_only |= !content.may_write();
    let mut warnings = Vec::new();
    if options.read_only
        && let Some(who) = content.path().and_then(in_use_by_host)
        && !who.contains("mounted read-only")
    {
        let text = format!("may change while it is read, because {who}");
        warnings.push(Warning { text, name: None, is_loss: false });
    }
    let opened = match content.path() {
        Some(path) => crate::open(path, &options)?,
        None => crate::open_served(content, &options)?,
    };
    if opened.is_bare() {
        let text = "no partition has a known file system; `outrigger inspect` shows what they are".to_owned();
        warnings.push(Warning { text, name: None, is_loss: false });
    }
    Ok(Opened { service: opened.service(), control: Some(Arc::new(opened)), warnings })
}

impl Control for Image {
    fn close(&self) -> Result<()> {
        self.unmount()
            .map_err(|error| error.errno.because(format!("the image was not unmounted cleanly: {error}")))
    }

    fn reserve(&self) -> Result<()> {
        Image::reserve(self)
    }

    fn release(&self) {
        Image::release(self);
    }

    fn history(&self) -> Option<History> {
        Image::history(self)
    }

    fn direct(&self) -> Option<Arc<dyn Direct>> {
        match self {
            Image::One(kernel) => Some(kernel.clone()),
            Image::Several(_) => None,
        }
    }

    fn why_no_upgrade(&self) -> Option<&'static str> {
        Some(
            "a mount of a disk image cannot be upgraded, because its state is in the kernel code that runs; unmount it and mount it \
             again",
        )
    }
}

impl Direct for Kernel {
    fn order(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Answer<'_> {
        Kernel::order(self, order, file)
    }

    fn hand_over(&self, order: Bytes, file: Option<BorrowedFd<'_>>) -> Answer<'_> {
        Kernel::hand_over(self, order, file)
    }

    fn before_hand_over(&self, order: Option<(Bytes, OwnedFd)>) {
        Kernel::before_hand_over(self, order);
    }
}
