// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver `9p` on our own door.

use crate::support::{Running, callers, checked, mem, serve};
use outrigger_conformance::{Direct, Flags, Subject};
use outrigger_core::ops::XattrFlags;
use outrigger_core::{Errno, Runtime, Serve};
use outrigger_driver_ninep::{NineP, Options};
use outrigger_runtime::Threads;
use std::path::Path;
use std::sync::Arc;

fn connect(server: &Running) -> Direct {
    let runtime = Arc::new(Threads::new());
    let connected = NineP::connect(
        server.address.to_string(),
        Options::default(),
        Arc::clone(&runtime) as Arc<dyn Runtime>,
        None,
    );
    Direct::new(Arc::new(Serve(runtime.handle().block_on(connected).unwrap())))
}

#[test]
fn an_empty_attribute_is_kept() {
    let server = serve(vec![("", checked(mem()))], &callers());
    let (near, f) = (connect(&server), Path::new("f"));
    let file = near.open(f, Flags::NEW, 0o644).unwrap();
    near.close(file).unwrap();
    let (any, create, replace) = (XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE);
    assert_eq!(near.set_xattr(f, "user.new", b"", replace), Err(Errno::ENODATA));
    assert_eq!(near.set_xattr(f, "user.new", b"", create), Ok(()));
    assert_eq!(near.set_xattr(f, "user.new", b"", create), Err(Errno::EEXIST));
    for flags in [any, replace] {
        near.set_xattr(f, "user.old", b"value", any).unwrap();
        assert_eq!(near.set_xattr(f, "user.old", b"", flags), Ok(()));
        assert_eq!(near.get_xattr(f, "user.old"), Ok(vec![]));
    }
    assert_eq!(near.list_xattrs(f).unwrap().len(), 2);
    near.remove_xattr(f, "user.old").unwrap();
    assert_eq!(near.get_xattr(f, "user.old"), Err(Errno::ENODATA));
}
