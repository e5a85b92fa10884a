//! Takes that are sent together: one call of their script decides them all, each by itself.
//!
//! One call for many takes costs the server as little as half of what single calls cost.
//!
//! Takes share a call if they have the same script and the same time. Almost always the time is empty, which means the
//! server's clock. Three takes on buckets become:
//!
//! ```text
//! EVALSHA <sha of take_bucket> 3 <key 1> <key 2> <key 3> <time or empty> <argument 1, 2 and 3 together>
//! ```
//!
//! The reply is an array of three elements. Each element is the reply to one take, or the error of that take alone.

use std::collections::VecDeque;

use redis::Value;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::command::request::EncodedTake;
use crate::command::script::Script;

/// The most takes in one call. It bounds how long other clients wait for the call: 0.1 to 0.2 ms.
const TAKES_MAX: usize = 32;
/// The number of batches that are searched for one that a take fits in, and that are reused. There is one for each
/// script, except in tests that pass their own times.
const BATCHES_KEPT: usize = 4;

/// The callers that wait for the reply to a command.
pub(crate) enum Awaited {
    /// One caller waits for the whole reply.
    One(oneshot::Sender<Value>),
    /// Each waits for one element of the reply.
    Each(Vec<oneshot::Sender<Value>>),
}

impl Awaited {
    /// The number of callers.
    pub(crate) fn len(&self) -> usize {
        match self {
            Awaited::One(_) => 1,
            Awaited::Each(callers) => callers.len(),
        }
    }
}

/// The takes that are not written yet.
#[derive(Default)]
pub(crate) struct Batches {
    /// Batches keep their allocations and are reused.
    batches: Vec<Batch>,
    /// The number of batches that contain takes. They come first.
    used: usize,
}

impl Batches {
    /// Whether no take waits to be written.
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a take to a batch that it fits in, or to a new batch. Only the last [`BATCHES_KEPT`] batches are searched, so
    /// the cost of a push has a bound.
    pub(crate) fn push(&mut self, take: &EncodedTake<'_>, caller: oneshot::Sender<Value>) {
        let mut last = self.batches[..self.used].iter_mut().rev().take(BATCHES_KEPT);
        if let Some(batch) = last.find(|batch| batch.fits(take)) {
            return batch.push(take, caller);
        }
        if self.used == self.batches.len() {
            self.batches.push(Batch::of(take));
        }
        let batch = &mut self.batches[self.used];
        (batch.script, batch.time) = (take.script, SmallVec::from_slice(take.time));
        batch.push(take, caller);
        self.used += 1;
    }

    /// Appends all calls, and adds the callers that wait for them. Returns how many takes are skipped because no caller
    /// waits for any take of their call.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>, awaited: &mut VecDeque<Awaited>) -> usize {
        let mut left_out = 0;
        for batch in &mut self.batches[..self.used] {
            if batch.callers.iter().all(oneshot::Sender::is_closed) {
                left_out += batch.callers.len();
                batch.callers.clear();
            } else {
                awaited.push_back(batch.write(out));
            }
            batch.keys.clear();
            batch.arguments.clear();
        }
        self.used = 0;
        self.batches.truncate(BATCHES_KEPT);
        left_out
    }
}

/// Takes by one script, at one time.
struct Batch {
    /// The script of all takes.
    script: &'static Script,
    /// `ARGV[1]` of the script: nine bytes, or empty for the server's clock.
    time: SmallVec<[u8; 9]>,
    /// The keys, each with its length, as they are written.
    keys: Vec<u8>,
    /// `ARGV[2]` of the script: the arguments of all takes, one after the other.
    arguments: Vec<u8>,
    /// The callers, in the order of their takes.
    callers: Vec<oneshot::Sender<Value>>,
}

impl Batch {
    /// An empty batch for takes like this one.
    fn of(take: &EncodedTake<'_>) -> Batch {
        let time = SmallVec::new();
        Batch { script: take.script, time, keys: Vec::new(), arguments: Vec::new(), callers: Vec::new() }
    }

    /// Whether the take can share the call of this batch, and the call is not full.
    fn fits(&self, take: &EncodedTake<'_>) -> bool {
        self.callers.len() < TAKES_MAX && self.script == take.script && self.time[..] == *take.time
    }

    /// Adds one take.
    fn push(&mut self, take: &EncodedTake<'_>, caller: oneshot::Sender<Value>) {
        write_bytes(take.key, &mut self.keys);
        self.arguments.extend_from_slice(take.argument);
        self.callers.push(caller);
    }

    /// Appends the call, and returns the callers. A single take is a call whose reply is not an array.
    fn write(&mut self, out: &mut Vec<u8>) -> Awaited {
        let takes = self.callers.len();
        write_length(b'*', 5 + takes, out);
        write_bytes(b"EVALSHA", out);
        write_bytes(self.script.sha().as_bytes(), out);
        write_bytes(decimal(takes, &mut [0; 20]), out);
        out.extend_from_slice(&self.keys);
        write_bytes(&self.time, out);
        write_bytes(&self.arguments, out);
        match self.callers.pop() {
            Some(caller) if takes == 1 => Awaited::One(caller),
            last => {
                self.callers.extend(last);
                Awaited::Each(std::mem::take(&mut self.callers))
            }
        }
    }
}

/// Appends a bulk string: `$3\r\nabc\r\n`.
fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_length(b'$', bytes.len(), out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends the line of a length: `*5\r\n` for an array of five elements, `$3\r\n` for a string of three bytes.
fn write_length(kind: u8, length: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(decimal(length, &mut [0; 20]));
    out.extend_from_slice(b"\r\n");
}

/// The digits of the number. It is faster than `write!`.
fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}
