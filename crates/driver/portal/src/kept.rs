// SPDX-License-Identifier: MIT OR Apache-2.0
//! What outlives the process: the configuration, and which process this is.

use crate::config::{Config, SIZE_MAX, USUAL};
use outrigger_core::survive::{Layout, Stored, Text};
use outrigger_core::{Errno, Keep, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What is noted of a tree.
const LAYOUT: Layout = Layout::of("portal");

outrigger_core::fields! {
    /// What the first process of a tree notes for those to come.
    struct Noted {
        /// How many processes have served the tree.
        processes: u64,
        /// The configuration.
        text: Text<'static, 8192>,
        /// The directory that paths in it are relative to.
        base: Text<'static, 512>,
    }
}

/// The configuration in `file`, or as the first process has read it, and the number of this process.
///
/// # Errors
/// Why the file cannot be read, what is wrong in it, and those of [`Keep`].
pub(crate) fn read(file: &str, keep: Option<&dyn Keep>, may_start_programs: bool) -> Result<(Config, u64)> {
    let shown = if file.is_empty() { "portal" } else { file };
    let parse =
        |text: &str, base: &Path, is_new| Config::parse(text, (shown, base), (is_new, may_start_programs));
    let Some(keep) = keep else {
        let (text, base) = load(file)?;
        return Ok((parse(&text, &base, true)?, 0));
    };
    let area = LAYOUT.attach(keep, Noted::WORDS)?.area;
    let noted = area.view::<Noted<'_>>();
    let (is_new, (text, base)) = match (noted.text().get(), noted.base().get()) {
        (Some(text), Some(base)) => {
            let text =
                String::from_utf8(text).map_err(|_| Errno::EUCLEAN.because("what is kept is no text"))?;
            (false, (text, PathBuf::from(OsString::from_vec(base))))
        }
        _ => (true, load(file)?),
    };
    let config = parse(&text, &base, is_new)?;
    noted.text().set(text.as_bytes())?;
    noted.base().set(base.as_os_str().as_bytes())?;
    Ok((config, noted.processes().increase(1)))
}

/// The text of a configuration file, and the directory it is in.
fn load(file: &str) -> Result<(String, PathBuf)> {
    if file.is_empty() {
        return Ok((USUAL.to_owned(), "/".into()));
    }
    let refused = |error: std::io::Error| {
        let why = outrigger_core::Error::from(error);
        why.errno.because(format!("portal: the configuration '{file}': {}", why.why()))
    };
    let path = std::path::absolute(file).map_err(refused)?;
    let mut text = Vec::new();
    let opened = File::open(&path).map_err(refused)?;
    if !opened.metadata().map_err(refused)?.is_file() {
        return Err(Errno::EINVAL.because(format!("portal: the configuration '{file}' is no regular file")));
    }
    opened.take(SIZE_MAX as u64 + 1).read_to_end(&mut text).map_err(refused)?;
    if text.len() > SIZE_MAX {
        let why = format!("portal: the configuration '{file}' has more than {SIZE_MAX} bytes");
        return Err(Errno::EFBIG.because(why));
    }
    let text = String::from_utf8(text)
        .map_err(|_| Errno::EINVAL.because(format!("portal: the configuration '{file}' is not in UTF-8")))?;
    Ok((text, path.parent().unwrap_or(Path::new("/")).to_owned()))
}
