// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger serve wire`: a tree by the messages of the core, to other processes of Outrigger.

use super::common::{BACKLOG, PATIENCE, host, store};
use super::exports::Whom;
use super::listen::Listen;
use super::nfs::{end, stack};
use crate::context::Context;
use crate::logging;
use crate::messages::output_failed;
use crate::status::Failure;
use crate::trees;
use clap::Args;
use outrigger_core::{Credentials, Errno, Error, Groups};
use outrigger_door_wire::{ALPN, Acceptor, Options, PORT, Server, Terms};
use outrigger_guard::tell_manager;
use rustix::net::listen;
use serde_json::json;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// What is said without being asked for: also who connects by the network.
const MESSAGES: &str = "outrigger_door_wire=warn,outrigger_door_wire::network=info,outrigger_toolkit_serve=warn,outrigger_toolkit_tls=info";

/// Arguments of `serve wire`.
///
/// The other side is ssh://HOST/PATH, which starts this command at HOST by itself, wire:unix:PATH, or wire://HOST/PATH. Requests are made as
/// the user who runs this command: a client has the rights of that user on the tree, or may only read it with --read-only. When another
/// program changes a directory of this machine, clients drop what they have cached of it (inotify(7)).
#[derive(Debug, Args)]
pub struct Wire {
    /// The tree.
    #[arg(value_name = "LOCATION")]
    location: OsString,
    /// Serve one client on standard input and output, and end with it: what ssh://HOST/PATH starts at HOST.
    #[arg(long, conflicts_with = "listen")]
    stdio: bool,
    /// Listen at a socket of this machine, as in unix:/run/user/1000/tree, to which only its user may connect; chmod(1) lets others in. Or
    /// at this address, port, or both, for clients that show a certificate: wire://HOST/PATH. A port alone is one of 127.0.0.1, an
    /// address alone has port 4564; port 0 takes any that is free.
    #[arg(long, value_name = "ADDRESS:PORT|unix:PATH", value_parser = listen_at)]
    listen: Option<Listen>,
    #[command(flatten)]
    tls: Tls,
    /// As whom requests are made: `all` as the user who runs this command, `none` as whom the client says, which only root can do.
    #[arg(long, value_name = "WHO", default_value = "all")]
    squash: Whom,
    /// Refuse every change.
    #[arg(long)]
    read_only: bool,
    /// Options of the driver (`outrigger drivers` lists them).
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Who connects by TCP.
#[derive(Debug, Args)]
struct Tls {
    /// By TCP: the certificate of this server, in PEM, with those that lead to its authority behind it. When it or one of the other files
    /// was changed, they are read again for the connections that come then.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// By TCP: the key of that, in PEM, which only its owner can read.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// By TCP: let in clients whose certificates are signed by one of those in FILE, in PEM, or are in it themselves.
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// By TCP: let in only clients whose certificates have this name: that of a host, an address, a URI, a mail address or a common name; can be
    /// repeated.
    #[arg(long, value_name = "NAME")]
    allow_client: Vec<String>,
}

impl Tls {
    /// What TCP needs; `None` for other streams, where it means nothing.
    ///
    /// # Errors
    /// A sentence that names the missing options, or the options that only TCP takes.
    fn terms(&self, is_tcp: bool) -> Result<Option<Terms>, Failure> {
        let files = [("cert", &self.tls_cert), ("key", &self.tls_key), ("client-ca", &self.tls_client_ca)];
        if !is_tcp {
            let given =
                files.iter().find(|(_, file)| file.is_some()).map(|(name, _)| format!("--tls-{name}"));
            let given =
                given.or_else(|| (!self.allow_client.is_empty()).then(|| "--allow-client".to_owned()));
            return match given {
                Some(option) => Err(Failure::serious(format!(
                    "{option}: it is for --listen ADDRESS:PORT, where there is TLS"
                ))),
                None => Ok(None),
            };
        }
        match (&self.tls_cert, &self.tls_key, &self.tls_client_ca) {
            (Some(cert), Some(key), Some(client_ca)) => Ok(Some(Terms {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: client_ca.clone(),
                allowed: self.allow_client.clone(),
                protocol: ALPN,
            })),
            _ => {
                let missing = files.iter().filter(|(_, file)| file.is_none());
                let missing: Vec<String> = missing.map(|(name, _)| format!("--tls-{name} FILE")).collect();
                Err(Failure::serious(format!(
                    "by TCP a client has to show who it is, by a certificate, and so has the server: {} missing. Without certificates, \
                     clients name ssh://HOST/PATH, which starts `outrigger serve wire --stdio` there",
                    missing.join(" and ") + if missing.len() == 1 { " is" } else { " are" }
                )))
            }
        }
    }
}

fn listen_at(text: &str) -> Result<Listen, String> {
    Listen::parse(text, PORT)
}

impl Wire {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        context.options().allow("serve", &self.options, "")?;
        if self.listen.is_none() && !self.stdio {
            return Err(Failure::serious(
                "name where clients are: --listen unix:PATH, --listen ADDRESS:PORT, or --stdio for one at the other end of standard input \
                 and output",
            ));
        }
        let terms = self.tls.terms(matches!(self.listen, Some(Listen::Tcp(_))))?;
        logging::start_by_default(MESSAGES);
        context.trees.runtime.serve();
        let one_user = self.one_user()?;
        let acceptor = terms.map(Acceptor::new).transpose().map_err(|error| Failure::serious(error.why()))?;
        let mut options = self.options.clone();
        if trees::guards_itself(&context.trees, &self.location, &options) {
            options.push("guard".to_owned());
        }
        if self.read_only && trees::is_of_kernel_code(&context.trees, &self.location, &self.options) {
            options.push("ro".to_owned());
        }
        context.trees.are_read_only(self.read_only);
        let tree = trees::mountable(&context.trees, &self.location, &options, None)?;
        let stacked = stack(context, &tree, self.read_only);
        let (service, closes) = stacked.map_err(|error| Failure::serious(error.to_string()))?;
        let serving = Options {
            service,
            runtime: context.trees.runtime.clone(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            one_user,
            directory: directory(&self.location),
        };
        let served = match &self.listen {
            Some(at) => self.listen(context, serving, (at, acceptor)),
            None => stdio(context, serving),
        };
        let ended = [served, end(context, &closes), store(context, &tree), context.trees.changed.close()];
        // All, whatever became of one.
        ended.into_iter().collect()
    }

