//! Finds which folder of a crate imports which other folder, and checks that these imports form no cycle.
//!
//! The folders of a cycle cannot be read, tested or replaced one at a time. A module can import a name through a facade
//! (`pub use` in `lib.rs` or in the `mod.rs` of a folder). The test then follows the facade to the file that defines the
//! name. Otherwise a facade would hide every cycle.

use std::collections::{BTreeMap, BTreeSet};

use super::rust_source::{Import, Source};
use super::{assert_none, is_shipped, sources};

const CRATES: [&str; 4] = ["spillgate-core", "spillgate", "spillgate-redis", "spillgate-server"];

/// The path of a module in its crate: `["a", "b"]` for `src/a/b.rs` and for `src/a/b/mod.rs`.
type ModulePath = Vec<String>;

struct Module {
    file: String,
    imports: Vec<Import>,
    /// The paths such as `a::b` in the code, each with its line number.
    paths: Vec<(usize, String)>,
    /// The names of the items that the file defines.
    items: BTreeSet<String>,
}

/// The modules of one crate.
struct Crate {
    /// The name of the crate in paths: `spillgate_core` for the folder `spillgate-core`.
    name: String,
    modules: BTreeMap<ModulePath, Module>,
}

/// The imports between folders. A key has two folders: the folder that imports, and the folder that is imported. The value
/// is the place of such an import in the code.
type Edges = BTreeMap<(String, String), String>;

impl Crate {
    fn new(folder: &str, sources: Vec<Source>) -> Crate {
        let of_tests: BTreeSet<ModulePath> = sources
            .iter()
            .flat_map(|source| source.test_modules.iter().map(|name| child(&module_path(&source.path), name)))
            .collect();
        let mut modules = BTreeMap::new();
        for source in sources {
            let path = module_path(&source.path);
            if (0..=path.len()).any(|len| of_tests.contains(&path[..len])) {
                continue;
            }
            let (imports, paths) = source.imports_and_paths();
            modules.insert(path, Module { items: items(&source.shipped_code), file: source.path, imports, paths });
        }
        Crate { name: folder.replace('-', "_"), modules }
    }

    /// Returns the module that defines an item. The module `from` names this item with `path`. Returns `None` if
    /// another crate defines the item. Follows at most `depth` re-exports.
    fn definition(&self, from: &[String], path: &str, depth: usize) -> Option<ModulePath> {
        let mut segments: Vec<&str> = path.split("::").collect();
        let first = segments[0];
        let mut at = if first == "crate" || first == self.name {
            segments.remove(0);
            ModulePath::new()
        } else if self.names(from, first) && depth > 0 {
            from.to_vec()
        } else {
            return None;
        };
        for (number, segment) in segments.iter().enumerate() {
            if self.modules.contains_key(&child(&at, segment)) {
                at = child(&at, segment);
                continue;
            }
            let Some(module) = self.modules.get(&at).filter(|_| depth > 0) else { break };
            if let Some(import) = module.imports.iter().find(|import| import.name == *segment) {
                let rest = [&[import.path.as_str()], &segments[number + 1..]].concat().join("::");
                return self.definition(&at, &rest, depth - 1);
            }
            if !module.items.contains(*segment) {
                let globs = module.imports.iter().filter(|import| import.name == "*");
                let targets =
                    globs.filter_map(|glob| self.definition(&at, glob.path.trim_end_matches("::*"), depth - 1));
                let rest = segments[number..].join("::");
                let through = targets.into_iter().find(|target| self.names(target, segment));
                return match through {
                    Some(target) => self.definition(&target, &rest, depth - 1),
                    None => Some(at),
                };
            }
            break;
        }
        Some(at)
    }

    /// Returns whether the module has a child module, an import or an item with this name.
    fn names(&self, module: &[String], name: &str) -> bool {
        let found = self.modules.get(module);
        let imported = |module: &Module| module.imports.iter().any(|import| import.name == name);
        self.modules.contains_key(&child(module, name)) || found.is_some_and(|m| imported(m) || m.items.contains(name))
    }

    /// Returns the folder of a module. A file directly in `src` counts as a folder of its own.
    fn node(&self, module: &[String]) -> String {
        let is_folder = self.modules.keys().any(|other| other.len() > module.len() && other.starts_with(module));
        let folder = if is_folder || module.len() == 1 { module } else { &module[..module.len().saturating_sub(1)] };
        if folder.is_empty() { String::from("lib") } else { folder.join("/") }
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (from, module) in &self.modules {
            let imports = module.imports.iter().map(|import| (import.line, &import.path, import.public));
            let paths = module.paths.iter().map(|(line, path)| (*line, path, false));
            for (line, path, public) in imports.chain(paths) {
                let Some(to) = self.definition(from, path, 8) else { continue };
                // A facade is allowed to re-export items from its own folder. This is not an import between folders.
                if public && to.starts_with(from) {
                    continue;
                }
                let (here, there) = (self.node(from), self.node(&to));
                if here != there {
                    edges.entry((here, there)).or_insert_with(|| format!("{}:{line} names {path}", module.file));
                }
            }
        }
        edges
    }
}

