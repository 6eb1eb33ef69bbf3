// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees to measure with. The same size gives the same tree, byte for byte.

use anyhow::Result;
use fastrand::Rng;
use std::fs;
use std::io::Write;
use std::path::Path;

const SEED: u64 = 0x6f75_7472_6967;
/// Names a directory has at most, and how many levels of directories there are.
const FANOUT: usize = 40;
/// Median and limit of file sizes, in bytes. The mean is about three times the median.
const MEDIAN_SIZE: f64 = 2048.0;
const MAX_SIZE: f64 = 1_048_576.0;
const WORDS: &[&str] = &[
    "inode",
    "lookup",
    "return",
    "struct",
    "static",
    "the",
    "of",
    "a",
    "if",
    "(",
    ")",
    ";",
    "=",
    "0",
    "const",
    "name",
    "error",
    "handle",
    "while",
    "length",
    "buffer",
    "size",
    "directory",
    "entry",
    "self",
    "result",
    "\n",
    "\n",
    "    ",
];

/// A source tree: `files` files of text and some of noise, in directories three levels deep.
///
/// # Errors
/// When it cannot be written.
pub fn source_tree(dir: &Path, files: usize) -> Result<()> {
    let mut random = Rng::with_seed(SEED);
    for number in 0..files {
        let parent = directory_of(dir, number);
        if number % FANOUT == 0 {
            fs::create_dir_all(&parent)?;
        }
        let extension = ["c", "h", "rs", "txt", "o"][random.usize(..5)];
        let mut file = fs::File::create(parent.join(format!("file{number}.{extension}")))?;
        let size = random_size(&mut random);
        file.write_all(&content(&mut random, size, extension == "o"))?;
    }
    Ok(())
}

/// `files` empty files in directories three levels deep.
///
/// # Errors
/// When it cannot be written.
pub fn empty_files(dir: &Path, files: usize) -> Result<()> {
    for number in 0..files {
        let parent = directory_of(dir, number);
        if number % FANOUT == 0 {
            fs::create_dir_all(&parent)?;
        }
        fs::File::create(parent.join(format!("file{number}")))?;
    }
    Ok(())
}

/// A directory with `count` empty files.
///
/// # Errors
/// When it cannot be written.
pub fn flat(dir: &Path, count: usize) -> Result<()> {
    fs::create_dir(dir)?;
    for number in 0..count {
        fs::File::create(dir.join(format!("a-name-of-usual-length-{number}")))?;
    }
    Ok(())
}

/// A file of `size` bytes that is not sparse.
///
/// # Errors
/// When it cannot be written.
pub fn big_file(path: &Path, size: usize) -> Result<()> {
    let mut file = fs::File::create(path)?;
    let mut random = Rng::with_seed(SEED);
    let mut block = vec![0; 1 << 20];
    random.fill(&mut block);
    for _ in 0..size.div_ceil(block.len()) {
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}

fn directory_of(dir: &Path, number: usize) -> std::path::PathBuf {
    let leaf = number / FANOUT;
    let (middle, top) = (leaf / FANOUT, leaf / FANOUT / FANOUT);
    dir.join(format!("part{top}/module{middle}/source{leaf}"))
}

/// Log-normal, as file sizes are: the exponent is the sum of uniform numbers, close to a normal distribution.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and MAX_SIZE")]
fn random_size(random: &mut Rng) -> usize {
    let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
    (MEDIAN_SIZE * (1.5 * normal).exp()).min(MAX_SIZE) as usize
}

fn content(random: &mut Rng, size: usize, noise: bool) -> Vec<u8> {
    let mut content = Vec::with_capacity(size + 16);
    if noise {
        content.resize(size, 0);
        random.fill(&mut content);
    }
    while content.len() < size {
        content.extend_from_slice(WORDS[random.usize(..WORDS.len())].as_bytes());
        content.push(b' ');
    }
    content.truncate(size);
    content
}
