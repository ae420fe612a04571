//! The verifier: valid programs, and the errors of invalid ones.

mod common;

use common::*;
use fleet_base::EntityRef;
use fleet_ir::{Attr, BlockId, Op, OpId, OpRole, Param, Program, Var, VarId, VarKind};
use fleet_tensor::{DType, Layout};

#[test]
fn a_sound_program_passes() {
    assert_eq!(rich().errors(), []);
    assert_eq!(Program::new().errors(), []);
    assert_eq!(Program::default().errors().len(), 1, "a program without a root block");
}

/// The program `x -> y -> z`, with the ids that tests modify.
struct Small {
    program: Program,
    x: VarId,
    y: VarId,
    first: OpId,
    second: OpId,
}

fn small() -> Small {
    let mut program = Program::new();
    let x = add(&mut program, Program::ROOT, Var::data("x", DType::F32, [2]));
    let y = add(&mut program, Program::ROOT, Var::new("y", DType::F32, [2]));
    let z = add(&mut program, Program::ROOT, Var::new("z", DType::F32, [2]));
    push(&mut program, Program::ROOT, concat(&[x], y).source(Some("model.rs:3".into())));
    push(&mut program, Program::ROOT, concat(&[x, y], z).role(OpRole::BACKWARD));
    let ids: Vec<OpId> = program.root_ops().map(|(id, _)| id).collect();
    assert_eq!(program.errors(), []);
    Small { program, x, y, first: ids[0], second: ids[1] }
}

/// Breaks the small program and compares all reported errors.
fn check(break_it: impl FnOnce(&mut Small), expected: &[&str]) {
    let mut small = small();
    break_it(&mut small);
    let found: Vec<String> = small.program.errors().iter().map(|e| e.to_string()).collect();
    assert_eq!(found, expected);
    let text = small.program.verify().expect_err("broken").to_string();
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
}

const FIRST: &str = "\n  at op 0 concat(X: %x) at model.rs:3";
const SECOND: &str = "\n  at op 1 concat(X: %x, %y) (backward)";

#[test]
fn ids_must_exist() {
    check(
        |s| s.program.op_mut(s.first).outputs[0] = vec![VarId::from_index(77)],
        &[&format!("the op uses var77, which does not exist{FIRST}")],
    );
    check(
        |s| s.program.op_mut(s.first).inputs[0].push(VarId::from_index(8)),
        &["the op uses var8, which does not exist\n  \
             at op 0 concat(X: %x, %<no such variable: var8>) at model.rs:3"],
    );
    check(
        |s| s.program.set_block_ops(Program::ROOT, vec![s.first, OpId::from_index(5), s.second]),
        &["a block lists an op that does not exist\n  at op 1 (op5, no such op)"],
    );
    check(
        |s| s.program.set_block_ops(Program::ROOT, vec![s.first, s.first, s.second]),
        &["an op is listed twice\n  at op 1 concat(X: %x) at model.rs:3"],
    );
}

#[test]
fn variables_must_be_in_sight() {
    check(
        |s| s.program.remove_var(s.y),
        &[
            &format!("the op uses %y, which is in no block (was it removed?){FIRST}"),
            &format!("the op uses %y, which is in no block (was it removed?){SECOND}"),
        ],
    );
    check(
        |s| {
            let inner = s.program.add_block(Program::ROOT);
            let hidden = add(&mut s.program, inner, Var::data("hidden", DType::F32, [2]));
            s.program.op_mut(s.second).inputs[0][0] = hidden;
        },
        &["the op uses %hidden of block1, which is not visible in block0\n  \
           at op 1 concat(X: %hidden, %y) (backward)"],
    );
    check(
        |s| s.program.var_mut(s.x).block = BlockId::from_index(3),
        &["a variable is listed in the wrong block: expected block3\n  \
           at variable 'x' of block0"],
    );
}

#[test]
fn filters_have_four_dimensions() {
    check(
        |s| s.program.var_mut(s.y).layout = Layout::Filter64,
        &["wrong number of dimensions for layout filter64: expected 4 dimensions, got [2]\n  \
           at variable 'y' of block0"],
    );
}

#[test]
fn what_is_fed_is_the_callers() {
    check(
        |s| s.program.op_mut(s.second).outputs[0] = vec![s.x],
        &[&format!("the op writes %x, a fed variable{SECOND}\n  help: write to another variable")],
    );
}

