// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the tree a LOCATION names. The only place that knows which drivers and layers there are.

mod driver_program;
mod files;
mod image;
mod layers;
mod origin;
mod program;
mod remote;
mod session;

pub use files::{archive_kind, unserved};
pub use image::{Images, inspect};
pub use layers::LAYERS;
pub use origin::{Origin, is_unchanged};
pub use outrigger_driver_kernel::{Inspection, Opened as OpenedImage, Piece, Table, Volume};
pub use program::{named as program, replacement};
pub use remote::Opened;
pub use session::Trees;

use crate::drivers::{DriverOptions, declared, scheme};
use crate::location::{Base, Location, TreeName, without_password};
use crate::notes::{self, Root};
use crate::status::Failure;
use layers::{Cached, Layered, User};
use outrigger_client::{Client, Follow, Inode};
use outrigger_core::registry::Lasts;
use outrigger_core::survive::Word;
use outrigger_core::{Error, FileKind, Inline, Keep, Node, OpCode, Runtime, Serve, Service, Stack};
use outrigger_driver_libfuse::LibFuse;
use outrigger_driver_local::{Local, LocalOptions};
use outrigger_layer_cache::Control;
use outrigger_layer_fault::FaultControl;
use outrigger_layer_simulate::Simulate;
use outrigger_layer_subtree::Subtree;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tree that can be mounted.
pub struct Tree {
    /// The top of its stack.
    pub service: Arc<dyn Service>,
    /// The names of its layers, from the driver up.
    pub layers: Vec<&'static str>,
    /// The cache layers among its layers.
    pub caches: Vec<Control>,
    /// What changes the rules of its layer `fault`, if it has one.
    pub fault: Option<FaultControl>,
    /// Its driver, when that is a FUSE program.
    pub program: Option<Arc<LibFuse>>,
    /// Its driver, when that is a disk image.
    pub image: Option<OpenedImage>,
    /// The server checks permissions, for the user who is logged in there.
    pub one_user: bool,
    /// The reference that keeps the root of a subtree alive.
    _root: Option<Inode>,
}

impl Tree {
    fn new(layered: Layered, program: Option<Arc<LibFuse>>, root: Option<Inode>) -> Self {
        let Layered { service, names, caches, fault } = layered;
        Tree { service, layers: names, caches, fault, program, image: None, one_user: false, _root: root }
    }

    /// The tree of a program, with the layers the user asked for.
    ///
    /// # Errors
    /// A sentence naming the layer that cannot be there.
    pub fn of_program(trees: &Trees, program: Arc<LibFuse>) -> Result<Self, Failure> {
        let layered =
            layers::stack(program.clone(), &trees.options().layer, User::Mount, &trees.runtime, None, None)?;
        Ok(Tree::new(layered, Some(program), None))
    }
}

/// Whether the tree `text` names with these options outlives the process that serves it. What is known of a FUSE program or of a
/// disk image does not, nor what the kernel code has in memory.
pub fn survives(trees: &Trees, text: &OsStr, others: &[String]) -> bool {
    let location = Location::parse(text);
    match location.base {
        Base::Program(_) => false,
        // What is inside a file there is a tree of its own.
        Base::Remote { .. } => location.nested.is_empty(),
        Base::Host(path) => files::lasts(trees, &path, &given(trees, others)) != Some(Lasts::Process),
        Base::Url { scheme: name, .. } => scheme(&name).is_none_or(|scheme| scheme.lasts != Lasts::Process),
    }
}

/// The options for the driver of a mount.
fn given(trees: &Trees, others: &[String]) -> DriverOptions {
    let lists = others.iter().chain(&trees.options().opt);
    DriverOptions::of(lists.flat_map(|list| list.split(',')).filter(|item| !item.is_empty()))
}

/// Whether opening the tree that `text` names may ask for a password.
pub fn asks(text: &OsStr) -> bool {
    is_remote(&Location::parse(text).base)
}

