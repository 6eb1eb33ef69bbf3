// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounted images whose processes are killed at random moments of a load, and the image afterwards: its journal is replayed by
//! the host's kernel or tool, the tool of its type finds nothing wrong, and all that had been synced is there.

use crate::cleanup;
use crate::mounted::Place;
use crate::processes;
use crate::synced::Synced;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use outrigger_images::{Image, command, kind};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time from the first step of a load to a death.
const PAUSE: Duration = Duration::from_millis(200);
/// How long killed processes may take to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// The name of the process with the kernel code, as far as the kernel keeps it.
const WORKER: &str = "outrigger-kerne";

/// Which processes are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Victim {
    /// The process with the kernel code of a guarded mount, which survives.
    Worker,
    /// Every process of a guarded mount at once.
    Everything,
    /// The process with the kernel code of a mount without a guard.
    Unguarded,
}

/// The types, and how the journal of one is replayed, in words of a shell where `$1` is the image and `$2` a directory.
const TYPES: &[(&str, &str)] = &[
    ("ext4", "e2fsck -p \"$1\" || [ $? -le 1 ]"),
    ("xfs", "mount -o loop \"$1\" \"$2\" && umount \"$2\""),
    ("btrfs", "mount -o loop \"$1\" \"$2\" && umount \"$2\""),
    ("vfat", "fsck.vfat -a \"$1\" || [ $? -le 1 ]"),
];

/// Prints the table; false when anything was lost, or an image was not clean.
pub fn run(place: &Place, types: &[String], victims: &[Victim], kills: u32) -> Result<bool> {
    println!("| type | who dies | deaths | steps that were synced | wrong |\n|---|---|---|---|---|");
    let mut good = true;
    for (name, replay) in TYPES.iter().filter(|row| types.is_empty() || types.iter().any(|one| one == row.0))
    {
        let Some(kind) = kind(name) else { continue };
        for &victim in
            Victim::value_variants().iter().filter(|one| victims.is_empty() || victims.contains(one))
        {
            let image = Image::new(kind);
            let (path, mountpoint) = (image.path(), place.plain("image")?);
            let synced = Synced::new(u64::from(kills), *name != "vfat");
            let mut trial = Trial { place, replay, image, path, mountpoint, synced, wrong: Vec::new() };
            let deaths = trial.act(victim, kills).with_context(|| format!("{name}, {victim:?}"))?;
            trial.wrong.iter().take(5).for_each(|what| eprintln!("{name}, {victim:?}: {what}"));
            let (steps, wrong) = (trial.synced.steps, trial.wrong.len());
            println!("| {name} | {} | {deaths} | {steps} | {wrong} |", victim.title());
            good &= wrong == 0 && deaths == kills;
        }
    }
    Ok(good)
}

impl Victim {
    fn title(self) -> &'static str {
        match self {
            Victim::Worker => "the kernel code of a guarded mount, which goes on",
            Victim::Everything => "every process of a guarded mount at once",
            Victim::Unguarded => "the kernel code of a mount without a guard",
        }
    }
}

struct Trial<'a> {
    place: &'a Place,
    replay: &'static str,
    image: Image,
    path: PathBuf,
    mountpoint: PathBuf,
    synced: Synced,
    wrong: Vec<String>,
}

