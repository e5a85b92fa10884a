//! Tests of snapshots: a restored store decides as the saved store does, and a file that is not a whole snapshot is
//! rejected.

use std::collections::BTreeMap;
use std::fs;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::Requests as _;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use spillgate_limiter::{
    Anchor, Binding, Decision, Denied, Hit, KeyHasher, Limiter, ManualClock, MemoryOptions, MemoryStore, OnFull, Op,
    Quota, QuotaBuilder, Receipt, Restored, SnapshotError, Time, Verdict,
};
use spillgate_testkit::Random;
use tempfile::TempDir;

const SECOND: Duration = Duration::from_secs(1);
const START_NS: u64 = 1_790_000_000_000_000_000;

fn at(ns: u64) -> Time {
    Time::from_nanos(START_NS + ns)
}

fn secret() -> KeyHasher {
    KeyHasher::with_secret([7; 16])
}

/// A folder, and the path of a snapshot in this folder.
struct File {
    folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new() -> File {
        let folder = TempDir::new().expect("the folder can be made");
        let path = folder.path().join("state");
        File { folder, path }
    }

    fn save(&self, store: &MemoryStore, now: Time) -> usize {
        let saved = store.save(&secret(), now, &self.path).expect("the store can be saved");
        assert_eq!(fs::metadata(&self.path).expect("the file can be read").len(), saved.bytes);
        saved.entries
    }

    fn restore(&self, options: MemoryOptions, now: Time) -> Result<(MemoryStore, Restored), SnapshotError> {
        MemoryStore::restored(options, now, &self.path).map(|(store, _, restored)| (store, restored))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("the folder can be read");
        entries.map(|entry| entry.expect("the entry can be read").file_name().to_string_lossy().into_owned()).collect()
    }
}

fn keys(max_keys: usize) -> MemoryOptions {
    MemoryOptions { max_keys, ..MemoryOptions::default() }
}

fn take(store: &MemoryStore, key: u128, quota: &Quota, now: Time) -> Decision {
    let mut decisions = [Decision::default()];
    store
        .decide_now(now, &[Hit::new(key, quota, Op::take(1), Binding::Enforce)], &mut decisions)
        .expect("the request is well formed");
    decisions[0]
}

/// Returns a hashed key. Its bits look random, as those of real keys do.
fn key(i: u64) -> u128 {
    secret().start().part(&i.to_le_bytes()).finish()
}

fn quotas() -> Vec<Quota> {
    let odd = Duration::from_nanos(1_000_000_007);
    let builders: Vec<QuotaBuilder> = vec![
        Quota::token_bucket(5, SECOND),
        Quota::token_bucket(8, odd).burst(3).denied(Denied::Charged),
        // The time for one unit of this quota is longer than two seconds. So its packed state stores the limit instead
        // of this time.
        Quota::token_bucket(1, Duration::from_nanos(86_400_000_000_007)).burst(2),
        Quota::token_bucket(5, SECOND).penalty(SECOND),
        Quota::fixed_window(5, SECOND),
        Quota::fixed_window(3, SECOND).penalty(Duration::from_millis(700)),
        Quota::fixed_window(5, odd).anchor(Anchor::FirstHit).soft_ppm(500_000),
        Quota::sliding_window_log(5, SECOND),
        Quota::sliding_window_log(2, odd).denied(Denied::Charged).penalty(SECOND),
        Quota::sliding_window_counter(5, SECOND),
        Quota::sliding_window_counter(4, odd).penalty(SECOND),
        Quota::sliding_window_counter(9, SECOND).segments(10),
        Quota::sliding_window_counter(7, SECOND).segments(128).penalty(SECOND),
        Quota::leaky_bucket(5, SECOND).queue(3),
        Quota::leaky_bucket(10, SECOND).queue(6).penalty(SECOND),
        Quota::concurrency(3).lease(SECOND),
        Quota::concurrency(5).lease(odd).penalty(SECOND),
    ];
    let quotas = builders.into_iter().filter_map(|quota| quota.build().ok());
    quotas.collect()
}

/// Random requests of several hits. Each answer depends on all earlier requests.
struct Traffic {
    quotas: Vec<Quota>,
    random: Random,
    now_ns: u64,
    receipts: Vec<Receipt>,
}

