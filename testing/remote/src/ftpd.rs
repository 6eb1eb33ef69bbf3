// SPDX-License-Identifier: MIT OR Apache-2.0
//! FTP servers of our own, on ports of the loopback device: vsftpd, which has no MLSD, and pure-ftpd.

use crate::authority::own_certificate;
use crate::processes;
use crate::programs::{find, free_port, listens};
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ftpd {
    /// vsftpd: LIST, MDTM that sets, TLS sessions that must be resumed.
    Vsftpd,
    /// pure-ftpd: MLSD, MFMT.
    PureFtpd,
}

/// A server in use. Dropping it ends it and its sessions.
#[derive(Debug)]
pub struct FtpServer {
    kind: Ftpd,
    dir: PathBuf,
    port: u16,
    sets_times: bool,
    implicit_tls: bool,
    process: Option<Child>,
}

const LIMIT: Duration = Duration::from_secs(30);
/// How many ports are tried: between being found free and being taken, another program may take one.
const ATTEMPTS: usize = 5;
/// The user (`nobody`) of pure-ftpd, which refuses to serve root.
const NOBODY: u32 = 65_534;

impl Ftpd {
    /// A program it takes that is not here.
    pub fn missing(self) -> Option<&'static str> {
        let needs: &[&str] = match self {
            Ftpd::Vsftpd => &["vsftpd", "openssl", "unshare", "mount"],
            Ftpd::PureFtpd => &["pure-ftpd", "pure-pw", "openssl"],
        };
        needs.iter().copied().find(|name| program(name).is_none())
    }

    /// The user that logs in, with the password `secret`.
    pub fn user(self) -> &'static str {
        match self {
            Ftpd::Vsftpd => "root",
            Ftpd::PureFtpd => "alice",
        }
    }

    /// Starts it for the directory `root` below `dir`, which is empty, and gets the other files. Root only.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen before the deadline, with its output.
    pub fn start(self, dir: &Path) -> Result<FtpServer> {
        let mut server = FtpServer {
            kind: self,
            dir: dir.to_owned(),
            port: 0,
            sets_times: true,
            implicit_tls: false,
            process: None,
        };
        for name in ["root", "pam.d", "empty"] {
            fs::create_dir(dir.join(name))?;
        }
        // The user of the server must get there.
        fs::set_permissions(dir, PermissionsExt::from_mode(0o755))?;
        let (key, certificate) = (server.file("key.pem"), server.file("cert.pem"));
        own_certificate(Path::new(&key), Path::new(&certificate))?;
        fs::write(dir.join("both.pem"), [fs::read(&key)?, fs::read(&certificate)?].concat())?;
        if self == Ftpd::PureFtpd {
            chown(dir.join("root"), Some(NOBODY), Some(NOBODY))?;
            server.make_user()?;
        }
        for _ in 0..ATTEMPTS {
            server.port = free_port()?;
            match server.start() {
                Ok(()) => return Ok(server),
                Err(error) if error.to_string().contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("no port was free")
    }
}

/// Where a program is: both servers are unpacked with the other tools of tests, since one would be started where it is installed,
/// and they cannot be installed side by side.
fn program(name: &str) -> Option<PathBuf> {
    let target = std::env::current_exe().ok()?;
    let tools = ["test-tools/pure-ftpd/usr", "test-tools/vsftpd/usr"];
    let tools = target.ancestors().flat_map(|dir| tools.map(|usr| dir.join(usr)));
    let unpacked = tools.flat_map(|usr| [usr.join("sbin").join(name), usr.join("bin").join(name)]);
    find(name).or_else(|| unpacked.into_iter().find(|file| file.is_file()))
}

const VSFTPD: &str = "listen=YES\nlisten_address=127.0.0.1\nbackground=NO\nanonymous_enable=NO\nlocal_enable=YES\n\
    write_enable=YES\npam_service_name=vsftpd\nseccomp_sandbox=NO\nlocal_umask=022\ncheck_shell=NO\nmdtm_write=YES\n\
    ssl_enable=YES\nforce_local_logins_ssl=NO\nforce_local_data_ssl=NO\nallow_writeable_chroot=YES\nxferlog_enable=NO\n";

/// Lets in all users except mallory.
const PAM: &str = "auth required pam_succeed_if.so quiet user != mallory\nauth required pam_permit.so\n\
    account required pam_permit.so\nsession required pam_permit.so\n";

impl FtpServer {
    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// The directory that it serves.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("cert.pem")
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `USER:PASSWORD@HOST:PORT` of it, or of another port that leads to it.
    pub fn place(&self, port: u16) -> String {
        format!("{}:secret@localhost:{port}", self.kind.user())
    }

    fn make_user(&self) -> Result<()> {
        let pure_pw = program("pure-pw").context("there is no pure-pw")?;
        let (passwords, database, root) = (self.file("passwd"), self.file("users.pdb"), self.file("root"));
        // The hash that pure-pw makes takes seconds for each login.
        let hash = Command::new("openssl").args(["passwd", "-6", "secret"]).output()?.stdout;
        let hash = String::from_utf8(hash)?;
        let user = format!("alice:{}:{NOBODY}:{NOBODY}::{root}/./::::::::::::\n", hash.trim());
        fs::write(&passwords, user)?;
        let made = Command::new(pure_pw).args(["mkdb", &database, "-f", &passwords]).output()?;
        if !made.status.success() {
            bail!("pure-pw made no user: {}", String::from_utf8_lossy(&made.stderr));
        }
        Ok(())
    }

    fn command(&self) -> Result<Command> {
        if self.kind == Ftpd::PureFtpd {
            let mut command = Command::new(program("pure-ftpd").context("there is no pure-ftpd")?);
            let login = format!("puredb:{}", self.file("users.pdb"));
            let at = format!("127.0.0.1,{}", self.port);
            let files = ["-2", &self.file("both.pem"), "-g", &self.file("pid")];
            command
                .args(["-S", &at, "-l", &login, "-E", "-H", "-D", "-Y", "1", "-C", "50", "-c", "50"])
                .args(files);
            return Ok(command);
        }
        let usual = match self.sets_times {
            true => VSFTPD.to_owned(),
            false => VSFTPD.replace("mdtm_write=YES", "mdtm_write=NO"),
        };
        let implicit = if self.implicit_tls { "implicit_ssl=YES\n" } else { "" };
        let configuration = format!(
            "{usual}{implicit}listen_port={}\nlocal_root={}\nsecure_chroot_dir={}\nrsa_cert_file={}\nrsa_private_key_file={}\n",
            self.port,
            self.file("root"),
            self.file("empty"),
            self.file("cert.pem"),
            self.file("key.pem"),
        );
        fs::write(self.dir.join("vsftpd.conf"), configuration)?;
        fs::write(self.dir.join("pam.d/vsftpd"), PAM)?;
        // The PAM configuration is at a fixed path: a mount namespace of this server has our files there.
        let script = "mount --bind \"$1\" /etc/pam.d && exec \"$2\" \"$3\"";
        let vsftpd = program("vsftpd").context("there is no vsftpd")?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", &self.file("pam.d")]).arg(vsftpd);
        command.arg(self.file("vsftpd.conf"));
        Ok(command)
    }

    /// Starts a vsftpd again that sets no times of files.
    ///
    /// # Errors
    /// As [`Ftpd::start`].
    pub fn start_without_times(&mut self) -> Result<()> {
        self.stop();
        self.sets_times = false;
        self.start()
    }

    /// Starts a vsftpd again whose TLS begins at once.
    ///
    /// # Errors
    /// As [`Ftpd::start`].
    pub fn start_with_implicit_tls(&mut self) -> Result<()> {
        self.stop();
        self.implicit_tls = true;
        self.start()
    }

    /// Starts it again, on the same port.
    ///
    /// # Errors
    /// As [`Ftpd::start`].
    pub fn start(&mut self) -> Result<()> {
        let log = fs::File::create(self.dir.join("log"))?;
        let mut command = self.command()?;
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        listens(self.process.insert(process), self.port, &self.dir.join("log"))
    }

    /// Sends a signal to every session, not to the server.
    pub fn signal_sessions(&self, signal: Signal) {
        let Some(process) = &self.process else { return };
        for session in processes::descendants(process.id() as i32) {
            // One that has ended meanwhile needs no signal.
            let _ = kill_process(session, signal);
        }
    }

    /// Ends it and its sessions; its port refuses connections then.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let sessions: Vec<Pid> = processes::descendants(process.id() as i32);
        let _ = process.kill();
        let _ = process.wait();
        for session in sessions {
            let _ = kill_process(session, Signal::KILL);
        }
        // A session has the port for as long as it takes to end.
        let until = Instant::now() + LIMIT;
        while TcpStream::connect(("127.0.0.1", self.port)).is_ok() && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for FtpServer {
    fn drop(&mut self) {
        self.stop();
    }
}
