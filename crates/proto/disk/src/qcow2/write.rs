// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing an image.

use super::header::AUTOCLEAR;
use super::{COMPRESSED, Content, Counts, OWN, PLACE, Qcow2, Storage, WAITING, ZERO, damaged, encoded};
use crate::container::Container;
use std::io;

impl<S: Storage> Qcow2<S> {
    /// Writes all of `data` on the disk at `offset`. It is certain to stay there after [`Qcow2::flush`].
    ///
    /// # Errors
    /// Those of reading and writing; when the image is damaged; when it may be read only; beyond the end of the disk.
    pub fn write(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        self.must_contain(offset, data.len() as u64)?;
        self.begin()?;
        let (mut offset, mut rest) = (offset, data);
        while !rest.is_empty() {
            self.make_room()?;
            let most = self.clusters(offset, rest.len());
            let (_, content, count) = self.run(offset / self.header.cluster(), most)?;
            let reach = match content {
                Content::At { place, own: true } => {
                    let reach = self.reach(offset, rest.len(), count);
                    let place = place + offset % self.header.cluster();
                    if place >= self.storage.size() {
                        return Err(damaged("a cluster lies outside the file"));
                    }
                    self.storage.write(&rest[..reach], place)?;
                    reach
                }
                _ => self.write_elsewhere(rest, offset)?,
            };
            offset += reach as u64;
            rest = &rest[reach..];
        }
        Ok(())
    }

    /// Brings the image up to date, and returns when all of it is on the medium.
    ///
    /// # Errors
    /// Those of writing; what could not be written is by the next flush.
    pub fn flush(&mut self) -> io::Result<()> {
        self.commit()?;
        self.storage.flush()
    }

    /// The content of a range is not needed any more; it reads as zeroes (`zero`), or as what was there. What is not a whole
    /// cluster is only made zero.
    ///
    /// # Errors
    /// Those of [`Qcow2::write`].
    pub fn discard(&mut self, offset: u64, length: u64, zero: bool) -> io::Result<()> {
        self.must_contain(offset, length)?;
        self.begin()?;
        let (cluster, end) = (self.header.cluster(), offset + length);
        let mut start = offset;
        while start < end {
            self.make_room()?;
            let next = (start / cluster + 1) * cluster;
            // The disk may end within its last cluster.
            if start.is_multiple_of(cluster) && next.min(self.header.size) <= end {
                self.empty(start / cluster, zero)?;
            } else if zero {
                self.zero_part(start, next.min(end))?;
            }
            start = next;
        }
        Ok(())
    }

    /// Takes the content of a cluster away.
    fn empty(&mut self, cluster: u64, zero: bool) -> io::Result<()> {
        let old = self.entry(cluster)?;
        let new = match (&self.backing, self.header.version) {
            (None, _) => 0,
            (Some(_), 3) => ZERO,
            // What the backing file has there would appear.
            (Some(_), _) if zero => {
                let start = cluster * self.header.cluster();
                return self.zero_part(start, (start + self.header.cluster()).min(self.header.size));
            }
            (Some(_), _) => return Ok(()),
        };
        if old != new {
            self.set_entry(cluster, new)?;
            self.release(old)?;
        }
        Ok(())
    }

    /// Makes the bytes of a part of a cluster zeroes.
    fn zero_part(&mut self, start: u64, end: u64) -> io::Result<()> {
        let entry = self.entry(start / self.header.cluster())?;
        match self.content(entry)? {
            Content::Zero => Ok(()),
            Content::FromBacking if self.backing.is_none() => Ok(()),
            _ => self.write(&vec![0; (end - start) as usize], start),
        }
    }

    /// Writes into new clusters what belongs into those that have no place of their own yet. Tells how much that was.
    fn write_elsewhere(&mut self, data: &[u8], offset: u64) -> io::Result<usize> {
        let cluster = self.header.cluster();
        let first = offset / cluster;
        // One table at a time.
        let most = self.clusters(offset, data.len()).min(self.per_table() - first % self.per_table());
        let mut wanted = 1;
        while wanted < most && !self.is_own(first + wanted)? {
            wanted += 1;
        }
        let Some(counts) = &mut self.counts else { return Err(damaged("it has no refcounts")) };
        let (place, count) = counts.take(&self.storage, wanted)?;
        let data = &data[..self.reach(offset, data.len(), count)];
        self.fill(data, offset, place, count)?;
        for number in 0..count {
            let old = self.entry(first + number)?;
            self.set_entry(first + number, (place + number * cluster) | OWN)?;
            self.release(old)?;
        }
        Ok(data.len())
    }

    fn is_own(&mut self, cluster: u64) -> io::Result<bool> {
        let entry = self.entry(cluster)?;
        Ok(matches!(self.content(entry)?, Content::At { own: true, .. }))
    }

