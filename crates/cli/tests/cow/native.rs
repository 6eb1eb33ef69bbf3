// SPDX-License-Identifier: MIT OR Apache-2.0
//! What programs find as they do without an overlay, also where a file has just been copied.

use crate::support::has;
use crate::{all, apart, place};
use std::fs;

pub fn a_default_access_list_takes_the_place_of_the_umask(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("setfacl")) else { return };
    let setup = "for d in here there; do setfacl -d -m u:1234:rwx $d/many; done";
    place.run_as("sh", &["-ec", setup]).ok();
    let script = "umask 077; cd many; touch f; mkdir d; mkfifo p; echo x >d/f; cd ../empty; touch f; mkdir d; mkfifo p";
    place.run_as("sh", &["-ec", &format!("cd there; {script}")]).ok();
    let list = "; cd ..; stat -c '%n %a' many/* many/d/f empty/*";
    let seen = apart(&place, "here", &format!("{script}{list}")).ok();
    assert_eq!(seen, place.run_as("sh", &["-ec", &format!("cd there/empty{list}")]).ok());
    place.run(&["commit", "kept"]).ok();
    assert_eq!(all(&place, "here"), all(&place, "there"));
}

pub fn who_opens_a_lock_for_reading_locks_it_for_all(via: &'static str) {
    let Some(place) = place(via).filter(|_| has("flock")) else { return };
    // flock(1) opens with O_RDONLY and O_CREAT.
    let script = "flock many/a sh -c 'echo held >many/a; flock -n many/a echo both || echo excluded'; flock -n many/a cat many/a";
    assert_eq!(apart(&place, "here", script).ok(), "excluded\nheld\n");
    assert_eq!(fs::read_to_string(place.at("here/many/a")).unwrap(), "other\n");
}
