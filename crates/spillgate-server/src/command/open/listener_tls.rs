//! Reads the certificates and the key of TLS on the listeners, and says what is wrong with them.
//!
//! The server checks these files before it listens, and again before it takes new ones. A mistake that only the first client
//! noticed would be an outage.

use std::path::Path;

use spillgate_redis::pem_fault;
use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error as TlsError, InconsistentKeys, RootCertStore};

use super::redis::pem_file;
use crate::command::terminal::Problem;
use crate::listener::Validity;
use crate::settings::{ListenerTls, Settings};

/// A server that wants certificates sends the names of all its authorities. TLS has two bytes for their length, and for that
/// of the whole message in which they are. With more, no client could connect.
const MAX_NAME_BYTES: usize = 60 * 1024;
/// What TLS and DER add to each name at most.
const NAME_BYTES: usize = 6;

/// The certificate of the server with its key.
pub(crate) struct Pair {
    pub(crate) key: CertifiedKey,
    /// When each certificate of the file is valid, of which there is at least one. The first is that of this server.
    pub(crate) validities: Vec<Validity>,
}

/// The authorities that sign the certificates of clients.
pub(crate) struct Authorities {
    pub(crate) roots: RootCertStore,
    /// When each of them is valid.
    pub(crate) validities: Vec<Validity>,
}

/// Checks the files that the settings name, without listening.
pub(crate) fn check_settings(settings: &Settings) -> Result<(), Problem> {
    let ListenerTls { cert: Some(cert), key: Some(key), client_ca, .. } = &settings.tls else { return Ok(()) };
    pair(cert, key)?;
    client_ca.as_deref().map(|path| authorities(path, "tls.client_ca")).transpose().map(drop)
}

/// Reads the files of `tls.cert` and `tls.key`.
pub(crate) fn pair(cert: &Path, key: &Path) -> Result<Pair, Problem> {
    pair_named((cert, "tls.cert"), (key, "tls.key"))
}

/// Does what [`pair`] does, for files that other settings or flags name.
pub(crate) fn pair_named(cert: (&Path, &str), key: (&Path, &str)) -> Result<Pair, Problem> {
    let [of_cert, of_key] = [pem_file(cert.0, cert.1)?, pem_file(key.0, key.1)?];
    read_pair((cert, &of_cert), (key, &of_key))
}

/// Does what [`pair`] does, with what was read from each file.
pub(crate) fn pair_of((cert, of_cert): (&Path, &[u8]), (key, of_key): (&Path, &[u8])) -> Result<Pair, Problem> {
    read_pair(((cert, "tls.cert"), of_cert), ((key, "tls.key"), of_key))
}

fn read_pair(
    ((cert, cert_setting), of_cert): ((&Path, &str), &[u8]),
    ((key, key_setting), of_key): ((&Path, &str), &[u8]),
) -> Result<Pair, Problem> {
    let chain = certificates(cert, cert_setting, of_cert).map_err(|problem| problem.in_file(cert))?;
    let validities = chain.iter().map(|certificate| validity(certificate, cert)).collect::<Result<Vec<_>, _>>()?;
    let signing = private_key(key, key_setting, of_key).map_err(|problem| problem.in_file(key))?;
    ParsedCertificate::try_from(&chain[0]).map_err(|error| {
        let help = format!("`{cert_setting}` has to begin with the certificate of the key, of X.509 version 3");
        Problem::new(format!("the first certificate in {} cannot be used: {error}", cert.display()), help).in_file(cert)
    })?;
    let pair = CertifiedKey::new(chain, signing);
    if let Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) = pair.keys_match() {
        let message =
            format!("the key in {} does not belong to the first certificate in {}", key.display(), cert.display());
        let help = format!(
            "`{cert_setting}` and `{key_setting}` have to be of the same pair, and the certificate of the key has to be the first in its file"
        );
        return Err(Problem::new(message, help).in_file(key));
    }
    Ok(Pair { key: pair, validities })
}

/// Reads a file with the certificates of the authorities of clients. `setting` names the file in errors.
pub(crate) fn authorities(path: &Path, setting: &str) -> Result<Authorities, Problem> {
    authorities_of(path, setting, &pem_file(path, setting)?)
}

/// Does what [`authorities`] does, with what was read from the file.
pub(crate) fn authorities_of(path: &Path, setting: &str, pem: &[u8]) -> Result<Authorities, Problem> {
    let found = read_authorities(path, setting, pem)?;
    let names = found.roots.roots.iter().map(|root| root.subject.len() + NAME_BYTES).sum::<usize>();
    if names > MAX_NAME_BYTES {
        let message = format!(
            "the names of the {} certificates in {} have {names} bytes together, and at most {MAX_NAME_BYTES} fit into a handshake",
            found.roots.len(),
            path.display()
        );
        let help = format!("leave only those authorities in `{setting}` that sign certificates of your clients");
        return Err(Problem::new(message, help).in_file(path));
    }
    Ok(found)
}

