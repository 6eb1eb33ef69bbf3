// SPDX-License-Identifier: MIT OR Apache-2.0
//! `outrigger run --via seccomp` and `--via ptrace`: what is particular to answers to system calls. `run.rs` tries what all mechanisms do.

mod answers;
mod filtered;
mod stored;
#[path = "../support/mod.rs"]
mod support;
mod traced;

/// The tests of `answers.rs` and `stored.rs`, each way.
macro_rules! each_way {
    ($($module:ident: $($test:ident)*;)*) => {
        mod seccomp {
            $($(#[test] fn $test() { crate::$module::$test("seccomp"); })*)*
        }
        mod ptrace {
            $($(#[test] fn $test() { crate::$module::$test("ptrace"); })*)*
        }
    };
}

each_way! {
answers:
    what_is_read_is_of_one_file_while_others_replace_it
    who_opens_a_fifo_waits_for_the_other_one_and_not_for_ever
    a_file_is_not_emptied_or_made_for_a_program_that_has_no_room_for_it
    programs_in_namespaces_of_their_own_and_without_privileges_change_files_of_trees
    paths_lead_into_trees_and_out_of_them
    programs_and_scripts_of_trees_are_executed
    descriptors_are_those_of_real_files
    what_is_written_is_stored_when_it_is_closed_and_by_fsync
    what_others_change_is_seen
    a_file_that_others_replace_is_not_the_one_that_is_written
    names_between_trees_and_this_machine_cannot_be_exchanged
    content_that_cannot_be_stored_is_kept_and_no_success
    changes_of_a_read_only_tree_are_refused_at_once
    looking_at_files_does_not_read_them
    a_lock_that_other_clients_do_not_see_is_granted_with_a_warning
    a_tree_that_does_not_answer_stops_no_other_call
    a_compiler_builds_in_a_tree
    threads_and_signals_do_not_disturb_calls
    another_owner_is_seen_while_the_file_is_open
    what_threads_make_where_another_one_changes_the_directory_is_in_one_of_both
    the_directory_of_copies_leads_nowhere
    directories_have_the_permissions_that_they_have_in_the_tree;
stored:
    what_others_have_stored_since_a_file_was_opened_is_not_undone
    what_others_have_stored_since_a_file_was_stored_is_not_undone
    content_that_is_refused_when_its_file_is_closed_is_kept
    files_that_are_written_to_when_the_trees_are_taken_away_are_named
    what_is_written_and_closed_while_the_end_stores_it_is_named_and_kept
    trees_are_closed_to_programs_while_the_end_stores_what_they_wrote;
}
