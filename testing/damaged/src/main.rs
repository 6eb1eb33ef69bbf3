// SPDX-License-Identifier: MIT OR Apache-2.0
//! Damages disk images of every type, and partition tables and qcow2 images around some, and opens them in every
//! way. Only the process with the kernel code may die of it, everything ends before its deadline, and every refusal has a reason.
//!
//! Damage is random ([`mutate`]) or made on purpose ([`crafted`]); the images themselves are made by the host's tools when
//! they are needed, so numbers are all there is to keep.
//!
//! Each image is asked for by `outrigger inspect` and `outrigger ls -lR`, and then walked through and written by the driver
//! itself, in a process of its own ([`walk`]), guarded every other time.
#![forbid(unsafe_code)]

mod bytes;
mod crafted;
mod mutate;
mod seal;
mod trial;
mod walk;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::{Parser, Subcommand};
use outrigger_conformance::Direct;
use outrigger_driver_kernel::FsType;
use outrigger_images::{Image, Kind, MADE, Tree, WRITTEN, command, kind};
use seal::Seals;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use trial::{Trial, Verdict};

/// Damages disk images, and looks what becomes of those who open them.
#[derive(Debug, Parser)]
#[command(name = "outrigger-damaged")]
struct Arguments {
    /// The program; the one built beside this one unless given.
    #[arg(long, value_name = "FILE")]
    outrigger: Option<PathBuf>,
    /// Images of each type that are damaged at random, beside those that are damaged on purpose.
    #[arg(long, default_value_t = 50)]
    images: u64,
    /// One in so many of those that are damaged on purpose.
    #[arg(long, default_value_t = 1)]
    crafted: usize,
    /// The first number that damage is made of.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these types.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Keeps images that something else came of in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// Says what came of each image.
    #[arg(long)]
    verbose: bool,
    #[command(subcommand)]
    step: Option<Step>,
}

#[derive(Debug, Subcommand)]
enum Step {
    /// Looks at everything in one image, and changes it.
    #[command(hide = true)]
    Walk {
        /// The image.
        image: PathBuf,
        /// Its type.
        #[arg(long)]
        kind: Option<String>,
        /// Whether it survives the death of its kernel code.
        #[arg(long)]
        guard: bool,
    },
}

