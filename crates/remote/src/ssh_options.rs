// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of ssh(1) that users give to drivers of trees which ssh reaches, by their names in ssh_config(5); and commands.

use outrigger_core::{OptionTable, Result};
use std::ffi::OsString;

/// A file as ssh(1) finds it also when a connection is made again, in another directory.
pub fn lasting_file(file: &str) -> String {
    if file.eq_ignore_ascii_case("none") || file.starts_with(['/', '~', '%', '$']) {
        return file.into();
    }
    std::path::absolute(file).map_or_else(|_| file.into(), |path| path.display().to_string())
}

/// Options of ssh_config(5) whose value is one file.
const FILES: &[&str] = &["CertificateFile", "IdentityFile"];

/// An option as ssh gets it.
pub fn for_ssh(key: &str, value: &str) -> (String, String) {
    let is_file = FILES.iter().any(|file| file.eq_ignore_ascii_case(key));
    (key.to_owned(), if is_file { lasting_file(value) } else { value.to_owned() })
}

/// Options of ssh_config(5) that start no program and lead to no other host.
const HARMLESS: &[&str] = &[
    "AddressFamily",
    "BatchMode",
    "Ciphers",
    "Compression",
    "ConnectTimeout",
    "IPQoS",
    "IdentitiesOnly",
    "IdentityFile",
    "LogLevel",
    "MACs",
    "Port",
    "PreferredAuthentications",
    "ServerAliveCountMax",
    "ServerAliveInterval",
    "TCPKeepAlive",
    "User",
];

/// Values of options of ssh_config(5) that forbid something, or ask for what happens anyway; other values of these may open what
/// was closed.
const NARROWING: &[(&str, &str)] = &[
    ("CheckHostIP", "yes"),
    ("ForwardAgent", "no"),
    ("ForwardX11", "no"),
    ("GSSAPIAuthentication", "no"),
    ("HostbasedAuthentication", "no"),
    ("KbdInteractiveAuthentication", "no"),
    ("PasswordAuthentication", "no"),
    ("PermitLocalCommand", "no"),
    ("PubkeyAuthentication", "no"),
    ("PubkeyAuthentication", "yes"),
    ("StrictHostKeyChecking", "yes"),
    ("VerifyHostKeyDNS", "no"),
];

/// Whether the option `key` of ssh_config(5) with this value can have a program started, here or at the server, have ssh(1) talk to
/// another host than the one that was named, or weaken what it checks: those that are not known to do none of this are among them.
pub fn is_dangerous_to_ssh(key: &str, value: &str) -> bool {
    let narrows = |(name, only): &(&str, &str)| name.eq_ignore_ascii_case(key) && *only == value;
    is_of_ssh(key)
        && !HARMLESS.iter().any(|harmless| harmless.eq_ignore_ascii_case(key))
        && !NARROWING.iter().any(narrows)
}

/// The names of all options that are passed on, for messages.
pub fn options_of_ssh() -> impl Iterator<Item = &'static str> {
    KEYWORDS.split_whitespace().chain(CAPITAL.split_whitespace())
}

/// Whether ssh_config(5) has an option of this name. In small letters, as many lines of fstab have them, those are taken that
/// sshfs(1) passes on.
pub fn is_of_ssh(key: &str) -> bool {
    let is_one_of = |list: &str| list.split_whitespace().any(|keyword| keyword.eq_ignore_ascii_case(key));
    let capital = key.starts_with(|first: char| first.is_ascii_uppercase()) && key.len() > 1;
    is_one_of(KEYWORDS) || capital && is_one_of(CAPITAL)
}

/// Options of ssh_config(5) that sshfs(1) passes on, without those that are options of this driver in small letters.
const KEYWORDS: &str = "AddressFamily BatchMode BindAddress CertificateFile CheckHostIP Ciphers ConnectTimeout \
    ConnectionAttempts ControlMaster ControlPath ControlPersist GSSAPIAuthentication GlobalKnownHostsFile HostKeyAlgorithms \
    HostKeyAlias HostName IdentitiesOnly IdentityAgent IdentityFile KbdInteractiveAuthentication KexAlgorithms LogLevel MACs \
    NumberOfPasswordPrompts PasswordAuthentication PreferredAuthentications ProxyCommand ProxyJump PubkeyAuthentication \
    ServerAliveCountMax ServerAliveInterval StrictHostKeyChecking TCPKeepAlive User UserKnownHostsFile";

/// The others of OpenSSH 10, the names some of them had before, and those that Debian and Fedora add (GSSAPI...).
const CAPITAL: &str = "AddKeysToAgent BindInterface CASignatureAlgorithms CanonicalDomains CanonicalizeFallbackLocal \
    CanonicalizeHostname CanonicalizeMaxDots CanonicalizePermittedCNAMEs ChallengeResponseAuthentication ChannelTimeout Cipher \
    ClearAllForwardings Compression CompressionLevel DSAAuthentication DynamicForward EnableEscapeCommandline EnableSSHKeysign \
    EscapeChar ExitOnForwardFailure FingerprintHash ForkAfterAuthentication ForwardAgent ForwardX11 ForwardX11Timeout \
    ForwardX11Trusted GSSAPIClientIdentity GSSAPIDelegateCredentials GSSAPIKexAlgorithms GSSAPIKeyExchange \
    GSSAPIRenewalForcesRekey GSSAPIServerIdentity GSSAPITrustDns GatewayPorts HashKnownHosts Host HostbasedAcceptedAlgorithms \
    HostbasedAuthentication HostbasedKeyTypes IPQoS IgnoreUnknown Include KbdInteractiveDevices KnownHostsCommand \
    LocalCommand LocalForward LogVerbose Match NoHostAuthenticationForLocalhost ObscureKeystrokeTiming PKCS11Provider \
    PermitLocalCommand PermitRemoteOpen Port Protocol ProxyUseFdpass PubkeyAcceptedAlgorithms PubkeyAcceptedKeyTypes \
    RSAAuthentication RSAMinSize RefuseConnection RekeyLimit RemoteCommand RemoteForward RequestTTY RequiredRSASize \
    RevokedHostKeys RhostsRSAAuthentication SecurityKeyProvider SendEnv SessionType SetEnv SmartcardDevice StdinNull \
    StreamLocalBindMask StreamLocalBindUnlink SyslogFacility Tag Tunnel TunnelDevice UpdateHostKeys UseKeychain \
    UsePrivilegedPort UseRoaming VerifyHostKeyDNS VersionAddendum VisualHostKey WarnWeakCrypto XAuthLocation";

/// The words of the command that is the value of an option in `table`, as a shell splits them.
///
/// # Errors
/// `EINVAL` when there is none, or a quote does not end.
pub fn command_words(table: &OptionTable, key: &str, value: &str) -> Result<Vec<OsString>> {
    match shell_words::split(value) {
        Ok(words) if !words.is_empty() => Ok(words.into_iter().map(OsString::from).collect()),
        _ => Err(table.unfit(key, value)),
    }
}
