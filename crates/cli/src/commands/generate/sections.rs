// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the pages of section 1 have besides the options: a short synopsis, examples, environment and files.

use super::pages::escaped;
use crate::commands::exits;
use crate::status::Exits;
use clap::{Arg, Command};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

/// A command, and lines a user might type: `COMMAND # what it does`.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("ls", &["outrigger ls -l coreutils.deb::/data.tar.xz::/usr/bin", "outrigger ls -lR host:project"]),
    ("stat", &["outrigger stat disk.img::/etc/passwd", "outrigger stat -f disk.img::/"]),
    ("tree", &["outrigger tree -L 2 backup.tar.zst::/"]),
    (
        "find",
        &[
            "outrigger find logs.tar.zst::/ -name '*.err' -size +1M",
            "outrigger find host:src -newer stamp -print0",
        ],
    ),
    ("du", &["outrigger du -sh disk.img::/usr", "outrigger du --max-depth=1 host:"]),
    ("df", &["outrigger df -h disk.img::/ host:"]),
    (
        "inspect",
        &["outrigger inspect disk.img", "outrigger --json inspect disk.qcow2", "outrigger inspect disk.vmdk"],
    ),
    ("readlink", &["outrigger readlink -f disk.img::/etc/alternatives/awk"]),
    ("cat", &["outrigger cat disk.img::/p1/etc/fstab", "outrigger cat host:log | grep error"]),
    (
        "diff",
        &[
            "outrigger diff -r old.tar.gz::/etc new.tar.gz::/etc",
            "outrigger diff -ru disk.img::/srv ./srv",
            "outrigger run --cow -- make install && outrigger diff --only /usr/local",
        ],
    ),
    (
        "cp",
        &[
            "outrigger cp -a backup.tar.zst::/home/me ./restored",
            "outrigger cp -a ./tree disk.img::/srv/",
            "outrigger cp -a tree.tar.xz::/ sftp://me@host:2222/srv",
        ],
    ),
    ("mv", &["outrigger mv report.pdf host:incoming/", "outrigger mv disk.img::/a disk.img::/b"]),
    ("rm", &["outrigger rm -r disk.img::/var/cache", "outrigger rm -i host:old.log"]),
    ("mkdir", &["outrigger mkdir -p disk.img::/srv/www"]),
    ("rmdir", &["outrigger rmdir disk.img::/srv/www"]),
    ("ln", &["outrigger ln -s ../lib disk.img::/usr/lib64"]),
    ("touch", &["outrigger touch -d '2026-01-01' disk.img::/stamp"]),
    ("chmod", &["outrigger chmod -R u+w disk.img::/srv", "outrigger chmod 640 host:secret"]),
    ("chown", &["outrigger chown -R 1000:1000 disk.img::/home/me"]),
    ("truncate", &["outrigger truncate -s 1G disk.img::/swapfile"]),
    ("write", &["tar c dir | outrigger write host:dir.tar"]),
    (
        "make-image",
        &[
            "outrigger make-image ./root disk.img",
            "outrigger make-image --type vfat root.tar.xz::/ boot.img",
            "export SOURCE_DATE_EPOCH=1700000000 && outrigger make-image --type xfs --size 1G ./root disk.img",
        ],
    ),
    (
        "mount",
        &[
            "outrigger mount backup.tar.zst /mnt",
            "outrigger mount host:project ~/project",
            "outrigger mount disk.img /mnt -o ro",
            "outrigger mount disk.img ~/mnt -o \"uid=$(id -u),gid=$(id -g)\"",
            "outrigger mount mem: /mnt -o size=2G",
            "outrigger mount --door nfs /srv/data /mnt",
            "outrigger mount /srv/data /mnt --layer 'fault=op=write,path=*.db,error=ENOSPC,after=100'",
        ],
    ),
    (
        "automount",
        &[
            "outrigger automount /net && ls /net/sftp/me@host/etc",
            "outrigger automount ~/hosts --map ~/.hosts.map --idle 60",
        ],
    ),
    ("crypt", &["outrigger crypt init ~/vault && outrigger mount --layer crypt ~/vault ~/private"]),
    (
        "crypt init",
        &["outrigger crypt init ~/vault", "outrigger crypt init --keyfile ~/.vault.key /backup/vault"],
    ),
    ("crypt passwd", &["outrigger crypt passwd ~/vault"]),
    (
        "crypt check",
        &["outrigger crypt check ~/vault", "outrigger --json crypt check --passfile ~/.vault.pass ~/vault"],
    ),
    (
        "guard",
        &["outrigger guard -- sshfs host:/ /mnt/host", "outrigger --timeout 2 guard -- bindfs src mnt"],
    ),
    (
        "run",
        &[
            "outrigger run -- grep -r main /sftp/build@host/src",
            "outrigger run --map /data=disk.img --read-only -- python3 analyse.py /data",
            "outrigger run --cow -- make install",
            "outrigger run --audit audit.ndjson --map /data=backup.tar.zst::/ -- ls -R /data",
        ],
    ),
    ("attach", &["outrigger attach 4711", "outrigger attach --map /data=backup.tar.zst::/ 4711"]),
    ("detach", &["outrigger detach 4711"]),
    ("commit", &["outrigger commit", "outrigger commit --only /usr/local changes"]),
    ("discard", &["outrigger discard", "outrigger discard --only /etc/motd changes"]),
    ("serve", &["outrigger serve nfs disk.img", "outrigger serve 9p disk.img"]),
    (
        "serve nfs",
        &[
            "outrigger serve nfs disk.img",
            "outrigger serve nfs --listen 0.0.0.0 --allow 192.0.2.0/24 --export /music=/srv/music --export /old=backup.tar.gz",
            "outrigger serve nfs --listen 0.0.0.0 --allow 192.0.2.0/24 --export /a=/srv/a --export-options /a=ro --export /b=/srv/b --export-options /b=all_squash,anonuid=1000,anongid=1000",
            "outrigger serve nfs --listen 2049 --insecure host:project",
            "outrigger serve nfs --map 1000:501 --map-group 1000:20 /srv/music",
        ],
    ),
    (
        "serve 9p",
        &[
            "outrigger serve 9p disk.img",
            "outrigger serve 9p --listen unix:/run/user/1000/9p backup.tar.gz",
            "outrigger serve 9p --listen 0.0.0.0 --allow 192.0.2.0/24 --insecure --export /music=/srv/music --export-options /music=ro",
        ],
    ),
    (
        "serve wire",
        &[
            "outrigger serve wire --listen unix:/run/user/1000/tree /srv/tree",
            "outrigger serve wire --listen 0.0.0.0 --tls-cert host.pem --tls-key host.key --tls-client-ca clients.pem /srv/tree",
            "outrigger serve wire --read-only --listen 0.0.0.0 --tls-cert host.pem --tls-key host.key --tls-client-ca ca.pem --allow-client a.example /srv/tree",
        ],
    ),
    ("umount", &["outrigger umount /mnt"]),
    ("status", &["outrigger status", "outrigger --json status /mnt", "outrigger status --metrics"]),
    ("trace", &["outrigger trace /mnt", "outrigger --json trace /mnt"]),
    (
        "fault",
        &[
            "outrigger fault /mnt",
            "outrigger fault /mnt 'op=fsync,path=*.db,after=3,cut'",
            "outrigger fault /mnt --clear",
        ],
    ),
    ("flush", &["outrigger flush /mnt", "outrigger flush --wait /mnt"]),
    ("upgrade", &["outrigger upgrade /mnt"]),
    ("drivers", &["outrigger drivers", "outrigger drivers sftp", "outrigger --json drivers"]),
    ("doctor", &["outrigger doctor"]),
    ("generate", &["outrigger generate man man", "outrigger generate completions completions"]),
];