impl Traffic {
    /// Sends the next request to all `stores` and compares their answers.
    fn request(&mut self, stores: &[&MemoryStore]) -> Verdict {
        self.now_ns += self.random.step_ns();
        let hits = self.random.hits(&self.quotas, &self.receipts, key);
        let mut answers = stores.iter().map(|store| {
            let mut decisions = vec![Decision::default(); hits.len()];
            let verdict = store.decide_now(at(self.now_ns), &hits, &mut decisions).expect("the request is well formed");
            (verdict, decisions)
        });
        let (verdict, decisions) = answers.next().expect("there is at least one store");
        for other in answers {
            assert_eq!(other, (verdict, decisions.clone()), "{hits:?}");
        }
        self.receipts.extend(decisions.iter().filter_map(|decision| decision.receipt));
        self.receipts.drain(..self.receipts.len().saturating_sub(20));
        verdict
    }
}

#[test]
fn a_restored_store_decides_as_if_it_had_never_been_saved() {
    let file = File::new();
    let quotas = quotas();
    assert_eq!(quotas.len(), 17, "all 17 quotas are valid");
    let mut traffic = Traffic { quotas, random: Random(7), now_ns: 0, receipts: Vec::new() };
    let original = MemoryStore::new(MemoryOptions::default());
    let mut restored = MemoryStore::new(MemoryOptions::default());
    let (mut allowed, mut entries) = (0, 0);
    for round in 0..400 {
        for _ in 0..50 {
            allowed += u32::from(traffic.request(&[&original, &restored]).allowed);
        }
        // The newest restored store is saved, and its file is restored into a store with another number of shards.
        let saved = file.save(&restored, at(traffic.now_ns));
        let (store, report) =
            file.restore(keys([1_000, 200_000][round % 2]), at(traffic.now_ns)).expect("the snapshot is valid");
        assert_eq!((report.entries, report.expired, report.left_out), (saved, 0, 0));
        assert_eq!(report.taken_at, at(traffic.now_ns));
        entries += report.entries;
        restored = store;
    }
    assert!(
        (2_000..18_000).contains(&allowed),
        "many requests must be allowed, and many must be refused: {allowed} were allowed"
    );
    assert!(entries > 400 * 10, "only {entries} states were restored");
}

#[test]
fn many_keys_are_found_in_a_store_of_any_size() {
    let (file, keys_saved) = (File::new(), 100_000);
    let quotas = [
        Quota::fixed_window(9, SECOND * 3600).build().expect("the quota is valid"),
        Quota::sliding_window_counter(9, SECOND * 3600).build().expect("the quota is valid"),
        Quota::sliding_window_log(9, SECOND * 3600).build().expect("the quota is valid"),
    ];
    let quota_of = |i: u64| &quotas[if i % 10 < 8 { 0 } else { (i % 10 - 7) as usize }];
    let store = MemoryStore::new(keys(100_000));
    for i in 0..keys_saved {
        assert_eq!(take(&store, key(i), quota_of(i), at(0)).remaining, 8);
    }
    assert_eq!(file.save(&store, at(0)) as u64, keys_saved);
    for max_keys in [100_000, 1_000_000, 20_000_000] {
        let (store, report) = file.restore(keys(max_keys), at(0)).expect("the snapshot is valid");
        assert_eq!((report.entries as u64, store.len() as u64), (keys_saved, keys_saved));
        for i in 0..keys_saved {
            assert_eq!(take(&store, key(i), quota_of(i), at(0)).remaining, 7, "key {i} of {max_keys}");
        }
    }
}

#[test]
fn keys_that_are_numbers_are_found_too() {
    let (file, quota) = (File::new(), Quota::fixed_window(9, SECOND * 3600).build().expect("the quota is valid"));
    let store = MemoryStore::new(keys(1_000_000));
    for i in 0..5_000u128 {
        take(&store, i, &quota, at(0));
    }
    file.save(&store, at(0));
    let (store, report) = file.restore(keys(1_000_000), at(0)).expect("the snapshot is valid");
    assert_eq!(report.entries, 5_000);
    for i in 0..5_000u128 {
        assert_eq!(take(&store, i, &quota, at(0)).remaining, 7);
    }
}

#[test]
fn expired_states_are_dropped() {
    let (file, store) = (File::new(), MemoryStore::new(MemoryOptions::default()));
    let windows = [1, 10].map(|secs| Quota::fixed_window(5, SECOND * secs).build().expect("the quota is valid"));
    for i in 0..30 {
        take(&store, key(i), &windows[usize::from(i % 3 == 0)], at(0));
    }
    assert_eq!(file.save(&store, at(0)), 30);
    let (restored, report) = file.restore(MemoryOptions::default(), at(1_500_000_000)).expect("the snapshot is valid");
    assert_eq!((report.entries, report.expired, restored.len()), (10, 20, 10));
    assert_eq!(file.save(&store, at(1_500_000_000)), 10, "expired states are not written");
}

