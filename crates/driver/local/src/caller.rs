// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating files as the caller: owner, group, set-group-id directories, default ACLs and quotas are then right by
//! the host's own rules, in the one call that creates.
//!
//! A thread takes the caller's effective user and group for that call and keeps its capabilities meanwhile
//! (`SECBIT_NO_SETUID_FIXUP`, see capabilities(7)): whether the caller may do this was decided by the door, which may know of
//! groups that a request does not carry. Calls by root cost nothing. Where the process may not set groups, the caller's do not count.

use crate::attr::{failed, stat_fd};
use crate::handle::unshare_umask;
use outrigger_core::attr::SET_ID;
use outrigger_core::{Credentials, Error, Groups};
use rustix::fs::Mode;
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits,
    set_capabilities, set_capabilities_secure_bits, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use std::cell::Cell;
use std::fs;
use std::os::fd::BorrowedFd;

/// What this process may do about credentials.
#[derive(Debug)]
pub(crate) struct Callers {
    own: Credentials,
    may_switch: bool,
    may_set_groups: bool,
    keeps_setid: bool,
}

impl Callers {
    /// Looks at the process's identity and capabilities.
    pub(crate) fn new() -> Self {
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        Callers {
            own: Credentials { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups: own_groups() },
            may_switch: effective.contains(CapabilitySet::SETUID | CapabilitySet::SETGID),
            may_set_groups: may_set_groups(),
            keeps_setid: effective.contains(CapabilitySet::FSETID),
        }
    }

    /// Runs `create` so that what it creates belongs to `caller`; to ourselves without the right to change that.
    ///
    /// # Errors
    /// Those of `create`; `EINVAL` for a user or group our user namespace does not know.
    pub(crate) fn run_as<T>(
        &self,
        caller: &Credentials,
        create: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let is_own = caller.uid == self.own.uid && caller.gid == self.own.gid;
        let groups = caller.groups.known().filter(|_| self.may_set_groups);
        if !self.may_switch || is_own && groups.is_none() {
            return create();
        }
        // To the system calls that number means "as before".
        if caller.uid == u32::MAX
            || caller.gid == u32::MAX
            || groups.is_some_and(|groups| groups.contains(&u32::MAX))
        {
            return Err(outrigger_core::Errno::EINVAL.because("a user or group of number 4294967295"));
        }
        keep_capabilities()?;
        let mut restore = Switched { own: &self.own, groups: false };
        if let Some(groups) = groups {
            set_thread_groups(&ids(groups)).map_err(failed)?;
            restore.groups = true;
        }
        set_thread_res_gid(None, Gid::from_raw(caller.gid), None).map_err(failed)?;
        set_thread_res_uid(None, Uid::from_raw(caller.uid), None).map_err(failed)?;
        create()
    }

    /// As [`Callers::run_as`], with `umask` as the thread's: the host applies it, or a default access list instead.
    ///
    /// # Errors
    /// Those of [`Callers::run_as`] and unshare(2).
    pub(crate) fn create_as<T>(
        &self,
        caller: &Credentials,
        umask: u32,
        create: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if umask == 0 {
            return self.run_as(caller, create);
        }
        own_umask()?;
        rustix::process::umask(Mode::from_raw_mode(umask));
        let _restore = Masked;
        self.run_as(caller, create)
    }

    /// Runs `change`, which changes the content of the file `fd`, so that the host clears set-id bits by the rules for
    /// `caller`.
    ///
    /// # Errors
    /// Those of `change`.
    pub(crate) fn run_clearing_setid<T>(
        &self,
        caller: &Credentials,
        fd: BorrowedFd<'_>,
        change: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        // Nearly no file has any, and asking is cheaper than becoming somebody else.
        if !self.keeps_setid || stat_fd(fd)?.mode & SET_ID == 0 {
            return change();
        }
        self.run_as(caller, || {
            let before = capabilities(None).map_err(failed)?;
            let _restore = Dropped(before);
            let effective = before.effective - CapabilitySet::FSETID;
            set_capabilities(None, CapabilitySets { effective, ..before }).map_err(failed)?;
            change()
        })
    }
}

