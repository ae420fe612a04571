//! Rules about product code: lengths of functions, and calls that few files may make.

use super::Finding;
use super::source::SourceFile;
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::BTreeSet;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Limit on the lines of a function, which must fit a screen.
const FUNCTION_LINES: usize = 70;

/// Places that may read the environment: programs, harnesses of tests, the wrapper of libraries,
/// and the constructors of a job for programs that do not pass an environment.
const ENVIRONMENT: [&str; 7] = [
    "/main.rs",
    // The main function of programs of users.
    "crates/fleet/src/app/application.rs",
    "crates/fleet-cli/src/bin/",
    "crates/fleet-bench/src/",
    "crates/fleet-test",
    "crates/fleet-topology/src/env.rs",
    "crates/fleet/src/fleet.rs",
];
/// Functions of `std::env` that read the environment, the arguments or the folder of the process.
const READS: [&str; 10] = [
    "args",
    "args_os",
    "current_dir",
    "current_exe",
    "home_dir",
    "temp_dir",
    "var",
    "var_os",
    "vars",
    "vars_os",
];
/// Places that may read the clock; elsewhere time is an argument.
const CLOCK: [&str; 2] = ["crates/fleet-bench/src/", "crates/fleet-net/src/time.rs"];
/// Places that may print.
const PRINT: [&str; 3] = ["/main.rs", "crates/fleet-bench/src/", "crates/fleet-test"];
/// Places that may name ops: their definitions, the layers that emit them, the patterns of fusions,
/// the translations to ONNX, and tests.
const OP_NAMES: [&str; 5] = [
    "crates/fleet-ops/",
    "crates/fleet-nn/",
    "crates/fleet-passes/src/fuse/",
    "crates/fleet-onnx/src/ops/",
    "crates/fleet-testkit/",
];

const PRINT_MACROS: [&str; 5] = ["print", "println", "eprint", "eprintln", "dbg"];
const COMPARISONS: [&str; 4] = ["contains", "starts_with", "ends_with", "eq"];

pub fn check(files: &[SourceFile], findings: &mut Vec<Finding>) -> Result<(), String> {
    let ops = op_names(files);
    if ops.len() < 100 {
        return Err(format!("found {} op names in fleet-ops: expected over 100", ops.len()));
    }
    for file in files {
        let (Some(tree), Some(_)) = (&file.tree, file.product_crate()) else { continue };
        let mut rules = Rules { file, ops: &ops, findings };
        rules.visit_file(tree);
        rules.tokens(tree.to_token_stream(), false);
    }
    Ok(())
}

/// Returns the texts of `name: ".."` and `kind: ".."` in fleet-ops.
fn op_names(files: &[SourceFile]) -> BTreeSet<String> {
    let ops = files.iter().filter(|file| file.product_crate() == Some("fleet-ops"));
    let lines = ops.flat_map(|file| file.text.lines());
    let quoted = lines.filter_map(|line| {
        let rest = line.split_once("name: \"").or_else(|| line.split_once("kind: \""))?.1;
        Some(rest.split_once('"')?.0.to_string())
    });
    quoted.collect()
}

struct Rules<'a> {
    file: &'a SourceFile,
    ops: &'a BTreeSet<String>,
    findings: &'a mut Vec<Finding>,
}