#[test]
fn after_a_clock_was_set_back_a_key_is_refused_no_longer_than_its_largest_debt() {
    let (file, store) = (File::new(), MemoryStore::new(MemoryOptions::default()));
    let bucket = Quota::token_bucket(2, SECOND).build().expect("the quota is valid");
    let year_ns = 31_536_000_000_000_000;
    for _ in 0..2 {
        take(&store, 1, &bucket, at(year_ns));
    }
    file.save(&store, at(year_ns));
    let (restored, _) = file.restore(MemoryOptions::default(), at(0)).expect("the snapshot is valid");
    assert!(!take(&restored, 1, &bucket, at(0)).allowed);
    // After the clock was set back, the debt of a restored state is at most the next power of two above `2 * F + 1 s`,
    // in nanoseconds. `F` = 1 s is the time to fill the bucket, so this power of two is 2^32. The key is refused until
    // the debt leaves space for one unit (500 ms).
    let most_ns = (1 << 32) - 500_000_000;
    assert!(!take(&restored, 1, &bucket, at(most_ns - 1)).allowed);
    assert!(take(&restored, 1, &bucket, at(most_ns)).allowed);
}

#[test]
fn a_smaller_store_restores_as_many_states_as_it_has_capacity_for() {
    let (file, store) = (File::new(), MemoryStore::new(MemoryOptions::default()));
    let quota = Quota::fixed_window(5, SECOND).build().expect("the quota is valid");
    let log = Quota::sliding_window_log(500, SECOND).build().expect("the quota is valid");
    for i in 0..100 {
        take(&store, key(i), &quota, at(0));
        (0..50).for_each(|ns| _ = take(&store, key(i), &log, at(ns)));
    }
    assert_eq!(file.save(&store, at(0)), 200);
    let (restored, report) = file.restore(keys(70), at(0)).expect("the snapshot is valid");
    assert_eq!((report.entries, report.left_out, restored.len()), (70, 130, 70));
    let few_bytes = MemoryOptions { max_keys: 1_000, max_heap_bytes: 10_000, on_full: OnFull::Deny };
    let (restored, report) = file.restore(few_bytes, at(0)).expect("the snapshot is valid");
    assert_eq!(report.entries + report.left_out, 200);
    assert!(
        (100..130).contains(&restored.len()),
        "all states of windows and a few states of logs are restored: {}",
        restored.len()
    );
}

/// Saves a small snapshot with all kinds of records, and returns its bytes.
fn small(file: &File) -> Vec<u8> {
    let store = MemoryStore::new(MemoryOptions::default());
    let quotas = quotas();
    for (i, quota) in (0..).zip(quotas.iter().filter(|quota| quota.identity() != quotas[12].identity())) {
        (0..3).for_each(|_| _ = take(&store, key(i), quota, at(0)));
    }
    assert_eq!(file.save(&store, at(0)), 16);
    fs::read(&file.path).expect("the file can be read")
}

#[test]
fn a_torn_file_is_rejected_wherever_it_is_torn() {
    let file = File::new();
    let whole = small(&file);
    for len in 0..whole.len() {
        fs::write(&file.path, &whole[..len]).expect("the file can be written");
        match file.restore(keys(100), at(0)) {
            Err(SnapshotError::NotASnapshot) => assert!(len < 16, "{len}"),
            Err(SnapshotError::Damaged(_)) => assert!(len >= 16, "{len}"),
            other => panic!("{len} of {} bytes: {other:?}", whole.len()),
        }
    }
    fs::write(&file.path, [&whole[..], &[0]].concat()).expect("the file can be written");
    assert!(file.restore(keys(100), at(0)).is_err(), "bytes after the end are an error");
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let file = File::new();
    let whole = small(&file);
    for byte in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[byte] ^= 1 << (byte % 8);
        fs::write(&file.path, flipped).expect("the file can be written");
        assert!(file.restore(keys(100), at(0)).is_err(), "a flipped bit in byte {byte} is an error");
    }
    fs::write(&file.path, &whole).expect("the file can be written");
    assert!(file.restore(keys(100), at(0)).is_ok());
}

/// Returns a snapshot file with these records and a correct checksum. Its header says that the file has `entries`
/// entries from narrow slots (three words each), and the same number from wide slots (five words each).
fn forged(records: &[Vec<u64>], entries: u64) -> Vec<u8> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut bytes = [&b"spillgate state\n"[..], &words(&[2, START_NS]), &[7; 16], &words(&[entries, entries])].concat();
    for record in records {
        bytes.push(record[0] as u8);
        bytes.extend(words(&record[1..]));
    }
    bytes.push(0);
    bytes.extend(words(&[records.len() as u64]));
    let mut checksum = SipHasher13::new();
    checksum.write(&bytes);
    bytes.extend(checksum.finish128().as_bytes());
    bytes
}

