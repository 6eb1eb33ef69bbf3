// SPDX-License-Identifier: MIT OR Apache-2.0
//! The templates of services in contrib/systemd: systemd understands them, and what they take away is not missed.

mod support;

use std::fs;
use std::path::Path;
use support::{PROGRAM, Place, can_mount, can_serve, has};

/// Directives that give a service a mount namespace, or devices or users of its own (systemd.exec(5)).
const SEPARATE: &[&str] = &[
    "BindPaths",
    "BindReadOnlyPaths",
    "DynamicUser",
    "InaccessiblePaths",
    "MountFlags",
    "PrivateDevices",
    "PrivateMounts",
    "PrivateTmp",
    "PrivateUsers",
    "ProcSubset",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "RootImage",
    "TemporaryFileSystem",
];

fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd").join(name);
    fs::read_to_string(path).unwrap()
}

#[test]
fn systemd_understands_every_line() {
    if !has("systemd-analyze") {
        return;
    }
    let place = Place::new();
    for name in ["mount", "automount", "guard", "serve-nfs"].map(|name| format!("outrigger-{name}@.service"))
    {
        let name = &*name;
        let text = unit(name);
        let own = text.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key);
        assert_eq!(own.filter(|key| SEPARATE.contains(key)).count(), 0, "mounts must reach the host: {name}");
        // The page may not be installed, nor the program.
        let here = text
            .replace("=outrigger ", &format!("={PROGRAM} "))
            .replace("=-outrigger ", &format!("=-{PROGRAM} "));
        let kept: Vec<&str> = here.lines().filter(|line| !line.starts_with("Documentation=")).collect();
        let path = place.file(name, kept.join("\n"));
        let said = place.run_as("systemd-analyze", &["verify", path.to_str().unwrap()]);
        assert_eq!((said.code, &*said.err), (Some(0), ""), "{name}");
    }
}

#[test]
fn mounts_do_without_the_capabilities_that_a_service_lacks() {
    if !can_mount() || !can_serve() || !has("setpriv") || !has("mkfs.ext4") {
        return;
    }
    let text = unit("outrigger-mount@.service");
    let dropped = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=~")).unwrap();
    let dropped: Vec<String> = dropped
        .split(' ')
        .map(|name| format!("-{}", name.strip_prefix("CAP_").unwrap().to_lowercase()))
        .collect();
    let place = Place::new();
    fs::create_dir(place.at("src")).unwrap();
    fs::File::create(place.at("image")).unwrap().set_len(16 << 20).unwrap();
    place.run_as("mkfs.ext4", &["-q", "image"]).ok();
    for source in ["src", "image"] {
        let bounding = dropped.join(",");
        let words = ["--no-new-privs", "--bounding-set", &bounding, "--", PROGRAM, "mount", source, "m"];
        place.run_as("setpriv", &words).ok();
        fs::write(place.at("m/file"), "x").unwrap();
        assert_eq!(fs::read(place.at("m/file")).unwrap(), b"x", "{source}");
        place.run(&["umount", "m"]).ok();
    }
}
