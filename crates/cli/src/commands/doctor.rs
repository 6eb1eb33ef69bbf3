// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger doctor`: what this machine lets Outrigger do, and how to get the rest.

use super::run::via::{GATE, trial};
use crate::context::Context;
use crate::control::{self, Health};
use crate::messages::output_failed;
use crate::run::Run;
use crate::status::Failure;
use clap::Args;
use outrigger_driver_kernel::{HOW_TO_GET_IT, Kernel, Options};
use outrigger_host::MountEntry;
use outrigger_host::users_caches;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {}

/// What one check found.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    Limited,
    Broken,
}

impl Run for Doctor {
    const NAME: &'static str = "doctor";
    const GLOBALS: &'static [&'static str] = &[];

    fn run(self, context: &Context) -> Result<(), Failure> {
        let mut findings = vec![kernel(), device(), helper(), namespaces(), sockets(), cache(), images()];
        findings.extend([
            programs("run in a namespace", "namespace", "a program found a tree in its mount namespace"),
            programs("run by seccomp", "seccomp", "a program found a tree by answers to its system calls"),
            programs(
                "run by ptrace",
                "ptrace",
                "a program that is traced found a tree by answers to its system calls",
            ),
        ]);
        findings.extend(dead_mounts());
        let mut out = io::stdout().lock();
        for finding in &findings {
            let line = if context.json {
                serde_json::to_string(finding).map_err(|error| Failure::new(error.to_string()))?
            } else {
                finding.text()
            };
            writeln!(out, "{line}").map_err(output_failed)?;
        }
        match findings.iter().filter(|finding| finding.state == State::Broken).count() {
            0 => Ok(()),
            count => Err(Failure::new(format!("{count} checks failed"))),
        }
    }
}

impl Finding {
    fn new(check: &'static str, state: State, found: impl Into<String>, advice: Option<&str>) -> Self {
        Finding { check, state, found: found.into(), advice: advice.map(str::to_owned) }
    }

    fn text(&self) -> String {
        let state = match self.state {
            State::Good => "ok",
            State::Limited => "limited",
            State::Broken => "FAILED",
        };
        let advice = self.advice.as_ref().map(|advice| format!("\n         {advice}")).unwrap_or_default();
        format!("{state:<8} {}: {}{advice}", self.check, self.found)
    }
}

/// The oldest kernel whose FUSE protocol (7.31) the door speaks.
const KERNEL_MIN: (u32, u32) = (5, 4);
/// The first kernel that resends the requests of a dead server to its successor.
const KERNEL_RESEND: (u32, u32) = (6, 9);

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < KERNEL_MIN {
        let advice = "mounting needs Linux 5.4 or newer; ls, cp and the other commands work without mounting";
        Finding::new("kernel", State::Broken, release, Some(advice))
    } else if version < KERNEL_RESEND {
        let advice = "mounts are guarded by way of a proxy, which costs speed; Linux 6.9 needs none";
        Finding::new("kernel", State::Limited, release, Some(advice))
    } else {
        Finding::new("kernel", State::Good, release, None)
    }
}

fn device() -> Finding {
    const CHECK: &str = "/dev/fuse";
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Finding::new(CHECK, State::Good, "can be opened", None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let advice =
                "load the module (modprobe fuse), or pass the device into the container (--device /dev/fuse)";
            Finding::new(CHECK, State::Broken, error.to_string(), Some(advice))
        }
        Err(error) => {
            let advice =
                "fusermount3 may still be able to mount; else ask for read and write permission on it";
            Finding::new(CHECK, State::Limited, error.to_string(), Some(advice))
        }
    }
}

fn helper() -> Finding {
    const CHECK: &str = "fusermount3";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(CHECK)).find(|file| file.is_file());
    match found {
        Some(file) => Finding::new(CHECK, State::Good, file.display().to_string(), None),
        None if rustix::process::geteuid().is_root() => {
            Finding::new(CHECK, State::Good, "not installed, and not needed by the superuser", None)
        }
        None => {
            let advice = "install the package fuse3 to mount without being the superuser";
            Finding::new(CHECK, State::Limited, "not installed", Some(advice))
        }
    }
}

fn namespaces() -> Finding {
    const CHECK: &str = "user namespaces";
    let limit = |file: &str| fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<i64>().ok());
    let advice = Some("mounting without fusermount3 and without being the superuser needs them");
    if limit("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        Finding::new(CHECK, State::Limited, "switched off by kernel.unprivileged_userns_clone", advice)
    } else if limit("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        Finding::new(CHECK, State::Limited, "restricted by AppArmor", advice)
    } else if limit("/proc/sys/user/max_user_namespaces").is_none_or(|most| most > 0) {
        Finding::new(CHECK, State::Good, "available", None)
    } else {
        Finding::new(CHECK, State::Limited, "none may be made", advice)
    }
}

