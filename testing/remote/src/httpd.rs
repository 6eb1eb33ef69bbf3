// SPDX-License-Identifier: MIT OR Apache-2.0
//! HTTP servers of our own, on ports of the loopback device: nginx, Apache, also with WebDAV, and the one of Python, which knows no ranges.

use crate::authority::own_certificate;
use crate::programs::{find, free_port, listens};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{self, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Httpd {
    /// nginx: with TLS and HTTP/2 on another port. Beside `/` its tree is at `/json/` with an index in JSON, at `/whole/` without ranges,
    /// at `/private/` for `alice` with the password `secret`, and at `/moved/` by redirects; `/forbidden/` is refused,
    /// and `/down/` leads to the place without TLS.
    Nginx,
    /// Apache.
    Apache,
    /// Apache with WebDAV (mod_dav), and TLS on another port. Its tree is at `/` and, for `alice` with the password `secret`, at
    /// `/private/`; `/moved/` leads to another host.
    Dav,
    /// Python's `http.server`.
    Python,
}

/// A server in use. Dropping it ends it.
#[derive(Debug)]
pub struct HttpServer {
    kind: Httpd,
    dir: PathBuf,
    ports: [u16; 2],
    process: Option<Child>,
}

const LIMIT: Duration = Duration::from_secs(30);
/// How many ports are tried: between being found free and being taken, another program may take one.
const ATTEMPTS: usize = 5;
/// What a server is asked for to see how far it has written down what it was asked.
const MARK: &str = "/mark-";
const MODULES: &str = "/usr/lib/apache2/modules";

impl Httpd {
    /// A program it takes that is not here.
    pub fn missing(self) -> Option<&'static str> {
        let needs: &[&str] = match self {
            Httpd::Nginx => &["nginx", "openssl"],
            Httpd::Apache => &["apache2"],
            Httpd::Dav => &["apache2", "openssl"],
            Httpd::Python => &["python3"],
        };
        needs.iter().copied().find(|name| program(name).is_none())
    }

    /// Starts it for the directory `root` below `dir`, which is empty, and gets the other files.
    ///
    /// # Errors
    /// When it cannot be started, or does not listen before the deadline, with its output.
    pub fn start(self, dir: &Path) -> Result<HttpServer> {
        let mut server = HttpServer { kind: self, dir: dir.to_owned(), ports: [0; 2], process: None };
        for name in ["root", "temporary"] {
            fs::create_dir(dir.join(name))?;
        }
        // The user of the server must get there.
        fs::set_permissions(dir, PermissionsExt::from_mode(0o755))?;
        if matches!(self, Httpd::Nginx | Httpd::Dav) {
            server.make_secrets()?;
        }
        if self == Httpd::Dav {
            for name in ["root", "temporary"] {
                fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o777))?;
            }
        }
        for _ in 0..ATTEMPTS {
            server.ports = [free_port()?, free_port()?];
            match server.start() {
                Ok(()) => return Ok(server),
                Err(error) if error.to_string().contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("no port was free")
    }
}

/// Where a program is: nginx is unpacked with the other tools of tests, since it would be started where it is installed.
fn program(name: &str) -> Option<PathBuf> {
    let target = std::env::current_exe().ok()?;
    let unpacked = target.ancestors().map(|dir| dir.join("test-tools/nginx/usr/sbin").join(name));
    find(name).or_else(|| unpacked.into_iter().find(|file| file.is_file()))
}

