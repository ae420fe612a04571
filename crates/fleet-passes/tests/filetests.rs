//! Each file is a program, `---`, and the program after the pass that the file is named after
//! (`PASS.fleet`). `FLEET_BLESS=1` rewrites the second part.

use fleet_ir::Program;
use fleet_ops::Registry;
use fleet_passes::{PASSES, PassManager};
use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn programs_before_and_after_a_pass() {
    let registry = Registry::standard();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut shown = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let pass = PASSES.iter().find(|pass| pass.name == name).expect("a file is named as a pass");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, after) = text.split_once("---\n").unwrap_or((&text, ""));
        let mut program = Program::parse(before, registry)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        fleet_ops::verify::verify(&program, registry).unwrap();
        PassManager::new(registry)
            .run(pass.name, &mut program, |program| (pass.run)(program, registry, &[]))
            .unwrap();
        fleet_ops::verify::verify(&program, registry).unwrap();
        if std::env::var_os("FLEET_BLESS").is_some() {
            std::fs::write(&path, format!("{before}---\n{program}")).unwrap();
        } else {
            assert_eq!(program.to_string(), after, "{}", path.display());
        }
        shown.insert(pass.name);
    }
    let all: BTreeSet<&str> = PASSES.iter().map(|pass| pass.name).collect();
    assert_eq!(shown, all, "every pass needs a file");
}
