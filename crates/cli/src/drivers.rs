// SPDX-License-Identifier: MIT OR Apache-2.0
//! The drivers: what `outrigger drivers` lists, the schemes of LOCATIONs, and how options reach them.

mod program;

pub use program::{DriverProgram, declare, declared};

use crate::status::Failure;
use outrigger_core::registry::{DriverInfo, Follows, Given, Scheme};
use outrigger_core::{Errno, Error, OptionInfo, OptionTable};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

/// Every driver.
pub const DRIVERS: &[DriverInfo] = &[
    outrigger_driver_local::DRIVER,
    outrigger_driver_kernel::DRIVER,
    outrigger_driver_archive::DRIVER,
    outrigger_driver_mem::DRIVER,
    outrigger_driver_sftp::DRIVER,
    outrigger_driver_ftp::DRIVER,
    outrigger_driver_http::DRIVER,
    outrigger_driver_http::DAV_DRIVER,
    outrigger_driver_nfs::DRIVER,
    outrigger_driver_ninep::DRIVER,
    outrigger_driver_wire::DRIVER,
    outrigger_driver_libfuse::DRIVER,
    outrigger_driver_portal::DRIVER,
    outrigger_driver_program::DRIVER,
    outrigger_driver_null::DRIVER,
    #[cfg(test)]
    crate::outside::DRIVER,
];

/// The tables of options that trees of the driver take: its own, and those of the layers that stand above the tree of a host.
pub fn tables(driver: &DriverInfo) -> impl Iterator<Item = &'static OptionTable> + use<> {
    const ABOVE: &[&OptionTable] = &[&outrigger_layer_contain::OPTIONS, &outrigger_layer_cache::OPTIONS];
    driver.options.iter().chain(if driver.cached { ABOVE } else { &[] }).copied()
}

/// What of these options trees of the driver accept.
pub fn options(driver: &DriverInfo) -> impl Iterator<Item = &'static OptionInfo> + use<> {
    let recalls = driver.recalls;
    let accepted =
        move |option: &&OptionInfo| recalls || option.name != outrigger_layer_cache::KEEPS_METADATA;
    tables(driver).flat_map(|table| table.options).filter(accepted)
}

/// The scheme of this name, if a driver has it.
pub fn scheme(name: &str) -> Option<&'static Scheme> {
    DRIVERS.iter().flat_map(|driver| driver.schemes).find(|scheme| scheme.name.eq_ignore_ascii_case(name))
}

/// The driver that has `what` in its description, and that.
///
/// # Errors
/// That no driver `opens` such trees.
pub fn that_has<T>(
    what: impl Fn(&DriverInfo) -> Option<T>,
    opens: &str,
) -> Result<(&'static DriverInfo, T), Failure> {
    let found = DRIVERS.iter().find_map(|driver| Some((driver, what(driver)?)));
    found.ok_or_else(|| Failure::serious(format!("no driver opens {opens}")))
}

/// Has `driver` open a tree with these options. What is wrong with an option is said as it is, what else is wrong as `cannot` says.
///
/// # Errors
/// Both of these.
pub fn opened<T>(
    driver: &DriverInfo,
    options: &DriverOptions,
    open: impl FnOnce(&dyn Given) -> Result<T, Error>,
    cannot: impl FnOnce(&Error) -> Failure,
) -> Result<T, Failure> {
    let given = Noting { options, cached: driver.cached, wrong: Cell::default() };
    open(&given).map_err(|error| match given.wrong.take() {
        Some(wrong) => Failure::serious(wrong).with(Errno::EINVAL),
        None => cannot(&error),
    })
}

/// Options, and what is wrong with one of them.
struct Noting<'a> {
    options: &'a DriverOptions,
    /// Whether a cache stands above the tree in a mount.
    cached: bool,
    wrong: Cell<Option<String>>,
}

impl Given for Noting<'_> {
    fn apply(&self, set: &mut dyn FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Error> {
        let applied = Given::apply(self.options, &mut |key, value| {
            set(key, value).map_err(|error| match self.cached && outrigger_layer_cache::Options::knows(key) {
                true => Errno::EINVAL
                    .because(format!("option {key} concerns mounts only, which cache for longer")),
                false => error,
            })
        });
        applied.inspect_err(|error| self.wrong.set(Some(error.why())))
    }
}