#[test]
fn a_correct_checksum_is_not_enough() {
    let (file, end) = (File::new(), START_NS + 1_000_000_000);
    let restore = |records: &[Vec<u64>], entries| {
        fs::write(&file.path, forged(records, entries)).expect("the file can be written");
        file.restore(keys(1_000_000), at(0)).map(|(_, report)| report.entries)
    };
    let (narrow, narrow_in_slab, wide, wide_in_slab) = (1, 2, 3, 4);
    let window = vec![narrow, 9, 1 << 40, end, 5];
    let counter = vec![wide, 9, 9, end, 5, 5];
    let log = vec![narrow_in_slab, 10, 0, end, 5, 4, 0, 0, START_NS, 1];
    let all = [window.clone(), counter, log.clone()];
    // The header says that there are many entries, but the file has only three. No memory is allocated for the missing
    // entries.
    assert!(matches!(restore(&all, u64::MAX), Ok(3)));
    let wrong = [
        vec![9, 9, 0, end, 5],
        vec![narrow, 0, 0, end, 5],
        vec![narrow, 9, 1, end, 5],
        vec![narrow, 9, 0, 0, 5],
        vec![narrow, 9, 0, u64::MAX, 5],
        vec![narrow, 9, 0, end, (1 << 40) + 1],
        vec![narrow, 9, 0, end, u64::MAX],
        vec![wide, 9, 0, end, 5, u64::MAX],
        vec![narrow_in_slab, 10, 0, end, 5, 4, 0, 0, START_NS, 0],
        vec![narrow_in_slab, 10, 0, end, u64::MAX, 4, 0, 0, START_NS, 1],
        vec![wide_in_slab, 10, 0, 0, 3, 0, 0, 0],
        window.clone(),
    ];
    for record in wrong {
        let result = restore(&[window.clone(), log.clone(), record.clone()], 3);
        assert!(matches!(result, Err(SnapshotError::Damaged(_))), "{record:?}: {result:?}");
    }
    // These keys differ so little that all of them have the same home bucket, and no table is large enough to separate
    // them. Real keys are hashed, so they are never so similar.
    let crowd: Vec<Vec<u64>> = (1..=1_000).map(|high| vec![narrow, high, 0, end, 5]).collect();
    assert!(matches!(restore(&crowd, 1_000), Err(SnapshotError::Damaged(_))));
}

#[test]
fn other_files_and_other_formats_are_different_errors() {
    let file = File::new();
    let restore = || file.restore(MemoryOptions::default(), at(0)).expect_err("the file is not a snapshot");
    assert!(matches!(restore(), SnapshotError::Io(error) if error.kind() == std::io::ErrorKind::NotFound));
    for other in ["", "domain: api\n", "spillgate state", &"x".repeat(100_000)] {
        fs::write(&file.path, other).expect("the file can be written");
        assert!(matches!(restore(), SnapshotError::NotASnapshot), "{other:.20}");
    }
    let mut newer = small(&file);
    newer[16] = 9;
    fs::write(&file.path, newer).expect("the file can be written");
    assert_eq!(restore().to_string(), "the snapshot has format 9, and this version reads format 2");
    fs::remove_file(&file.path).expect("the file can be removed");
    fs::create_dir(&file.path).expect("the folder can be made");
    assert!(matches!(restore(), SnapshotError::NotASnapshot));
    assert!(MemoryStore::restored(MemoryOptions::default(), at(0), Path::new("/dev/zero")).is_err());
}

#[test]
fn a_save_that_fails_keeps_the_last_snapshot_and_leaves_no_draft() {
    let file = File::new();
    let whole = small(&file);
    let store = MemoryStore::new(MemoryOptions::default());
    assert!(store.save(&secret(), at(0), &file.path.join("below")).is_err());
    assert!(store.save(&secret(), at(0), &file.folder.path().join("none/state")).is_err());
    assert!(store.save(&secret(), at(0), Path::new("/")).is_err());
    assert_eq!(fs::read(&file.path).expect("the file is still there"), whole);
    // A process that was killed can leave its draft file. This draft must not prevent the next save.
    fs::write(file.folder.path().join("state.draft"), "half").expect("the file can be written");
    assert_eq!(file.save(&store, at(0)), 0);
    assert_eq!(file.names(), ["state"]);
}

