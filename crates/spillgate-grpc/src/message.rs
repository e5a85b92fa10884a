//! Reads and writes the framed message of a unary call: a call with one message and one answer.
//!
//! The method ShouldRateLimit uses this code instead of tonic, because tonic takes more CPU time.

use std::fmt::Display;
use std::future::poll_fn;
use std::mem;
use std::pin::pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Body;
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;

/// The length of the prefix that frames a message. The first byte says whether the message is compressed, and the other
/// four bytes have its length.
const PREFIX_BYTES: usize = 1 + 4;
/// The size of the buffer that answers share. A longer answer gets a larger buffer.
const BUFFER_BYTES: usize = 2048;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Reads the only message of a call. The message can arrive in any number of pieces.
pub(super) async fn read<B>(body: B, max_bytes: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let mut body = pin!(body);
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    while !body.is_end_stream() {
        let frame = poll_fn(|cx| {
            let polled = body.as_mut().poll_frame(cx);
            if polled.is_pending() && joined.is_empty() {
                // A piece is a part of a larger buffer, which must not stay in memory while the rest does not come.
                joined.extend_from_slice(&mem::take(&mut first));
            }
            polled
        });
        let Some(frame) = frame.await else { break };
        // Reading fails if the body is late, or if the client has reset the stream. After a reset, the client reads no
        // status. So a client that reads this status was late.
        let frame = frame.map_err(|error| Status::deadline_exceeded(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        // Usually the whole message arrives in one piece, which is not copied.
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
        None if message.is_empty() => Err(Status::unimplemented("the call has no message")),
        Some(bytes) if message.len() == PREFIX_BYTES + bytes => {
            message.advance(PREFIX_BYTES);
            Ok(message)
        }
        _ => Err(Status::invalid_argument("the call ended before its message was complete")),
    }
}

/// Returns the length of the message. `read` is what has arrived of the frame. Returns `None` if `read` is shorter than
/// the prefix.
fn message_bytes(read: &[u8]) -> Option<usize> {
    let (_, length) = read.get(..PREFIX_BYTES)?.split_first_chunk::<1>()?;
    length.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
}

/// Refuses an invalid message as soon as its prefix has arrived, so that the server does not wait for its other bytes
/// and keep them.
fn check_prefix(read: &[u8], max_bytes: usize) -> Result<(), Status> {
    let Some(bytes) = message_bytes(read) else { return Ok(()) };
    match read.first() {
        Some(0) => {}
        Some(1) => return Err(Status::internal("a message is compressed, but the call has no grpc-encoding")),
        _ => return Err(Status::internal("the compression flag of a message is neither 0 nor 1")),
    }
    if bytes > max_bytes {
        return Err(Status::out_of_range(format!("a message has {bytes} bytes, more than the limit of {max_bytes}")));
    }
    if read.len() > PREFIX_BYTES + bytes {
        return Err(Status::unimplemented("the call has more than one message"));
    }
    Ok(())
}

/// Returns an error if the head of a call says that the message is compressed.
pub(super) fn is_uncompressed(headers: &HeaderMap) -> Result<(), Status> {
    let Some(encoding) = headers.get(ENCODING).filter(|encoding| *encoding != "identity") else {
        return Ok(());
    };
    let text =
        format!("messages that are compressed with {} are not supported", String::from_utf8_lossy(encoding.as_bytes()));
    let mut status = Status::unimplemented(text);
    let _ = status.metadata_mut().as_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    Err(status)
}

/// Writes answers as framed messages. Several answers share one buffer. Each answer is built in the same value of the
/// type `M`, so that the memory of its lists is used again.
#[derive(Debug, Default)]
pub(super) struct Writer<M>(Mutex<Buffers<M>>);

#[derive(Debug, Default)]
struct Buffers<M> {
    buffer: BytesMut,
    message: M,
}

impl<M: Message> Writer<M> {
    /// Fills an empty message with `build`, and returns its frame: the prefix and the encoded message.
    pub(super) fn framed(&self, build: impl FnOnce(&mut M)) -> Result<Bytes, Status> {
        let Buffers { buffer, message } = &mut *self.0.lock();
        // If the last answer failed, the buffer can contain a part of that answer.
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
