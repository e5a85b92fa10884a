//! Loads any file as a snapshot. The result must be an error with a text, or a store. This store must not admit more
//! than an empty store, and it must be possible to save it again.
//!
//! A disk can return wrong bytes, and a user can change the file. So the bytes must be checked like bytes from a
//! network.

#![no_main]

use std::fs;
use std::hash::Hasher;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use siphasher::sip128::{Hasher128, SipHasher13};
use spillgate::{
    Anchor, Binding, Decision, Denied, Hit, KeyHasher, MemoryOptions, MemoryStore, OnFull, Op, Quota, Receipt,
    SnapshotError, Time, Wait,
};

#[path = "../../bench/inprocess/src/allocator.rs"]
mod allocator;

#[global_allocator]
static ALLOCATOR: allocator::Counting = allocator::Counting;

/// How many bytes of memory loading may use for a file of any length. Buffers and empty tables use this memory.
const FIXED_BYTES: usize = 512 * 1024;
/// How many more bytes of memory loading may use for each byte of the file. This number is large for two reasons. While
/// a table grows, its old copy and its new copy both use memory. If many keys need slots in the same few buckets, a table
/// grows although only a sixteenth of it is used.
const BYTES_PER_BYTE: usize = 64;
const OPTIONS: MemoryOptions = MemoryOptions { max_keys: 100_000, max_heap_bytes: 1 << 24, on_full: OnFull::Deny };
const START_NS: u64 = 1_790_000_000_000_000_000;
/// The format of the snapshots that this version writes.
const FORMAT: u64 = 2;
const CHECKSUM_BYTES: usize = 16;

#[derive(Arbitrary, Debug)]
struct Input {
    file: FilePlan,
    now: NumberPlan,
    later_ns: u64,
    receipt: (NumberPlan, NumberPlan),
}

#[derive(Arbitrary, Debug)]
enum FilePlan {
    /// Any bytes.
    Any(Vec<u8>),
    /// A snapshot that was altered.
    Altered(Vec<Edit>),
    /// A snapshot that was altered and then got a correct checksum.
    Forged(Vec<Edit>),
    /// Any records with a correct header and checksum. `entries` are two numbers in the header. The store has tables
    /// with narrow slots and tables with wide slots, and the header has the number of keys in either kind of table.
    Records { entries: (NumberPlan, NumberPlan), records: Vec<RecordPlan> },
}

#[derive(Arbitrary, Debug)]
enum Edit {
    Byte { at: u16, byte: u8 },
    Number { at: u16, number: NumberPlan },
    Cut { at: u16, len: u8 },
    Repeat { at: u16, len: u8 },
}

#[derive(Arbitrary, Debug)]
struct RecordPlan {
    kind: u8,
    high: NumberPlan,
    low: u32,
    expires_at: NumberPlan,
    numbers: Vec<NumberPlan>,
}

/// A number that this target chooses. In a snapshot, small numbers, times near `START_NS` and numbers near a power of
/// two are more often valid than random numbers.
#[derive(Arbitrary, Debug, Clone, Copy)]
enum NumberPlan {
    Small(u8),
    Near(i32),
    AroundPower(u8, i8),
    Any(u64),
}

impl NumberPlan {
    fn number(self) -> u64 {
        match self {
            NumberPlan::Small(number) => u64::from(number),
            NumberPlan::Near(ns) => START_NS.wrapping_add_signed(i64::from(ns)),
            NumberPlan::AroundPower(power, by) => (1u64 << (power % 64)).wrapping_add_signed(i64::from(by)),
            NumberPlan::Any(number) => number,
        }
    }
}

impl Edit {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let range = |at: u16, len: usize| {
            let from = usize::from(at).min(bytes.len());
            from..(from + len).min(bytes.len())
        };
        match *self {
            Edit::Byte { at, byte } => {
                let range = range(at, 1);
                bytes[range].fill(byte);
            }
            Edit::Number { at, number } => {
                let range = range(at, 8);
                let number = number.number().to_le_bytes();
                let len = range.len();
                bytes[range].copy_from_slice(&number[..len]);
            }
            Edit::Cut { at, len } => drop(bytes.drain(range(at, usize::from(len)))),
            Edit::Repeat { at, len } => {
                let range = range(at, usize::from(len));
                let piece = bytes[range.clone()].to_vec();
                bytes.splice(range.start..range.start, piece);
            }
        }
    }
}

