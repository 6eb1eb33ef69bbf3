// SPDX-License-Identifier: MIT OR Apache-2.0
//! A server that lacks what a test wants.

use outrigger_proto_ftp::{stamp, timestamp};
use std::collections::HashMap;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};
use tempfile::TempDir;

/// What the server does.
#[derive(Debug, Default)]
pub struct Ways {
    /// The answers to some commands, in place of what they do.
    pub refuses: HashMap<&'static str, &'static str>,
    /// What FEAT tells.
    pub features: Vec<&'static str>,
    /// Transfers of files that begin now stop in their middle for ever.
    pub stalls: bool,
    /// REST is answered, and files are sent from their front all the same.
    pub ignores_rest: bool,
    /// The size that MLST and MLSD tell of every file, if not its own.
    pub told_size: Option<u64>,
    /// The size that is told so next, and once only.
    pub told_once: Option<u64>,
    /// MDTM with a time before the name sets it.
    pub sets_times: bool,
    /// A command that is done, and never answered.
    pub mute: Option<&'static str>,
}

pub struct Shared {
    ways: Mutex<Ways>,
    changed: Condvar,
    asked: Mutex<Vec<String>>,
    root: TempDir,
}

/// A server for the life of the test.
pub struct Server {
    shared: Arc<Shared>,
    pub port: u16,
}

impl Server {
    pub fn start(features: &[&'static str], refuses: &[(&'static str, &'static str)]) -> Self {
        let refuses = refuses.iter().copied().collect();
        let ways = Ways { refuses, features: features.into(), ..Ways::default() };
        let root = tempfile::tempdir().expect("a directory");
        let (changed, asked) = (Condvar::new(), Mutex::default());
        let shared = Arc::new(Shared { ways: Mutex::new(ways), changed, asked, root });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let serving = Arc::clone(&shared);
        thread::spawn(move || {
            for control in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // Clients end connections as they like.
                thread::spawn(move || Session::new(shared).converse(control));
            }
        });
        Server { shared, port }
    }

    /// The place of a file.
    pub fn at(&self, name: &str) -> PathBuf {
        self.shared.root.path().join(name)
    }

    /// Changes what the server does.
    pub fn change(&self, change: impl FnOnce(&mut Ways)) {
        change(&mut self.shared.ways());
        self.shared.changed.notify_all();
    }

    /// How often a command was sent.
    pub fn asked(&self, verb: &str) -> usize {
        let asked = self.shared.asked.lock().expect("no panic");
        asked.iter().filter(|line| line.split(' ').next() == Some(verb)).count()
    }

    /// The last command of this kind, as it was sent.
    pub fn last(&self, verb: &str) -> String {
        let asked = self.shared.asked.lock().expect("no panic");
        asked.iter().rfind(|line| line.split(' ').next() == Some(verb)).cloned().unwrap_or_default()
    }

    /// Waits until a command was sent.
    pub fn until_asked(&self, verb: &str) {
        let mut ways = self.shared.ways();
        while self.asked(verb) == 0 {
            ways = self.shared.changed.wait(ways).expect("no panic");
        }
    }
}

impl Shared {
    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().expect("no panic")
    }

    fn file(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }
}

struct Session {
    shared: Arc<Shared>,
    data: Option<TcpListener>,
    rest: u64,
    from: PathBuf,
    directory: PathBuf,
    selected: bool,
}

const MISSING: &str = "550 No such file or directory";

impl Session {
    fn new(shared: Arc<Shared>) -> Self {
        let directory = shared.root.path().to_owned();
        Session { shared, data: None, rest: 0, from: PathBuf::new(), directory, selected: false }
    }

    fn converse(mut self, mut control: TcpStream) -> Option<()> {
        control.write_all(b"220 ready\r\n").ok()?;
        for line in BufReader::new(control.try_clone().ok()?).lines().map_while(Result::ok) {
            let (verb, argument) = line.split_once(' ').unwrap_or((&line, ""));
            // A test that has seen the command changes nothing of what becomes of it.
            let (refusal, is_mute) = {
                let ways = self.shared.ways();
                self.shared.asked.lock().expect("no panic").push(line.clone());
                (ways.refuses.get(verb).map(|refusal| (*refusal).to_owned()), ways.mute == Some(verb))
            };
            self.shared.changed.notify_all();
            let reply = match refusal {
                Some(refusal) => refusal,
                None if matches!(verb, "MLSD" | "LIST" | "RETR" | "STOR" | "APPE") => {
                    self.transfer(&mut control, verb, argument)?
                }
                None => self.answer(verb, argument).unwrap_or_else(|| MISSING.to_owned()),
            };
            if is_mute {
                // A park may end for no reason.
                loop {
                    thread::park();
                }
            }
            control.write_all(format!("{reply}\r\n").as_bytes()).ok()?;
        }
        Some(())
    }

