// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes below another one, as /proc shows them.

use rustix::process::Pid;
use std::fs;

/// The children of a process, whichever of its threads made them.
pub fn children(pid: i32) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = lists.flat_map(|list| list.split_whitespace().map(str::parse).collect::<Vec<_>>());
    numbers.flatten().filter_map(Pid::from_raw).collect()
}

/// Its children, their children and so on.
pub fn descendants(pid: i32) -> Vec<Pid> {
    let mut found = children(pid);
    let mut next = 0;
    while let Some(one) = found.get(next) {
        found.extend(children(one.as_raw_nonzero().get()));
        next += 1;
    }
    found
}
