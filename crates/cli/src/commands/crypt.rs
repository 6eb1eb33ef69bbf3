// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger crypt`: encrypted trees.

mod check;

use crate::context::Context;
use crate::run::Run;
use crate::status::Failure;
use crate::trees;
use clap::{Args, Subcommand};
use outrigger_core::registry::Usage;
use outrigger_core::{Error, Runtime, Service};
use outrigger_layer_crypt::{
    Config, Cost, Held, Keys, Source, can_initialise, change_secret, configuration, initialise,
};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

/// Arguments of `crypt`.
///
/// `--layer crypt` shows what is in an encrypted tree: `outrigger mount --layer crypt LOCATION DIR`.
#[derive(Debug, Args)]
pub struct Crypt {
    /// What to do.
    #[command(subcommand)]
    what: What,
}

/// What is done.
#[derive(Debug, Subcommand)]
enum What {
    /// Make an encrypted tree in an empty directory
    Init(Init),
    /// Change what opens a tree; the files stay as they are
    Passwd(Passwd),
    /// Read everything, and name each file and block that is damaged
    Check(Check),
}

/// Where a passphrase or a key comes from.
#[derive(Debug, Args)]
struct Opener {
    /// A private file whose first line is the passphrase; without it the terminal is asked.
    #[arg(long, value_name = "FILE", conflicts_with = "keyfile")]
    passfile: Option<PathBuf>,
    /// A private file that is the key, of at least 32 random bytes.
    #[arg(long, value_name = "FILE")]
    keyfile: Option<PathBuf>,
}

impl Opener {
    fn source(self) -> Source {
        source(self.passfile, self.keyfile)
    }
}

fn source(passfile: Option<PathBuf>, keyfile: Option<PathBuf>) -> Source {
    match (passfile, keyfile) {
        (Some(path), _) => Source::PassFile(path),
        (_, Some(path)) => Source::KeyFile(path),
        (None, None) => Source::Terminal,
    }
}

/// Arguments of `crypt init`.
#[derive(Debug, Args)]
struct Init {
    #[command(flatten)]
    opener: Opener,
    /// The memory that trying a passphrase takes.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    memory: u32,
    /// How often trying a passphrase passes over that memory.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    passes: u32,
    /// The directory.
    #[arg(value_name = "LOCATION")]
    location: OsString,
}

/// Arguments of `crypt passwd`.
#[derive(Debug, Args)]
struct Passwd {
    #[command(flatten)]
    opener: Opener,
    /// A private file whose first line is the new passphrase.
    #[arg(long, value_name = "FILE", conflicts_with = "new_keyfile")]
    new_passfile: Option<PathBuf>,
    /// A private file that is the new key.
    #[arg(long, value_name = "FILE")]
    new_keyfile: Option<PathBuf>,
    /// The encrypted tree.
    #[arg(value_name = "LOCATION")]
    location: OsString,
}

/// Arguments of `crypt check`.
#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    opener: Opener,
    /// The encrypted tree.
    #[arg(value_name = "LOCATION")]
    location: OsString,
}

impl Run for Crypt {
    const NAME: &'static str = "crypt";
    const INTERRUPTIBLE: bool = true;

    fn only_looks(&self) -> bool {
        matches!(self.what, What::Check(_))
    }

    fn run(self, context: &Context) -> Result<(), Failure> {
        match self.what {
            What::Init(init) => init.run(context),
            What::Passwd(passwd) => passwd.run(context),
            What::Check(check) => check.run(context),
        }
    }
}

/// The tree below, without the layer.
fn below(context: &Context, location: &OsStr) -> Result<trees::Tree, Failure> {
    trees::mountable(&context.trees, location, &[], None)
}

/// Asks a tree, and waits.
fn wait<T: Send + 'static>(
    context: &Context,
    location: &OsStr,
    asking: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Failure> {
    let runtime = Arc::clone(&context.trees.runtime) as Arc<dyn Runtime>;
    context.trees.site(&runtime, None).wait_for(asking).map_err(|error| cannot(location, &error))
}

fn cannot(location: &OsStr, error: &Error) -> Failure {
    // "Permission denied" alone would be taken for a matter of the directory: it is one of the passphrase.
    Failure::serious(format!("'{}': {error}", location.display()))
}

fn configured(context: &Context, location: &OsStr, service: &Arc<dyn Service>) -> Result<Config, Failure> {
    let service = Arc::clone(service);
    wait(context, location, async move { configuration(&*service).await })
}

impl Init {
    fn run(self, context: &Context) -> Result<(), Failure> {
        let Init { opener, memory, passes, location } = self;
        let failed = |error| cannot(&location, &error);
        let tree = below(context, &location)?;
        let service = Arc::clone(&tree.service);
        wait(context, &location, async move { can_initialise(&*service).await })?;
        let secret = opener.source().new_secret().map_err(failed)?;
        let cost = Cost { memory_kib: memory << 10, passes };
        let service = Arc::clone(&tree.service);
        wait(context, &location, async move { initialise(&*service, &secret, cost).await })
    }
}

impl Passwd {
    fn run(self, context: &Context) -> Result<(), Failure> {
        let Passwd { opener, new_passfile, new_keyfile, location } = self;
        let failed = |error| cannot(&location, &error);
        let tree = below(context, &location)?;
        let config = configured(context, &location, &tree.service)?;
        let (service, runtime) = (Arc::clone(&tree.service), Arc::clone(&context.trees.runtime));
        // The lock of who uses the tree is on the configuration, which is replaced.
        let _held =
            wait(context, &location, async move { Held::new(&*service, &*runtime, Usage::Changes).await })?;
        let old = opener.source().secret(&config).map_err(failed)?;
        // A wrong one is said before another is asked for.
        config.unwrap(&old).map_err(failed)?;
        let new = source(new_passfile, new_keyfile).new_secret().map_err(failed)?;
        let service = Arc::clone(&tree.service);
        wait(context, &location, async move { change_secret(&*service, &old, &new, None).await })
    }
}

impl Check {
    fn run(self, context: &Context) -> Result<(), Failure> {
        let Check { opener, location } = self;
        let failed = |error| cannot(&location, &error);
        let tree = below(context, &location)?;
        let config = configured(context, &location, &tree.service)?;
        let master =
            opener.source().secret(&config).and_then(|secret| config.unwrap(&secret)).map_err(failed)?;
        check::run(context, &location, &tree, Keys::of(&master))
    }
}
