// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of every command about the trees it opens.

use crate::drivers::{DRIVERS, DriverProgram, tables};
use crate::location::{Base, Location};
use crate::status::Failure;
use crate::trees::LAYERS;
use clap::Args;
use outrigger_core::OptionTable;
use std::ffi::OsStr;
use std::io;
use std::time::Duration;

/// Options for the trees a command opens.
#[derive(Debug, Clone, Default, Args)]
pub struct TreeOptions {
    /// Permit LOCATIONs (`fuse:COMMAND`) and options that run programs or tell ssh whom to talk to (command=, ssh_command=, F=,
    /// ProxyCommand=, ...). Must stand in front of the command, where no pattern of the shell puts a file name.
    #[arg(long, help_heading = "Trees")]
    pub allow_programs: bool,
    /// Have the program COMMAND serve LOCATIONs that begin with `NAME:`, as in `--driver-program notes=./notes.py`; can be repeated. Must
    /// stand in front of the command, where no pattern of the shell puts a file name.
    #[arg(long, help_heading = "Trees", value_name = "NAME=COMMAND")]
    pub driver_program: Vec<DriverProgram>,
    /// Options for the drivers, as in `--opt key=value,key`.
    #[arg(long = "opt", global = true, value_name = "KEY[=VALUE],...", help_heading = "Trees")]
    pub opt: Vec<String>,
    /// Put a layer on each tree, in cp and mv on both sides; can be repeated, the first is the one nearest to the driver, as in `--layer
    /// readonly`. A layer stands on the root of a tree: DIR::/PATH is PATH in a tree of its own whose root is DIR. `--layer crypt=plain`
    /// leaves trees alone that are not encrypted; any other layer of one side only needs a mount of that side.
    #[arg(long = "layer", global = true, value_name = "NAME[=SPEC]", help_heading = "Trees")]
    pub layer: Vec<String>,
    /// Give up on a single operation after this many seconds.
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds, help_heading = "Trees")]
    pub timeout: Option<Duration>,
}

/// Those that can stand after the command, too.
pub const GLOBALS: &[&str] = &["opt", "layer", "timeout"];

impl TreeOptions {
    /// Refuses options that mean nothing to `command`, which knows `globals` only.
    ///
    /// # Errors
    /// A sentence about the first one.
    pub fn concern(&self, command: &str, globals: &[&str]) -> Result<(), Failure> {
        let given = [!self.opt.is_empty(), !self.layer.is_empty(), self.timeout.is_some()];
        let mut useless = GLOBALS.iter().zip(given).filter(|(name, given)| *given && !globals.contains(name));
        match useless.next() {
            Some((name, _)) => Err(Failure::serious(format!(
                "no option --{name} here: it is for trees that a command opens, and {command} opens none"
            ))),
            None => Ok(()),
        }
    }

    /// The same where files of layers and drivers are named by absolute paths: for trees that a process opens after it has left its working
    /// directory.
    ///
    /// # Errors
    /// What hinders asking for the working directory.
    pub fn with_absolute_files(mut self) -> Result<Self, Failure> {
        let of_drivers: Vec<&OptionTable> = DRIVERS.iter().flat_map(tables).collect();
        for list in &mut self.opt {
            let absolute = with_absolute_files(list, &of_drivers);
            *list = absolute.map_err(|error| Failure::serious(format!("--opt {list}: {error}")))?;
        }
        for spec in &mut self.layer {
            let Some((name, list)) = spec.split_once('=') else { continue };
            let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else { continue };
            let list = with_absolute_files(list, layer.options);
            *spec = format!("{name}={}", list.map_err(|error| Failure::serious(format!("{spec}: {error}")))?);
        }
        Ok(self)
    }

    /// Refuses options that name programs or weaken what ssh checks, unless the user allows them.
    ///
    /// # Errors
    /// A sentence about the first such option in `lists`, with what allows it, which is `also` besides.
    pub fn allow(&self, command: &str, lists: &[String], also: &str) -> Result<(), Failure> {
        let mut options = lists
            .iter()
            .flat_map(|list| list.split(','))
            .map(|item| item.split_once('=').unwrap_or((item, "")));
        let is_dangerous =
            |key: &str, value: &str| DRIVERS.iter().any(|driver| (driver.is_dangerous)(key, value));
        match options.find(|(key, value)| is_dangerous(key, value)) {
            Some((key, _)) if !self.allow_programs => Err(Failure::serious(format!(
                "option {key} can start programs or weaken ssh's checks: {also}put --allow-programs in front of the command \
                 (outrigger --allow-programs {command} ...)"
            ))),
            _ => Ok(()),
        }
    }
}

