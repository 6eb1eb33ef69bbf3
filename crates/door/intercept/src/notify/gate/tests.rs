// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code of the gate, called in this process: no filter is there, so what it asks the server for the kernel answers.

use super::*;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::arch::asm;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::ptr;

/// The gate in this process.
struct Here {
    base: *mut u8,
    memory: Memory,
}

impl Here {
    fn new(prefixes: &[&str]) -> Self {
        let prefix = |path: &&str| Prefix { path: path.into(), name: "x".into() };
        let memory = Memory::new(&prefixes.iter().map(prefix).collect::<Vec<_>>()).unwrap().unwrap();
        let access = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: a new mapping, which stays as long as the process.
        let base = unsafe {
            mmap(ptr::null_mut(), agent::SIZE as usize, access, MapFlags::SHARED, &memory.lent, 0).unwrap()
        };
        Here { base: base.cast(), memory }
    }

    fn address(&self, label: u64) -> u64 {
        self.base.addr() as u64 + label - agent::AT
    }

    /// What the letters of a path say, and its last name.
    fn scan(&self, path: &str) -> (u32, String) {
        let text = CString::new(path).unwrap();
        let (verdict, last, end): (u32, u64, u64);
        // SAFETY: the code reads the text up to its NUL, and changes the registers that are named.
        unsafe {
            asm!(
                "call {code}",
                code = in(reg) self.address(agent::scan()),
                inout("rsi") text.as_ptr() => end,
                out("rdi") last,
                out("eax") verdict,
                out("rcx") _, out("rdx") _, out("r8") _, out("r9") _, out("r10") _,
            );
        }
        let begin = (last - text.as_ptr().addr() as u64) as usize;
        let name =
            if verdict == 2 { String::new() } else { path[begin..(end - last) as usize + begin].into() };
        (verdict, name)
    }

    /// Makes a call through the gate; what is not its result must not change.
    fn call(&self, number: i64, arguments: [u64; 6]) -> i64 {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let mut after = arguments;
        let result;
        // SAFETY: the same as a system call with these arguments, which are those of the test.
        unsafe {
            asm!(
                "sub rsp, 256",
                "mov qword ptr [rsp - 128], 77",
                "mov qword ptr [rsp - 8], 78",
                "lea rcx, [rip + 2f]",
                "jmp r11",
                "2:",
                "cmp qword ptr [rsp - 128], 77",
                "jne 3f",
                "cmp qword ptr [rsp - 8], 78",
                "je 4f",
                "3: ud2",
                "4: add rsp, 256",
                inout("r11") self.address(agent::entry()) => _,
                inout("rax") number => result,
                inout("rdi") rdi => after[0], inout("rsi") rsi => after[1], inout("rdx") rdx => after[2],
                inout("r10") r10 => after[3], inout("r8") r8 => after[4], inout("r9") r9 => after[5],
                lateout("rcx") _,
            );
        }
        assert_eq!(after, arguments);
        result
    }
}

/// The kernel's result.
fn native(number: i64, [a, b, c, d, e, f]: [u64; 6]) -> i64 {
    // SAFETY: the arguments are those of the test.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { -i64::from(io::Error::last_os_error().raw_os_error().unwrap()) } else { result }
}

const FDCWD: u64 = libc::AT_FDCWD as u64;

