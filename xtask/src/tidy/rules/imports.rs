// SPDX-License-Identifier: MIT OR Apache-2.0
//! `imports`: which crate of ours may depend on which.
//!
//! The core depends on its derive only and codecs on codecs only, so both can be read, tested and reused alone. Doors,
//! drivers and layers meet in the core's messages and never name each other; putting them together is the work of the
//! command line, the language bindings, the guard and the tests. Tests of a crate may also use the client, the runtime and testing/*.

use std::collections::BTreeMap;

use super::{Finding, Rule, Tree};
use crate::tidy::crates::{Area, Manifest, manifests};

pub const RULE: Rule = Rule {
    name: "imports",
    summary: "core, codecs, doors, drivers and layers depend only on what the layout allows (docs/STYLE.md)",
    check,
};

/// Users of a codec that is not named like them: (folder of the user, codec).
const SHARED_CODECS: &[(&str, &str)] = &[
    ("crates/door/nfs", "nfs3"),
    ("crates/driver/kernel", "disk"),
    ("crates/driver/libfuse", "fuse"),
    ("crates/driver/nfs", "nfs3"),
];

fn check(tree: &Tree) -> Vec<Finding> {
    let all = manifests(tree);
    let dirs: BTreeMap<&str, &str> = all.iter().filter_map(|m| Some((m.package()?, m.dir))).collect();
    let mut findings = Vec::new();
    for manifest in all.iter().filter(|manifest| manifest.package().is_some()) {
        match Area::of(manifest.dir) {
            Some(area) => findings.extend(check_crate(manifest, &area, &dirs)),
            None => {
                let advice = "move this crate to a folder of the layout (ARCHITECTURE.md)";
                findings.push(Finding::new(RULE.name, manifest.path, 1, advice));
            }
        }
    }
    findings
}

fn check_crate(manifest: &Manifest<'_>, area: &Area, dirs: &BTreeMap<&str, &str>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for dependency in manifest.dependencies() {
        let Some(target) = dirs.get(dependency.package.as_str()) else { continue };
        let Some(target_area) = Area::of(target) else { continue };
        let of_tests = dependency.dev && tests_may_use(area, &target_area);
        if *target != manifest.dir && !of_tests && !may_use(manifest.dir, area, &target_area) {
            let advice = format!("drop `{}`: {}", dependency.package, allowance(area));
            findings.push(Finding::new(
                RULE.name,
                manifest.path,
                manifest.line_of(&dependency.package),
                advice,
            ));
        }
    }
    findings
}

/// Whether the tests of a crate of area `user` may use one of area `target`; the client and layers have to be tried on
/// some tree, and a driver with the layers that ask it ahead.
fn tests_may_use(user: &Area, target: &Area) -> bool {
    matches!(target, Area::Client | Area::Runtime | Area::Testing)
        || matches!(
            (user, target),
            (Area::Client | Area::Layer(_), Area::Driver(_)) | (Area::Driver(_), Area::Layer(_))
        )
}

