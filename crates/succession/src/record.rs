// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of a state, as one process records it and another one reads it: a ring in a memory file that both hold.
//!
//! An event is recorded before a reply that follows from it is given, so a process that reads all of them knows at least as
//! much as everybody else, wherever the first process has died.

use crate::control::{Control, RECORD_SIZE};
use crate::undelivered::Requester;
use bytes::Bytes;
use outrigger_core::wire::Malformed;
use outrigger_core::{Credentials, Errno, Node, Reply, Request, Result, Wire};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What happens to a state.
#[derive(Wire)]
#[wire(internal)]
pub enum Event {
    /// A request has come.
    #[wire(0)]
    Asked {
        /// By whom.
        requester: Requester,
        /// On whose behalf.
        cred: Credentials,
        /// In the numbers that replies had.
        request: Request,
    },
    /// The worker's reply to a frame has come.
    #[wire(1)]
    Replied {
        /// The number of the frame.
        id: u64,
        /// In the worker's numbers.
        reply: Reply,
    },
    /// References were returned.
    #[wire(2)]
    Forgotten {
        /// To this node.
        node: Node,
        /// So many.
        count: u64,
    },
    /// It is time for a checkpoint.
    #[wire(3)]
    Checkpoint,
    /// The worker needs not hold these any more.
    #[wire(4)]
    Returned {
        /// In the numbers that replies had.
        nodes: Vec<Node>,
    },
}

/// The numbers of events that are recorded without being made.
const ASKED: u16 = 0;
const REPLIED: u16 = 1;

/// An event in the ring: its place in the stream, counted from one; its length; its bytes; and the complement of its place,
/// which says that all of it is there. What an earlier round has left has other places.
const HEAD: usize = 16;
const TAIL: usize = 8;
/// The longest event: a frame's content, and what is around it.
const LONGEST: usize = 2 << 20;

/// When so much was recorded it is time to read it: programs wait for what is left of it when the writer dies.
const PORTION: u64 = RECORD_SIZE / 64;

/// The writing end.
pub struct Recorder {
    control: Control,
    /// Where in the stream the first byte of the buffer is.
    written: u64,
    buffer: Vec<u8>,
    /// Up to where the reader has been seen to have read.
    consumed: u64,
}

/// How often a reader is looked for that is slower than the writer.
const MOMENT: Duration = Duration::from_millis(1);

impl Recorder {
    /// Records into the memory file, whose part for it starts there, from where a reader [waits](Records::begin).
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn new(file: Arc<File>, start: u64) -> io::Result<Self> {
        let control = Control::at(file, start);
        let consumed = control.consumed()?;
        Ok(Recorder { control, written: consumed, buffer: Vec::new(), consumed })
    }

    /// Records an event; it is in the file after [`Recorder::flush`].
    pub fn note(&mut self, event: &Event) {
        self.add(|out| event.put(out));
    }

    /// The same for a request, which is not copied more than once.
    pub fn asked(&mut self, requester: &Requester, cred: &Credentials, request: &Request) {
        self.add(|out| {
            ASKED.put(out);
            requester.put(out);
            cred.put(out);
            request.put(out);
        });
    }

    /// The same for a reply.
    pub fn replied(&mut self, id: u64, reply: &Reply) {
        self.add(|out| {
            (REPLIED, id).put(out);
            reply.put(out);
        });
    }

