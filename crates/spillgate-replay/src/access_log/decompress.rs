//! Decompresses gzip and zstd files. The first bytes of a file say whether it is compressed.
//!
//! No file can demand much memory. gzip needs 32 KiB. A zstd frame says how many bytes its decoder must keep (its
//! window), and is refused if they are too many.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// A zstd frame without data begins with one byte from 0x50 to 0x5f, and then has these bytes.
const ZSTD_SKIPPED: &[u8] = &[0x2a, 0x4d, 0x18];
/// The first bytes of formats that are not supported, and their names for the error.
const UNSUPPORTED: [(&[u8], &str); 3] = [(b"BZh", "bzip2"), (&[0xfd, b'7', b'z', b'X'], "xz"), (b"PK\x03\x04", "zip")];
const BUFFER_BYTES: usize = 32 * 1024;

/// A file that counts the bytes that are read from it.
struct Counted {
    file: Box<dyn Read + Send>,
    bytes_read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

type File = BufReader<io::Chain<io::Cursor<Vec<u8>>, Counted>>;

/// Returns a reader of the bytes of a file. `bytes_read` counts these bytes.
pub(super) fn counted(file: Box<dyn Read + Send>, bytes_read: Arc<AtomicU64>) -> Box<dyn Read + Send> {
    Box::new(Counted { file, bytes_read })
}

/// Returns a reader of the decompressed bytes of a file. `bytes_read` counts the bytes before decompression. A zstd
/// frame with a window greater than `window_bytes_max` ends the file with an error.
pub(super) fn decompressed(
    file: Box<dyn Read + Send>,
    bytes_read: Arc<AtomicU64>,
    window_bytes_max: u64,
) -> io::Result<Box<dyn Read + Send>> {
    let mut file = Counted { file, bytes_read };
    let mut first = Vec::new();
    (&mut file).take(4).read_to_end(&mut first)?;
    if let Some((_, name)) = UNSUPPORTED.iter().find(|(begin, _)| first.starts_with(begin)) {
        let message = format!("the file is {name}, which is not supported: decompress it first");
        return Err(io::Error::new(io::ErrorKind::Unsupported, message));
    }
    let (is_gzip, is_zstd) = (first.starts_with(GZIP), first == ZSTD || first.get(1..) == Some(ZSTD_SKIPPED));
    let file = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(first).chain(file));
    Ok(if is_gzip {
        Box::new(MultiGzDecoder::new(file))
    } else if is_zstd {
        Box::new(Zstd::new(file, window_bytes_max))
    } else {
        Box::new(file)
    })
}

/// Decompresses all frames of a zstd file.
struct Zstd {
    file: File,
    decoder: FrameDecoder,
    /// The error that is returned after the last good bytes. It ends the file.
    broken: Option<io::Error>,
}

impl Zstd {
    fn new(file: File, window_bytes_max: u64) -> Zstd {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(window_bytes_max);
        Zstd { file, decoder, broken: None }
    }

    /// Begins the next frame. Returns false at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while !self.file.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.file) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut (&mut self.file).take(u64::from(length)), &mut io::sink())?;
                }
                Err(error @ FrameDecoderError::WindowSizeTooBig { .. }) => {
                    let help = "give fewer files, or decompress them first";
                    return Err(io::Error::other(format!("{error}: {help}")));
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    fn decode_block(&mut self) -> io::Result<()> {
        let decoded = self.decoder.decode_blocks(&mut self.file, BlockDecodingStrategy::UptoBlocks(1));
        decoded.map_err(io::Error::other)?;
        Ok(())
    }

    /// Makes the decoder return the bytes that it keeps back for later blocks. This is for a broken frame, in which no
    /// block follows.
    fn end_frame(&mut self) {
        // An empty last block, and 4 bytes in the place of a checksum. An error changes nothing, because the frame is
        // broken already.
        let mut last_block: &[u8] = &[1, 0, 0, 0, 0, 0, 0];
        let _ = self.decoder.decode_blocks(&mut last_block, BlockDecodingStrategy::UptoBlocks(1));
    }

    fn is_damaged(&self) -> bool {
        let stored = self.decoder.get_checksum_from_data();
        stored.is_some_and(|stored| self.decoder.get_calculated_checksum() != Some(stored))
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if let Some(error) = self.broken.take() {
                return Err(error);
            }
            let step = if !self.decoder.is_finished() {
                self.decode_block()
            } else if self.is_damaged() {
                Err(io::Error::other("the checksum of a frame is wrong"))
            } else {
                match self.begin_frame() {
                    Ok(true) => Ok(()),
                    Ok(false) => return Ok(0),
                    Err(error) => Err(error),
                }
            };
            if let Err(error) = step {
                self.end_frame();
                self.broken = Some(error);
            }
        }
        self.decoder.read(buffer)
    }
}
