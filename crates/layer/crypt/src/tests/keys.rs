// SPDX-License-Identifier: MIT OR Apache-2.0
//! Making a tree, opening it, and changing what opens it.

use super::*;

use outrigger_core::{Answer, HeapKeep, Keep};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const CHEAP: Cost = Cost { memory_kib: 64, passes: 1 };

fn passphrase(text: &str) -> Secret {
    Secret::Passphrase(text.as_bytes().to_vec().into())
}

fn errno<T>(result: Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno)
}

#[test]
fn a_tree_opens_with_its_passphrase_and_with_no_other() {
    let both = Both::new();
    wait(initialise(&*both.below, &passphrase("one"), CHEAP)).expect("an empty tree");
    let config = wait(configuration(&*both.below)).expect("a configuration");
    assert!(config.unwrap(&passphrase("one")).is_ok());
    assert_eq!(errno(config.unwrap(&passphrase("two"))), Some(Errno::EACCES));
    assert_eq!(errno(config.unwrap(&Secret::KeyFile(vec![7; 32].into()))), Some(Errno::EACCES));
    assert_eq!(errno(wait(initialise(&*both.below, &passphrase("one"), CHEAP))), Some(Errno::EEXIST));
}

#[test]
fn a_key_file_opens_a_tree() {
    let both = Both::new();
    let key = |byte| Secret::KeyFile(vec![byte; 32].into());
    assert_eq!(
        errno(wait(initialise(&*both.below, &Secret::KeyFile(vec![7; 31].into()), CHEAP))),
        Some(Errno::EINVAL)
    );
    wait(initialise(&*both.below, &key(7), CHEAP)).expect("an empty tree");
    let config = wait(configuration(&*both.below)).expect("a configuration");
    assert!(config.unwrap(&key(7)).is_ok());
    assert_eq!(errno(config.unwrap(&key(8))), Some(Errno::EACCES));
}

#[test]
fn what_is_in_a_directory_is_not_hidden() {
    let both = Both::new();
    both.stored().root().and_then(|root| root.mkdir(&named("precious"), 0o755)).expect("a directory");
    assert_eq!(errno(wait(initialise(&*both.below, &passphrase("one"), CHEAP))), Some(Errno::ENOTEMPTY));
}

#[test]
fn each_changed_byte_of_a_configuration_is_found() {
    let config =
        Config::wrap(&Master::random().unwrap(), &passphrase("one"), CHEAP).expect("a configuration");
    let text = config.print();
    assert_eq!(Config::parse(&text), Ok(config));
    for at in 0..text.len() {
        let mut bytes = text.clone();
        bytes[at] ^= 1;
        // White space may differ.
        let opened = Config::parse(&bytes).and_then(|config| config.unwrap(&passphrase("one")));
        assert!(opened.is_err() || text[at].is_ascii_whitespace(), "byte {at}");
    }
}

#[test]
fn another_passphrase_leaves_the_files() {
    let both = Both::new();
    wait(initialise(&*both.below, &passphrase("one"), CHEAP)).expect("an empty tree");
    let master = |text| wait(configuration(&*both.below)).and_then(|config| config.unwrap(&passphrase(text)));
    let before = master("one").expect("it opens").0;
    let changed = wait(change_secret(&*both.below, &passphrase("two"), &passphrase("x"), None));
    assert_eq!(errno(changed), Some(Errno::EACCES));
    wait(change_secret(&*both.below, &passphrase("one"), &passphrase("two"), None)).expect("it is changed");
    assert_eq!(errno(master("one")), Some(Errno::EACCES));
    assert_eq!(master("two").expect("it opens").0, before);
    // A key file takes its place, and gives it back.
    let key = Secret::KeyFile(vec![9; 40].into());
    wait(change_secret(&*both.below, &passphrase("two"), &key, None)).expect("it is changed");
    assert_eq!(errno(master("two")), Some(Errno::EACCES));
}

/// A tree that answers so many changes, and then none.
struct Dying {
    below: Arc<dyn Service>,
    left: AtomicU64,
}

