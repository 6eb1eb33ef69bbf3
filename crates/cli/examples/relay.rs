// SPDX-License-Identifier: MIT OR Apache-2.0
//! An NFS server that passes every request on to another NFS server and prints it: a client, a layer and a door.
//!
//! ```text
//! cargo run -p outrigger --example relay -- SERVER:PORT /EXPORT 127.0.0.1:3049
//! ```
//!
//! Users are those of the clients: the other server decides what they may. Every client at a port of this machine is believed.

use outrigger_core::registry::Site;
use outrigger_core::{Error, Runtime, Serve, Service, Stack};
use outrigger_door_nfs::{self as door, Callers, Server, Squash, Tree};
use outrigger_driver_nfs::{self as driver, Nfs};
use outrigger_layer_closesim::{self as closesim, CloseSim};
use outrigger_layer_simulate::Simulate;
use outrigger_layer_trace::Trace;
use outrigger_runtime::Threads;
use std::error::Error as StdError;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;

/// A relay that listens.
pub struct Relay {
    /// Where.
    pub address: SocketAddr,
    runtime: Arc<Threads>,
    server: Server,
}

impl Relay {
    /// Relays the export `path` of the server at `host` and `port`, and prints requests on `trace`.
    ///
    /// # Errors
    /// Why the server is not reached, or `listen` cannot be listened at.
    pub fn new(
        (host, port): (&str, u16),
        path: &str,
        listen: SocketAddr,
        trace: Box<dyn Write + Send>,
    ) -> Result<Self, Box<dyn StdError>> {
        let threads = Arc::new(Threads::new());
        let runtime = Arc::clone(&threads) as Arc<dyn Runtime>;
        // The client.
        let options = driver::Options { port: Some(port), ..driver::Options::default() };
        let client =
            Nfs::connect(host.to_owned(), Some(path.as_bytes()), options, Arc::clone(&runtime), None);
        let client = threads.handle().block_on(client).map_err(|error: Error| error.to_string())?;
        // The layers: one supplies what the client does not do by itself, one opens for a protocol without opens, one prints.
        let opens = CloseSim::new(closesim::Options::default(), Arc::clone(&runtime));
        let site = Site { serves_others: true, ..Site::new(&runtime) };
        let trace = Trace::printing("", &site, trace).map_err(|error| error.to_string())?;
        let stack = Stack::new(Arc::new(Serve(client)) as Arc<dyn Service>).push(Simulate::new())?;
        let service = stack.push(opens)?.push(trace)?.service();
        // The door.
        let (name, identity) = ("/".to_owned(), format!("{host}:{port}{path}").into_bytes());
        let tree = Tree { name, identity, service, is_lasting: true, callers: None, paths: None };
        let callers = Callers { any_port: true, squash: Squash::None, ..Callers::default() };
        let key = door::new_key().map_err(|error| error.to_string())?;
        let bound = Server::bind(listen, vec![tree], door::Options { callers, key, held: 1 << 15 });
        let server = threads.handle().block_on(bound).map_err(|error| error.to_string())?;
        Ok(Relay { address: server.address()?, runtime: threads, server })
    }

    /// Relays until the process ends.
    pub fn run(&self) {
        self.runtime.handle().block_on(self.server.run());
    }
}

/// Relays what the command line says.
#[allow(dead_code, reason = "the test of this example has a main function of its own")]
fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, path, listen] = &arguments[..] else {
        return Err("usage: relay SERVER:PORT /EXPORT ADDRESS:PORT".into());
    };
    let (host, port) = server.rsplit_once(':').ok_or("SERVER:PORT is needed")?;
    let relay = Relay::new((host, port.parse()?), path, listen.parse()?, Box::new(std::io::stdout()))?;
    eprintln!("{} relays {server}{path}", relay.address);
    relay.run();
    Ok(())
}
