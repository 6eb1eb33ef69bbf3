// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger trace`: the messages of a running mount, as they pass.

use super::{Run, output_failed};
use crate::context::Context;
use crate::control::{self, Answer, Ask};
use crate::status::Failure;
use clap::Args;
use outrigger_core::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;

/// Arguments of `trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// The mount. Tracing ends with Ctrl-C; the mount goes on.
    #[arg(value_name = "DIR")]
    mount: PathBuf,
}

impl Run for Trace {
    const NAME: &'static str = "trace";

    fn run(self, context: &Context) -> Result<(), Failure> {
        let (peer, _) = control::find(&self.mount)?;
        let cannot = |why: String| Failure::new(format!("cannot trace '{}': {why}", self.mount.display()));
        let failed = |error: io::Error| cannot(Error::from(error).to_string());
        let stream = peer.connect(&Ask::Trace { json: context.json }).map_err(failed)?;
        let mut messages = BufReader::new(stream);
        match control::first_answer(&mut messages).map_err(failed)? {
            Answer::Done => {}
            Answer::Failed(why) => return Err(cannot(why)),
            Answer::Status(_) | Answer::Unwritten(_) => return Err(cannot("an unexpected answer".into())),
        }
        // From here on silence means that nothing happens.
        messages.get_ref().set_read_timeout(None).map_err(failed)?;
        // Not `io::copy`: between a socket and a pipe it splices, and lines would wait there for more to come.
        let mut out = io::stdout().lock();
        loop {
            let piece = messages.fill_buf().map_err(failed)?;
            if piece.is_empty() {
                return Ok(());
            }
            out.write_all(piece).and_then(|()| out.flush()).map_err(output_failed)?;
            let len = piece.len();
            messages.consume(len);
        }
    }
}