/// Options, and why they are missing or what to do instead.
type Missing = (&'static [&'static str], &'static str);

/// What the GNU command of the same name has and this one has not.
const MISSING: &[(&str, &[Missing])] = &[
    (
        "ls",
        &[(&["--dired", "--hyperlink"], "for Emacs and for terminals that open files of the host by name.")],
    ),
    ("stat", &[(&["--cached=never"], "a tree is always asked.")]),
    (
        "find",
        &[
            (
                &["-exec", "-execdir", "-ok", "-okdir"],
                "a command could not open the files of a tree: mount it, or pass the output of \\-print0 on.",
            ),
            (&["-xdev", "-mount", "-fstype"], "a tree does not tell where another is mounted in it."),
            (&["-regex", "-iregex", "-regextype"], "use \\-path, or filter the output."),
            (&["-fprint", "-fprint0", "-fprintf", "-fls"], "redirect the output."),
            (
                &["-readable", "-writable", "-executable"],
                "who may do what is for the other side to say; use \\-perm.",
            ),
            (&["-daystart", "-used", "-files0-from"], "not done."),
        ],
    ),
    (
        "du",
        &[
            (
                &["-x", "--one-file-system"],
                "a tree does not tell where another is mounted in it; for directories of the host, \\-\\-opt xdev=off leaves those out.",
            ),
            (&["--exclude-from=FILE", "--files0-from=FILE", "--time-style=iso"], "not done."),
        ],
    ),
    (
        "df",
        &[(
            &["-a", "-l", "-t", "-x", "--output", "--sync", "--no-sync"],
            "there is a line for each LOCATION, not a list of mounts to choose from.",
        )],
    ),
    (
        "diff",
        &[
            (
                &["-i", "-w", "-b", "-B", "-Z", "-I", "-y", "-c", "-e", "--color"],
                "compare what outrigger cat prints with diff(1), or mount both trees.",
            ),
            (&["-x", "-X", "-S", "-p", "-F", "-L", "-t", "-d"], "the same."),
        ],
    ),
    (
        "cp",
        &[
            (&["-x", "--one-file-system"], "a tree does not tell where another is mounted in it; see du."),
            (&["-b", "--backup", "-S"], "nothing keeps what is replaced; \\-n keeps all of it."),
            (&["-Z", "--context"], "security labels are attributes: \\-\\-preserve=xattr."),
        ],
    ),
    ("mv", &[(&["-b", "--backup", "-S", "-Z"], "as for cp.")]),
    ("rm", &[(&["--one-file-system"], "a tree does not tell where another is mounted in it.")]),
    ("mkdir", &[(&["-Z", "--context"], "security labels are attributes.")]),
    (
        "ln",
        &[(
            &["-b", "--backup", "-S", "-d", "-F"],
            "nothing keeps what is replaced; no tree links directories.",
        )],
    ),
    ("chown", &[(&["-RL"], "links below an operand are never followed.")]),
];