/// Whether a tree is at another host: mounts of it have a cache, and requests are made as the user who is logged in.
fn is_remote(base: &Base) -> bool {
    match base {
        Base::Remote { .. } => true,
        Base::Url { scheme: name, .. } => scheme(name).is_some_and(|scheme| scheme.authority),
        Base::Host(_) | Base::Program(_) => false,
    }
}

/// Whether `text` names a file with these options whose driver guards a mount by itself, given the option `guard`.
pub fn guards_itself(trees: &Trees, text: &OsStr, others: &[String]) -> bool {
    let location = Location::parse(text);
    let Base::Host(path) = &location.base else { return false };
    location.nested.is_empty() && files::lasts(trees, path, &given(trees, others)) == Some(Lasts::Process)
}

/// Opens the tree `name` with the layers the user asked for.
///
/// # Errors
/// A sentence that names the part which cannot be opened, and why.
pub fn open(trees: &Trees, name: &TreeName, options: &DriverOptions) -> Result<Opened, Failure> {
    let layers = &trees.options().layer;
    let (service, sftp, cache) = match name {
        TreeName::Whole(Base::Remote { host, port, .. }) => {
            let mut options = options.clone();
            let cache = remote::cached(&mut options, layers, User::Command)?;
            let sftp = remote::whole(trees, host, *port, &options)?;
            (Arc::new(Serve(sftp.clone())) as Arc<dyn Service>, Some(sftp), cache)
        }
        _ => (driver(trees, name, options, None)?, None, None),
    };
    let cache = cache.map(|options| Cached { options, disk: None });
    let layered = layers::stack(service, layers, User::Command, &trees.runtime, None, cache)?;
    let client = Client::new(layered.service, trees.runtime.clone(), trees.settings());
    Ok(Opened { client, sftp })
}

fn driver(
    trees: &Trees,
    name: &TreeName,
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    match name {
        TreeName::Whole(Base::Host(path)) => local(trees, path, for_a_command(), options, None),
        TreeName::Whole(Base::Program(command)) => Ok(Arc::new(program::nowhere(trees, command, options)?)),
        TreeName::Whole(Base::Url { scheme, rest }) => url(trees, scheme, rest, options, keep),
        TreeName::Whole(Base::Remote { host, port, path }) => {
            Ok(Arc::new(Serve(remote::at(trees, host, *port, path, options, keep)?)))
        }
        TreeName::Inside(location) => inside(trees, location, options),
    }
}

/// A command starts at the host's root and works on whatever file system its files are on, where nodes are known by path
/// anyway.
fn for_a_command() -> LocalOptions {
    LocalOptions { handles: false, ..LocalOptions::default() }
}

fn local(
    trees: &Trees,
    path: &Path,
    mut local_options: LocalOptions,
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    options.apply(|key, value| local_options.set(key, value))?;
    let driver = match keep {
        Some(keep) => Local::open_with_keep(path, local_options, Arc::clone(keep)),
        None => Local::open(path, local_options),
    };
    let driver = driver.map_err(|error| cannot_open(&path.display().to_string(), &error))?;
    Ok(Arc::new(Inline::new(driver, trees.runtime.clone())))
}

fn url(
    trees: &Trees,
    name: &str,
    rest: &[u8],
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    if let Some(program) = declared(name) {
        return driver_program::serve(trees, program, rest, options, keep);
    }
    let rest = str::from_utf8(rest).map_err(|_| {
        Failure::serious(format!("{name}: the name of a host is UTF-8: '{}'", rest.escape_ascii()))
    })?;
    let Some(scheme) = scheme(name) else {
        return Err(Failure::serious(format!(
            "unsupported scheme '{name}': `outrigger drivers` lists what there is"
        )));
    };
    if scheme.lasts != Lasts::Stored && trees.changes(name) {
        return Err(Failure::serious(format!(
            "{name}: what is put there is lost when the command ends: outrigger mount {name}: DIR keeps it while it is mounted"
        )));
    }
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    let timeout = trees.options().timeout.filter(|timeout| scheme.authority && !timeout.is_zero());
    let options = match timeout {
        Some(timeout) => &options.clone().with_default("timeout", &timeout.as_secs_f64().to_string()),
        None => options,
    };
    let site = trees.site(&runtime, keep);
    let service = (scheme.open)(rest, options, &site).map_err(|error| {
        let why = error.reason.as_deref().map(str::to_owned);
        Failure::serious(why.unwrap_or_else(|| format!("{name}: {}", error.errno)))
    })?;
    if service.abilities().ops.has(OpCode::StatFs) { Ok(service) } else { completed(service) }
}

