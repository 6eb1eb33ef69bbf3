// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has logged in and where the tree begins, for the process that takes over: in memory that only these processes share.

use crate::authority::Authority;
use crate::login::{Login, Secret};
use crate::options::FileOptions;
use crate::pool::Pool;
use outrigger_core::survive::{Area, Layout, Stored, Text};
use outrigger_core::{Keep, Result};
use std::sync::Arc;

/// The region.
const REGION: &str = "remote-login";

outrigger_core::fields! {
    /// Each of at most 8 KiB. The user is noted last, so that the others are there when it is.
    struct Fields {
        base: Text<'static, 1024>,
        password: Text<'static, 1024>,
        user: Text<'static, 1024>,
    }
}

/// The login and the beginning of a tree, noted.
pub struct LoginNotes(Area);

impl LoginNotes {
    /// The notes in `keep`.
    ///
    /// # Errors
    /// Those of [`Layout::attach`].
    pub fn open(keep: &dyn Keep) -> Result<Self> {
        Layout::of(REGION).attach(keep, Fields::WORDS)?.area.take_for::<Fields<'_>>().map(LoginNotes)
    }

    /// What a former process noted.
    pub fn origin(&self) -> Option<(Login, Vec<u8>)> {
        let fields = self.0.view::<Fields<'_>>();
        let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes?).ok();
        let (user, password) = (text(fields.user().get())?, text(fields.password().get())?);
        Some((Login { user, password: Secret::new(password) }, fields.base().get()?))
    }

    /// Notes who has logged in, and the path of the root at the server.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for a text that is too long.
    pub fn note_origin(&self, login: &Login, base: &[u8]) -> Result<()> {
        let fields = self.0.view::<Fields<'_>>();
        fields.base().set(base)?;
        fields.password().set(login.password.reveal().as_bytes())?;
        fields.user().set(login.user.as_bytes())
    }
}

/// Who logs in, and where the tree begins, for a driver that is being opened.
pub struct Start {
    /// Who logs in.
    pub login: Login,
    /// The path of the root at the server, if a former process has found it out.
    base: Option<Vec<u8>>,
    notes: Option<LoginNotes>,
}

impl Start {
    /// What a former process has noted in `keep`, or else what the user says.
    ///
    /// # Errors
    /// Those of [`LoginNotes::open`] and [`Login::find`].
    pub fn find(keep: Option<&dyn Keep>, at: &Authority, options: &FileOptions) -> Result<Self> {
        let notes = keep.map(LoginNotes::open).transpose()?;
        let (login, base) = match notes.as_ref().and_then(LoginNotes::origin) {
            Some((login, base)) => (login, Some(base)),
            None => (Login::find(at, options)?, None),
        };
        Ok(Start { login, base, notes })
    }

    /// Connections to the server, which a former process had one to where one has noted anything.
    pub fn pool<C>(&self, options: &FileOptions) -> Arc<Pool<C>> {
        Pool::new(options.connections, self.base.is_some())
    }

    /// Where the tree begins: at the root of the server with `from_root`, else in the directory of the user, which `home` asks for; noted for
    /// the next process, which need not reach the server at once.
    ///
    /// # Errors
    /// Those of `home` and [`LoginNotes::note_origin`].
    pub async fn base(
        &self,
        from_root: bool,
        home: impl AsyncFnOnce() -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let base = match &self.base {
            Some(base) => base.clone(),
            // It is asked all the same, so that a server that cannot be reached is told at once.
            None => home().await.map(|home| if from_root { b"/".to_vec() } else { home })?,
        };
        self.notes.iter().try_for_each(|notes| notes.note_origin(&self.login, &base))?;
        Ok(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_core::HeapKeep;
    use outrigger_core::survive::testing::each_death;

    #[test]
    fn a_kill_while_it_is_noted_leaves_all_of_it_or_nothing() {
        let login = Login { user: "alice".into(), password: Secret::new("hush".into()) };
        let noted = Some((login.clone(), b"/home/alice".to_vec()));
        let deaths = each_death(|life| {
            let keep = Arc::new(HeapKeep::default());
            let notes = LoginNotes::open(&life.of(&keep)).expect("memory");
            notes.note_origin(&login, b"/home/alice").expect("short enough");
            let left = LoginNotes::open(&*keep).expect("memory").origin();
            assert!(left.is_none() || left == noted, "{left:?}");
        });
        assert!(deaths > 10);
    }
}
