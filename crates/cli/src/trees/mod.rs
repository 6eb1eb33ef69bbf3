// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the tree a LOCATION names, with the driver that the registry has for it.

mod changed;
mod files;
mod layers;
mod many;
mod origin;
mod program;
mod remote;
mod session;

pub use changed::Changed;
pub use layers::LAYERS;
pub use many::{Many, Reread};
pub use origin::{Origin, is_unchanged};
pub use remote::{Opened, check_options};
pub use session::Trees;

use crate::drivers::{DriverOptions, declared, opened, scheme, that_has};
use crate::location::{Base, Location, TreeName};
use crate::notes::{self, Root};
use crate::status::Failure;
use layers::{Cached, HostLayers, Layered, User};
use outrigger_client::{Client, Follow, Inode};
use outrigger_core::ops::Locate;
use outrigger_core::registry::{self, Address, Content, Control, Follows, Lasts};
use outrigger_core::survive::Word;
use outrigger_core::{
    Abilities, Answer, Cx, Errno, Error, FileKind, Keep, Name, Node, Notify, OpCode, Recalled, Request,
    Runtime, Service, Stack,
};
use outrigger_layer_cache::{Control as CacheControl, OnDisk};
use outrigger_layer_contain::{Contain, Options as LinkOptions};
use outrigger_layer_fault::FaultControl;
use outrigger_layer_simulate::Simulate;
use outrigger_layer_subtree::Subtree;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A tree that can be mounted.
pub struct Tree {
    /// The top of its stack.
    pub service: Arc<dyn Service>,
    /// The names of its layers, from the driver up.
    pub layers: Vec<&'static str>,
    /// The cache layers among its layers.
    pub caches: Vec<CacheControl>,
    /// What changes the rules of its layer `fault`, if it has one.
    pub fault: Option<FaultControl>,
    /// What its driver can do besides.
    pub control: Option<Arc<dyn Control>>,
    /// The server checks permissions, for the user who is logged in there.
    pub one_user: bool,
    /// The trees in it, where it is made of many.
    pub many: Option<Many>,
    /// The reference that keeps the root of a subtree alive.
    _root: Option<Inode>,
}

impl Tree {
    fn new(layered: Layered, control: Option<Arc<dyn Control>>, root: Option<Inode>) -> Self {
        let Layered { service, names, caches, fault } = layered;
        Tree { service, layers: names, caches, fault, control, one_user: false, many: None, _root: root }
    }

    /// Many trees under one root.
    pub fn of_many(service: Arc<dyn Service>, many: Many) -> Self {
        let (names, caches) = (vec!["demux"], Vec::new());
        let layered = Layered { service, names, caches, fault: None };
        // Each is opened as the user who mounts them.
        Tree { one_user: true, many: Some(many), ..Tree::new(layered, None, None) }
    }

    /// A tree of files of this machine.
    pub fn of_machine(service: Arc<dyn Service>) -> Self {
        let layered = Layered { service, names: Vec::new(), caches: Vec::new(), fault: None };
        Tree::new(layered, None, None)
    }

    /// A tree that ends with the process that serves it, with the layers the user asked for. Users call it `shown`.
    ///
    /// # Errors
    /// A sentence naming the layer that cannot be there.
    pub fn of(trees: &Trees, shown: &OsStr, opened: registry::Opened) -> Result<Self, Failure> {
        let (layers, shown) = (&trees.options().layer, shown.to_string_lossy());
        let user = (User::Mount, trees.usage());
        let layered = layers::stack(
            (opened.service, &shown),
            layers,
            user,
            (&trees.runtime, Some(trees)),
            None,
            HostLayers::default(),
        )?;
        Ok(Tree::new(layered, opened.control, None))
    }
}