fn child(module: &[String], name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn module_path(file: &str) -> ModulePath {
    let inside = file.split_once("/src/").map_or(file, |(_, inside)| inside).trim_end_matches(".rs");
    let parts = inside.split('/').filter(|part| !matches!(*part, "lib" | "mod"));
    parts.map(str::to_owned).collect()
}

/// Returns the names of the items that the code defines. Methods are included.
fn items(code: &str) -> BTreeSet<String> {
    let keywords = ["struct", "enum", "trait", "fn", "const", "static", "type", "union", "mod", "macro_rules"];
    let words: Vec<&str> =
        code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    let defined = words.windows(2).filter(|pair| keywords.contains(&pair[0]));
    defined.map(|pair| pair[1].to_owned()).collect()
}

/// Returns the groups of folders that import each other (directly or through other folders). Each group has its list of imports.
fn cycles(edges: &Edges) -> Vec<(BTreeSet<String>, Vec<String>)> {
    let nodes: BTreeSet<&String> = edges.keys().flat_map(|(from, to)| [from, to]).collect();
    let reached = |start: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(node) = open.pop() {
            let next = edges.keys().filter(|(from, _)| *from == node).map(|(_, to)| to.clone());
            open.extend(next.filter(|to| seen.insert(to.clone())).collect::<Vec<_>>());
        }
        seen
    };
    let reach: BTreeMap<&String, BTreeSet<String>> = nodes.into_iter().map(|node| (node, reached(node))).collect();
    let mut found: Vec<(BTreeSet<String>, Vec<String>)> = Vec::new();
    for (node, reached) in reach.iter().filter(|(node, reached)| reached.contains(**node)) {
        if found.iter().any(|(group, _)| group.contains(*node)) {
            continue;
        }
        let back = |other: &&String| reach.get(other).is_some_and(|theirs| theirs.contains(*node));
        let group: BTreeSet<String> = reached.iter().filter(back).cloned().collect();
        let inside = edges.iter().filter(|((from, to), _)| group.contains(from) && group.contains(to));
        let imports = inside.map(|((from, to), place)| format!("{from} -> {to}: {place}")).collect();
        found.push((group, imports));
    }
    found
}

#[test]
fn the_folders_of_each_crate_form_no_cycle() {
    let mut problems = Vec::new();
    let mut shipped: Vec<Source> = sources().into_iter().filter(|source| is_shipped(&source.path)).collect();
    for name in CRATES {
        let src = format!("crates/{name}/src/");
        let own = shipped.extract_if(.., |source| source.path.starts_with(&src)).collect();
        let edges = Crate::new(name, own).edges();
        assert!(edges.len() > 3, "{name}: only {} imports were resolved", edges.len());
        for (group, imports) in cycles(&edges) {
            let group: Vec<_> = group.into_iter().collect();
            problems.push(format!("{name}: {}\n      {}", group.join(", "), imports.join("\n      ")));
        }
    }
    assert_none(&problems, "the imports between folders must not form a cycle");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let sources = files.iter().map(|(path, text)| Source::new(format!("crates/x/src/{path}"), (*text).to_owned()));
        Crate::new("x", sources.collect()).edges().into_keys().map(|(from, to)| format!("{from} -> {to}")).collect()
    }

    #[test]
    fn facades_are_seen_through() {
        let facade = "pub mod a;\npub mod b;\npub use a::Thing;\npub use b::*;\npub struct Own;\n";
        let a = ("a/mod.rs", "mod deep;\npub(crate) use deep::{Thing, Other as Else};\n");
        let deep = ("a/deep.rs", "pub struct Thing;\npub struct Other;\n");
        for (code, expected) in [
            ("use crate::Thing;", vec!["b -> a"]),
            ("use x::{Thing as T};", vec!["b -> a"]),
            ("fn f() { crate::a::Else::new() }", vec!["b -> a"]),
            ("use super::Own;", vec!["b -> lib"]),
            ("use std::fmt;\nfn f() -> fmt::Result { a::f() }", vec![]),
            ("#[cfg(test)]\nmod tests { use crate::a::Thing; }", vec![]),
            ("use crate::InB as Me;\npub struct InB;", vec![]),
        ] {
            assert_eq!(edges(&[("lib.rs", facade), a, deep, ("b.rs", code)]), expected, "{code}");
        }
        let glob = ("c/mod.rs", "use crate::InB;\n");
        assert_eq!(edges(&[("lib.rs", facade), glob, ("b.rs", "pub struct InB;")]), ["c -> b"]);
    }

    #[test]
    fn a_planted_cycle_is_found() {
        let up = ("a/mod.rs", "mod low;\nuse crate::b::B;\npub struct A;\n");
        let files = [("lib.rs", "mod a;\nmod b;\npub use a::A;\n"), up, ("b.rs", "use crate::A;\npub struct B;\n")];
        assert_eq!(edges(&files), ["a -> b", "b -> a"]);
        let own = |pairs: &[(&str, &str)]| {
            let edge = |(from, to): &(&str, &str)| ((String::from(*from), String::from(*to)), String::from("here"));
            cycles(&pairs.iter().map(edge).collect()).into_iter().map(|(group, _)| group.len()).collect::<Vec<_>>()
        };
        assert_eq!(own(&[("a", "b"), ("b", "c"), ("a", "c")]), [0; 0]);
        assert_eq!(own(&[("a", "b"), ("b", "c"), ("c", "b"), ("d", "e"), ("e", "f"), ("f", "d")]), [2, 3]);
    }
}
