// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifests of the tree, and where in the layout each crate stands.

use toml::{Table, Value};

use super::Tree;

/// Where a crate stands in the layout of ARCHITECTURE.md; names are folder names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Area {
    /// `crates/core`
    Core,
    /// `crates/core-derive`
    CoreDerive,
    /// `crates/client`: a service by paths and files
    Client,
    /// `crates/runtime`: threads and clock for the core
    Runtime,
    /// `crates/host`: processes and private files, for everything
    Host,
    /// `crates/mux`: many requests over one connection
    Mux,
    /// `crates/remote`: what drivers of servers share
    Remote,
    /// `crates/serve`: what doors for a network share
    Serve,
    /// `crates/tls`: certificates, and who is at the other end
    Tls,
    /// `crates/succession`: what is known of a tree whose server may die
    Succession,
    /// `crates/proto/NAME`: a codec
    Proto(String),
    /// `crates/door/NAME`
    Door(String),
    /// `crates/driver/NAME`
    Driver(String),
    /// `crates/layer/NAME`
    Layer(String),
    /// `crates/guard`
    Guard,
    /// `crates/cli`
    Cli,
    /// `kernel/...`, GPL-2.0-only
    Kernel,
    /// `testing/NAME` and `fuzz`
    Testing,
    /// `xtask`
    Xtask,
}

impl Area {
    /// The area of the crate in `dir`, or `None` when the layout has no such place.
    pub fn of(dir: &str) -> Option<Self> {
        let parts: Vec<&str> = dir.split('/').collect();
        Some(match parts[..] {
            ["crates", "core"] => Self::Core,
            ["crates", "core-derive"] => Self::CoreDerive,
            ["crates", "client"] => Self::Client,
            ["crates", "runtime"] => Self::Runtime,
            ["crates", "host"] => Self::Host,
            ["crates", "mux"] => Self::Mux,
            ["crates", "remote"] => Self::Remote,
            ["crates", "serve"] => Self::Serve,
            ["crates", "tls"] => Self::Tls,
            ["crates", "succession"] => Self::Succession,
            ["crates", "proto", name] => Self::Proto(name.to_owned()),
            ["crates", "door", name] => Self::Door(name.to_owned()),
            ["crates", "driver", name] => Self::Driver(name.to_owned()),
            ["crates", "layer", name] => Self::Layer(name.to_owned()),
            ["crates", "guard"] => Self::Guard,
            ["crates", "cli"] => Self::Cli,
            ["kernel", ..] => Self::Kernel,
            ["testing", _] | ["fuzz"] => Self::Testing,
            ["xtask"] => Self::Xtask,
            _ => return None,
        })
    }
}

/// One crate of the repository.
#[derive(Debug)]
pub struct Manifest<'a> {
    /// Path of its Cargo.toml.
    pub path: &'a str,
    /// The directory of the crate; empty for the repository itself.
    pub dir: &'a str,
    /// The text, for line numbers.
    pub text: &'a str,
    /// The parsed text.
    pub table: Table,
}

/// One dependency of a crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Name of the package (not the name it is renamed to).
    pub package: String,
    /// Whether only tests and examples use it.
    pub dev: bool,
    /// Whether it is named by path rather than by version.
    pub by_path: bool,
    /// Whether it takes version and path from the workspace.
    pub by_workspace: bool,
}

impl Manifest<'_> {
    /// Name of the package, if the manifest describes one.
    pub fn package(&self) -> Option<&str> {
        self.table.get("package")?.get("name")?.as_str()
    }

    /// All dependencies: of the crate, its tests and its build script, also those for one target only.
    pub fn dependencies(&self) -> Vec<Dependency> {
        let targets = self.table.get("target").and_then(Value::as_table);
        let tables = std::iter::once(&self.table)
            .chain(targets.into_iter().flat_map(|targets| targets.values().filter_map(Value::as_table)));
        let mut found = Vec::new();
        for table in tables {
            for (section, dev) in
                [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
            {
                let entries = table.get(section).and_then(Value::as_table);
                found.extend(entries.into_iter().flatten().map(|(name, spec)| dependency(name, spec, dev)));
            }
        }
        found
    }

    /// What `[workspace.dependencies]` declares; empty for a manifest that is no workspace.
    pub fn workspace_dependencies(&self) -> Vec<Dependency> {
        let entries =
            self.table.get("workspace").and_then(|w| w.get("dependencies")).and_then(Value::as_table);
        entries.into_iter().flatten().map(|(name, spec)| dependency(name, spec, false)).collect()
    }

    /// The line that names `package`, or 1.
    pub fn line_of(&self, package: &str) -> usize {
        let mut lines = super::source::numbered(self.text);
        let names_it = |line: &str| {
            let key = line.split(['=', '.']).next().unwrap_or_default().trim();
            key.trim_matches('"') == package || line.contains(&format!("package = \"{package}\""))
        };
        lines.find(|(_, line)| names_it(line)).map_or(1, |(number, _)| number)
    }
}

fn dependency(name: &str, spec: &Value, dev: bool) -> Dependency {
    let has = |key: &str| spec.get(key).is_some();
    let package = spec.get("package").and_then(Value::as_str).unwrap_or(name).to_owned();
    Dependency { package, dev, by_path: has("path"), by_workspace: has("workspace") }
}

/// Every manifest that parses. One that does not parse is cargo's to report: no build gets as far as this check.
pub fn manifests(tree: &Tree) -> Vec<Manifest<'_>> {
    let is_manifest = |path: &str| path == "Cargo.toml" || path.ends_with("/Cargo.toml");
    tree.texts()
        .filter(|(path, _)| is_manifest(path))
        .filter_map(|(path, text)| {
            let dir = path.strip_suffix("Cargo.toml")?.trim_end_matches('/');
            Some(Manifest { path, dir, text, table: text.parse().ok()? })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_dependencies_of_every_section() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nb = { path = \"../b\" }\n[dev-dependencies]\nc = \"1\"\n\
                    [target.'cfg(unix)'.dependencies]\nd = { version = \"1\", package = \"real-d\" }\n\
                    [build-dependencies]\ne.workspace = true\n";
        let tree = Tree::from_files(&[("crates/core/Cargo.toml", text)]);
        let all = manifests(&tree);
        let mut found: Vec<(String, bool, bool)> =
            all[0].dependencies().into_iter().map(|d| (d.package, d.dev, d.by_path)).collect();
        found.sort();
        let expected =
            [("b", false, true), ("c", true, false), ("e", false, false), ("real-d", false, false)];
        assert_eq!(found, expected.map(|(name, dev, path)| (name.to_owned(), dev, path)));
        assert_eq!([all[0].line_of("c"), all[0].line_of("real-d"), all[0].line_of("e")], [6, 8, 10]);
    }
}
