// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of docs/PROTOCOL.md are those of the code. `UPDATE=1` rewrites them.

use outrigger_core::ops::{FallocateMode, RenameFlags, XattrFlags};
use outrigger_core::reply::OpenHow;
use outrigger_core::wire::{Body, Frame, Hello};
use outrigger_core::{AttrFields, Class, Credentials, Errno, OpCode, Reply};
use outrigger_sim::layout::{self, Layout, Row};
use std::fmt::Write;
use std::path::Path;

/// The document with the part between `name`'s markers replaced by `content`.
fn with_part(document: &str, name: &str, content: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let place = document.find(&begin).map(|at| at + begin.len());
    let place = place.and_then(|from| Some((from, from + document[from..].find(&end)?)));
    let Some((from, to)) = place else { panic!("docs/PROTOCOL.md has no markers for {name}") };
    format!("{}{content}{}", &document[..from], &document[to..])
}

/// Bars would end a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn operations() -> String {
    let mut table =
        "| no. | layout | operation | class | arguments | reply | what it does |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for &op in OpCode::ALL {
        let fields = op.fields().iter().map(|(name, kind)| {
            // A box is how the program stores it.
            format!("{name} {}", kind.replace("Box<SetAttrs>", "SetAttrs"))
        });
        let fields: Vec<String> = fields.collect();
        let class = match op.class() {
            Class::Query => "query",
            Class::Change => "change",
        };
        let doc = op.doc().split_whitespace().collect::<Vec<&str>>().join(" ");
        let first = doc.split_inclusive(". ").next().unwrap_or_default().trim_end_matches([' ', '.']);
        let (name, fields, reply) = (op.name(), fields.join(", "), op.reply());
        let row = format!(
            "| {} | {:#010x} | `{name}` | {class} | `{fields}` | {reply} | {} |\n",
            op as u16,
            op.layout(),
            cell(&plain(first))
        );
        table.push_str(&row);
    }
    table
}

/// Without the links of Rust documentation.
fn plain(text: &str) -> String {
    text.replace("[`crate::", "`").replace("[`", "`").replace("`]", "`")
}

fn encoding(layout: Layout) -> String {
    let fields = |all: &[(&str, &str)]| {
        let fields: Vec<String> = all.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        format!("`{}`", fields.join(", "))
    };
    match layout {
        Layout::Integer(size) => format!("{size} bytes"),
        Layout::Choice(1, _) => "1 byte".into(),
        Layout::Choice(size, _) => format!("{size} bytes, no other values"),
        Layout::Bytes(0, ..) => "length `u32`, bytes".into(),
        Layout::Bytes(min, max, _) => format!("length `u32` ({min} to {max}), bytes"),
        Layout::Nothing => "nothing".into(),
        Layout::Struct(all) => fields(all),
        Layout::Enum(all) => {
            let all: Vec<String> =
                all.iter().map(|(number, name, kind)| format!("{number} {name}: {kind}")).collect();
            format!("number `u16`, then {}", all.join("; "))
        }
        Layout::Same(other) => format!("`{other}`"),
    }
}

fn types(rows: &[Row]) -> String {
    let mut table = "| type | encoding | meaning |\n|---|---|---|\n".to_owned();
    for (name, meaning, layout) in rows {
        let _ = writeln!(table, "| `{name}` | {} | {} |", encoding(*layout), cell(meaning));
    }
    table
}

fn numbered(what: &str, rows: &[(u16, Row)]) -> String {
    let mut table = format!("| no. | {what} | content | meaning |\n|---|---|---|---|\n");
    for (number, (name, meaning, layout)) in rows {
        let _ = writeln!(table, "| {number} | {name} | {} | {} |", encoding(*layout), cell(meaning));
    }
    table
}

/// Hexadecimal bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<String>>().join(" ")
}

fn example() -> String {
    let lookup = outrigger_core::ops::Lookup {
        dir: outrigger_core::Node::ROOT,
        name: outrigger_core::Name::try_from("etc").expect("a good name"),
    };
    let request = Frame {
        id: 7,
        body: Body::Request { cred: Credentials::new(1000, 100), within: None, request: lookup.into() },
    };
    let reply = Frame { id: 7, body: Body::Reply(Reply::Error(Errno::ENOENT.into())) };
    let cancel = Frame { id: 7, body: Body::Cancel };
    let mut text = format!("```text\nhello    {}\n", hex(&Hello::bytes()));
    for (what, frame) in [("request ", request), ("reply   ", reply), ("cancel  ", cancel)] {
        let bytes = frame.encode().expect("a small frame");
        let _ = writeln!(text, "{what} {}", hex(&bytes));
    }
    text + "```\n"
}

#[test]
fn the_tables_of_the_document_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/PROTOCOL.md");
    let document = std::fs::read_to_string(&path).expect("docs/PROTOCOL.md can be read");
    let parts = [
        ("operations", operations()),
        ("replies", numbered("reply", layout::REPLIES)),
        ("notices", numbered("notice", layout::NOTICES)),
        ("simple types", types(layout::SIMPLE)),
        ("composite types", types(layout::COMPOSITE)),
        ("example", example()),
    ];
    let current = parts.iter().fold(document.clone(), |text, (name, part)| with_part(&text, name, part));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &current).expect("docs/PROTOCOL.md can be written");
    } else {
        assert!(
            current == document,
            "docs/PROTOCOL.md is stale: UPDATE=1 cargo test -p outrigger-sim --test protocol"
        );
    }
    assert!(current.lines().count() <= 350, "docs/PROTOCOL.md outgrew its 350 lines");
}

#[test]
fn every_flag_is_in_the_tables() {
    let has = |name: &str, flags: Vec<u32>| {
        let row = layout::SIMPLE.iter().find(|(row, ..)| *row == name).expect(name);
        let Layout::Choice(_, values) = row.2 else { panic!("{name} is no choice") };
        for flag in flags {
            assert!(values.contains(&flag.into()), "{name}: {flag}");
        }
    };
    has("OpenHow", OpenHow::all().iter().map(|flag| flag.bits()).collect());
    has("AttrFields", AttrFields::all().iter().map(|flag| flag.bits()).collect());
    has("RenameFlags", RenameFlags::all().iter().map(|flag| flag.bits()).collect());
    has("XattrFlags", XattrFlags::all().iter().map(|flag| flag.bits()).collect());
    // A hole keeps the size: the flag alone means nothing.
    has(
        "FallocateMode",
        FallocateMode::all()
            .iter()
            .map(|flag| flag.bits() | u32::from(flag == FallocateMode::PUNCH_HOLE))
            .collect(),
    );
}
