//! Collects takes that are sent together. One call of a script decides all these takes, each independently of the
//! others. Compared with a call for each take, this can halve the work of Redis.
//!
//! Takes share a call if they have the same script and the same time. The time is almost always empty: the clock of
//! Redis then sets it. Three takes on buckets become this call:
//!
//! ```text
//! EVALSHA <sha of take_bucket> 3 <key 1> <key 2> <key 3> <time or empty> <argument 1, 2 and 3 together>
//! ```
//!
//! The reply is an array of three elements. Each element is the reply to one take, or an error of this take.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::command::request::EncodedTake;
use crate::command::script::Script;
use crate::connection::reply::ReplySender;

/// The maximum number of takes in one call. While Redis executes a call, all its other clients wait. This maximum
/// bounds their wait to 0.1 to 0.2 ms.
const TAKES_MAX: usize = 32;
/// A new take is compared with this many batches, and as many are kept for reuse. This is enough: as long as the clock
/// of Redis sets the time, there are only three kinds of batches, one for each script that can decide several takes.
const BATCHES_KEPT: usize = 4;

/// The callers that wait for the reply to a command.
pub(crate) enum Awaited {
    /// One caller waits for the whole reply.
    One(ReplySender),
    /// Each caller waits for one element of the reply.
    Each(Vec<ReplySender>),
}

impl Awaited {
    /// Returns the number of callers.
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
    /// The number of batches that contain takes. These batches come first.
    used: usize,
}

impl Batches {
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Adds a take to a batch that it fits in, or to a new batch. Only the last [`BATCHES_KEPT`] batches are searched,
    /// so the cost of a push has a bound.
    pub(crate) fn push(&mut self, take: &EncodedTake<'_>, caller: ReplySender) {
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

    /// Appends all calls, and adds their callers to `awaited`. A call is skipped if no caller waits for any of its
    /// takes. Returns the number of takes in skipped calls.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>, awaited: &mut VecDeque<Awaited>) -> usize {
        let mut left_out = 0;
        for batch in &mut self.batches[..self.used] {
            if batch.callers.iter().all(ReplySender::has_left) {
                left_out += batch.callers.len();
                batch.callers.drain(..).for_each(ReplySender::discard);
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

/// Takes with the same script and the same time.
struct Batch {
    script: &'static Script,
    /// `ARGV[1]` of the script: nine bytes, or empty for the clock of Redis.
    time: SmallVec<[u8; 9]>,
    /// The keys as they are sent, each after its length.
    keys: Vec<u8>,
    /// `ARGV[2]` of the script: the arguments of all takes, one after the other.
    arguments: Vec<u8>,
    /// The callers, in the order of their takes.
    callers: Vec<ReplySender>,
}

impl Batch {
    fn of(take: &EncodedTake<'_>) -> Batch {
        let time = SmallVec::new();
        Batch { script: take.script, time, keys: Vec::new(), arguments: Vec::new(), callers: Vec::new() }
    }

    /// Returns whether the take can share the call of this batch, and the call is not full.
    fn fits(&self, take: &EncodedTake<'_>) -> bool {
        self.callers.len() < TAKES_MAX && self.script == take.script && self.time[..] == *take.time
    }

    fn push(&mut self, take: &EncodedTake<'_>, caller: ReplySender) {
        write_bytes(take.key, &mut self.keys);
        self.arguments.extend_from_slice(take.argument);
        self.callers.push(caller);
    }

    /// Appends the call, and returns the callers. The reply to a call with a single take is not an array, so its caller
    /// gets the whole reply.
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

/// Returns the decimal digits of the number. This function is faster than `write!`.
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
