// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening and closing an automounted tree, on a thread of its own: both may take as long as a host does.

use super::map::Leads;
use crate::messages::{Report, warn};
use crate::mounted::Locator;
use crate::status::Failure;
use crate::tree_options::TreeOptions;
use crate::trees::{self, Tree, Trees};
use futures_channel::oneshot;
use outrigger_core::ops::Locate;
use outrigger_core::{
    BoxFuture, Cancel, Credentials, Cx, DriverClass, Errno, Node, Result, Runtime, Service, Stack,
    StackError, ask, lock,
};
use outrigger_host::MountEntry;
use outrigger_layer_cache::Control as CacheControl;
use outrigger_layer_demux::{Apart, Ending, Hosted, OpenTree};
use outrigger_layer_readonly::ReadOnly;
use outrigger_layer_simulate::Simulate;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// How long writing to disk what was read may take when a tree is closed.
const KEEP_DEADLINE: Duration = Duration::from_secs(2);
/// The id of requests for the paths of files.
const LOCATE_ID: u64 = 1 << 62;
/// The most different messages about trees that cannot be opened.
const MESSAGES_MAX: usize = 64;

/// What is said of `--opt` where one tree does not have the option.
const FOR_ALL: &str = " (--opt is for all trees; options of one tree belong in its line of the file mounts, or in ~/.ssh/config)";

/// How trees are opened.
pub(super) struct Opening {
    pub(super) options: TreeOptions,
    /// The command that shows them.
    pub(super) command: &'static str,
    /// Whether the command says on standard error why a tree cannot be opened, of which programs get a number only, and what is lost, also
    /// where only close(2) failed.
    pub(super) says: bool,
    /// What it has said; a tree is tried again and again.
    pub(super) said: Mutex<HashSet<String>>,
    /// Trees that are not opened.
    pub(super) refused: Refused,
}

/// Why a tree with this LOCATION and these options is not to be opened.
pub(super) type Refused = HashMap<(OsString, String), String>;

impl Opening {
    pub(super) fn new(
        options: TreeOptions,
        (command, says): (&'static str, bool),
        refused: Refused,
    ) -> Arc<Self> {
        Arc::new(Opening { options, command, says, said: Mutex::default(), refused })
    }

    /// Opens a tree.
    fn open(&self, trees: &Trees, leads: &Leads) -> std::result::Result<Tree, Failure> {
        let Leads { location, options } = leads.clone();
        match self.refused.get(&(location, options)) {
            Some(why) => Err(Failure::serious(why.as_str()).with(Errno::EINVAL)),
            None => open(trees, leads).map_err(|failure| self.advised(failure)),
        }
    }

    /// The same failure, with what to do where an option for all trees is none of this one.
    fn advised(&self, failure: Failure) -> Failure {
        let is_for_all = self.says && !self.options.opt.is_empty();
        match failure.message.contains(" has no option ") && is_for_all {
            true => failure.and(FOR_ALL),
            false => failure,
        }
    }

    /// Says why a tree cannot be opened, once.
    fn say(&self, failure: &Failure) {
        let mut said = lock(&self.said);
        if self.says && said.len() < MESSAGES_MAX && said.insert(failure.to_string()) {
            warn(format_args!("outrigger {}: {failure}", self.command));
        }
    }
}

/// A tree that a name leads to.
pub(super) struct Opener {
    leads: Leads,
    /// Most trees of a large map are never asked for these.
    shown: OnceLock<String>,
    identity: OnceLock<String>,
    opening: Arc<Opening>,
}

impl Opener {
    pub(super) fn new(leads: Leads, opening: Arc<Opening>) -> Self {
        Opener { leads, shown: OnceLock::new(), identity: OnceLock::new(), opening }
    }
}

impl OpenTree for Opener {
    fn location(&self) -> &str {
        self.shown.get_or_init(|| self.leads.shown())
    }

    fn identity(&self) -> &str {
        self.identity.get_or_init(|| self.leads.identity())
    }

    fn open(&self) -> BoxFuture<'static, Result<Hosted>> {
        let (sender, receiver) = oneshot::channel();
        let (leads, opening) = (self.leads.clone(), Arc::clone(&self.opening));
        let thread = thread::Builder::new().name("tree".into());
        let started = thread.spawn(move || host(&leads, &opening, sender));
        Box::pin(async move {
            started?;
            receiver.await.unwrap_or_else(|_| Err(Errno::EIO.because("the thread that opens the tree ended")))
        })
    }
}

/// What a tree is opened with.
pub(super) fn trees(options: TreeOptions, command: &'static str) -> Trees {
    Trees::new(false, options, Cancel::default(), Rc::new(Report::new(command)))
}

/// Whether the driver of a tree takes its options, as far as that shows before it is opened.
///
/// # Errors
/// What the driver says about one of them.
pub(super) fn check(trees: &Trees, leads: &Leads) -> std::result::Result<(), Failure> {
    trees::check_options(trees, &leads.location, &[of_driver(&leads.options)])
}

/// Options without those that are of the tree as a whole.
fn of_driver(options: &str) -> String {
    options.split(',').filter(|item| !is_access(item)).collect::<Vec<_>>().join(",")
}

