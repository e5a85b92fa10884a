//! Answers each unary gRPC call with a constant. The server has only the parts of HTTP/2 that it needs for such calls.

const PREFACE_LEN: usize = 24;
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;

/// A SETTINGS frame with a window of 1 MiB for each stream, and a frame that makes the window of the connection larger
/// by about 2^30.
const GREETING: &[u8] = &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0x10, 0, 0, 0, 0, 4, 8, 0, 0, 0, 0, 0, 0x3f, 0, 0, 0];
/// The headers `:status 200` and `content-type: application/grpc`. They need no dynamic table.
const HEAD: &[u8] = b"\x88\x0f\x10\x10application/grpc";
const BODY: &[u8] = b"\0\0\0\0\x02\x08\x01";
const TRAILERS: &[u8] = b"\x00\x0bgrpc-status\x010";

#[derive(Default)]
pub(crate) struct State {
    greeted: bool,
    /// The bytes of DATA frames that were received, and for which no WINDOW_UPDATE was sent yet.
    received: usize,
}

pub(crate) fn replies(state: &mut State, input: &[u8], output: &mut Vec<u8>) -> usize {
    let mut used = 0;
    if !state.greeted {
        if input.len() < PREFACE_LEN {
            return 0;
        }
        used = PREFACE_LEN;
        state.greeted = true;
        output.extend_from_slice(GREETING);
    }
    while let Some(head) = input.get(used..used + FRAME_HEAD) {
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(payload) = input.get(used + FRAME_HEAD..used + FRAME_HEAD + len) else { break };
        used += FRAME_HEAD + len;
        let (kind, flags, stream) = (head[3], head[4], &head[5..9]);
        match kind {
            SETTINGS if flags & ACK == 0 => frame(output, SETTINGS, ACK, &[0; 4], b""),
            PING if flags & ACK == 0 => frame(output, PING, ACK, &[0; 4], payload),
            DATA => {
                state.received += len;
                if flags & END_STREAM != 0 {
                    frame(output, 1, 4, stream, HEAD);
                    frame(output, DATA, 0, stream, BODY);
                    frame(output, 1, 4 | END_STREAM, stream, TRAILERS);
                }
            }
            _ => {}
        }
    }
    if state.received > 1 << 20 {
        frame(output, 8, 0, &[0; 4], &(state.received as u32).to_be_bytes());
        state.received = 0;
    }
    used
}

fn frame(output: &mut Vec<u8>, kind: u8, flags: u8, stream: &[u8], payload: &[u8]) {
    output.extend_from_slice(&[0, 0, payload.len() as u8, kind, flags]);
    output.extend_from_slice(stream);
    output.extend_from_slice(payload);
}
