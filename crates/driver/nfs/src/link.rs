// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the NFS program: `RpcClient`, and what the server answers as an error.

use crate::convert;
use crate::inner::Inner;
use crate::options::Options;
use outrigger_core::{BoxFuture, Result, Runtime};
use outrigger_mux::Mux;
use outrigger_proto_nfs3::nfs::{PORT, PROGRAM, VERSION};
use outrigger_proto_nfs3::results::Outcome;
use outrigger_proto_nfs3::types::Status;
use outrigger_proto_nfs3::xdr::Procedure;
use outrigger_proto_nfs3::xdr::rpc::Auth;
use outrigger_toolkit_remote::{Called, OnConnect, RpcClient, RpcPolicy, RpcProgram};
use std::sync::{Arc, Weak};

/// What a procedure has done.
pub(crate) type Done<P> = <<P as Procedure>::Results as Outcome>::Done;

/// The connection to a server; `takes_over` as [`RpcClient::new`] has it.
pub(crate) fn client(
    host: String,
    options: &Options,
    runtime: Arc<dyn Runtime>,
    takes_over: bool,
    owner: Weak<Inner>,
) -> Arc<RpcClient> {
    let program = RpcProgram { number: PROGRAM, version: VERSION, port: options.port, usual_port: PORT };
    let Options { timeout, retrans, hard, resvport: reserved, .. } = *options;
    let policy = RpcPolicy { timeout, retrans, hard, reserved };
    Arc::new(RpcClient::new(host, program, policy, runtime, takes_over, owner))
}

impl OnConnect for Inner {
    fn on_connect<'a>(&'a self, mux: &'a Mux) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.unstable.recover(self, mux))
    }
}

impl Inner {
    /// Asks one thing.
    ///
    /// # Errors
    /// What the server says, and why there is no answer.
    pub(crate) async fn ask<P: Procedure<Results: Outcome>>(
        &self,
        auth: &Auth,
        args: &P::Args,
    ) -> Result<Done<P>> {
        self.ask_via::<P>(None, auth, args, 0).await.0
    }

    /// The same as [`RpcClient::call`] has it.
    pub(crate) async fn ask_via<P: Procedure<Results: Outcome>>(
        &self,
        via: Option<&Mux>,
        auth: &Auth,
        args: &P::Args,
        bytes: u32,
    ) -> Called<Done<P>> {
        let is_later = |results: &P::Results| results.failure() == Some(Status::JUKEBOX);
        let (results, again) = self.rpc.call::<P>(via, auth, args, bytes, is_later).await;
        (results.and_then(|results| results.outcome().map_err(convert::error)), again)
    }
}
