// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several ways to do the same at a server that does not say which of them it has: that is learned from its answers.

use crate::fault::{Fault, Refusal};
use crate::reconnect::repeated;
use outrigger_core::Errno;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// What is known of the ways to do one thing at a server, of which there are eight at most.
#[derive(Debug, Default)]
pub struct Ways {
    /// One of them has worked.
    worked: AtomicBool,
    /// The server knows none.
    fails: AtomicBool,
    /// Those that it does not know, each a bit.
    unknown: AtomicU8,
}

impl Ways {
    /// False once it is known that the server has no way.
    pub fn may_work(&self) -> bool {
        !self.fails.load(Ordering::Relaxed)
    }

    fn may_have(&self, number: usize) -> bool {
        self.unknown.load(Ordering::Relaxed) >> number & 1 == 0
    }

    /// Does the thing: asks in one way after the other, always the same `ways` in the same order, until the server does it. A server may take
    /// one that is `ambiguous` for something else, so that its refusal says nothing as long as none has worked.
    ///
    /// # Errors
    /// The refusal where it is about what was asked for; `EOPNOTSUPP`, with `lacks` as the reason, where the server has no way.
    pub async fn first<W: Copy, R: Refusal, F: Future<Output = Result<(), Fault<R>>>>(
        &self,
        ways: &[W],
        ambiguous: impl Fn(W) -> bool,
        lacks: &str,
        ask: impl Fn(W) -> F,
    ) -> Result<(), Fault<R>> {
        let mut refusals = Vec::new();
        for (number, &way) in ways.iter().enumerate().filter(|(number, _)| self.may_have(*number)) {
            match repeated(|_| ask(way)).await {
                Ok(()) => {
                    self.worked.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Err(Fault::Refused(refusal)) => refusals.push((number, refusal)),
                fault => return fault,
            }
        }
        let worked = self.worked.load(Ordering::Relaxed);
        let mut of_this_one = None;
        for (number, refusal) in &refusals {
            match refusal.is_unknown() && !worked {
                true => _ = self.unknown.fetch_or(1 << number, Ordering::Relaxed),
                false => of_this_one = of_this_one.or(Some((*number, refusal))),
            }
        }
        if let Some((number, refusal)) = of_this_one
            && (worked || !ambiguous(ways[number]))
        {
            return Err(Fault::Refused(refusal.clone()));
        }
        self.fails.store(!(0..ways.len()).any(|number| self.may_have(number)), Ordering::Relaxed);
        let said = refusals.iter().find_map(|(_, refusal)| refusal.error().reason).unwrap_or_default();
        Err(Errno::EOPNOTSUPP.because(format!("{lacks} ({said})")).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::{Error, lock};
    use std::sync::Mutex;

    /// It has no such way, or refuses this one file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum No {
        Unknown,
        Denied,
    }

    impl Refusal for No {
        fn error(&self) -> Error {
            let errno = if *self == No::Unknown { Errno::EOPNOTSUPP } else { Errno::EPERM };
            errno.because(format!("{self:?}"))
        }

        fn usual(&self) -> Option<Errno> {
            None
        }

        fn is_for_good(&self) -> bool {
            false
        }
    }

    /// Asks in three ways, of which the first is ambiguous; the outcome, and which were asked.
    async fn ask(ways: &Ways, answers: [Result<(), No>; 3]) -> (Result<(), Errno>, Vec<usize>) {
        let asked = Mutex::new(Vec::new());
        let ask = |way: usize| {
            lock(&asked).push(way);
            let answer = answers[way].map_err(Fault::Refused);
            async move { answer }
        };
        let outcome = ways.first(&[0, 1, 2], |way| way == 0, "no way", ask).await;
        let outcome = outcome.map_err(|fault| Error::from(fault).errno);
        (outcome, asked.into_inner().expect("not poisoned"))
    }

    #[tokio::test]
    async fn ways_that_a_server_does_not_have_are_not_asked_again_and_a_refusal_of_one_file_is_its_own() {
        let (unknown, denied) = (Err(No::Unknown), Err(No::Denied));
        let ways = Ways::default();
        assert_eq!(ask(&ways, [unknown, denied, unknown]).await, (Err(Errno::EPERM), vec![0, 1, 2]));
        assert_eq!(ask(&ways, [unknown, Ok(()), unknown]).await, (Ok(()), vec![1]));
        assert_eq!(ask(&ways, [unknown, unknown, unknown]).await, (Err(Errno::EOPNOTSUPP), vec![1]));
        assert!(ways.may_work(), "it has worked once");
        let ways = Ways::default();
        // What the first was taken for is refused, and the others are not there.
        assert_eq!(ask(&ways, [denied, unknown, unknown]).await, (Err(Errno::EOPNOTSUPP), vec![0, 1, 2]));
        assert!(ways.may_work());
        assert_eq!(ask(&ways, [unknown, unknown, unknown]).await, (Err(Errno::EOPNOTSUPP), vec![0]));
        assert!(!ways.may_work());
    }
}
