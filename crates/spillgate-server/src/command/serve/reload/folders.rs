//! Finds the folders in which a change can mean that files say something else.
//!
//! A watch on a file would end with the first program that replaces the file by renaming. So folders are watched: that of
//! each file, and also that of each symlink on the way to it. A mounted ConfigMap is such a way: `rules.yaml` leads to
//! `..data/rules.yaml`, and `..data` to the folder of the newest version, which another link replaces.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use spillgate::rules::is_rules_file;

/// The maximum number of folders that are watched. Each costs the system about a kilobyte.
const FOLDERS_MAX: usize = 1_000;

/// The maximum number of symlinks on the way to one file. Linux follows at most 40 too.
const LINKS_MAX: usize = 40;

/// The maximum number of levels of folders, and of entries in the folders of one path, as when rules are read.
const DEEP_MAX: usize = 8;
const ENTRIES_MAX: usize = 10_000;

/// Why folders are not looked through.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TooMany {
    /// There are more folders than [`FOLDERS_MAX`].
    Folders,
    /// This path has more entries than [`ENTRIES_MAX`].
    Entries(PathBuf),
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TooMany::Folders => {
                write!(f, "the files are in more than {FOLDERS_MAX} folders, which is too many to watch")
            }
            TooMany::Entries(path) => write!(f, "{} has more than {ENTRIES_MAX} files and folders", path.display()),
        }
    }
}

/// Returns the folders of the files and folders in `paths`, with the folders inside them. What does not exist has the
/// nearest folder that does.
pub(super) fn folders_of(paths: &[PathBuf]) -> Result<BTreeSet<PathBuf>, TooMany> {
    let (mut found, mut walked) = (BTreeSet::new(), BTreeMap::new());
    for path in paths {
        walk(path, &mut found, &mut walked)?;
    }
    Ok(found)
}

/// Adds the folders of one path to those that were `found`. `walked` are the folders that were looked through, with their
/// depth: one can be found without that, because it is on the way to a file.
fn walk(start: &Path, found: &mut BTreeSet<PathBuf>, walked: &mut BTreeMap<PathBuf, usize>) -> Result<(), TooMany> {
    let mut entries = 0;
    let mut waiting = vec![(start.to_owned(), 0)];
    while let Some((path, depth)) = waiting.pop() {
        let Ok(path) = std::path::absolute(path) else { continue };
        let real = follow(&path, found);
        if found.len() > FOLDERS_MAX {
            return Err(TooMany::Folders);
        }
        let Some(real) = real.filter(|real| real.is_dir() && depth < DEEP_MAX) else { continue };
        // From a lower depth, more levels inside it can be reached.
        if walked.get(&real).is_some_and(|before| *before <= depth) {
            continue;
        }
        walked.insert(real.clone(), depth);
        found.insert(real.clone());
        // A folder that cannot be read is an error of its unit.
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return Err(TooMany::Entries(start.to_owned()));
            }
            let entry_path = entry.path();
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            let kind = entry.file_type().ok().filter(|_| !is_hidden);
            let is_on_a_way = kind.is_some_and(|kind| {
                kind.is_dir() || kind.is_symlink() && (is_rules_file(&entry_path) || entry_path.is_dir())
            });
            if is_on_a_way {
                waiting.push((entry_path, depth + 1));
            }
        }
    }
    if found.len() > FOLDERS_MAX { Err(TooMany::Folders) } else { Ok(()) }
}

/// Goes to `path`, which is absolute, and adds the folder of each symlink on the way, and the folder in which the path ends.
/// Returns the path without symlinks, or `None` if it does not exist or never ends.
fn follow(path: &Path, found: &mut BTreeSet<PathBuf>) -> Option<PathBuf> {
    let mut at = PathBuf::from("/");
    let mut rest: VecDeque<OsString> = parts(path);
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        match fs::read_link(&next) {
            Ok(target) => {
                found.insert(at.clone());
                links += 1;
                if links > LINKS_MAX {
                    return None;
                }
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for part in parts(&target).into_iter().rev() {
                    rest.push_front(part);
                }
            }
            // It exists and is no symlink.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                if rest.is_empty() {
                    found.insert(at);
                }
                at = next;
                if rest.is_empty() {
                    return Some(at);
                }
            }
            Err(_) => {
                found.insert(at);
                return None;
            }
        }
    }
    Some(at)
}

