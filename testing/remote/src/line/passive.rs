// SPDX-License-Identifier: MIT OR Apache-2.0
//! The replies of an FTP server that tell where it waits for a data connection (RFC 959, RFC 2428).

use super::Carrier;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

/// Replaces the ports in the replies by ports whose connections take as long as the control connection.
pub struct Passive {
    carrier: Arc<Carrier>,
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Passive {
    /// For one control connection.
    pub fn new(carrier: Arc<Carrier>) -> Self {
        Passive { carrier, rest: Vec::new() }
    }

    /// The whole lines so far, to be passed on.
    pub fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.rest.extend_from_slice(bytes);
        let end = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        let lines = whole.split_inclusive(|byte| *byte == b'\n');
        lines.flat_map(|line| self.replaced(line).unwrap_or_else(|| line.to_vec())).collect()
    }

    /// The reply with another port, if it has one.
    fn replaced(&self, line: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(line).ok()?;
        let (start, rest) = text.split_once('(')?;
        let (within, end) = rest.split_once(')')?;
        if text.starts_with("229 ") {
            let port = within.trim_matches('|').parse().ok()?;
            let port = self.wait_for(port).ok()?;
            return Some(format!("{start}(|||{port}|){end}").into_bytes());
        }
        let numbers: Vec<u8> = within.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let (true, [a, b, c, d, high, low]) = (text.starts_with("227 "), &numbers[..]) else { return None };
        let port = self.wait_for(u16::from_be_bytes([*high, *low])).ok()?;
        let [high, low] = port.to_be_bytes();
        Some(format!("{start}({a},{b},{c},{d},{high},{low}){end}").into_bytes())
    }

    /// A port whose first connection leads to `target`.
    fn wait_for(&self, target: u16) -> io::Result<u16> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let carrier = Arc::clone(&self.carrier);
        carrier.waiting().push(port);
        thread::spawn(move || {
            let Ok((near, _)) = listener.accept() else { return };
            carrier.waiting().retain(|waiting| *waiting != port);
            // A server that does not wait any more ends the connection at once.
            let _ = carrier.connect(near, target, Box::new(|bytes| bytes));
        });
        Ok(port)
    }
}