/// Whether a driver takes options: has it set them, and open nothing.
///
/// # Errors
/// What it says about the first one that it does not take.
pub fn check(
    options: &DriverOptions,
    open: impl FnOnce(&dyn Given) -> Result<(), Error>,
) -> Result<(), Failure> {
    let trying = Trying { options, wrong: Cell::default() };
    // It fails where it would begin to open the tree.
    let _ = open(&trying);
    trying.wrong.take().map_or(Ok(()), |wrong| Err(Failure::serious(wrong)))
}

/// Options that are set, after which nothing can go on; and what is wrong with one of them.
struct Trying<'a> {
    options: &'a DriverOptions,
    wrong: Cell<Option<String>>,
}

impl Given for Trying<'_> {
    fn apply(&self, set: &mut dyn FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Error> {
        if let Err(error) = Given::apply(self.options, set) {
            self.wrong.set(Some(error.why()));
        }
        Err(Errno::ECANCELED.into())
    }
}

/// Which options of a command with trees of several drivers were accepted: it is enough that one driver accepts an option.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sides {
    taken: RefCell<HashSet<String>>,
    /// With the driver's error.
    refused: RefCell<Vec<(String, String)>>,
}

impl Sides {
    /// All trees are open: whatever concerns one of them has been taken.
    ///
    /// # Errors
    /// What a driver said about an option that none takes.
    pub fn all_taken(&self) -> Result<(), Failure> {
        let (taken, refused) = (self.taken.borrow(), self.refused.borrow());
        match refused.iter().find(|(key, _)| !taken.contains(key)) {
            Some((_, why)) => Err(Failure::serious(why)),
            None => Ok(()),
        }
    }
}

/// Options meant for a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverOptions {
    pairs: Vec<(String, String)>,
    /// Where some may be meant for others.
    sides: Option<Rc<Sides>>,
}

impl DriverOptions {
    /// Reads `key=value,key` lists.
    pub fn parse(lists: &[String]) -> Self {
        let items = lists.iter().flat_map(|list| list.split(',')).filter(|item| !item.is_empty());
        DriverOptions::of(items)
    }

    /// The same options, of which some may be meant for other drivers.
    pub fn for_sides(self, sides: Option<Rc<Sides>>) -> Self {
        DriverOptions { sides, ..self }
    }

    /// The same options, some for the tree in a file and others for the tree that the file is in; and what accepted them, if that is
    /// not to be judged together with other trees.
    pub fn for_inner_and_outer(self) -> (Self, Option<Rc<Sides>>) {
        match self.sides {
            Some(_) => (self, None),
            None => {
                let sides = Rc::<Sides>::default();
                (self.for_sides(Some(Rc::clone(&sides))), Some(sides))
            }
        }
    }

    /// Whether an option can only be meant for the tree of another driver than `own`, which may take what it does not describe.
    /// Trees in memory have no part in a command with several.
    fn is_elsewhere(&self, own: &DriverInfo, key: &str) -> bool {
        let of = |driver: &DriverInfo| tables(driver).any(|table| table.has(key));
        let is_in_memory = |driver: &DriverInfo| {
            driver.files.is_none() && driver.schemes.iter().any(|scheme| scheme.follows == Follows::Path)
        };
        let mut others = DRIVERS.iter().filter(|driver| !is_in_memory(driver) && driver.name != own.name);
        self.sides.is_some() && !of(own) && others.any(of)
    }

