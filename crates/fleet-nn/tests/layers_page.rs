//! `docs/layers.md` lists every layer, loss, metric, function, optimizer and schedule of this crate
//! with the first sentences of its documentation. `FLEET_BLESS=1` rewrites the page behind its
//! introduction.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// Sections of the page, with the files whose items they list.
const SECTIONS: [(&str, &[&str]); 9] = [
    ("Inputs and parameters", &["variables.rs"]),
    (
        "Layers",
        &[
            "layers/attention.rs",
            "layers/batch_norm.rs",
            "layers/conv2d.rs",
            "layers/dropout.rs",
            "layers/embedding.rs",
            "layers/fc.rs",
            "layers/layer_norm.rs",
            "layers/linear.rs",
            "layers/multi_head_attention.rs",
            "layers/pool2d.rs",
            "layers/sparse_embedding.rs",
            "layers/transformer.rs",
        ],
    ),
    ("Losses", &["loss.rs", "layers/class_loss.rs"]),
    ("Metrics", &["metric.rs"]),
    ("Functions", &["math.rs"]),
    ("Shapes and elements", &["tensor.rs"]),
    ("Branches", &["cond.rs"]),
    (
        "Optimizers",
        &[
            "optimizer/adadelta.rs",
            "optimizer/adagrad.rs",
            "optimizer/adam.rs",
            "optimizer/adamax.rs",
            "optimizer/adamw.rs",
            "optimizer/custom.rs",
            "optimizer/lamb.rs",
            "optimizer/lars_momentum.rs",
            "optimizer/momentum.rs",
            "optimizer/rmsprop.rs",
            "optimizer/sgd.rs",
        ],
    ),
    ("Learning rates", &["lr.rs"]),
];

/// Starts of the blocks whose items are listed.
const BLOCKS: [&str; 7] = [
    "impl<'n> Var<'n> {",
    "impl Net {",
    "impl Optimizer<CustomRule> {",
    "unary! {",
    "binary! {",
    "reductions! {",
    "pub enum LrSchedule {",
];

fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the name of an item that a line inside of a block declares.
fn declared(block: &str, line: &str) -> Option<String> {
    let line = line.strip_prefix("    ").filter(|line| !line.starts_with(' '))?;
    let word = |line: &str| {
        let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        line[..end.unwrap_or(line.len())].to_string()
    };
    let name = match line.strip_prefix("pub fn ") {
        Some(method) => word(method),
        None if block.ends_with("! {") || block.starts_with("pub enum") => word(line),
        None => return None,
    };
    Some(name).filter(|name| !name.is_empty())
}

/// Returns the first paragraph of a doc comment on one line.
fn paragraph(docs: &[&str]) -> String {
    let lines = docs.iter().map(|line| line.trim_start_matches("///").trim());
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty() && *line != "```").collect();
    // Links to items work in the API documentation only.
    lines.join(" ").replace("[`", "`").replace("`]", "`")
}

/// Returns names and descriptions of the items in a file.
fn items(file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root("src").join(file)).expect("a file of this crate");
    let (mut found, mut docs, mut block) = (Vec::new(), Vec::new(), None);
    for line in text.lines() {
        let plain = line.trim_start();
        if plain.starts_with("///") {
            docs.push(plain);
            continue;
        }
        if let Some(start) = BLOCKS.iter().find(|start| **start == line) {
            block = Some(*start);
        } else if line == "}" {
            block = None;
        } else if let Some(rest) = line.strip_prefix("pub type ") {
            let name = rest.split(' ').next().expect("a name").to_string();
            found.push((name, paragraph(&docs)));
        } else if let Some(name) = block.and_then(|block| declared(block, line)) {
            let text = match (paragraph(&docs), block) {
                (text, _) if !text.is_empty() => text,
                (_, Some(block)) if block.ends_with("! {") => format!("The op `{name}`."),
                _ => panic!("{file}: '{name}' has no documentation"),
            };
            found.push((name, text));
        }
        if !plain.starts_with("#[") {
            docs.clear();
        }
    }
    found
}

#[test]
fn the_page_lists_every_layer_loss_and_schedule() {
    let path = root("../../docs/layers.md");
    let page = fs::read_to_string(&path).expect("docs/layers.md");
    let introduction = page.find("\n## ").map_or(&page[..], |end| &page[..end]);
    let mut expected = format!("{}\n", introduction.trim_end());
    for (title, files) in SECTIONS {
        let items: Vec<_> = files.iter().flat_map(|file| items(file)).collect();
        assert!(!items.is_empty(), "{title} has no items");
        write!(expected, "\n## {title}\n\n| name | |\n| --- | --- |\n").unwrap();
        for (name, text) in items {
            writeln!(expected, "| `{name}` | {} |", text.replace('|', "\\|")).unwrap();
        }
    }
    if std::env::var_os("FLEET_BLESS").is_some() {
        fs::write(&path, &expected).expect("the page can be written");
        return;
    }
    assert!(page == expected, "docs/layers.md is out of date: run this test with FLEET_BLESS=1");
}

/// Files of layers and optimizers that no section names.
#[test]
fn every_file_has_a_section() {
    for folder in ["layers", "optimizer"] {
        for entry in fs::read_dir(root("src").join(folder)).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            let path = format!("{folder}/{name}");
            let is_listed = SECTIONS.iter().any(|(_, files)| files.contains(&path.as_str()));
            let has_no_items = ["mod.rs", "of_update.rs", "split.rs"].contains(&&*name);
            assert!(is_listed || has_no_items, "{path} is in no section of the page");
        }
    }
}