impl Service for Dying {
    fn call<'a>(&'a self, cx: &'a Cx, request: Request) -> Answer<'a> {
        let alive = |left: u64| left.checked_sub(1);
        let changes = request.changes_tree();
        if changes && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, alive).is_err() {
            return Answer::error(Errno::EIO);
        }
        self.below.call(cx, request)
    }
    fn abilities(&self) -> Abilities {
        self.below.abilities()
    }
    fn attach(&self, _: Arc<dyn Notify>) {}
}

#[test]
fn one_of_two_passphrases_opens_a_tree_whenever_the_change_is_interrupted() {
    for left in 0.. {
        let both = Both::new();
        wait(initialise(&*both.below, &passphrase("one"), CHEAP)).expect("an empty tree");
        let dying = Dying { below: Arc::clone(&both.below), left: AtomicU64::new(left) };
        let changed = wait(change_secret(&dying, &passphrase("one"), &passphrase("two"), None));
        let config = wait(configuration(&*both.below)).expect("there is always one");
        let opens = ["one", "two"].map(|text| config.unwrap(&passphrase(text)).is_ok());
        assert_eq!(opens, [changed.is_err(), changed.is_ok()], "after {left} changes");
        // What is left of it is in nobody's way.
        wait(change_secret(
            &*both.below,
            &passphrase(if opens[0] { "one" } else { "two" }),
            &passphrase("three"),
            None,
        ))
        .expect("it is changed");
        if changed.is_ok() {
            assert!(left > 2, "a file is made, written and renamed");
            return;
        }
    }
}

fn file(path: &Path, mode: u32, text: &str) {
    let made = std::fs::File::options().write(true).create(true).truncate(true).mode(mode).open(path);
    made.and_then(|mut file| file.write_all(text.as_bytes())).expect("a file");
}

#[test]
fn the_layer_opens_what_its_argument_says_and_the_next_process_needs_no_passphrase() {
    let both = Both::new();
    wait(initialise(&*both.below, &passphrase("one two"), CHEAP)).expect("an empty tree");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pass");
    let runtime = both.runtime.clone() as Arc<dyn outrigger_core::Runtime>;
    let keep = Arc::new(HeapKeep::default()) as Arc<dyn Keep>;
    let site = Site { below: Some(&both.below), keep: Some(&keep), ..Site::new(&runtime) };
    let made = || LAYER.made(&format!("crypt=passfile={}", path.display()), &site).map(drop);
    file(&path, 0o600, "wrong\n");
    let error = made().expect_err("the passphrase is wrong");
    assert_eq!((error.errno, error.reason.as_deref()), (Errno::EACCES, Some("the passphrase is wrong")));
    file(&path, 0o600, "one two\r\nnot this\n");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("permissions");
    assert_eq!(errno(made()), Some(Errno::EACCES), "others can read it");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("permissions");
    made().expect("it opens");
    std::fs::remove_file(&path).expect("it is removed");
    made().expect("the key was kept");
    assert_eq!(errno(LAYER.made("crypt=passfile", &site)), Some(Errno::EINVAL));
    assert_eq!(errno(LAYER.made("crypt=pass=x", &site)), Some(Errno::EINVAL));
    let again = Site { same_below: 1, ..site };
    assert_eq!(errno(LAYER.made("crypt", &again)), Some(Errno::EINVAL));
}

#[test]
fn a_tree_without_a_configuration_is_not_opened() {
    let both = Both::new();
    let runtime = both.runtime.clone() as Arc<dyn outrigger_core::Runtime>;
    let site = Site { below: Some(&both.below), ..Site::new(&runtime) };
    let error = LAYER.made("crypt=passfile=/nowhere", &site).err().expect("there is none");
    assert!(error.reason.as_ref().is_some_and(|why| why.contains("outrigger crypt init")), "{error:?}");
    // Unless the user says so.
    LAYER.made("crypt=plain,passfile=/nowhere", &site).expect("it is shown as it is");
}