    /// Reads single `key=value` or `key` items.
    pub fn of<'a>(items: impl Iterator<Item = &'a str>) -> Self {
        let pair = |item: &str| match item.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (item.to_owned(), String::new()),
        };
        DriverOptions { pairs: items.map(pair).collect(), sides: None }
    }

    /// Takes out those whose keys are `known`.
    pub fn take(&mut self, known: impl Fn(&str) -> bool) -> Self {
        let pairs = self.pairs.extract_if(.., |(key, _)| known(key)).collect();
        DriverOptions { pairs, sides: self.sides.clone() }
    }

    /// Whether one of these options is given.
    pub fn has(&self, keys: &[&str]) -> bool {
        self.pairs.iter().any(|(key, _)| keys.contains(&key.as_str()))
    }

    /// All of them, in the order of their keys: two trees of one place that are seen in the same way have the same.
    pub fn listed(&self) -> String {
        let mut items: Vec<_> = self.pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        items.sort_unstable();
        items.join(",")
    }

    /// The key of the first one.
    pub fn first(&self) -> Option<&str> {
        self.pairs.first().map(|(key, _)| &**key)
    }

    /// Gives each option to `set`.
    ///
    /// # Errors
    /// As [`Given::apply`].
    pub fn apply(&self, mut set: impl FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Failure> {
        let applied = Given::apply(self, &mut set);
        applied.map_err(|error| Failure::serious(error.reason.as_deref().unwrap_or("bad option")))
    }
}

/// Options for one driver.
pub struct GivenTo<'a> {
    /// Those of the command.
    pub options: &'a DriverOptions,
    /// The driver that gets them.
    pub driver: &'a DriverInfo,
}

impl Given for GivenTo<'_> {
    fn apply(&self, set: &mut dyn FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Error> {
        let own = self.driver;
        Given::apply(self.options, &mut |key, value| match (self.options.is_elsewhere(own, key), own.options)
        {
            (true, [table, ..]) => Err(table.unknown(key)),
            _ => set(key, value),
        })
    }
}

