// SPDX-License-Identifier: MIT OR Apache-2.0
//! The conformance suite on a directory under bindfs, asked directly.

use outrigger_conformance::mount::Exceptions;
use outrigger_conformance::{Direct, Target, run};
use outrigger_driver_libfuse::launch::{Launch, Mountpoint};
use outrigger_driver_libfuse::{LibFuse, Options};
use outrigger_runtime::Threads;
use std::sync::Arc;

/// What bindfs 1.14 on libfuse 2 cannot do, whatever plays the kernel.
const EXCEPTIONS: Exceptions = &[
    ("directories/sticky_bit_is_kept", "bindfs makes directories without it"),
    ("rename/noreplace_moves_to_a_free_name", "libfuse 2 knows no flags of renames"),
    ("rename/noreplace_refuses_an_existing_name", "the same"),
    ("rename/exchange_swaps_files", "the same"),
    ("rename/exchange_swaps_file_and_directory", "the same"),
    ("rename/exchange_needs_both", "the same"),
    ("holes/seek_finds_data_and_hole", "libfuse 2 finds no holes"),
    ("holes/a_file_that_is_a_hole", "the same"),
    ("fallocate/", "bindfs does not allocate"),
    ("copies/", "libfuse 2 does not copy"),
    ("owners/copying_ranges_clears_set_id_bits", "the same"),
    ("times/utimens_omit_leaves_alone", "libfuse 2 sets both times or none"),
    (
        "limits/a_path_of_1000_directories",
        "it holds, but each step of each path is a request: a million of them",
    ),
    ("owners/access_decides_by_class", "bindfs does not decide"),
    ("service/lookups_agree_on_the_node", "the high-level interface of libfuse has a node for each name"),
    ("service/a_referenced_node_outlives_its_name", "it knows files by their names only"),
    ("service/setattr_changes_all_or_nothing", "libfuse makes several calls of one SETATTR"),
];

#[test]
fn every_case_holds_over_bindfs() {
    let dir = tempfile::tempdir().expect("a directory");
    let command = ["bindfs", "-f"].map(Into::into).into_iter().chain([dir.path().as_os_str().to_owned()]);
    let launch = Launch { mountpoint: Mountpoint::Private, ..Launch::new(command.collect()) };
    let service = match LibFuse::start(launch, Options::default(), Arc::new(Threads::new())) {
        Ok(service) => service,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let direct = Direct::new(Arc::new(service));
    let target = Target { abilities: direct.abilities(), has_sample: false, exceptions: EXCEPTIONS };
    let report = run(&direct, &target);
    println!("{report}");
    report.must_hold(150);
}
