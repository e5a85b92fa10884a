//! Finds the types of other crates that the public functions and types of our libraries name.
//!
//! A new major version of such a crate changes our interface too. So the page "Versions" lists these types, and the test
//! fails if the list differs from the code.

use std::collections::{BTreeMap, BTreeSet};

use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Fields, ImplItem, Item, Path, Token, UseTree, Visibility};

use super::{files, root};

const PAGE: &str = "docs/src/reference/versions.md";
const LIBRARIES: [&str; 9] = [
    "spillgate-core",
    "spillgate-limiter",
    "spillgate-text",
    "spillgate-rules",
    "spillgate-insight",
    "spillgate-tower",
    "spillgate-outbound",
    "spillgate",
    "spillgate-redis",
];
/// Names that do not belong to another crate: the standard library, and words for our own modules.
const OWN: [&str; 6] = ["std", "core", "alloc", "crate", "self", "super"];

/// For each other crate, the paths of its types that our public items name.
type Types = BTreeMap<String, BTreeSet<String>>;

/// The names of one file, and the types of other crates that its public items name.
struct Finder<'a> {
    others: &'a BTreeSet<String>,
    public: &'a BTreeSet<String>,
    imported: BTreeMap<String, String>,
    found: Types,
}

impl Finder<'_> {
    fn import(&mut self, tree: &UseTree, before: &str, is_public: bool) {
        let join = |name: &dyn ToString| match before {
            "" => name.to_string(),
            before => format!("{before}::{}", name.to_string()),
        };
        let (name, path) = match tree {
            UseTree::Path(path) => return self.import(&path.tree, &join(&path.ident), is_public),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, before, is_public));
            }
            UseTree::Name(name) => (name.ident.to_string(), join(&name.ident)),
            UseTree::Rename(rename) => (rename.rename.to_string(), join(&rename.ident)),
            _ => return,
        };
        if is_public {
            self.note(&path);
        }
        // `use http::header::{self, Entry}` imports the module under its last name.
        let path = path.strip_suffix("::self").unwrap_or(&path).to_owned();
        let name = if name == "self" { path.rsplit("::").next().unwrap_or(&path).to_owned() } else { name };
        self.imported.insert(name, path);
    }

    fn note(&mut self, path: &str) {
        let (krate, _) = path.split_once("::").unwrap_or((path, ""));
        if self.others.contains(krate) && path != krate {
            self.found.entry(krate.to_owned()).or_default().insert(path.to_owned());
        }
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Fn(it) if is_public(&it.vis) => self.visit_signature(&it.sig),
            Item::Struct(it) if is_public(&it.vis) => {
                self.visit_generics(&it.generics);
                self.fields(&it.fields);
            }
            Item::Enum(it) if is_public(&it.vis) => {
                self.visit_generics(&it.generics);
                it.variants.iter().flat_map(|variant| &variant.fields).for_each(|field| self.visit_type(&field.ty));
            }
            Item::Type(it) if is_public(&it.vis) => self.visit_type(&it.ty),
            Item::Const(it) if is_public(&it.vis) => self.visit_type(&it.ty),
            Item::Trait(it) if is_public(&it.vis) => self.visit_item_trait(it),
            Item::Mod(it) if !is_test(&it.attrs) => {
                it.content.iter().flat_map(|(_, items)| items).for_each(|item| self.item(item));
            }
            Item::Impl(it) if !is_test(&it.attrs) && self.is_public_type(&it.self_ty) => {
                self.visit_generics(&it.generics);
                if let Some(implemented) = &it.trait_ {
                    self.visit_path(&implemented.0);
                }
                let is_trait = it.trait_.is_some();
                it.items.iter().for_each(|item| self.impl_item(item, is_trait));
            }
            _ => {}
        }
    }

    fn impl_item(&mut self, item: &ImplItem, is_trait: bool) {
        match item {
            ImplItem::Fn(it) if is_trait || is_public(&it.vis) => self.visit_signature(&it.sig),
            ImplItem::Type(it) => self.visit_type(&it.ty),
            ImplItem::Const(it) if is_trait || is_public(&it.vis) => self.visit_type(&it.ty),
            _ => {}
        }
    }

    fn fields(&mut self, fields: &Fields) {
        fields.iter().filter(|field| is_public(&field.vis)).for_each(|field| self.visit_type(&field.ty));
    }

    fn is_public_type(&self, of: &syn::Type) -> bool {
        let syn::Type::Path(path) = of else { return true };
        path.path.segments.last().is_some_and(|name| self.public.contains(&name.ident.to_string()))
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_path(&mut self, path: &'ast Path) {
        let mut names = path.segments.iter().map(|segment| segment.ident.to_string());
        let first = names.next().unwrap_or_default();
        let first = self.imported.get(&first).cloned().unwrap_or(first);
        let whole = names.fold(first, |path, name| format!("{path}::{name}"));
        self.note(&whole);
        visit::visit_path(self, path);
    }

    /// The bodies of functions are not a part of the interface.
    fn visit_block(&mut self, _: &'ast syn::Block) {}
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_test(attributes: &[Attribute]) -> bool {
    let is_test = |attribute: &Attribute| {
        let names = attribute.parse_args_with(Punctuated::<Path, Token![,]>::parse_terminated);
        attribute.path().is_ident("cfg") && names.is_ok_and(|names| names.iter().any(|name| name.is_ident("test")))
    };
    attributes.iter().any(is_test)
}

/// Returns the names of all types in these items that are declared `pub`.
fn public_types(items: &[Item], names: &mut BTreeSet<String>) {
    for item in items {
        let (visibility, name) = match item {
            Item::Struct(it) => (&it.vis, &it.ident),
            Item::Enum(it) => (&it.vis, &it.ident),
            Item::Trait(it) => (&it.vis, &it.ident),
            // `pin_project! { pub struct .. }`
            Item::Macro(it) => {
                let inner = syn::parse2::<syn::File>(it.mac.tokens.clone());
                inner.iter().for_each(|file| public_types(&file.items, names));
                continue;
            }
            _ => continue,
        };
        if is_public(visibility) {
            names.insert(name.to_string());
        }
    }
}

fn dependencies(library: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("crates").join(library).join("Cargo.toml")).unwrap();
    let lines =
        text.lines().skip_while(|line| *line != "[dependencies]").skip(1).take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next()).filter(|name| !name.is_empty());
    names
        .map(|name| name.replace('-', "_"))
        .filter(|name| !OWN.contains(&&**name) && !name.starts_with("spillgate"))
        .collect()
}