/// A driver with the least operations, and what can be made of those.
fn completed(driver: Arc<dyn Service>) -> Result<Arc<dyn Service>, Failure> {
    let stack = Stack::new(driver).push(Simulate::new());
    stack.map(Stack::service).map_err(|error| Failure::serious(error.to_string()))
}

/// Opens the tree inside the file `location` names.
fn inside(trees: &Trees, location: &Location, options: &DriverOptions) -> Result<Arc<dyn Service>, Failure> {
    if let (Base::Host(path), true) = (&location.base, location.nested.is_empty()) {
        return Ok(files::on_host(trees, path, options)?.service);
    }
    let (outer, path) = location.clone().split();
    let (options, sides) = options.clone().for_inner_and_outer();
    // The outer tree has refused what no driver takes if it was opened before, and is not asked again.
    let sides = sides.filter(|_| !trees.is_open(&outer));
    let opened = trees.tree(outer, &options)?;
    let shown = location.to_string();
    let path = opened.path(trees, path)?;
    let inode = opened.client.walk(&path, Follow::Yes).map_err(|error| cannot_open(&shown, &error))?;
    if inode.kind() != FileKind::Regular {
        return Err(Failure::serious(format!("cannot open '{shown}' as a tree: it is not a regular file")));
    }
    let opened = files::in_tree(trees, &inode, location, &options)?;
    sides.map_or(Ok(()), |sides| sides.all_taken())?;
    Ok(opened.service)
}

