//! Runs the traces of `spillgate_core` on a real Redis: recorded requests with the decisions that they must get.

use spillgate_core::conformance::{TRACES, run};
use spillgate_core::{Decision, Hit, Time, Verdict};
use spillgate_redis::{Decoded, LogForm, ScriptCall};

use crate::support::client::{Client, RedisServer, bytes, call};

fn decide(client: &mut Client, log: LogForm, now: Time, hits: &[Hit<'_>], decisions: &mut [Decision]) -> Verdict {
    let mut request = ScriptCall::with(Some(now), hits, log).expect("the request is well formed");
    loop {
        let reply = client.ask_one(call(&request));
        if let Decoded::Verdict(verdict) = request.decode(bytes(&reply), decisions).expect("the reply is valid") {
            return verdict;
        }
    }
}

#[test]
fn every_trace_is_decided_as_it_says() {
    let server = RedisServer::start();
    let mut client = server.connect();
    for log in [LogForm::Packed, LogForm::Zset] {
        let mut requests = 0;
        for trace in TRACES {
            client.ask_one(redis::cmd("FLUSHALL"));
            let decided = run(trace, |now, hits: &[Hit<'_>], decisions: &mut [Decision]| {
                decide(&mut client, log, now, hits, decisions)
            });
            requests += decided.unwrap_or_else(|error| panic!("{log:?}: {error}"));
        }
        assert!(requests > 300, "{requests} requests");
    }
}