impl FilePlan {
    fn bytes(&self) -> Vec<u8> {
        let edited = |len: usize, edits: &[Edit]| {
            let mut bytes = BASE.file[..len].to_vec();
            edits.iter().take(8).for_each(|edit| edit.apply(&mut bytes));
            bytes
        };
        match self {
            FilePlan::Any(bytes) => bytes.clone(),
            FilePlan::Altered(edits) => edited(BASE.file.len(), edits),
            FilePlan::Forged(edits) => with_checksum(edited(BASE.file.len() - CHECKSUM_BYTES, edits)),
            FilePlan::Records { entries, records } => {
                let mut bytes = b"spillgate state\n".to_vec();
                push(&mut bytes, &[FORMAT, START_NS, 7, 7, entries.0.number(), entries.1.number()]);
                records.iter().for_each(|record| record.write(&mut bytes));
                bytes.push(0);
                push(&mut bytes, &[records.len() as u64]);
                with_checksum(bytes)
            }
        }
    }
}

impl RecordPlan {
    fn write(&self, bytes: &mut Vec<u8>) {
        let kind = self.kind % 5;
        let low = u64::from(self.low) << if kind < 3 { 40 } else { 0 };
        let numbers = self.numbers.iter().map(|plan| plan.number());
        bytes.push(kind);
        push(bytes, &[self.high.number(), low, self.expires_at.number()]);
        let numbers: Vec<u64> = match kind {
            1 => numbers.chain([1]).take(1).collect(),
            3 => numbers.chain([1, 1]).take(2).collect(),
            _ => [self.numbers.len() as u64].into_iter().chain(numbers).collect(),
        };
        push(bytes, &numbers);
    }
}

fn push(bytes: &mut Vec<u8>, numbers: &[u64]) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut checksum = SipHasher13::new();
    checksum.write(&bytes);
    bytes.extend(checksum.finish128().as_bytes());
    bytes
}

/// A store with states of all kinds, and the snapshot of this store.
struct Base {
    quotas: Vec<Quota>,
    file: Vec<u8>,
    path: PathBuf,
}

static BASE: LazyLock<Base> = LazyLock::new(|| {
    // A save waits until the disk has the file. A file in memory needs no such wait.
    let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
    let folder = memory.unwrap_or_else(std::env::temp_dir);
    let path = folder.join(format!("spillgate-fuzz-{}", std::process::id()));
    let (quotas, store) = (quotas(), MemoryStore::new(OPTIONS));
    for (key, used) in KEYS {
        for quota in &quotas {
            // Some of these takes exceed the limit, so that the snapshot has penalties too.
            for ns in 0..used {
                take(&store, key, quota, Time::from_nanos(START_NS + ns));
            }
        }
    }
    store
        .save(&KeyHasher::with_secret([7; 16]), Time::from_nanos(START_NS), &path)
        .expect("the base store can be saved");
    let file = fs::read(&path).expect("the saved file can be read");
    Base { quotas, file, path }
});

/// The keys of the base store, each with the number of takes (requests for one unit) under each quota.
const KEYS: [(u128, u64); 4] = [(0, 0), (1 << 64 | 9, 1), (3 << 90 | 5, 2), (7 << 70 | 1, 12)];

