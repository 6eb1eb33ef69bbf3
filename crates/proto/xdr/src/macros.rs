// SPDX-License-Identifier: MIT OR Apache-2.0
//! Macros that take one statement of a type or of a program and derive the rest.

/// Structures (RFC 4506, 4.14): fields in the order of the wire. Derives [`Xdr`](crate::Xdr), and `Display` with each field by name.
///
/// ```
/// outrigger_proto_xdr::xdr_struct! {
///     /// A range of a file.
///     pub struct Range {
///         /// Its first byte.
///         pub offset: u64,
///         /// Its length.
///         pub count: u32,
///     }
/// }
/// assert_eq!(Range { offset: 4096, count: 512 }.to_string(), "{offset=4096 count=512}");
/// ```
#[macro_export]
macro_rules! xdr_struct {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $ty,)*
        }

        impl $crate::Xdr for $name {
            const MIN_LEN: usize = 0 $(+ <$ty as $crate::Xdr>::MIN_LEN)*;

            fn encoded_len(&self) -> usize {
                0 $(+ $crate::Xdr::encoded_len(&self.$field))*
            }

            fn encode(&self, out: &mut $crate::Encoder) {
                $($crate::Xdr::encode(&self.$field, out);)*
            }

            fn decode(input: &mut $crate::Decoder) -> Result<Self, $crate::DecodeError> {
                Ok($name { $($field: $crate::Xdr::decode(input)?,)* })
            }

            fn print(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut before = "{";
                $(
                    write!(f, "{}{}=", std::mem::replace(&mut before, " "), stringify!($field))?;
                    $crate::Xdr::print(&self.$field, f)?;
                )*
                write!(f, "{}", if before == "{" { "{}" } else { "}" })
            }
        }

        $crate::xdr_display!($name);
    )*};
}

/// Enumerations (RFC 4506, 4.3) and unions over them (4.15): a variant with a payload is an arm that is not void. What follows the
/// colon says in errors what a value is that there is not.
///
/// ```
/// outrigger_proto_xdr::xdr_enum! {
///     /// How to set a time.
///     pub enum SetTime: "way to set a time" {
///         /// Not.
///         Keep = 0,
///         /// To this one.
///         To(u32) = 2,
///     }
/// }
/// assert_eq!(SetTime::To(7).to_string(), "To 7");
/// ```
#[macro_export]
macro_rules! xdr_enum {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident: $what:literal {
            $($(#[$variant_meta:meta])* $variant:ident $(($ty:ty))? = $number:literal,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant $(($ty))?,)*
        }

        #[allow(clippy::redundant_pattern, reason = "`arm` stands only where there is a type")]
        impl $crate::Xdr for $name {
            const MIN_LEN: usize = 4;

            fn encoded_len(&self) -> usize {
                4 + match self {
                    $(Self::$variant $((arm @ $crate::xdr_any!($ty)))? =>
                        0 $(+ <$ty as $crate::Xdr>::encoded_len(arm))?,)*
                }
            }

            fn encode(&self, out: &mut $crate::Encoder) {
                match self {
                    $(Self::$variant $((arm @ $crate::xdr_any!($ty)))? => {
                        $crate::Xdr::encode(&{ $number as u32 }, out);
                        $(<$ty as $crate::Xdr>::encode(arm, out);)?
                    })*
                }
            }

            fn decode(input: &mut $crate::Decoder) -> Result<Self, $crate::DecodeError> {
                match <u32 as $crate::Xdr>::decode(input)? {
                    $($number => Ok(Self::$variant $((<$ty as $crate::Xdr>::decode(input)?))?),)*
                    other => Err(input.no_value($what, other)),
                }
            }

            fn print(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$variant $((arm @ $crate::xdr_any!($ty)))? => {
                        f.write_str(stringify!($variant))?;
                        $(
                            f.write_str(" ")?;
                            <$ty as $crate::Xdr>::print(arm, f)?;
                        )?
                    })*
                }
                Ok(())
            }
        }

        $crate::xdr_display!($name);
    )*};
}

