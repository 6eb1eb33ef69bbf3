// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rpcbind program, versions 3 and 4: which address a program has, also over IPv6 (RFC 1833, 2).
//!
//! What clients use: registering, asking and listing. It has the number of [`crate::portmap`] and its port.

use crate::{List, Text, xdr_program, xdr_struct};
use std::net::{IpAddr, SocketAddr};

/// The lowest version that has these procedures in the same form.
pub const VERSION_3: u32 = 3;

/// The longest string, in bytes; the protocol has no limit.
pub const TEXT_MAX: usize = 1024;

xdr_program! {
    /// Rpcbind version 4, of which version 3 is a part (RFC 1833, 2).
    program 100_000, version 4;
    /// Does nothing.
    Null = 0: () => ();
    /// Registers a program. Answer: whether it was new.
    Set = 1: Binding => bool;
    /// Takes a program out. Answer: whether it was there.
    Unset = 2: Binding => bool;
    /// The address of a program, in another version if need be. Answer: empty where there is none.
    GetAddr = 3: Binding => Text<TEXT_MAX>;
    /// All programs.
    Dump = 4: () => List<Binding>;
    /// The address of a program in this version; not in version 3.
    GetVersAddr = 9: Binding => Text<TEXT_MAX>;
}

xdr_struct! {
    /// A program and its address (`rpcb`, RFC 1833, 2.1).
    pub struct Binding {
        /// The number of the program.
        pub program: u32,
        /// Its version.
        pub version: u32,
        /// The kind of transport: `tcp`, `udp`, `tcp6`, `udp6` (RFC 5665, 5.1).
        pub netid: Text<TEXT_MAX>,
        /// Its address ([`universal_address`]); in a question that of the client, or empty.
        pub address: Text<TEXT_MAX>,
        /// Who registered it.
        pub owner: Text<TEXT_MAX>,
    }
}

/// An address in the form of rpcbind: that of the host, and the two bytes of the port (RFC 5665, 5.2.3.3 and 5.2.3.4).
pub fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// The address in the form of rpcbind; `None` when it is none.
pub fn socket_address(universal: &[u8]) -> Option<SocketAddr> {
    let (rest, low) = std::str::from_utf8(universal).ok()?.rsplit_once('.')?;
    let (host, high) = rest.rsplit_once('.')?;
    let host: IpAddr = host.parse().ok()?;
    Some(SocketAddr::new(host, u16::from_be_bytes([decimal(high)?, decimal(low)?])))
}

/// A byte in decimal, without a sign.
fn decimal(text: &str) -> Option<u8> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}
