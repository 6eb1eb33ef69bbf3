// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens an image in processes of their own, each with a deadline.

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Longer than all that one process may wait for, in seconds.
const LIMIT: i64 = 240;
/// How long one operation may take, in seconds (`--timeout`, `patience=`).
const OPERATION: &str = "20";

/// What came of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was read.
    Read,
    /// Some of it was refused.
    Partly(String),
    /// It was not opened, and this is why.
    Refused(String),
    /// The process with the kernel code died.
    Died(String),
    /// Something was given up when its time was over.
    Late(String),
    /// Anything else, which must not be.
    Wrong(String),
}

impl Verdict {
    /// The columns of the table.
    pub const TITLES: [&'static str; 6] =
        ["read", "read in part", "refused", "kernel code died", "time was over", "anything else"];

    /// Its column.
    pub fn column(&self) -> usize {
        match self {
            Verdict::Read => 0,
            Verdict::Partly(_) => 1,
            Verdict::Refused(_) => 2,
            Verdict::Died(_) => 3,
            Verdict::Late(_) => 4,
            Verdict::Wrong(_) => 5,
        }
    }

    /// Reads what [`fmt::Display`] wrote.
    fn parse(text: &str) -> Option<Self> {
        let (title, why) = text.trim().split_once(": ").unwrap_or((text.trim(), ""));
        let why = why.to_owned();
        Some(match Self::TITLES.iter().position(|one| *one == title)? {
            0 => Verdict::Read,
            1 => Verdict::Partly(why),
            2 => Verdict::Refused(why),
            3 => Verdict::Died(why),
            4 => Verdict::Late(why),
            _ => Verdict::Wrong(why),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = Self::TITLES[self.column()];
        match self {
            Verdict::Read => f.write_str(title),
            Verdict::Partly(why)
            | Verdict::Refused(why)
            | Verdict::Died(why)
            | Verdict::Late(why)
            | Verdict::Wrong(why) => write!(f, "{title}: {}", why.replace('\n', " ")),
        }
    }
}

/// How images are tried.
pub struct Trial<'a> {
    /// The program `outrigger`.
    pub program: &'a Path,
    /// Where output goes.
    pub scratch: &'a Path,
    /// The type to ask for, where detection finds another.
    pub asked: Option<&'a str>,
    /// The type to ask the kernel code for, whatever is left to tell it by.
    pub kind: Option<&'a str>,
}

impl Trial<'_> {
    /// Uses an image with commands and, by a process of this program, in every other way.
    ///
    /// # Errors
    /// When processes cannot be started.
    pub fn of(&self, image: &Path, guard: bool) -> Result<Verdict> {
        let mut inside = image.as_os_str().to_owned();
        inside.push("::/");
        let patience = format!("patience={OPERATION}");
        let mut list = Command::new(self.program);
        list.args(["--timeout", OPERATION, "--opt", &patience]);
        if let Some(asked) = self.asked {
            list.args(["--opt", &format!("type={asked}")]);
        }
        list.args(["ls", "-lR"]).arg(inside);
        let mut inspect = Command::new(self.program);
        inspect.arg("inspect").arg(image);
        for (name, command) in [("inspect", inspect), ("ls -lR", list)] {
            if let Some(wrong) = self.wrong_with(command)? {
                return Ok(Verdict::Wrong(format!("outrigger {name}: {wrong}")));
            }
        }
        self.walked(image, guard)
    }

    /// What is wrong with how a command ended.
    fn wrong_with(&self, command: Command) -> Result<Option<String>> {
        let Some(ended) = self.run(command)? else { return Ok(Some("hangs".to_owned())) };
        Ok(match ended.status.code() {
            None | Some(3..) => Some(format!("{}: {}", ended.status, ended.errors)),
            _ if ended.errors.contains("panicked") => Some(ended.errors),
            Some(1..) if ended.errors.trim().is_empty() => Some("fails and does not say why".to_owned()),
            _ => None,
        })
    }

    /// What a process of this program found.
    fn walked(&self, image: &Path, guard: bool) -> Result<Verdict> {
        let mut walk = Command::new(std::env::current_exe()?);
        walk.arg("walk").arg(image).args(guard.then_some("--guard"));
        walk.args(self.kind.map(|kind| format!("--kind={kind}")));
        let Some(ended) = self.run(walk)? else { return Ok(Verdict::Wrong("the walk hangs".to_owned())) };
        let said = fs::read_to_string(self.output())?;
        let verdict = Verdict::parse(&said).filter(|_| ended.status.success());
        Ok(match verdict {
            Some(Verdict::Refused(why)) if why.is_empty() => {
                Verdict::Wrong("refused without a reason".into())
            }
            Some(verdict) => verdict,
            None => Verdict::Wrong(format!("the walk ends: {}: {}", ended.status, ended.errors)),
        })
    }

    fn output(&self) -> PathBuf {
        self.scratch.join("output")
    }

    /// Runs a command; none when it has to be killed.
    fn run(&self, mut command: Command) -> Result<Option<Ended>> {
        let errors = self.scratch.join("errors");
        command.stdin(Stdio::null()).stdout(File::create(self.output())?).stderr(File::create(&errors)?);
        let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
        let pid = Pid::from_raw(child.id() as i32).context("a process without a number")?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let limit = Timespec { tv_sec: LIMIT, tv_nsec: 0 };
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit))? == 0 {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        let status = child.wait()?;
        let errors = String::from_utf8_lossy(&fs::read(&errors)?).into_owned();
        Ok(Some(Ended { status, errors }))
    }
}

/// How a command ended, and what it said.
struct Ended {
    status: ExitStatus,
    errors: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_read_as_they_are_written() {
        for verdict in [Verdict::Read, Verdict::Refused("a: b".into()), Verdict::Late("c".into())] {
            assert_eq!(Verdict::parse(&format!("{verdict}\n")), Some(verdict));
        }
        assert_eq!(Verdict::parse("something"), None);
    }
}
