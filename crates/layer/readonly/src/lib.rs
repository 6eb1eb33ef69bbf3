// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer `readonly`: refuses every change with `EROFS`.
//!
//! Opening for reading, advisory locks (they live beside the tree, not in it) and every query pass.
//! [`Access`](outrigger_core::ops::Access) for writing answers `EROFS` as access(2) does on a file system mounted
//! read-only. [`Abilities::read_only`] becomes true, so that a door can mount the tree read-only to begin with.
//!
//! Limits: what the driver changes by itself, as access times that reading updates, is out of reach.
#![forbid(unsafe_code)]

use outrigger_core::registry::{LayerInfo, Made};
use outrigger_core::{Abilities, Errno, Error, Layer, Place, Request};

/// `--layer readonly`.
pub const LAYER: LayerInfo =
    LayerInfo::new("readonly", "refuses every change with EROFS", |_, _| Ok(Made::layer(ReadOnly)));

/// The layer.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadOnly;

impl Layer for ReadOnly {
    fn place(&self) -> Place {
        Place::anywhere("readonly")
    }

    fn refusal(&self, request: &Request) -> Option<Error> {
        request.needs_changeable().then(|| Errno::EROFS.because("this tree was opened for reading only"))
    }

    fn abilities(&self, below: Abilities) -> Abilities {
        Abilities { read_only: true, ..below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::ops::{Access, Open, OpenFlags};
    use outrigger_core::{Answer, Class, Credentials, Cx, Node, OpCode, Reply, Service, Stack};
    use outrigger_sim::{Scripted, Sim, Step, sample};
    use std::sync::Arc;

    fn stack() -> (Arc<Scripted>, Arc<dyn Service>) {
        let driver = Scripted::new(&Sim::new(0), |_, _| Step::Now(Reply::Done(())));
        let stack = Stack::new(driver.clone()).push(ReadOnly).expect("any order is good");
        (driver, stack.service())
    }

    fn refused(service: &dyn Service, request: Request) -> bool {
        let cx = Cx::new(1, Credentials::ROOT, "test");
        match service.call(&cx, request) {
            Answer::Ready(Reply::Error(error)) => error.errno == Errno::EROFS,
            _ => false,
        }
    }

    #[test]
    fn every_change_but_a_lock_or_an_open_is_refused_and_never_reaches_the_driver() {
        let (driver, service) = stack();
        let mut random = sample::Random::with_seed(7);
        for &op in OpCode::ALL {
            if matches!(op, OpCode::Open | OpCode::Access) {
                continue;
            }
            let expected = op.class() == Class::Change && op != OpCode::SetLock;
            assert_eq!(refused(&*service, sample::request(op, &mut random)), expected, "{op:?}");
        }
        let reached = |op: &OpCode| driver.started().iter().any(|(_, request)| request.op() == *op);
        assert!(!reached(&OpCode::Write) && reached(&OpCode::Read) && reached(&OpCode::SetLock));
    }

    #[test]
    fn opening_is_refused_by_its_flags() {
        let (_, service) = stack();
        for (flags, expected) in [
            (OpenFlags::empty(), false),
            (OpenFlags::APPEND, false),
            (OpenFlags::TRUNC, true),
            (OpenFlags::WRITE_ONLY, true),
            (OpenFlags::READ_WRITE, true),
        ] {
            let open = Open { node: Node::ROOT, flags };
            assert_eq!(refused(&*service, open.into()), expected, "{flags:?}");
        }
        for (mask, expected) in [(0, false), (4, false), (6, true), (2, true)] {
            assert_eq!(refused(&*service, Access { node: Node::ROOT, mask }.into()), expected, "{mask}");
        }
    }

    #[test]
    fn the_stack_says_that_it_is_read_only() {
        let (driver, service) = stack();
        assert!(!driver.abilities().read_only && service.abilities().read_only);
    }
}