/// Returns the parts of a path, without those that mean the same folder.
fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// Returns the folders of `paths` inside a folder, without the folders outside it.
    fn inside(folder: &TempDir, paths: &[&str]) -> Vec<String> {
        let root = folder.path().canonicalize().expect("the folder exists");
        let paths: Vec<_> = paths.iter().map(|path| root.join(path)).collect();
        let found = folders_of(&paths).expect("there are few folders");
        let inside = found.iter().filter_map(|path| path.strip_prefix(&root).ok());
        inside.map(|path| path.display().to_string()).collect()
    }

    fn write(folder: &TempDir, path: &str) {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
        fs::write(path, "").expect("the file can be written");
    }

    #[test]
    fn a_file_is_watched_by_its_folder_and_a_folder_with_those_inside_it() {
        let folder = TempDir::new().expect("a folder can be made");
        for path in ["a/rules.yaml", "rules/one.yaml", "rules/more/two.yaml", "rules/.git/three.yaml"] {
            write(&folder, path);
        }
        assert_eq!(inside(&folder, &["a/rules.yaml"]), ["a"]);
        assert_eq!(inside(&folder, &["rules"]), ["", "rules", "rules/more"]);
        assert_eq!(inside(&folder, &["gone/further/rules.yaml"]), [""], "it can come again");
        assert_eq!(inside(&folder, &["a/b.yaml"]), ["a"]);
    }

    #[test]
    fn the_folder_of_each_symlink_on_the_way_is_watched() {
        let folder = TempDir::new().expect("a folder can be made");
        write(&folder, "map/..2026_1/rules.yaml");
        let link = |target: &str, name: &str| symlink(target, folder.path().join(name)).expect("a link can be made");
        link("..2026_1", "map/..data");
        link("..data/rules.yaml", "map/rules.yaml");
        assert_eq!(inside(&folder, &["map/rules.yaml"]), ["map", "map/..2026_1"]);
        assert_eq!(inside(&folder, &["map"]), ["", "map", "map/..2026_1"]);
        write(&folder, "versions/7/config/rules.yaml");
        fs::create_dir(folder.path().join("srv")).expect("the folder can be made");
        link("../versions/7", "srv/current");
        assert_eq!(inside(&folder, &["srv/current/config/rules.yaml"]), ["srv", "versions/7/config"]);
        assert_eq!(inside(&folder, &["srv/current/config"]), ["srv", "versions/7", "versions/7/config"]);
    }

    #[test]
    fn a_loop_of_symlinks_ends() {
        let folder = TempDir::new().expect("a folder can be made");
        symlink("b.yaml", folder.path().join("a.yaml")).expect("a link can be made");
        symlink("a.yaml", folder.path().join("b.yaml")).expect("a link can be made");
        assert_eq!(inside(&folder, &["a.yaml"]), [""]);
        symlink(".", folder.path().join("again")).expect("a link can be made");
        assert_eq!(inside(&folder, &["."]), [""]);
    }

    #[test]
    fn too_many_folders_are_not_watched() {
        let folder = TempDir::new().expect("a folder can be made");
        for at in 0..=FOLDERS_MAX {
            fs::create_dir(folder.path().join(at.to_string())).expect("a folder can be made");
        }
        assert_eq!(folders_of(&[folder.path().to_owned()]), Err(TooMany::Folders));
    }

    #[test]
    fn a_folder_that_is_on_another_way_too_is_looked_through() {
        let folder = TempDir::new().expect("a folder can be made");
        for path in ["r/a/token", "r/a/b/y.yaml", "r/c/x.yaml"] {
            write(&folder, path);
        }
        let all = ["", "r", "r/a", "r/a/b", "r/c"];
        assert_eq!(inside(&folder, &["r", "r/a/token"]), all);
        assert_eq!(inside(&folder, &["r/a/token", "r"]), all);
        symlink("../a", folder.path().join("r/c/link")).expect("a link can be made");
        assert_eq!(inside(&folder, &["r/c"]), ["r", "r/a", "r/a/b", "r/c"]);
        assert_eq!(inside(&folder, &["r"]), all);
        // The bound on the depth counts from each path.
        write(&folder, "1/2/3/4/5/6/7/8/9/10/z.yaml");
        let deep = inside(&folder, &["1", "1/2/3/4"]);
        assert!(deep.contains(&"1/2/3/4/5/6/7/8/9/10".to_owned()), "{deep:?}");
        assert_eq!(inside(&folder, &["1/2/3/4", "1"]), deep);
    }

    #[test]
    fn the_entries_of_each_path_are_counted() {
        let folder = TempDir::new().expect("a folder can be made");
        for name in ["a", "b"] {
            fs::create_dir(folder.path().join(name)).expect("a folder can be made");
            for at in 0..6_000 {
                fs::File::create(folder.path().join(name).join(at.to_string())).expect("a file can be made");
            }
        }
        assert_eq!(inside(&folder, &["a", "b"]), ["", "a", "b"]);
        let too_many = folders_of(&[folder.path().to_owned()]).expect_err("there are 12,002 entries");
        assert!(too_many.to_string().ends_with(" has more than 10000 files and folders"), "{too_many}");
    }
}
