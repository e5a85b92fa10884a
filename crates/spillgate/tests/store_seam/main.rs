//! Proves the store seam before anything grows on it: a store outside this process, on a real
//! Redis, decides requests of two limits each exactly as the memory store does.

#[path = "../support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use spillgate::{
    Binding, Decision, Hit, MemoryOptions, MemoryStore, Op, OpKind, Quota, State, Store, StoreError, Time, Verdict,
    decide,
};
use support::Random;

const DECISIONS: u32 = 10_000;

/// A Redis of the test's own on a free port; ends with the test.
struct RedisServer {
    process: Child,
    port: u16,
}

impl RedisServer {
    fn start() -> RedisServer {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let mut process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is installed (Debian package redis-server; `make test` installs it)");
        let log = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let ready = log.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept connections"));
        assert!(ready, "redis-server ended before it was ready");
        RedisServer { process, port }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Token buckets in Redis, decided by one script a request.
struct RedisBuckets {
    connection: Mutex<redis::Connection>,
    script: redis::Script,
}

impl RedisBuckets {
    fn connect(port: u16) -> RedisBuckets {
        let client = redis::Client::open(("127.0.0.1", port)).expect("an address");
        let connection = Mutex::new(client.get_connection().expect("redis-server answers"));
        RedisBuckets { connection, script: redis::Script::new(include_str!("take.lua")) }
    }

    /// Runs the script: whether it charged, and each bucket as it was before.
    fn run(&self, now: Time, hits: &[Hit<'_>]) -> redis::RedisResult<(bool, Vec<State>)> {
        let mut call = self.script.prepare_invoke();
        push_time(&mut call, now.as_nanos());
        for hit in hits {
            let Op::Take { cost, .. } = hit.op else { panic!("the spike only takes") };
            call.key(format!("{:032x}", hit.state_key()));
            push_time(&mut call, cost * hit.quota.interval_ns());
            push_time(&mut call, hit.quota.hard_capacity() * hit.quota.interval_ns());
        }
        let mut connection = self.connection.lock().expect("no other test panicked");
        let reply: Vec<redis::Value> = call.invoke(&mut *connection)?;
        let charged: u32 = redis::from_redis_value(reply[0].clone())?;
        let states = reply[1..].iter().zip(hits).map(|(raw, hit)| {
            let raw: String = redis::from_redis_value(raw.clone())?;
            let Some((us, ns)) = raw.split_once(':') else { return Ok(State::default()) };
            let nanos = us.parse::<u64>().expect("digits") * 1000 + ns.parse::<u64>().expect("digits");
            Ok(State::from_bucket(Time::from_nanos(nanos), hit.quota.interval_ns()))
        });
        Ok((charged == 1, states.collect::<redis::RedisResult<_>>()?))
    }
}

fn push_time(call: &mut redis::ScriptInvocation<'_>, nanos: u64) {
    call.arg(nanos / 1000).arg(nanos % 1000);
}

impl Store for RedisBuckets {
    fn supports(&self, quota: &Quota, op: OpKind) -> bool {
        quota.supports(op) && op == OpKind::Take
    }

    /// The script checks and charges atomically; the kernel works out the answer from the states
    /// before, and has to come to the same verdict.
    async fn decide(&self, now: Option<Time>, hits: &[Hit<'_>], out: &mut [Decision]) -> Result<Verdict, StoreError> {
        let now = now.ok_or(StoreError::Malformed("the spike is told the time"))?;
        let (charged, mut states) = self.run(now, hits).map_err(|e| StoreError::Unavailable(e.to_string()))?;
        let state_of: Vec<usize> = (0..hits.len()).collect();
        let verdict = decide(&mut states, &state_of, hits, now, out);
        assert_eq!(verdict.allowed, charged, "script and kernel agree");
        Ok(verdict)
    }
}

#[tokio::test]
async fn two_limits_in_one_script_decide_as_the_memory_store() {
    let server = RedisServer::start();
    let stores = (RedisBuckets::connect(server.port), MemoryStore::new(MemoryOptions::default()));
    let quotas = [
        Quota::per_second(3).burst(5).build().expect("valid"),
        Quota::token_bucket(7, Duration::from_nanos(10_007)).build().expect("valid"),
        Quota::per_day(150).build().expect("valid"),
    ];
    let (mut random, mut now_ns, mut allowed) = (Random(42), 1_790_000_000_000_000_007, 0);
    for i in 0..DECISIONS {
        now_ns += match random.below(4) {
            0 => 0,
            1 => random.below(3_000),
            2 => random.below(400_000_000),
            _ => random.below(90_000_000_000),
        };
        let (first, key) = (random.below(3) as usize, u128::from(random.below(3)));
        let pair = [&quotas[first], &quotas[(first + 1) % 3]];
        let hits = pair.map(|q| Hit::new(key, q, Op::take(1 + random.below(2)), Binding::Enforce));
        let now = Some(Time::from_nanos(now_ns));
        let (mut in_redis, mut in_memory) = ([Decision::default(); 2], [Decision::default(); 2]);
        let by_redis = stores.0.decide(now, &hits, &mut in_redis).await.expect("Redis answers");
        let by_memory = stores.1.decide(now, &hits, &mut in_memory).await.expect("memory answers");
        assert_eq!((by_redis, in_redis), (by_memory, in_memory), "decision {i}");
        allowed += u32::from(by_redis.allowed);
    }
    assert!((DECISIONS / 10..DECISIONS * 9 / 10).contains(&allowed), "both answers are common: {allowed} allowed");
}
