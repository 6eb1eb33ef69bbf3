// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs that check system calls, built once for all tests.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// How a program reaches the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By the C library, which is loaded.
    Dynamic,
    /// By the C library, which is in it.
    Static,
    /// By another C library.
    Musl,
    /// With system calls of 32 bits.
    Bits32,
    /// Without a C library.
    Go,
}

/// All of them.
pub const KINDS: [Kind; 5] = [Kind::Dynamic, Kind::Static, Kind::Musl, Kind::Bits32, Kind::Go];

const C: [&str; 4] = ["-std=gnu11", "-Wall", "-Wextra", "-O1"];

impl Kind {
    /// The program, if it can be built here; says so if not.
    pub fn program(self) -> Option<PathBuf> {
        static BUILT: [OnceLock<Option<PathBuf>>; KINDS.len()] = [const { OnceLock::new() }; KINDS.len()];
        BUILT[self as usize].get_or_init(|| self.build()).clone()
    }

    fn build(self) -> Option<PathBuf> {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("calls-{self:?}"));
        // Another run of the tests may build it, too.
        let own = program.with_extension(std::process::id().to_string());
        let Some((compiler, words)) = self.compiler() else {
            assert!(env::var_os("CI").is_none(), "what {self:?} programs are built with must be here");
            eprintln!("SKIPPED: there is nothing to build {self:?} programs with");
            return None;
        };
        let mut command = Command::new(compiler);
        command.args(words).arg("-o").arg(&own).args(self.sources());
        command.env("CGO_ENABLED", "0").env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
        let built = command.output().unwrap();
        assert!(built.status.success(), "{command:?}: {}", String::from_utf8_lossy(&built.stderr));
        fs::rename(own, &program).unwrap();
        Some(program)
    }

    /// What builds it, where that is here.
    fn compiler(self) -> Option<(PathBuf, Vec<&'static str>)> {
        let c = |compiler: &str, more: &[&'static str]| {
            Some((find(compiler)?, [&C, more, &["-pthread"]].concat()))
        };
        match self {
            Kind::Dynamic => c("gcc", &[]),
            Kind::Static => c("gcc", &["-static"]),
            Kind::Musl => c("musl-gcc", &["-static"]),
            // The headers of the kernel are those of all kinds; only gcc-multilib has a link to them.
            Kind::Bits32 => Path::new("/usr/lib32/libc.a")
                .exists()
                .then(|| c("gcc", &["-m32", "-static", "-idirafter", "/usr/include/x86_64-linux-gnu"]))?,
            Kind::Go => Some((find("go")?, vec!["build"])),
        }
    }

    fn sources(self) -> Vec<PathBuf> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/matrix");
        if self == Kind::Go {
            return vec![dir.join("calls.go")];
        }
        let files = fs::read_dir(dir.join("calls")).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|extension| extension == "c")).collect()
    }
}

/// A program in the usual places.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
    usual.map(|dir| dir.join(name)).find(|file| file.is_file())
}