/// Opens a tree, and stays with it until it is closed.
fn host(leads: &Leads, opening: &Opening, opened: oneshot::Sender<Result<Hosted>>) {
    let trees = trees(opening.options.clone(), opening.command);
    let tree = match opening.open(&trees, leads) {
        Ok(tree) => tree,
        Err(failure) => {
            opening.say(&failure);
            // Requests in the tree are answered with this error.
            let _ = opened.send(Err(failure.into()));
            return;
        }
    };
    let (orders, order) = mpsc::channel();
    let hosted = stack(&trees, &tree, leads).map_err(|error| Errno::EINVAL.because(error.to_string())).map(
        |service| {
            let (caches, tree) = (tree.caches.clone(), Arc::clone(&tree.service));
            let ending = Arc::new(Thread { caches, tree, orders: Mutex::new(orders) });
            Hosted { service, is_lasting: trees::is_lasting(&leads.location), ending }
        },
    );
    if opened.send(hosted).is_err() {
        return;
    }
    // The other end is dropped with the tree, and never before it is closed.
    if let Ok(closed) = order.recv() {
        let _: std::result::Result<(), _> = oneshot::Sender::send(closed, close(&trees, &tree, opening.says));
    }
}

/// Whether a tree is shown without changes: `ro` is an option of mounts, and of one tree where many are mounted at once.
fn is_read_only(options: &str) -> bool {
    options.split(',').rfind(|item| is_access(item)) == Some("ro")
}

fn is_access(item: &str) -> bool {
    matches!(item, "ro" | "rw")
}

fn open(trees: &Trees, leads: &Leads) -> std::result::Result<Tree, Failure> {
    let mut options = vec![of_driver(&leads.options)];
    if trees::guards_itself(trees, &leads.location, &options) {
        options.push("guard".to_owned());
    }
    trees.are_read_only(is_read_only(&leads.options));
    trees.are_one_of_many();
    trees::mountable(trees, &leads.location, &options, None)
}

/// What a kernel needs of every tree alike. Calls that may block a thread have threads of their own.
fn stack(trees: &Trees, tree: &Tree, leads: &Leads) -> std::result::Result<Arc<dyn Service>, StackError> {
    let stack = Stack::new(Arc::clone(&tree.service)).push(Simulate::new())?;
    let service =
        if is_read_only(&leads.options) { stack.push(ReadOnly)?.service() } else { stack.service() };
    let may_block = match service.abilities().class {
        DriverClass::Network | DriverClass::Memory => false,
        DriverClass::Block => true,
        // A directory, or an archive, which takes a processor for as long as it is read.
        DriverClass::PassThrough => {
            !MountEntry::all_local(Path::new(&leads.location)).is_ok_and(|local| local)
        }
    };
    if !may_block {
        return Ok(service);
    }
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    Ok(Arc::new(Apart::new(service, runtime)))
}

/// Stores what programs have written, and ends the tree. Lost writes are an error; those whose error close(2) returned only if `says`.
fn close(trees: &Trees, tree: &Tree, says: bool) -> Result<()> {
    for cache in &tree.caches {
        trees.runtime.handle().block_on(async {
            cache.end().await;
            cache.kept_within(KEEP_DEADLINE).await;
        });
    }
    let locator = Locator::new(trees, tree);
    let mut lost = locator.lost(tree);
    if says {
        lost.extend(locator.lost_at_close(tree));
    }
    let closed = tree.control.as_ref().map_or(Ok(()), |control| control.close());
    let stored = trees.changed.close();
    if let Some((path, why)) = lost.first() {
        let others =
            if lost.len() > 1 { format!(" (and of {} more files)", lost.len() - 1) } else { String::new() };
        return Err(Errno::EIO.because(format!("what was written to {path} is lost: {why}{others}")));
    }
    closed.and(stored.map_err(Into::into))
}

/// The thread of an open tree.
struct Thread {
    caches: Vec<CacheControl>,
    /// What knows the paths of files.
    tree: Arc<dyn Service>,
    orders: Mutex<Sender<oneshot::Sender<Result<()>>>>,
}

impl Ending for Thread {
    fn unwritten(&self) -> Option<String> {
        let left = self.caches.iter().map(|cache| cache.unwritten(cache.mark()));
        let (files, bytes) = left.fold((0, 0), |sum, left| (sum.0 + left.0, sum.1 + left.1));
        let s = if files == 1 { "" } else { "s" };
        (files > 0).then(|| format!("{bytes} bytes of {files} file{s} are not written"))
    }

    fn unwritten_files(&self) -> BoxFuture<'static, Vec<String>> {
        let nodes: Vec<Node> = self.caches.iter().flat_map(CacheControl::unstored).collect();
        let tree = Arc::clone(&self.tree);
        Box::pin(async move {
            let cx = Cx::new(LOCATE_ID, Credentials::ROOT, "outrigger");
            let mut paths = Vec::new();
            for node in nodes {
                let path = ask(&*tree, &cx, Locate { node }).await;
                paths.push(path.map_or_else(|_| format!("#{}", node.0), |path| path.to_string()));
            }
            paths
        })
    }

    fn flush(&self) {
        self.caches.iter().for_each(CacheControl::flush);
    }

    fn close(&self) -> BoxFuture<'static, Result<()>> {
        let (sender, receiver) = oneshot::channel();
        // A thread that has ended drops what it gets.
        let _ = lock(&self.orders).send(sender);
        Box::pin(async move {
            receiver.await.unwrap_or_else(|_| Err(Errno::EIO.because("the thread of the tree ended")))
        })
    }
}
