//! Import cycles between the files of a crate, by resolved `crate::` and `super::` paths.

use super::Finding;
use super::source::{SourceFile, module_folder};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};

/// Limit on the re-exports that are followed from one to the next.
const DEPTH: usize = 8;

pub fn check(files: &[SourceFile], findings: &mut Vec<Finding>) {
    let crates: BTreeSet<&str> = files.iter().filter_map(SourceFile::product_crate).collect();
    for name in crates {
        let own = files.iter().filter(|file| file.product_crate() == Some(name));
        let modules = Modules::new(name, own);
        for cycle in modules.cycles() {
            for &index in &cycle {
                let others = cycle.iter().filter(|other| **other != index);
                let others: Vec<&str> = others.map(|other| modules.short(*other)).collect();
                findings.push(Finding {
                    rule: "cycle",
                    path: modules.list[index].path.clone(),
                    line: 1,
                    message: format!("import cycle with {}", others.join(", ")),
                });
            }
        }
    }
}

struct Module {
    path: String,
    /// Items and inline modules that the file declares.
    items: BTreeSet<String>,
    /// Imported names with the paths that they stand for.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Every `crate::` or `super::` path of the file.
    uses: BTreeSet<Vec<String>>,
}

struct Modules {
    folder: String,
    list: Vec<Module>,
    /// By module path from the crate's root.
    index: BTreeMap<Vec<String>, usize>,
}

impl Modules {
    fn new<'a>(name: &str, files: impl Iterator<Item = &'a SourceFile>) -> Modules {
        let folder = format!("crates/{name}/src");
        let (mut list, mut index) = (Vec::new(), BTreeMap::new());
        for file in files {
            let Some(tree) = &file.tree else { continue };
            let inner = module_folder(&file.path);
            let inner = inner.strip_prefix(&folder).unwrap_or_default();
            let path: Vec<String> =
                inner.split('/').filter(|part| !part.is_empty()).map(str::to_string).collect();
            // A crate with a library and a program has two roots; the library's is listed first.
            index.entry(path).or_insert(list.len());
            list.push(module(&file.path, tree));
        }
        Modules { folder, list, index }
    }

    fn short(&self, index: usize) -> &str {
        let path = &self.list[index].path;
        path.strip_prefix(&self.folder).unwrap_or(path).trim_start_matches('/')
    }

    /// Returns the file that declares the item of a path, seen from the module `from`.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<usize> {
        if depth == 0 {
            return None;
        }
        let mut at = from.to_vec();
        let mut rest = path;
        match rest.split_first() {
            Some((first, more)) if first == "crate" => (at, rest) = (Vec::new(), more),
            Some((first, more)) if first == "self" => rest = more,
            _ => {}
        }
        while let Some((_, more)) = rest.split_first().filter(|(first, _)| *first == "super") {
            at.pop()?;
            rest = more;
        }
        let mut own = *self.index.get(&at)?;
        while let Some((first, more)) = rest.split_first() {
            at.push(first.clone());
            if let Some(child) = self.index.get(&at) {
                (own, rest) = (*child, more);
                continue;
            }
            at.pop();
            let module = &self.list[own];
            if module.items.contains(first) {
                return Some(own);
            }
            if let Some(import) = module.imports.get(first) {
                let whole: Vec<String> = import.iter().chain(more).cloned().collect();
                return self.resolve(&at, &whole, depth - 1);
            }
            let through = |glob: &Vec<String>| {
                let whole: Vec<String> = glob.iter().chain(rest).cloned().collect();
                let found = self.resolve(&at, &whole, depth - 1)?;
                self.list[found].items.contains(first).then_some(found)
            };
            return module.globs.iter().find_map(through);
        }
        Some(own)
    }

    fn edges(&self) -> Vec<BTreeSet<usize>> {
        let mut edges = vec![BTreeSet::new(); self.list.len()];
        for (path, &index) in &self.index {
            for used in &self.list[index].uses {
                let target = self.resolve(path, used, DEPTH);
                edges[index].extend(target.filter(|target| *target != index));
            }
        }
        edges
    }

    /// Returns the sets of files that reach each other.
    fn cycles(&self) -> Vec<Vec<usize>> {
        let edges = self.edges();
        let reach: Vec<BTreeSet<usize>> =
            (0..edges.len()).map(|from| reached(&edges, from)).collect();
        let mut seen = BTreeSet::new();
        let mut cycles = Vec::new();
        for (index, from) in reach.iter().enumerate() {
            if seen.contains(&index) || !from.contains(&index) {
                continue;
            }
            let cycle: Vec<usize> =
                from.iter().copied().filter(|other| reach[*other].contains(&index)).collect();
            seen.extend(cycle.iter().copied());
            cycles.push(cycle);
        }
        cycles
    }
}