/// Whether `outrigger run` works with a mechanism: it is tried.
fn programs(check: &'static str, via: &str, good: &str) -> Finding {
    let advice = match via {
        "namespace" => "this takes user namespaces and /dev/fuse; without them `outrigger run` uses seccomp",
        _ => {
            "this takes x86-64 and Linux 5.9 (by ptrace 5.3), and a user who may trace their own processes (ptrace)"
        }
    };
    match Command::new("/proc/self/exe").args(trial(via)).stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            let has_gate = String::from_utf8_lossy(&output.stderr).contains(GATE);
            let gate = if has_gate { ", and got a gate for local files" } else { "" };
            Finding::new(check, State::Good, format!("{good}{gate}"), None)
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Finding::new(check, State::Limited, said, Some(advice))
        }
        Err(error) => Finding::new(check, State::Limited, error.to_string(), Some(advice)),
    }
}

fn sockets() -> Finding {
    const CHECK: &str = "control sockets";
    match control::directory() {
        Ok(path) => Finding::new(CHECK, State::Good, path.display().to_string(), None),
        Err(error) => {
            let advice = "status, trace and flush cannot reach mounts without them; set XDG_RUNTIME_DIR";
            Finding::new(CHECK, State::Broken, error.to_string(), Some(advice))
        }
    }
}

fn cache() -> Finding {
    const CHECK: &str = "cache directory";
    let Some(base) = users_caches() else {
        let advice = "set HOME or XDG_CACHE_HOME, so that an archive opens at once the second time";
        return Finding::new(CHECK, State::Limited, "neither HOME nor XDG_CACHE_HOME is set", Some(advice));
    };
    let dir = base.join("outrigger");
    match fs::create_dir_all(&dir).and_then(|()| writable(&dir)) {
        Ok(()) => Finding::new(CHECK, State::Good, dir.display().to_string(), None),
        Err(error) => {
            let advice = "archives are indexed again each time they are opened";
            Finding::new(CHECK, State::Limited, format!("'{}': {error}", dir.display()), Some(advice))
        }
    }
}

/// Whether the program that serves disk images is there and works: it serves an empty tree.
fn images() -> Finding {
    const CHECK: &str = "disk images";
    let Some(program) = outrigger_driver_kernel::program() else {
        let advice = format!("the program outrigger-kernel is missing: {HOW_TO_GET_IT}");
        return Finding::new(CHECK, State::Limited, "cannot be opened", Some(&advice));
    };
    let served = Kernel::in_memory(&Options::default()).and_then(|kernel| {
        let isolation = kernel.isolation().unwrap_or_else(|| "not isolated".into());
        kernel.unmount().map(|()| isolation)
    });
    match served {
        Ok(isolation) => {
            Finding::new(CHECK, State::Good, format!("{}; {isolation}", program.display()), None)
        }
        Err(error) => {
            let advice =
                format!("outrigger-kernel belongs to the same source as this program: {HOW_TO_GET_IT}");
            Finding::new(CHECK, State::Broken, format!("'{}': {error}", program.display()), Some(&advice))
        }
    }
}

fn writable(dir: &Path) -> io::Result<()> {
    let probe = dir.join(format!(".probe-{}", std::process::id()));
    File::create(&probe)?;
    fs::remove_file(probe)
}

/// Mounts of ours whose server has died (every use of them fails with `ENOTCONN`) or hangs.
fn dead_mounts() -> Vec<Finding> {
    let mounts = MountEntry::all().unwrap_or_default().into_iter().filter(control::is_ours);
    // In parallel: each that hangs takes the whole deadline.
    let asked: Vec<_> = mounts
        .map(|entry| thread::spawn(move || (control::probe(&entry.mountpoint), entry.mountpoint)))
        .collect();
    asked
        .into_iter()
        .filter_map(|thread| thread.join().ok())
        .filter_map(|(health, path)| ailing(health, &path))
        .collect()
}

fn ailing(health: Health, path: &Path) -> Option<Finding> {
    let place = path.display().to_string();
    let (check, advice) = match health {
        Health::Alive => return None,
        Health::Dead => ("dead mount", format!("outrigger umount '{place}'")),
        Health::Silent => ("hanging mount", format!("outrigger umount --force '{place}'")),
    };
    Some(Finding::new(check, State::Broken, place, Some(&advice)))
}