/// Whether the tree `text` names with these options outlives the process that serves it. What is known of a FUSE program or of a
/// disk image does not, nor what the kernel code has in memory.
pub fn survives(trees: &Trees, text: &OsStr, others: &[String]) -> bool {
    let does = |text: &OsStr, options: &DriverOptions| {
        let location = Location::parse(text);
        match location.base {
            Base::Program(_) => false,
            // What is inside a file there is a tree of its own.
            Base::Remote { .. } => location.nested.is_empty(),
            Base::Host(path) => files::lasts(trees, &path, options) != Some(Lasts::Process),
            Base::Url { scheme: name, .. } => {
                scheme(&name).is_none_or(|scheme| scheme.lasts != Lasts::Process)
            }
        }
    };
    let mut uppers = layers::uppers(&trees.options().layer);
    does(text, &given(trees, others)) && uppers.all(|upper| does(upper.as_ref(), &DriverOptions::default()))
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

/// Whether a layer asks for a passphrase at the terminal: one that is not told a file with a secret.
pub fn layers_ask(specs: &[String]) -> bool {
    let is_told = |spec: &str| spec.contains("passfile=") || spec.contains("keyfile=");
    specs.iter().any(|spec| layers::name(spec) == outrigger_layer_crypt::LAYER.name && !is_told(spec))
}

/// Whether the tree that `text` names is there when it is opened again, with the same files.
pub fn is_lasting(text: &OsStr) -> bool {
    match Location::parse(text).base {
        Base::Url { scheme: name, .. } => scheme(&name).is_none_or(|scheme| scheme.lasts == Lasts::Stored),
        _ => true,
    }
}

/// Whether a tree is at another host: mounts of it have a cache, and requests are made as the user who is logged in.
fn is_remote(base: &Base) -> bool {
    match base {
        Base::Remote { .. } => true,
        Base::Url { scheme: name, .. } => {
            scheme(name).is_some_and(|scheme| scheme.follows == Follows::Authority)
        }
        Base::Host(_) | Base::Program(_) => false,
    }
}

/// Whether `text` names a file with these options whose driver guards a mount by itself, given the option `guard`.
pub fn guards_itself(trees: &Trees, text: &OsStr, others: &[String]) -> bool {
    Location::parse(text).nested.is_empty() && is_of_kernel_code(trees, text, others)
}

/// Whether `text` names a file of this machine that kernel code serves, or something in one: opened for writing it changes, if only
/// because its journal is replayed.
pub fn is_of_kernel_code(trees: &Trees, text: &OsStr, others: &[String]) -> bool {
    let Base::Host(path) = Location::parse(text).base else { return false };
    files::lasts(trees, &path, &given(trees, others)) == Some(Lasts::Process)
}

/// Opens the tree `name` with the layers the user asked for.
///
/// # Errors
/// A sentence that names the part which cannot be opened, and why.
pub fn open(trees: &Trees, name: &TreeName, options: &DriverOptions) -> Result<Opened, Failure> {
    let (layers, mut options, mut links) = (&trees.options().layer, options.clone(), LinkOptions::default());
    if let TreeName::Whole(base) = name
        && is_remote(base)
    {
        links = remote::links(&mut options, false)?;
    }
    let (service, host, cached) = match name {
        TreeName::Whole(Base::Remote { host, port, .. }) => {
            let cache = remote::cached(&mut options, layers, User::Command)?;
            let whole = Address { host, port: *port, path: b"/" };
            let host = remote::at(trees, &whole, &options, None)?;
            let key = || remote::lasting_name(trees, &*host);
            let disk = remote::kept(trees, cache.as_ref(), &options, key)?;
            (host.service(), Some(host), cache.map(|options| Cached { options, disk }))
        }
        TreeName::Whole(base @ Base::Url { scheme, rest }) if is_remote(base) && remote::keeps(&options) => {
            let cache = remote::cached(&mut options, layers, User::Command)?;
            let key = || Ok(remote::name_of_url(scheme, rest));
            let disk = remote::kept(trees, cache.as_ref(), &options, key)?;
            let open = || driver(trees, name, &options, None);
            let service = trees.opening(remote::is_known(&disk), open)?;
            (service, None, cache.map(|options| Cached { options, disk }))
        }
        _ => (driver(trees, name, &options, None)?, None, None),
    };
    let above = HostLayers { cached, links };
    let user = (User::Command, trees.usage_of(name));
    let layered =
        layers::stack((service, &shown(name)), layers, user, (&trees.runtime, Some(trees)), None, above)?;
    for cache in layered.caches.into_iter().filter(|cache| cache.usage().metadata.is_some()) {
        let runtime = Arc::clone(&trees.runtime);
        trees.at_end.add(move || runtime.handle().block_on(cache.kept_within(KEEP_DEADLINE)));
    }
    let client = Client::new(layered.service, trees.runtime.clone(), trees.settings());
    Ok(Opened { client, host })
}

/// For so long a command waits at its end until what it knows is on disk.
const KEEP_DEADLINE: Duration = Duration::from_secs(2);

fn driver(
    trees: &Trees,
    name: &TreeName,
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    match name {
        TreeName::Whole(Base::Host(path)) => directory(trees, path, options, None),
        TreeName::Whole(Base::Program(command)) => Ok(program::named(trees, command, options)?.service),
        TreeName::Whole(Base::Url { scheme, rest }) => url(trees, scheme, rest, options, keep),
        TreeName::Whole(Base::Remote { host, port, path }) => {
            let address = Address { host, port: *port, path };
            Ok(remote::at(trees, &address, options, keep)?.service())
        }
        TreeName::Inside(location) => inside(trees, location, options),
    }
}

/// A directory of this machine as a tree, with nothing that was asked for other trees.
///
/// # Errors
/// A sentence that says why it cannot be opened.
pub fn directory_of_machine(trees: &Trees, path: &Path) -> Result<Arc<dyn Service>, Failure> {
    directory(trees, path, &DriverOptions::default(), None)
}

/// A directory of this machine.
fn directory(
    trees: &Trees,
    path: &Path,
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    let (driver, open) = that_has(|driver| driver.directories, "directories")?;
    let runtime = Arc::clone(&trees.runtime) as Arc<dyn Runtime>;
    let site = trees.site(&runtime, keep);
    opened(
        driver,
        options,
        |given| open(path, given, &site),
        |error| cannot_open(&path.display().to_string(), error),
    )
}

fn url(
    trees: &Trees,
    name: &str,
    rest: &[u8],
    options: &DriverOptions,
    keep: Option<&Arc<dyn Keep>>,
) -> Result<Arc<dyn Service>, Failure> {
    if let Some(program) = declared(name) {
        return program::declared(trees, program, rest, options, keep);
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
    let site = trees.site(&runtime, keep);
    let service = (scheme.open)(rest, options, &site).map_err(|error| {
        let why = error.reason.as_deref().map(str::to_owned);
        Failure::serious(why.unwrap_or_else(|| format!("{name}: {}", error.errno))).with(error.errno)
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
        if trees.reach(path).is_dir() {
            // A tree of its own: layers stand on its root.
            return directory(trees, path, options, None);
        }
        return Ok(files::on_host(trees, path, options)?.service);
    }
    // Layers that the tree itself gets need not bear what is above it.
    if !trees.options().layer.is_empty()
        && let Some(service) = directory_of_host(trees, location, options)?
    {
        return Ok(service);
    }
    let (outer, path) = location.clone().split();
    let (options, sides) = options.clone().for_inner_and_outer();
    // The outer tree has refused what no driver takes if it was opened before, and is not asked again.
    let sides = sides.filter(|_| !trees.is_open(&outer));
    let opened = trees.tree(outer, &options)?;
    let shown = location.to_string();
    let path = opened.path(trees, path)?;
    let inode = opened.client.walk(&path, Follow::Yes).map_err(|error| cannot_open(&shown, &error))?;
    match inode.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return rooted(trees, Arc::clone(opened.client.service()), inode),
        _ => {
            let why = "it is neither a directory nor a regular file";
            return Err(Failure::serious(format!("cannot open '{shown}' as a tree: {why}")));
        }
    }
    let opened = files::in_tree(trees, &inode, location, &options)?;
    sides.map_or(Ok(()), |sides| sides.all_taken())?;
    Ok(opened.service)
}

/// The content of the file `location` names in another tree.
///
/// # Errors
/// A sentence that names the part which cannot be opened, and why.
pub fn content(trees: &Trees, location: &Location) -> Result<Arc<dyn Content>, Failure> {
    let ((outer, path), shown) = (location.clone().split(), location.to_string());
    let opened = trees.tree(outer, &given(trees, &[]))?;
    let path = opened.path(trees, path)?;
    let inode = opened.client.walk(&path, Follow::Yes).map_err(|error| cannot_open(&shown, &error))?;
    match inode.kind() {
        FileKind::Regular => files::content(trees, &inode, location),
        _ => Err(Failure::serious(format!("cannot open '{shown}': not a regular file"))),
    }
}

/// The tree in the directory of another host that `location` names; `None` when it names something else.
fn directory_of_host(
    trees: &Trees,
    location: &Location,
    options: &DriverOptions,
) -> Result<Option<Arc<dyn Service>>, Failure> {
    if !location.nested.is_empty() || !is_remote(&location.base) {
        return Ok(None);
    }
    if let Base::Remote { host, port, path } = &location.base {
        let address = Address { host, port: *port, path };
        return match remote::at(trees, &address, options, None) {
            Ok(directory) => Ok(Some(directory.service())),
            Err(failure) if failure.errno == Some(Errno::ENOTDIR) => Ok(None),
            Err(failure) => Err(failure),
        };
    }
    let (host, path) = location.clone().split();
    let service = driver(trees, &host, options, None)?;
    let client = Client::new(Arc::clone(&service), trees.runtime.clone(), trees.settings());
    let shown = location.to_string();
    let inode = client.walk(&path, Follow::Yes).map_err(|error| cannot_open(&shown, &error))?;
    if inode.kind() == FileKind::Directory { rooted(trees, service, inode).map(Some) } else { Ok(None) }
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
        return Tree::of(trees, text, program::named(trees, command, &options)?);
    }
    if let (Base::Host(path), true, None) = (&location.base, location.nested.is_empty(), keep)
        && files::lasts(trees, path, &options) == Some(Lasts::Process)
    {
        return Tree::of(trees, text, files::on_host(trees, path, &options)?);
    }
    let one_user = is_remote(&location.base);
    // In a mount, every program follows links on this machine.
    let (cache, links) = match one_user {
        true => (
            remote::cached(&mut options, &trees.options().layer, User::Mount)?,
            remote::links(&mut options, location.nested.is_empty())?,
        ),
        false => (None, LinkOptions::default()),
    };
    let (mut disk, shown) = (OnDisk::default(), location.to_string());
    let (service, root) = match (&location.base, host_directory(trees, &location)?) {
        (Base::Remote { host, port, path }, _) if location.nested.is_empty() => {
            let directory = remote::at(trees, &Address { host, port: *port, path }, &options, keep)?;
            let key = || remote::lasting_name(trees, &*directory);
            disk = remote::kept(trees, cache.as_ref(), &options, key)?;
            (directory.service(), None)
        }
        (_, Some(path)) => (directory(trees, &path, &options, keep)?, None),
        (Base::Url { scheme, rest }, _) if one_user && location.nested.is_empty() => {
            let key = || Ok(remote::name_of_url(scheme, rest));
            disk = remote::kept(trees, cache.as_ref(), &options, key)?;
            trees.opening(remote::is_known(&disk), || below(trees, location, &options, keep))?
        }
        _ => below(trees, location, &options, keep)?,
    };
    let above = HostLayers { cached: cache.map(|options| Cached { options, disk }), links };
    let layered = layers::stack(
        (service, &shown),
        &trees.options().layer,
        (User::Mount, trees.usage()),
        (&trees.runtime, Some(trees)),
        keep,
        above,
    )?;
    Ok(Tree { one_user, ..Tree::new(layered, None, root) })
}

/// Other trees, for layers that need one.
impl registry::Trees for Trees {
    fn open(&self, location: &str, keep: Option<&Arc<dyn Keep>>) -> Result<Arc<dyn Service>, Error> {
        self.beside(location, keep).map_err(|failure| Errno::EINVAL.because(failure.to_string()))
    }
}

impl Trees {
    fn beside(&self, text: &str, keep: Option<&Arc<dyn Keep>>) -> Result<Arc<dyn Service>, Failure> {
        let (location, options) = (Location::of(text.as_ref())?, DriverOptions::default());
        let of_host = is_remote(&location.base) && location.nested.is_empty();
        if let Some(path) = host_directory(self, &location)? {
            return directory(self, &path, &options, keep);
        }
        let (service, root) = below(self, location, &options, keep)?;
        let service = if of_host && self.is_for_a_mount() { contained(service)? } else { service };
        Ok(match root {
            Some(root) => Arc::new(Rooted { service, _root: root }),
            None => service,
        })
    }
}

/// The tree of a host whose symbolic links must not lead out of it.
fn contained(service: Arc<dyn Service>) -> Result<Arc<dyn Service>, Failure> {
    let links = LinkOptions { contain: true, ..LinkOptions::default() };
    let contain = Contain::new(links, &service.abilities());
    let stack = Stack::new(service).push(contain);
    stack.map(Stack::service).map_err(|error| Failure::serious(error.to_string()))
}

/// The tree below the directory `root` of another one.
fn rooted(trees: &Trees, service: Arc<dyn Service>, root: Inode) -> Result<Arc<dyn Service>, Failure> {
    Ok(Arc::new(Rooted { service: subtree(trees, service, root.node())?, _root: root }))
}

/// A tree below a directory of another one, with the reference to that.
struct Rooted {
    service: Arc<dyn Service>,
    _root: Inode,
}

impl Service for Rooted {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        self.service.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.service.abilities()
    }
    fn attach(&self, notify: Arc<dyn Notify>) {
        self.service.attach(notify);
    }
    fn recall(&self, dir: Node, name: &Name, kind: FileKind) -> Result<Recalled, Error> {
        self.service.recall(dir, name, kind)
    }
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
        return Ok((subtree(trees, service, Node(node))?, None));
    }
    if let Some(root) = recalled(trees, &*service, &path) {
        noted.iter().for_each(|noted| noted.set(root.0));
        return Ok((subtree(trees, service, root)?, None));
    }
    let client = Client::new(service.clone(), trees.runtime.clone(), trees.settings());
    let inode = client.walk(&path, Follow::Yes).map_err(|error| cannot_open(&shown, &error))?;
    match inode.kind() {
        FileKind::Directory => {
            if is_lasting && trees.is_for_a_mount() && inode.node() == Node::ROOT {
                // The root of a server is there without being asked for: whether it can be used is not known yet.
                match inode.entries() {
                    // WebDAV, for example, may be in a directory of the server only.
                    Err(error) if trees.is_one_of_many() && error.errno == Errno::EOPNOTSUPP => {}
                    listed => drop(listed.map_err(|error| cannot_open(&shown, &error))?),
                }
            }
            noted.iter().for_each(|noted| noted.set(inode.node().0));
            Ok((subtree(trees, service, inode.node())?, Some(inode)))
        }
        FileKind::Regular => Ok((driver(trees, &TreeName::Inside(Box::new(location)), options, keep)?, None)),
        _ => Err(Failure::serious(format!("cannot open '{shown}': neither a directory nor a regular file"))),
    }
}

