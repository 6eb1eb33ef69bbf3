// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers a user can put on a tree with `--layer NAME[=SPEC]`.

use crate::status::Failure;
use outrigger_core::{Keep, Service, Stack};
use outrigger_layer_cache::{Cache, Control, Options as CacheOptions};
use outrigger_layer_deadline::Deadline;
use outrigger_layer_fault::Fault;
use outrigger_layer_readonly::ReadOnly;
use outrigger_layer_simulate::Simulate;
use outrigger_runtime::Threads;
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
}

/// Puts the layers named in `specs` on `service`, the first nearest to the driver.
///
/// # Errors
/// A sentence naming the layer that does not exist, cannot stand there or has a bad specification.
pub fn stack(
    service: Arc<dyn Service>,
    specs: &[String],
    runtime: &Arc<Threads>,
    keep: Option<&Arc<dyn Keep>>,
    cached: Option<CacheOptions>,
) -> Result<Layered, Failure> {
    let (mut stack, mut caches) = (Stack::new(service), Vec::new());
    let own = |spec: &String| spec.split_once('=').map_or(&**spec, |(name, _)| name) == "cache";
    if let Some(options) = cached.filter(|_| !specs.iter().any(own)) {
        let cache = Cache::new(&options, runtime.clone());
        caches.push(cache.control());
        stack = stack.push(cache).map_err(|error| Failure::serious(error.to_string()))?;
    }
    for spec in specs {
        let (name, argument) = spec.split_once('=').unwrap_or((spec, ""));
        if matches!(name, "readonly" | "simulate") && spec.contains('=') {
            return Err(Failure::serious(format!("--layer {spec}: {name} takes no argument")));
        }
        let pushed = match name {
            "readonly" => stack.push(ReadOnly),
            "simulate" => stack.push(Simulate::new()),
            "cache" => {
                let options = cache_options(argument)?;
                if keep.is_some() && options.delays() {
                    return Err(Failure::serious(format!(
                        "--layer {spec}: writes are delayed only with --no-guard: \
                         what is not written yet would die with the process that serves"
                    )));
                }
                let cache = Cache::new(&options, runtime.clone());
                caches.push(cache.control());
                stack.push(cache)
            }
            "deadline" => stack.push(Deadline::new(seconds(argument)?, runtime.clone())),
            "fault" => {
                let fault = Fault::parse(argument, runtime.clone());
                let fault = fault.map_err(|error| Failure::serious(format!("--layer {spec}: {error}")))?;
                stack.push(match keep {
                    Some(keep) => fault.kept_in(&**keep)?,
                    None => fault,
                })
            }
            _ => {
                let known = "cache=OPTIONS, readonly, simulate, deadline=SECONDS, fault=RULES";
                return Err(Failure::serious(format!("--layer {name}: no such layer; there are {known}")));
            }
        };
        stack = pushed.map_err(|error| Failure::serious(format!("--layer {spec}: {error}")))?;
    }
    Ok(Layered { names: stack.names(), service: stack.service(), caches })
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

fn seconds(argument: &str) -> Result<Duration, Failure> {
    argument.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).ok_or_else(
        || Failure::serious(format!("--layer deadline={argument}: a number of seconds is needed")),
    )
}
