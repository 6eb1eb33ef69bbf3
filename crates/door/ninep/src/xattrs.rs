// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended attributes: fids that stand for values, which are read and written like content.

use crate::answer::Asking;
use crate::fids::{File, Grip, Setting, State};
use bytes::{Bytes, BytesMut};
use outrigger_core::ops::{GetXattr, ListXattr, RemoveXattr, SetXattr, XattrFlags};
use outrigger_core::{Errno, Result, XattrName, lock};
use outrigger_proto_ninep::{Rwrite, Rxattrcreate, Rxattrwalk, Txattrcreate, Txattrwalk};
use std::mem::take;
use std::sync::{Arc, Mutex};
use tokio::sync::OwnedSemaphorePermit;

/// The longest value, and the longest list of names (xattr(7)).
const VALUE_MAX: usize = 64 << 10;

fn name(text: &[u8]) -> Result<XattrName> {
    XattrName::new(Bytes::copy_from_slice(text))
}

impl Asking {
    /// A place for a value in memory.
    fn place_for_value(&self) -> Result<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.session.values).try_acquire_owned();
        place.map_err(|_| Errno::ENFILE.because("the connection has too many fids of extended attributes"))
    }

    /// Makes a fid stand for the value of an attribute, or without a name for the names of all, each with a zero byte behind it.
    pub(crate) async fn xattrwalk(
        &self,
        call: &Txattrwalk,
        file: &File,
        new: &mut Grip,
    ) -> Result<Rxattrwalk> {
        let state = new.state_mut()?;
        let (place, node, cx) = (self.place_for_value()?, file.held().node, self.cx(&file.at.who.cred));
        let value = match call.name.is_empty() {
            true => {
                let names = file.at.export.ask(&cx, ListXattr { node }).await?;
                names.iter().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect()
            }
            false => file.at.export.ask(&cx, GetXattr { node, name: name(&call.name)? }).await?,
        };
        if value.len() > VALUE_MAX {
            return Err(Errno::E2BIG.because(format!("{} bytes of extended attributes", value.len())));
        }
        let size = value.len() as u64;
        *state = State::Value { value, _place: place };
        Ok(Rxattrwalk { size })
    }

    /// Makes a fid stand for an attribute that is set when the fid is given back.
    pub(crate) fn xattrcreate(&self, call: &Txattrcreate, grip: &mut Grip) -> Result<Rxattrcreate> {
        let file = grip.file_mut()?;
        if file.open.is_some() {
            return Err(Errno::EBADF.because("the fid is open"));
        }
        let size = usize::try_from(call.size).ok().filter(|&size| size <= VALUE_MAX);
        let size = size.ok_or_else(|| Errno::E2BIG.because(format!("a value of {} bytes", call.size)))?;
        let known = XattrFlags::CREATE | XattrFlags::REPLACE;
        let flags = XattrFlags::from_bits(call.flags).filter(|&flags| known.contains(flags));
        let flags = flags.ok_or_else(|| Errno::EINVAL.because("unknown flags of an extended attribute"))?;
        let setting = Setting {
            at: file.at.clone(),
            name: name(&call.name)?,
            flags,
            size,
            value: Mutex::default(),
            _place: self.place_for_value()?,
        };
        *grip.state_mut()? = State::Setting(setting);
        Ok(Rxattrcreate {})
    }

    /// Sets an attribute. No value with the flag to replace one removes it: so Linux' client does it, to which an empty value is
    /// another thing.
    ///
    /// # Errors
    /// `EINVAL` where less was written than was announced.
    pub(crate) async fn set_xattr(&self, setting: Setting) -> Result<()> {
        let Setting { at, name, flags, size, value, .. } = setting;
        let (node, cx, value) = (at.node.node, self.cx(&at.who.cred), take(&mut *lock(&value)));
        if value.len() != size {
            let why = format!("{size} bytes of the value were announced, and {} came", value.len());
            return Err(Errno::EINVAL.because(why));
        }
        match size == 0 && flags.contains(XattrFlags::REPLACE) {
            true => at.export.ask(&cx, RemoveXattr { node, name }).await.map(drop),
            false => {
                at.export.ask(&cx, SetXattr { node, name, value: value.freeze(), flags }).await.map(drop)
            }
        }
    }
}

impl Setting {
    /// Adds to the value, which comes from its beginning to its end.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<Rwrite> {
        let mut value: std::sync::MutexGuard<'_, BytesMut> = lock(&self.value);
        if offset != value.len() as u64 {
            return Err(Errno::EINVAL.because("a value is written from its beginning to its end"));
        }
        if data.len() > self.size - value.len() {
            return Err(Errno::ENOSPC.because("more of the value came than was announced"));
        }
        value.extend_from_slice(data);
        Ok(Rwrite { count: data.len() as u32 })
    }
}