    /// As whom requests are made; `None` for whom the client says.
    fn one_user(&self) -> Result<Option<Credentials>, Failure> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        match self.squash {
            Whom::All => {
                let groups = rustix::process::getgroups().map_err(|errno| cannot_tell(&errno.into()))?;
                let groups: Vec<u32> = groups.into_iter().map(|group| group.as_raw()).collect();
                let own = Credentials::new(uid.as_raw(), gid.as_raw());
                Ok(Some(Credentials { groups: Groups::of(&groups), ..own }))
            }
            Whom::None if uid.is_root() => Ok(None),
            Whom::None => Err(Failure::serious("--squash none: only root can make requests as other users")),
            Whom::Root => Err(Failure::serious(
                "--squash root: requests are made as the user who runs this command (all), or as whom the client says (none)",
            )),
        }
    }

    fn listen(
        &self,
        context: &Context,
        serving: Options,
        (at, acceptor): (&Listen, Option<Acceptor>),
    ) -> Result<(), Failure> {
        let cannot =
            |error: io::Error| Failure::new(format!("cannot listen at {at}: {}", Error::from(error)));
        let (socket, _named) = at.socket().map_err(cannot)?;
        listen(&socket, BACKLOG).map_err(|errno| cannot(errno.into()))?;
        context.trees.runtime.handle().block_on(async {
            let server = Server::new(serving).map_err(|error| Failure::serious(error.to_string()))?;
            let listened = match acceptor {
                Some(acceptor) => {
                    let listener = TcpListener::from(socket);
                    let at = listener.local_addr().map_err(cannot)?;
                    self.ready(context, &Listen::Tcp(at)).map_err(output_failed)?;
                    context.cancel.unless_raised(server.listen_tls(listener, acceptor)).await
                }
                None => {
                    self.ready(context, at).map_err(output_failed)?;
                    context.cancel.unless_raised(server.listen(UnixListener::from(socket))).await
                }
            };
            listened.unwrap_or(Ok(())).map_err(cannot)?;
            tell_manager("STOPPING=1");
            server.close(PATIENCE).await;
            Ok(())
        })
    }

    /// Says where clients can connect.
    fn ready(&self, context: &Context, at: &Listen) -> io::Result<()> {
        let (address, location) = (at.to_string(), self.location.to_string_lossy());
        let open = match at {
            Listen::Tcp(at) if at.port() == PORT => format!("wire://{}/", host(at.ip())),
            Listen::Tcp(at) => format!("wire://{}:{}/", host(at.ip()), at.port()),
            Listen::Unix(_) => format!("wire:{address}"),
        };
        let options = if matches!(at, Listen::Tcp(_)) { "--opt cert=FILE,key=FILE,ca=FILE " } else { "" };
        let line = match context.json {
            true => json!({ "address": address, "location": location, "open": open }).to_string(),
            false => format!("{address} serves {location}\n    outrigger {options}ls {open}"),
        };
        let mut out = io::stdout().lock();
        // In one write: a reader may close the pipe after the first line.
        out.write_all(format!("{line}\n").as_bytes())?;
        out.flush()?;
        tell_manager("READY=1");
        Ok(())
    }
}

fn cannot_tell(error: &io::Error) -> Failure {
    Failure::serious(format!("the groups of this process are not known: {error}"))
}

/// The directory of this machine that a LOCATION names.
fn directory(location: &OsString) -> Option<PathBuf> {
    std::fs::canonicalize(location).ok().filter(|path| path.is_dir())
}

/// Serves the client at the other end of standard input and output.
fn stdio(context: &Context, serving: Options) -> Result<(), Failure> {
    let wrong = |error: Error| {
        Failure::serious(format!(
            "--stdio serves a program at the other end of pipes, such as ssh, and this is something else: {error}"
        ))
    };
    let streams = io::stdin().as_fd().try_clone_to_owned();
    let streams = streams.and_then(|input| Ok((input, io::stdout().as_fd().try_clone_to_owned()?)));
    let (input, output) = streams.map_err(|error| wrong(error.into()))?;
    context.trees.runtime.handle().block_on(async {
        let server = Server::new(serving).map_err(|error| Failure::serious(error.to_string()))?;
        match context.cancel.unless_raised(server.serve(input, output)).await {
            Some(Err(error)) if error.errno == Errno::EPROTO => {
                let why = error.why();
                Err(Failure::serious(format!("--stdio: what is at the other end cannot be served: {why}")))
            }
            Some(served) => served.map_err(wrong),
            None => {
                // What has begun is finished.
                server.close(PATIENCE).await;
                Ok(())
            }
        }
    })
}
