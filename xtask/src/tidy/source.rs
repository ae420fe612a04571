//! The files that the rules read.

use std::path::Path;
use std::process::Command;
use syn::visit::{self, Visit};

pub struct SourceFile {
    /// Relative to the root, with `/`.
    pub path: String,
    pub text: String,
    /// The syntax tree of Rust files, without the items that only tests compile.
    pub tree: Option<syn::File>,
}

impl SourceFile {
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The crate whose product code this is; `None` for tests, examples and xtask.
    pub fn product_crate(&self) -> Option<&str> {
        let (name, path) = self.path.strip_prefix("crates/")?.split_once('/')?;
        let is_product = path.starts_with("src/") && self.tree.is_some() && !is_test_file(path);
        is_product.then_some(name)
    }
}

/// Module files that only tests compile: their parent declares them under `#[cfg(test)]`.
fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Loads all Rust and Markdown files that git tracks or that are new.
pub fn load(root: &Path) -> Result<Vec<SourceFile>, String> {
    let args = ["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.rs", "*.md"];
    let output = Command::new("git").args(args).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).lines() {
        // A file may have been deleted but not staged.
        let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
        let mut file = SourceFile { path: path.to_string(), text, tree: None };
        if file.is_rust() {
            let tree = syn::parse_file(&file.text).map_err(|error| {
                format!("{path}:{}: cannot parse: {error}", error.span().start().line)
            })?;
            file.tree = Some(without_tests(tree));
        }
        files.push(file);
    }
    drop_test_modules(&mut files);
    Ok(files)
}

/// Removes the trees of files whose module is declared under `#[cfg(test)]`.
fn drop_test_modules(files: &mut [SourceFile]) {
    let mut of_tests = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Ok(tree) = syn::parse_file(&file.text) else { continue };
        let folder = module_folder(&file.path);
        for item in &tree.items {
            if let syn::Item::Mod(module) = item
                && module.content.is_none()
                && is_for_tests(&module.attrs)
            {
                of_tests.push(format!("{folder}/{}", module.ident));
            }
        }
    }
    for file in files.iter_mut() {
        let stem = file.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let is_inside = |module: &String| {
            stem.strip_prefix(module.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if of_tests.iter().any(is_inside) {
            file.tree = None;
        }
    }
}

/// Returns the folder of the modules that a file declares.
pub fn module_folder(path: &str) -> String {
    let stem = path.trim_end_matches(".rs");
    let own = ["/mod", "/lib", "/main"].iter().find_map(|end| stem.strip_suffix(end));
    own.unwrap_or(stem).to_string()
}

fn without_tests(mut tree: syn::File) -> syn::File {
    fn strip(items: &mut Vec<syn::Item>) {
        items.retain(|item| !is_for_tests(attributes(item)));
        for item in items {
            if let syn::Item::Mod(module) = item
                && let Some((_, items)) = &mut module.content
            {
                strip(items);
            }
        }
    }
    strip(&mut tree.items);
    tree
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether attributes contain `#[cfg(test)]`, also as a part of `all(..)`, or `#[test]`.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    struct Find(bool);
    impl<'ast> Visit<'ast> for Find {
        fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
            let is_cfg = attribute.path().is_ident("cfg");
            if let syn::Meta::List(list) = &attribute.meta
                && is_cfg
            {
                let text = list.tokens.to_string();
                self.0 |= text == "test" || text.starts_with("all (test");
            }
            self.0 |= attribute.path().is_ident("test");
            visit::visit_attribute(self, attribute);
        }
    }
    let mut find = Find(false);
    attributes.iter().for_each(|attribute| find.visit_attribute(attribute));
    find.0
}