#[test]
fn letters_of_paths_say_where_they_may_lead() {
    let here = Here::new(&["/data-of-test/deep", "/other-of-test"]);
    let local = [
        "/usr/include/stdio.h",
        "a",
        "a/b",
        "../..",
        "/",
        "",
        "/x/proc",
        "x/dev/y",
        "procx",
        "/devx/y",
        ".proc",
        "..dev/x",
        "outrigger",
        "outrigger-runs",
        "/a/outrigger-ru",
        "/x/data-of-test",
        "/data-of-tes/x",
        "/data-of-test2",
        "...",
    ];
    for path in local {
        assert_eq!(here.scan(path).0, 0, "{path}");
    }
    for path in [
        "/proc",
        "/dev/null",
        "proc/self",
        "dev",
        "/usr/../dev",
        "../../proc/1",
        "//proc",
        "/./dev",
        "/a/..//./proc/x",
    ] {
        assert_eq!(here.scan(path).0, 1, "{path}");
    }
    let asked = [
        "/data-of-test",
        "/data-of-test/x",
        "data-of-test/deep",
        "/usr/../data-of-test",
        "//other-of-test//",
        "/./other-of-test",
        "/tmp/outrigger-run-1-0",
        "outrigger-run-",
        "../outrigger-run-1/files",
        "/proc/../tmp/outrigger-run-x/y",
    ];
    for path in asked {
        assert_eq!(here.scan(path).0, 2, "{path}");
    }
    for (path, last) in
        [("/a/bc", "bc"), ("a", "a"), ("a/", ""), ("a//b", "b"), ("a/.", ""), ("a/..", ""), ("..a", "..a")]
    {
        assert_eq!(here.scan(path).1, last, "{path}");
    }
}

#[test]
fn calls_have_the_results_of_the_kernel() {
    let here = Here::new(&["/data-of-test"]);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("file"), "content").unwrap();
    for (link, target) in
        [("good", "file"), ("dangling", "none"), ("loop", "loop"), ("root", "/"), ("out", "/data-of-test/x")]
    {
        symlink(target, at(link)).unwrap();
    }
    let names = [
        "dir",
        "file",
        "file/",
        "good",
        "dangling",
        "loop",
        "root",
        "out",
        "none",
        "none/x",
        "file/x",
        "dir/",
        "dir/none",
        "dir/..",
        "root/data-of-test",
    ];
    let special = [
        "",
        ".",
        "..",
        "/",
        "none-of-these",
        "/proc/self/exe",
        "/proc/self/fd",
        "/proc/none",
        "/dev/null",
        "/data-of-test/x",
    ];
    let long = ["/usr".to_owned() + &"/.".repeat(300), "x".repeat(300), "x/".repeat(3000)];
    let texts = names.iter().map(|name| at(name)).chain(special.map(str::to_owned)).chain(long);
    let open = fs::File::open(dir.path()).unwrap();
    for is_odd in [false, true] {
        if is_odd {
            here.memory.mark_odd().unwrap();
        }
        for text in texts.clone().chain(names.map(str::to_owned)) {
            let path = CString::new(text.as_bytes()).unwrap();
            for start in [FDCWD, open.as_raw_fd() as u64, 1000] {
                same_results(&here, start, path.as_ptr().addr() as u64, &text);
            }
        }
        for bad in [0, 8, u64::MAX - 3] {
            same_results(&here, FDCWD, bad, "an address");
        }
    }
}

