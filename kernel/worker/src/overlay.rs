// SPDX-License-Identifier: GPL-2.0-only
//! Writes that wait for a checkpoint: between two of them the image does not change.
//!
//! What the kernel code writes goes into a memory file that the parent process holds too. A checkpoint *seals*
//! it, which one store makes true, and then carries it out on the image: in the order of the kernel's flushes, so that an
//! image left in the middle is one that a power failure may leave. So when this process is killed the image is that
//! of the last checkpoint, or its successor finds a sealed overlay and carries it out first.
//!
//! The file: a page of numbers ([`Control`]), the times of changes, blocks of content, and after these, when it is sealed, the
//! list of what to do with them.

use crate::control::Control;
use crate::disk::Disk;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The unit in which content is kept, in bytes.
const BLOCK: u64 = 4096;
/// The most blocks that are moved at once.
const RUN: u64 = 256;
/// Beyond this the memory of blocks is given back at a checkpoint, in bytes.
const KEPT: u64 = 32 << 20;
/// Images that are larger are never written as a whole between two checkpoints, in bytes.
const LARGE: u64 = 8 << 30;
/// What is written several times, and the list, in bytes.
const SPARE: u64 = 1 << 30;
/// Bytes of an entry of the list.
const ENTRY: usize = 16;

/// What a block is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The block of the file with this number.
    At(u64),
    /// Zeroes.
    Zero,
    /// Nothing that anybody needs.
    Hole,
}

/// Consecutive blocks of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u64,
    content: Content,
}

/// Blocks between two flushes of the kernel, in whatever order.
type Segment = BTreeMap<u64, Content>;

/// The blocks that are not in the image yet.
pub struct Overlay {
    file: Arc<File>,
    control: Arc<Control>,
    /// What each block is now.
    latest: HashMap<u64, Content>,
    /// The order in which they may reach the image.
    segments: Vec<Segment>,
    /// How many blocks of the file are in use.
    used: u64,
}

/// How much of an overlay's memory there is for an image of `size` bytes that kernel code with so much memory writes: all that
/// it may have changed, again and again, between two checkpoints. What is never written takes none of the host's.
pub fn room(memory: u64, size: u64) -> u64 {
    size.min(LARGE) + 4 * memory + SPARE
}

impl Overlay {
    /// Takes over what is in the file: what a predecessor has sealed is carried out on `disk`, the rest dropped.
    ///
    /// # Errors
    /// When the image cannot be written.
    pub fn open(control: Arc<Control>, disk: &Disk) -> io::Result<Self> {
        let (file, _) = control.parts();
        let (latest, segments) = (HashMap::new(), vec![Segment::new()]);
        let mut overlay = Overlay { file, control, latest, segments, used: 0 };
        if let Some((place, length)) = overlay.control.sealed()? {
            let mut list = vec![0; length as usize];
            overlay.file.read_exact_at(&mut list, place)?;
            overlay.carry_out(&decoded(&list), disk)?;
        }
        Ok(overlay)
    }

