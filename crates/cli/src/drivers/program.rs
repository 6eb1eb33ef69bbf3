// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that serve the trees of a scheme, for as long as a command lasts: `--driver-program NAME=COMMAND`.

use super::scheme;
use std::ffi::OsString;
use std::str::FromStr;
use std::sync::OnceLock;

/// The driver programs of the command line.
static DECLARED: OnceLock<Vec<DriverProgram>> = OnceLock::new();

/// Names that mean something else before a colon.
const TAKEN: &[&str] = &["fuse", "sftp"];

/// A program that serves the trees of a scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverProgram {
    /// The scheme in lower case.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

impl FromStr for DriverProgram {
    type Err = String;

    /// Reads `NAME=COMMAND`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, command) =
            text.split_once('=').ok_or("a name, '=' and a command are needed, as in notes=./notes.py")?;
        let others = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"+-.".contains(&byte);
        if !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.bytes().all(others) {
            return Err(format!(
                "'{name}' cannot stand before the colon of a LOCATION: it begins with a lower-case letter, and goes on with those, \
                 digits, '+', '-' and '.'"
            ));
        }
        if scheme(name).is_some() || TAKEN.contains(&name) {
            return Err(format!("'{name}:' is a tree of outrigger's own: choose another name"));
        }
        let words = shell_words::split(command).map_err(|error| format!("{error}: quote as for a shell"))?;
        match words.is_empty() {
            true => Err("the command is missing".into()),
            false => {
                let command = words.into_iter().map(OsString::from).collect();
                Ok(DriverProgram { name: name.into(), command })
            }
        }
    }
}

/// From now on these serve LOCATIONs with their names.
pub fn declare(programs: &[DriverProgram]) {
    let _ = DECLARED.set(programs.to_vec());
}

/// The program that serves LOCATIONs with this name; the last one that was named.
pub fn declared(name: &str) -> Option<&'static DriverProgram> {
    DECLARED.get()?.iter().rfind(|program| program.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_program_has_a_name_of_its_own_and_a_command() {
        let command = ["./notes.py", "a b"].map(OsString::from).to_vec();
        let read = "diary=./notes.py 'a b'".parse();
        assert_eq!(read, Ok(DriverProgram { name: "diary".into(), command }));
        for text in ["diary", "diary=", "=x", "Diary=x", "a/b=x", "mem=x", "sftp=x", "fuse=x", "n='x"] {
            assert!(text.parse::<DriverProgram>().is_err(), "{text}");
        }
    }
}