fn reached(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> = edges[from].iter().copied().collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(edges[next].iter().copied());
        }
    }
    found
}

fn module(path: &str, tree: &syn::File) -> Module {
    let mut module = Module {
        path: path.to_string(),
        items: BTreeSet::new(),
        imports: BTreeMap::new(),
        globs: Vec::new(),
        uses: BTreeSet::new(),
    };
    for item in &tree.items {
        match item {
            syn::Item::Use(item) => import(&mut module, &mut Vec::new(), &item.tree),
            syn::Item::Fn(item) => drop(module.items.insert(item.sig.ident.to_string())),
            syn::Item::Struct(item) => drop(module.items.insert(item.ident.to_string())),
            syn::Item::Enum(item) => drop(module.items.insert(item.ident.to_string())),
            syn::Item::Union(item) => drop(module.items.insert(item.ident.to_string())),
            syn::Item::Trait(item) => drop(module.items.insert(item.ident.to_string())),
            syn::Item::Type(item) => drop(module.items.insert(item.ident.to_string())),
            syn::Item::Const(item) => drop(module.items.insert(item.ident.to_string())),
            syn::Item::Static(item) => drop(module.items.insert(item.ident.to_string())),
            syn::Item::Mod(item) if item.content.is_some() => {
                module.items.insert(item.ident.to_string());
            }
            syn::Item::Macro(item) => {
                module.items.extend(item.ident.as_ref().map(ToString::to_string));
            }
            _ => {}
        }
    }
    paths(tree.to_token_stream(), &mut module.uses);
    module
}

fn import(module: &mut Module, prefix: &mut Vec<String>, tree: &syn::UseTree) {
    match tree {
        syn::UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            import(module, prefix, &path.tree);
            prefix.pop();
        }
        syn::UseTree::Name(name) => {
            let name = name.ident.to_string();
            let mut whole = prefix.clone();
            let visible = match name == "self" {
                true => prefix.last().cloned().unwrap_or_default(),
                false => name.clone(),
            };
            if name != "self" {
                whole.push(name);
            }
            module.imports.insert(visible, whole);
        }
        syn::UseTree::Rename(rename) => {
            let whole = prefix.iter().cloned().chain([rename.ident.to_string()]).collect();
            module.imports.insert(rename.rename.to_string(), whole);
        }
        syn::UseTree::Glob(_) => module.globs.push(prefix.clone()),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|item| import(module, prefix, item));
        }
    }
}

/// Collects paths that start with `crate` or `super`, in use declarations, code and macros.
fn paths(stream: TokenStream, found: &mut BTreeSet<Vec<String>>) {
    let tokens: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Group(group) => paths(group.stream(), found),
            TokenTree::Ident(ident) if *ident == "crate" || *ident == "super" => {
                let mut path = vec![ident.to_string()];
                at = path_after(&tokens, at + 1, &mut path, found);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

/// Follows `::name` and `::{..}` from `at`; returns the index after the path.
fn path_after(
    tokens: &[TokenTree],
    mut at: usize,
    path: &mut Vec<String>,
    found: &mut BTreeSet<Vec<String>>,
) -> usize {
    while is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1)) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(ident)) => path.push(ident.to_string()),
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for part in
                    inner.split(|token| matches!(token, TokenTree::Punct(p) if p.as_char() == ','))
                {
                    let Some(TokenTree::Ident(first)) = part.first() else { continue };
                    let mut whole = path.clone();
                    if *first != "self" {
                        whole.push(first.to_string());
                    }
                    path_after(part, 1, &mut whole, found);
                }
                return at + 3;
            }
            // A glob or generic arguments.
            _ => break,
        }
        at += 3;
    }
    // `pub(crate)` is no path.
    if path.len() > 1 {
        found.insert(path.clone());
    }
    at
}