impl Trial<'_> {
    fn act(&mut self, victim: Victim, kills: u32) -> Result<u32> {
        let mut random = fastrand::Rng::with_seed(u64::from(kills));
        self.mount(victim)?;
        Synced::prepare(&self.mountpoint)?;
        if victim == Victim::Worker {
            let deaths = self.survive(&mut random, kills)?;
            self.umount()?;
            self.look()?;
            return Ok(deaths);
        }
        for death in 0..kills {
            if death > 0 {
                self.mount(victim)?;
            }
            self.die(victim, PAUSE.mul_f64(random.f64()))?;
            cleanup::release(&self.mountpoint);
            self.look()?;
        }
        Ok(kills)
    }

    fn mount(&self, victim: Victim) -> Result<()> {
        let mut mount = Command::new(self.place.program());
        let options: &[&str] = if victim == Victim::Unguarded { &["-o", "guard=none"] } else { &[] };
        self.place.start(mount.arg("mount").args(options).arg(&self.path).arg(&self.mountpoint))
    }

    fn umount(&self) -> Result<()> {
        let ended = Command::new(self.place.program()).arg("umount").arg(&self.mountpoint).output()?;
        ensure!(ended.status.success(), "umount: {}", String::from_utf8_lossy(&ended.stderr));
        ensure!(processes::wait(&self.processes(), PATIENCE), "what served the mount does not end");
        Ok(())
    }

    /// What `outrigger status` says of the mount; for finding the cause of a wrong result.
    fn status(&self) -> String {
        let asked = Command::new(self.place.program()).arg("status").arg(&self.mountpoint).output();
        asked.map_or_else(
            |error| error.to_string(),
            |said| String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned(),
        )
    }

    /// All processes of the mount: its servers and their descendants.
    fn processes(&self) -> Vec<Pid> {
        let mountpoint = self.mountpoint.display().to_string();
        let mut found = processes::with_argument(&mountpoint);
        for pid in found.clone() {
            found.extend(processes::descendants(pid.as_raw_nonzero().get()));
        }
        found.sort_by_key(|pid| pid.as_raw_nonzero());
        found.dedup();
        found
    }

    fn worker(&self) -> Option<Pid> {
        let is_it = |pid: &Pid| {
            processes::name_and_state(*pid)
                .is_some_and(|(name, state)| name.starts_with(WORKER) && !"ZX".contains(state))
        };
        self.processes().into_iter().find(is_it)
    }

    /// Runs a load while the kernel code dies repeatedly, which the load must not notice.
    fn survive(&mut self, random: &mut fastrand::Rng, kills: u32) -> Result<u32> {
        let over = AtomicBool::new(false);
        let (mut synced, mountpoint) =
            (std::mem::replace(&mut self.synced, Synced::new(0, false)), self.mountpoint.clone());
        let (deaths, outcome) = thread::scope(|scope| {
            let load = scope.spawn(|| synced.work(&mountpoint, || over.load(Ordering::Relaxed)));
            let (mut deaths, mut last) = (0, None);
            let mut until = Instant::now() + PATIENCE;
            while deaths < kills && !load.is_finished() && Instant::now() < until {
                thread::sleep(PAUSE.mul_f64(random.f64()));
                let victim = self.worker().filter(|victim| last != Some(*victim));
                if victim.is_some_and(|victim| processes::end(victim, Signal::KILL)) {
                    (deaths, last, until) = (deaths + 1, victim, Instant::now() + PATIENCE);
                }
            }
            over.store(true, Ordering::Relaxed);
            (deaths, load.join())
        });
        self.synced = synced;
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.wrong.push(format!("a step failed: {error}: {}", self.status())),
            Err(_) => self.wrong.push("the load has panicked".to_owned()),
        }
        Ok(deaths)
    }

    /// A load that ends with a death after so long.
    fn die(&mut self, victim: Victim, after: Duration) -> Result<()> {
        let doomed = match victim {
            Victim::Everything => self.processes(),
            _ => self.worker().into_iter().collect(),
        };
        ensure!(!doomed.is_empty(), "nobody serves the mount");
        let before = self.synced.steps;
        let over = AtomicBool::new(false);
        let (synced, mountpoint) = (&mut self.synced, &self.mountpoint);
        thread::scope(|scope| {
            let load = scope.spawn(|| synced.work(mountpoint, || over.load(Ordering::Relaxed)));
            thread::sleep(after);
            // All are stopped first, so that none sees another one die.
            for signal in [Signal::STOP, Signal::KILL] {
                for &pid in &doomed {
                    // It may have ended already.
                    let _ = kill_process(pid, signal);
                }
            }
            let gone = processes::wait(&doomed, PATIENCE);
            over.store(true, Ordering::Relaxed);
            cleanup::abort(mountpoint);
            drop(load.join());
            ensure!(gone, "processes that were killed do not end");
            Ok(())
        })?;
        // Surviving processes see that the mount has gone.
        ensure!(processes::wait(&self.processes(), PATIENCE), "what served the mount does not end");
        ensure!(self.synced.steps >= before, "steps are counted upwards");
        Ok(())
    }

    /// Replays the journal, checks the image, and looks for what was synced in it.
    fn look(&mut self) -> Result<()> {
        let dir = self.place.plain("replayed")?;
        self.shell(self.replay, &dir)?;
        self.image.must_be_clean();
        let copy = self.place.plain("copy")?;
        let mut from = self.path.as_os_str().to_owned();
        from.push("::/.");
        let copied = Command::new(self.place.program()).args(["cp", "-r"]).arg(from).arg(&copy).output()?;
        ensure!(copied.status.success(), "cp: {}", String::from_utf8_lossy(&copied.stderr));
        self.wrong.extend(self.synced.compare(&copy)?);
        fs::remove_dir_all(&copy)?;
        Ok(())
    }

    fn shell(&self, script: &str, dir: &Path) -> Result<()> {
        let output = command("bash").args(["-c", script, "bash"]).arg(&self.path).arg(dir).output()?;
        let said = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&said));
        Ok(())
    }
}
