// SPDX-License-Identifier: MIT OR Apache-2.0
//! Extended attributes. The protocol sets one by announcing its size, writing its value, and giving the fid back; servers differ in what
//! it means that the value is empty.

use crate::files::{read_piece, write_piece};
use crate::inner::Inner;
use bytes::Bytes;
use outrigger_core::ops::{SetXattr, XattrFlags};
use outrigger_core::{Cx, Errno, Error, Node, Result, XattrName};
use outrigger_proto_ninep::{Tclunk, Text, Txattrcreate, Txattrwalk};
use outrigger_toolkit_remote::known::Change;

/// The longest extended attribute, and the longest list of their names (xattr(7)).
const XATTR_MAX: u64 = 64 << 10;
/// What most servers do with an empty value.
const EMPTY: &str = "the server takes an empty extended attribute for none";

impl Inner {
    /// The value of an extended attribute; without a name the names of all, each with a zero byte behind it.
    pub(crate) async fn xattr(&self, cx: &Cx, node: Node, name: &[u8]) -> Result<Bytes> {
        let (uid, name) = (self.uid(cx), &Text::new(name.to_vec()).ok_or(Errno::ERANGE)?);
        self.with(uid, |session| async move {
            let fid = self.reach(&session, uid, node).await?;
            let value = session.fid().await?;
            let call = Txattrwalk { fid: fid.number, newfid: value.number, name: name.clone() };
            let size = value.made(session.ask(call)).await?.size;
            if size > XATTR_MAX {
                let why = format!("the server has {size} bytes of extended attributes, which Linux does not");
                return Err(Errno::E2BIG.because(why).into());
            }
            let value = read_piece(&session, &value, 0, size as usize).await?;
            match value.len() as u64 == size {
                true => Ok(value),
                false => {
                    let why =
                        format!("the server says {size} bytes of an attribute, and sends {}", value.len());
                    Err(Errno::EIO.because(why).into())
                }
            }
        })
        .await
    }

    pub(crate) async fn set_xattr(&self, cx: &Cx, op: SetXattr) -> Result<()> {
        match op.value.is_empty() {
            true => self.set_empty_xattr(cx, (op.node, &op.name), op.flags).await,
            false => self.put_xattr(cx, op.node, (&op.name, op.flags.bits()), op.value).await,
        }
    }

    /// Sets an empty value. Most servers take that for the removal of the attribute, and say nothing of it: so it is looked at afterwards, and
    /// gets the value back that it had.
    async fn set_empty_xattr(
        &self,
        cx: &Cx,
        (node, name): (Node, &XattrName),
        flags: XattrFlags,
    ) -> Result<()> {
        let former = match self.present_xattr(cx, node, name).await? {
            Some(_) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EEXIST.into()),
            None if flags.contains(XattrFlags::REPLACE) => return Err(Errno::ENODATA.into()),
            // To ask for what is there could only remove it.
            Some(value) if value.is_empty() => return Ok(()),
            former => former,
        };
        // With the flag to replace, no value means to remove it, also where an empty one can be.
        match self.put_xattr(cx, node, (name, 0), Bytes::new()).await {
            Err(error) if error.errno != Errno::ENODATA => return Err(error),
            _ if self.present_xattr(cx, node, name).await?.is_some() => return Ok(()),
            _ => {}
        }
        // Not EOPNOTSUPP, by which programs that copy mean that a tree has no attributes at all, and go on without a word.
        let lost = |then: &str| Errno::EINVAL.because(format!("{name} cannot be empty: {EMPTY}{then}"));
        let Some(value) = former else { return Err(lost("")) };
        self.put_xattr(cx, node, (name, 0), value).await.map_err(|error| {
            lost(&format!("; it has not got back the value that it had: {}", error.why()))
        })?;
        Err(lost(""))
    }

    /// The value of an extended attribute, if there is one.
    async fn present_xattr(&self, cx: &Cx, node: Node, name: &[u8]) -> Result<Option<Bytes>> {
        match self.xattr(cx, node, name).await {
            Ok(value) => Ok(Some(value)),
            Err(Error { errno: Errno::ENODATA, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets an extended attribute; without a value removes it.
    pub(crate) async fn put_xattr(
        &self,
        cx: &Cx,
        node: Node,
        (name, flags): (&[u8], u32),
        value: Bytes,
    ) -> Result<()> {
        let (uid, value, name) = (self.uid(cx), &value, &Text::new(name.to_vec()).ok_or(Errno::ERANGE)?);
        let changing = self.begin(Some(node), Change::Attrs);
        let put = self.with(uid, |session| async move {
            let fid = self.reach(&session, uid, node).await?;
            let size = value.len() as u64;
            session.ask(Txattrcreate { fid: fid.number, name: name.clone(), size, flags }).await?;
            write_piece(&session, &fid, 0, value.clone()).await?;
            // That is when it is set. Whatever is answered, the fid is gone.
            fid.forget();
            session.change(Tclunk { fid: fid.number }).await.map(drop)
        });
        changing.settled(put.await)
    }
}
