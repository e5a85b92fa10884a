//! Finds files of the server that never change, although a program or an operator changes them elsewhere.
//!
//! If a single file is mounted (`subPath` in Kubernetes, or a bind mount of one file in a container), the mount stays with
//! the file of its first moment. A new version is another file, which the mount does not show, so no reload can read it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use spillgate::rules::is_rules_file;

use super::finding::{Finding, Grade};
use crate::settings::Settings;

/// The mounts that this process sees. Other systems than Linux have no such file.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Returns a finding for each file of the settings, and for the settings file `config`, that is mounted alone.
pub(super) fn examine(settings: &Settings, config: Option<&Path>) -> Vec<Finding> {
    let mounts = fs::read(MOUNTS).unwrap_or_default();
    let mounts: Vec<PathBuf> = mount_points(&mounts).collect();
    let named = config.into_iter().chain(settings.files().into_iter().map(PathBuf::as_path));
    let read: Vec<PathBuf> = named.filter_map(|path| path.canonicalize().ok()).collect();
    let alone = mounted_alone(&mounts, &read);
    let alone = alone.filter(|path| path.is_file()).map(|path| {
        let found = format!("{} is mounted alone, so the server never sees a new version of it", path.display());
        let help = "mount the folder of the file instead, without subPath, and name the file in this folder: a mounted \
                    ConfigMap or Secret then changes while the server runs";
        Finding::new("files", Grade::Fix, found, help)
    });
    alone.collect()
}

/// Returns the mounts that are one of the files and folders in `read`, or a rules file in such a folder. The folders
/// themselves are among them.
fn mounted_alone<'m>(mounts: &'m [PathBuf], read: &'m [PathBuf]) -> impl Iterator<Item = &'m PathBuf> {
    mounts
        .iter()
        .filter(|mount| read.iter().any(|path| *mount == path || mount.starts_with(path) && is_rules_file(mount)))
}

/// Returns the fifth field of each line, in which the kernel writes some bytes as a backslash with three octal digits.
fn mount_points(mounts: &[u8]) -> impl Iterator<Item = PathBuf> {
    let fields = mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields.map(|field| PathBuf::from(OsString::from_vec(unescaped(field))))
}

fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_a_mount_is_found_and_a_folder_is_not_taken_for_one() {
        let text = b"22 1 0:21 / / rw - overlay overlay rw\n\
            30 22 8:1 /pods/7/volume-subpaths/r/0 /etc/my\\040rules/api.yaml ro - ext4 /dev/sda1 rw\n\
            31 22 8:1 /pods/7/token /run/token ro - ext4 /dev/sda1 rw\n\
            32 22 8:1 /x /etc/my\\040rules/notes.txt ro - ext4 /dev/sda1 rw\n\
            33 22 8:1 /x /etc/my\\040rules.yaml ro - ext4 /dev/sda1 rw\n\nbroken\n";
        let mounts: Vec<PathBuf> = mount_points(text).collect();
        let read = ["/etc/my rules", "/run/token", "/srv/rules.yaml"].map(PathBuf::from);
        let alone: Vec<_> = mounted_alone(&mounts, &read).map(|path| path.display().to_string()).collect();
        assert_eq!(alone, ["/etc/my rules/api.yaml", "/run/token"]);
        assert_eq!(unescaped(b"a\\134\\0"), b"a\\\\0");
    }
}