fn types_of(library: &str) -> Types {
    let folder = format!("crates/{library}/src/");
    let is_source = |path: &str| path.starts_with(&folder) && path.ends_with(".rs") && !path.contains("/tests");
    let files: Vec<syn::File> =
        files().iter().filter(|(path, _)| is_source(path)).map(|(_, text)| syn::parse_file(text).unwrap()).collect();
    let (others, mut public) = (dependencies(library), BTreeSet::new());
    files.iter().for_each(|file| public_types(&file.items, &mut public));
    let mut found = Types::new();
    for file in &files {
        let mut finder = Finder { others: &others, public: &public, imported: BTreeMap::new(), found: Types::new() };
        for item in &file.items {
            if let Item::Use(it) = item {
                finder.import(&it.tree, "", is_public(&it.vis));
            }
        }
        file.items.iter().for_each(|item| finder.item(item));
        finder.found.into_iter().for_each(|(krate, types)| found.entry(krate).or_default().extend(types));
    }
    found
}

#[test]
fn the_page_lists_the_types_of_other_crates() {
    let rows = LIBRARIES.map(|library| {
        let types = types_of(library);
        let row = |(krate, types): (&String, &BTreeSet<String>)| {
            let types: Vec<String> = types.iter().map(|path| format!("`{path}`")).collect();
            format!("| `{library}` | `{krate}` | {} |\n", types.join(", "))
        };
        types.iter().map(row).collect::<String>()
    });
    let rows = rows.concat();
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    assert!(page.contains(&rows), "{PAGE} must have these rows, after a review of the new types:\n{rows}");
}
