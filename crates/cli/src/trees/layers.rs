// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layers a user can put on a tree with `--layer NAME[=ARGUMENT]`.

use crate::status::Failure;
use outrigger_core::registry::{self, LayerInfo, Made, Site, Usage};
use outrigger_core::{Errno, Error, Keep, Runtime, Service, Stack};
use outrigger_host::users_caches;
use outrigger_layer_cache::{Cache, Control, Disk, Metadata, OnDisk, Options as CacheOptions};
use outrigger_layer_contain::{Contain, Options as LinkOptions};
use outrigger_layer_fault::FaultControl;
use outrigger_runtime::Threads;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

/// Every layer, in the order of the manual.
pub const LAYERS: &[LayerInfo] = &[
    outrigger_layer_cache::LAYER,
    outrigger_layer_readonly::LAYER,
    outrigger_layer_union::LAYER,
    outrigger_layer_permissions::LAYER,
    outrigger_layer_simulate::LAYER,
    outrigger_layer_fixup::LAYER,
    outrigger_layer_closesim::LAYER,
    outrigger_layer_crypt::LAYER,
    outrigger_layer_deadline::LAYER,
    outrigger_layer_fault::LAYER,
    outrigger_layer_trace::LAYER,
    #[cfg(test)]
    crate::outside::LAYER,
];

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

/// The layers that the tree of a host has anyway.
#[derive(Default)]
pub struct HostLayers {
    /// The cache, unless the user has put one among the layers.
    pub cached: Option<Cached>,
    /// What becomes of symbolic links.
    pub links: LinkOptions,
}

/// A cache that a tree has anyway.
pub struct Cached {
    /// What the user chose.
    pub options: CacheOptions,
    /// Where it keeps things on disk.
    pub disk: OnDisk,
}

/// What the cache of the tree whose unique name is `tree` keeps on disk; `seen` tells how its user sees it, as far as that is not in the
/// name: metadata are not the same for everybody.
///
/// # Errors
/// A sentence that says why nothing can be kept.
pub fn on_disk(
    options: &CacheOptions,
    (tree, seen): (&str, &str),
    runtime: &Arc<Threads>,
) -> Result<OnDisk, Failure> {
    let because = |option: &str, error: &Error| Failure::serious(format!("{option}: {}", reason(error)));
    let open = |caches: &Path| {
        let content = (options.disk > 0).then(|| {
            let disk = Disk::open(caches, tree, options.disk, runtime.clone());
            disk.map_err(|error| because("disk_cache", &error))
        });
        let metadata = (options.disk_metadata > 0).then(|| {
            let (name, most) = (format!("{tree} {seen}"), (options.disk_metadata, options.entries));
            let metadata = Metadata::open(caches, &name, most, runtime.clone());
            metadata.map_err(|error| because("disk_metadata", &error))
        });
        Ok(OnDisk { content: content.transpose()?, metadata: metadata.transpose()? })
    };
    match options.disk_dir.clone().or_else(users_caches) {
        Some(caches) => open(&caches),
        None => Err(Failure::serious(
            "disk_cache and disk_metadata: neither XDG_CACHE_HOME nor HOME is set; cache_dir=DIR says where to keep it",
        )),
    }
}

fn reason(error: &Error) -> String {
    error.reason.as_ref().map_or_else(|| error.to_string(), |reason| format!("{reason}: {}", error.errno))
}

/// The trees that layers open beside the one they stand on.
pub(super) fn uppers(specs: &[String]) -> impl Iterator<Item = &str> {
    let union = outrigger_layer_union::LAYER.name;
    let arguments =
        specs.iter().filter_map(|spec| spec.split_once('=')).filter(move |(name, _)| *name == union);
    arguments.filter_map(|(_, list)| Some(outrigger_layer_union::Options::parse(list).ok()?.1))
}

/// The name of a layer that `spec` asks for.
pub(super) fn name(spec: &str) -> &str {
    spec.split_once('=').map_or(spec, |(name, _)| name)
}

/// Puts the layers named in `specs` on `service`, the tree that users call `shown`, the first nearest to the driver; and those of
/// `host` as near to it as they can be. A layer finds the runtime and other trees at its `site`.
///
/// # Errors
/// A sentence naming the layer that does not exist, cannot stand there or has a bad specification.
pub fn stack(
    (service, shown): (Arc<dyn Service>, &str),
    specs: &[String],
    (user, usage): (User, Usage),
    site: (&Arc<Threads>, Option<&dyn registry::Trees>),
    keep: Option<&Arc<dyn Keep>>,
    host: HostLayers,
) -> Result<Layered, Failure> {
    let (runtime, trees) = site;
    let runtime = Arc::clone(runtime) as Arc<dyn Runtime>;
    let mut builder = StackBuilder {
        stack: Stack::new(service),
        controls: Vec::new(),
        shown,
        user,
        usage,
        runtime,
        trees,
        keep,
    };
    let (below, above) = specs.split_at(nearest(specs));
    for spec in below {
        builder = builder.push_named(spec)?;
    }
    if let Some(Cached { options, disk }) = host.cached {
        builder = builder.push("cache", "cache", |site| Cache::at(&options, disk, site))?;
    }
    if host.links.change_targets() {
        builder = builder.contain(host.links)?;
    }
    for spec in above {
        builder = builder.push_named(spec)?;
        if host.links.contain && name(spec) == outrigger_layer_union::LAYER.name {
            // What is copied to the upper tree has the targets of the lower one, and can be moved there.
            builder = builder.contain(host.links)?;
        }
    }
    let StackBuilder { stack, controls, .. } = builder;
    let fault = controls.iter().find_map(|control| control.downcast_ref::<FaultControl>()).cloned();
    let caches = controls.iter().filter_map(|control| control.downcast_ref::<Control>()).cloned().collect();
    Ok(Layered { names: stack.names(), service: stack.service(), caches, fault })
}