/// Reads a file with the authorities that may have signed the certificate of a server.
pub(crate) fn trusted(path: &Path, setting: &str) -> Result<RootCertStore, Problem> {
    read_authorities(path, setting, &pem_file(path, setting)?).map(|found| found.roots)
}

fn read_authorities(path: &Path, setting: &str, pem: &[u8]) -> Result<Authorities, Problem> {
    let mut found = Authorities { roots: RootCertStore::empty(), validities: Vec::new() };
    for certificate in certificates(path, setting, pem).map_err(|problem| problem.in_file(path))? {
        found.validities.push(validity(&certificate, path)?);
        found.roots.add(certificate).map_err(|error| {
            let help = format!("`{setting}` has to have the certificates of authorities, of X.509 version 3");
            Problem::new(format!("a certificate in {} cannot be used: {error}", path.display()), help).in_file(path)
        })?;
    }
    Ok(found)
}

/// Returns when each certificate of a text is valid, until one that cannot be read.
pub(crate) fn validities(pem: &[u8]) -> impl Iterator<Item = Validity> {
    CertificateDer::pem_slice_iter(pem).map_while(|certificate| Validity::of(&certificate.ok()?))
}

/// Reads the certificates of a file, of which there is at least one.
fn certificates(path: &Path, setting: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|_| wrong_pem(path, setting, pem))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let (why, help) = match pem {
        [] => ("is empty".to_owned(), format!("write the certificate into the file of `{setting}`, in PEM")),
        pem if has(pem, "PRIVATE KEY-----") => (
            "has a private key and no certificate".to_owned(),
            format!("name the file of the certificate in `{setting}`"),
        ),
        _ => (
            "has no certificate in PEM".to_owned(),
            format!(
                "`{setting}` has to be a file with the line -----BEGIN CERTIFICATE-----. From DER: openssl x509 -inform der -in FILE"
            ),
        ),
    };
    Err(Problem::new(format!("{} {why}", path.display()), help))
}

/// Reads the private key of a file.
fn private_key(
    path: &Path,
    setting: &str,
    pem: &[u8],
) -> Result<std::sync::Arc<dyn tokio_rustls::rustls::sign::SigningKey>, Problem> {
    const KINDS: &str = "use a key of ECDSA P-256 or P-384, Ed25519, or RSA with 2048 to 4096 bits: openssl genpkey -algorithm EC \
                         -pkeyopt ec_paramgen_curve:P-256";
    let name = path.display();
    if has(pem, "ENCRYPTED PRIVATE KEY-----") || has(pem, "Proc-Type: 4,ENCRYPTED") {
        let help =
            "write it without its password into a file that only this user may read: openssl pkey -in FILE -out NEW";
        return Err(Problem::new(format!("the key in {name} has a password, and the server cannot ask for it"), help));
    }
    if pem.is_empty() {
        return Err(Problem::new(
            format!("{name} is empty"),
            format!("write the key into the file of `{setting}`, in PEM"),
        ));
    }
    if !has(pem, "PRIVATE KEY-----") {
        let help = format!(
            "`{setting}` has to be a file with a line such as -----BEGIN PRIVATE KEY-----. From DER: openssl pkey -inform der -in FILE"
        );
        return Err(Problem::new(format!("{name} has no private key in PEM"), help));
    }
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| wrong_pem(path, setting, pem))?;
    any_supported_type(&key)
        .map_err(|_| Problem::new(format!("the key in {name} is of a kind or size that the server cannot use"), KINDS))
}

fn has(pem: &[u8], text: &str) -> bool {
    pem.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Returns the problem of a text that is not valid PEM, without any part of the text, which can be a private key.
fn wrong_pem(path: &Path, setting: &str, pem: &[u8]) -> Problem {
    let help = format!(
        "write the file of `{setting}` again: it is damaged, was read while a program wrote it, or lost its line breaks on the \
         way, for example in a variable, or in YAML without `|`"
    );
    Problem::new(format!("{} is not valid PEM: {}", path.display(), pem_fault(pem)), help)
}

fn validity(certificate: &CertificateDer<'_>, path: &Path) -> Result<Validity, Problem> {
    Validity::of(certificate).ok_or_else(|| {
        let help = "make the certificate again: its content is damaged";
        Problem::new(format!("a certificate in {} has no dates that can be read", path.display()), help).in_file(path)
    })
}