    /// Fills `count` new clusters at `place` with data for `offset`, and with what was before and after it.
    fn fill(&mut self, data: &[u8], offset: u64, place: u64, count: u64) -> io::Result<()> {
        let cluster = self.header.cluster();
        let (start, skipped) = (offset / cluster * cluster, (offset % cluster) as usize);
        let end = place + count * cluster;
        let mut head = vec![0; skipped];
        self.read(&mut head, start)?;
        let mut tail = vec![0; (count * cluster) as usize - skipped - data.len()];
        // The disk may end within its last cluster.
        let after = offset + data.len() as u64;
        let there = (self.header.size - after).min(tail.len() as u64) as usize;
        self.read(&mut tail[..there], after)?;
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        if place >= self.storage.size() && is_zero(&head) && is_zero(&tail) {
            // What was never written is zero by itself.
            self.storage.write(data, place + skipped as u64)?;
            return if self.storage.size() < end { self.storage.grow(end) } else { Ok(()) };
        }
        match head.is_empty() && tail.is_empty() {
            true => self.storage.write(data, place),
            false => self.storage.write(&[&head, data, &tail].concat(), place),
        }
    }

    /// Notes where the content of a cluster is from now on.
    fn set_entry(&mut self, cluster: u64, entry: u64) -> io::Result<()> {
        self.own_table(cluster)?;
        let Some((place, byte)) = self.table_of(cluster)? else { return Err(damaged("a table is missing")) };
        self.l2.change(&self.storage, place, byte..byte + 8, |content| {
            content[byte..byte + 8].copy_from_slice(&entry.to_be_bytes());
        })
    }

    /// Makes the second table for a cluster one that may be changed: a new one where there is none, or it is a snapshot's too.
    fn own_table(&mut self, cluster: u64) -> io::Result<()> {
        let index = (cluster / self.per_table()) as usize;
        let old = self.l1.get(index).copied().unwrap_or(0);
        if old & OWN != 0 && old & PLACE != 0 {
            return Ok(());
        }
        let content = match self.table_of(cluster)? {
            Some((place, _)) => self.l2.table(&self.storage, place)?.into(),
            None => vec![0; self.header.cluster() as usize].into_boxed_slice(),
        };
        let Some(counts) = &mut self.counts else { return Err(damaged("it has no refcounts")) };
        let (place, _) = counts.take(&self.storage, 1)?;
        self.l2.put(place, content);
        self.l1[index] = place | OWN;
        self.dirty = match self.dirty.is_empty() {
            true => index..index + 1,
            false => self.dirty.start.min(index)..self.dirty.end.max(index + 1),
        };
        if old & PLACE != 0 {
            self.released.push((old & PLACE, 1));
        }
        Ok(())
    }

    /// What an entry referred to is not needed by it any more.
    fn release(&mut self, entry: u64) -> io::Result<()> {
        let cluster = self.header.cluster();
        self.unpacked = None;
        if entry & COMPRESSED == 0 {
            if entry & PLACE != 0 {
                self.content(entry)?;
                self.released.push((entry & PLACE, 1));
            }
        } else if let Content::Packed { place, length } = self.content(entry)? {
            let first = place / cluster * cluster;
            self.released.push((first, (place + length - first).div_ceil(cluster)));
        }
        Ok(())
    }

    /// What has to happen before the first change.
    fn begin(&mut self) -> io::Result<()> {
        if self.counts.is_some() {
            return Ok(());
        }
        if let Some(why) = self.header.read_only {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why));
        }
        let counts = Counts::read(&self.storage, &self.header)?;
        if self.header.autoclear {
            self.storage.write(&[0; 8], AUTOCLEAR)?;
            self.storage.flush()?;
        }
        self.counts = Some(counts);
        Ok(())
    }

    /// Writes the tables when too many wait.
    fn make_room(&mut self) -> io::Result<()> {
        let full = self.counts.as_ref().is_some_and(Counts::is_full);
        if full || self.l2.is_full() || self.released.len() > WAITING { self.commit() } else { Ok(()) }
    }

    /// Writes the tables in an order that is right at every moment.
    fn commit(&mut self) -> io::Result<()> {
        let Some(counts) = &mut self.counts else { return Ok(()) };
        if counts.is_dirty() {
            counts.write(&self.storage)?;
        }
        if self.l2.is_dirty() {
            self.storage.flush()?;
            self.l2.write(&self.storage)?;
        }
        if !self.dirty.is_empty() {
            self.storage.flush()?;
            let entries = encoded(&self.l1[self.dirty.clone()]);
            self.storage.write(&entries, self.header.l1.0 + self.dirty.start as u64 * 8)?;
            self.dirty = 0..0;
        }
        if self.released.is_empty() {
            return Ok(());
        }
        self.storage.flush()?;
        let (bits, cluster) = (self.header.cluster_bits, self.header.cluster());
        for (place, count) in std::mem::take(&mut self.released) {
            for number in (place >> bits..).take(count as usize) {
                if counts.give_back(&self.storage, number)? {
                    self.l2.forget(number << bits);
                    // Whatever stays there is harmless.
                    let _ = self.storage.punch(number << bits, cluster);
                }
            }
        }
        counts.write(&self.storage)
    }
}