/// Images to be damaged.
struct Subject {
    name: &'static str,
    /// The type to ask for.
    kind: Option<&'static str>,
    /// The type to ask for where detection finds another.
    asked: Option<&'static str>,
    bytes: Bytes,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Step::Walk { image, kind, guard }) = &arguments.step {
        println!("{}", walk::walk(image, kind.clone(), *guard));
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("outrigger-damaged: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Prints the table; false when anything was wrong.
fn run(arguments: &Arguments) -> Result<bool> {
    let own = std::env::current_exe()?;
    let program = arguments.outrigger.clone().unwrap_or_else(|| own.with_file_name("outrigger"));
    ensure!(program.is_file(), "{} is not there: build it or name it with --outrigger", program.display());
    println!("| type | images | {} |", Verdict::TITLES.join(" | "));
    println!("|---|---|{}", "---|".repeat(Verdict::TITLES.len()));
    let mut sums = [0; Verdict::TITLES.len()];
    let wanted = |name: &str| arguments.types.is_empty() || arguments.types.iter().any(|one| one == name);
    let kinds = WRITTEN.iter().chain(MADE).filter(|row| wanted(row.name)).map(|row| row.name);
    let around = AROUND.iter().filter(|row| wanted(row.0)).map(|row| row.0);
    for name in kinds.chain(around) {
        let scratch = tempfile::tempdir()?;
        let Some(subject) = subject(name, scratch.path())? else { continue };
        let tally = hurt(arguments, &program, scratch.path(), &subject).with_context(|| name.to_owned())?;
        print_row(name, &tally);
        sums.iter_mut().zip(tally).for_each(|(sum, count)| *sum += count);
    }
    print_row("all", &sums);
    Ok(sums[Verdict::TITLES.len() - 1] == 0)
}

fn print_row(name: &str, tally: &[u64]) {
    let cells: String = tally.iter().map(|count| format!(" {count} |")).collect();
    println!("| {name} | {} |{cells}", tally.iter().sum::<u64>());
}

/// What is around an image of another type, and the commands that make it of the files `plain` and, of 1 MiB more at both
/// ends, `disk`.
const AROUND: &[(&str, &str, &[&str])] = &[
    ("MBR", "ext4", &["sfdisk", "--quiet", "--label", "dos", "disk"]),
    ("GPT", "vfat", &["sfdisk", "--quiet", "--label", "gpt", "disk"]),
    ("qcow2", "ext4", &["qemu-img", "convert", "-O", "qcow2", "plain", "disk"]),
];

/// The image of this name, if everything is here that makes it.
fn subject(name: &'static str, scratch: &Path) -> Result<Option<Subject>> {
    if let Some((_, inner, words)) = AROUND.iter().find(|row| row.0 == name) {
        let Some(inner) = kind(inner) else { return Ok(None) };
        let bytes = around(&filled(inner)?, words, scratch)?;
        return Ok(Some(Subject { name, kind: None, asked: None, bytes }));
    }
    let Some(row) = kind(name) else { return Ok(None) };
    let image = filled(row)?;
    if name == "ext4" {
        // Without checksums damage gets further; types with checksums are inside MBR and qcow2. What was mounted since
        // it was checked, if only by a second, tune2fs does not touch.
        for words in [&["e2fsck", "-fp"][..], &["tune2fs", "-O", "^metadata_csum"]] {
            let done = command(words[0]).args(&words[1..]).arg(image.path()).output()?;
            let said = [done.stdout, done.stderr].concat();
            ensure!(done.status.success(), "{}: {}", words[0], String::from_utf8_lossy(&said));
        }
    }
    let bytes = Bytes::of(&image.path())?;
    let kind = row.asked.or_else(|| FsType::named(row.name).is_ok().then_some(row.name));
    Ok(Some(Subject { name, kind, asked: row.asked, bytes }))
}

/// An image with something in it.
fn filled(kind: &'static Kind) -> Result<Image> {
    let image = Image::new(kind);
    if kind.size > 0 {
        let kernel = Arc::new(image.open());
        Tree::new(&Direct::new(kernel.clone())).make();
        kernel.unmount()?;
    }
    Ok(image)
}

/// The same with something around it.
fn around(image: &Image, words: &[&str], scratch: &Path) -> Result<Bytes> {
    const MIB: u64 = 1 << 20;
    let (plain, disk) = (scratch.join("plain"), scratch.join("disk"));
    fs::rename(image.path(), &plain)?;
    let inner = Bytes::of(&plain)?;
    fs::File::create(&disk)?.set_len(inner.size + 2 * MIB)?;
    fs::write(scratch.join("script"), format!("1M,{}K,L\n", inner.size >> 10))?;
    let script = fs::File::open(scratch.join("script"))?;
    let made = command(words[0]).args(&words[1..]).current_dir(scratch).stdin(script).output()?;
    ensure!(made.status.success(), "{words:?}: {}", String::from_utf8_lossy(&made.stderr));
    let mut bytes = Bytes::of(&disk)?;
    if words[0] == "sfdisk" {
        for offset in inner.used() {
            bytes.set(MIB + offset, &inner.get(offset, bytes::BLOCK));
        }
    }
    Ok(bytes)
}

/// Damages an image in every way; how often which verdict came of it.
fn hurt(
    arguments: &Arguments,
    program: &Path,
    scratch: &Path,
    subject: &Subject,
) -> Result<[u64; Verdict::TITLES.len()]> {
    let trial = Trial { program, scratch, asked: subject.asked, kind: subject.kind };
    let (bytes, name) = (&subject.bytes, subject.name);
    let crafted = [crafted::cut(bytes), crafted::sized(name, bytes), crafted::looped(name, bytes)].concat();
    let crafted = crafted.into_iter().step_by(arguments.crafted.max(1));
    let seeds = arguments.seed..arguments.seed + arguments.images;
    let random = seeds.map(|seed| (format!("seed {seed}"), mutate::mutate(bytes, Seals::of(name), seed)));
    let (image, mut tally) = (scratch.join("image"), [0; Verdict::TITLES.len()]);
    for (number, (damage, bytes)) in crafted.chain(random).enumerate() {
        bytes.write(&image)?;
        let verdict = trial.of(&image, number % 2 == 1)?;
        tally[verdict.column()] += 1;
        let is_wrong = matches!(verdict, Verdict::Wrong(_));
        if is_wrong || arguments.verbose {
            eprintln!("{name}, {damage}: {verdict}");
        }
        if let Some(keep) = arguments.keep.as_ref().filter(|_| is_wrong) {
            fs::create_dir_all(keep)?;
            bytes.write(&keep.join(format!("{name} {damage}")))?;
        }
    }
    Ok(tally)
}
