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
