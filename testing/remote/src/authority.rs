// SPDX-License-Identifier: MIT OR Apache-2.0
//! Certificates for tests, made with openssl(1).

use crate::programs::tool;
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// How a key is made: the fastest kind.
const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
/// How long a certificate holds, in days.
const DAYS: &str = "2";

/// A host's own certificate, which is its authority, for `localhost`, with a key of the kind that every server takes.
///
/// # Errors
/// When openssl fails.
pub fn own_certificate(key: &Path, certificate: &Path) -> Result<()> {
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, "-subj", "/CN=localhost"];
    let files = [key, certificate].map(|path| path.display().to_string());
    tool("openssl", &[&request[..], &["-addext", names, "-keyout", &files[0], "-out", &files[1]]].concat())
}

/// An authority, whose files are in a directory of its own.
#[derive(Debug)]
pub struct Authority(PathBuf);

impl Authority {
    /// One of this name in `dir`, which is there.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        let authority = Authority(dir.to_owned());
        let (subject, files) = (format!("/CN={name}"), [authority.file("ca.key"), authority.file("ca.pem")]);
        let subject = ["-days", DAYS, "-subj", &subject, "-keyout", &files[0], "-out", &files[1]];
        tool("openssl", &[&["req", "-x509"], &KEY[..], &subject].concat())?;
        let dir = dir.display();
        let configuration = format!(
            "[ca]\ndefault_ca = this\n[this]\ndatabase = {dir}/index\nnew_certs_dir = {dir}\nrand_serial = yes\nunique_subject = no\n\
             default_md = sha256\ncopy_extensions = copy\npolicy = policy\n[policy]\ncommonName = supplied\n"
        );
        fs::write(authority.file("configuration"), configuration)?;
        fs::write(authority.file("index"), "")?;
        Ok(authority)
    }

    /// The path of a file: `ca.pem`, or a certificate (`NAME.pem`) or key (`NAME.key`) of [`Authority::certify`].
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Makes a certificate for `name` and these subject alternative names, as in `DNS:localhost`.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn certify(&self, name: &str, alternatives: &str) -> Result<()> {
        self.sign(name, alternatives, &["-days", DAYS])
    }

    /// The same, where the certificate has expired.
    ///
    /// # Errors
    /// When openssl fails.
    pub fn certify_expired(&self, name: &str, alternatives: &str) -> Result<()> {
        self.sign(name, alternatives, &["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"])
    }

    fn sign(&self, name: &str, alternatives: &str, holds: &[&str]) -> Result<()> {
        let [key, request, made] = ["key", "csr", "pem"].map(|kind| self.file(&format!("{name}.{kind}")));
        let (subject, names) = (format!("/CN={name}"), format!("subjectAltName={alternatives}"));
        let files = ["-subj", &subject, "-addext", &names, "-keyout", &key, "-out", &request];
        tool("openssl", &[&["req", "-new"], &KEY[..], &files].concat())?;
        let [configuration, ca, ca_key] = ["configuration", "ca.pem", "ca.key"].map(|name| self.file(name));
        let by = ["ca", "-batch", "-notext", "-config", &configuration, "-cert", &ca, "-keyfile", &ca_key];
        tool("openssl", &[&by[..], holds, &["-in", &request, "-out", &made]].concat())
    }
}
