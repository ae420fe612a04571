//! `xtask/unsafe.txt`: the files that may use unsafe code. Crates without such a file forbid it.
//! In any file, a comment above each unsafe block says why it is sound.

use super::source::SourceFile;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::path::Path;

const FILE: &str = "xtask/unsafe.txt";
const FORBID: &str = "#![forbid(unsafe_code)]";

pub fn check(root: &Path, files: &[SourceFile], errors: &mut Vec<String>) -> Result<(), String> {
    let list = std::fs::read_to_string(root.join(FILE)).map_err(|it| format!("{FILE}: {it}"))?;
    let is_path = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let mut listed: BTreeSet<&str> = list.lines().filter(is_path).collect();
    let crates: BTreeSet<String> = listed.iter().map(|path| crate_of(path)).collect();
    for file in files.iter().filter(|file| file.is_rust()) {
        let tokens: TokenStream =
            file.text.parse().map_err(|error| format!("{}: {error}", file.path))?;
        let lines: Vec<&str> = file.text.lines().collect();
        for line in unexplained(tokens, &lines) {
            errors.push(format!("{}:{line}: unsafe code without a SAFETY comment", file.path));
        }
        let path = file.path.as_str();
        let is_listed = listed.remove(path);
        if let (Some(_), Some(tree)) = (file.product_crate(), &file.tree) {
            let is_unsafe = has_unsafe(quote::ToTokens::to_token_stream(tree));
            match (is_unsafe, is_listed) {
                (true, false) => errors.push(format!("{path}: has unsafe code, see {FILE}")),
                (false, true) => errors.push(format!("{FILE}: {path} has no unsafe code")),
                _ => {}
            }
        }
        let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
        if is_root && !crates.contains(&crate_of(path)) && !file.text.contains(FORBID) {
            errors.push(format!("{path}: expected {FORBID}"));
        }
    }
    errors.extend(listed.iter().map(|path| format!("{FILE}: {path} does not exist")));
    Ok(())
}

fn crate_of(path: &str) -> String {
    path.split("/src/").next().unwrap_or(path).to_string()
}

fn has_unsafe(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => has_unsafe(group.stream()),
        TokenTree::Ident(ident) => ident == "unsafe",
        _ => false,
    })
}

/// Returns the lines of the blocks and implementations that no comment explains.
fn unexplained(tokens: TokenStream, lines: &[&str]) -> Vec<usize> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (token, next) in tokens.iter().zip(tokens.iter().skip(1).map(Some).chain([None])) {
        match (token, next) {
            (TokenTree::Group(group), _) => found.extend(unexplained(group.stream(), lines)),
            (TokenTree::Ident(ident), Some(next)) if ident == "unsafe" => {
                let has_promise = match next {
                    TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                    next => next.to_string() == "impl",
                };
                let line = ident.span().start().line;
                if has_promise && !is_explained(line, lines) {
                    found.push(line);
                }
            }
            _ => {}
        }
    }
    found
}

/// Looks for the comment above a line, up to the previous statement.
fn is_explained(line: usize, lines: &[&str]) -> bool {
    let ends_here = |line: &&&str| {
        let line = line.trim();
        let is_comment = line.starts_with("//");
        line.is_empty() || !is_comment && line.ends_with([';', '{', '}'])
    };
    let above = lines[..line - 1].iter().rev();
    let own = lines[line - 1].contains("// SAFETY:");
    own || above.take_while(|line| !ends_here(line)).any(|line| line.contains("// SAFETY:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_a_comment_above() {
        let lines_of = |text: &str| {
            let lines: Vec<&str> = text.lines().collect();
            unexplained(text.parse().unwrap(), &lines)
        };
        let explained = "fn f() {
            // SAFETY: because.
            // Two lines.
            let x = g(1, || unsafe { h() });
            match x {
                // SAFETY: here and in the other arms.
                #[cfg(unix)]
                1 => unsafe { h() },
                _ => unsafe { h() },
            }
        }
        unsafe fn g() {}";
        assert_eq!(lines_of(explained), [0; 0]);
        let silent = "fn f() {
            // SAFETY: because.
            g();
            unsafe { h() };
            m!(unsafe { h() });
        }
        // SAFETY: because.
        unsafe impl Send for X {}
        unsafe impl Sync for X {}";
        assert_eq!(lines_of(silent), [4, 5, 9]);
    }
}
