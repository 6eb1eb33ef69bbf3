// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is measured, one group a file.

pub mod archive;
pub mod attach;
pub mod commands;
pub mod crypt;
pub mod far;
pub mod ftp;
pub mod guard;
pub mod image;
pub mod local;
pub mod memory;
pub mod nfs;
pub mod ninep;
pub mod null;
pub mod path;
pub mod relay;
pub mod run;
pub mod sftp;
pub mod wire;

use crate::compare::{Effort, Sampler, in_turns};
use crate::mounts::Mount;
use crate::peers::Peers;
use crate::scratch::Scratch;
use crate::table::{Row, Unit};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What every group needs.
#[derive(Debug)]
pub struct Bench {
    /// The program.
    pub outrigger: PathBuf,
    /// Those it is compared with.
    pub peers: Peers,
    /// How much is measured.
    pub effort: Effort,
    /// Trees of a tenth of the size.
    pub quick: bool,
    /// The way to an SSH server.
    pub way: Way,
    /// The build directory, with the tools of tests.
    pub target: PathBuf,
    /// Where everything lives.
    pub scratch: Scratch,
}

/// A line to another host.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// There and back.
    pub delay: Duration,
    /// How many bytes a second each direction carries; no limit when there is none.
    pub rate: Option<f64>,
}

impl Bench {
    /// Finds the peers.
    ///
    /// # Errors
    /// When the scratch directory cannot be written.
    pub fn new(
        outrigger: PathBuf,
        target: &Path,
        scratch: Scratch,
        (quick, way): (bool, Way),
    ) -> Result<Self> {
        let (rounds, sample) = if quick { (2, 20) } else { (11, 150) };
        let effort = Effort { rounds, sample: Duration::from_millis(sample) };
        let target = target.to_owned();
        Ok(Bench { outrigger, peers: Peers::find(&target), effort, quick, way, target, scratch })
    }

    /// `count`, or a tenth of it for a quick run.
    pub fn scaled(&self, count: usize) -> usize {
        if self.quick { count / 10 } else { count }
    }

    /// A path for a mountpoint that does not exist yet.
    pub fn mountpoint(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Measures the same on several mounts in turns.
    ///
    /// # Errors
    /// The first error of `sample`.
    pub fn on_mounts(
        &self,
        what: &str,
        unit: Unit,
        mounts: &[Mount],
        sample: impl Fn(&Mount) -> Result<Option<f64>>,
    ) -> Result<Row> {
        let sample = &sample;
        let subjects = mounts.iter().map(|mount| {
            let sampler = move || sample(mount);
            (mount.name, Box::new(sampler) as Sampler<'_>)
        });
        in_turns(what, unit, self.effort.rounds, subjects.collect())
    }
}