    /// The answer to a command without content; `None` where there is no such file.
    fn answer(&mut self, verb: &str, argument: &str) -> Option<String> {
        let at = self.shared.file(argument);
        let done = |outcome: std::io::Result<()>| outcome.ok().map(|()| "250 done".to_owned());
        match verb {
            "USER" => Some("331 password".to_owned()),
            "FEAT" => {
                let features = self.shared.ways().features.join("\r\n ");
                Some(format!("211-Features\r\n {features}\r\n211 End"))
            }
            "PWD" => Some("257 \"/\"".to_owned()),
            "OPTS" => {
                self.selected |= argument.starts_with("MLST");
                Some("200 fine".to_owned())
            }
            "SITE" if argument == "HELP" => Some("214-\r\n CHMOD\r\n214 End".to_owned()),
            "SITE" => {
                let mut words = argument.splitn(3, ' ').skip(1);
                let mode = u32::from_str_radix(words.next()?, 8).ok()?;
                let file = self.shared.file(words.next()?);
                done(fs::set_permissions(file, PermissionsExt::from_mode(mode)))
            }
            "EPSV" => {
                let listener = TcpListener::bind("127.0.0.1:0").ok()?;
                let port = listener.local_addr().ok()?.port();
                self.data = Some(listener);
                Some(format!("229 ok (|||{port}|)"))
            }
            "CWD" => {
                self.directory = at;
                Some("250 there".to_owned())
            }
            "MLST" => {
                let facts = self.facts(&fs::metadata(at).ok()?);
                Some(format!("250-\r\n {facts} {argument}\r\n250 End"))
            }
            "MDTM" if self.shared.ways().sets_times && argument.contains(' ') => {
                let (time, path) = argument.split_once(' ')?;
                let time = UNIX_EPOCH + Duration::from_secs(timestamp(time.as_bytes())? as u64);
                let file = OpenOptions::new().write(true).open(self.shared.file(path)).ok()?;
                done(file.set_modified(time))
            }
            "SIZE" => Some(format!("213 {}", fs::metadata(at).ok()?.len())),
            "MDTM" => Some(format!("213 {}", stamp(fs::metadata(at).ok()?.mtime()))),
            "REST" => {
                let ignores = self.shared.ways().ignores_rest;
                self.rest = if ignores { 0 } else { argument.parse().ok()? };
                Some("350 there".to_owned())
            }
            "RNFR" => {
                fs::metadata(&at).ok()?;
                self.from = at;
                Some("350 to what".to_owned())
            }
            "RNTO" => done(fs::rename(&self.from, at)),
            "DELE" => done(fs::remove_file(at)),
            "RMD" => done(fs::remove_dir(at)),
            _ => Some("200 fine".to_owned()),
        }
    }

    /// Sends or takes content; the last answer.
    fn transfer(&mut self, control: &mut TcpStream, verb: &str, argument: &str) -> Option<String> {
        let (listener, rest, at) =
            (self.data.take()?, std::mem::take(&mut self.rest), self.shared.file(argument));
        let content = match verb {
            "MLSD" => self.listing(&at, |session, meta, name| format!("{} {name}\r\n", session.facts(meta))),
            "LIST" => self.listing(&self.directory, |_, meta, name| {
                let (time, kind) = (stamp(meta.mtime()), if meta.is_dir() { 'd' } else { '-' });
                let day = format!(
                    "{}-{}-{} {}:{}",
                    &time[..4],
                    &time[4..6],
                    &time[6..8],
                    &time[8..10],
                    &time[10..12]
                );
                format!("{kind}rw-r--r-- 1 u g {} {day} {name}\r\n", meta.len())
            }),
            "RETR" => {
                fs::read(&at).ok().map(|content| content.get(rest as usize..).unwrap_or_default().to_vec())
            }
            _ => Some(Vec::new()),
        };
        let Some(content) = content else { return Some(MISSING.to_owned()) };
        control.write_all(b"150 here\r\n").ok()?;
        let (mut stream, _) = listener.accept().ok()?;
        if matches!(verb, "STOR" | "APPE") {
            let mut content = Vec::new();
            stream.read_to_end(&mut content).ok()?;
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(verb == "STOR").open(at).ok()?;
            file.seek(SeekFrom::End(0)).ok()?;
            file.write_all(&content).ok()?;
            return Some("226 done".to_owned());
        }
        let stalls = verb == "RETR" && self.shared.ways().stalls;
        let sent = if stalls { content.len() / 2 } else { content.len() };
        // A client that has enough ends the transfer.
        let _ = stream.write_all(&content[..sent]);
        if stalls {
            loop {
                thread::park();
            }
        }
        Some("226 done".to_owned())
    }

    fn listing(&self, dir: &Path, line: impl Fn(&Self, &Metadata, &str) -> String) -> Option<Vec<u8>> {
        let mut listing = String::new();
        for entry in fs::read_dir(dir).ok()?.flatten() {
            listing += &line(self, &entry.metadata().ok()?, &entry.file_name().to_string_lossy());
        }
        Some(listing.into_bytes())
    }

    fn facts(&self, meta: &Metadata) -> String {
        let kind = if meta.is_dir() { "dir" } else { "file" };
        let told = self.shared.ways().features.iter().any(|feature| feature.contains("UNIX.mode*"));
        let mode = match told || self.selected {
            true => format!("UNIX.mode={:o};", meta.mode() & 0o7777),
            false => String::new(),
        };
        let mut ways = self.shared.ways();
        let size = ways.told_once.take().or(ways.told_size).unwrap_or(meta.len());
        drop(ways);
        format!("type={kind};size={size};modify={};{mode}", stamp(meta.mtime()))
    }
}