impl Rules<'_> {
    fn add(&mut self, rule: &'static str, span: proc_macro2::Span, message: String) {
        let (path, line) = (self.file.path.clone(), span.start().line);
        self.findings.push(Finding { rule, path, line, message });
    }

    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.file.path.contains(place))
    }

    fn function(&mut self, name: &syn::Ident, block: &syn::Block) {
        let span = block.span();
        let lines = span.end().line + 1 - name.span().start().line;
        if lines > FUNCTION_LINES {
            let message = format!("{name} has {lines} lines: expected up to {FUNCTION_LINES}");
            self.add("function", name.span(), message);
        }
    }

    /// Checks the rules about tokens, which hold in macros too. In `op_place`, every text is taken
    /// for the name of an op.
    fn tokens(&mut self, stream: TokenStream, op_place: bool) {
        let tokens: Vec<TokenTree> = stream.into_iter().collect();
        let op_place = op_place || tokens.windows(3).any(asks_name) && has_comma(&tokens);
        for (index, token) in tokens.iter().enumerate() {
            let before = &tokens[..index];
            match token {
                TokenTree::Group(group) => self.tokens(group.stream(), takes_op(before)),
                TokenTree::Ident(ident) => self.ident(ident, &tokens[index + 1..]),
                TokenTree::Literal(literal) => {
                    self.literal(literal, op_place || is_compared(before));
                }
                TokenTree::Punct(_) => {}
            }
        }
    }

    fn ident(&mut self, ident: &proc_macro2::Ident, rest: &[TokenTree]) {
        let is_punct = |index: usize, wanted: char| {
            let token = rest.get(index);
            matches!(token, Some(TokenTree::Punct(found)) if found.as_char() == wanted)
        };
        let member = match rest.get(2) {
            Some(TokenTree::Ident(member)) if is_punct(0, ':') && is_punct(1, ':') => {
                Some(member.to_string())
            }
            _ => None,
        };
        let name = ident.to_string();
        match (name.as_str(), member.as_deref()) {
            ("env", Some(member)) if READS.contains(&member) && !self.is_in(&ENVIRONMENT) => {
                self.add("environment", ident.span(), format!("env::{member}"));
            }
            ("Env", Some("process")) if !self.is_in(&ENVIRONMENT) => {
                self.add("environment", ident.span(), "Env::process".to_string());
            }
            ("Instant" | "SystemTime", Some("now")) if !self.is_in(&CLOCK) => {
                self.add("clock", ident.span(), format!("{name}::now"));
            }
            (print, _)
                if PRINT_MACROS.contains(&print) && is_punct(0, '!') && !self.is_in(&PRINT) =>
            {
                self.add("print", ident.span(), format!("{print}!"));
            }
            _ => {}
        }
    }

    fn literal(&mut self, literal: &proc_macro2::Literal, op_place: bool) {
        let text = literal.to_string();
        let Some(name) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
            return;
        };
        // Some names, such as "scale", are also names of attributes and fields.
        let is_word = name.bytes().all(|byte| byte.is_ascii_lowercase());
        let names_op = self.ops.contains(name) && (op_place || !is_word);
        if names_op && !self.is_in(&OP_NAMES) {
            self.add("op-name", literal.span(), format!("\"{name}\" is the name of an op"));
        }
    }
}

impl<'ast> Visit<'ast> for Rules<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig.ident, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig.ident, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if COMPARISONS.contains(&call.method.to_string().as_str()) && is_message(&call.receiver) {
            self.add(
                "message",
                call.method.span(),
                "decision based on an error's text".to_string(),
            );
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let is_comparison = matches!(binary.op, syn::BinOp::Eq(_) | syn::BinOp::Ne(_));
        if is_comparison && (is_message(&binary.left) || is_message(&binary.right)) {
            self.add("message", binary.span(), "decision based on an error's text".to_string());
        }
        visit::visit_expr_binary(self, binary);
    }
}

/// Returns whether these three tokens are `.name()` without its brackets' content.
fn asks_name(tokens: &[TokenTree]) -> bool {
    match tokens {
        [TokenTree::Punct(dot), TokenTree::Ident(name), TokenTree::Group(group)] => {
            dot.as_char() == '.' && name == "name" && group.stream().is_empty()
        }
        _ => false,
    }
}

/// Returns whether the group after these tokens names an op: that of a call that looks one up, or
/// the arms of `match op.name()`.
fn takes_op(before: &[TokenTree]) -> bool {
    let calls = |ident: &proc_macro2::Ident| ident == "named_op" || ident == "op";
    match before.last() {
        Some(TokenTree::Ident(ident)) => calls(ident),
        _ => before.last_chunk::<3>().is_some_and(|last| asks_name(last)),
    }
}

/// Returns whether the tokens end in `.name() ==` or `.name() !=`.
fn is_compared(before: &[TokenTree]) -> bool {
    match before {
        [name @ .., TokenTree::Punct(_), TokenTree::Punct(equal)] => {
            equal.as_char() == '=' && name.last_chunk::<3>().is_some_and(|last| asks_name(last))
        }
        _ => false,
    }
}

/// Returns whether a comma separates these tokens, as it does the operands of `matches!`.
fn has_comma(tokens: &[TokenTree]) -> bool {
    tokens.iter().any(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
}

fn is_message(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::MethodCall(call) => call.method == "message" && call.args.is_empty(),
        _ => false,
    }
}
