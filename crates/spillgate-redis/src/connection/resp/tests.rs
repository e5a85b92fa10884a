//! Tests of the RESP decoder, also against the parser of the client library.

use redis::{Value, parse_redis_value};

use super::{DEPTH_MAX, LENGTH_MAX, LINE_MAX, LengthScanner, PARTS_MAX, length, value};

const REPLIES: [&[u8]; 14] = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b"-\r\n",
    b":-7\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"$10\r\n0123456789\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*2\r\n$1\r\na\r\n-MOVED 1 a:1\r\n",
    b"*3\r\n*2\r\n:1\r\n*0\r\n$-1\r\n*1\r\n*1\r\n+a\r\n",
    b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    b"*2\r\n*-1\r\n:3\r\n",
];

#[test]
fn the_end_of_a_reply_is_found() {
    for reply in REPLIES {
        let text = String::from_utf8_lossy(reply);
        for cut in 0..reply.len() {
            assert_eq!(length(&reply[..cut]).expect("a beginning"), None, "{text:?} up to {cut}");
        }
        let more = [reply, b"$-1\r\n"].concat();
        assert_eq!(length(&more).expect("a reply"), Some(reply.len()), "{text:?}");
        assert_eq!(value(reply).expect("a reply"), parse_redis_value(reply).expect("a reply"), "{text:?}");
    }
}

#[test]
fn bytes_that_are_not_a_reply_are_rejected_at_once() {
    let deep = [b"*1\r\n".repeat(DEPTH_MAX + 1), b":1\r\n".to_vec()].concat();
    let not_resp: [&[u8]; 17] = [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x15\x03\x03",
        b"\r\n",
        b"%1\r\n",
        b"_\r\n",
        b"+OK\n",
        b"$\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$+1\r\n",
        b"$1\rx",
        b"$1\r\nab\r\n",
        b"$1\r\na\rb",
        b"*1\r\n?",
        b"$99999999999999999999\r\n",
        b"$111111111111111111111",
        &deep,
    ];
    for not_resp in not_resp {
        assert!(length(not_resp).is_err(), "{:?}", String::from_utf8_lossy(not_resp));
    }
    let long = format!("${LENGTH_MAX}\r\n");
    assert!(length(long.as_bytes()).is_err());
    let line = [b"+".to_vec(), vec![b'a'; LINE_MAX]].concat();
    assert!(length(&line).is_err() && matches!(length(&line[..LINE_MAX]), Ok(None)));
    let many = format!("*2\r\n*{}\r\n", PARTS_MAX - 3);
    assert!(matches!(length(many.as_bytes()), Ok(None)));
    assert!(length([many.as_bytes(), b"*1\r\n"].concat().as_slice()).is_ok());
    assert!(length([many.as_bytes(), b"*1\r\n*1\r\n"].concat().as_slice()).is_err());
    let strings = [format!("*{PARTS_MAX}\r\n").into_bytes(), b"$9\r\n123456789\r\n".repeat(PARTS_MAX)].concat();
    assert!(strings.len() < LENGTH_MAX && length(&strings).is_ok_and(|length| length == Some(strings.len())));
    let longer = [format!("*{PARTS_MAX}\r\n").into_bytes(), b"$20\r\n12345678901234567890\r\n".repeat(PARTS_MAX)];
    assert!(length(&longer.concat()).is_err());
}

#[test]
fn a_scan_goes_on_where_it_has_stopped() {
    let all = REPLIES.concat();
    for step in [1, 2, 3, 7, 50] {
        let (mut scanner, mut start, mut ends) = (LengthScanner::default(), 0, Vec::new());
        for end in (0..all.len()).step_by(step).chain([all.len()]) {
            while let Some(length) = scanner.length(&all[start..end]).expect("replies") {
                start += length;
                ends.push(length);
            }
        }
        assert!(ends.iter().copied().eq(REPLIES.iter().map(|reply| reply.len())), "{step}");
    }
}

/// Compares the decoder with the client library's parser, on replies that were cut and in which some bytes were
/// replaced.
#[test]
fn random_bytes_are_read_as_the_client_library_reads_them_or_not_at_all() {
    let mut state = 7_u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let alphabet = b"*$:+-0123456789\r\nab";
    let (mut whole, mut values, mut partial, mut not_resp) = (0, 0, 0, 0);
    for _ in 0..200_000 {
        let mut bytes = [REPLIES[below(REPLIES.len())], REPLIES[below(REPLIES.len())]].concat();
        for _ in 0..below(3) {
            let at = below(bytes.len());
            bytes[at] = alphabet[below(alphabet.len())];
        }
        bytes.truncate(1 + below(bytes.len()));
        match length(&bytes) {
            Ok(Some(length)) => {
                whole += 1;
                let read = value(&bytes[..length]).ok();
                // Our decoder rejects some replies that the client library accepts, because our decoder accepts only
                // lengths that are digits or -1.
                let theirs = parse_redis_value(&bytes[..length]).ok();
                assert!(read.is_none() || read == theirs, "{:?}", String::from_utf8_lossy(&bytes));
                values += u32::from(read.is_some());
            }
            Ok(None) => partial += 1,
            Err(_) => not_resp += 1,
        }
    }
    assert!(values > 9 * whole / 10, "{values} values of {whole}");
    assert!(
        whole > 10_000 && partial > 10_000 && not_resp > 10_000,
        "{whole} whole, {partial} partial, {not_resp} not RESP"
    );
    assert_eq!(value(b"").ok(), None::<Value>);
}
