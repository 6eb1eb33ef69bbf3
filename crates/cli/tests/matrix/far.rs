// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that people use, with trees of other hosts: by SSH, FTP and HTTP.

use crate::support::{Place, can_mount, has};
use crate::{Kind, MECHANISMS, Mechanism};
use outrigger_remote::{FtpServer, Ftpd, HOST, HttpServer, Httpd, Sshd};
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A host, which ends when this is dropped.
enum Server {
    Ssh(Sshd),
    Ftp(FtpServer),
    Http(HttpServer),
}

/// A host with a tree, and a place beside it.
struct Far {
    server: Server,
    place: Place,
}

impl Far {
    /// `None` where there can be none; says so.
    fn new(missing: Option<&str>, start: impl FnOnce(PathBuf) -> Server) -> Option<Self> {
        if let Some(missing) = missing {
            assert!(env::var_os("CI").is_none(), "{missing} must be here");
            eprintln!("SKIPPED: there is no {missing}");
            return None;
        }
        if !can_mount() {
            return None;
        }
        let place = Place::new().trusting();
        fs::set_permissions(place.at(""), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(place.at("server")).unwrap();
        let server = start(place.at("server"));
        Some(Far { server, place })
    }

    fn ssh() -> Option<Self> {
        let far = Far::new(Sshd::missing(), |dir| Server::Ssh(Sshd::start(dir).unwrap()))?;
        fs::create_dir(far.root()).unwrap();
        Some(far)
    }

    fn ftp() -> Option<Self> {
        Far::new(Ftpd::Vsftpd.missing(), |dir| Server::Ftp(Ftpd::Vsftpd.start(&dir).unwrap()))
    }

    fn http() -> Option<Self> {
        Far::new(Httpd::Nginx.missing(), |dir| Server::Http(Httpd::Nginx.start(&dir).unwrap()))
    }

    /// The directory that the tree shows.
    fn root(&self) -> PathBuf {
        self.place.at("server/root")
    }

    /// Runs a script with the tree at `/far`, in which it begins; with what it says on standard error.
    fn run(&self, mechanism: &Mechanism, script: &str) -> String {
        let (location, options) = match &self.server {
            Server::Ssh(sshd) => {
                let option = format!("F={}", sshd.configuration().display());
                (format!("{HOST}:{}", self.root().display()), vec!["--opt".to_owned(), option])
            }
            Server::Ftp(server) => (format!("ftp://{}/", server.place(server.port())), Vec::new()),
            Server::Http(server) => (format!("http://127.0.0.1:{}/", server.port()), Vec::new()),
        };
        let map = format!("/far={location}");
        let options: Vec<&str> =
            mechanism.options.iter().copied().chain(options.iter().map(String::as_str)).collect();
        let script = format!("exec 2>&1; cd /far; {script}");
        let said =
            self.place.run(&[&["run", "--map", &map], &options[..], &["--", "sh", "-ec", &script]].concat());
        let place = (mechanism.name, &map);
        // That a lock is not the server's is said where calls are answered.
        let told: String = said.err.lines().filter(|line| !line.contains(": a lock of ")).collect();
        assert_eq!((said.code, &*told), (Some(0), ""), "{place:?}: {script}: {}", said.out);
        said.out
    }
}

/// Does something with all mechanisms, at all hosts whose trees can be changed.
fn at_each(programs: &[&str], test: impl Fn(&Far, &Mechanism)) {
    if !programs.iter().all(|program| has(program)) {
        return;
    }
    for far in [Far::ssh(), Far::ftp()].into_iter().flatten() {
        for mechanism in MECHANISMS {
            test(&far, mechanism);
            let left: Vec<_> = fs::read_dir(far.root()).unwrap().map(|entry| entry.unwrap().path()).collect();
            left.iter().for_each(|path| fs::remove_dir_all(path).or_else(|_| fs::remove_file(path)).unwrap());
        }
    }
}

#[test]
fn editors_save() {
    at_each(&["vim.tiny", "emacs"], |far, mechanism| {
        let read = |name: &str| fs::read_to_string(far.root().join(name)).unwrap();
        let mode = |name: &str| fs::metadata(far.root().join(name)).unwrap().permissions().mode() & 0o777;
        for name in ["by-vim", "by-renaming-vim", "by-emacs"] {
            fs::write(far.root().join(name), "one\ntwo\n").unwrap();
            fs::set_permissions(far.root().join(name), PermissionsExt::from_mode(0o640)).unwrap();
        }
        let vim = "vim.tiny -u NONE -N -es -c 'set backup";
        far.run(mechanism, &format!("{vim} backupcopy=yes' -c '%s/two/2/' -c wq by-vim"));
        far.run(mechanism, &format!("{vim} backupcopy=no' -c '%s/two/2/' -c wq by-renaming-vim"));
        let lisp = "(progn (goto-char (point-min)) (insert \"zero\\n\") (save-buffer))";
        far.run(mechanism, &format!("HOME=/nonexistent emacs --batch -Q by-emacs --eval '{lisp}'"));
        for (name, content) in
            [("by-vim", "one\n2\n"), ("by-renaming-vim", "one\n2\n"), ("by-emacs", "zero\none\ntwo\n")]
        {
            assert_eq!((&*read(name), mode(name)), (content, 0o640), "{name}");
            assert_eq!(read(&format!("{name}~")), "one\ntwo\n", "the backup of {name}");
        }
        assert_eq!(fs::read_dir(far.root()).unwrap().count(), 6, "a file for locks or swapping is left");
    });
}

#[test]
fn git_clones_commits_and_finds_everything_in_order() {
    at_each(&["git"], |far, mechanism| {
        let git = "git -c user.name=a -c user.email=a@b -c init.defaultBranch=main";
        let work = format!(
            "rm -rf {0}/local {0}/back; git init -q {0}/local; echo one >{0}/local/one; cp -r /usr/include/linux/netfilter {0}/local; \
             cd {0}/local; {git} add .; {git} commit -qm first; \
             cd /far; {git} clone -q {0}/local clone; cd clone; echo two >two; {git} add two; {git} commit -qm second; \
             {git} status --porcelain; {git} fsck --strict 2>/dev/null; {git} gc -q; {git} fsck --strict 2>/dev/null; {git} log --format=%s; \
             {git} mv one three; {git} stash -q; {git} stash pop -q; {git} reset -q --hard; {git} clone -q /far/clone {0}/back; \
             cat {0}/back/two",
            far.place.at("").display()
        );
        assert_eq!(far.run(mechanism, &work), "second\nfirst\ntwo\n");
        far.place.run_as("diff", &["-r", "local/netfilter", "server/root/clone/netfilter"]).ok();
        far.place
            .run_as("git", &["-C", "server/root/clone", "-c", "safe.directory=*", "fsck", "--strict"])
            .ok();
    });
}

#[test]
fn make_and_gcc_build_what_then_runs_in_the_tree() {
    at_each(&["make", "gcc"], |far, mechanism| {
        let files = [
            (
                "Makefile",
                "all: program\nprogram: main.o part.o\n\tgcc -o $@ $^\n%.o: %.c part.h\n\tgcc -c -o $@ $<\n",
            ),
            ("part.h", "int part(void);\n"),
            ("part.c", "#include \"part.h\"\nint part(void) { return 42; }\n"),
            (
                "main.c",
                "#include <stdio.h>\n#include \"part.h\"\nint main(void) { return printf(\"%d\\n\", part()) < 0; }\n",
            ),
        ];
        files.iter().for_each(|(name, content)| fs::write(far.root().join(name), content).unwrap());
        let built = far.run(mechanism, "make -s; ./program; make -q; /far/program");
        assert_eq!(built, "42\n42\n");
        // Hosts know times to the second: what is changed in the second in which it was built is not newer.
        let older = "touch -d \"2 hours ago\" *.c *.h; touch -d \"1 hour ago\" *.o; touch -d \"1 minute ago\" program";
        let again = "make -q; sed -i s/42/43/ part.c; make | grep -c part.c; ./program; make -q";
        let again = far.run(mechanism, &format!("{older}; {again}"));
        assert_eq!(again, "1\n43\n", "one file is compiled again");
    });
}

/// A package of the tree, a data base in it, and what changes all files of a tree.
const PYTHON: &str = "import os, shutil, sqlite3, sys, tempfile, zipfile
sys.path.insert(0, '/far')
os.makedirs('package'), open('package/__init__.py', 'w').write('value = 42\\n')
import package
db = sqlite3.connect('data.db')
db.execute('create table t (n)'), db.executemany('insert into t values (?)', [(n,) for n in range(1000)])
db.commit(), db.close()
db = sqlite3.connect('data.db')
print(package.value, db.execute('select sum(n) from t').fetchone()[0], db.execute('pragma integrity_check').fetchone()[0])
db.close()
with zipfile.ZipFile('all.zip', 'w') as out:
    for top, _, names in os.walk('package'):
        for name in names: out.write(os.path.join(top, name))
shutil.copytree('package', 'copy'), shutil.rmtree('package')
zipfile.ZipFile('all.zip').extractall('.')
with tempfile.NamedTemporaryFile(dir='.') as temporary:
    temporary.write(b'x' * 100000), temporary.flush()
    print(os.path.getsize(temporary.name))
print(sorted(os.listdir('.')))
";

#[test]
fn python_works_in_the_tree() {
    at_each(&["python3"], |far, mechanism| {
        far.place.file("script.py", PYTHON);
        let said = far.run(mechanism, &format!("python3 {}", far.place.at("script.py").display()));
        assert_eq!(said, "42 499500 ok\n100000\n['all.zip', 'copy', 'data.db', 'package']\n");
        far.place.run_as("diff", &["-r", "server/root/copy", "server/root/package"]).ok();
    });
}

#[test]
fn tar_and_grep_see_all_files_and_go_programs_run() {
    at_each(&["tar", "grep"], |far, mechanism| {
        // Where calls are answered, listing a directory changes the time of its copy.
        let warning = if mechanism.answers { "--warning=no-file-changed" } else { "" };
        let work = format!(
            "tar -C /usr/include -cf headers.tar linux/netfilter linux/usb; tar xf headers.tar; rm -rf {0}/out; mkdir {0}/out; \
             tar {warning} -cf - linux | tar xf - -C {0}/out; grep -rlw struct linux | wc -l",
            far.place.at("").display()
        );
        let count =
            far.place.run_as("sh", &["-c", "cd /usr/include/linux; grep -rlw struct netfilter usb | wc -l"]);
        assert_eq!(far.run(mechanism, &work), count.ok());
        far.place.run_as("diff", &["-r", "out/linux", "server/root/linux"]).ok();
        far.place.run_as("diff", &["-r", "/usr/include/linux/usb", "server/root/linux/usb"]).ok();
        let Some(program) = Kind::Go.program() else { return };
        fs::create_dir_all(far.place.at("outside")).unwrap();
        // Without go-border: links of hosts do not lead out of a tree.
        let checks = "go-files go-listing go-directory go-programs go-goroutines";
        let outside = far.place.at("outside");
        let said = far.run(
            mechanism,
            &format!("cp {} go; ./go /far {} {checks}", program.display(), outside.display()),
        );
        assert_eq!(said.matches("ok ").count(), checks.split(' ').count(), "{said}");
        fs::remove_dir_all(outside).unwrap();
    });
}

#[test]
fn bash_completes_names() {
    at_each(&["bash"], |far, mechanism| {
        for name in ["main.c", "make me", "other"] {
            fs::write(far.root().join(name), "").unwrap();
        }
        fs::create_dir(far.root().join("mad")).unwrap();
        let sorted = |said: String| {
            let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let complete = |script: &str| sorted(far.run(mechanism, &format!("bash -c '{script}'")));
        assert_eq!(complete("compgen -f ma"), ["mad", "main.c", "make me"]);
        assert_eq!(
            complete("cd /; compgen -f /far/ma; compgen -d /far/"),
            ["/far/mad", "/far/mad", "/far/main.c", "/far/make me"]
        );
        // Where calls are answered, prefixes are no names of the root directory.
        if !mechanism.answers {
            assert_eq!(complete("cd /; compgen -f /far | grep -x /far"), ["/far"]);
        }
        assert_eq!(
            complete("echo *; echo /far/m*"),
            ["/far/mad /far/main.c /far/make me", "mad main.c make me other"]
        );
    });
}

/// What only reads works on what is only read.
#[test]
fn programs_read_what_a_web_server_has() {
    let Some(far) = Far::http() else { return };
    let Some(program) = Kind::Go.program() else { return };
    far.place.run_as("cp", &["-r", "/usr/include/linux/netfilter", "server/root/headers"]).ok();
    let git = "git -c user.name=a -c user.email=a@b";
    let repository = format!(
        "git init -q server/root/repo; cd server/root/repo; cp -r ../headers .; {git} add .; {git} commit -qm one"
    );
    far.place.run_as("sh", &["-ec", &repository]).ok();
    fs::write(far.root().join("Makefile"), "all:\n\t@echo made\n").unwrap();
    fs::write(far.root().join("script.py"), "print(len(open('/far/headers/nf_log.h').read()))\n").unwrap();
    fs::copy(program, far.root().join("go")).unwrap();
    for mechanism in MECHANISMS {
        let run = |script: &str| far.run(mechanism, script);
        let local =
            |script: &str| far.place.run_as("sh", &["-ec", &format!("cd server/root; {script}")]).ok();
        for script in [
            "grep -rc define headers | sort",
            "tar cf - headers | tar tf - | sort",
            "bash -c 'compgen -f headers/nf_conntrack_' | sort",
            "vim.tiny -u NONE -N -R -es -c '%print' -c q! Makefile",
            "make -s",
            "echo '#include \"headers/nf_log.h\"' | gcc -I. -E - | wc -l",
        ] {
            assert_eq!(run(script), local(script), "{script}");
        }
        let size = fs::metadata(far.root().join("headers/nf_log.h")).unwrap().len();
        assert_eq!(run("python3 script.py"), format!("{size}\n"));
        let git = "git -c safe.directory=* --no-optional-locks -C repo";
        assert_eq!(
            run(&format!("{git} status --porcelain; {git} fsck --strict 2>/dev/null; {git} log --format=%s")),
            "one\n"
        );
        assert_eq!(run("echo x 2>/dev/null >new || echo refused"), "refused\n");
    }
}
