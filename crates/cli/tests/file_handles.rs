// SPDX-License-Identifier: MIT OR Apache-2.0
//! File handles of a mount (name_to_handle_at(2)): a program, or a kernel that exports the mount, comes back with a number only.

mod support;

use support::{Place, can_mount};

/// Opens a file by its handle after the kernel has forgotten it, also after its server was replaced, and not after it was removed.
const SCRIPT: &str = r#"
import ctypes, errno, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
mount, server = sys.argv[1], int(sys.argv[2])
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
handle, number = Handle(128, 0), ctypes.c_int()
path = f"{mount}/a/b/file"
if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(number), 0):
    sys.exit(os.strerror(ctypes.get_errno()))
root = os.open(mount, os.O_RDONLY)
def forget():
    open("/proc/sys/vm/drop_caches", "w").write("2")
def reopened():
    descriptor = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
    if descriptor < 0:
        return errno.errorcode[ctypes.get_errno()]
    with os.fdopen(descriptor) as file:
        return file.read()
forget()
print(reopened())
if server:
    os.kill(server, signal.SIGKILL)
    forget()
    print(reopened())
os.unlink(path)
# The kernel keeps the inode for as long as it still closes the file.
end = time.monotonic() + 20
while (last := reopened()) != "ESTALE" and time.monotonic() < end:
    forget()
print(last)
"#;

/// What the script prints on a mount of `location`.
fn handles(location: &str, guarded: bool) -> Option<String> {
    if !can_mount() {
        return None;
    }
    let place = Place::new();
    std::fs::create_dir(place.at("tree")).expect("a directory");
    place.run(&["mount", location, "m"]).ok();
    std::fs::create_dir_all(place.at("m/a/b")).expect("directories");
    std::fs::write(place.at("m/a/b/file"), "content").expect("a file");
    let server = if guarded { place.server() } else { 0 };
    let mount = place.at("m").display().to_string();
    let said = place.run_as("python3", &["-c", SCRIPT, &mount, &server.to_string()]).ok();
    Some(said)
}

#[test]
fn a_handle_outlives_what_the_kernel_has_cached() {
    for location in ["mem:", "tree"] {
        let Some(said) = handles(location, false) else { return };
        assert_eq!(said, "content\nESTALE\n", "{location}");
    }
}

#[test]
fn a_handle_outlives_the_server() {
    for location in ["mem:", "tree"] {
        let Some(said) = handles(location, true) else { return };
        assert_eq!(said, "content\ncontent\nESTALE\n", "{location}");
    }
}
