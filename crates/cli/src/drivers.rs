// SPDX-License-Identifier: MIT OR Apache-2.0
//! The drivers: what `outrigger drivers` lists, the schemes of LOCATIONs, and how options reach them.

mod program;

pub use program::{DriverProgram, declare, declared};

use crate::status::Failure;
use outrigger_core::registry::{DriverInfo, Given, Scheme};
use outrigger_core::{Error, OptionTable};
use std::cell::RefCell;
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
    outrigger_driver_libfuse::DRIVER,
    outrigger_driver_program::DRIVER,
    outrigger_driver_null::DRIVER,
    #[cfg(test)]
    crate::outside::DRIVER,
];

/// The tables of options that trees of the driver take: its own, and those of the cache that stands above it.
pub fn tables(driver: &DriverInfo) -> impl Iterator<Item = &'static OptionTable> + use<> {
    driver.options.iter().copied().chain(driver.cached.then_some(&outrigger_layer_cache::OPTIONS))
}

/// The scheme of this name, if a driver has it.
pub fn scheme(name: &str) -> Option<&'static Scheme> {
    DRIVERS.iter().flat_map(|driver| driver.schemes).find(|scheme| scheme.name.eq_ignore_ascii_case(name))
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
            driver.files.is_none() && driver.schemes.iter().any(|scheme| !scheme.authority)
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

    /// The same options, with one in front that any of them can take back.
    pub fn with_default(mut self, key: &str, value: &str) -> Self {
        self.pairs.insert(0, (key.to_owned(), value.to_owned()));
        self
    }

    /// Whether one of these options is given.
    pub fn has(&self, keys: &[&str]) -> bool {
        self.pairs.iter().any(|(key, _)| keys.contains(&key.as_str()))
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
    use outrigger_core::{OptionInfo, OptionTable, Result};

    /// A value that every option with such a placeholder takes.
    fn example(option: &OptionInfo) -> &'static str {
        let values = [
            ("SECONDS", "5"),
            ("SECONDS|always|never|yes|no", "5"),
            ("BYTES", "67108864"),
            ("BYTES|%", "50%"),
            ("N", "3"),
            ("OCTAL", "755"),
            ("FILE", "/file"),
            ("DIR", "/dir"),
            ("WORDS", "ssh -v"),
            ("NAME", "sftp"),
            ("LIST", "rename"),
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
        taken(&outrigger_driver_libfuse::OPTIONS, |k, v| {
            outrigger_driver_libfuse::Options::default().set(k, v)
        });
        taken(&outrigger_layer_cache::OPTIONS, |k, v| outrigger_layer_cache::Options::default().set(k, v));
        taken(&outrigger_driver_program::OPTIONS, |k, v| {
            outrigger_driver_program::Options::default().set(k, v)
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
