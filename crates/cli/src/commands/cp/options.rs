// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the options of `cp` come to. Later options override earlier ones.

use crate::copy::target::TargetOptions;
use crate::copy::{Deref, Existing, Options, Preserve, Sparse};
use crate::progress::When;
use crate::say::{usage, word};
use crate::status::Failure;
use crate::switches::Given;

/// How `cp` works.
pub struct Settings {
    /// The engine's share.
    pub options: Options,
    /// `-t`, `-T`.
    pub target: TargetOptions,
    /// `--parents`.
    pub parents: bool,
    /// `--progress`.
    pub progress: When,
    deref: Option<Deref>,
}

const ATTRIBUTES: [&str; 7] = ["mode", "timestamps", "ownership", "links", "context", "xattr", "all"];

fn invalid(value: &str, option: &str, valid: &[&str]) -> Failure {
    let mut message = format!("invalid argument {} for {}\nValid arguments are:", word(value), word(option));
    for valid in valid {
        message.push_str(&format!("\n  - {}", word(valid)));
    }
    usage("cp", message)
}

impl Settings {
    /// Reads the options.
    ///
    /// # Errors
    /// An option with a value it does not take, or one that is refused.
    pub fn new(given: &[Given], json: bool) -> Result<Self, Failure> {
        let options = Options::plain("cp", json);
        let target = TargetOptions::default();
        let mut settings = Settings { options, target, parents: false, progress: When::Auto, deref: None };
        for option in given {
            settings.take(option)?;
        }
        settings.finish()
    }

    fn take(&mut self, given: &Given) -> Result<(), Failure> {
        let options = &mut self.options;
        match given.id {
            "archive" => {
                options.recursive = true;
                options.preserve = Preserve::ALL;
                self.deref = Some(Deref::Never);
            }
            "attributes-only" => options.attributes_only = true,
            "b" | "backup" => {
                return Err(Failure::new(
                    "backups of replaced files are not supported: leave out -b and --backup; -n keeps what is there",
                ));
            }
            "copy-contents" => {
                return Err(Failure::new(
                    "--copy-contents is not supported: special files are created, not read",
                ));
            }
            "d" => {
                options.preserve.links = true;
                self.deref = Some(Deref::Never);
            }
            "force" => options.force = true,
            "interactive" => options.existing = Existing::Ask,
            "no-clobber" => options.existing = Existing::Keep,
            "H" => self.deref = Some(Deref::Operands),
            "dereference" => self.deref = Some(Deref::Always),
            "no-dereference" => self.deref = Some(Deref::Never),
            "link" => options.hard_link = true,
            "symbolic-link" => options.symbolic_link = true,
            "p" => preserve(&mut options.preserve, "mode,ownership,timestamps", true, "--preserve")?,
            "preserve" => preserve(&mut options.preserve, &given.text(), true, "--preserve")?,
            "no-preserve" => preserve(&mut options.preserve, &given.text(), false, "--no-preserve")?,
            "R" | "recursive" => options.recursive = true,
            "reflink" => options.inside = reflink(&given.text())?,
            "remove-destination" => options.remove_destination = true,
            "sparse" => options.sparse = sparse(&given.text())?,
            "update" => options.update = true,
            "verbose" => options.verbose = true,
            _ => return self.take_other(given),
        }
        Ok(())
    }

    fn take_other(&mut self, given: &Given) -> Result<(), Failure> {
        match given.id {
            "parents" => self.parents = true,
            "target-directory" => self.target.target_directory = Some(given.value.clone()),
            "no-target-directory" => self.target.no_target_directory = true,
            "progress" => self.progress = when(&given.text())?,
            // Names never keep their trailing slashes here.
            _ => {}
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Self, Failure> {
        let options = &mut self.options;
        if options.hard_link && options.symbolic_link {
            return Err(usage("cp", "cannot make both hard and symbolic links"));
        }
        let default = if options.recursive && !options.hard_link { Deref::Never } else { Deref::Always };
        options.deref = self.deref.unwrap_or(default);
        Ok(self)
    }
}

fn preserve(preserve: &mut Preserve, list: &str, on: bool, option: &str) -> Result<(), Failure> {
    for attribute in list.split(',') {
        match attribute {
            "mode" => (preserve.mode, preserve.default_mode) = (on, !on),
            "timestamps" => preserve.timestamps = on,
            "ownership" => preserve.ownership = on,
            "links" => preserve.links = on,
            "xattr" => (preserve.xattr, preserve.require_xattr) = (on, on),
            // SELinux keeps its label in an extended attribute.
            "context" => preserve.xattr = on,
            "all" if on => *preserve = Preserve::ALL,
            "all" => *preserve = Preserve { default_mode: true, ..Preserve::default() },
            _ => return Err(invalid(attribute, option, &ATTRIBUTES)),
        }
    }
    Ok(())
}

fn reflink(when: &str) -> Result<bool, Failure> {
    match when {
        "auto" => Ok(true),
        "never" => Ok(false),
        "always" => Err(Failure::new(
            "--reflink=always is not supported, because no tree can promise to share blocks: use --reflink=auto",
        )),
        _ => Err(invalid(when, "--reflink", &["auto", "always", "never"])),
    }
}

fn sparse(when: &str) -> Result<Sparse, Failure> {
    match when {
        "never" => Ok(Sparse::Never),
        "auto" => Ok(Sparse::Auto),
        "always" => Ok(Sparse::Always),
        _ => Err(invalid(when, "--sparse", &["never", "auto", "always"])),
    }
}

/// What `--progress` means; `mv` has it too.
pub fn when(when: &str) -> Result<When, Failure> {
    match when {
        "auto" => Ok(When::Auto),
        "always" => Ok(When::Always),
        "never" => Ok(When::Never),
        _ => Err(invalid(when, "--progress", &["auto", "always", "never"])),
    }
}
