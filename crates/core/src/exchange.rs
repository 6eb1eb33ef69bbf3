// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content that moves between an open file of a tree and a file of the host without passing through the caller.

use crate::Wire;
use crate::cx::Credentials;
use crate::node::{Handle, Node};
use crate::wire::{Input, Malformed};
use bytes::Bytes;

/// What [`Service::exchange`](crate::Service::exchange) is to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Wire)]
pub struct Exchange {
    /// The file of the tree.
    pub node: Node,
    /// Open for what is to be done with it.
    pub handle: Handle,
    /// Where in it, in bytes.
    pub offset: u64,
    /// Where in the file of the host, in bytes.
    pub host_offset: u64,
    /// At most so many bytes.
    pub len: u64,
    /// From the host into the tree; else out of the tree.
    pub inward: bool,
}

/// What an order for an exchange begins with; orders of other kinds begin with other bytes.
const KIND: u8 = 0x78;

impl Exchange {
    /// As an [order](crate::wire::Body::Control) of `cred`, with which the descriptor of the host's file goes. Done when the
    /// content has moved: the answer is a [`Reply::Count`](crate::Reply::Count).
    pub fn to_order(self, cred: Credentials) -> Bytes {
        let mut out = Vec::new();
        KIND.put(&mut out);
        cred.put(&mut out);
        self.put(&mut out);
        out.into()
    }

    /// Reads what [`Exchange::to_order`] wrote.
    ///
    /// # Errors
    /// [`Malformed`] when it is another order, or none.
    pub fn from_order(mut order: Input) -> Result<(Credentials, Self), Malformed> {
        let input = &mut order;
        if u8::get(input)? != KIND {
            return Err(Malformed::new("Exchange"));
        }
        let cred = Credentials::get(input)?;
        let exchange = Exchange::get(input)?;
        if input.is_empty() { Ok((cred, exchange)) } else { Err(Malformed::new("Exchange")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_says_what_was_asked() {
        let cred = Credentials::new(1, 2);
        let (node, handle) = (Node(3), Handle(4));
        let exchange = Exchange { node, handle, offset: 5, host_offset: 6, len: 7, inward: true };
        let order = exchange.to_order(cred.clone());
        assert_eq!(Exchange::from_order(order.clone()), Ok((cred, exchange)));
        for length in 0..order.len() {
            assert!(Exchange::from_order(order.slice(..length)).is_err());
        }
        assert!(Exchange::from_order([&order[..], &[0]].concat().into()).is_err());
        assert!(Exchange::from_order(Bytes::from_static(&[1])).is_err(), "another order");
    }
}