impl Given for DriverOptions {
    /// What a driver says about an option it does not take is an error, unless that may be meant for another one.
    fn apply(&self, set: &mut dyn FnMut(&str, &str) -> Result<(), Error>) -> Result<(), Error> {
        for (key, value) in &self.pairs {
            match (set(key, value), &self.sides) {
                (Err(error), None) => return Err(error),
                (Err(error), Some(sides)) => {
                    let why = error.reason.as_deref().unwrap_or("bad option").to_owned();
                    sides.refused.borrow_mut().push((key.clone(), why));
                }
                (Ok(()), Some(sides)) => _ = sides.taken.borrow_mut().insert(key.clone()),
                (Ok(()), None) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::DRIVERS;
    use outrigger_core::{OptionInfo, OptionTable, Result};
    use std::path::{Path, PathBuf};

    #[test]
    fn each_form_of_a_location_belongs_to_one_driver() {
        let count = |has: fn(&super::DriverInfo) -> bool| DRIVERS.iter().filter(|driver| has(driver)).count();
        assert_eq!(count(|driver| driver.directories.is_some()), 1, "directories of this machine");
        assert_eq!(count(|driver| driver.hosts.is_some()), 1, "HOST:PATH");
        assert_eq!(count(|driver| driver.commands.is_some()), 1, "fuse:COMMAND");
        assert_eq!(count(|driver| driver.declared.is_some()), 1, "--driver-program");
        let dangerous = |key: &str| DRIVERS.iter().any(|driver| (driver.is_dangerous)(key, "x"));
        assert!(dangerous("ssh_command") && !dangerous("port"));
    }

    /// Files that may know a driver's crate: this list of all, and what is about one driver or reads files with its reader.
    const KNOW_DRIVERS: &[&str] = &[
        "drivers.rs",
        "guarded.rs",
        "commands/doctor.rs",
        "commands/guard.rs",
        "commands/inspect.rs",
        "image/mod.rs",
        "trees/files.rs",
    ];

    fn sources(dir: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let below = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
        entries.flat_map(below).filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
    }

    #[test]
    fn only_the_registry_and_what_is_about_one_driver_name_its_crate() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let all = sources(&root);
        assert!(all.len() > 100);
        for file in all {
            let text = std::fs::read_to_string(&file).unwrap();
            let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let names = product.lines().any(|line| {
                line.split_once("outrigger_driver_").is_some_and(|(_, rest)| rest.contains("::"))
            });
            let file = file.strip_prefix(&root).unwrap();
            let may = KNOW_DRIVERS.iter().any(|known| file == Path::new(known));
            assert!(may || !names, "{} names a driver's crate", file.display());
        }
    }

    /// A value that every option with such a placeholder takes.
    fn example(option: &OptionInfo) -> &'static str {
        let values = [
            ("SECONDS", "5"),
            ("SECONDS|PERCENT%|always|never|yes|no", "5"),
            ("BYTES", "67108864"),
            ("BYTES|%", "50%"),
            ("N", "3"),
            ("OCTAL", "755"),
            ("FILE", "/file"),
            ("DIR", "/dir"),
            ("WORDS", "ssh -v"),
            ("NAME", "sftp"),
            ("LIST", "rename"),
            ("LOCATION", "/srv"),
        ];
        let known = values.iter().find(|(value, _)| *value == option.value).map(|(_, example)| *example);
        known.unwrap_or_else(|| option.value.split('|').next().unwrap_or_default())
    }

    fn taken(table: &OptionTable, mut set: impl FnMut(&str, &str) -> Result<()>) {
        for option in table.options {
            let value = example(option);
            set(option.name, value).unwrap_or_else(|error| panic!("{option} ({value}): {error}"));
            assert!(!option.help.is_empty() && !option.help.ends_with('.'), "{option}");
        }
    }

    #[test]
    fn every_option_that_is_described_is_taken() {
        taken(&outrigger_driver_local::OPTIONS, |k, v| {
            outrigger_driver_local::LocalOptions::default().set(k, v)
        });
        taken(&outrigger_driver_mem::OPTIONS, |k, v| outrigger_driver_mem::Options::default().set(k, v));
        taken(&outrigger_driver_archive::OPTIONS, |k, v| {
            outrigger_driver_archive::Options::default().set(k, v)
        });
        for table in [&outrigger_driver_sftp::OPTIONS, &outrigger_driver_sftp::ACCEPTED] {
            taken(table, |k, v| outrigger_driver_sftp::Options::default().set(k, v));
        }
        for table in [&outrigger_driver_ftp::SHARED, &outrigger_driver_ftp::OPTIONS] {
            taken(table, |k, v| outrigger_driver_ftp::Options::default().set(k, v));
        }
        taken(&outrigger_driver_http::INDEX, |k, v| {
            outrigger_driver_http::set(&outrigger_driver_http::OPTIONS, &mut Default::default(), k, v)
        });
        for table in [&outrigger_driver_http::OPTIONS, &outrigger_driver_http::DAV_OPTIONS] {
            taken(table, |k, v| outrigger_driver_http::set(table, &mut Default::default(), k, v));
        }
        taken(&outrigger_driver_nfs::OPTIONS, |k, v| outrigger_driver_nfs::Options::default().set(k, v));
        taken(&outrigger_driver_ninep::OPTIONS, |k, v| outrigger_driver_ninep::Options::default().set(k, v));
        taken(&outrigger_driver_wire::OPTIONS, |k, v| outrigger_driver_wire::Options::default().set(k, v));
        taken(&outrigger_driver_libfuse::OPTIONS, |k, v| {
            outrigger_driver_libfuse::Options::default().set(k, v)
        });
        taken(&outrigger_layer_cache::OPTIONS, |k, v| outrigger_layer_cache::Options::default().set(k, v));
        taken(&outrigger_driver_program::OPTIONS, |k, v| {
            outrigger_driver_program::Options::default().set(k, v)
        });
        taken(&outrigger_driver_portal::OPTIONS, |k, v| {
            outrigger_driver_portal::Options::default().set(k, v)
        });
        taken(&outrigger_driver_null::OPTIONS, |k, v| outrigger_driver_null::Options::default().set(k, v));
        taken(&outrigger_driver_kernel::OPTIONS, |key, value| {
            let value = if key == "erase" { "128k" } else { value };
            let mut options = outrigger_driver_kernel::Options::default();
            options
                .set(key, value)
                .map(|()| assert_eq!(options.passed, [""; 0], "{key} is not the file system's"))
        });
    }
}
