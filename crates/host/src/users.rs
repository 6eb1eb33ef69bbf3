// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directories of this user's programs (XDG Base Directory Specification).

use std::path::PathBuf;

/// For what can be made again: `$XDG_CACHE_HOME`, else `$HOME/.cache`; `None` when neither variable has an absolute path.
pub fn users_caches() -> Option<PathBuf> {
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}

/// For what the user writes: `$XDG_CONFIG_HOME`, else `$HOME/.config`; `None` as for [`users_caches`].
pub fn users_config() -> Option<PathBuf> {
    absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))
}

/// For what cannot be made again: `$XDG_STATE_HOME`, else `$HOME/.local/state`; `None` as for [`users_caches`].
pub fn users_state() -> Option<PathBuf> {
    absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))
}

fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}