/// Compares all calls on one path.
fn same_results(here: &Here, start: u64, path: u64, text: &str) {
    let mut buffers = [[0_u8; 1024]; 2];
    let [one, two] = buffers.each_mut().map(|buffer| buffer.as_mut_ptr().addr() as u64);
    let nofollow = libc::AT_SYMLINK_NOFOLLOW as u64;
    let empty = libc::AT_EMPTY_PATH as u64;
    let with = |to: u64| {
        [
            (libc::SYS_stat, [path, to, 0, 0, 0, 0]),
            (libc::SYS_lstat, [path, to, 0, 0, 0, 0]),
            (libc::SYS_access, [path, libc::R_OK as u64, 0, 0, 0, 0]),
            (libc::SYS_readlink, [path, to, 1000, 0, 0, 0]),
            (libc::SYS_readlink, [path, to, 3, 0, 0, 0]),
            (libc::SYS_readlink, [path, to, 0, 0, 0, 0]),
            (libc::SYS_readlinkat, [start, path, to, 1000, 0, 0]),
            (libc::SYS_readlinkat, [start, path, to, u64::MAX, 0, 0]),
            (libc::SYS_newfstatat, [start, path, to, 1, 0, 0]),
            (libc::SYS_faccessat2, [start, path, 99, 0, 0, 0]),
            (libc::SYS_newfstatat, [start, path, to, 0, 0, 0]),
            (libc::SYS_newfstatat, [start, path, to, nofollow, 0, 0]),
            (libc::SYS_newfstatat, [start, path, to, empty, 0, 0]),
            (libc::SYS_newfstatat, [start, path, 1, 0, 0, 0]),
            (libc::SYS_statx, [start, path, nofollow, 0x7ff, to, 0]),
            (libc::SYS_faccessat, [start, path, libc::X_OK as u64, 0, 0, 0]),
            (libc::SYS_faccessat2, [start, path, libc::W_OK as u64, nofollow, 0, 0]),
        ]
    };
    for ((number, arguments), (_, others)) in with(one).into_iter().zip(with(two)) {
        let (wanted, found) = (native(number, others), here.call(number, arguments));
        assert_eq!(found, wanted, "call {number} of '{text}'");
        let is_readlink = [libc::SYS_readlink, libc::SYS_readlinkat].contains(&number);
        let length = if is_readlink { usize::try_from(wanted).unwrap_or(0) } else { 48 };
        if wanted >= 0 && number != libc::SYS_statx {
            assert_eq!(buffers[0][..length], buffers[1][..length], "call {number} of '{text}'");
        }
    }
    let flags = [
        0,
        libc::O_NOFOLLOW,
        libc::O_DIRECTORY,
        libc::O_PATH,
        libc::O_WRONLY,
        libc::O_CLOEXEC | 0x8000,
        1 << 30,
    ];
    for flags in flags.map(|flags| flags as u64) {
        for (number, arguments) in
            [(libc::SYS_open, [path, flags, 0, 0, 0, 0]), (libc::SYS_openat, [start, path, flags, 0, 0, 0])]
        {
            let (wanted, found) = (opened(native(number, arguments)), opened(here.call(number, arguments)));
            assert_eq!(found, wanted, "call {number} of '{text}' with {flags:x}");
        }
    }
}

/// An error, or the file with the flags of the descriptor, which is closed.
fn opened(result: i64) -> Result<(u64, u64, u32, u32), i64> {
    let number = i32::try_from(result).unwrap();
    if number < 0 {
        return Err(result);
    }
    use std::os::fd::FromRawFd;
    // SAFETY: the call has just opened it, and nothing else knows of it.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    let found = rustix::fs::fstat(&file).unwrap();
    let flags = rustix::fs::fcntl_getfl(&file).unwrap().bits();
    Ok((found.st_dev, found.st_ino, flags, rustix::io::fcntl_getfd(&file).unwrap().bits()))
}

#[test]
fn paths_are_not_read_beyond_their_end() {
    let here = Here::new(&["/data-of-test"]);
    let page = agent::PAGE as usize;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, whose second page goes at once.
    let start = unsafe {
        let start = mmap_anonymous(ptr::null_mut(), 2 * page, access, MapFlags::PRIVATE).unwrap();
        munmap(start.byte_add(page), page).unwrap();
        start.cast::<u8>()
    };
    for text in [
        "/",
        ".",
        "..",
        "/usr",
        "/none",
        "o",
        "outrigger-run",
        "/p",
        "/proc",
        "/d",
        "/data-of-tes",
        "none",
        "/usr/none",
        "x/..",
        "/.",
    ] {
        let at = page - text.len() - 1;
        // SAFETY: it is the end of the first page.
        let path = unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), start.add(at), text.len());
            start.add(page - 1).write(0);
            start.add(at).addr() as u64
        };
        same_results(&here, FDCWD, path, text);
        // SAFETY: the same; it has no end now.
        unsafe { start.add(page - 1).write(b'x') };
        same_results(&here, FDCWD, path, "without an end");
    }
}

#[test]
fn the_code_fits_and_has_no_address_of_its_own() {
    assert!(agent::code().len() < agent::PAGE as usize && agent::code().starts_with(b"outrigger gate 1"));
    let [one, two] = [Here::new(&["/data-of-test"]), Here::new(&["/data-of-test"])];
    assert_ne!(one.base, two.base);
    assert_eq!(one.scan("/usr/x"), two.scan("/usr/x"));
    assert!(
        Memory::new(&[Prefix { path: "/usr".into(), name: "x".into() }]).unwrap().is_none(),
        "a covered directory"
    );
}