/// Codes of errors, which are never 0. Codes that are not listed are kept: peers have more than their protocol.
///
/// ```
/// outrigger_proto_xdr::xdr_status! {
///     /// Why not.
///     pub struct Status {
///         /// There is no such file.
///         NOENT = 2,
///     }
/// }
/// assert_eq!(Status::NOENT.to_string(), "NOENT");
/// assert_eq!(Status::new(77).unwrap().to_string(), "77");
/// assert_eq!(Status::new(0), None);
/// ```
#[macro_export]
macro_rules! xdr_status {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$code_meta:meta])* $code:ident = $number:literal,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(std::num::NonZeroU32);

        impl $name {
            $($(#[$code_meta])* pub const $code: Self = Self(std::num::NonZeroU32::new($number).unwrap());)*

            /// The status with this code; `None` for 0, which is success.
            pub const fn new(code: u32) -> Option<Self> {
                match std::num::NonZeroU32::new(code) {
                    Some(code) => Some(Self(code)),
                    None => None,
                }
            }

            /// Its code.
            pub const fn code(self) -> u32 {
                self.0.get()
            }
        }

        impl $crate::Xdr for $name {
            const MIN_LEN: usize = 4;

            fn encoded_len(&self) -> usize {
                4
            }

            fn encode(&self, out: &mut $crate::Encoder) {
                $crate::Xdr::encode(&self.0, out);
            }

            fn decode(input: &mut $crate::Decoder) -> Result<Self, $crate::DecodeError> {
                $crate::Xdr::decode(input).map(Self)
            }

            fn print(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.code() {
                    $($number => f.write_str(stringify!($code)),)*
                    other => write!(f, "{other}"),
                }
            }
        }

        $crate::xdr_display!($name);
    )*};
}

/// A program (RFC 5531, 12): its procedures with their numbers, arguments and results, all in the module that this is used in.
///
/// Makes `PROGRAM` and `VERSION`; `Call` and `Reply`, which have a variant for each procedure; and a module `procedure` with a type
/// for each, a [`Procedure`](crate::rpc::Procedure): with it a client gets the results of what it called, and no others.
///
/// ```
/// use outrigger_proto_xdr::Messages;
///
/// mod echo {
///     outrigger_proto_xdr::xdr_program! {
///         /// Gives numbers back.
///         program 400_000, version 1;
///         /// Does nothing.
///         Null = 0: () => ();
///         /// The same number.
///         Echo = 7: u32 => u32;
///     }
/// }
/// assert_eq!(echo::Call::Echo(5).procedure(), 7);
/// assert_eq!(echo::Call::Echo(5).to_string(), "Echo 5");
/// ```
#[macro_export]
macro_rules! xdr_program {
    (
        $(#[$meta:meta])*
        program $program:literal, version $version:literal;
        $($(#[$procedure_meta:meta])* $procedure:ident = $number:literal: $args:ty => $results:ty;)*
    ) => {
        /// The number of the program.
        pub const PROGRAM: u32 = $program;
        /// The version of the program.
        pub const VERSION: u32 = $version;

        $(#[$meta])*
        ///
        /// A call: what a client asks.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Call {
            $($(#[$procedure_meta])* $procedure($args),)*
        }

        $(#[$meta])*
        ///
        /// A reply: what the server answers to a call that it accepts.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Reply {
            $($(#[$procedure_meta])* $procedure($results),)*
        }

        $crate::xdr_messages!(Call, $program, $version { $($procedure = $number: $args,)* });
        $crate::xdr_messages!(Reply, $program, $version { $($procedure = $number: $results,)* });

        /// A type for each procedure, with its arguments and results.
        pub mod procedure {
            $(
                $(#[$procedure_meta])*
                #[derive(Debug, Clone, Copy, PartialEq, Eq)]
                pub struct $procedure;
            )*
        }

        $(
            impl $crate::Procedure for procedure::$procedure {
                const PROGRAM: u32 = $program;
                const VERSION: u32 = $version;
                const NUMBER: u32 = $number;
                type Args = $args;
                type Results = $results;
            }
        )*
    };
}

/// One direction of [`xdr_program!`].
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_messages {
    ($name:ident, $program:literal, $version:literal { $($procedure:ident = $number:literal: $ty:ty,)* }) => {
        impl $crate::Messages for $name {
            const PROGRAM: u32 = $program;
            const VERSION: u32 = $version;
            const PROCEDURES: &[u32] = &[$($number),*];

            fn procedure(&self) -> u32 {
                match self {
                    $($name::$procedure(_) => $number,)*
                }
            }

            fn encoded_len(&self) -> usize {
                match self {
                    $($name::$procedure(body) => $crate::Xdr::encoded_len(body),)*
                }
            }

            fn encode(&self, out: &mut $crate::Encoder) {
                match self {
                    $($name::$procedure(body) => $crate::Xdr::encode(body, out),)*
                }
            }

            fn decode(procedure: u32, input: &mut $crate::Decoder) -> Result<Self, $crate::DecodeError> {
                match procedure {
                    $($number => <$ty as $crate::Xdr>::decode(input).map($name::$procedure),)*
                    other => Err($crate::DecodeError::Procedure(other)),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($name::$procedure(body) => {
                        f.write_str(concat!(stringify!($procedure), " "))?;
                        $crate::Xdr::print(body, f)
                    })*
                }
            }
        }
    };
}

/// `Display` by [`Xdr::print`](crate::Xdr::print).
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_display {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::Xdr::print(self, f)
            }
        }
    };
}

/// The pattern `_` for whatever type stands there: a name is bound only where a variant has a payload.
#[doc(hidden)]
#[macro_export]
macro_rules! xdr_any {
    ($ty:ty) => {
        _
    };
}
