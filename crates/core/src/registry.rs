// SPDX-License-Identifier: MIT OR Apache-2.0
//! How drivers and layers describe themselves: the command line, `outrigger drivers`, the manual and completion read the same
//! value. Adding one to a program is one line in its list.

mod at_end;
mod files;
mod tree;

pub use at_end::AtEnd;
pub use files::{Content, Files, Identity, OpenFile, Recognise, Recognised};
pub use tree::{Address, Control, Direct, HostTree, OpenCommand, OpenDirectory, OpenHost, Opened, Warning};

use crate::cx::Cancel;
use crate::error::{Errno, Error};
use crate::keep::{Keep, PartOfKeep};
use crate::layer::Layer;
use crate::option::OptionTable;
use crate::runtime::Runtime;
use crate::service::Service;
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A driver as users see it.
#[derive(Debug, Clone, Copy)]
pub struct DriverInfo {
    /// Its name.
    pub name: &'static str,
    /// What it opens.
    pub opens: &'static str,
    /// How its trees are named.
    pub location: &'static str,
    /// Whether trees can be changed.
    pub writable: bool,
    /// Its options, as `-o` and `--opt` take them.
    pub options: &'static [&'static OptionTable],
    /// What else it takes, in words; empty when there is nothing else.
    pub others: &'static str,
    /// Whether a cache stands above each of its trees, since they are at another host: it is given the options of that too.
    pub cached: bool,
    /// Whether its trees recall names of a former process ([`Abilities::recalls`](crate::Abilities::recalls)), so that their metadata can be
    /// kept on disk.
    pub recalls: bool,
    /// The schemes whose trees it opens by itself, as `mem:` and `ftp://HOST/PATH`.
    pub schemes: &'static [Scheme],
    /// The files whose content is a tree of this driver.
    pub files: Option<Files>,
    /// Opens a directory of this machine.
    pub directories: Option<OpenDirectory>,
    /// Opens a directory of a host that is named without a scheme, as `HOST:PATH`.
    pub hosts: Option<OpenHost>,
    /// Opens what a command serves that is named in the LOCATION, as `fuse:COMMAND`.
    pub commands: Option<OpenCommand>,
    /// Opens what a command serves that is named in front of the LOCATION, as `--driver-program NAME=COMMAND`.
    pub declared: Option<OpenCommand>,
    /// Whether the option of this name, with this value, can start programs or weaken what is checked: it is refused unless the user
    /// permits that.
    pub is_dangerous: fn(&str, &str) -> bool,
}

impl DriverInfo {
    /// A driver that opens nothing yet: the rest of a description after `..`.
    pub const NONE: DriverInfo = DriverInfo {
        name: "",
        opens: "",
        location: "",
        writable: false,
        options: &[],
        others: "",
        cached: false,
        recalls: false,
        schemes: &[],
        files: None,
        directories: None,
        hosts: None,
        commands: None,
        declared: None,
        is_dangerous: |_, _| false,
    };
}

/// What stands before the colon of a LOCATION that is neither a file nor a host.
#[derive(Clone, Copy)]
pub struct Scheme {
    /// The scheme in lower case.
    pub name: &'static str,
    /// What follows the colon.
    pub follows: Follows,
    /// How long what is in the tree lasts.
    pub lasts: Lasts,
    /// Opens the tree of this authority or argument, which is empty for a scheme with one tree.
    pub open: Open,
}

/// What follows the colon of a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// A path in the only tree of the scheme, as in `mem:/PATH`.
    Path,
    /// `//`, an authority and a path, as in `ftp://HOST/PATH`: [`Scheme::open`] gets the authority, with `//` at its end where two
    /// slashes follow it, and the tree is that of another host.
    Authority,
    /// What says which tree is meant, as in `portal:FILE`; a path in the tree follows `::`.
    Argument,
}

/// How long what is in a tree lasts, and so whether a mount of it can have a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasts {
    /// As long as the process that serves it. A command that would change such a tree is refused: the change would be lost.
    Process,
    /// As long as the process, or as the [`Keep`] that a guarded mount has. Commands are refused as above.
    Keep,
    /// Independent of the process; a guarded mount gives the server's state to the next process in a [`Keep`].
    Stored,
}

/// Opens a tree.
pub type Open = fn(&str, &dyn Given, &Site<'_>) -> Result<Arc<dyn Service>, Error>;

impl fmt::Debug for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Options that a user gave for a driver.
pub trait Given {
    /// Gives each to `set`, as key and value.
    ///
    /// # Errors
    /// What `set` says about one that nothing else takes.
    fn apply(&self, set: &mut dyn FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Error>;
}

/// A layer as users name it: `--layer NAME[=ARGUMENT]`.
///
/// ```
/// use outrigger_core::registry::{LayerInfo, Made};
/// # use outrigger_core::{Layer, Place};
/// # struct PassOn;
/// # impl Layer for PassOn {
/// #     fn place(&self) -> Place {
/// #         Place::anywhere("pass-on")
/// #     }
/// # }
///
/// pub const LAYER: LayerInfo =
///     LayerInfo::new("pass-on", "passes everything on", |_, _| Ok(Made::layer(PassOn)));
/// ```
#[derive(Clone, Copy)]
pub struct LayerInfo {
    /// Its name.
    pub name: &'static str,
    /// What follows `=`, as in the manual; empty when it takes no argument.
    pub argument: &'static str,
    /// What it does: a clause without a full stop.
    pub does: &'static str,
    /// The keys of its argument, where that is a list.
    pub options: &'static [&'static OptionTable],
    /// Makes one from its argument, which is empty when none is given. An error of it has a reason.
    pub make: fn(&str, &Site<'_>) -> Result<Made, Error>,
}

impl LayerInfo {
    /// A layer without an argument.
    pub const fn new(
        name: &'static str,
        does: &'static str,
        make: fn(&str, &Site<'_>) -> Result<Made, Error>,
    ) -> Self {
        LayerInfo { name, argument: "", does, options: &[], make }
    }

    /// The layer with an argument, as the manual names it.
    pub const fn with_argument(self, argument: &'static str) -> Self {
        LayerInfo { argument, ..self }
    }

    /// As `--layer` takes it.
    pub fn spelt(&self) -> String {
        match self.argument {
            "" => self.name.to_owned(),
            argument => format!("{}={argument}", self.name),
        }
    }

    /// Makes one as `spec` says, which begins with its name.
    ///
    /// # Errors
    /// `EINVAL` for an argument it does not take, and those of [`LayerInfo::make`].
    pub fn made(&self, spec: &str, site: &Site<'_>) -> Result<Made, Error> {
        if self.argument.is_empty() && spec.contains('=') {
            return Err(Errno::EINVAL.because(format!("{} takes no argument", self.name)));
        }
        (self.make)(spec.split_once('=').map_or("", |(_, argument)| argument), site)
    }
}

impl fmt::Debug for LayerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {}", self.spelt())
    }
}

/// What a tree is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// By a command that changes nothing in it, and ends soon.
    Looks,
    /// To show it to other programs, which change nothing.
    Shows,
    /// To change it.
    Changes,
}

