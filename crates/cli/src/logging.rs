// SPDX-License-Identifier: MIT OR Apache-2.0
//! Log messages on standard error, when `OUTRIGGER_LOG` asks for them (`OUTRIGGER_LOG=debug`).

use tracing_subscriber::EnvFilter;

/// Starts logging if the variable is set. What it may say: `tracing_subscriber::EnvFilter`.
pub fn start() {
    if let Ok(filter) = EnvFilter::try_from_env("OUTRIGGER_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .init();
    }
}

/// The same where the variable is not set, with messages as `filter` says and in plain words: of a command that goes on when it has
/// refused something.
pub fn start_by_default(filter: &str) {
    if std::env::var_os("OUTRIGGER_LOG").is_none() {
        // A second start changes nothing.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(std::io::stderr)
            .without_time()
            .with_target(false)
            .log_internal_errors(false)
            .try_init();
    }
}