impl HttpServer {
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
        self.ports[0]
    }

    /// The port with TLS, of nginx and Apache with WebDAV.
    pub fn tls_port(&self) -> u16 {
        self.ports[1]
    }

    /// What it was asked, with the status of each answer: `GET /path 200 HTTP/1.1`; of Apache and Python in their own form.
    ///
    /// A server writes that down after its answer has gone out. So it is asked once more, and that is waited for.
    ///
    /// # Panics
    /// When it does not answer, or does not write it down in time.
    pub fn requests(&self) -> Vec<String> {
        static MARKS: AtomicU64 = AtomicU64::new(0);
        let mark = format!("{MARK}{}", MARKS.fetch_add(1, Ordering::Relaxed));
        let mut connection = TcpStream::connect(("127.0.0.1", self.port())).expect("a connection");
        write!(connection, "GET {mark} HTTP/1.0\r\n\r\n").expect("asked");
        io::copy(&mut connection, &mut io::sink()).expect("an answer");
        let log = if self.kind == Httpd::Python { "log" } else { "requests" };
        let deadline = Instant::now() + LIMIT;
        loop {
            let text = fs::read_to_string(self.dir.join(log)).unwrap_or_default();
            if text.lines().any(|line| line.split_whitespace().any(|word| word == mark)) {
                return text.lines().filter(|line| !line.contains(MARK)).map(str::to_owned).collect();
            }
            assert!(Instant::now() < deadline, "{:?} does not write down what it was asked", self.kind);
            thread::yield_now();
        }
    }

    fn make_secrets(&self) -> Result<()> {
        own_certificate(&self.dir.join("key.pem"), &self.certificate())?;
        // The only form that both nginx and Apache know.
        fs::write(self.dir.join("users"), "alice:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n")?;
        Ok(())
    }

    fn nginx(&self) -> String {
        let ([port, tls_port], dir) = (self.ports, self.dir.display());
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|what| format!("{what}_temp_path {dir}/temporary;\n"))
            .concat();
        format!(
            "daemon off; master_process off; user root; pid {dir}/pid; error_log stderr;\nevents {{ }}\nhttp {{\n{temporary}\
             log_format asked '$request_method $request_uri $status $server_protocol'; access_log {dir}/requests asked;\n\
             types {{ text/html html; }}\nautoindex on;\n\
             server {{\n listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl http2; root {dir}/root;\n\
             ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem;\n\
             location /json/ {{ alias {dir}/root/; autoindex_format json; }}\n\
             location /whole/ {{ alias {dir}/root/; max_ranges 0; }}\n\
             location /private/ {{ alias {dir}/root/; auth_basic x; auth_basic_user_file {dir}/users; }}\n\
             location /down/ {{ return 302 http://127.0.0.1:{port}/empty; }}\n\
             location /forbidden/ {{ return 403; }}\n\
             location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}\n}}\n}}\n"
        )
    }

    fn apache(&self) -> String {
        let (port, dir) = (self.ports[0], self.dir.display());
        let modules = ["mpm_event", "authz_core", "autoindex", "dir"]
            .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"))
            .concat();
        format!(
            "ServerRoot {dir}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {dir}/pid\nMutex file:{dir}/temporary\n\
             DefaultRuntimeDir {dir}/temporary\n{modules}User nobody\nGroup nogroup\nErrorLog {dir}/log\n\
             LogFormat \"%m %U %>s %H\" asked\nDocumentRoot {dir}/root\n<Directory {dir}/root>\nRequire all granted\n\
             Options +Indexes\nIndexOptions FancyIndexing HTMLTable\n</Directory>\n"
        )
    }

    /// What Apache has more with WebDAV.
    fn dav(&self) -> String {
        let (port, dir) = (self.ports[1], self.dir.display());
        let names = ["dav", "dav_fs", "alias", "ssl", "auth_basic", "authn_core", "authn_file", "authz_user"];
        let modules =
            names.map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n")).concat();
        format!(
            "{modules}CustomLog {dir}/requests asked\nDavLockDB {dir}/temporary/locks\nAlias /private/ {dir}/root/\n\
             Redirect /moved/ http://127.0.0.2:{port}/\n<Directory {dir}/root>\nDav On\n</Directory>\n\
             <Location /private/>\nAuthType Basic\nAuthName x\nAuthUserFile {dir}/users\nRequire user alice\n</Location>\n\
             Listen 127.0.0.1:{port}\n<VirtualHost 127.0.0.1:{port}>\nSSLEngine on\nCustomLog {dir}/requests asked\n\
             SSLCertificateFile {dir}/cert.pem\nSSLCertificateKeyFile {dir}/key.pem\n</VirtualHost>\n"
        )
    }

    fn command(&self) -> Result<Command> {
        let (name, text) = match self.kind {
            Httpd::Nginx => ("nginx", self.nginx()),
            Httpd::Apache => ("apache2", self.apache()),
            Httpd::Dav => ("apache2", self.apache() + &self.dav()),
            Httpd::Python => ("python3", String::new()),
        };
        let configuration = self.dir.join("configuration");
        fs::write(&configuration, text)?;
        let mut command = Command::new(program(name).with_context(|| format!("there is no {name}"))?);
        match self.kind {
            Httpd::Nginx => command.args(["-e", "stderr", "-c"]).arg(configuration).arg("-p").arg(&self.dir),
            // One process, in the foreground.
            Httpd::Apache | Httpd::Dav => command.arg("-X").arg("-f").arg(configuration),
            Httpd::Python => command
                .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", &self.ports[0].to_string()])
                .current_dir(self.root()),
        };
        Ok(command)
    }

    /// Starts it again, on the same port.
    ///
    /// # Errors
    /// As [`Httpd::start`].
    pub fn start(&mut self) -> Result<()> {
        let log = fs::File::create(self.dir.join("log"))?;
        let mut command = self.command()?;
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        listens(self.process.insert(process), self.ports[0], &self.dir.join("log"))
    }

    /// Ends it; its port refuses connections then.
    pub fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // It may have ended.
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop();
    }
}