/// Opens what `text` names as a tree of its own: a directory, or the tree inside a file. With `keep`, it is one that [`survives`].
///
/// # Errors
/// A sentence that names the part which cannot be opened, and why.
pub fn mountable(
    trees: &Trees,
    text: &OsStr,
    others: &[String],
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Tree, Failure> {
    trees.are_for_a_mount();
    let mut options = given(trees, others);
    if text.is_empty() {
        return Err(Failure::serious("an empty LOCATION names nothing"));
    }
    let location = match keep {
        Some(keep) => trees.stays(origin::of(text, &**keep)?),
        None => Location::of(text)?,
    };
    if let (Base::Program(command), true) = (&location.base, location.nested.is_empty()) {
        return Tree::of_program(trees, Arc::new(program::nowhere(trees, command, &options)?));
    }
    if let (Base::Host(path), true, None) = (&location.base, location.nested.is_empty(), keep)
        && files::lasts(trees, path, &options) == Some(Lasts::Process)
    {
        let opened = files::on_host(trees, path, &options)?;
        let layers = &trees.options().layer;
        let layered = layers::stack(opened.service, layers, User::Mount, &trees.runtime, None, None)?;
        let image = opened.control.and_then(|control| control.downcast().ok()).map(|image| *image);
        return Ok(Tree { image, ..Tree::new(layered, None, None) });
    }
    let one_user = is_remote(&location.base);
    let cache = match one_user {
        true => remote::cached(&mut options, &trees.options().layer, User::Mount)?,
        false => None,
    };
    if one_user {
        // In a mount, every program follows links on this machine.
        options = options.with_default("contain_symlinks", "");
    }
    let mut disk = None;
    let (service, root) = match (&location.base, host_directory(trees, &location)?) {
        (Base::Remote { host, port, path }, _) if location.nested.is_empty() => {
            let sftp = remote::at(trees, host, *port, path, &options, keep)?;
            if let Some(cache) = cache.as_ref().filter(|cache| cache.disk > 0) {
                let name = remote::lasting_name(trees, &sftp, (host, *port), path, &options)?;
                disk = Some(layers::disk(cache, &name, &trees.runtime)?);
            }
            (Arc::new(Serve(sftp)) as Arc<dyn Service>, None)
        }
        (_, Some(path)) => (local(trees, &path, LocalOptions::default(), &options, keep)?, None),
        (Base::Url { scheme, rest }, _) if one_user && location.nested.is_empty() => {
            if let Some(cache) = cache.as_ref().filter(|cache| cache.disk > 0) {
                let name = format!("{scheme} {}", without_password(scheme, rest).escape_ascii());
                disk = Some(layers::disk(cache, &name, &trees.runtime)?);
            }
            below(trees, location, &options, keep)?
        }
        _ => below(trees, location, &options, keep)?,
    };
    let cache = cache.map(|options| Cached { options, disk });
    let layered = layers::stack(service, &trees.options().layer, User::Mount, &trees.runtime, keep, cache)?;
    Ok(Tree { one_user, ..Tree::new(layered, None, root) })
}

/// The path when `location` is a directory of the host.
fn host_directory(trees: &Trees, location: &Location) -> Result<Option<PathBuf>, Failure> {
    match &location.base {
        Base::Host(path) if location.nested.is_empty() => {
            let metadata = std::fs::metadata(trees.reach(path))
                .map_err(|error| cannot_open(&path.display().to_string(), &error.into()))?;
            Ok(metadata.is_dir().then(|| std::path::absolute(path).unwrap_or_else(|_| path.clone())))
        }
        _ => Ok(None),
    }
}

/// The tree at a path inside another tree: a file is opened, a directory becomes the root.
fn below(
    trees: &Trees,
    location: Location,
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<(Arc<dyn Service>, Option<Inode>), Failure> {
    if matches!(&location.base, Base::Host(_)) && location.nested.is_empty() {
        return Ok((driver(trees, &TreeName::Inside(Box::new(location)), options, keep)?, None));
    }
    if matches!(&location.base, Base::Remote { .. }) && location.nested.is_empty() {
        return Ok((driver(trees, &TreeName::Whole(location.base), options, keep)?, None));
    }
    let shown = location.to_string();
    let (name, path) = location.clone().split();
    let service = driver(trees, &name, options, keep)?;
    let is_lasting = location.nested.is_empty() && is_remote(&location.base);
    let noted = keep.filter(|_| is_lasting).map(|keep| notes::root(&**keep)).transpose()?;
    let noted = noted.as_ref().map(|area| area.view::<Root<'_>>().node());
    if let Some(node) = noted.map(Word::get).filter(|&node| node != 0) {
        // A process that takes over serves what the former one has found, also while the host is away.
        return Ok((subtree(service, Node(node))?, None));
    }
    let client = Client::new(service.clone(), trees.runtime.clone(), trees.settings());
    let inode = client.walk(&path, Follow::Yes).map_err(|error| cannot_open(&shown, &error))?;
    match inode.kind() {
        FileKind::Directory => {
            noted.iter().for_each(|noted| noted.set(inode.node().0));
            Ok((subtree(service, inode.node())?, Some(inode)))
        }
        FileKind::Regular => Ok((driver(trees, &TreeName::Inside(Box::new(location)), options, keep)?, None)),
        _ => Err(Failure::serious(format!("cannot open '{shown}': neither a directory nor a regular file"))),
    }
}

/// The tree below a directory of another one.
fn subtree(service: Arc<dyn Service>, root: Node) -> Result<Arc<dyn Service>, Failure> {
    if root == Node::ROOT {
        return Ok(service);
    }
    let stack = Stack::new(service).push(Subtree::new(root));
    Ok(stack.map_err(|error| Failure::serious(error.to_string()))?.service())
}

fn cannot_open(shown: &str, error: &Error) -> Failure {
    Failure::serious(format!("cannot open '{shown}': {error}"))
}
