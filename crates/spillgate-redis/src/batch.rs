//! Takes that go to a server together: one call of their script decides them all, each by itself. That costs the server half of
//! what as many calls do.

use redis::Value;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::Script;

/// The most takes in a call: what else the server is asked waits for a tenth of a millisecond at most.
const TAKES_MAX: usize = 32;
/// Room for a key or an argument.
const PART_BYTES: usize = 40;

/// One take, as its script reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Take<'r> {
    pub(crate) script: &'static Script,
    pub(crate) time: &'r [u8],
    pub(crate) key: &'r [u8],
    /// Of the same length for all takes by that script.
    pub(crate) argument: &'r [u8],
}

/// Takes by one script, at one time.
pub(crate) struct Batch {
    script: &'static Script,
    time: SmallVec<[u8; 9]>,
    /// As they are written.
    keys: Vec<u8>,
    arguments: Vec<u8>,
    takers: Vec<oneshot::Sender<Value>>,
}

impl Batch {
    /// For takes such as this one. What it allocates is shared by them.
    pub(crate) fn of(take: &Take<'_>) -> Batch {
        Batch {
            script: take.script,
            time: SmallVec::from_slice(take.time),
            keys: Vec::with_capacity(TAKES_MAX * PART_BYTES),
            arguments: Vec::with_capacity(TAKES_MAX * PART_BYTES),
            takers: Vec::with_capacity(TAKES_MAX),
        }
    }

    pub(crate) fn has_room_for(&self, take: &Take<'_>) -> bool {
        self.takers.len() < TAKES_MAX && self.script == take.script && self.time[..] == *take.time
    }

    pub(crate) fn push(&mut self, take: &Take<'_>, taker: oneshot::Sender<Value>) {
        write_bytes(take.key, &mut self.keys);
        self.arguments.extend_from_slice(take.argument);
        self.takers.push(taker);
    }

    /// Appends the call, and returns who waits for its answer: the one, or a list for all of them.
    pub(crate) fn write(self, out: &mut Vec<u8>) -> Vec<oneshot::Sender<Value>> {
        let takes = self.takers.len();
        write_length(b'*', 5 + takes, out);
        write_bytes(b"EVALSHA", out);
        write_bytes(self.script.sha().as_bytes(), out);
        let digits = [b'0' + (takes / 10) as u8, b'0' + (takes % 10) as u8];
        write_bytes(&digits[usize::from(takes < 10)..], out);
        out.extend_from_slice(&self.keys);
        write_bytes(&self.time, out);
        write_bytes(&self.arguments, out);
        self.takers
    }
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_length(b'$', bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn write_length(kind: u8, length: usize, out: &mut Vec<u8>) {
    out.push(kind);
    // All but a long batch's arguments have less than a hundred bytes.
    if length >= 10 {
        let (mut digits, mut at, mut rest) = ([0; 20], 20, length);
        while rest > 0 {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.extend_from_slice(&digits[at..]);
    } else {
        out.push(b'0' + length as u8);
    }
    out.extend_from_slice(b"\r\n");
}
