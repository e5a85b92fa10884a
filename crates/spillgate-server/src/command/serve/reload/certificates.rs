//! Two units: the certificate of the listeners with its key, and the authorities of clients.
//!
//! Whether a certificate is valid depends on the clock too, so the clock is a part of what is seen: a certificate that was
//! not yet valid is tried again when it is.

use std::path::{Path, PathBuf};

use spillgate_service::reloads::{Cause, UnitName};

use super::reader::Reader;
use super::unit::{Kept, Seen, Taken, Unit};
use crate::command::open::redis::pem_file;
use crate::command::serve::certificates::{CERT, CLIENT_CA, Certificates, KEY, New};
use crate::command::terminal::{Problem, Problems};

/// The certificate of the listeners, and its key.
pub(super) struct PairUnit {
    certificates: Certificates,
    read: Kept<[Vec<u8>; 2]>,
}

impl PairUnit {
    pub(super) fn new(certificates: &Certificates) -> PairUnit {
        PairUnit { certificates: certificates.clone(), read: Kept::default() }
    }
}

impl Unit for PairUnit {
    fn name(&self) -> UnitName {
        UnitName::Certificate
    }

    fn kept(&self) -> &'static str {
        "the certificate of the listeners cannot be replaced, so they use the current one"
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.certificates.pair_files().map(Path::to_owned).into()
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let [cert, key] = self.certificates.pair_files().map(Path::to_owned);
        let work = move || Ok::<_, Problem>([pem_file(&cert, CERT)?, pem_file(&key, KEY)?]);
        self.read.read(reader, work, |[cert, key]| {
            Seen::of([&cert[..], &key[..], &[self.certificates.pair_standing(cert) as u8][..]])
        })
    }

    fn take(&mut self, cause: Cause) -> Result<Taken, Problems> {
        let Some([cert, key]) = self.read.take()? else { return Ok(Taken::default()) };
        Ok(taken("the certificate of the listeners", self.certificates.take_pair([&cert, &key], cause)?))
    }

    fn forget(&mut self) {
        self.read.forget();
    }
}

/// The authorities that sign the certificates of clients.
pub(super) struct ClientCaUnit {
    certificates: Certificates,
    file: PathBuf,
    read: Kept<Vec<u8>>,
}

impl ClientCaUnit {
    /// Returns `None` if there are no such authorities.
    pub(super) fn new(certificates: &Certificates) -> Option<ClientCaUnit> {
        let file = certificates.client_ca_file()?.to_owned();
        Some(ClientCaUnit { certificates: certificates.clone(), file, read: Kept::default() })
    }
}

impl Unit for ClientCaUnit {
    fn name(&self) -> UnitName {
        UnitName::ClientCa
    }

    fn kept(&self) -> &'static str {
        "the authorities of clients cannot be replaced, so the current ones stay"
    }

    fn paths(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let file = self.file.clone();
        self.read.read(
            reader,
            move || pem_file(&file, CLIENT_CA),
            |pem| Seen::of([&pem[..], &[self.certificates.client_ca_standing(pem) as u8][..]]),
        )
    }

    fn take(&mut self, cause: Cause) -> Result<Taken, Problems> {
        let Some(pem) = self.read.take()? else { return Ok(Taken::default()) };
        Ok(taken("the authorities of clients", self.certificates.take_client_ca(&self.file, &pem, cause)?))
    }

    fn forget(&mut self) {
        self.read.forget();
    }
}

fn taken(what: &str, new: Option<New>) -> Taken {
    let mut taken = Taken::default();
    if let Some(New { warnings }) = new {
        taken.changes.add(|| format!("new: {what}"));
        for warning in warnings {
            taken.notes.add(|| warning);
        }
    }
    taken
}
