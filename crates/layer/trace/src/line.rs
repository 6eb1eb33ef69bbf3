// SPDX-License-Identifier: MIT OR Apache-2.0
//! One line of a trace, for people or for programs.

use outrigger_core::paths::printable;
use outrigger_core::{Error, OpCode, Time};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::Duration;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One readable line.
    Human,
    /// One JSON object a line: `time` (seconds since 1970), `id`, `pid`, `uid`, `door`, `op`, `paths`, `args` (object),
    /// `state` (`waiting`, `done`, `failed`, `dropped`), and when it has ended `us` (microseconds taken), with
    /// `result` when done, `error` (name), `message` and perhaps `reason` when failed.
    Json,
}

/// What a request's lines have in common.
pub(crate) struct Line {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) door: &'static str,
    pub(crate) op: OpCode,
    pub(crate) paths: Vec<String>,
    /// Names and values, without those the paths tell.
    pub(crate) arguments: Vec<(&'static str, String)>,
}

/// How far a request is.
pub(crate) enum Outcome<'a> {
    Waiting,
    Done(String),
    Failed(&'a Error),
    Dropped { cancelled: bool },
}

impl Line {
    /// The line at `now`, `took` after the request came.
    pub(crate) fn print(&self, format: Format, now: Time, outcome: &Outcome<'_>, took: Duration) -> String {
        match format {
            Format::Human => self.human(now, outcome, took),
            Format::Json => Value::Object(self.json(now, outcome, took)).to_string(),
        }
    }

    fn human(&self, now: Time, outcome: &Outcome<'_>, took: Duration) -> String {
        let mut text = format!("{} #{}", clock(now), self.id);
        // Writing to a string cannot fail.
        let _ = match self.pid {
            0 => write!(text, " {}", self.op.name()),
            pid => write!(text, " pid {pid} {}", self.op.name()),
        };
        for (place, path) in self.paths.iter().enumerate() {
            text.push_str(if place == 0 { " " } else { " -> " });
            text.push_str(path);
        }
        for (name, value) in &self.arguments {
            let _ = write!(text, " {name}={value}");
        }
        let micros = took.as_micros();
        let _ = match outcome {
            Outcome::Waiting => write!(text, " ..."),
            Outcome::Done(result) => write!(text, " = {result} {micros}us"),
            Outcome::Dropped { cancelled: false } => write!(text, " = dropped {micros}us"),
            Outcome::Dropped { cancelled: true } => write!(text, " = dropped, cancelled {micros}us"),
            // The reason may quote what a server said, so it is not to be trusted on a terminal.
            Outcome::Failed(error) => {
                let shown = format!("{error:?}");
                write!(text, " = {} {micros}us", printable(shown.as_bytes()))
            }
        };
        text
    }

    fn json(&self, now: Time, outcome: &Outcome<'_>, took: Duration) -> Map<String, Value> {
        let args: Map<String, Value> =
            self.arguments.iter().map(|(name, value)| ((*name).to_owned(), argument(value))).collect();
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        put("time", json!(now.secs as f64 + f64::from(now.nanos / 1000) / 1e6));
        put("id", json!(self.id));
        put("pid", json!(self.pid));
        put("uid", json!(self.uid));
        put("door", json!(self.door));
        put("op", json!(self.op.name()));
        put("paths", json!(self.paths));
        put("args", Value::Object(args));
        let state = match outcome {
            Outcome::Waiting => "waiting",
            Outcome::Done(_) => "done",
            Outcome::Failed(_) => "failed",
            Outcome::Dropped { .. } => "dropped",
        };
        put("state", json!(state));
        if !matches!(outcome, Outcome::Waiting) {
            put("us", json!(took.as_nanos() as f64 / 1e3));
        }
        match outcome {
            Outcome::Done(result) => drop(put("result", json!(result))),
            Outcome::Failed(error) => {
                put("error", json!(format!("{:?}", error.errno)));
                put("message", json!(error.errno.message()));
                if let Some(reason) = &error.reason {
                    put("reason", json!(&**reason));
                }
            }
            Outcome::Waiting | Outcome::Dropped { .. } => {}
        }
        object
    }
}

/// Decimal numbers become numbers; everything else is text.
fn argument(value: &str) -> Value {
    value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number))
}

/// The time of day in UTC, to the microsecond.
fn clock(time: Time) -> String {
    let second = time.secs.rem_euclid(86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02}.{:06}", second % 60, time.nanos / 1000)
}