    fn add(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let out = &mut self.buffer;
        let (place, start) = (self.written + out.len() as u64 + 1, out.len());
        out.extend_from_slice(&place.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        put(out);
        let length = out.len() - start - HEAD;
        out[start + 8..start + HEAD].copy_from_slice(&(length as u64).to_le_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(&(!place).to_le_bytes());
    }

    /// How many bytes are not in the file yet.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Puts what was noted into the file. `true` when it is time to read it. While there is no room it waits as
    /// long as `is_read` says that a process reads.
    ///
    /// # Errors
    /// When the file cannot be written, or no process reads it.
    pub fn flush(&mut self, mut is_read: impl FnMut(Duration) -> bool) -> Result<bool> {
        let before = self.written;
        let buffer = std::mem::take(&mut self.buffer);
        for part in buffer.chunks(RECORD_SIZE as usize / 4) {
            self.make_room(part.len() as u64, &mut is_read)?;
            self.control.write_record(part, self.written)?;
            self.written += part.len() as u64;
        }
        self.buffer = buffer;
        self.buffer.clear();
        Ok(before / PORTION != self.written / PORTION)
    }

    fn make_room(&mut self, length: u64, is_read: &mut impl FnMut(Duration) -> bool) -> Result<()> {
        while self.written + length > self.consumed + RECORD_SIZE {
            let consumed = self.control.consumed()?;
            if consumed == self.consumed && !is_read(MOMENT) {
                return Err(Errno::EPIPE.because("no process reads what is recorded"));
            }
            self.consumed = consumed;
        }
        Ok(())
    }
}

/// The reading end.
pub struct Records {
    control: Control,
    read: u64,
}

impl Records {
    /// Of what is recorded in a part of a memory file, which starts there.
    pub fn new(file: File, start: u64) -> Self {
        Records { control: Control::at(Arc::new(file), start), read: 0 }
    }

    /// Waits for what another process will record from here on: where nothing of what was recorded before, and not read, can
    /// be.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(&mut self) -> io::Result<()> {
        self.read += RECORD_SIZE;
        self.consumed()
    }

    /// The next event, if it has been recorded.
    ///
    /// # Errors
    /// When the file cannot be read, and when what is there is no event.
    pub fn take(&mut self) -> Result<Option<Event>> {
        let mut head = [0; HEAD];
        self.control.read_record(&mut head, self.read)?;
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (place, length) = (number(&head), number(&head[8..]) as usize);
        if place != self.read + 1 {
            return Ok(None);
        }
        if length > LONGEST {
            return Err(Malformed::new("record").into());
        }
        let mut bytes = vec![0; length.next_multiple_of(8) + TAIL];
        self.control.read_record(&mut bytes, self.read + HEAD as u64)?;
        if number(&bytes[bytes.len() - TAIL..]) != !place {
            return Ok(None);
        }
        self.read += (HEAD + bytes.len()) as u64;
        bytes.truncate(length);
        Ok(Some(Event::get(&mut Bytes::from(bytes))?))
    }

    /// Tells the writer that there is room again.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn consumed(&self) -> io::Result<()> {
        self.control.set_consumed(self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn ring() -> (Recorder, Records) {
        let file = File::from(memfd_create("record", MemfdFlags::CLOEXEC).expect("memory"));
        let mut records = Records::new(file.try_clone().expect("dup"), 100);
        records.begin().expect("memory");
        (Recorder::new(Arc::new(file), 100).expect("memory"), records)
    }

    fn forgotten(records: &mut Records) -> Option<u64> {
        match records.take().expect("an event or none")? {
            Event::Forgotten { count, .. } => Some(count),
            _ => panic!("another event"),
        }
    }

    #[test]
    fn events_arrive_in_order_for_many_rounds() {
        let (mut recorder, mut records) = ring();
        for round in 0..3 * RECORD_SIZE / 4000 {
            for count in 0..100 {
                recorder.note(&Event::Forgotten { node: Node(round), count });
            }
            assert_eq!(forgotten(&mut records), None, "before it is flushed");
            recorder.flush(|_| false).expect("room");
            (0..100).for_each(|count| assert_eq!(forgotten(&mut records), Some(count)));
            assert_eq!(forgotten(&mut records), None);
            records.consumed().expect("room");
        }
    }

    #[test]
    fn a_writer_waits_for_a_reader_and_not_for_ever() {
        let (mut recorder, mut records) = ring();
        let fill = |recorder: &mut Recorder| {
            loop {
                recorder.note(&Event::Returned { nodes: vec![Node(1); 1000] });
                recorder.flush(|_| false)?;
            }
        };
        let full: Result<()> = fill(&mut recorder);
        assert_eq!(full.unwrap_err().errno, Errno::EPIPE);
        while let Some(Event::Returned { nodes }) = records.take().expect("an event or none") {
            assert_eq!(nodes.len(), 1000);
        }
        assert!(records.read > RECORD_SIZE + RECORD_SIZE / 2);
    }

    #[test]
    fn what_another_one_has_recorded_is_not_read() {
        let (mut recorder, mut records) = ring();
        for count in 0..100 {
            recorder.note(&Event::Forgotten { node: Node(1), count });
        }
        recorder.flush(|_| false).expect("room");
        assert_eq!(forgotten(&mut records), Some(0));
        records.begin().expect("memory");
        let mut next = Recorder::new(recorder.control.parts().0, 100).expect("memory");
        assert_eq!(forgotten(&mut records), None, "what was left");
        next.note(&Event::Forgotten { node: Node(1), count: 7 });
        next.flush(|_| false).expect("room");
        assert_eq!((forgotten(&mut records), forgotten(&mut records)), (Some(7), None));
    }

    #[test]
    fn half_an_event_is_none() {
        let (mut recorder, mut records) = ring();
        recorder.note(&Event::Returned { nodes: vec![Node(7); 100] });
        let whole = std::mem::take(&mut recorder.buffer);
        let put = |bytes| recorder.control.write_record(bytes, recorder.written).expect("room");
        put(&whole[..whole.len() - 8]);
        assert!(records.take().expect("none").is_none());
        put(&whole);
        assert!(matches!(records.take(), Ok(Some(Event::Returned { .. }))));
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let (mut recorder, mut records) = ring();
        recorder.add(|out| out.push(99));
        recorder.flush(|_| false).expect("room");
        assert_eq!(records.take().err().map(|error| error.errno), Some(Errno::EPROTO));
        let (recorder, mut records) = ring();
        let bytes = [(recorder.written + 1).to_le_bytes(), u64::MAX.to_le_bytes()].concat();
        recorder.control.write_record(&bytes, recorder.written).expect("room");
        assert_eq!(records.take().err().map(|error| error.errno), Some(Errno::EPROTO));
    }
}
