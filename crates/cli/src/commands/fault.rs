// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger fault`: the rules by which a running mount makes requests fail.

use crate::context::Context;
use crate::control::{self, Answer, Ask};
use crate::messages::output_failed;
use crate::messages::{record, shown_on_terminal};
use crate::run::Run;
use crate::status::Failure;
use clap::Args;
use outrigger_core::Error;
use outrigger_layer_fault::Acted;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;

/// Arguments of `fault`.
///
/// Without RULES prints the rules of the mount, with how many requests each has matched and on how many it has acted. With
/// RULES, these take the place of the rules before, and their counts begin at 0; new rules end the effect of `cut`. The mount
/// needs the layer `fault` (`outrigger mount --layer fault ...`, with rules or without). outrigger-drivers(7) describes the
/// rules.
#[derive(Debug, Args)]
pub struct Fault {
    /// The mount.
    #[arg(value_name = "DIR")]
    mount: PathBuf,
    /// Rules as `--layer fault=` takes them, such as `op=write,path=*.db,error=ENOSPC,after=3`; all from now on.
    #[arg(value_name = "RULES", num_args = 0.., conflicts_with = "clear")]
    rules: Vec<String>,
    /// Drop all rules: nothing fails any more.
    #[arg(long)]
    clear: bool,
}

impl Run for Fault {
    const NAME: &'static str = "fault";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let rules = (self.clear || !self.rules.is_empty()).then(|| self.rules.join(";"));
        let (peer, _) = control::find(&self.mount)?;
        let cannot = |why: String| Failure::new(format!("'{}': {why}", self.mount.display()));
        let failed = |error: io::Error| cannot(Error::from(error).to_string());
        let changes = rules.is_some();
        let stream = peer.connect(&Ask::Fault { rules }).map_err(failed)?;
        let faults = match control::first_answer(&mut BufReader::new(stream)).map_err(failed)? {
            Answer::Faults(faults) => faults,
            Answer::Failed(why) => return Err(cannot(why)),
            _ => return Err(cannot("an unexpected answer".into())),
        };
        if changes {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        faults.iter().try_for_each(|fault| out.write_all(&shown(fault, context.json))).map_err(output_failed)
    }
}

fn shown(fault: &Acted, json: bool) -> Vec<u8> {
    if json {
        return record(fault).into_bytes();
    }
    let Acted { rule, matched, acted } = fault;
    let text = format!("{rule}: matched {matched}, acted on {acted}\n");
    shown_on_terminal(text.as_bytes(), true)
}