/// Whether a crate in `dir`, of area `user`, may use one of area `target`.
fn may_use(dir: &str, user: &Area, target: &Area) -> bool {
    use Area::{
        Cli, Client, Core, CoreDerive, Door, Driver, Guard, Host, Kernel, Layer, Mux, Proto, Remote, Runtime,
        Serve, Succession, Testing, Tls, Xtask,
    };
    match (user, target) {
        // No crate may link GPL code or the programs of tests and chores.
        (_, Kernel | Xtask) => false,
        (Testing, _) => true,
        (_, Testing) => false,
        (Core, CoreDerive)
        | (Client | Remote | Runtime | Serve | Succession | Tls, Core)
        | (Proto(_), Proto(_)) => true,
        // Who asks at a terminal, and reads files with passwords; who makes many remote procedure calls at once.
        (Remote, Host | Mux) => true,
        // Both sides of a connection have keys.
        (Tls, Host) | (Remote, Tls) => true,
        (Remote, Proto(codec)) => codec == "xdr",
        // A driver that serves mounts by itself.
        (Kernel, Core | Proto(_) | Layer(_) | Succession) => true,
        (Kernel, Door(name)) => name == "fuse",
        (
            Core | CoreDerive | Client | Runtime | Proto(_) | Mux | Host | Remote | Serve | Succession | Tls
            | Kernel | Xtask,
            _,
        ) => false,
        (Cli, _) | (Guard | Door(_) | Driver(_) | Layer(_), Host) => true,
        (Guard, Core | Client | Runtime | Proto(_) | Mux | Remote | Door(_) | Driver(_) | Layer(_)) => true,
        (Door(name), target) if name == "capi" || name == "python" => *target != Cli,
        (Door(name) | Driver(name), Proto(codec)) => name == codec || SHARED_CODECS.contains(&(dir, codec)),
        (Driver(name), Succession) => name == "kernel",
        // Clients of a network.
        (Door(_), Serve | Tls) => true,
        // Programs name files by paths there, and no kernel resolves them.
        (Door(name), Client) => name == "intercept",
        (Door(_) | Driver(_) | Layer(_), Core) | (Driver(_), Mux | Remote) => true,
        (Guard | Door(_) | Driver(_) | Layer(_), _) => false,
    }
}

