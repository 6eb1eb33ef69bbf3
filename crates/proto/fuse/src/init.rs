// SPDX-License-Identifier: MIT OR Apache-2.0
//! INIT: versions and abilities.
use crate::flags::InitFlags;
use crate::layout::{DecodeError, layout};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Newest minor version this crate speaks.
pub const MINOR: u32 = 45;
/// Oldest minor version this crate speaks (Linux 5.4).
pub const MIN_MINOR: u32 = 31;

layout! {
    /// The part of INIT that every version sends.
    pub struct InitHead: 16 {
        /// Major version of the kernel.
        major: u32 = 0,
        /// Minor version of the kernel.
        minor: u32 = 4,
        /// Largest read-ahead in bytes.
        max_readahead: u32 = 8,
        /// Low half of the abilities.
        flags: u32 = 12,
    }

    /// Reply to INIT as bytes; [`InitOut`] is the typed form.
    pub struct InitOutRaw: 64 {
        /// Major version.
        major: u32 = 0,
        /// Minor version.
        minor: u32 = 4,
        /// Largest read-ahead in bytes.
        max_readahead: u32 = 8,
        /// Low half of the abilities.
        flags: u32 = 12,
        /// Background requests.
        max_background: u16 = 16,
        /// Congestion threshold.
        congestion_threshold: u16 = 18,
        /// Largest write in bytes.
        max_write: u32 = 20,
        /// Granularity of times.
        time_gran: u32 = 24,
        /// Pages in a request.
        max_pages: u16 = 28,
        /// DAX alignment.
        map_alignment: u16 = 30,
        /// High half of the abilities.
        flags2: u32 = 32,
        /// Stacking depth.
        max_stack_depth: u32 = 36,
        /// Request timeout in seconds.
        request_timeout: u16 = 40,
    }
}

/// Bytes the kernel sends after [`InitHead`] since 7.36: the high half of the abilities and room to grow.
const INIT_IN_TAIL: usize = 48;

/// What the kernel says in INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitIn {
    /// Major version of the kernel.
    pub major: u32,
    /// Minor version of the kernel.
    pub minor: u32,
    /// Largest read-ahead in bytes.
    pub max_readahead: u32,
    /// Abilities the kernel offers.
    pub flags: InitFlags,
}

impl InitIn {
    /// Reads the body of an INIT request of any minor version.
    ///
    /// # Errors
    /// [`DecodeError::Short`] when the body is incomplete.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let (head, rest) = InitHead::decode(body)?;
        let mut bits = u64::from(head.flags);
        if bits & InitFlags::INIT_EXT.bits() != 0
            && let Some(raw) = rest.first_chunk::<4>()
        {
            bits |= u64::from(u32::from_ne_bytes(*raw)) << 32;
        }
        Ok(Self {
            major: head.major,
            minor: head.minor,
            max_readahead: head.max_readahead,
            flags: InitFlags::from_bits_retain(bits),
        })
    }

    /// The body of an INIT request, as a kernel of this minor version writes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = InitHead {
            major: self.major,
            minor: self.minor,
            max_readahead: self.max_readahead,
            flags: self.flags.bits() as u32,
        };
        let mut body = head.encode().to_vec();
        if self.flags.contains(InitFlags::INIT_EXT) {
            body.extend_from_slice(&((self.flags.bits() >> 32) as u32).to_ne_bytes());
            body.resize(InitHead::SIZE + INIT_IN_TAIL, 0);
        }
        body
    }
}

