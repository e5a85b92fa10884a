//! Windows by a native command, of servers that do not have it.

use std::time::Duration;

use spillgate_core::{Anchor, Op, OpKind, Quota, Store};
use spillgate_redis::{ErrorKind, FixedWindow, RedisStore, SCRIPT_COMMANDS, Settings};

use crate::support::RedisServer;
use crate::{ask, settings};

#[tokio::test]
async fn a_server_without_the_command_is_asked_as_if_nothing_had_been_said() {
    let server = RedisServer::start();
    let quota = Quota::fixed_window(5, Duration::from_secs(86_400)).anchor(Anchor::FirstHit).build().expect("valid");
    for (key, scripts) in [(1, true), (2, false)] {
        let settings = Settings { fixed_window: FixedWindow::Native, scripts, ..settings(&server) };
        let store = RedisStore::new(&settings).expect("an address");
        assert_eq!(store.fixed_window(), FixedWindow::Native, "nobody has said otherwise yet");
        assert!(store.supports(&quota, OpKind::Take) && !store.supports(&quota, OpKind::Refund));
        for left in (0..5).rev() {
            let (verdict, decision) = ask(&store, key, &quota, Op::take(1)).await;
            assert_eq!((verdict.allowed, decision.remaining), (true, left));
            assert_eq!(store.fixed_window(), FixedWindow::Script);
        }
        assert!(!ask(&store, key, &quota, Op::take(1)).await.0.allowed);
        assert_eq!(ask(&store, key, &quota, Op::Peek).await.1.remaining, 0);
        let looks = RedisStore::new(&settings).expect("an address");
        for (key, left) in [(key, 0), (key + 10, 5)] {
            assert_eq!(ask(&looks, key, &quota, Op::Peek).await.1.remaining, left, "by one that has not taken");
        }
        assert!(ErrorKind::ALL.iter().all(|class| store.failures(*class) == 0));
    }
}

#[tokio::test]
async fn without_the_command_nobody_needs_the_right_to_the_others() {
    let server = RedisServer::start();
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "limiter", "reset", "on", ">secret", "~sg:*", "+evalsha", "+script|load"]);
    user.arg(SCRIPT_COMMANDS.map(|command| format!("+{}", command.to_lowercase())).to_vec());
    server.connect().ask_one(user);
    let url = format!("redis://limiter:secret@127.0.0.1:{}/", server.port());
    let settings = Settings { url, fixed_window: FixedWindow::Native, ..settings(&server) };
    let store = RedisStore::new(&settings).expect("an address");
    let quota = Quota::fixed_window(2, Duration::from_secs(86_400)).anchor(Anchor::FirstHit).build().expect("valid");
    for left in (0..2).rev() {
        let (verdict, decision) = ask(&store, 1, &quota, Op::take(1)).await;
        assert_eq!((verdict.allowed, decision.remaining), (true, left), "MULTI is refused, and INCREX not known");
    }
    assert!(!ask(&store, 1, &quota, Op::take(1)).await.0.allowed);
    assert!(ErrorKind::ALL.iter().all(|class| store.failures(*class) == 0));
}