/// What the environment changes: variables, commands they concern (all when empty), meaning.
const ENVIRONMENT: &[(&str, &[&str], &str)] = &[
    (
        "OUTRIGGER_LOG",
        &[],
        "Which log messages appear on standard error: error, warn, info, debug or trace, also for one module, as in outrigger_driver_sftp=debug.",
    ),
    ("OUTRIGGER_KERNEL", &[], "The outrigger\\-kernel to use for disk images instead of the installed one."),
    (
        "HOME, XDG_CACHE_HOME",
        &[],
        "Where indexes of archives, and content of other hosts if wanted, are kept.",
    ),
    (
        "XDG_STATE_HOME",
        &["mount", "guard", "serve", "status", "doctor"],
        "Where reports of crashes are kept, and what clients of a server need after it was started again.",
    ),
    ("XDG_CONFIG_HOME", &["run", "attach"], "Where the file outrigger/mounts is; ~/.config by default."),
    ("STATE_DIRECTORY", &["serve"], "As --state; systemd(1) sets it."),
    (
        "XDG_RUNTIME_DIR",
        &["mount", "automount", "guard", "umount", "status", "trace", "flush", "upgrade"],
        "Where the control sockets of mounts are.",
    ),
    (
        "SOURCE_DATE_EPOCH",
        &["make-image"],
        "The latest time in an image, and that of its making: seconds since 1970.",
    ),
    ("TZ", &["ls", "stat", "find", "du", "touch", "cp", "diff"], "The time zone of times."),
    ("LC_ALL, LC_COLLATE, LANG", &["ls"], "The order of names."),
    ("LS_COLORS, COLORTERM, TERM, NO_COLOR", &["ls", "tree"], "Colours."),
    ("COLUMNS, TABSIZE, TIME_STYLE", &["ls"], "Layout, as for ls(1)."),
    ("QUOTING_STYLE", &["ls", "stat"], "How odd names are quoted, as for ls(1)."),
    (
        "BLOCK_SIZE, BLOCKSIZE, POSIXLY_CORRECT",
        &["ls", "du", "df"],
        "Units of sizes, as for the commands of coreutils(1).",
    ),
    (
        "SSH_AUTH_SOCK, SSH_ASKPASS",
        &["mount", "automount", "cp", "ls"],
        "Read by ssh(1), which reaches other hosts.",
    ),
];

