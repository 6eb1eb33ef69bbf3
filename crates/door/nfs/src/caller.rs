// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who a call says that its caller is.

use outrigger_proto_nfs3::xdr::rpc::{AUTH_NONE, Auth, AuthStatus};
use outrigger_toolkit_serve::User;

/// The user of this credential.
pub(crate) fn user_of(auth: &Auth) -> Result<User, AuthStatus> {
    if auth.flavor == AUTH_NONE {
        return Ok(User::Unnamed);
    }
    let user = auth.sys()?;
    let (uid, gid, gids) = (user.uid, user.gid, user.gids.to_vec());
    // To system calls it means "as before", which would be this process's own.
    if [uid, gid].iter().chain(&gids).any(|&number| number == u32::MAX) {
        return Err(AuthStatus::BAD_CREDENTIAL);
    }
    Ok(User::Numbers { uid, gid, gids })
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrigger_proto_nfs3::xdr::rpc::AuthSys;

    #[test]
    fn the_number_that_means_no_user_is_refused_wherever_it_stands() {
        for (uid, gid, other) in [(u32::MAX, 1, 1), (1, u32::MAX, 1), (1, 1, u32::MAX)] {
            let gids = outrigger_proto_nfs3::xdr::Array::new(vec![other]).unwrap();
            let user = AuthSys { stamp: 0, machine: Default::default(), uid, gid, gids };
            assert_eq!(user_of(&Auth::from(&user)), Err(AuthStatus::BAD_CREDENTIAL));
        }
    }

    #[test]
    fn calls_without_credentials_name_nobody_and_other_flavours_are_refused() {
        assert_eq!(user_of(&Auth::none()), Ok(User::Unnamed));
        let kerberos = Auth { flavor: 6, body: Default::default() };
        assert_eq!(user_of(&kerberos), Err(AuthStatus::TOO_WEAK));
    }
}
