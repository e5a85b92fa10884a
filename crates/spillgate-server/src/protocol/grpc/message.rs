//! Reads and writes the framed message of a unary call.
//!
//! ShouldRateLimit uses it instead of tonic, which costs more.

use std::fmt::Display;
use std::pin::pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Body;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;

/// The prefix of a message: a flag that says whether it is compressed, and its length.
const PREFIX_BYTES: usize = 1 + 4;
/// Buffer for answers that is allocated at once. Many answers share it.
const BUFFER_BYTES: usize = 2048;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Reads the message of a call that has exactly one. It may arrive in any number of pieces.
pub(super) async fn read<B>(body: B, max_bytes: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let mut body = pin!(body);
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        // This status is for a client whose body is late. A client that has reset its stream reads no status.
        let frame = frame.map_err(|error| Status::deadline_exceeded(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        // Usually there is one piece. It is used where it was read, without a copy.
        if first.is_empty() && joined.is_empty() {
            first = data;
            check_prefix(&first, max_bytes)?;
            continue;
        }
        if joined.is_empty() {
            joined.extend_from_slice(&first);
        }
        joined.extend_from_slice(&data);
        check_prefix(&joined, max_bytes)?;
    }
    let mut message = if joined.is_empty() { first } else { joined.freeze() };
    match message_bytes(&message) {
        None if message.is_empty() => Err(Status::unimplemented("the call brings no message")),
        Some(bytes) if message.len() == PREFIX_BYTES + bytes => {
            message.advance(PREFIX_BYTES);
            Ok(message)
        }
        _ => Err(Status::invalid_argument("the call ends within its message")),
    }
}

/// The length of the message. `None` until the prefix has arrived.
fn message_bytes(read: &[u8]) -> Option<usize> {
    let (_, length) = read.get(..PREFIX_BYTES)?.split_first_chunk::<1>()?;
    length.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
}

/// Refuses an invalid message as soon as its prefix has arrived, so that nothing is kept that cannot be decoded.
fn check_prefix(read: &[u8], max_bytes: usize) -> Result<(), Status> {
    let Some(bytes) = message_bytes(read) else { return Ok(()) };
    match read.first() {
        Some(0) => {}
        Some(1) => return Err(Status::internal("a message is compressed, and no grpc-encoding says how")),
        _ => return Err(Status::internal("a message is neither compressed nor not")),
    }
    if bytes > max_bytes {
        return Err(Status::out_of_range(format!("a message of {bytes} bytes is beyond the limit of {max_bytes}")));
    }
    if read.len() > PREFIX_BYTES + bytes {
        return Err(Status::unimplemented("the call brings more than one message"));
    }
    Ok(())
}

/// Checks that the message is not compressed, by the head of the call.
pub(super) fn is_uncompressed(headers: &HeaderMap) -> Result<(), Status> {
    let Some(encoding) = headers.get(ENCODING).filter(|encoding| *encoding != "identity") else {
        return Ok(());
    };
    let text = format!("messages compressed by {} are not understood", String::from_utf8_lossy(encoding.as_bytes()));
    let mut status = Status::unimplemented(text);
    let _ = status.metadata_mut().as_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    Err(status)
}

/// Frames answers. Many answers share one allocation, and one message value is used again and again.
#[derive(Debug, Default)]
pub(super) struct Writer<M>(Mutex<Buffers<M>>);

#[derive(Debug, Default)]
struct Buffers<M> {
    buffer: BytesMut,
    message: M,
}

impl<M: Message> Writer<M> {
    /// Builds a message with `build`, and returns its frame.
    pub(super) fn framed(&self, build: impl FnOnce(&mut M)) -> Result<Bytes, Status> {
        let Buffers { buffer, message } = &mut *self.0.lock();
        // The last answer may have failed halfway.
        buffer.clear();
        message.clear();
        build(message);
        let bytes = message.encoded_len();
        let length = u32::try_from(bytes).map_err(|_| Status::internal("the answer is too long"))?;
        if buffer.capacity() < PREFIX_BYTES + bytes {
            buffer.reserve(BUFFER_BYTES.max(PREFIX_BYTES + bytes));
        }
        buffer.put_u8(0);
        buffer.put_u32(length);
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))?;
        Ok(buffer.split().freeze())
    }
}