/// Where things are kept.
const FILES: &[(&str, &str)] = &[
    (
        "/run/outrigger, $XDG_RUNTIME_DIR/outrigger",
        "Control sockets of the mounts of root and of other users, which only they can enter.",
    ),
    ("~/.cache/outrigger/index", "Indexes of archives."),
    ("~/.local/state/outrigger", "Reports of crashes, the latest few."),
    ("~/.local/state/outrigger/nfs.key", "The key of the file handles of \\fBoutrigger serve nfs\\fR."),
    (
        "~/.local/state/outrigger/nfs-*.paths",
        "The paths of files that its clients have handles of, 64 MiB for a tree.",
    ),
    ("/etc/fstab", "Mounts of the type outrigger; see mount.outrigger(8)."),
    (
        "outrigger-mount@.service, outrigger-automount@.service, outrigger-guard@.service, outrigger-serve-nfs@.service",
        "Templates for systemd(1); their first lines say how they are used: systemctl cat outrigger\\-mount@.service.",
    ),
    ("~/.ssh/config", "Read by ssh(1), which reaches other hosts."),
];

/// Completes the pages of all commands in `dir`.
///
/// # Errors
/// When a page cannot be read or written.
pub fn complete(dir: &Path, cli: &Command) -> io::Result<()> {
    let file = |name: &str| dir.join(format!("{name}.1"));
    let is_own = |command: &&Command| command.get_name() != "help";
    for command in cli.get_subcommands().filter(is_own) {
        let name = command.get_name();
        let nested = command.get_subcommands().filter(is_own);
        let nested = nested.map(|nested| (format!("{name} {}", nested.get_name()), nested));
        for (name, command) in nested.chain([(name.to_owned(), command)]) {
            let path = file(&format!("outrigger-{}", name.replace(' ', "-")));
            let page = with_synopsis(&fs::read_to_string(&path)?, &name, command);
            fs::write(path, page + &sections(&name))?;
        }
    }
    let path = file("outrigger");
    let page = with_synopsis(&fs::read_to_string(&path)?, "", cli);
    fs::write(&path, page + &environment("") + &files() + &see_also("outrigger"))
}

/// Operands of commands that check their number by themselves, or need a word in front of them.
const OPERANDS: &[(&str, &str)] = &[
    ("chmod", "MODE LOCATION..."),
    ("chown", "[OWNER][:GROUP] LOCATION..."),
    ("cp", "SOURCE... DEST"),
    ("diff", "LOCATION LOCATION | [DIR]"),
    ("find", "[LOCATION]... [EXPRESSION]"),
    ("guard", "-- COMMAND [ARGUMENT]..."),
    ("run", "[--] COMMAND [ARGUMENT]..."),
    ("ln", "TARGET... [LINK]"),
    ("mkdir", "LOCATION..."),
    ("mv", "SOURCE... DEST"),
    ("readlink", "LOCATION..."),
    ("rm", "LOCATION..."),
    ("rmdir", "LOCATION..."),
    ("serve 9p", "LOCATION | --export PATH=LOCATION..."),
    ("serve nfs", "LOCATION | --export PATH=LOCATION..."),
    ("stat", "LOCATION..."),
    ("touch", "LOCATION..."),
    ("truncate", "LOCATION..."),
];

