//! A gRPC server on tonic that asks Redis in the simplest way: one script call for each descriptor of a request.
//!
//! While a call waits for its reply, nothing else is sent on its connection.

use std::net::SocketAddr;
use std::time::Duration;

use spillgate_core::{Binding, Decision, Hit, Op, Quota, StoreError, StoreErrorKind};
use spillgate_redis::{Decoded, Script};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tonic::{Request, Response, Status};

use crate::Outcome;
use crate::answer::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use crate::answer::{self, LIMIT, pb};

struct OneByOne {
    quota: Quota,
    redis: String,
    /// The connections that no request uses now.
    idle: Mutex<Vec<TcpStream>>,
    /// A request waits here while all connections are in use.
    turns: Semaphore,
}

/// The environment variable with the address of Redis, as HOST:PORT.
const REDIS: &str = "REDIS";
/// The environment variable with the number of connections. The default is 1.
const CONNECTIONS: &str = "CONNECTIONS";

impl OneByOne {
    /// Waits for a free connection, and sends the call on it. If the call fails, or if the client cancels its request,
    /// the connection is not used again.
    async fn ask(&self, call: &spillgate_redis::ScriptCall<'_, '_>) -> Result<Vec<u8>, StoreError> {
        let _turn =
            self.turns.acquire().await.map_err(|_| StoreError::new(StoreErrorKind::NotSent, "no connection"))?;
        let idle = self.idle.lock().await.pop();
        let mut redis = match idle {
            Some(redis) => redis,
            None => connect(&self.redis)
                .await
                .map_err(|error| StoreError::new(StoreErrorKind::Disconnected, error.to_string()))?,
        };
        let reply = ask(&mut redis, call).await?;
        self.idle.lock().await.push(redis);
        Ok(reply)
    }
}

async fn connect(address: &str) -> std::io::Result<TcpStream> {
    let connection = TcpStream::connect(address).await?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

#[tonic::async_trait]
impl RateLimitService for OneByOne {
    async fn should_rate_limit(
        &self,
        request: Request<pb::RateLimitRequest>,
    ) -> Result<Response<pb::RateLimitResponse>, Status> {
        let request = request.into_inner();
        for descriptor in &request.descriptors {
            let hits = [Hit::new(key(&request.domain, descriptor), &self.quota, Op::take(1), Binding::Enforce)];
            let mut decisions = [Decision::default()];
            let answer = async {
                let mut call = spillgate_redis::ScriptCall::new(None, &hits)?;
                let reply = self.ask(&call).await?;
                call.decode(&reply, &mut decisions)
            };
            match answer.await {
                Ok(Decoded::Verdict(verdict)) if verdict.allowed => {}
                Ok(other) => return Err(Status::resource_exhausted(format!("{other:?}"))),
                Err(error) => return Err(Status::unavailable(error.to_string())),
            }
        }
        Ok(Response::new(answer::response(request.descriptors.len())))
    }
}

/// Hashes the domain and the entries with FNV-1a (Fowler, Noll and Vo). The length of each text is hashed before the
/// text.
fn key(domain: &str, descriptor: &pb::RateLimitDescriptor) -> u128 {
    let entries = descriptor.entries.iter().flat_map(|entry| [&entry.key, &entry.value]);
    let words = std::iter::once(domain).chain(entries.map(String::as_str));
    let bytes = words.flat_map(|word| word.len().to_be_bytes().into_iter().chain(word.bytes()));
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    })
}

/// Sends one command, and reads its reply, which is a bulk string.
async fn ask(redis: &mut TcpStream, call: &spillgate_redis::ScriptCall<'_, '_>) -> Result<Vec<u8>, StoreError> {
    let count = call.keys().len().to_string();
    let mut words: Vec<&[u8]> = vec![b"EVALSHA", call.script().sha().as_bytes(), count.as_bytes()];
    words.extend(call.keys().iter().map(spillgate_redis::RedisKey::as_bytes));
    words.extend(call.arguments());
    let failed = |error: std::io::Error| StoreError::new(StoreErrorKind::Disconnected, error.to_string());
    redis.write_all(&command(&words)).await.map_err(failed)?;
    let (mut reply, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        let read = redis.read(&mut chunk).await.map_err(failed)?;
        reply.extend_from_slice(&chunk[..read]);
        let head = reply.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
        let len: Option<usize> =
            head.and_then(|head| std::str::from_utf8(&reply[..head]).ok()?.trim_end().strip_prefix('$')?.parse().ok());
        match (head, len) {
            (Some(head), Some(length)) if reply.len() >= head + length + 2 => {
                return Ok(reply[head..head + length].to_vec());
            }
            (Some(_), None) => {
                return Err(StoreError::new(StoreErrorKind::Other, String::from_utf8_lossy(&reply).into_owned()));
            }
            _ if read == 0 => return Err(StoreError::new(StoreErrorKind::Disconnected, "Redis closed the connection")),
            _ => {}
        }
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

pub(crate) async fn serve(address: SocketAddr) -> Outcome {
    let redis =
        std::env::var(REDIS).map_err(|_| format!("the environment variable {REDIS} must have the address of Redis"))?;
    let connections: usize = std::env::var(CONNECTIONS).map_or(Ok(1), |count| count.parse())?;
    let mut first = connect(&redis).await?;
    for script in Script::ALL {
        first.write_all(&command(&[b"SCRIPT", b"LOAD", script.source.as_bytes()])).await?;
        // The reply has a line `$40`, the 40 digits of the script's hash, and the end of the line.
        first.read_exact(&mut [0; 3 + 2 + 40 + 2]).await?;
    }
    let quota = Quota::token_bucket(LIMIT.into(), Duration::from_secs(3600)).build()?;
    let service = OneByOne { quota, redis, idle: Mutex::new(vec![first]), turns: Semaphore::new(connections) };
    let service = RateLimitServiceServer::new(service);
    tonic::transport::Server::builder().add_service(service).serve(address).await?;
    Ok(())
}