fn quotas() -> Vec<Quota> {
    let second = Duration::from_secs(1);
    let builders = [
        Quota::token_bucket(5, second),
        Quota::token_bucket(8, second).burst(3).denied(Denied::Charged),
        Quota::token_bucket(1, Duration::from_nanos(86_400_000_000_007)).burst(2),
        Quota::token_bucket(5, second).penalty(second),
        Quota::fixed_window(5, second),
        Quota::fixed_window(5, second).anchor(Anchor::FirstHit).soft_ppm(500_000),
        Quota::sliding_window_log(5, second),
        Quota::sliding_window_counter(5, second),
        Quota::sliding_window_counter(9, second).segments(10),
        Quota::sliding_window_counter(7, second).segments(128).penalty(second),
        Quota::leaky_bucket(5, second).queue(3),
        Quota::concurrency(3).lease(second),
    ];
    builders.into_iter().map(|quota| quota.build().expect("the quota is valid")).collect()
}

fn decide(store: &MemoryStore, key: u128, quota: &Quota, op: Op, now: Time) -> Decision {
    let decision = store.hit_now(now, &Hit::new(key, quota, op, Binding::Enforce));
    assert_eq!(decision.limit, quota.capacity());
    assert!(decision.remaining <= decision.limit, "{quota:?} {op:?}: {decision:?}");
    assert_eq!(decision.allowed, decision.retry_after == Wait::NONE, "{quota:?} {op:?}: {decision:?}");
    decision
}

fn take(store: &MemoryStore, key: u128, quota: &Quota, now: Time) -> bool {
    decide(store, key, quota, Op::take(1), now).allowed
}

/// Checks that the store admits no more units of a key at one instant than the quota allows for a new key.
fn admits_no_more_than_an_empty_store(store: &MemoryStore, quotas: &[Quota], now: Time) {
    for quota in quotas {
        for (key, _) in KEYS {
            let most = quota.hard_capacity();
            let admitted = (0..=most).take_while(|_| take(store, key, quota, now)).count() as u64;
            assert!(admitted <= most, "{admitted} units were admitted, but at most {most} are allowed: {quota:?}");
        }
    }
}

fuzz_target!(|input: Input| {
    let Base { quotas, file, path } = &*BASE;
    let bytes = input.file.bytes();
    fs::write(path, &bytes).expect("the file can be written");
    let now = Time::from_nanos(input.now.number());
    let (live, peak) = (allocator::live_bytes(), allocator::peak_bytes());
    let restored = MemoryStore::restored(OPTIONS, now, path);
    fs::remove_file(path).expect("the file can be removed");
    if allocator::peak_bytes() > peak {
        let used = allocator::peak_bytes() - live;
        assert!(
            used <= FIXED_BYTES + BYTES_PER_BYTE * bytes.len(),
            "loading used {used} bytes for a file of {} bytes",
            bytes.len()
        );
    }
    let (store, hasher, report) = match restored {
        Ok(restored) => restored,
        Err(SnapshotError::Io(error)) => panic!("the file cannot be read: {error}"),
        Err(SnapshotError::Format(_)) if matches!(input.file, FilePlan::Records { .. }) => {
            panic!("this version does not read the format {FORMAT}: set FORMAT to the present format")
        }
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(
        !matches!(input.file, FilePlan::Altered(_)) || bytes == *file,
        "the file was altered, and the checksum did not show that"
    );
    assert_eq!(store.len(), report.entries);
    let saved = store.save(&hasher, now, path).expect("the restored store can be saved");
    let (again, _, report) = MemoryStore::restored(OPTIONS, now, path).expect("the new snapshot is valid");
    fs::remove_file(path).expect("the file can be removed");
    assert_eq!((again.len(), report.expired, report.left_out), (saved.entries, 0, 0));
    let receipt = Receipt::new(Time::from_nanos(input.receipt.0.number()), input.receipt.1.number());
    let refund = Op::Refund { cost: 1, receipt: Some(receipt) };
    for op in [Op::Peek, Op::Renew { receipt }, refund, Op::Force { cost: u64::MAX }] {
        for (key, _) in KEYS {
            quotas.iter().for_each(|quota| _ = decide(&again, key, quota, op, now));
        }
    }
    let later = now.after(Duration::from_nanos(input.later_ns));
    for (store, now) in [(&store, now), (&store, later), (&again, later)] {
        admits_no_more_than_an_empty_store(store, quotas, now);
    }
});