/// The directory at `path`, where a former process knew that there is one and has left what it knew: the server is not asked.
fn recalled(trees: &Trees, service: &dyn Service, path: &[u8]) -> Option<Node> {
    if !trees.is_known() || !service.abilities().recalls {
        return None;
    }
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    names.try_fold(Node::ROOT, |dir, name| {
        let name = Name::new(name.to_vec()).ok()?;
        service.recall(dir, &name, FileKind::Directory).ok().map(|recalled| recalled.node)
    })
}

/// The tree below a directory of another one.
fn subtree(trees: &Trees, service: Arc<dyn Service>, root: Node) -> Result<Arc<dyn Service>, Failure> {
    if root == Node::ROOT {
        return Ok(service);
    }
    let client = Client::new(service.clone(), trees.runtime.clone(), trees.settings());
    let subtree = match client.call(Locate { node: root }) {
        Ok(path) => Subtree::new(root).at(path),
        Err(_) => Subtree::new(root),
    };
    let stack = Stack::new(service).push(subtree);
    Ok(stack.map_err(|error| Failure::serious(error.to_string()))?.service())
}

/// A tree as messages name it.
fn shown(name: &TreeName) -> String {
    match name {
        TreeName::Whole(base) => Location { base: base.clone(), nested: Vec::new() }.to_string(),
        TreeName::Inside(location) => location.to_string(),
    }
}

fn cannot_open(shown: &str, error: &Error) -> Failure {
    Failure::serious(format!("cannot open '{shown}': {error}")).with(error.errno)
}
