//! The one message of a unary call, and how it is framed.

use std::fmt::Display;
use std::pin::pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Body;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;

/// A flag that says whether the message is compressed, and its length.
const PREFIX_BYTES: usize = 1 + 4;
/// Room for answers that is taken at once; many of them share it.
const ROOM_BYTES: usize = 2048;

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Reads the message of a call that brings one; it may come in any number of pieces.
pub(super) async fn read<B>(body: B, max_bytes: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let mut body = pin!(body);
    let (mut first, mut joined) = (Bytes::new(), BytesMut::new());
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        // A client that has reset its stream reads no status: this is for one whose body is late.
        let frame = frame.map_err(|error| Status::deadline_exceeded(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        // Usually one piece is all there is, and stays where it was read.
        if first.is_empty() && joined.is_empty() {
            first = data;
            has_room_for(&first, max_bytes)?;
            continue;
        }
        if joined.is_empty() {
            joined.extend_from_slice(&first);
        }
        joined.extend_from_slice(&data);
        has_room_for(&joined, max_bytes)?;
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

/// The length of the message, once the prefix is there.
fn message_bytes(read: &[u8]) -> Option<usize> {
    let (_, length) = read.get(..PREFIX_BYTES)?.split_first_chunk::<1>()?;
    length.first_chunk().map(|length| u32::from_be_bytes(*length) as usize)
}

/// Refuses as soon as it can be told: nothing is held that will not be decoded.
fn has_room_for(read: &[u8], max_bytes: usize) -> Result<(), Status> {
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

/// Whether it can be read, as far as the head tells.
pub(super) fn is_uncompressed(headers: &HeaderMap) -> Result<(), Status> {
    let Some(encoding) = headers.get(ENCODING).filter(|encoding| *encoding != "identity") else {
        return Ok(());
    };
    let text = format!("messages compressed by {} are not understood", String::from_utf8_lossy(encoding.as_bytes()));
    let mut status = Status::unimplemented(text);
    let _ = status.metadata_mut().as_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    Err(status)
}

/// Frames answers: many share an allocation, and a message is built where the last one was.
#[derive(Debug, Default)]
pub(super) struct Writer<M>(Mutex<Kept<M>>);

#[derive(Debug, Default)]
struct Kept<M> {
    room: BytesMut,
    message: M,
}

impl<M: Message> Writer<M> {
    pub(super) fn framed(&self, build: impl FnOnce(&mut M)) -> Result<Bytes, Status> {
        let Kept { room, message } = &mut *self.0.lock();
        // Whatever became of the last one.
        room.clear();
        message.clear();
        build(message);
        let bytes = message.encoded_len();
        let length = u32::try_from(bytes).map_err(|_| Status::internal("the answer is too long"))?;
        if room.capacity() < PREFIX_BYTES + bytes {
            room.reserve(ROOM_BYTES.max(PREFIX_BYTES + bytes));
        }
        room.put_u8(0);
        room.put_u32(length);
        message.encode(room).map_err(|error| Status::internal(error.to_string()))?;
        Ok(room.split().freeze())
    }
}
