// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can say about a mount by the kernel's NFS client.

use super::{Guarding, Wanted};
use crate::status::Failure;
use outrigger_core::OptionTable;
use outrigger_core::option::option;

/// Options that the NFS client of the kernel gets as they are (nfs(5)).
pub const OPTIONS: OptionTable = OptionTable {
    owner: "mount",
    options: &[
        option("hard", "", "", "with door=nfs: a request waits until it is answered; the default"),
        option(
            "soft",
            "",
            "hard",
            "with door=nfs: a request fails after retrans= times; what is written may be lost",
        ),
        option("softerr", "", "hard", "with door=nfs: as soft, with the error ETIMEDOUT"),
        option("timeo", "N", "600", "with door=nfs: tenths of a second until a request is repeated"),
        option("retrans", "N", "2", "with door=nfs: how often a request is repeated before soft gives up"),
        option("rsize", "BYTES", "1048576", "with door=nfs: the largest read request"),
        option("wsize", "BYTES", "1048576", "with door=nfs: the largest write request"),
        option("actimeo", "SECONDS", "3 to 60", "with door=nfs: how long the kernel caches attributes"),
        option("noac", "", "", "with door=nfs: no attributes are cached, and every write is stored at once"),
        option("nocto", "", "", "with door=nfs: opening a file does not ask for its attributes"),
        option("lookupcache", "all|pos|none", "all", "with door=nfs: which names are cached"),
        option("nordirplus", "", "", "with door=nfs: listings are without attributes"),
    ],
};

/// Options of mounts by FUSE that mean the same here.
const SHARED: &[&str] = &[
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "sync",
    "async",
    "allow_other",
    "default_permissions",
    "timeout",
];

/// The options for the kernel, which are taken out of `others`.
///
/// # Errors
/// A sentence about what a mount by NFS cannot have, or why there can be none.
pub fn chosen(wanted: &Wanted, guarding: Guarding, others: &mut Vec<String>) -> Result<Vec<String>, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::serious(
            "door=nfs: only the superuser may mount by NFS; a mount by FUSE, the default, takes no privilege",
        ));
    }
    if wanted.restart_on_hang.is_some() {
        return Err(Failure::serious(
            "--restart-on-hang is for mounts by FUSE; --timeout makes requests fail",
        ));
    }
    if guarding == Guarding::Proxy {
        return Err(Failure::serious(
            "option guard=proxy is for mounts by FUSE; auto and none are for door=nfs",
        ));
    }
    let given = wanted.options.all.iter().flat_map(|list| list.split(','));
    let mut names = given.map(|item| item.split('=').next().unwrap_or(item));
    let of_fuse = |name: &&str| outrigger_door_fuse::OPTIONS.has(name) && !SHARED.contains(name);
    if let Some(name) = names.find(of_fuse) {
        return Err(Failure::serious(format!(
            "option {name} is for mounts by FUSE: door=nfs has none like it"
        )));
    }
    let name = |item: &String| item.split('=').next().unwrap_or_default().to_owned();
    let kernel: Vec<String> = others.extract_if(.., |item| OPTIONS.has(&name(item))).collect();
    for item in &kernel {
        let (key, value) = item.split_once('=').map_or((&**item, None), |(key, value)| (key, Some(value)));
        let takes_none = OPTIONS.options.iter().any(|option| option.name == key && option.value.is_empty());
        let fits = value
            .is_none_or(|value| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        if takes_none != value.is_none() || !fits {
            return Err(Failure::serious(OPTIONS.unfit(key, value.unwrap_or_default()).to_string()));
        }
    }
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_options_are_options_of_mounts() {
        for name in SHARED {
            assert!(outrigger_door_fuse::OPTIONS.has(name), "{name}");
        }
        assert!(OPTIONS.options.iter().all(|option| !outrigger_door_fuse::OPTIONS.has(option.name)));
    }
}
