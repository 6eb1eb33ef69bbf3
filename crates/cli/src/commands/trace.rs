// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger trace`: the messages of a running mount, as they pass.

use crate::context::Context;
use crate::control::{self, Answer, Ask};
use crate::messages::output_failed;
use crate::run::Run;
use crate::status::Failure;
use clap::Args;
use outrigger_core::{Error, OpCode, OpSet};
use outrigger_layer_fault::{Pattern, duration, operations};
use outrigger_layer_trace::text;
use serde_json::{Map, Value};
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `trace`.
///
/// Shows all messages, or those that every given condition selects.
#[derive(Debug, Args)]
pub struct Trace {
    /// The mount. Tracing ends with Ctrl-C; the mount goes on.
    #[arg(value_name = "DIR")]
    mount: PathBuf,
    /// Only these operations: names separated by `|`, or `query`, `change`.
    #[arg(long, value_name = "NAME|...", value_parser = only)]
    op: Option<OpSet>,
    /// Only files whose path matches; without `/` the last name; `*` stops at `/`, `**` does not.
    #[arg(long, value_name = "GLOB", value_parser = pattern)]
    path: Option<Pattern>,
    /// Only what fails.
    #[arg(long)]
    errors: bool,
    /// Only what takes at least this long, as in 250us, 10ms or 1.5s.
    #[arg(long, value_name = "TIME", value_parser = time)]
    slower: Option<Duration>,
}

fn only(text: &str) -> Result<OpSet, String> {
    operations(text, text).map_err(|error| error.to_string())
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::read(text).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    duration(text, text).map_err(|error| error.to_string())
}

impl Run for Trace {
    const NAME: &'static str = "trace";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let (peer, _) = control::find(&self.mount)?;
        let cannot = |why: String| Failure::new(format!("cannot trace '{}': {why}", self.mount.display()));
        let failed = |error: io::Error| cannot(Error::from(error).to_string());
        let stream = peer.connect(&Ask::Trace).map_err(failed)?;
        let mut messages = BufReader::new(stream);
        match control::first_answer(&mut messages).map_err(failed)? {
            Answer::Done => {}
            Answer::Failed(why) => return Err(cannot(why)),
            _ => return Err(cannot("an unexpected answer".into())),
        }
        // No deadline from here on: an idle mount has no messages.
        messages.get_ref().set_read_timeout(None).map_err(failed)?;
        let mut out = io::stdout().lock();
        let mut line = String::new();
        while messages.read_line(&mut line).map_err(failed)? > 0 {
            if let Some(shown) = self.shown(&line, context.json) {
                writeln!(out, "{shown}").and_then(|()| out.flush()).map_err(output_failed)?;
            }
            line.clear();
        }
        Ok(())
    }
}

impl Trace {
    /// The line as it is printed, if it is selected. One that a process left unfinished when it died is not.
    fn shown(&self, line: &str, json: bool) -> Option<String> {
        let object: Map<String, Value> = serde_json::from_str(line).ok()?;
        self.selects(&object).then(|| if json { line.trim_end().to_owned() } else { text(&object) })
    }

    fn selects(&self, message: &Map<String, Value>) -> bool {
        let op = message.get("op").and_then(Value::as_str).and_then(OpCode::from_name);
        let micros = message.get("us").and_then(Value::as_f64);
        let mut paths =
            message.get("paths").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        self.op.is_none_or(|only| op.is_some_and(|op| only.has(op)))
            && self.path.as_ref().is_none_or(|pattern| paths.any(|path| pattern.matches(path.as_bytes())))
            && (!self.errors || message.contains_key("error"))
            && self
                .slower
                .is_none_or(|least| micros.is_some_and(|micros| micros >= least.as_secs_f64() * 1e6))
    }
}
