//! A socket that never blocks, with or without TLS.

use mio::net::TcpStream;
use rustls::{ClientConfig, ClientConnection};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::tls;

pub(crate) struct Socket {
    pub(crate) stream: TcpStream,
    pub(crate) tls: Option<Box<ClientConnection>>,
    /// The bytes to send, which are not encrypted yet.
    pub(crate) output: Vec<u8>,
    /// Whether the socket may accept more bytes.
    pub(crate) writable: bool,
}

impl Socket {
    /// Connects, and waits until the server has accepted. The handshake begins with the first [`flush`](Socket::flush).
    pub(crate) fn open(target: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Result<Socket, String> {
        let stream = std::net::TcpStream::connect(target).map_err(|e| format!("{target}: {e}"))?;
        stream.set_nonblocking(true).map_err(|e| e.to_string())?;
        Socket::of(TcpStream::from_std(stream), target, tls)
    }

    /// Begins to connect. The socket is not writable before the server has accepted.
    pub(crate) fn connect(target: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Result<Socket, String> {
        let stream = TcpStream::connect(target).map_err(|e| format!("{target}: {e}"))?;
        Ok(Socket { writable: false, ..Socket::of(stream, target, tls)? })
    }

    fn of(stream: TcpStream, target: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Result<Socket, String> {
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
        let tls = tls.map(|config| tls::connection(config, target).map(Box::new)).transpose()?;
        Ok(Socket { stream, tls, output: Vec::new(), writable: true })
    }

    /// Reads once, and appends what the server has sent to `input`. Returns how many bytes the socket had, or `None` if it
    /// had none.
    pub(crate) fn read(&mut self, scratch: &mut [u8], input: &mut Vec<u8>) -> Result<Option<usize>, String> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(n) => {
                    match &mut self.tls {
                        None => input.extend_from_slice(&scratch[..n]),
                        Some(tls) => decrypt(tls, &scratch[..n], input)?,
                    }
                    return Ok(Some(n));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Sends what the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        let mut sent = 0;
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(&self.output).map_err(|e| e.to_string())?;
            sent = self.output.len();
        }
        while self.writable {
            let wrote = match &mut self.tls {
                Some(tls) if tls.wants_write() => tls.write_tls(&mut self.stream),
                None if sent < self.output.len() => self.stream.write(&self.output[sent..]).inspect(|n| sent += n),
                _ => break,
            };
            match wrote {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        self.output.drain(..sent);
        Ok(())
    }
}

/// Decrypts bytes of the server, and appends them to `input`.
fn decrypt(tls: &mut ClientConnection, mut encrypted: &[u8], input: &mut Vec<u8>) -> Result<(), String> {
    while !encrypted.is_empty() {
        // After the last message of TLS, no more bytes are read.
        if tls.read_tls(&mut encrypted).map_err(|e| e.to_string())? == 0 {
            return Err("the server closed a connection".into());
        }
        let state = tls.process_new_packets().map_err(|e| format!("TLS: {e}"))?;
        let at = input.len();
        input.resize(at + state.plaintext_bytes_to_read(), 0);
        tls.reader().read_exact(&mut input[at..]).map_err(|e| e.to_string())?;
    }
    Ok(())
}
