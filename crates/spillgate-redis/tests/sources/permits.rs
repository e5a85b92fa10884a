//! Tests permits that several programs share. A permit is renewed while a program holds it. After a crash, it becomes
//! free when its lease ends.

use std::sync::Arc;

use super::*;
use spillgate::{KeyHasher, Limiter, SystemClock};
use tokio::runtime::Builder;

/// The lease is so long that even a busy machine renews it in time.
const LEASE: Duration = Duration::from_secs(6);
const JOBS: Quota = Quota::concurrency(1).lease(LEASE).constant();

type Program = Arc<Limiter<RedisStore, SystemClock>>;

fn program(server: &Server) -> Program {
    Arc::new(Limiter::with_keys(redis(server), SystemClock::start(), KeyHasher::with_secret([7; 16])))
}

async fn is_free(program: &Program) -> bool {
    program.peek(&JOBS, "job").await.expect("the store answers").remaining == 1
}

/// Polls until the permit is free.
async fn until_free(program: &Program) {
    let deadline = Instant::now() + PATIENCE;
    while !is_free(program).await {
        assert!(Instant::now() < deadline, "the permit does not become free");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_permit_is_renewed_until_it_is_dropped() {
    let server = Server::start();
    let (first, second) = (program(&server), program(&server));
    let (_, permit) = first.hold(&JOBS, "job").await.expect("the store answers");
    let permit = permit.expect("the permit is free");
    // A renewal moves the end of the lease. The second renewal shows that this goes on.
    let ends_ms = || reply_to::<u64>(&server, &["PEXPIRETIME", &keys(&server)[0]]);
    for _ in 0..2 {
        let (before, deadline) = (ends_ms(), Instant::now() + PATIENCE);
        while ends_ms() == before {
            assert!(Instant::now() < deadline, "the permit is not renewed");
            sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(permit.is_held(), "it was renewed");
    let (decision, none) = second.hold(&JOBS, "job").await.expect("the store answers");
    assert!(!decision.allowed && none.is_none());
    drop(permit);
    until_free(&second).await;
}

/// The end of a runtime ends all its tasks, as a crash does.
#[test]
fn a_crash_frees_its_permit_when_the_lease_ends() {
    let server = Server::start();
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts");
    let (crashes, lives) = (runtime(), runtime());
    let begun = Instant::now();
    let (_, permit) = crashes.block_on(async { program(&server).hold(&JOBS, "job").await }).expect("the store answers");
    let permit = permit.expect("the permit is free");
    crashes.shutdown_timeout(PATIENCE);
    assert!(!permit.is_held(), "nothing renews it");
    drop(permit);
    lives.block_on(async {
        let program = program(&server);
        until_free(&program).await;
        assert!(begun.elapsed() >= LEASE, "the permit is free after {:?}, before its lease ends", begun.elapsed());
    });
}
