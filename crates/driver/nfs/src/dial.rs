// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the programs of a server are, connecting to them, and the MOUNT program.

use crate::link::Link;
use outrigger_core::{Errno, Error, Result};
use outrigger_proto_nfs3::mount::{self, DirPath, Mounted, procedure as mounting};
use outrigger_proto_nfs3::nfs;
use outrigger_proto_nfs3::portmap::{self, Mapping};
use outrigger_proto_nfs3::types::FileHandle;
use outrigger_proto_nfs3::xdr::Procedure;
use outrigger_proto_nfs3::xdr::rpc::{AUTH_NONE, AUTH_SYS};
use outrigger_toolkit_remote::{connect_reserved, connect_tcp};
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use tokio::net::TcpStream;

impl Link {
    /// Connects to a port of the server, from one below 1024 if this process may: many servers serve no other (`secure` in exports(5)).
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn connect(&self, port: u16, last: &AtomicU16) -> Result<TcpStream> {
        match self.options.resvport {
            true => connect_reserved(&self.host, port, self.options.timeout, last).await,
            false => connect_tcp(&self.host, port, self.options.timeout).await,
        }
    }

    /// The port of NFS.
    ///
    /// # Errors
    /// Why the portmapper does not say.
    pub(crate) async fn nfs_port(self: &Arc<Self>) -> Result<u16> {
        match self.options.port {
            Some(port) => Ok(port),
            None => Ok(self.registered(nfs::PROGRAM, nfs::VERSION).await?.unwrap_or(nfs::PORT)),
        }
    }

    /// The port of a program as the portmapper says; `None` where there is no portmapper.
    async fn registered(self: &Arc<Self>, program: u32, version: u32) -> Result<Option<u16>> {
        let mapping = Mapping { program, version, protocol: portmap::TCP, port: 0 };
        match self.once::<portmap::procedure::GetPort>(portmap::PORT, &mapping).await {
            Ok(0) => Err(Errno::EPROTO.because(format!(
                "the portmapper of {} has no program {program} version {version} over TCP; port=N and mountport=N name ports",
                self.host
            ))),
            Ok(port) => Ok(u16::try_from(port).ok()),
            Err(error) if error.errno == Errno::ECONNREFUSED => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Asks the MOUNT program, which may be at the port of NFS.
    async fn mounting<P: Procedure>(self: &Arc<Self>, args: &P::Args) -> Result<P::Results> {
        let (port, mountport) = (self.options.port, self.options.mountport);
        let refused = match mountport.or(port) {
            None => None,
            Some(port) => match self.once::<P>(port, args).await {
                Err(error) if mountport.is_none() => Some(error),
                answer => return answer,
            },
        };
        match (self.registered(mount::PROGRAM, mount::VERSION).await, refused) {
            (Ok(Some(port)), _) => self.once::<P>(port, args).await,
            (_, Some(error)) | (Err(error), None) => Err(error),
            (Ok(None), None) => self.once::<P>(nfs::PORT, args).await,
        }
    }

    /// The handle of the directory at `path`.
    ///
    /// # Errors
    /// Why the server does not let it be mounted or does not answer; `EACCES` where it wants other credentials than ours.
    pub(crate) async fn mount(self: &Arc<Self>, path: &[u8]) -> Result<FileHandle, Error> {
        let long = |_| Errno::ENAMETOOLONG.because("the path of an export has at most 1024 bytes");
        let dir = DirPath::new(path.to_vec()).map_err(long)?;
        let link = Arc::clone(self);
        let mounted = self.apart(async move { link.mounting::<mounting::Mnt>(&dir).await }).await?;
        let Mounted { handle, flavors } = mounted.map_err(|status| self.not_mounted(path, status))?;
        if !flavors.is_empty() && !flavors.iter().any(|&flavor| matches!(flavor, AUTH_SYS | AUTH_NONE)) {
            let why = format!("{}:{} wants other credentials than AUTH_SYS", self.host, path.escape_ascii());
            return Err(Errno::EACCES.because(why));
        }
        Ok(handle)
    }

    fn not_mounted(&self, path: &[u8], status: mount::Status) -> Error {
        let errno = match status {
            mount::Status::PERM | mount::Status::ACCES => Errno::EACCES,
            mount::Status::NOENT => Errno::ENOENT,
            mount::Status::NOTDIR => Errno::ENOTDIR,
            mount::Status::NAMETOOLONG => Errno::ENAMETOOLONG,
            _ => Errno::EIO,
        };
        errno.because(format!("{} does not export {}: {status}", self.host, path.escape_ascii()))
    }

    /// The paths of what the server exports.
    ///
    /// # Errors
    /// Why it does not say.
    pub(crate) async fn exports(self: &Arc<Self>) -> Result<Vec<Vec<u8>>> {
        let link = Arc::clone(self);
        let list = self.apart(async move { link.mounting::<mounting::Export>(&()).await }).await?;
        Ok(list.0.into_iter().map(|export| export.path.to_vec()).collect())
    }
}