/// The options of every command, with their values.
const GLOBAL: &str = "[--json] [--allow-programs] [--driver-program NAME=COMMAND]... [--opt KEY[=VALUE],...]... [--layer NAME[=SPEC]]... [--timeout SECONDS] \
    COMMAND [ARGUMENT]...";

/// Text of which words in capital letters are variable, and the others bold, in roff.
fn formatted(text: &str) -> String {
    let mut out = String::new();
    let is_word = |c: char| c.is_ascii_alphabetic() || c == '-';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (part, tail) = rest.split_at(end);
        // Writing to a string cannot fail.
        let _ = match part {
            _ if !is_word(first) => write!(out, "{part}"),
            _ if part.starts_with(|c: char| c.is_ascii_uppercase()) => write!(out, "\\fI{part}\\fR"),
            _ => write!(out, "\\fB{}\\fR", escaped(part)),
        };
        rest = tail;
    }
    out
}

/// The operands of the command `name`, in brackets where they are optional.
fn operands(name: &str, command: &Command) -> String {
    if let Some((_, operands)) = OPERANDS.iter().find(|(known, _)| *known == name) {
        return format!(" {operands}");
    }
    let shown = |operand: &Arg| {
        let names: Vec<&str> =
            operand.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
        let (names, many) =
            (names.join(" "), operand.get_num_args().is_some_and(|range| range.max_values() > 1));
        let more = if many { "..." } else { "" };
        if operand.is_required_set() { format!(" {names}{more}") } else { format!(" [{names}]{more}") }
    };
    command.get_positionals().map(shown).collect()
}

/// The page of the command `name` with its synopsis as a user reads it: the options are listed below.
fn with_synopsis(page: &str, name: &str, command: &Command) -> String {
    let usage = match name {
        "" => GLOBAL.to_owned(),
        name => format!("[OPTION]...{}", operands(name, command)),
    };
    let name = if name.is_empty() { "outrigger".to_owned() } else { format!("outrigger {name}") };
    let synopsis = format!(".SH SYNOPSIS\n\\fB{name}\\fR {}", formatted(&usage));
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line == ".SH SYNOPSIS" {
            out += &synopsis;
            lines.next();
        } else {
            out += line;
        }
        out.push('\n');
    }
    out
}

fn sections(command: &str) -> String {
    let whole = command.split(' ').next().unwrap_or(command);
    let mut page = exit_status(whole) + &environment(whole) + &missing(command);
    if let Some((_, lines)) = EXAMPLES.iter().find(|(name, _)| *name == command) {
        page.push_str(".SH EXAMPLES\n");
        for line in *lines {
            // Writing to a string cannot fail.
            let _ = write!(page, ".PP\n.EX\n{}\n.EE\n", escaped(line));
        }
    }
    page + &see_also(command)
}

fn exit_status(command: &str) -> String {
    let mut page = String::from(".SH EXIT STATUS\n");
    for (code, meaning) in exits(command).map_or(&[][..], Exits::meanings) {
        let _ = write!(page, ".TP\n.B {code}\n{meaning}\n");
    }
    page + ".TP\n.B 128 + N\nSignal N ended it: 130 after Ctrl\\-C.\n"
}

fn missing(command: &str) -> String {
    let Some((_, rows)) = MISSING.iter().find(|(name, _)| *name == command) else { return String::new() };
    let mut page = String::from(".SH DIFFERENCES FROM GNU\n");
    for (options, reason) in *rows {
        let _ = write!(page, ".TP\n.B {}\n{reason}\n", escaped(&options.join(", ")));
    }
    page
}

fn environment(command: &str) -> String {
    let mut page = String::from(".SH ENVIRONMENT\n");
    let of = |commands: &[&str]| command.is_empty() || commands.is_empty() || commands.contains(&command);
    for (names, _, meaning) in ENVIRONMENT.iter().filter(|(_, commands, _)| of(commands)) {
        let _ = write!(page, ".TP\n.B {names}\n{meaning}\n");
    }
    page
}

