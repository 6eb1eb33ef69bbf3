// SPDX-License-Identifier: MIT OR Apache-2.0
//! The portmap program, version 2: which port a program has (RFC 1833, 3).
//!
//! `PMAPPROC_CALLIT`, which forwards a call to another program, is not there: it hides who calls.

use crate::{List, xdr_program, xdr_struct};

/// The port of portmap and rpcbind (RFC 1833, 3.1).
pub const PORT: u16 = 111;

/// TCP in [`Mapping::protocol`] (`IPPROTO_TCP`).
pub const TCP: u32 = 6;

/// UDP in [`Mapping::protocol`] (`IPPROTO_UDP`).
pub const UDP: u32 = 17;

xdr_program! {
    /// Portmap version 2 (RFC 1833, 3).
    program 100_000, version 2;
    /// Does nothing.
    Null = 0: () => ();
    /// Registers a program. Answer: whether it was new.
    Set = 1: Mapping => bool;
    /// Takes a program and version out; protocol and port are ignored. Answer: whether it was there.
    Unset = 2: Mapping => bool;
    /// The port of a program; the port asked with is ignored. Answer: 0 where there is none.
    GetPort = 3: Mapping => u32;
    /// All programs.
    Dump = 4: () => List<Mapping>;
}

xdr_struct! {
    /// A program and its port (`mapping`, RFC 1833, 3.1).
    #[derive(Copy)]
    pub struct Mapping {
        /// The number of the program.
        pub program: u32,
        /// Its version.
        pub version: u32,
        /// [`TCP`] or [`UDP`].
        pub protocol: u32,
        /// Its port.
        pub port: u32,
    }
}
