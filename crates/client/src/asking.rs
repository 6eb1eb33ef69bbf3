// SPDX-License-Identifier: MIT OR Apache-2.0
//! For which process a thread asks.

use std::cell::Cell;

thread_local! {
    static PROCESS: Cell<u32> = const { Cell::new(0) };
}

/// While this is there, all clients ask for one process what this thread asks them: it is the [origin](outrigger_core::Origin) of
/// the requests.
#[derive(Debug)]
pub struct Asking {
    former: u32,
}

impl Asking {
    /// For the process, or the thread, with this number.
    #[must_use]
    pub fn for_process(pid: u32) -> Self {
        Asking { former: PROCESS.replace(pid) }
    }

    /// The process that this thread asks for; 0 for none.
    pub(crate) fn process() -> u32 {
        PROCESS.get()
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        PROCESS.set(self.former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_former_process_counts_again_in_the_end() {
        let outer = Asking::for_process(1);
        drop(Asking::for_process(2));
        assert_eq!(Asking::process(), 1);
        drop(outer);
        assert_eq!(Asking::process(), 0);
    }
}
