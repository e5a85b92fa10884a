//! A server on tokio that speaks RESP2, the protocol of Redis. It answers every command with `+PONG`.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PONG: &[u8] = b"+PONG\r\n";

pub(crate) async fn serve(mut stream: TcpStream) {
    let (mut input, mut output) = (Vec::with_capacity(1 << 16), Vec::new());
    let mut scratch = vec![0u8; 1 << 16];
    loop {
        match stream.read(&mut scratch).await {
            Ok(0) | Err(_) => return,
            Ok(n) => input.extend_from_slice(&scratch[..n]),
        }
        let used = frames(&input, &mut output);
        input.drain(..used);
        if stream.write_all(&output).await.is_err() {
            return;
        }
        output.clear();
    }
}

/// Answers all complete commands at the front of `input`. Returns the number of bytes that these commands have.
pub(crate) fn frames(input: &[u8], output: &mut Vec<u8>) -> usize {
    let mut used = 0;
    while let Some(len) = command_len(&input[used..]) {
        used += len;
        output.extend_from_slice(PONG);
    }
    used
}

/// Returns the length of the first command in `input`, or `None` if it is not complete. A command is an array of bulk
/// strings, or an inline command.
fn command_len(input: &[u8]) -> Option<usize> {
    if *input.first()? != b'*' {
        return input.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
    }
    let mut at = 0;
    for _ in 0..number(input, &mut at)? {
        at += number(input, &mut at)? + 2;
    }
    (at <= input.len()).then_some(at)
}

/// Reads the number in the line that starts at `at`. The first byte of the line is a type byte, and the number follows
/// it. Then moves `at` to the byte after the end of the line.
fn number(input: &[u8], at: &mut usize) -> Option<usize> {
    let line = input.get(*at + 1..)?;
    let len = line.windows(2).position(|pair| pair == b"\r\n")?;
    *at += 1 + len + 2;
    std::str::from_utf8(&line[..len]).ok()?.parse().ok()
}
