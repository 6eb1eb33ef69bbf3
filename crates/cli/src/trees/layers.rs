// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers a user can put on a tree with `--layer NAME[=SPEC]`.

use super::drivers::{LAYERS, LayerInfo};
use crate::status::Failure;
use outrigger_core::{Error, Keep, Service, Stack};
use outrigger_host::users_caches;
use outrigger_layer_cache::{Cache, Control, Disk, Options as CacheOptions};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_fault::{Fault, FaultControl};
use outrigger_layer_readonly::ReadOnly;
use outrigger_layer_simulate::Simulate;
use outrigger_layer_trace::{Format, Trace};
use outrigger_runtime::Threads;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

/// A tree with the layers the user asked for.
pub struct Layered {
    /// The top of the stack.
    pub service: Arc<dyn Service>,
    /// The names of the layers, from the driver up.
    pub names: Vec<&'static str>,
    /// What remembers things, among the layers.
    pub caches: Vec<Control>,
    /// What changes the rules of the layer `fault`, if it is among them.
    pub fault: Option<FaultControl>,
}

/// Whom a tree is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// A command, which ends with its last request.
    Command,
    /// A mount, whose requests are those of other programs.
    Mount,
}

/// A cache that a tree has anyway.
pub struct Cached {
    /// What the user chose.
    pub options: CacheOptions,
    /// Where it keeps content on disk.
    pub disk: Option<Disk>,
}

/// The place on disk for content of the tree that is told from all others as `tree`.
///
/// # Errors
/// A sentence that says why there is none.
pub fn disk(options: &CacheOptions, tree: &str, runtime: &Arc<Threads>) -> Result<Disk, Failure> {
    let Some(caches) = options.disk_dir.clone().or_else(users_caches) else {
        return Err(Failure::serious(
            "disk_cache: neither XDG_CACHE_HOME nor HOME is set; cache_dir=DIR says where to keep it",
        ));
    };
    Disk::open(&caches, tree, options.disk, runtime.clone())
        .map_err(|error| Failure::serious(format!("disk_cache: {}", reason(&error))))
}

fn reason(error: &Error) -> String {
    error.reason.as_ref().map_or_else(|| error.to_string(), |reason| format!("{reason}: {}", error.errno))
}

/// The name of a layer that `spec` asks for.
pub(super) fn name(spec: &str) -> &str {
    spec.split_once('=').map_or(spec, |(name, _)| name)
}

/// Puts the layers named in `specs` on `service`, the first nearest to the driver; and the cache `cached` as near to it as it
/// can be.
///
/// # Errors
/// A sentence naming the layer that does not exist, cannot stand there or has a bad specification.
pub fn stack(
    service: Arc<dyn Service>,
    specs: &[String],
    user: User,
    runtime: &Arc<Threads>,
    keep: Option<&Arc<dyn Keep>>,
    cached: Option<Cached>,
) -> Result<Layered, Failure> {
    let mut pile = Pile { stack: Stack::new(service), caches: Vec::new(), fault: None, user, runtime, keep };
    let simulates = specs.iter().rposition(|spec| name(spec) == "simulate");
    let (below, above) = specs.split_at(simulates.map_or(0, |last| last + 1));
    for spec in below {
        pile = pile.push(spec)?;
    }
    if let Some(Cached { options, disk }) = cached {
        pile = pile.push_cache(&options, disk, "cache")?;
    }
    for spec in above {
        pile = pile.push(spec)?;
    }
    let Pile { stack, caches, fault, .. } = pile;
    Ok(Layered { names: stack.names(), service: stack.service(), caches, fault })
}

/// A stack to which layers are added.
struct Pile<'a> {
    stack: Stack,
    caches: Vec<Control>,
    fault: Option<FaultControl>,
    user: User,
    runtime: &'a Arc<Threads>,
    keep: Option<&'a Arc<dyn Keep>>,
}