/// What `area` may use, for the message.
fn allowance(area: &Area) -> &'static str {
    match area {
        Area::Core => "the core may use its derive only",
        Area::CoreDerive | Area::Mux | Area::Host | Area::Xtask => {
            "this crate may use no other crate of ours"
        }
        Area::Proto(_) => "a codec may use other codecs only, and no core",
        Area::Door(_) => {
            "a door may use the core, crates/host, crates/serve, crates/tls and its own codec only (intercept: the client, too)"
        }
        Area::Driver(_) => {
            "a driver may use the core, crates/host, its own codec, the multiplexer and the toolkit for servers only"
        }
        Area::Layer(_) => "a layer may use the core and crates/host only",
        Area::Client | Area::Runtime | Area::Serve | Area::Succession => {
            "the client, the runtime, the toolkit of doors and the succession may use the core only"
        }
        Area::Tls => "the toolkit for TLS may use the core and crates/host only",
        Area::Remote => {
            "the toolkit for servers may use the core, crates/host, crates/tls, the multiplexer and the codec of remote procedure calls only"
        }
        Area::Kernel => "kernel/ may use the core, codecs, layers, the succession and the FUSE door only",
        Area::Guard | Area::Cli | Area::Testing => {
            "nothing may use kernel/ or xtask, and only tests use testing/ and the command"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;

    /// The places found when the crate in `from` depends on the one in `to`, in the section `section`.
    fn try_import(from: &str, to: &str, section: &str) -> Vec<String> {
        let user = format!("[package]\nname = \"user\"\n[{section}]\ntarget.workspace = true\n");
        let (user_path, target_path) = (format!("{from}/Cargo.toml"), format!("{to}/Cargo.toml"));
        places(&RULE, &[(&user_path, &user), (&target_path, "[package]\nname = \"target\"\n")])
    }

    #[test]
    fn allowed_and_forbidden_imports() {
        for (from, to, allowed) in [
            ("crates/core", "crates/core-derive", true),
            ("crates/core", "crates/proto/fuse", false),
            ("crates/core-derive", "crates/core", false),
            ("crates/runtime", "crates/core", true),
            ("crates/client", "crates/core", true),
            ("crates/client", "crates/runtime", false),
            ("crates/runtime", "crates/door/fuse", false),
            ("crates/driver/mem", "crates/runtime", false),
            ("crates/cli", "crates/runtime", true),
            ("crates/proto/fuse", "crates/core", false),
            ("crates/proto/nfs3", "crates/proto/xdr", true),
            ("crates/door/fuse", "crates/core", true),
            ("crates/door/fuse", "crates/proto/fuse", true),
            ("crates/door/fuse", "crates/proto/nfs3", false),
            ("crates/door/nfs", "crates/proto/nfs3", true),
            ("crates/door/ninep", "crates/serve", true),
            ("crates/serve", "crates/core", true),
            ("crates/door/wire", "crates/tls", true),
            ("crates/remote", "crates/tls", true),
            ("crates/tls", "crates/host", true),
            ("crates/tls", "crates/serve", false),
            ("crates/serve", "crates/door/nfs", false),
            ("crates/driver/ftp", "crates/serve", false),
            ("crates/door/fuse", "crates/driver/mem", false),
            ("crates/door/fuse", "crates/door/nfs", false),
            ("crates/door/capi", "crates/driver/mem", true),
            ("crates/door/capi", "crates/cli", false),
            ("crates/driver/local", "crates/driver/mem", false),
            ("crates/driver/local", "crates/layer/trace", false),
            ("crates/driver/libfuse", "crates/proto/fuse", true),
            ("crates/driver/sftp", "crates/mux", true),
            ("crates/driver/ftp", "crates/remote", true),
            ("crates/remote", "crates/core", true),
            ("crates/remote", "crates/proto/ftp", false),
            ("crates/remote", "crates/proto/xdr", true),
            ("crates/remote", "crates/mux", true),
            ("crates/layer/cache", "crates/mux", false),
            ("crates/mux", "crates/core", false),
            ("crates/layer/cache", "crates/host", true),
            ("crates/driver/sftp", "crates/host", true),
            ("crates/core", "crates/host", false),
            ("crates/host", "crates/core", false),
            ("crates/succession", "crates/core", true),
            ("crates/driver/kernel", "crates/succession", true),
            ("crates/driver/sftp", "crates/succession", false),
            ("kernel/outrigger-kernel", "crates/succession", true),
            ("crates/mux", "crates/proto/sftp", false),
            ("crates/layer/trace", "crates/core", true),
            ("crates/layer/trace", "crates/layer/fault", false),
            ("crates/layer/trace", "crates/proto/fuse", false),
            ("crates/guard", "crates/door/fuse", true),
            ("crates/guard", "crates/cli", false),
            ("crates/cli", "crates/driver/mem", true),
            ("crates/cli", "kernel/outrigger-kernel", false),
            ("kernel/outrigger-kernel", "crates/core", true),
            ("kernel/outrigger-kernel", "crates/door/fuse", true),
            ("kernel/outrigger-kernel", "crates/door/capi", false),
            ("kernel/outrigger-kernel", "crates/driver/mem", false),
            ("testing/conformance", "crates/driver/mem", true),
            ("fuzz", "crates/driver/archive", true),
            ("crates/cli", "testing/conformance", false),
            ("xtask", "crates/core", false),
        ] {
            let expected = if allowed { vec![] } else { vec![format!("{from}/Cargo.toml:4")] };
            assert_eq!(try_import(from, to, "dependencies"), expected, "{from} -> {to}");
        }
    }

    #[test]
    fn tests_may_use_the_test_crates_but_nothing_else() {
        for (to, allowed) in
            [("testing/conformance", true), ("crates/runtime", true), ("crates/driver/local", false)]
        {
            let found = try_import("crates/driver/mem", to, "dev-dependencies");
            assert_eq!(found.is_empty(), allowed, "{to}");
        }
        assert!(try_import("crates/client", "crates/driver/mem", "dev-dependencies").is_empty());
        assert!(!try_import("crates/client", "crates/driver/mem", "dependencies").is_empty());
        let build = try_import("crates/driver/mem", "testing/conformance", "build-dependencies");
        assert_eq!(build, ["crates/driver/mem/Cargo.toml:4"]);
    }

    #[test]
    fn a_renamed_import_and_a_stray_crate_are_seen() {
        let user = "[package]\nname = \"u\"\n[target.'cfg(unix)'.dependencies]\nx = { package = \"t\", path = \"../t\" }\n";
        let files = [
            ("crates/layer/u/Cargo.toml", user),
            ("crates/driver/t/Cargo.toml", "[package]\nname = \"t\"\n"),
            ("crates/misc/Cargo.toml", "[package]\nname = \"m\"\n"),
        ];
        assert_eq!(places(&RULE, &files), ["crates/layer/u/Cargo.toml:4", "crates/misc/Cargo.toml:1"]);
    }
}
