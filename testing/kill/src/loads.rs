// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work that programs do on a tree.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// A load: done in an empty directory; what it leaves there is compared.
pub struct Load {
    /// Its name.
    pub name: &'static str,
    /// Does it once.
    pub work: fn(&Path) -> Result<()>,
}

/// The loads of the paper's table: a sort, the build of a program, and the small files of a mail server.
pub const ALL: &[Load] = &[
    Load { name: "sort", work: sort },
    Load { name: "build", work: build },
    Load { name: "postmark", work: postmark },
];

fn shell(dir: &Path, script: &str) -> Result<()> {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn sort(dir: &Path) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(7);
    let lines: String = (0..200_000).map(|_| format!("{:016x}\n", random.u64(..))).collect();
    fs::write(dir.join("unsorted"), lines)?;
    shell(dir, "mkdir tmp && sort -S 1M -T tmp -o sorted unsorted && sort -c sorted && rmdir tmp")
}

/// A C project of our own making: many sources, a header, a library, a program, dependencies by time.
fn build(dir: &Path) -> Result<()> {
    let source = dir.join("project");
    fs::create_dir(&source)?;
    let (mut objects, mut calls, mut header) = (String::new(), String::new(), String::new());
    for number in 0..40 {
        let body = format!(
            "#include \"all.h\"\nint part{number}(int x) {{ int s = {number}; for (int i = 0; i < x; i++) s = s * 31 + i; return s; }}\n"
        );
        fs::write(source.join(format!("part{number}.c")), body)?;
        objects += &format!(" part{number}.o");
        calls += &format!(" sum += part{number}(sum & 7);");
        header += &format!("int part{number}(int);\n");
    }
    fs::write(source.join("all.h"), header)?;
    let main = format!(
        "#include <stdio.h>\n#include \"all.h\"\nint main(void) {{ int sum = 1;{calls} printf(\"%d\\n\", sum); return 0; }}\n"
    );
    fs::write(source.join("main.c"), main)?;
    let rules = format!(
        "all: program\n%.o: %.c all.h\n\tcc -O1 -c -o $@ $<\nlibparts.a:{objects}\n\tar rcD $@ $^\nprogram: main.o libparts.a\n\tcc -o $@ main.o libparts.a\n"
    );
    fs::write(source.join("Makefile"), rules)?;
    shell(
        dir,
        "tar cf project.tar --mtime=@0 --sort=name --owner=0 --group=0 project && rm -r project && tar xf project.tar \
         && make -s -j2 -C project && project/program > answer && make -s -C project && diff -r project project",
    )
}

/// Small files made, read, appended to and removed in random order, after PostMark (Katcher, 1997).
fn postmark(dir: &Path) -> Result<()> {
    use std::io::Write;
    let mut random = fastrand::Rng::with_seed(11);
    let mut files: Vec<u32> = Vec::new();
    let path = |number: u32| dir.join(format!("s{}", number % 10)).join(format!("f{number}"));
    (0..10).try_for_each(|number| fs::create_dir(dir.join(format!("s{number}"))))?;
    for next in 0..4000_u32 {
        match random.u8(..4) {
            0 if files.len() > 100 => {
                let gone = files.swap_remove(random.usize(..files.len()));
                fs::remove_file(path(gone)).with_context(|| format!("removing {gone}"))?;
            }
            1 if !files.is_empty() => {
                let one = files[random.usize(..files.len())];
                fs::OpenOptions::new().append(true).open(path(one))?.write_all(&[random.u8(..); 700])?;
            }
            2 if !files.is_empty() => {
                let one = files[random.usize(..files.len())];
                ensure!(!fs::read(path(one))?.is_empty(), "file {one} is empty");
            }
            _ => {
                fs::write(path(next), vec![random.u8(..); 500 + random.usize(..9000)])?;
                files.push(next);
            }
        }
    }
    Ok(())
}