impl Pile<'_> {
    fn push(mut self, spec: &str) -> Result<Self, Failure> {
        let (name, argument) = spec.split_once('=').unwrap_or((spec, ""));
        if matches!(name, "readonly" | "simulate") && spec.contains('=') {
            return Err(Failure::serious(format!("--layer {spec}: {name} takes no argument")));
        }
        let pushed = match name {
            "readonly" => self.stack.push(ReadOnly),
            "simulate" => self.stack.push(Simulate::new()),
            "cache" => {
                let options = cache_options(argument)?;
                if options.disk > 0 {
                    return Err(Failure::serious(format!(
                        "--layer {spec}: disk_cache is an option of mounts of hosts (-o disk_cache=SIZE)"
                    )));
                }
                return self.push_cache(&options, None, spec);
            }
            "deadline" => self.stack.push(Deadline::new(seconds(argument)?, self.runtime.clone())),
            "fault" => {
                let fault = self.fault(argument, spec)?;
                self.stack.push(fault)
            }
            "trace" => self.stack.push(tracer(argument, self.user, self.runtime, Box::new(io::stderr()))?),
            _ => {
                let known: Vec<String> = LAYERS.iter().map(LayerInfo::spelt).collect();
                let known = known.join(", ");
                return Err(Failure::serious(format!("--layer {name}: no such layer; there are {known}")));
            }
        };
        self.stack = pushed.map_err(|error| Failure::serious(format!("--layer {spec}: {error}")))?;
        Ok(self)
    }

    /// The layer with these rules. There is one at most: what is kept of rules is that of one.
    fn fault(&mut self, rules: &str, spec: &str) -> Result<Fault, Failure> {
        let wrong = |error: &dyn fmt::Display| Failure::serious(format!("--layer {spec}: {error}"));
        if self.fault.is_some() {
            return Err(wrong(&"there is one already, which takes several rules, separated by ;"));
        }
        let mut fault = Fault::parse(rules, self.runtime.clone()).map_err(|error| wrong(&error))?;
        if let Some(keep) = self.keep {
            fault = fault.kept_in(&**keep)?;
        }
        self.fault = Some(fault.control());
        Ok(fault)
    }

    fn push_cache(mut self, options: &CacheOptions, disk: Option<Disk>, spec: &str) -> Result<Self, Failure> {
        let cache = match (self.keep, disk) {
            // What survives is that of one.
            (Some(_), _) if !self.caches.is_empty() && options.delays() => {
                return Err(Failure::serious(format!(
                    "--layer {spec}: a second cache of a mount cannot delay writes: what is not written yet would die with \
                     the process that serves"
                )));
            }
            (Some(keep), disk) => Cache::with_keep(options, self.runtime.clone(), disk, &**keep)?,
            (None, Some(disk)) => Cache::with_disk(options, self.runtime.clone(), disk),
            (None, None) => Cache::new(options, self.runtime.clone()),
        };
        self.caches.push(cache.control());
        let pushed = self.stack.push(cache);
        self.stack = pushed.map_err(|error| Failure::serious(format!("--layer {spec}: {error}")))?;
        Ok(self)
    }
}

/// Reads `20` or `cache=20,cache:/build=always`.
fn cache_options(list: &str) -> Result<CacheOptions, Failure> {
    let mut options = CacheOptions::default();
    for item in list.split(',').filter(|item| !item.is_empty()) {
        let (key, value) = item.split_once('=').unwrap_or(("cache", item));
        options.set(key, value).map_err(|error| {
            Failure::serious(format!(
                "--layer cache={list}: {}",
                error.reason.as_deref().unwrap_or("bad option")
            ))
        })?;
    }
    Ok(options)
}

/// A layer that prints messages on `out`.
fn tracer(
    format: &str,
    user: User,
    runtime: &Arc<Threads>,
    out: Box<dyn Write + Send>,
) -> Result<Trace, Failure> {
    let format = match format {
        "" => Format::Human,
        "json" => Format::Json,
        _ => return Err(Failure::serious(format!("--layer trace={format}: only json is known"))),
    };
    let (trace, control) = Trace::new(runtime.clone());
    match user {
        // A stopped terminal or a full pipe must not block the programs that use the mount.
        User::Mount => control.start(out, format),
        User::Command => control.start_waiting(out, format),
    }
    Ok(trace)
}

fn seconds(argument: &str) -> Result<Duration, Failure> {
    argument.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(
        || Failure::serious(format!("--layer deadline={argument}: a number of seconds is needed")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_client::{Client, Settings};
    use outrigger_core::Inline;
    use outrigger_driver_null::Null;
    use std::sync::mpsc::{self, Receiver};
    use std::thread;

    #[test]
    fn the_cache_of_remote_trees_stands_on_the_driver_and_what_completes_it() {
        let runtime = Arc::new(Threads::new());
        for (specs, expected) in [
            (&[][..], &["cache"][..]),
            (&["readonly"], &["cache", "readonly"]),
            (&["simulate"], &["simulate", "cache"]),
            (&["readonly", "simulate", "deadline=5"], &["readonly", "simulate", "cache", "deadline"]),
        ] {
            let specs: Vec<String> = specs.iter().map(|&spec| spec.to_owned()).collect();
            let driver = Arc::new(Inline::new(Null::new(1), runtime.clone()));
            let cached = Cached { options: CacheOptions::default(), disk: None };
            let layered = stack(driver, &specs, User::Mount, &runtime, None, Some(cached));
            let Ok(layered) = layered else { panic!("{specs:?} is refused") };
            assert_eq!((layered.names, layered.caches.len()), (expected.to_vec(), 1));
        }
    }

    /// A terminal that was stopped: nothing can be written until the other end is dropped.
    struct Stopped(Receiver<()>);

    impl Write for Stopped {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // The other end sends nothing.
            let _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_terminal_that_was_stopped_does_not_stop_a_mount_that_prints_on_it() {
        let runtime = Arc::new(Threads::new());
        let (go_on, stopped) = mpsc::channel();
        let Ok(trace) = tracer("", User::Mount, &runtime, Box::new(Stopped(stopped))) else {
            panic!("refused")
        };
        let driver = Arc::new(Inline::new(Null::new(1), runtime.clone()));
        let service = Stack::new(driver).push(trace).unwrap().service();
        let (answered, answers) = mpsc::channel();
        let client = Client::new(service, runtime, Settings::default());
        thread::spawn(move || {
            (0..3).for_each(|_| drop(client.root()));
            answered.send(())
        });
        let answer = answers.recv_timeout(Duration::from_secs(30));
        drop(go_on);
        assert_eq!(answer, Ok(()), "its requests wait for the terminal");
    }
}
