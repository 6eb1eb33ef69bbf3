// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger drivers`: which kinds of trees and layers there are, with all their options.

use crate::context::Context;
use crate::drivers::{DRIVERS, options};
use crate::messages::output_failed;
use crate::run::Run;
use crate::status::Failure;
use crate::trees::LAYERS;
use clap::Args;
use outrigger_core::registry::{DriverInfo, LayerInfo};
use outrigger_core::{OptionInfo, OptionTable};
use serde::Serialize;
use std::io::{self, Write};

/// Arguments of `drivers`.
#[derive(Debug, Args)]
pub struct Drivers {
    /// Show only this driver or layer.
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

impl Run for Drivers {
    const NAME: &'static str = "drivers";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let wanted = |name: &str| self.name.as_deref().is_none_or(|wanted| wanted == name);
        let drivers = DRIVERS.iter().filter(|driver| wanted(driver.name));
        let layers = LAYERS.iter().filter(|layer| wanted(layer.name));
        let mut texts = Vec::new();
        for driver in drivers {
            texts.push(if context.json { to_json(&shown_driver(driver))? } else { describe_driver(driver) });
        }
        for layer in layers {
            texts.push(if context.json { to_json(&shown_layer(layer))? } else { describe_layer(layer) });
        }
        if let (true, Some(name)) = (texts.is_empty(), self.name) {
            return Err(Failure::serious(format!("there is no driver and no layer '{name}'")));
        }
        writeln!(io::stdout().lock(), "{}", texts.join("\n")).map_err(output_failed)
    }
}

/// A driver or a layer, for programs.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Shown {
    Driver {
        name: &'static str,
        opens: &'static str,
        location: &'static str,
        writable: bool,
        options: Vec<ShownOption>,
        others: &'static str,
    },
    Layer {
        name: &'static str,
        argument: &'static str,
        does: &'static str,
        options: Vec<ShownOption>,
    },
}

#[derive(Serialize)]
struct ShownOption {
    name: &'static str,
    value: &'static str,
    default: &'static str,
    help: &'static str,
    aliases: &'static [&'static str],
}

fn shown_driver(driver: &DriverInfo) -> Shown {
    let &DriverInfo { name, opens, location, writable, others, .. } = driver;
    let options = shown_options(options(driver));
    Shown::Driver { name, opens, location, writable, options, others }
}

fn shown_layer(layer: &LayerInfo) -> Shown {
    let &LayerInfo { name, argument, does, options, .. } = layer;
    Shown::Layer { name, argument, does, options: shown_options(of_layer(options)) }
}

fn of_layer(tables: &'static [&'static OptionTable]) -> impl Iterator<Item = &'static OptionInfo> {
    tables.iter().flat_map(|table| table.options)
}

fn shown_options(options: impl Iterator<Item = &'static OptionInfo>) -> Vec<ShownOption> {
    let shown = |&OptionInfo { name, value, default, help, aliases }| ShownOption {
        name,
        value,
        default,
        help,
        aliases,
    };
    options.map(shown).collect()
}

fn to_json(shown: &Shown) -> Result<String, Failure> {
    serde_json::to_string(shown).map_err(|error| Failure::new(error.to_string()))
}

fn describe_driver(driver: &DriverInfo) -> String {
    let DriverInfo { name, opens, location, writable, others, .. } = driver;
    let access = if *writable { "read and write" } else { "read only" };
    let others = if others.is_empty() { String::new() } else { format!("    and {others}\n") };
    format!(
        "{name}: {location}  ({access})\n  {opens}\n{}{others}",
        describe_options(options(driver), driver.is_dangerous)
    )
}

fn describe_layer(layer: &LayerInfo) -> String {
    format!(
        "--layer {}\n  {}\n{}",
        layer.spelt(),
        layer.does,
        describe_options(of_layer(layer.options), |_, _| false)
    )
}

fn describe_options(
    options: impl Iterator<Item = &'static OptionInfo>,
    dangerous: fn(&str, &str) -> bool,
) -> String {
    let line = |option: &OptionInfo| {
        let default = match option.default {
            "" => String::new(),
            default => format!(" [{default}]"),
        };
        let also = match option.aliases {
            [] => String::new(),
            aliases => format!(" (also {})", aliases.join(", ")),
        };
        let needs = if dangerous(option.name, option.value) { "; needs --allow-programs" } else { "" };
        format!("    {:<28}  {}{needs}{also}{default}\n", option.to_string(), option.help)
    };
    options.map(line).collect()
}
