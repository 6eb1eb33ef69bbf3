// SPDX-License-Identifier: MIT OR Apache-2.0
//! What answers tell of a file (RFC 3659).

use crate::{Listed, Reply, mlsx, timestamp};

/// Size and time of change of a file, as far as a server has told them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Told {
    /// The size in bytes.
    pub size: Option<u64>,
    /// The last change, in seconds since 1970.
    pub modified: Option<i64>,
}

impl Told {
    /// What the replies to these command lines tell, of which MLST is believed first, and then SIZE and MDTM.
    pub fn by(lines: &[Vec<u8>], replies: &[Reply]) -> Self {
        let to = |verb: &[u8]| {
            let mut answers = lines.iter().zip(replies);
            answers.find(|(line, reply)| line.starts_with(verb) && reply.is_good()).map(|(_, reply)| reply)
        };
        if let Some(Listed { size, modified, .. }) = to(b"MLST ").and_then(Reply::listed) {
            return Told { size, modified };
        }
        let modified = to(b"MDTM ").and_then(|reply| timestamp(reply.text().trim_ascii()));
        Told { size: to(b"SIZE ").and_then(Reply::number), modified }
    }
}

impl Reply {
    /// The number in the answer to SIZE or AVBL.
    pub fn number(&self) -> Option<u64> {
        std::str::from_utf8(self.text().trim_ascii()).ok()?.parse().ok()
    }

    /// The file in the answer to MLST.
    pub fn listed(&self) -> Option<Listed> {
        self.lines.iter().find_map(|line| mlsx(line.trim_ascii_start(), true).ok().flatten())
    }

    /// Whether a listing was cut off: Pure-FTPd stops after so many names (`-L`), and says so in its last reply only.
    pub fn tells_of_truncation(&self) -> bool {
        const WORD: &[u8] = b"truncated";
        let has_it = |line: &[u8]| line.windows(WORD.len()).any(|word| word.eq_ignore_ascii_case(WORD));
        self.lines.iter().any(|line| has_it(line))
    }
}

/// The argument of SITE that changes permissions.
pub fn chmod(mode: u32, path: &[u8]) -> Vec<u8> {
    [format!("CHMOD {mode:o} ").as_bytes(), path].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn reply(code: u16, lines: &[&'static str]) -> Reply {
        Reply { code, lines: lines.iter().map(|line| Bytes::from_static(line.as_bytes())).collect() }
    }

    #[test]
    fn what_was_asked_is_told_as_far_as_it_was_answered() {
        let lines = |verbs: &[&str]| verbs.iter().map(|verb| format!("{verb} /f\r\n").into_bytes()).collect();
        let asked: Vec<Vec<u8>> = lines(&["RNFR", "SIZE", "MDTM"]);
        let size = reply(213, &["12 "]);
        let told = Told::by(&asked, &[reply(350, &["1"]), size.clone(), reply(213, &["19700101000001"])]);
        assert_eq!(told, Told { size: Some(12), modified: Some(1) });
        let told = Told::by(&asked, &[reply(350, &["1"]), size, reply(550, &["19700101000001"])]);
        assert_eq!(told, Told { size: Some(12), modified: None });
        let listed = reply(250, &["Listing", " type=file;size=7;modify=19700101000002; /f", "End"]);
        assert_eq!(Told::by(&lines(&["MLST"]), &[listed]), Told { size: Some(7), modified: Some(2) });
        assert_eq!(Told::by(&lines(&["MLST"]), &[]), Told::default());
    }

    #[test]
    fn a_listing_that_was_cut_off_is_told_by_its_last_reply() {
        assert!(reply(226, &["Options: -a -l", "Output Truncated to 10000 matches"]).tells_of_truncation());
        assert!(!reply(226, &["10000 matches total"]).tells_of_truncation());
    }
}
