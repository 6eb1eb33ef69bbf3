// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the options of `cat` do to the bytes. Lines may come in pieces and continue from file to file.

use clap::Args;

/// The options.
#[derive(Debug, Clone, Copy, Args)]
pub struct Format {
    /// Same as -vET.
    #[arg(short = 'A', long)]
    show_all: bool,
    /// Number lines that are not empty; overrides -n.
    #[arg(short = 'b', long)]
    number_nonblank: bool,
    /// Same as -vE.
    #[arg(short = 'e')]
    ends_and_nonprinting: bool,
    /// Show $ at the end of each line.
    #[arg(short = 'E', long)]
    show_ends: bool,
    /// Number all lines.
    #[arg(short = 'n', long)]
    number: bool,
    /// Show only one of several empty lines.
    #[arg(short = 's', long)]
    squeeze_blank: bool,
    /// Same as -vT.
    #[arg(short = 't')]
    tabs_and_nonprinting: bool,
    /// Show TAB as ^I.
    #[arg(short = 'T', long)]
    show_tabs: bool,
    /// No effect.
    #[arg(short = 'u', hide = true)]
    unbuffered: bool,
    /// Show control characters as ^X and bytes above 127 as M-X.
    #[arg(short = 'v', long)]
    show_nonprinting: bool,
}

/// Applies the options to a stream of blocks.
pub struct Formatter {
    number: Number,
    squeeze: bool,
    ends: bool,
    tabs: bool,
    nonprinting: bool,
    line: u64,
    /// Line feeds since the last other character: 1 at the start of a line, 2 after an empty line.
    feeds: u32,
    /// A carriage return whose meaning depends on what follows (`-E` shows `^M$` at the end of a line).
    held_return: bool,
    out: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    None,
    All,
    NotEmpty,
}

impl Format {
    /// What applies the options; `None` when they leave the bytes as they are.
    pub fn formatter(self) -> Option<Formatter> {
        let number = match (self.number_nonblank, self.number) {
            (true, _) => Number::NotEmpty,
            (false, true) => Number::All,
            (false, false) => Number::None,
        };
        let ends = self.show_ends || self.show_all || self.ends_and_nonprinting;
        let tabs = self.show_tabs || self.show_all || self.tabs_and_nonprinting;
        let nonprinting =
            self.show_nonprinting || self.show_all || self.ends_and_nonprinting || self.tabs_and_nonprinting;
        let changes = number != Number::None || self.squeeze_blank || ends || tabs || nonprinting;
        changes.then(|| Formatter {
            number,
            squeeze: self.squeeze_blank,
            ends,
            tabs,
            nonprinting,
            line: 0,
            feeds: 1,
            held_return: false,
            out: Vec::new(),
        })
    }
}

impl Formatter {
    /// What to print for `block`.
    pub fn format(&mut self, block: &[u8]) -> &[u8] {
        self.out.clear();
        for &byte in block {
            if std::mem::take(&mut self.held_return) {
                self.out.extend_from_slice(if byte == b'\n' { b"^M" } else { b"\r" });
            }
            if byte == b'\n' { self.feed() } else { self.character(byte) }
        }
        &self.out
    }

    /// What to print at the very end.
    pub fn finish(&mut self) -> &[u8] {
        self.out.clear();
        if std::mem::take(&mut self.held_return) {
            self.out.push(b'\r');
        }
        &self.out
    }

    fn feed(&mut self) {
        let empty = self.feeds > 0;
        self.feeds += 1;
        if empty && self.squeeze && self.feeds > 2 {
            return;
        }
        if empty && self.number == Number::All {
            self.put_number();
        }
        self.out.extend_from_slice(if self.ends { b"$\n" } else { b"\n" });
    }

    fn character(&mut self, byte: u8) {
        if self.feeds > 0 {
            self.feeds = 0;
            if self.number != Number::None {
                self.put_number();
            }
        }
        match byte {
            b'\t' if self.tabs => self.out.extend_from_slice(b"^I"),
            b'\t' => self.out.push(byte),
            b'\r' if self.ends && !self.nonprinting => self.held_return = true,
            _ if self.nonprinting => self.put_visibly(byte),
            _ => self.out.push(byte),
        }
    }

    fn put_number(&mut self) {
        self.line += 1;
        self.out.extend_from_slice(format!("{:6}\t", self.line).as_bytes());
    }

    fn put_visibly(&mut self, byte: u8) {
        let byte = if byte >= 0x80 {
            self.out.extend_from_slice(b"M-");
            byte - 0x80
        } else {
            byte
        };
        match byte {
            0..0x20 => self.out.extend_from_slice(&[b'^', byte + 0x40]),
            0x7f => self.out.extend_from_slice(b"^?"),
            _ => self.out.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_matter() {
        let options = Format {
            show_all: false,
            number_nonblank: false,
            ends_and_nonprinting: false,
            show_ends: true,
            number: true,
            squeeze_blank: true,
            tabs_and_nonprinting: false,
            show_tabs: true,
            unbuffered: false,
            show_nonprinting: false,
        };
        let text = b"\n\n\na\tb\r\n\rc\r\n\n\nlast\r";
        let run = |size: usize| {
            let mut formatter = options.formatter().expect("options that change something");
            let mut all = Vec::new();
            text.chunks(size).for_each(|block| all.extend_from_slice(formatter.format(block)));
            all.extend_from_slice(formatter.finish());
            all
        };
        let expected = b"     1\t$\n     2\ta^Ib^M$\n     3\t\rc^M$\n     4\t$\n     5\tlast\r";
        for size in 1..text.len() + 1 {
            assert_eq!(run(size).escape_ascii().to_string(), expected.escape_ascii().to_string());
        }
    }
}