/// Where a driver or a layer is to stand.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// Clock, timers and tasks.
    pub runtime: &'a Arc<dyn Runtime>,
    /// What outlives the process, if anything does.
    pub keep: Option<&'a Arc<dyn Keep>>,
    /// Whether the requests are those of other programs, which must not wait for our output.
    pub serves_others: bool,
    /// Whether the tree will be changed. Layers decide by it which lock they take; drivers get `ro` among their options.
    pub usage: Usage,
    /// How many layers of the same name there are below; 0 for a driver.
    pub same_below: usize,
    /// What a layer is to stand on; `None` for a driver.
    pub below: Option<&'a Arc<dyn Service>>,
    /// How long an operation may take, if the user says so; zero for as long as it takes.
    pub timeout: Option<Duration>,
    /// Raised when the user does not want the tree any more, while it is opened.
    pub cancel: Option<&'a Cancel>,
    /// For how long at least a server that dies is started again: see [`crate::supervise::Policy::hold`].
    pub hold: Duration,
    /// Opens other trees, for a layer that needs one beside the one it stands on.
    pub trees: Option<&'a dyn Trees>,
    /// Whether a tree may start programs that a file names: the user has permitted it.
    pub may_start_programs: bool,
    /// Takes what is to be done before the process ends.
    pub at_end: Option<&'a AtEnd>,
    /// A former process has seen the tree and left what it knew: a server need not be reached before it is asked for something.
    pub is_known: bool,
}

/// Opens trees by their LOCATIONs.
pub trait Trees {
    /// The tree that `location` names; what is to outlive the process is in `keep`.
    ///
    /// # Errors
    /// `EINVAL` with a reason that names the part which cannot be opened.
    fn open(&self, location: &str, keep: Option<&Arc<dyn Keep>>) -> Result<Arc<dyn Service>, Error>;
}

impl<'a> Site<'a> {
    /// Above nothing, for the program itself, with nothing that outlives it.
    pub fn new(runtime: &'a Arc<dyn Runtime>) -> Self {
        Site {
            runtime,
            keep: None,
            serves_others: false,
            usage: Usage::Changes,
            same_below: 0,
            below: None,
            timeout: None,
            cancel: None,
            hold: Duration::ZERO,
            trees: None,
            may_start_programs: false,
            at_end: None,
            is_known: false,
        }
    }

    /// The part of what outlives the process that belongs to the layer called `name` here, of several of that name.
    pub fn part_of_keep(&self, name: &str) -> Option<Arc<dyn Keep>> {
        let part =
            |keep: &Arc<dyn Keep>| PartOfKeep::new(Arc::clone(keep), format!("{name}{}", self.same_below));
        self.keep.map(|keep| Arc::new(part(keep)) as Arc<dyn Keep>)
    }

    /// How long a request may take that has to end some time: as the user says, or else `usual`.
    pub fn limit(&self, usual: Duration) -> Duration {
        self.timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(usual)
    }

    /// The outcome of opening a tree, for a thread that may wait for it.
    ///
    /// # Errors
    /// Those of `opening`; `EINTR` when the user does not want the tree any more, and `EIO` when the program ends.
    pub fn wait_for<T: Send + 'static>(
        &self,
        opening: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = mpsc::channel();
        let cancel = self.cancel.cloned().unwrap_or_default();
        self.runtime.spawn(Box::pin(async move {
            // The thread waits until this end is dropped.
            let opened = cancel.unless_raised(opening).await;
            let _ = sender.send(opened.unwrap_or_else(|| Err(Errno::EINTR.into())));
        }));
        receiver.recv().unwrap_or_else(|_| Err(Errno::EIO.because("the program is ending")))
    }
}

/// A layer that was made.
pub struct Made {
    /// The layer.
    pub layer: Box<dyn Layer>,
    /// What can be done with it while it stands in a stack, of a type that its users know.
    pub control: Option<Box<dyn Any>>,
}

impl Made {
    /// A layer that has no control.
    pub fn layer(layer: impl Layer + 'static) -> Self {
        Made { layer: Box::new(layer), control: None }
    }

    /// A layer with its control.
    pub fn with_control(layer: impl Layer + 'static, control: impl Any) -> Self {
        Made { layer: Box::new(layer), control: Some(Box::new(control)) }
    }
}
