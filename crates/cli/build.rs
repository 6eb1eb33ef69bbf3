// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the program is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // A keeper lives as long as its mount, and a third of its memory was the list of addresses that the loader adjusts. In this form
    // the list takes 8 KB; it needs glibc 2.36. Linkers that do not know the option pass over it.
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