/// What the server says in its reply to INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InitOut {
    /// Minor version to use.
    pub minor: u32,
    /// Largest read-ahead in bytes.
    pub max_readahead: u32,
    /// Abilities in force.
    pub flags: InitFlags,
    /// Background requests (read-ahead, write-back, asynchronous direct I/O) the kernel keeps in flight.
    pub max_background: u16,
    /// Background requests from which the device counts as congested.
    pub congestion_threshold: u16,
    /// Largest write in bytes.
    pub max_write: u32,
    /// Granularity of times in nanoseconds.
    pub time_gran: u32,
    /// Largest request in pages; needs [`InitFlags::MAX_PAGES`].
    pub max_pages: u16,
    /// Deepest stack of file systems below passthrough files; needs [`InitFlags::PASSTHROUGH`].
    pub max_stack_depth: u32,
    /// Seconds after which the kernel aborts the connection over one request; zero is never. Needs
    /// [`InitFlags::REQUEST_TIMEOUT`].
    pub request_timeout: u16,
}

impl InitOut {
    /// The reply as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; InitOutRaw::SIZE] {
        InitOutRaw {
            major: MAJOR,
            minor: self.minor,
            max_readahead: self.max_readahead,
            flags: self.flags.bits() as u32,
            max_background: self.max_background,
            congestion_threshold: self.congestion_threshold,
            max_write: self.max_write,
            time_gran: self.time_gran,
            max_pages: self.max_pages,
            map_alignment: 0,
            flags2: (self.flags.bits() >> 32) as u32,
            max_stack_depth: self.max_stack_depth,
            request_timeout: self.request_timeout,
        }
        .encode()
    }

    /// Reads a reply to INIT; a server that speaks an old version sends fewer bytes, the rest counts as zero.
    ///
    /// # Errors
    /// [`DecodeError::Short`] for fewer than 24 bytes, [`DecodeError::Version`] for another major version.
    pub fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        const OLDEST: usize = 24;
        if body.len() < OLDEST {
            return Err(DecodeError::Short { what: "InitOut", need: OLDEST, have: body.len() });
        }
        let mut padded = [0; InitOutRaw::SIZE];
        let have = body.len().min(padded.len());
        padded[..have].copy_from_slice(&body[..have]);
        let (raw, _) = InitOutRaw::decode(&padded)?;
        if raw.major != MAJOR {
            return Err(DecodeError::Version { major: raw.major, minor: raw.minor });
        }
        let mut bits = u64::from(raw.flags);
        if bits & InitFlags::INIT_EXT.bits() != 0 {
            bits |= u64::from(raw.flags2) << 32;
        }
        Ok(Self {
            minor: raw.minor,
            max_readahead: raw.max_readahead,
            flags: InitFlags::from_bits_retain(bits),
            max_background: raw.max_background,
            congestion_threshold: raw.congestion_threshold,
            max_write: raw.max_write,
            time_gran: raw.time_gran,
            max_pages: raw.max_pages,
            max_stack_depth: raw.max_stack_depth,
            request_timeout: raw.request_timeout,
        })
    }
}

/// The part of the negotiated state that decoding depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// Minor version in use.
    pub minor: u32,
    /// Abilities in force.
    pub flags: InitFlags,
}

impl Default for Dialect {
    /// The newest version without any optional ability.
    fn default() -> Self {
        Self { minor: MINOR, flags: InitFlags::empty() }
    }
}

/// What to do with an INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Negotiation {
    /// Speak this minor version with these abilities.
    Use(Dialect),
    /// The kernel's major version is newer: answer with [`MAJOR`] and expect another INIT.
    Retry,
}

/// Chooses the common version and the abilities both sides have.
///
/// # Errors
/// [`DecodeError::Version`] when the kernel is older than 7.31.
pub fn negotiate(init: &InitIn, wanted: InitFlags) -> Result<Negotiation, DecodeError> {
    if init.major > MAJOR {
        return Ok(Negotiation::Retry);
    }
    if init.major < MAJOR || init.minor < MIN_MINOR {
        return Err(DecodeError::Version { major: init.major, minor: init.minor });
    }
    let flags = init.flags & (wanted | InitFlags::INIT_EXT);
    Ok(Negotiation::Use(Dialect { minor: init.minor.min(MINOR), flags }))
}
