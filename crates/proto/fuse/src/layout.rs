// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fixed-size structures with explicit byte offsets, read and written without `unsafe`.

/// Why bytes are not a message of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside a structure.
    #[error("{what} needs {need} bytes, the message has {have} left")]
    Short {
        /// The structure that was being read.
        what: &'static str,
        /// Bytes the structure takes.
        need: usize,
        /// Bytes that were left.
        have: usize,
    },
    /// The length in the header is not the length of the message.
    #[error("the header says {header} bytes, the message has {actual}")]
    Length {
        /// Length the header claims.
        header: u32,
        /// Length of the message.
        actual: usize,
    },
    /// A name has no terminating NUL byte or is empty.
    #[error("a name in the {0} request is empty or not terminated")]
    Name(&'static str),
    /// The operation code is not part of the protocol up to 7.45.
    #[error("unknown operation code {0}")]
    Opcode(u32),
    /// The notification code is not part of the protocol up to 7.45.
    #[error("unknown notification code {0}")]
    NotifyCode(i32),
    /// The extensions after the request are malformed.
    #[error("malformed request extension")]
    Extension,
    /// The kernel and this crate have no common major version or the minor one is too old.
    #[error("protocol {major}.{minor} is not supported (7.31 and later are)")]
    Version {
        /// Major version offered.
        major: u32,
        /// Minor version offered.
        minor: u32,
    },
}

/// Something with a fixed place inside a structure: an integer or another structure.
pub(crate) trait Field: Sized {
    /// Bytes it takes.
    const SIZE: usize;
    /// Reads it from the first `SIZE` bytes; the caller has checked that they are there.
    fn get(bytes: &[u8]) -> Self;
    /// Writes it to the first `SIZE` bytes; the caller has checked that they are there.
    fn put(&self, bytes: &mut [u8]);
}

macro_rules! integer_fields {
    ($($ty:ty)*) => {$(
        impl Field for $ty {
            const SIZE: usize = size_of::<$ty>();
            #[inline(always)]
            fn get(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$ty>()];
                raw.copy_from_slice(&bytes[..size_of::<$ty>()]);
                <$ty>::from_ne_bytes(raw)
            }
            #[inline(always)]
            fn put(&self, bytes: &mut [u8]) {
                bytes[..size_of::<$ty>()].copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}
integer_fields!(u16 u32 u64 i32 i64);

/// Declares a structure by name, size and the offset of each field; bytes not named are padding: ignored when
/// read, zero when written. Fields that overlap or leave the structure do not compile.
macro_rules! layout {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $($(#[$fmeta:meta])* $field:ident: $ty:ty = $at:literal,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $ty,)*
        }

        impl $name {
            /// Bytes this structure takes in a message.
            pub const SIZE: usize = $size;

            /// Reads the structure from the start of `bytes`; also gives what follows it.
            ///
            /// # Errors
            /// [`DecodeError::Short`](crate::DecodeError::Short) when `bytes` is shorter than the structure.
            #[inline]
            pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), $crate::DecodeError> {
                match bytes.split_first_chunk::<$size>() {
                    Some((head, rest)) => Ok((<Self as $crate::layout::Field>::get(head), rest)),
                    None => Err($crate::DecodeError::Short {
                        what: stringify!($name),
                        need: $size,
                        have: bytes.len(),
                    }),
                }
            }

            /// The structure as bytes of a message.
            #[inline]
            #[must_use]
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $crate::layout::Field::put(self, &mut bytes);
                bytes
            }
        }

        impl $crate::layout::Field for $name {
            const SIZE: usize = $size;
            #[inline(always)]
            fn get(bytes: &[u8]) -> Self {
                Self { $($field: <$ty as $crate::layout::Field>::get(&bytes[$at..]),)* }
            }
            #[inline(always)]
            fn put(&self, bytes: &mut [u8]) {
                $($crate::layout::Field::put(&self.$field, &mut bytes[$at..]);)*
            }
        }

        const _: () = {
            let mut end = 0;
            $(
                assert!($at >= end, "fields overlap");
                end = $at + <$ty as $crate::layout::Field>::SIZE;
            )*
            assert!(end <= $size, "a field leaves the structure");
        };
    )*};
}
pub(crate) use layout;