fn files() -> String {
    let mut page = String::from(".SH FILES\n");
    for (names, meaning) in FILES {
        let _ = write!(page, ".TP\n.I {}\n{meaning}\n", escaped(names));
    }
    page
}

fn see_also(command: &str) -> String {
    let native = match command {
        "mount" | "umount" => format!(".BR {command} (8),\n.BR mount.outrigger (8),\n"),
        "ls" | "stat" | "tree" | "find" | "du" | "df" | "readlink" | "cat" | "diff" | "cp" | "mv" | "rm"
        | "mkdir" | "rmdir" | "ln" | "touch" | "chmod" | "chown" | "truncate" => {
            format!(".BR {command} (1),\n")
        }
        _ => String::new(),
    };
    let general = if command == "outrigger" { "" } else { ".BR outrigger (1),\n" };
    format!(".SH SEE ALSO\n{native}{general}.BR outrigger\\-drivers (7)\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};

    #[test]
    fn every_command_has_examples_that_parse() {
        for command in Cli::command().get_subcommands() {
            let lines = EXAMPLES.iter().find(|(name, _)| *name == command.get_name());
            let (_, lines) = lines.unwrap_or_else(|| panic!("no examples of {}", command.get_name()));
            for line in *lines {
                let mut parts = line.split(" | ").flat_map(|part| part.split(" && "));
                let ours = parts.find(|part| part.starts_with("outrigger ")).expect("our command");
                let words = shell_words::split(ours).expect("words");
                Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }

    #[test]
    fn pages_have_a_short_synopsis_and_all_sections() {
        let dir = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(Cli::command(), dir.path()).unwrap();
        let mut cli = Cli::command();
        cli.build();
        complete(dir.path(), &cli).unwrap();
        for (name, expected) in [
            ("cp", "\\fBoutrigger cp\\fR [\\fIOPTION\\fR]... \\fISOURCE\\fR... \\fIDEST\\fR\n"),
            (
                "guard",
                "\\fBoutrigger guard\\fR [\\fIOPTION\\fR]... \\fB\\-\\-\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR]...\n",
            ),
            (
                "diff",
                "\\fBoutrigger diff\\fR [\\fIOPTION\\fR]... \\fILOCATION\\fR \\fILOCATION\\fR | [\\fIDIR\\fR]\n",
            ),
            ("ls", "\\fBoutrigger ls\\fR [\\fIOPTION\\fR]... [\\fILOCATION\\fR]...\n"),
            ("fault", "\\fBoutrigger fault\\fR [\\fIOPTION\\fR]... \\fIDIR\\fR [\\fIRULES\\fR]...\n"),
            ("status", "\\fBoutrigger status\\fR [\\fIOPTION\\fR]... [\\fIDIR\\fR]...\n"),
            ("umount", "\\fBoutrigger umount\\fR [\\fIOPTION\\fR]... \\fIDIR\\fR...\n"),
            ("serve-nfs", "\\fBoutrigger serve nfs\\fR [\\fIOPTION\\fR]... \\fILOCATION\\fR |"),
            ("serve-nfs", ".SH EXIT STATUS\n.TP\n.B 0\n"),
            ("serve-nfs", ".SH EXAMPLES\n"),
            ("serve-9p", ".SH EXAMPLES\n"),
        ] {
            let page = fs::read_to_string(dir.path().join(format!("outrigger-{name}.1"))).unwrap();
            assert!(page.contains(expected), "{page}");
        }
        let page = fs::read_to_string(dir.path().join("outrigger-cp.1")).unwrap();
        assert!(page.contains(".SH EXIT STATUS\n.TP\n.B 0\n"), "{page}");
        for section in [".SH OPTIONS", ".SH ENVIRONMENT", ".SH EXAMPLES", ".SH SEE ALSO"] {
            assert!(page.contains(section), "{section}");
        }
        let page = fs::read_to_string(dir.path().join("outrigger.1")).unwrap();
        assert!(page.contains(".SH FILES"), "{page}");
        assert!(page.contains("[\\fB\\-\\-timeout\\fR \\fISECONDS\\fR] \\fICOMMAND\\fR"), "{page}");
    }
}
