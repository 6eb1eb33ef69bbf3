// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index cache, random reads, and several readers at once.

mod common;

use common::{assert_same, at, digest, in_archive, make_tree, noise, open_with, read, shell};
use outrigger_core::ops::Read;
use outrigger_core::{BlockingDriver, Credentials, Cx, Errno, Handle, Node};
use outrigger_driver_archive::{
    Archive, ArchiveDriver, CacheConfig, Identity, Kind, MemSource, Options, Progress, ReadAt, Source,
    Unwatched, Watch,
};
use outrigger_host::HostFile;
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tempfile::TempDir;

fn cached(dir: &Path) -> Options {
    Options { cache: Some(CacheConfig { base: dir.join("cache"), max_bytes: 1 << 30 }), ..Options::default() }
}

/// Counts the bytes read.
struct Counting(HostFile, AtomicU64);

impl ReadAt for Counting {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let n = self.0.read_at(buf, offset)?;
        self.1.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl Source for Counting {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn name(&self) -> &str {
        self.0.name()
    }
    fn identity(&self) -> Option<Identity> {
        self.0.identity()
    }
}

fn counting(path: &Path) -> Arc<Counting> {
    Arc::new(Counting(HostFile::open(path).expect("opens"), AtomicU64::new(0)))
}

fn sample(dir: &Path, command: &str) -> bool {
    fs::create_dir(dir.join("t")).expect("mkdir");
    make_tree(&dir.join("t"), true, true);
    shell(dir, command.split(' ').next().unwrap_or("sh"), &format!("tar -C t -c . | {command} > x.tar.z"))
}

#[test]
fn the_second_opening_reads_nothing_and_sees_the_same() {
    for command in ["gzip", "bzip2", "xz -0", "zstd", "cat"] {
        let dir = TempDir::new().expect("tempdir");
        if !sample(dir.path(), command) {
            continue;
        }
        let path = dir.path().join("x.tar.z");
        let first = in_archive(&open_with(&path, cached(dir.path())).expect("opens"), 1 << 20);
        let source = counting(&path);
        let archive = Archive::open(source.clone(), cached(dir.path()), &Unwatched).expect("opens");
        // An xz file has its own index at its end.
        assert!(source.1.load(Ordering::Relaxed) < 200, "{command}: the archive was read again");
        let driver = ArchiveDriver::new(archive);
        assert_same(&first, &in_archive(&driver, 1 << 20));
        let mode = fs::metadata(dir.path().join("cache/outrigger/index")).expect("stat").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

/// Reproducible builds make archives of one size and time with different content.
#[test]
fn an_archive_that_was_exchanged_for_one_of_the_same_size_and_time_is_read_anew() {
    let dir = TempDir::new().expect("tempdir");
    let made = shell(
        dir.path(),
        "tar",
        "mkdir A B; echo AAAA >A/f; echo >A/z; echo BBBB >B/f; echo >B/z; tar -C A -cf a.tar f z; tar -C B -cf b.tar z f; \
         touch -d 2021-01-01 a.tar b.tar; cp -p a.tar x.tar",
    );
    assert!(made);
    let path = dir.path().join("x.tar");
    let content = || {
        let driver = open_with(&path, cached(dir.path())).expect("opens");
        read(&driver, at(&driver, "f"), 0, 100).expect("read")
    };
    assert_eq!(content(), b"AAAA\n");
    assert!(shell(dir.path(), "tar", "cp -p b.tar x.tar"));
    assert_eq!(content(), b"BBBB\n");
}

#[test]
fn an_archive_that_changes_while_it_is_open_is_an_error() {
    let dir = TempDir::new().expect("tempdir");
    assert!(shell(dir.path(), "tar", "echo AAAA >f; tar -cf x.tar f; echo BBBB >f; tar -cf y.tar f"));
    let driver = open_with(&dir.path().join("x.tar"), Options::default()).expect("opens");
    let found = at(&driver, "f");
    assert_eq!(read(&driver, found, 0, 100).expect("read"), b"AAAA\n");
    assert!(shell(dir.path(), "tar", "touch -d 2020-01-01 y.tar; cp -p y.tar x.tar"));
    let read = read(&driver, found, 0, 100);
    assert!(read.is_err_and(|error| error.errno == Errno::EIO && error.to_string().contains("was changed")));
}

#[test]
fn a_damaged_or_foreign_index_is_ignored() {
    let dir = TempDir::new().expect("tempdir");
    assert!(sample(dir.path(), "gzip"));
    let path = dir.path().join("x.tar.z");
    let expected = in_archive(&open_with(&path, cached(dir.path())).expect("opens"), 1 << 20);
    let index = fs::read_dir(dir.path().join("cache/outrigger/index"))
        .expect("dir")
        .next()
        .expect("one")
        .expect("entry")
        .path();
    let good = fs::read(&index).expect("read");
    let flips = (0..good.len()).step_by(good.len() / 100).map(|i| {
        let mut bad = good.clone();
        bad[i] ^= 0x10;
        bad
    });
    for bad in flips.chain([vec![], good[..good.len() / 2].to_vec(), noise(5000, 3)]) {
        fs::write(&index, &bad).expect("write");
        let source = counting(&path);
        let archive = Archive::open(source.clone(), cached(dir.path()), &Unwatched).expect("opens");
        assert!(source.1.load(Ordering::Relaxed) > 10_000, "it was indexed again");
        assert_same(&expected, &in_archive(&ArchiveDriver::new(archive), 1 << 20));
        assert_eq!(fs::read(&index).expect("read"), good, "and stored again");
    }
    // The same file with other content is another archive.
    assert!(shell(dir.path(), "tar", "echo new >n; tar -c n | gzip > x.tar.z"));
    let driver = open_with(&path, cached(dir.path())).expect("opens");
    at(&driver, "n");
}

#[test]
fn the_cache_stays_within_its_bound() {
    let dir = TempDir::new().expect("tempdir");
    let cache = dir.path().join("cache");
    for i in 0..20 {
        let archive = format!("x{i}.tar");
        assert!(shell(
            dir.path(),
            "tar",
            &format!("for j in $(seq 300); do echo {i} >f$j; done; tar -cf {archive} f*")
        ));
        let options = Options {
            cache: Some(CacheConfig { base: cache.clone(), max_bytes: 200_000 }),
            ..Options::default()
        };
        open_with(&dir.path().join(&archive), options).expect("opens");
    }
    let files: Vec<_> = fs::read_dir(cache.join("outrigger/index"))
        .expect("dir")
        .map(|e| e.expect("entry").metadata().expect("stat"))
        .collect();
    let total: u64 = files.iter().map(|m| m.len()).sum();
    assert!(total <= 200_000 && files.len() >= 2, "{total} bytes in {} files", files.len());
}

/// Reads at places that jump about, from several threads, compared with the content.
#[test]
fn random_reads_from_many_threads() {
    let data = Arc::new(noise(5_000_000, 4));
    for command in ["gzip", "bzip2", "xz -0", "xz -0 --block-size=1000000", "zstd"] {
        let dir = TempDir::new().expect("tempdir");
        fs::write(dir.path().join("big"), &*data).expect("write");
        if !shell(dir.path(), command.split(' ').next().unwrap_or("sh"), &format!("{command} -c big > big.z"))
        {
            continue;
        }
        // The second round uses the stored index and blocks.
        for round in 0..2 {
            let driver = Arc::new(open_with(&dir.path().join("big.z"), cached(dir.path())).expect("opens"));
            let node = common::list(&driver, Node::ROOT)[0].1;
            let readers = (0..4u64).map(|t| {
                let (driver, data) = (driver.clone(), data.clone());
                std::thread::spawn(move || {
                    let mut x = t * 7919 + round + 1;
                    for _ in 0..25 {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let offset = (x >> 20) % data.len() as u64;
                        let len = (x >> 8) as u32 % 600_000;
                        let found = read(&driver, node, offset, len).expect("read");
                        let end = data.len().min(offset as usize + len as usize);
                        assert_eq!(digest(&found), digest(&data[offset as usize..end]), "{offset} {len}");
                    }
                })
            });
            let readers: Vec<_> = readers.collect();
            for r in readers {
                r.join().expect("a reader failed");
            }
        }
    }
}

#[test]
fn opening_reports_progress_and_can_be_cancelled() {
    struct Stop(AtomicU64);
    impl Watch for Stop {
        fn progress(&self, now: Progress) {
            assert!(now.read <= now.size);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn cancelled(&self) -> bool {
            self.0.load(Ordering::Relaxed) >= 2
        }
    }
    let dir = TempDir::new().expect("tempdir");
    fs::write(dir.path().join("big"), noise(9_000_000, 5)).expect("write");
    assert!(shell(dir.path(), "gzip", "tar -cf x.tar big; gzip x.tar"));
    let source: Arc<dyn Source> = Arc::new(HostFile::open(&dir.path().join("x.tar.gz")).expect("opens"));
    let stop = Stop(AtomicU64::new(0));
    let e = Archive::open(source, Options::default(), &stop).expect_err("cancelled");
    assert_eq!((e.kind(), stop.0.load(Ordering::Relaxed)), (Kind::Cancelled, 2));
}

#[test]
fn a_saved_index_opens_without_reading_and_junk_does_not() {
    let dir = TempDir::new().expect("tempdir");
    assert!(shell(dir.path(), "tar", "echo content >f; tar -cf x.tar f"));
    let bytes = fs::read(dir.path().join("x.tar")).expect("read");
    let source = |b: &[u8]| -> Arc<dyn Source> { Arc::new(MemSource::new("x.tar", b.to_vec())) };
    let archive = Archive::open(source(&bytes), Options::default(), &Unwatched).expect("opens");
    let saved = archive.saved_index();
    let again =
        Archive::with_index(source(&bytes), saved.clone().into(), &Options::default()).expect("valid");
    let driver = ArchiveDriver::new(again);
    assert_eq!(read(&driver, at(&driver, "f"), 0, 100).expect("read"), b"content\n");
    for n in 0..saved.len() {
        let cut = saved[..n].to_vec().into();
        assert!(Archive::with_index(source(&bytes), cut, &Options::default()).is_none(), "cut at {n}");
    }
    // A wrong source gives errors, no panic.
    let wrong = Archive::with_index(source(b"short"), saved.into(), &Options::default()).expect("valid");
    let driver = ArchiveDriver::new(wrong);
    assert!(read(&driver, at(&driver, "f"), 0, 100).is_err());
}

/// Among them is a checkpoint in the middle of a byte where the input ends, which once made the bzip2 decoder panic.
#[test]
fn tampered_indexes_of_the_fuzz_corpus_are_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
    let archive = fs::read(corpus.join("archive_gzip/tree.tar.gz")).unwrap();
    let mut opened = 0;
    for file in fs::read_dir(corpus.join("archive_index_cache")).unwrap() {
        let index = fs::read(file.unwrap().path()).unwrap();
        let Some(archive) = Archive::with_index(
            Arc::new(MemSource::new("tree.tar.gz", archive.clone())),
            index.into(),
            &Options::default(),
        ) else {
            continue;
        };
        opened += 1;
        let driver = ArchiveDriver::new(archive);
        let cx = Cx::new(1, Credentials::ROOT, "test");
        for node in (1..200).map(Node) {
            let _ = driver.read(&cx, Read { node, handle: Handle(0), offset: 0, len: 4096 });
        }
    }
    assert!(opened > 1, "the corpus has a sound index and tampered ones that open");
}

#[test]
fn eviction_touches_no_foreign_file_and_follows_no_link() {
    let dir = TempDir::new().expect("tempdir");
    if !sample(dir.path(), "gzip") {
        return;
    }
    let path = dir.path().join("x.tar.z");
    let (cache, foreign) = (dir.path().join("cache"), dir.path().join("foreign"));
    let opened = || {
        let options = Options {
            cache: Some(CacheConfig { base: cache.clone(), max_bytes: 1 << 20 }),
            ..Options::default()
        };
        open_with(&path, options).expect("the archive is served with the cache or without")
    };
    fs::create_dir_all(cache.join("outrigger")).expect("mkdir");
    fs::create_dir(&foreign).expect("mkdir");
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o700)).expect("chmod");
    let big = vec![1; 4 << 20];
    fs::write(foreign.join("big"), &big).expect("write");
    std::os::unix::fs::symlink(&foreign, cache.join("outrigger/index")).expect("a link");
    opened();
    let there = fs::read_dir(&foreign).expect("readdir").count();
    assert_eq!(there, 1, "nothing is removed or made through a symbolic link");
    fs::remove_file(cache.join("outrigger/index")).expect("unlink");
    fs::rename(&foreign, cache.join("outrigger/index")).expect("rename");
    fs::set_permissions(cache.join("outrigger/index"), fs::Permissions::from_mode(0o777)).expect("chmod");
    opened();
    let there = || fs::read_dir(cache.join("outrigger/index")).expect("readdir").count();
    assert_eq!(there(), 1, "a directory that is open to others is not used");
    fs::set_permissions(cache.join("outrigger/index"), fs::Permissions::from_mode(0o700)).expect("chmod");
    opened();
    assert!(there() > 1, "the index is kept there");
    assert!(cache.join("outrigger/index/big").exists(), "a file with another name is not evicted");
}
