//! Reads files with one secret: a password, a token or the key secret.
//!
//! The size of the files is limited, and their content never appears in an error.

use std::io;
use std::path::{Path, PathBuf};

use super::regular_file;
use crate::command::terminal::Problem;
use crate::settings::Settings;
use spillgate_admin::{Access, WrongTokens};

/// The maximum size of a secret file, in bytes.
const MAX_BYTES: u64 = 4096;

/// Returns the bytes of a secret file without the white space at its end. Returns `None` if nothing is left, or if the
/// file is too long. `what` and `setting` name the file in errors.
pub(crate) fn read(path: &Path, what: &str, setting: &str) -> Result<Option<Vec<u8>>, Problem> {
    let unread = |error: io::Error| {
        let help = match error.kind() {
            io::ErrorKind::InvalidInput => format!("write the {what} into a regular file, and name it in `{setting}`"),
            _ => format!("check `{setting}` and the file's permissions"),
        };
        Problem::new(format!("the {what} {} cannot be read: {error}", path.display()), help).in_file(path)
    };
    let bytes = regular_file::read(path, MAX_BYTES).map_err(unread)?;
    let text = bytes.trim_ascii_end();
    let fits = bytes.len() as u64 <= MAX_BYTES && !text.is_empty();
    Ok(fits.then(|| text.to_vec()))
}

/// Returns who may use the admin listener. Reads the files with its tokens.
pub(crate) fn admin_access(settings: &Settings) -> Result<Access, Problem> {
    let (write_token, read_token) = admin_tokens(settings)?;
    let access = Access::new(write_token.as_deref(), read_token.as_deref(), settings.admin_hosts.clone());
    access.map_err(|error| wrong_tokens(&error))
}

/// Reads the files with the token that can write and the token that can only read.
pub(crate) fn admin_tokens(settings: &Settings) -> Result<(Option<String>, Option<String>), Problem> {
    let read = |path: &Option<PathBuf>, setting| {
        let path = path.as_ref().filter(|_| settings.admin.is_some());
        path.map(|path| token(path, setting)).transpose()
    };
    let write_token = read(&settings.admin_token_file, "admin_token_file")?;
    Ok((write_token, read(&settings.admin_read_token_file, "admin_read_token_file")?))
}

/// Returns the problem of tokens that would protect nothing.
pub(crate) fn wrong_tokens(error: &WrongTokens) -> Problem {
    Problem::new(error.to_string(), "correct the files of the admin tokens")
}

/// Reads a file with an admin token, which the setting or the flag `setting` names.
pub(crate) fn token(path: &Path, setting: &str) -> Result<String, Problem> {
    let read = read(path, "admin token", setting)?;
    let token = read.filter(|token| token.trim_ascii().iter().all(u8::is_ascii_graphic));
    let token = token.ok_or_else(|| {
        let help = "write one line of printable characters without spaces into it, 4 KiB at most, such as the output of `openssl rand -hex 32`";
        Problem::new(format!("{} holds no token", path.display()), help).in_file(path)
    })?;
    Ok(String::from_utf8_lossy(token.trim_ascii()).into_owned())
}

/// Reads sixteen bytes that are written as 32 hexadecimal digits.
pub(crate) fn hexadecimal(digits: &[u8]) -> Option<[u8; 16]> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.len() == 32)?;
    // `from_str_radix` would also accept a sign.
    let plain = text.bytes().all(|digit| digit.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| plain).map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_secret_is_32_digits_and_nothing_else() {
        let digits = b"000102030405060708090a0B0c0D0e0f";
        assert_eq!(hexadecimal(digits), Some(std::array::from_fn(|i| i as u8)));
        for wrong in [&digits[1..], b"", b"+00102030405060708090a0B0c0D0e0f", b"g00102030405060708090a0B0c0D0e0f"] {
            assert_eq!(hexadecimal(wrong), None);
        }
        assert_eq!(hexadecimal(&[&digits[..], b"0"].concat()), None);
    }
}
