//! Two units: the certificate of the listeners with its key, and the authorities of clients.

use std::path::PathBuf;

use spillgate_service::reloads::{Cause, UnitName};

use super::reader::{READ_WITHIN, Reader};
use super::unit::{Seen, Taken, Unit};
use crate::command::open::redis::pem_file;
use crate::command::serve::certificates::Certificates;
use crate::command::terminal::{Problem, Problems};

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The certificate of the listeners, and its key.
    Pair,
    /// The authorities that sign the certificates of clients.
    ClientCa,
}

pub(super) struct CertificateUnit {
    certificates: Certificates,
    part: Part,
    /// What each file says.
    read: Option<Result<Vec<Vec<u8>>, Problem>>,
}

impl CertificateUnit {
    /// Returns the units of the settings.
    pub(super) fn all(certificates: Option<&Certificates>) -> Vec<CertificateUnit> {
        let unit = |certificates: &Certificates, part| CertificateUnit {
            certificates: certificates.clone(),
            part,
            read: None,
        };
        let Some(certificates) = certificates else { return Vec::new() };
        let of_clients = certificates.files().1.map(|_| unit(certificates, Part::ClientCa));
        [unit(certificates, Part::Pair)].into_iter().chain(of_clients).collect()
    }

    /// Returns each file with the name of its setting.
    fn files(&self) -> Vec<(PathBuf, &'static str)> {
        let ([cert, key], client_ca) = self.certificates.files();
        match self.part {
            Part::Pair => vec![(cert.to_owned(), "tls.cert"), (key.to_owned(), "tls.key")],
            Part::ClientCa => client_ca.map(|path| (path.to_owned(), "tls.client_ca")).into_iter().collect(),
        }
    }
}

impl Unit for CertificateUnit {
    fn name(&self) -> UnitName {
        match self.part {
            Part::Pair => UnitName::Certificate,
            Part::ClientCa => UnitName::ClientCa,
        }
    }

    fn kept(&self) -> &'static str {
        match self.part {
            Part::Pair => "the certificate of the listeners cannot be replaced, so they use the current one",
            Part::ClientCa => "the authorities of clients cannot be replaced, so the current ones stay",
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files().into_iter().map(|(path, _)| path).collect()
    }

    fn read(&mut self, reader: &mut Reader) -> Seen {
        let files = self.files();
        let work = move || files.iter().map(|(path, setting)| pem_file(path, setting)).collect::<Result<Vec<_>, _>>();
        let read = reader.read(READ_WITHIN, work).and_then(|read| read);
        let seen = match &read {
            Ok(contents) => Seen::of(contents.iter().map(Vec::as_slice)),
            // No unit has three files, so this differs from what any files say.
            Err(problem) => Seen::of([&b""[..], b"problem", problem.to_string().as_bytes()]),
        };
        self.read = Some(read);
        seen
    }

    fn take(&mut self, _: Cause) -> Result<Taken, Problems> {
        let mut taken = Taken::default();
        let Some(read) = self.read.take() else { return Ok(taken) };
        let (is_new, what) = match (&read?[..], self.part) {
            ([cert, key], Part::Pair) => {
                (self.certificates.take_pair([cert, key])?, "the certificate of the listeners")
            }
            ([pem], Part::ClientCa) => (self.certificates.take_client_ca(pem)?, "the authorities of clients"),
            _ => return Ok(taken),
        };
        if is_new {
            taken.changes.add(|| format!("new: {what}"));
        }
        Ok(taken)
    }

    fn forget(&mut self) {
        self.read = None;
    }
}
