// SPDX-License-Identifier: MIT OR Apache-2.0
//! Archives made to do harm, damaged archives, and what the tree must look like after them.

mod common;

use common::{at, in_archive, list, open_bytes, read, read_all, shell};
use outrigger_core::Node;
use outrigger_driver_archive::{Error, Kind, Limits, Options, Warning};

/// A tar header as ustar has it, with the checksum filled in, followed by `data` with its padding.
fn member(name: &[u8], kind: u8, link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut h = vec![0; 512];
    h[..name.len()].copy_from_slice(name);
    h[100..107].copy_from_slice(b"0000644");
    h[108..115].copy_from_slice(b"0001750");
    h[116..123].copy_from_slice(b"0001750");
    h[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    h[136..147].copy_from_slice(b"00000000000");
    h[156] = kind;
    h[157..157 + link.len()].copy_from_slice(link);
    h[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut h);
    h.extend_from_slice(data);
    h.resize(h.len().next_multiple_of(512), 0);
    h
}

fn seal(h: &mut [u8]) {
    h[148..156].fill(b' ');
    let sum: u32 = h[..512].iter().map(|b| u32::from(*b)).sum();
    h[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

/// A file with a name of any length, through a pax header.
fn pax_member(name: &[u8], kind: u8, link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    for (key, value) in [(&b"path"[..], name), (b"linkpath", link)] {
        let body = key.len() + value.len() + 3;
        let mut len = body + 1;
        while len != body + len.to_string().len() {
            len = body + len.to_string().len();
        }
        records.extend_from_slice(format!("{len} ").as_bytes());
        records.extend_from_slice(&[key, b"=", value, b"\n"].concat());
    }
    [member(b"pax", b'x', b"", &records), member(b"short", kind, b"", data)].concat()
}

fn tar(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

fn names(archive: Vec<u8>) -> (Vec<String>, Vec<(Warning, u32)>) {
    let driver = open_bytes("x.tar", archive, Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let tree = in_archive(&driver, 1000);
    let names = tree.into_keys().filter(|k| !k.is_empty()).map(|k| k.escape_ascii().to_string()).collect();
    (names, driver.archive().warnings().iter().map(|(w, n, _)| (w, n)).collect())
}

#[test]
fn odd_names_stay_inside_the_tree() {
    let f = |name: &[u8]| member(name, b'0', b"", b"x");
    let longest = "n".repeat(255);
    let longest = [longest.as_str()];
    type Case<'a> = (Vec<Vec<u8>>, &'a [&'a str], &'a [(Warning, u32)]);
    let table: Vec<Case<'_>> = vec![
        (vec![f(b"/etc/passwd")], &["etc", "etc/passwd"], &[(Warning::Absolute, 1)]),
        (vec![f(b"../../../etc/x")], &["etc", "etc/x"], &[(Warning::DotDot, 1)]),
        (vec![f(b"a/../../b")], &["b"], &[(Warning::DotDot, 1)]),
        (vec![f(b"./a//./b")], &["a", "a/b"], &[]),
        (vec![f(b"..")], &[], &[(Warning::DotDot, 1), (Warning::BadName, 1)]),
        (vec![f(b"\xff\xfe")], &["\\xff\\xfe"], &[]),
        (vec![f(b"a"), f(b"a")], &["a"], &[(Warning::Duplicate, 1)]),
        (vec![f(b"a/b"), f(b"a")], &["a", "a/b"], &[(Warning::KindConflict, 1)]),
        (vec![f(b"a"), f(b"a/b")], &["a"], &[(Warning::KindConflict, 1)]),
        (vec![member(b"l", b'2', b"/etc", b""), f(b"l/passwd")], &["l"], &[(Warning::KindConflict, 1)]),
        (vec![member(b"h", b'1', b"../../etc/passwd", b"")], &[], &[(Warning::BadLink, 1)]),
        (vec![member(b"h", b'1', b"later", b""), f(b"later")], &["h", "later"], &[]),
        (vec![member(b"h", b'1', b"h", b"")], &[], &[(Warning::BadLink, 1)]),
        (
            vec![member(b"d/", b'5', b"", b""), member(b"h", b'1', b"d", b"")],
            &["d"],
            &[(Warning::BadLink, 1)],
        ),
        (vec![member(b"z", b'Z', b"", b"?"), f(b"a")], &["a", "z"], &[(Warning::UnknownKind, 1)]),
        (vec![pax_member(&[b'n'; 255], b'0', b"", b"")], &longest, &[]),
        (vec![pax_member(&[b'n'; 256], b'0', b"", b""), f(b"a")], &["a"], &[(Warning::NameTooLong, 1)]),
        (vec![pax_member(b"a\0b", b'0', b"", b""), f(b"a")], &["a"], &[(Warning::BadName, 1)]),
    ];
    for (members, expected, warnings) in table {
        let (found, seen) = names(tar(&members));
        assert_eq!(found, expected);
        assert_eq!(seen, warnings, "{expected:?}");
    }
}

#[test]
fn the_last_of_equal_names_wins_and_links_keep_the_first() {
    let archive = tar(&[
        member(b"a", b'0', b"", b"old"),
        member(b"h", b'1', b"a", b""),
        member(b"a", b'0', b"", b"newer"),
        member(b"s", b'2', b"/etc/passwd", b""),
    ]);
    let driver = open_bytes("x.tar", archive, Options::default()).expect("opens");
    assert_eq!(read_all(&driver, at(&driver, "a"), 10), b"newer");
    assert_eq!(read_all(&driver, at(&driver, "h"), 10), b"old");
    let order: Vec<_> = list(&driver, Node::ROOT).into_iter().map(|e| e.0).collect();
    assert_eq!(order, [b"a", b"h", b"s"], "archive order");
    assert!(read(&driver, at(&driver, "s"), 0, 10).is_err(), "a link is never followed");
}

#[test]
fn ten_thousand_directories_deep() {
    let path = [b"d/".repeat(10_000), b"f".to_vec()].concat();
    let archive = tar(&[pax_member(&path, b'0', b"", b"deep"), pax_member(b"l", b'1', &path, b"")]);
    let driver = open_bytes("x.tar", archive, Options::default()).expect("opens");
    let mut node = Node::ROOT;
    for _ in 0..10_000 {
        node = list(&driver, node).first().expect("an entry").1;
    }
    let file = list(&driver, node)[0].1;
    assert_eq!(read_all(&driver, file, 10), b"deep");
    assert_eq!(at(&driver, "l"), file, "the hard link found it");
}

fn fails(name: &str, archive: Vec<u8>, options: Options) -> Error {
    open_bytes(name, archive, options).map(|_| ()).expect_err("must not open")
}

#[test]
fn bombs_meet_limits_that_name_the_option() {
    let limits = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        Options { limits, ..Options::default() }
    };
    let many: Vec<_> = (0..200).map(|i| member(format!("f{i}").as_bytes(), b'0', b"", b"")).collect();
    let table: Vec<(&str, Vec<u8>, Options, &str)> = vec![
        ("many.tar", tar(&many), limits(|l| l.entries = 100), "max_entries"),
        ("names.tar", tar(&many), limits(|l| l.name_bytes = 100), "max_names"),
        (
            "deep.tar",
            tar(&[pax_member(&b"d/".repeat(500), b'0', b"", b"")]),
            limits(|l| l.entries = 100),
            "max_entries",
        ),
        (
            "zeros.gz",
            gzip_of_zeros(8 << 20),
            limits(|l| (l.free_output, l.ratio) = (1 << 20, 100)),
            "max_ratio",
        ),
        ("window.zst", wide_zstd(), limits(|l| l.decoder_memory = 1 << 20), "decoder_memory"),
    ];
    for (name, archive, options, option) in table {
        let e = fails(name, archive.clone(), options);
        assert_eq!(e.kind(), Kind::Limit, "{e}");
        assert!(e.to_string().contains(option) && e.to_string().starts_with(name), "{e}");
        assert!(open_bytes(name, archive, Options::default()).is_ok(), "{name} is fine by default");
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    out.extend(miniz_oxide::deflate::compress_to_vec(bytes, 6));
    out.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out
}

/// Names alone make directories: each byte of them many bytes of index, and compressed they are nearly nothing.
#[test]
fn a_small_archive_does_not_make_a_large_index() {
    let deep = |number: u32| {
        let path = [format!("{number}/").into_bytes(), b"d/".repeat(60_000)].concat();
        pax_member(&path, b'0', b"", b"")
    };
    let archive = gzip(&tar(&(0..20).map(deep).collect::<Vec<_>>()));
    assert!(archive.len() < 64 << 10, "{}", archive.len());
    let e = fails("deep.tar.gz", archive.clone(), Options::default());
    assert!(e.kind() == Kind::Limit && e.to_string().contains("max_index_ratio"), "{e}");
    let limits = Limits { index_ratio: 1 << 20, ..Limits::default() };
    let driver = open_bytes("deep.tar.gz", archive, Options { limits, ..Options::default() }).expect("opens");
    assert_eq!(list(&driver, Node::ROOT).len(), 20);
}

/// A zip of stored members: offset of the local header, what is in it, and the size that is claimed.
fn zip(data: &[u8], members: &[(u32, u32, u32)]) -> Vec<u8> {
    let mut out = data.to_vec();
    let start = out.len() as u32;
    for (number, &(offset, packed, size)) in members.iter().enumerate() {
        let name = format!("{number:05}");
        let mut head = vec![0; 46];
        head[..4].copy_from_slice(b"PK\x01\x02");
        // Deflate, so that sizes may differ.
        head[10] = 8;
        head[20..24].copy_from_slice(&packed.to_le_bytes());
        head[24..28].copy_from_slice(&size.to_le_bytes());
        head[28] = name.len() as u8;
        head[42..46].copy_from_slice(&offset.to_le_bytes());
        out.extend([head, name.into_bytes()].concat());
    }
    let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
    let count = (members.len() as u16).to_le_bytes();
    end.extend(
        [&count[..], &count, &(out.len() as u32 - start).to_le_bytes(), &start.to_le_bytes()].concat(),
    );
    end.extend([0, 0]);
    out.extend(end);
    out
}

#[test]
fn a_zip_whose_members_share_data_or_are_too_large_together_is_refused() {
    let data = [b"PK\x03\x04".to_vec(), vec![0; 26 + 1000]].concat();
    let whole = (0, 1000, 16 << 20);
    let partial = || Options { partial: true, ..Options::default() };
    for members in [vec![whole; 2], vec![(0, 900, 1), (500, 500, 1)], vec![whole; 60]] {
        let e = fails("overlap.zip", zip(&data, &members), partial());
        assert!(e.kind() == Kind::Limit && e.to_string().contains("in common"), "{e}");
    }
    let apart = [(0, 400, 1), (430, 500, 1), (430, 0, 0)];
    assert_eq!(
        list(&open_bytes("apart.zip", zip(&data, &apart), partial()).expect("opens"), Node::ROOT).len(),
        3
    );

    let large = zip(&data, &[(0, 400, u32::MAX - 1), (430, 500, u32::MAX - 1)]);
    let e = fails("large.zip", large.clone(), partial());
    assert!(e.kind() == Kind::Limit && e.to_string().contains("max_ratio"), "{e}");
    let limits = Limits { ratio: 10_000_000, ..Limits::default() };
    assert!(open_bytes("large.zip", large, Options { limits, ..Options::default() }).is_ok());
}

#[test]
fn the_end_of_a_zip_member_is_given_only_if_its_checksum_and_length_are_right() {
    for (length, stored) in [1000, 64 << 10, 300_000].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let content = common::noise(length, 7);
        let packed =
            if stored { content.clone() } else { miniz_oxide::deflate::compress_to_vec(&content, 6) };
        let local = [b"PK\x03\x04".to_vec(), vec![0; 26], packed.clone()].concat();
        let read_with = |crc: u32, size: usize| -> outrigger_core::Result<Vec<u8>> {
            let mut archive = zip(&local, &[(0, packed.len() as u32, size as u32)]);
            let entry = local.len();
            archive[entry + 10] = if stored { 0 } else { 8 };
            archive[entry + 16..entry + 20].copy_from_slice(&crc.to_le_bytes());
            let driver = open_bytes("x.zip", archive, Options::default()).unwrap();
            let member = at(&driver, "00000");
            let mut all = Vec::new();
            while all.len() < size {
                all.extend(read(&driver, member, all.len() as u64, 70_000)?);
            }
            Ok(all)
        };
        let (what, crc) = ((length, stored), crc32fast::hash(&content));
        assert!(read_with(crc, length).is_ok_and(|read| read == content), "{what:?}");
        for (crc, size) in [(crc ^ 1, length), (crc, length - 1), (crc, 10)] {
            let error = read_with(crc, size).expect_err("it is not what the entry says");
            assert_eq!(error.errno, outrigger_core::Errno::EIO, "{what:?}: {error}");
        }
    }
}

/// A zip of one stored member, `content` with one bit flipped.
fn zip_with_flipped_bit(content: &[u8]) -> Vec<u8> {
    let mut stored = content.to_vec();
    stored[content.len() / 2] ^= 4;
    let local = [b"PK\x03\x04".to_vec(), vec![0; 26], stored].concat();
    let mut archive = zip(&local, &[(0, content.len() as u32, content.len() as u32)]);
    archive[local.len() + 10] = 0;
    archive[local.len() + 16..local.len() + 20].copy_from_slice(&crc32fast::hash(content).to_le_bytes());
    archive
}

/// The requests of a kernel's read-ahead arrive in any order and side by side.
#[test]
fn a_stored_zip_member_with_a_flipped_bit_fails_in_whatever_order_it_is_read() {
    const PIECE: u32 = 128 << 10;
    let archive = zip_with_flipped_bit(&common::noise(16 * PIECE as usize - 1000, 3));
    let read_piece = |driver: &_, member, piece: u32| {
        let outcome = read(driver, member, u64::from(piece * PIECE), PIECE);
        outcome.map(drop).map_err(|error| error.errno)
    };
    let eio = Err(outrigger_core::Errno::EIO);

    let driver = open_bytes("swapped.zip", archive.clone(), Options::default()).expect("opens");
    let member = at(&driver, "00000");
    let swapped: Vec<_> = (0..16).map(|piece| read_piece(&driver, member, piece ^ 1)).collect();
    assert!(swapped[..15].iter().all(Result::is_ok) && swapped[15] == eio, "{swapped:?}");
    assert!((0..16).all(|piece| read_piece(&driver, member, piece) == eio), "it stays so");

    let driver = open_bytes("threads.zip", archive, Options::default()).expect("opens");
    let start = std::sync::Barrier::new(2);
    let read_half = |half: u32| {
        start.wait();
        (0..8).filter(|piece| read_piece(&driver, member, 2 * piece + half) == eio).count()
    };
    let failed = std::thread::scope(|scope| {
        let other = scope.spawn(|| read_half(1));
        read_half(0) + other.join().expect("no panic")
    });
    assert_eq!(failed, 1, "the read that completes the member");
    assert!((0..16).all(|piece| read_piece(&driver, member, piece) == eio), "it stays so");
}

/// `n` zeros as one gzip member of stored-free deflate, through the library's encoder.
fn gzip_of_zeros(n: usize) -> Vec<u8> {
    gzip(&vec![0; n])
}

/// A frame whose header asks for a window of 8 MiB.
fn wide_zstd() -> Vec<u8> {
    // Magic, descriptor without single segment or size, window descriptor for 2^23, one last raw block of 1 byte.
    vec![0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3, 9, 0, 0, b'x']
}

#[test]
fn damage_is_named_with_archive_and_offset() {
    let dir = tempfile::TempDir::new().expect("tempdir");
    let make = "for i in 1 2 3 4 5 6 7 8; do head -c 50000 /dev/urandom >f$i; done; tar -cf x.tar f*; gzip -k x.tar; \
                bzip2 -1 -k x.tar; xz -k x.tar; zstd -q -k x.tar; find f* | cpio -o --quiet -H newc >x.cpio; \
                zip -q x.zip f*; ar rc x.a f*";
    for tool in ["bzip2", "xz", "zstd", "cpio", "zip", "ar"] {
        if !shell(dir.path(), tool, "true") {
            return;
        }
    }
    assert!(shell(dir.path(), "tar", make));
    for name in ["x.tar", "x.tar.gz", "x.tar.bz2", "x.tar.xz", "x.tar.zst", "x.cpio", "x.zip", "x.a"] {
        let whole = std::fs::read(dir.path().join(name)).expect("read");
        assert_eq!(
            list(&open_bytes(name, whole.clone(), Options::default()).expect("opens"), Node::ROOT).len(),
            8
        );
        let cut = whole[..whole.len() / 2].to_vec();
        let e = fails(name, cut.clone(), Options::default());
        assert!(matches!(e.kind(), Kind::Truncated), "{e}");
        assert!(e.to_string().starts_with(&format!("{name}: at byte ")), "{e}");
        assert!(e.offset() <= cut.len() as u64, "{e}");
        let partial =
            open_bytes(name, cut, Options { partial: true, ..Options::default() }).expect("partial opens");
        let shown = list(&partial, Node::ROOT);
        assert!(partial.archive().warnings().iter().any(|(w, _, _)| w == Warning::Damaged), "{name}");
        assert!((1..8).contains(&shown.len()), "{name} shows {}", shown.len());
        assert_eq!(read_all(&partial, shown[0].1, 4096).len(), 50_000, "{name}");
    }
    // One wrong byte in the middle: every compressed format notices when the archive is opened.
    for name in ["x.tar.gz", "x.tar.bz2", "x.tar.xz", "x.tar.zst"] {
        let mut bad = std::fs::read(dir.path().join(name)).expect("read");
        let middle = bad.len() / 2;
        bad[middle] ^= 0x55;
        let e = fails(name, bad, Options::default());
        assert!(matches!(e.kind(), Kind::Corrupt | Kind::Truncated), "{e}");
    }
}

#[test]
fn every_prefix_and_every_flipped_byte_is_survived() {
    let archive = tar(&[
        member(b"d/", b'5', b"", b""),
        pax_member(b"d/long", b'0', b"", b"some data"),
        member(b"h", b'1', b"d/long", b""),
    ]);
    for n in 0..archive.len() {
        let _ =
            open_bytes("x.tar", archive[..n].to_vec(), Options { partial: n % 2 == 0, ..Options::default() });
    }
    for i in 0..archive.len() {
        let mut bad = archive.clone();
        bad[i] ^= 1 << (i % 8);
        if let Ok(driver) = open_bytes("x.tar", bad, Options { partial: true, ..Options::default() }) {
            in_archive(&driver, 100);
        }
    }
}

#[test]
fn what_is_no_archive_is_said_to_be_none() {
    for data in [vec![], b"hello, world".to_vec(), vec![0; 512], vec![0; 2 << 20], vec![0xff; 5000]] {
        let e = fails("x", data, Options::default());
        assert_eq!(e.kind(), Kind::NotAnArchive);
    }
    // tar(1) writes 20 blocks; what was erased is longer.
    for length in [10_752, 20_480, 1 << 20] {
        let e = fails("erased", vec![0; length], Options::default());
        assert!(e.kind() == Kind::NotAnArchive && e.to_string().contains("tar, zip, cpio, ar"), "{e}");
    }
    let empty = open_bytes("x.tar", vec![0; 10240], Options::default()).expect("an empty tar");
    assert_eq!(list(&empty, Node::ROOT), []);
}
