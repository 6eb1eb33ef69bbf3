// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the host.

use anyhow::{Result, ensure};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where a command is, also among those of the administrator.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|dir| Path::new(dir).join(name))
        .find(|file| file.is_file())
}

/// Runs a command to its end.
pub fn tool(name: &str, arguments: &[&str]) -> Result<()> {
    let command = find(name).unwrap_or_else(|| name.into());
    let output = Command::new(command).args(arguments).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
