//! Answers each HTTP/1.1 request with a constant. The length of a body must be in `content-length`.

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 16\r\n\r\n{\"allowed\":true}";

pub(crate) fn replies(_: &mut (), input: &[u8], output: &mut Vec<u8>) -> usize {
    let mut used = 0;
    while let Some(head_len) = input[used..].windows(4).position(|window| window == b"\r\n\r\n") {
        let end = used + head_len + 4 + content_length(&input[used..used + head_len]);
        if input.len() < end {
            break;
        }
        used = end;
        output.extend_from_slice(ANSWER);
    }
    used
}

fn content_length(head: &[u8]) -> usize {
    const NAME: &[u8] = b"content-length: ";
    let Some(at) = head.windows(NAME.len()).position(|window| window == NAME) else { return 0 };
    let digits = head[at + NAME.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0'))
}