/// A user namespace that a user without privileges has made refuses setgroups(2), whatever the capabilities.
fn may_set_groups() -> bool {
    fs::read_to_string("/proc/self/setgroups").map_or(true, |text| text.trim() != "deny")
}

fn ids(groups: &[u32]) -> Vec<Gid> {
    groups.iter().copied().map(Gid::from_raw).collect()
}

/// Gives the thread its own identity back when dropped, also when the work panics.
struct Switched<'a> {
    own: &'a Credentials,
    /// Whether the supplementary groups are those of the caller.
    groups: bool,
}

impl Drop for Switched<'_> {
    fn drop(&mut self) {
        let Credentials { uid, gid, groups } = self.own;
        let (uid, gid) = (*uid, *gid);
        let user = set_thread_res_uid(None, Uid::from_raw(uid), None);
        let group = set_thread_res_gid(None, Gid::from_raw(gid), None);
        let others =
            groups.known().filter(|_| self.groups).map_or(Ok(()), |own| set_thread_groups(&ids(own)));
        if let Err(error) = user.and(group).and(others) {
            // Cannot happen while the real user id is ours; going on would act for the wrong user.
            tracing::error!(%error, uid, gid, "the thread could not take back its own identity");
            std::process::abort();
        }
    }
}

/// Takes the thread's umask back when dropped.
struct Masked;

impl Drop for Masked {
    fn drop(&mut self) {
        rustix::process::umask(Mode::empty());
    }
}

/// Gives the thread its capabilities back when dropped.
struct Dropped(CapabilitySets);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Err(error) = set_capabilities(None, self.0) {
            tracing::error!(%error, "the thread could not take back its capabilities");
        }
    }
}

fn own_groups() -> Groups {
    let groups: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
    Groups::of(&groups)
}

/// Makes the umask of this thread its own; once per thread.
fn own_umask() -> Result<(), Error> {
    thread_local!(static OWN: Cell<bool> = const { Cell::new(false) });
    if !OWN.get() {
        unshare_umask().map_err(failed)?;
        OWN.set(true);
    }
    Ok(())
}

/// Makes this thread keep its effective capabilities when its effective user changes; once per thread.
fn keep_capabilities() -> Result<(), Error> {
    thread_local!(static KEEPS: Cell<bool> = const { Cell::new(false) });
    if KEEPS.get() {
        return Ok(());
    }
    let bits = capabilities_secure_bits().map_err(failed)? | CapabilitiesSecureBits::NO_SETUID_FIXUP;
    set_capabilities_secure_bits(bits).map_err(failed)?;
    KEEPS.set(true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_groups_of_its_caller_and_takes_its_own_back() {
        let callers = Callers::new();
        if !callers.may_switch {
            return eprintln!("SKIPPED: needs CAP_SETUID and CAP_SETGID");
        }
        let groups = || getgroups().map(|groups| groups.into_iter().map(Gid::as_raw).collect::<Vec<u32>>());
        let own = groups().expect("groups");
        let caller = Credentials { groups: Groups::of(&[4242, 4243]), ..Credentials::new(1000, 1000) };
        let seen = callers
            .run_as(&caller, || Ok((geteuid().as_raw(), getegid().as_raw(), groups().expect("groups"))));
        assert_eq!(seen, Ok((1000, 1000, vec![4242, 4243])));
        assert_eq!((geteuid().as_raw(), groups().expect("groups")), (callers.own.uid, own.clone()));
        let unknown = Credentials::new(1000, 1000);
        assert_eq!(
            callers.run_as(&unknown, || Ok(groups().expect("groups"))),
            Ok(own),
            "unknown groups change nothing"
        );
    }
}