#[cfg(unix)]
#[test]
fn only_the_owner_may_read_a_snapshot() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = File::new();
    fs::write(&file.path, "anybody may read this").expect("the file can be written");
    fs::set_permissions(&file.path, fs::Permissions::from_mode(0o644)).expect("the mode can be set");
    small(&file);
    assert_eq!(fs::metadata(&file.path).expect("the file can be read").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_limiter_finds_its_keys_again() {
    let (file, clock) = (File::new(), ManualClock::at(at(0)));
    let quota = Quota::fixed_window(5, SECOND * 60).build().expect("the quota is valid");
    let limiter = Limiter::with_clock(MemoryStore::new(MemoryOptions::default()), clock.clone());
    assert_eq!(limiter.take_now(&quota, ("login", "user-7"), 3).remaining, 2);
    assert_eq!(limiter.save(&file.path).expect("the store can be saved").entries, 1);
    drop(limiter);
    let (limiter, _) = Limiter::restored(MemoryOptions::default(), clock, &file.path).expect("the snapshot is valid");
    assert_eq!(limiter.take_now(&quota, ("login", "user-7"), 1).remaining, 1);
    assert_eq!(limiter.take_now(&quota, ("login", "user-8"), 1).remaining, 4);
}

/// During the test, up to 100,000 new keys make the tables grow.
#[test]
fn a_snapshot_under_load_has_each_key_once_as_it_was_at_some_time() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 6;
    const KEYS: u64 = 1_000;
    const MOST_NEW_KEYS: u64 = 100_000;
    const LIMIT: u64 = 1_000_000;
    let quotas = [
        Quota::fixed_window(LIMIT, SECOND * 3600).build().expect("the quota is valid"),
        Quota::sliding_window_counter(LIMIT, SECOND * 3600).build().expect("the quota is valid"),
        Quota::sliding_window_counter(LIMIT, SECOND * 3600).segments(10).build().expect("the quota is valid"),
    ];
    let store = MemoryStore::new(keys(1_000_000));
    let (begun, ended): (Vec<AtomicU64>, Vec<AtomicU64>) = (0..KEYS).map(|_| Default::default()).unzip();
    let (done, new_keys) = (AtomicBool::new(false), AtomicU64::new(0));
    let file = File::new();
    let mut seen = 0;
    std::thread::scope(|scope| {
        for worker in 0..THREADS {
            let (store, quotas, begun, ended, done, new_keys) = (&store, &quotas, &begun, &ended, &done, &new_keys);
            scope.spawn(move || {
                let mut random = Random(worker + 1);
                while !done.load(Ordering::SeqCst) {
                    let i = random.below(KEYS);
                    begun[i as usize].fetch_add(1, Ordering::SeqCst);
                    take(store, key(i), &quotas[i as usize % 3], at(0));
                    ended[i as usize].fetch_add(1, Ordering::SeqCst);
                    if new_keys.load(Ordering::SeqCst) < MOST_NEW_KEYS {
                        take(store, key(KEYS + new_keys.fetch_add(1, Ordering::SeqCst)), &quotas[0], at(0));
                    }
                }
            });
        }
        for _ in 0..ROUNDS {
            let least: Vec<u64> = ended.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            file.save(&store, at(0));
            let most: Vec<u64> = begun.iter().map(|n| n.load(Ordering::SeqCst)).collect();
            // If the snapshot had a key twice, `restore` would return an error.
            let (restored, _) = file.restore(keys(1_000_000), at(0)).expect("the snapshot is valid");
            for i in 0..KEYS {
                let used = LIMIT - 1 - take(&restored, key(i), &quotas[i as usize % 3], at(0)).remaining;
                let (least, most) = (least[i as usize], most[i as usize]);
                assert!((least..=most).contains(&used), "key {i}: {used} units, expected {least} to {most}");
                seen += used;
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(seen > 0 && new_keys.into_inner() > 1_000, "requests were decided while the snapshots were written");
    let all: BTreeMap<u64, u64> = (0..KEYS).map(|i| (i, ended[i as usize].load(Ordering::SeqCst))).collect();
    file.save(&store, at(0));
    let (restored, _) = file.restore(keys(1_000_000), at(0)).expect("the snapshot is valid");
    for (i, used) in all {
        assert_eq!(
            LIMIT - 1 - take(&restored, key(i), &quotas[i as usize % 3], at(0)).remaining,
            used,
            "a snapshot that is saved without load has the exact counts"
        );
    }
}