/// A list of options in which files are named by absolute paths, for a process that leaves its working directory. A LOCATION is the
/// last item, up to the end of the list.
fn with_absolute_files(list: &str, tables: &[&OptionTable]) -> io::Result<String> {
    let value_of = |key: &str| {
        let known = tables.iter().flat_map(|table| table.options).find(|option| option.is(key));
        // Those of ssh_config(5) that name files are called so, and stand in no table.
        let is_file = || key.len() > "file".len() && key.to_ascii_lowercase().ends_with("file");
        known.map_or_else(|| if is_file() { "FILE" } else { "" }, |option| option.value)
    };
    let absolute = |path: &str| std::path::absolute(path).map(|path| path.display().to_string());
    let (mut items, mut rest) = (Vec::new(), list);
    while !rest.is_empty() {
        let (item, after) = rest.split_once(',').unwrap_or((rest, ""));
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        match value_of(key) {
            "FILE" | "DIR" if !value.is_empty() && value != "none" && !value.starts_with(['~', '%', '$']) => {
                items.push(format!("{key}={}", absolute(value)?));
            }
            "LOCATION" if item.contains('=') => {
                let location = &rest[key.len() + 1..];
                items.push(match Location::parse(OsStr::new(location)).base {
                    Base::Host(path) if path.is_relative() => format!("{key}={}", absolute(location)?),
                    _ => rest.to_owned(),
                });
                break;
            }
            _ => items.push(item.to_owned()),
        }
        rest = after;
    }
    Ok(items.join(","))
}

/// Reads a number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "a number of seconds is needed, as in 2.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_trees_are_refused_where_none_is_opened() {
        let options = TreeOptions { timeout: Some(Duration::ZERO), ..TreeOptions::default() };
        assert!(options.concern("umount", &["timeout"]).is_ok());
        let refused = options.concern("doctor", &[]).unwrap_err().to_string();
        assert!(refused.contains("no option --timeout here"), "{refused}");
    }

    #[test]
    fn files_of_layers_have_absolute_paths_for_a_process_that_goes_elsewhere() {
        let layer = [
            "crypt=plain,passfile=pass",
            "crypt=keyfile=/k",
            "union=owner=mine,upper=up,per",
            "fault=op=read,error=EIO",
        ];
        let options = TreeOptions { layer: layer.map(str::to_owned).to_vec(), ..TreeOptions::default() };
        let here = std::env::current_dir().unwrap();
        let here = here.display();
        let expected = [
            format!("crypt=plain,passfile={here}/pass"),
            "crypt=keyfile=/k".to_owned(),
            format!("union=owner=mine,upper={here}/up,per"),
            "fault=op=read,error=EIO".to_owned(),
        ];
        assert_eq!(options.with_absolute_files().unwrap().layer, expected);
        let opt = [
            "ca=ca.pem,port=1",
            "cache_dir=~/c,F=/etc/ssh",
            "IdentityFile=key,uidfile=sub/users,UserKnownHostsFile=none",
        ];
        let options = TreeOptions { opt: opt.map(str::to_owned).to_vec(), ..TreeOptions::default() };
        let expected = [
            format!("ca={here}/ca.pem,port=1"),
            opt[1].to_owned(),
            format!("IdentityFile={here}/key,uidfile={here}/sub/users,UserKnownHostsFile=none"),
        ];
        assert_eq!(options.with_absolute_files().unwrap().opt, expected);
        let options =
            TreeOptions { layer: vec!["union=upper=sftp://host/dir".to_owned()], ..TreeOptions::default() };
        assert_eq!(options.with_absolute_files().unwrap().layer, ["union=upper=sftp://host/dir"]);
    }

    #[test]
    fn a_timeout_is_a_number_of_seconds_and_nothing_else() {
        assert_eq!(seconds("2.5"), Ok(Duration::from_millis(2500)));
        for text in ["-1", "NaN", "inf", "1e300", "soon", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