/// How many of the layers stand below those of a host: what completes the tree, and a cache of it, which keeps targets of symbolic links
/// as the server has them. From layers with names or trees of their own on, targets are no longer those of the server.
fn nearest(specs: &[String]) -> usize {
    let of_server = specs.iter().take_while(|spec| !["crypt", "union"].contains(&name(spec))).count();
    let completes = specs.iter().rposition(|spec| name(spec) == "simulate");
    let caches = specs[..of_server].iter().rposition(|spec| name(spec) == "cache");
    completes.max(caches).map_or(0, |last| last + 1)
}

/// A stack while layers are added to it.
struct StackBuilder<'a> {
    stack: Stack,
    controls: Vec<Box<dyn Any>>,
    shown: &'a str,
    user: User,
    usage: Usage,
    runtime: Arc<dyn Runtime>,
    trees: Option<&'a dyn registry::Trees>,
    keep: Option<&'a Arc<dyn Keep>>,
}

impl StackBuilder<'_> {
    /// Adds the layer that contains symbolic links.
    fn contain(self, links: LinkOptions) -> Result<Self, Failure> {
        let contain = Contain::new(links, &self.stack.top().abilities());
        self.push("contain", "contain", |_| Ok(Made::layer(contain)))
    }

    /// Adds the layer that `spec` asks for.
    fn push_named(self, spec: &str) -> Result<Self, Failure> {
        let name = name(spec);
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
            let known: Vec<String> = LAYERS.iter().map(LayerInfo::spelt).collect();
            let known = known.join(", ");
            return Err(Failure::serious(format!("--layer {name}: no such layer; there are {known}")));
        };
        self.push(name, spec, |site| layer.made(spec, site))
    }

    /// Adds the layer called `name` that `make` makes; `spec` is how the user asks for it.
    fn push(
        mut self,
        name: &str,
        spec: &str,
        make: impl FnOnce(&Site<'_>) -> Result<Made, Error>,
    ) -> Result<Self, Failure> {
        let same_below = self.stack.names().iter().filter(|below| **below == name).count();
        let (serves_others, usage) = (self.user == User::Mount, self.usage);
        let (keep, trees, below) = (self.keep, self.trees, Some(self.stack.top()));
        let site = Site { keep, trees, serves_others, usage, same_below, below, ..Site::new(&self.runtime) };
        let made = make(&site).map_err(|error| {
            let why = error.reason.as_deref().map_or_else(|| error.to_string(), str::to_owned);
            let failure = Failure::serious(format!("'{}': --layer {spec}: {why}", self.shown));
            // The tree was found: `ENOENT` is of a file that the layer needs, and the exit status is not that of a missing tree.
            if error.errno == Errno::ENOENT { failure } else { failure.with(error.errno) }
        })?;
        self.controls.extend(made.control);
        let pushed = self.stack.push(made.layer);
        self.stack = pushed.map_err(|error| Failure::serious(format!("--layer {spec}: {error}")))?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_client::{Client, Settings};
    use outrigger_core::Inline;
    use outrigger_driver_null::Null;
    use outrigger_layer_trace::Trace;
    use std::io::{self, Write};
    use std::sync::mpsc::{self, Receiver};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn the_layers_of_hosts_stand_on_the_driver_and_what_completes_it() {
        let runtime = Arc::new(Threads::new());
        for (specs, expected) in [
            (&[][..], &["cache", "contain"][..]),
            (&["readonly"], &["cache", "contain", "readonly"]),
            (&["simulate"], &["simulate", "cache", "contain"]),
            (
                &["readonly", "simulate", "deadline=5"],
                &["readonly", "simulate", "cache", "contain", "deadline"],
            ),
            (&["readonly", "cache", "deadline=5"], &["readonly", "cache", "cache", "contain", "deadline"]),
        ] {
            let specs: Vec<String> = specs.iter().map(|&spec| spec.to_owned()).collect();
            let driver = Arc::new(Inline::new(Null::new(1), runtime.clone()));
            let cached = Some(Cached { options: CacheOptions::default(), disk: OnDisk::default() });
            let layered = stack(
                (driver, "null"),
                &specs,
                (User::Mount, Usage::Changes),
                (&runtime, None),
                None,
                HostLayers { cached, links: LinkOptions { contain: true, ..LinkOptions::default() } },
            );
            let Ok(layered) = layered else { panic!("{specs:?} is refused") };
            assert_eq!(layered.names, expected);
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
        let shared = runtime.clone() as Arc<dyn Runtime>;
        let site = Site { serves_others: true, ..Site::new(&shared) };
        let trace = Trace::printing("", &site, Box::new(Stopped(stopped))).unwrap();
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
