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

/// Opens a file beside the directory that is served by a handle that is made up.
const FORGE: &str = r#"
import ctypes, errno, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
mount, outside = sys.argv[1:]
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
host, number = Handle(128, 0), ctypes.c_int()
if libc.name_to_handle_at(-100, outside.encode(), ctypes.byref(host), ctypes.byref(number), 0):
    sys.exit(os.strerror(ctypes.get_errno()))
ino, generation = struct.unpack("II", bytes(host.data[:8]))
forged = Handle(12, 0x81)
ctypes.memmove(forged.data, struct.pack("III", generation, ino, generation), 12)
descriptor = libc.open_by_handle_at(os.open(mount, os.O_RDONLY), ctypes.byref(forged), os.O_RDONLY)
print(os.read(descriptor, 100) if descriptor >= 0 else errno.errorcode[ctypes.get_errno()])
"#;

#[test]
fn a_forged_handle_leads_to_no_file_outside_of_the_directory() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.file("tree/f", "inside");
    let outside = place.file("secret", "outside").display().to_string();
    place.run(&["mount", "tree", "m"]).ok();
    let mount = place.at("m").display().to_string();
    assert_eq!(place.run_as("python3", &["-c", FORGE, &mount, &outside]).ok(), "ESTALE\n");
}

/// What the script prints on a mount of `location`.
fn handles(location: &str, guarded: bool) -> Option<String> {
    if !can_mount() {
        return None;
    }
    let place = Place::new();
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
    let Some(said) = handles("mem:", false) else { return };
    assert_eq!(said, "content\nESTALE\n");
}

#[test]
fn a_handle_outlives_the_server() {
    let Some(said) = handles("mem:", true) else { return };
    assert_eq!(said, "content\ncontent\nESTALE\n");
}
