// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger drivers`: which kinds of trees there are.

use super::{Run, output_failed};
use crate::context::Context;
use crate::status::Failure;
use crate::trees::{DRIVERS, DriverInfo};
use clap::Args;
use std::io::{self, Write};

/// Arguments of `drivers`.
#[derive(Debug, Args)]
pub struct Drivers {}

impl Run for Drivers {
    const NAME: &'static str = "drivers";

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        for driver in DRIVERS {
            let text = if context.json {
                serde_json::to_string(driver).map_err(|error| Failure::new(error.to_string()))?
            } else {
                describe(driver)
            };
            writeln!(out, "{text}").map_err(output_failed)?;
        }
        Ok(())
    }
}

fn describe(driver: &DriverInfo) -> String {
    let DriverInfo { name, opens, location, writable, options } = driver;
    let access = if *writable { "read and write" } else { "read only" };
    format!("{name:<8} {location:<12} {access:<15} {opens}\n         options: {options}")
}