    /// Fills `buffer` with what is at `offset` now.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(&self, disk: &Disk, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.has_nothing_of(offset, buffer.len() as u64) {
            return disk.read_image(buffer, offset);
        }
        let known = |piece: Piece| (piece, self.latest.get(&piece.block).copied());
        let found: Vec<(Piece, Option<Content>)> = pieces(offset, buffer.len()).map(known).collect();
        if found.iter().any(|(_, content)| content.is_none()) {
            disk.read_image(buffer, offset)?;
        }
        for (piece, content) in found {
            let place = &mut buffer[piece.at..piece.at + piece.length];
            match content {
                None => {}
                Some(Content::At(number)) => {
                    self.file.read_exact_at(place, self.place_of(number) + piece.skipped)?
                }
                Some(Content::Zero | Content::Hole) => place.fill(0),
            }
        }
        Ok(())
    }

    /// Whether the image has all of a range.
    pub fn has_nothing_of(&self, offset: u64, length: u64) -> bool {
        self.latest.is_empty()
            || pieces(offset, length as usize).all(|piece| !self.latest.contains_key(&piece.block))
    }

    /// Notes that `data` is at `offset` from now on.
    ///
    /// # Errors
    /// Those of reading the rest of a block, and when there is no memory.
    pub fn write(&mut self, disk: &Disk, data: &[u8], offset: u64) -> io::Result<()> {
        let mut fresh = Vec::new();
        for piece in pieces(offset, data.len()) {
            let part = &data[piece.at..piece.at + piece.length];
            if piece.length as u64 == BLOCK && part.iter().all(|&byte| byte == 0) {
                self.set(piece.block, Content::Zero);
                continue;
            }
            let number = self.number_for(piece.block);
            if piece.length as u64 == BLOCK {
                fresh.push((number, piece));
                continue;
            }
            let start = piece.block * BLOCK;
            let mut whole = vec![0; (disk.size() - start).min(BLOCK) as usize];
            self.read(disk, &mut whole, start)?;
            whole[piece.skipped as usize..piece.skipped as usize + part.len()].copy_from_slice(part);
            whole.resize(BLOCK as usize, 0);
            self.file.write_all_at(&whole, self.place_of(number))?;
            self.set(piece.block, Content::At(number));
        }
        // Neighbours in the request are mostly neighbours in the file.
        let beside =
            |one: &(u64, Piece), next: &(u64, Piece)| one.0 + 1 == next.0 && one.1.block + 1 == next.1.block;
        for run in fresh.chunk_by(beside) {
            let (number, first) = run[0];
            let data = &data[first.at..first.at + run.len() * BLOCK as usize];
            self.file.write_all_at(data, self.place_of(number))?;
            run.iter().for_each(|(number, piece)| self.set(piece.block, Content::At(*number)));
        }
        Ok(())
    }

    /// Notes that the content of a range is not needed, or (`zero`) that it has to read as zeroes.
    ///
    /// # Errors
    /// Those of [`Overlay::write`].
    pub fn discard(&mut self, disk: &Disk, offset: u64, length: u64, zero: bool) -> io::Result<()> {
        let content = if zero { Content::Zero } else { Content::Hole };
        for piece in pieces(offset, length as usize) {
            if piece.length as u64 == BLOCK {
                self.set(piece.block, content);
            } else if zero {
                self.write(disk, &vec![0; piece.length], piece.block * BLOCK + piece.skipped)?;
            }
        }
        Ok(())
    }

    /// What is written from here on may not reach the image before what was written so far.
    pub fn flush(&mut self) {
        if self.segments.last().is_some_and(|segment| !segment.is_empty()) {
            self.segments.push(Segment::new());
        }
    }

    /// Brings the image up to date. When this returns all of it is on the medium.
    ///
    /// # Errors
    /// Those of writing the image; it is brought up to date by the next checkpoint then.
    pub fn checkpoint(&mut self, disk: &Disk) -> io::Result<()> {
        let segments: Vec<Vec<Run>> = self.segments.iter().map(runs).collect();
        let list = encoded(&segments);
        let place = self.place_of(self.used);
        self.file.write_all_at(&list, place)?;
        self.control.seal(place, list.len() as u64)?;
        let result = self.carry_out(&segments, disk);
        if result.is_err() {
            // What comes next would overwrite the list.
            self.control.break_seal()?;
        }
        result
    }

    fn carry_out(&mut self, segments: &[Vec<Run>], disk: &Disk) -> io::Result<()> {
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            segment.iter().try_for_each(|run| self.put(run, disk))?;
            disk.flush_image()?;
        }
        self.control.has_happened()?;
        let superfluous = (self.used * BLOCK).saturating_sub(KEPT);
        self.latest.clear();
        self.segments = vec![Segment::new()];
        self.used = 0;
        match superfluous {
            0 => Ok(()),
            length => crate::disk::punch(&self.file, self.place_of(0) + KEPT, length),
        }
    }

    fn put(&self, run: &Run, disk: &Disk) -> io::Result<()> {
        let start = run.first * BLOCK;
        // The last block may be longer than what is left of the disk.
        let length = (run.count * BLOCK).min(disk.size().saturating_sub(start));
        match run.content {
            Content::At(number) => {
                let mut data = vec![0; length as usize];
                self.file.read_exact_at(&mut data, self.place_of(number))?;
                disk.write_image(&data, start)
            }
            Content::Hole | Content::Zero => {
                let zero = run.content == Content::Zero;
                match disk.discards().then(|| disk.discard_image(start, length, zero)) {
                    Some(Ok(())) => Ok(()),
                    // Not every file can be given a hole, and fewer zeroes: tmpfs has the first only.
                    Some(Err(error)) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => Err(error),
                    _ if zero => disk.write_image(&vec![0; length as usize], start),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Where the content with this number is in the file.
    fn place_of(&self, number: u64) -> u64 {
        self.control.blocks() + number * BLOCK
    }

    fn set(&mut self, block: u64, content: Content) {
        self.latest.insert(block, content);
        if let Some(segment) = self.segments.last_mut() {
            segment.insert(block, content);
        }
    }

    /// The place for the content of a block: the one it has, unless the image must see that first.
    fn number_for(&mut self, block: u64) -> u64 {
        match self.segments.last().and_then(|segment| segment.get(&block)) {
            Some(Content::At(number)) => *number,
            _ => {
                self.used += 1;
                self.used - 1
            }
        }
    }
}

/// The part of a request that is in one block.
#[derive(Debug, Clone, Copy)]
struct Piece {
    block: u64,
    /// Where it starts in the request.
    at: usize,
    /// Where it starts in the block.
    skipped: u64,
    length: usize,
}

fn pieces(offset: u64, length: usize) -> impl Iterator<Item = Piece> {
    let end = offset + length as u64;
    (offset / BLOCK..end.div_ceil(BLOCK)).map(move |block| {
        let start = offset.max(block * BLOCK);
        let length = (end.min((block + 1) * BLOCK) - start) as usize;
        Piece { block, at: (start - offset) as usize, skipped: start % BLOCK, length }
    })
}

/// What is beside each other in the image and in the file, together.
fn runs(segment: &Segment) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (&block, &content) in segment {
        if let Some(last) = runs.last_mut()
            && block == last.first + last.count
            && last.count < RUN
            && match (last.content, content) {
                (Content::At(first), Content::At(number)) => number == first + last.count,
                (one, other) => one == other,
            }
        {
            last.count += 1;
        } else {
            runs.push(Run { first: block, count: 1, content });
        }
    }
    runs
}

/// Entries of the list: first block, count and kind; then for content a second one with its number. Zeroes end a segment.
fn encoded(segments: &[Vec<Run>]) -> Vec<u8> {
    let mut list = Vec::new();
    let mut put = |first: u64, second: u64| {
        list.extend_from_slice(&first.to_le_bytes());
        list.extend_from_slice(&second.to_le_bytes());
    };
    for segment in segments {
        for run in segment {
            match run.content {
                Content::At(number) => {
                    put(run.first, run.count << 2 | 1);
                    put(number, 0);
                }
                Content::Zero => put(run.first, run.count << 2 | 2),
                Content::Hole => put(run.first, run.count << 2 | 3),
            }
        }
        put(0, 0);
    }
    list
}

fn decoded(list: &[u8]) -> Vec<Vec<Run>> {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let mut entries = list.chunks_exact(ENTRY).map(|entry| (word(entry), word(&entry[8..])));
    let (mut segments, mut segment) = (Vec::new(), Vec::new());
    while let Some((first, second)) = entries.next() {
        let content = match second & 3 {
            0 => {
                segments.push(std::mem::take(&mut segment));
                continue;
            }
            1 => Content::At(entries.next().map_or(0, |(number, _)| number)),
            2 => Content::Zero,
            _ => Content::Hole,
        };
        segment.push(Run { first, count: second >> 2, content });
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Image;
    use crate::medium::ImageFile;
    use std::path::Path;

    /// An image of seven and a half blocks, each byte the number of its block, and a control file.
    fn image() -> (Disk, Arc<File>, Arc<Control>) {
        image_in(&std::env::temp_dir())
    }

    /// The same in this directory.
    fn image_in(place: &Path) -> (Disk, Arc<File>, Arc<Control>) {
        let new = || tempfile::tempfile_in(place).expect("a file");
        let file = new();
        let content: Vec<u8> = (0..30_720_u64).map(|at| (at / BLOCK) as u8 + 1).collect();
        file.write_all_at(&content, 0).expect("a write");
        let image = Arc::new(file.try_clone().expect("a descriptor"));
        let plain = Image::Plain(ImageFile::new(file).expect("an image"));
        let disk = Disk::new(plain, 0, None, true).expect("a disk");
        (disk, image, Arc::new(Control::at(new(), 512)))
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; 30_720];
        file.read_exact_at(&mut bytes, 0).expect("a read");
        bytes
    }

    fn seen(overlay: &Overlay, disk: &Disk) -> Vec<u8> {
        let mut bytes = vec![0; 30_720];
        overlay.read(disk, &mut bytes, 0).expect("a read");
        bytes
    }

    /// Does one thing after the other to the overlay and to a copy in memory.
    fn act(overlay: &mut Overlay, disk: &Disk, copy: &mut [u8]) {
        let mut write = |overlay: &mut Overlay, offset: usize, data: &[u8]| {
            overlay.write(disk, data, offset as u64).expect("a write");
            copy[offset..offset + data.len()].copy_from_slice(data);
        };
        write(overlay, 4096, &[11; 8192]);
        write(overlay, 5000, &[12; 100]);
        overlay.flush();
        write(overlay, 4096, &[13; 512]);
        write(overlay, 28_672, &[14; 2048]);
        write(overlay, 16_384, &[0; 4096]);
        overlay.discard(disk, 20_000, 6_000, true).expect("zeroes");
        copy[20_000..26_000].fill(0);
    }

    #[test]
    fn the_image_changes_at_checkpoints_only() {
        let (disk, image, control) = image();
        let before = content(&image);
        let mut expected = before.clone();
        let mut overlay = Overlay::open(control, &disk).expect("an overlay");
        for _ in 0..2 {
            act(&mut overlay, &disk, &mut expected);
            assert!(seen(&overlay, &disk) == expected);
        }
        assert!(content(&image) == before);
        overlay.checkpoint(&disk).expect("a checkpoint");
        assert!(content(&image) == expected);
        assert!(seen(&overlay, &disk) == expected);
    }

    #[test]
    fn an_image_that_takes_no_order_for_zeroes_is_given_them() {
        let tmpfs = Path::new("/dev/shm");
        if !tmpfs.is_dir() {
            return eprintln!("SKIPPED: needs /dev/shm");
        }
        let (disk, image, control) = image_in(tmpfs);
        let mut expected = content(&image);
        let mut overlay = Overlay::open(control, &disk).expect("an overlay");
        act(&mut overlay, &disk, &mut expected);
        overlay.checkpoint(&disk).expect("a checkpoint");
        assert!(content(&image) == expected);
    }

    #[test]
    fn what_was_not_sealed_is_gone_and_what_was_is_carried_out() {
        let (disk, image, control) = image();
        let before = content(&image);
        let mut expected = before.clone();
        let mut overlay = Overlay::open(Arc::clone(&control), &disk).expect("an overlay");
        act(&mut overlay, &disk, &mut expected);
        drop(overlay);
        let mut overlay = Overlay::open(Arc::clone(&control), &disk).expect("an overlay");
        assert!(seen(&overlay, &disk) == before);
        act(&mut overlay, &disk, &mut expected);
        let segments: Vec<Vec<Run>> = overlay.segments.iter().map(runs).collect();
        assert_eq!(decoded(&encoded(&segments)), segments);
        let list = encoded(&segments);
        overlay.file.write_all_at(&list, overlay.place_of(overlay.used)).expect("a write");
        control.seal(overlay.place_of(overlay.used), list.len() as u64).expect("a seal");
        assert!(content(&image) == before, "killed between the seal and the first write");
        Overlay::open(control, &disk).expect("an overlay");
        assert!(content(&image) == expected);
    }

    #[test]
    fn a_block_that_is_written_again_behind_a_flush_keeps_its_first_content_too() {
        let (disk, _, control) = image();
        let mut overlay = Overlay::open(control, &disk).expect("an overlay");
        overlay.write(&disk, &[1; 4096], 0).expect("a write");
        overlay.write(&disk, &[2; 4096], 0).expect("a write");
        assert_eq!(overlay.used, 1, "the image needs to see the last one only");
        overlay.flush();
        overlay.flush();
        overlay.write(&disk, &[3; 4096], 0).expect("a write");
        assert_eq!((overlay.used, overlay.segments.len()), (2, 2));
    }
}
