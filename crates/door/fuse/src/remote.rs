// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session that another process serves than the one that has made the mount: what the two say to each other, as bytes of the
//! core's wire encoding ([`outrigger_core::wire::Body::Control`]).
use crate::negotiate::Negotiated;
use crate::status::{Failure, InFlight, OpCount, Status};
use bytes::Bytes;
use outrigger_core::wire::{Input, Malformed};
use outrigger_core::{Error, Node, Wire};
use outrigger_proto_fuse::Opcode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the process that has made a mount wants of the one that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Serve the connection whose descriptor comes with this, INIT being answered. Done when the session has ended.
    Serve {
        /// The `-o` list of the mount.
        options: String,
        /// What was agreed on.
        negotiated: Negotiated,
    },
    /// Tell what goes on: answered with the bytes of a [`Status`].
    Status,
    /// Print messages as they pass, as JSON, to the descriptor that comes with this, of the mount that is served, or is handed
    /// over next.
    Trace,
    /// Print none any more.
    Silence,
}

impl Wire for Order {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Order::Serve { options, negotiated } => {
                0_u8.put(out);
                put_text(options, out);
                Bytes::from(negotiated.to_bytes()).put(out);
            }
            Order::Status => 1_u8.put(out),
            Order::Trace => 2_u8.put(out),
            Order::Silence => 3_u8.put(out),
        }
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Ok(match u8::get(input)? {
            0 => Order::Serve { options: text(input)?, negotiated: negotiated(&Bytes::get(input)?)? },
            1 => Order::Status,
            2 => Order::Trace,
            3 => Order::Silence,
            _ => return Err(Malformed::new("Order")),
        })
    }
}

impl Order {
    /// Encoded.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.put(&mut out);
        out.into()
    }
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    Bytes::copy_from_slice(text.as_bytes()).put(out);
}

fn text(input: &mut Input) -> Result<String, Malformed> {
    String::from_utf8(Bytes::get(input)?.to_vec()).map_err(|_| Malformed::new("text"))
}

fn negotiated(bytes: &[u8]) -> Result<Negotiated, Malformed> {
    Negotiated::from_bytes(bytes).map_err(|_| Malformed::new("Negotiated"))
}

/// The operation with this name.
fn operation(input: &mut Input) -> Result<&'static str, Malformed> {
    let name = text(input)?;
    Ok(Opcode::ALL.iter().map(|opcode| opcode.name()).find(|known| *known == name).unwrap_or("unknown"))
}

impl Wire for Status {
    fn put(&self, out: &mut Vec<u8>) {
        self.negotiated.map(|negotiated| Bytes::from(negotiated.to_bytes())).put(out);
        self.in_flight.put(out);
        self.counts.put(out);
        self.last_failure.put(out);
        (self.readers as u64).put(out);
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        let agreed = Option::<Bytes>::get(input)?;
        Ok(Status {
            negotiated: agreed.map(|bytes| negotiated(&bytes)).transpose()?,
            in_flight: Vec::get(input)?,
            counts: Vec::get(input)?,
            last_failure: Option::get(input)?,
            readers: u64::get(input)? as usize,
        })
    }
}

impl Wire for InFlight {
    fn put(&self, out: &mut Vec<u8>) {
        self.id.put(out);
        put_text(self.op, out);
        self.node.put(out);
        self.pid.put(out);
        (self.age.as_micros() as u64).put(out);
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Ok(InFlight {
            id: u64::get(input)?,
            op: operation(input)?,
            node: Node::get(input)?,
            pid: u32::get(input)?,
            age: Duration::from_micros(u64::get(input)?),
        })
    }
}

impl Wire for OpCount {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self.op, out);
        self.requests.put(out);
        self.errors.put(out);
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        Ok(OpCount { op: operation(input)?, requests: u64::get(input)?, errors: u64::get(input)? })
    }
}

impl Wire for Failure {
    fn put(&self, out: &mut Vec<u8>) {
        put_text(self.op, out);
        self.node.put(out);
        self.error.put(out);
        (self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64).put(out);
    }

    fn get(input: &mut Input) -> Result<Self, Malformed> {
        let (op, node, error) = (operation(input)?, Node::get(input)?, Error::get(input)?);
        let at = SystemTime::checked_add(&UNIX_EPOCH, Duration::from_micros(u64::get(input)?));
        Ok(Failure { op, node, error, at: at.ok_or(Malformed::new("time"))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::negotiate::agree;
    use crate::options::Options;
    use outrigger_core::{Abilities, Errno, OpSet};
    use outrigger_proto_fuse::{InitFlags, InitIn};

    fn agreed() -> Negotiated {
        let init = InitIn { major: 7, minor: 45, max_readahead: 1 << 17, flags: InitFlags::all() };
        let abilities = Abilities::new("test", "", OpSet::all());
        agree(&init, &Options::default(), &abilities, false).unwrap().unwrap()
    }

    #[test]
    fn orders_and_statuses_arrive_as_they_were_sent() {
        let serve = Order::Serve { options: "ro,uid=7".into(), negotiated: agreed() };
        for order in [serve, Order::Status, Order::Trace, Order::Silence] {
            assert_eq!(Order::get(&mut order.to_bytes()), Ok(order));
        }
        let age = Duration::from_millis(1500);
        let status = Status {
            negotiated: Some(agreed()),
            in_flight: vec![InFlight { id: 8, op: Opcode::Read.name(), node: Node(3), pid: 42, age }],
            counts: vec![OpCount { op: Opcode::Lookup.name(), requests: 7, errors: 1 }],
            last_failure: Some(Failure {
                op: Opcode::Write.name(),
                node: Node(2),
                error: Errno::EIO.because("bad block"),
                at: UNIX_EPOCH + Duration::from_secs(1),
            }),
            readers: 2,
        };
        let mut bytes = Vec::new();
        status.put(&mut bytes);
        let again = Status::get(&mut bytes.into()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{status:?}"));
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for bytes in [&[][..], &[9], &[0, 7], &[0, 1, 0, 0, 0, 0xff]] {
            assert!(Order::get(&mut Bytes::copy_from_slice(bytes)).is_err(), "{bytes:?}");
        }
    }
}
