// SPDX-License-Identifier: GPL-2.0-only
//! Links the kernel object that `../build.sh` made.

fn main() {
    println!("cargo::rerun-if-env-changed=OUTRIGGER_KERNEL_OBJECT");
    match std::env::var("OUTRIGGER_KERNEL_OBJECT") {
        Ok(object) => {
            println!("cargo::rerun-if-changed={object}");
            println!("cargo::rustc-link-arg-bins={object}");
            // Its assembler code says nothing about stacks; they need not be executable.
            println!("cargo::rustc-link-arg-bins=-Wl,-z,noexecstack");
        }
        Err(_) => {
            println!("cargo::warning=OUTRIGGER_KERNEL_OBJECT is not set: only checks work, see ../build.sh")
        }
    }
}