#[test]
fn names_must_tell_variables_apart() {
    check(
        |s| s.program.var_mut(s.y).name = "x".into(),
        &["duplicate variable name\n  at variable 'x' of block0"],
    );
    check(
        |s| s.program.var_mut(s.x).name = "w".into(),
        &["the name index does not list the variable\n  at variable 'w' of block0"],
    );
    check(
        |s| s.program.var_mut(s.x).param = Some(Param::default()),
        &[
            "a parameter is not persistable\n  at variable 'x' of block0",
            "a variable is both fed and kept between runs\n  at variable 'x' of block0",
        ],
    );
    check(
        |s| s.program.var_mut(s.x).persistable = true,
        &["a variable is both fed and kept between runs\n  at variable 'x' of block0"],
    );
    check(
        |s| s.program.var_mut(s.x).shape.dims_mut()[0] = -3,
        &["a dimension is negative: expected -1 (unknown) or more, got [-3]\n  \
           at variable 'x' of block0"],
    );
}

#[test]
fn ops_must_fit_their_spec() {
    check(
        |s| {
            let op = s.program.op_mut(s.second);
            op.outputs[0].clear();
            op.inputs.pop();
            op.attrs[0] = Attr::Bool(true);
            op.attrs.push(Attr::Int(1));
        },
        &[
            &format!("the op has the wrong number of input slots: expected 2, got 1{SECOND}"),
            &format!(
                "output slot 'Out' of op 'concat' has the wrong size: \
                 expected 1 variable, got 0{SECOND}"
            ),
            &format!("the op has the wrong number of attributes: expected 1, got 2{SECOND}"),
            &format!("attribute 'axis' has the wrong type: expected int, got bool{SECOND}"),
        ],
    );
}

#[test]
fn a_variable_is_written_before_it_is_read() {
    let text = "%y is read before any op writes it";
    let help = "\n  help: feed it (data), keep it between runs (persistable), or write it earlier";
    check(
        |s| s.program.set_block_ops(Program::ROOT, vec![s.second, s.first]),
        &[&format!("{text}\n  at op 0 concat(X: %x, %y) (backward){help}")],
    );
    let mut s = small();
    s.program.set_block_ops(Program::ROOT, vec![s.second]);
    assert_eq!(s.program.errors().len(), 1);
    s.program.var_mut(s.y).kind = VarKind::TensorArray;
    assert_eq!(s.program.errors(), [], "an array starts empty");
    s.program.var_mut(s.y).kind = VarKind::Dense;
    s.program.var_mut(s.y).persistable = true;
    assert_eq!(s.program.errors(), []);
}

#[test]
fn order_goes_through_sub_blocks() {
    let mut s = small();
    let p = &mut s.program;
    let inner = p.add_block(Program::ROOT);
    let [early, late, out] =
        ["early", "late", "out"].map(|name| add(p, Program::ROOT, Var::new(name, DType::F32, [2])));
    let flag = add(p, Program::ROOT, Var::data("flag", DType::Bool, [1]));
    push(p, inner, concat(&[early, late], out));
    push(p, Program::ROOT, concat(&[s.x], early));
    let cond = Op::build(&COND).input("Cond", flag).attr("sub_block", inner);
    push(p, Program::ROOT, cond);
    push(p, Program::ROOT, concat(&[out], late));
    let errors: Vec<String> = p.errors().iter().map(|e| e.to_string()).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with(
        "%late is read before any op writes it\n  at block1 op 0 concat(X: %early, %late)"
    ));
}

#[test]
fn blocks_must_be_a_tree() {
    let message = |p: &Program| p.verify().expect_err("not a tree").to_string();
    let mut p = Program::new();
    let flag = add(&mut p, Program::ROOT, Var::data("flag", DType::Bool, [1]));
    let inner = p.add_block(Program::ROOT);
    let cond = |block: BlockId| Op::build(&COND).input("Cond", flag).attr("sub_block", block);
    push(&mut p, inner, cond(inner));
    assert!(message(&p).contains("block1 is not a child of block1"));
    assert!(message(&p).contains("at block1 op 0 cond(Cond: %flag)"));
    let mut p2 = p.clone();
    p2.set_block_ops(inner, Vec::new());
    push(&mut p2, Program::ROOT, cond(inner));
    assert_eq!(p2.errors(), []);
    push(&mut p2, Program::ROOT, cond(inner));
    assert!(message(&p2).contains("block1 belongs to two ops"));
    push(&mut p, Program::ROOT, cond(BlockId::from_index(9)));
    assert!(message(&p).contains("the program has no block9"));
    let mut deep = Program::new();
    let last = (0..40).fold(Program::ROOT, |block, _| deep.add_block(block));
    assert!(message(&deep).contains("nested too deeply"));
    assert_eq!(last.index(), 40);
}
