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
    /// `result` when done (and `bytes` that were read, written or copied), `error` (name), `message` and perhaps `reason` when failed, and `cancelled` when dropped
    /// because the program gave up.
    Json,
    /// The same, with one line for each request, when it has ended.
    Ended,
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
    /// With the length of the content, if it is about that.
    Done {
        result: String,
        bytes: Option<u64>,
    },
    Failed(&'a Error),
    Dropped {
        cancelled: bool,
    },
}

impl Line {
    /// The line at `now`, `took` after the request came.
    pub(crate) fn print(&self, format: Format, now: Time, outcome: &Outcome<'_>, took: Duration) -> String {
        let object = self.json(now, outcome, took);
        match format {
            Format::Human => text(&object),
            Format::Json | Format::Ended => Value::Object(object).to_string(),
        }
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
            Outcome::Done { .. } => "done",
            Outcome::Failed(_) => "failed",
            Outcome::Dropped { .. } => "dropped",
        };
        put("state", json!(state));
        if !matches!(outcome, Outcome::Waiting) {
            put("us", json!(took.as_nanos() as f64 / 1e3));
        }
        match outcome {
            Outcome::Done { result, bytes } => {
                put("result", json!(result));
                if let Some(bytes) = bytes {
                    put("bytes", json!(bytes));
                }
            }
            Outcome::Failed(error) => {
                put("error", json!(format!("{:?}", error.errno)));
                put("message", json!(error.errno.message()));
                if let Some(reason) = &error.reason {
                    put("reason", json!(&**reason));
                }
            }
            Outcome::Dropped { cancelled: true } => drop(put("cancelled", json!(true))),
            Outcome::Waiting | Outcome::Dropped { cancelled: false } => {}
        }
        object
    }
}

/// The line of [`Format::Human`] for an object of [`Format::Json`].
pub fn text(object: &Map<String, Value>) -> String {
    let number = |key: &str| object.get(key).and_then(Value::as_f64).unwrap_or_default();
    let word = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut text = format!("{} #{}", clock(number("time")), number("id"));
    // Writing to a string cannot fail.
    let _ = match number("pid") {
        0.0 => write!(text, " {}", word("op")),
        pid => write!(text, " pid {pid} {}", word("op")),
    };
    let paths = object.get("paths").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    for (place, path) in paths.enumerate() {
        let _ = write!(text, "{}{path}", if place == 0 { " " } else { " -> " });
    }
    for (name, value) in object.get("args").and_then(Value::as_object).into_iter().flatten() {
        let _ = match value {
            Value::String(value) => write!(text, " {name}={value}"),
            value => write!(text, " {name}={value}"),
        };
    }
    // The reason may quote what a server said, so it is not to be trusted on a terminal.
    let reason = object.get("reason").and_then(Value::as_str).map(|reason| format!(" ({reason})"));
    let outcome = match word("state") {
        "waiting" => return text + " ...",
        "done" => word("result").to_owned(),
        "failed" => printable(format!("{}{}", word("error"), reason.unwrap_or_default()).as_bytes()),
        _ if object.contains_key("cancelled") => "dropped, cancelled".to_owned(),
        state => state.to_owned(),
    };
    let _ = write!(text, " = {outcome} {}us", number("us").trunc());
    text
}

/// Decimal numbers become numbers; everything else is text, an octal mode such as 0755 too.
fn argument(value: &str) -> Value {
    let number = value.parse::<u64>().ok().filter(|number| number.to_string() == value);
    number.map_or_else(|| json!(value), |number| json!(number))
}

/// The time of day in UTC, to the microsecond, of a number of seconds since 1970.
fn clock(seconds: f64) -> String {
    let micros = (seconds * 1e6).round() as i64;
    let second = micros.div_euclid(1_000_000).rem_euclid(86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{hour:02}:{minute:02}:{:02}.{:06}", second % 60, micros.rem_euclid(1_000_000))
}
