//! Tests of the verifier for all ops, and that no shape rule panics.

use fleet_base::rng::Sequence;
use fleet_ir::{Arity, Attr, AttrKind, Op, OpSpec, Program, SlotSpec, Var, VarId, VarKind};
use fleet_ops::{CostCtx, InferCtx, Meta, OpDef, Registry, meta, verify};
use fleet_tensor::{DType, RANK_MAX, Shape};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn check(body: &str, expected: &[&str]) {
    let text = format!("fleet program 1\nblock0 {{\n{body}\n}}");
    let program = Program::parse(&text, Registry::standard()).expect("it is well formed");
    let found: Vec<String> =
        verify::errors(&program, Registry::standard()).iter().map(|e| e.to_string()).collect();
    assert_eq!(found, expected);
    assert_eq!(verify::verify(&program, Registry::standard()).is_ok(), expected.is_empty());
}

#[test]
fn outputs_are_what_ops_make() {
    let vars = "%x: f32[-1, 4] data";
    check(&format!("{vars} %y: f32[-1, 4] (Out: %y) = scale(X: %x)"), &[]);
    check(&format!("{vars} %y: f32[8, 4] (Out: %y) = scale(X: %x)"), &[]);
    check(
        &format!(
            "{vars} %y: f32[-1, 5] %z: f64[-1, 4] (Out: %y) = scale(X: %x) (Out: %z) = scale(X: %x)"
        ),
        &[
            "output 'Out' does not match the declaration of 'y': expected f32[-1, 5], \
             got f32[-1, 4]\n  at op 0 scale(X: %x)",
            "output 'Out' does not match the declaration of 'z': expected f64[-1, 4], \
             got f32[-1, 4]\n  at op 1 scale(X: %x)",
        ],
    );
    check(
        &format!("{vars} %y: f32[-1, 4] sparse_rows (Out: %y) = scale(X: %x) at=\"m.rs:1\""),
        &["output 'Out' does not match the declaration of 'y': expected f32[-1, 4] \
           (sparse rows), got f32[-1, 4]\n  at op 0 scale(X: %x) at m.rs:1"],
    );
}

#[test]
fn ops_write_over_what_they_may() {
    let head = "%x: f32[2, 2] data %y: f32[2, 2] %a: f32[2, 1] (Out: %y) = relu(X: %x)";
    for call in ["tanh(X: %y)", "softmax(X: %y)", "elementwise_mul(X: %y, Y: %y)", "sum(X: %x, %y)"]
    {
        check(&format!("{head} (Out: %y) = {call}"), &[]);
    }
    let again = |op: &str, slot: &str, shown: &str| {
        format!(
            "output 'Out' of {op} is the same variable as input '{slot}': expected a separate \
             variable\n  at op 1 {op}({shown})"
        )
    };
    check(
        &format!("{head} (Out: %y) = transpose2(X: %y) {{axis: [1, 0]}}"),
        &[&again("transpose2", "X", "X: %y")],
    );
    check(
        &format!("{head} (Out: %y) = matmul_v2(X: %x, Y: %y)"),
        &[&again("matmul_v2", "Y", "X: %x, Y: %y")],
    );
    check(
        &format!("{head} (Out: %a, %a) = split(X: %y) {{num: 2, axis: 1}}"),
        &["two outputs of split are the same variable: got 'Out' twice\n  at op 1 split(X: %y)"],
    );
}

#[test]
fn traits_name_slots_and_attributes_of_their_op() {
    for def in Registry::standard().defs() {
        let (name, traits) = (def.spec.name, &def.traits);
        let input = |slot: &str| def.spec.input_index(slot).is_some();
        let output = |slot: &str| def.spec.output_index(slot).is_some();
        let pairs = traits.inplace.iter().chain(traits.inplace_rows).chain(traits.state);
        for (out, from) in pairs.chain(&traits.view) {
            assert!(output(out) && input(from), "{name}: {out} and {from}");
        }
        for slot in [traits.wide, traits.shape_only, traits.sparse].concat() {
            assert!(input(slot), "{name}: {slot}");
        }
        assert!(traits.common.iter().all(|slot| output(slot)), "{name}: {:?}", traits.common);
        if let Some(images) = traits.images {
            assert!(def.spec.attr_index(images.format).is_some(), "{name}: {}", images.format);
            assert!(images.slots.iter().all(|slot| input(slot) || output(slot)), "{name}");
        }
    }
}

#[test]
fn gradient_ops_are_those_of_the_op_they_are_named_after() {
    let registry = Registry::standard();
    for def in Registry::standard().defs() {
        let named = def.spec.name.strip_suffix("_grad").and_then(|name| registry.find(name));
        let linked = registry.forward_of(def.spec.name);
        let name = |def: Option<&OpDef>| def.map(|def| def.spec.name);
        assert_eq!(name(linked), name(named), "{}", def.spec.name);
    }
}

/// A kernel without support for sparse rows would access as many elements as the whole matrix has.
#[test]
fn sparse_rows_go_where_they_are_known() {
    let head = "%ids: i64[-1] data %w: f32[5, 2] data %d: f32[-1, 2] data %g: f32[5, 2] sparse_rows
        %y: f32[5, 2] %s: f32[5, 2] sparse_rows %n: f32[1]
        (W@GRAD: %g) = lookup_table_v2_grad(W: %w, Ids: %ids, Out@GRAD: %d) {is_sparse: true}";
    check(&format!("{head} (Out: %s) = scale(X: %g) {{scale: 2.0}}"), &[]);
    check(&format!("{head} (Out: %n) = squared_l2_norm(X: %g)"), &[]);
    let refused = |op: &str, slot: &str| {
        format!(
            "input '{slot}' of {op} holds sparse rows: expected a dense tensor\n  \
             at op 1 {op}({slot}: %g)\n  \
             help: make the gradient of the embedding dense (is_sparse: false)"
        )
    };
    for op in ["relu", "cast", "transpose2", "reduce_sum", "c_allreduce_sum"] {
        let attrs = match op {
            "cast" => "out_dtype: f64",
            "transpose2" => "axis: [0, 1]",
            _ => "",
        };
        let call = format!("{head} (Out: %y) = {op}(X: %g) {{{attrs}}}");
        check(&call, &[&refused(op, "X")]);
    }
}

/// Memory and kernels are planned for one size per variable. A write of another size would exceed
/// its memory.
#[test]
fn a_variable_written_in_two_sizes_is_refused() {
    let head = "%a: f32[1000] data %b: f32[2] data %c: bool[1] data %x: f32[-1] %y: f32[-1]";
    let help = "\n  help: use a separate variable for each result; the first is written by op 0 \
                relu(X: %a)";
    let refused = |sizes: &str, place: &str, help: &str| {
        format!("'x' is written twice with different sizes: {sizes}\n  at {place}{help}")
    };
    check(
        &format!("{head} (Out: %x) = relu(X: %a) (Out: %x) = tanh(X: %b) at=\"m.rs:7\""),
        &[&refused("expected f32[1000], got f32[2]", "op 1 tanh(X: %b) at m.rs:7", help)],
    );
    // The size of %y is not declared, so it is inferred.
    check(
        &format!("{head} (Out: %x) = relu(X: %a) (Out: %y) = relu(X: %b) (Out: %x) = relu(X: %y)"),
        &[&refused("expected f32[1000], got f32[2]", "op 2 relu(X: %y)", help)],
    );
    let inner = |input: &str| {
        format!(
            "{head} (Out: %x) = relu(X: %a)
             () = conditional_block(Cond: %c) {{sub_block: block1}} }}
             block1 in block0 {{ (Out: %x) = relu(X: {input})"
        )
    };
    check(
        &inner("%b"),
        &[&refused("expected f32[1000], got f32[2]", "block1 op 0 relu(X: %b)", help)],
    );
    check(&inner("%a"), &[]);
    let rows = "%i: i64[3] data %j: i64[5] data %g: f32[3, 2] data %h: f32[5, 2] data
        %w: f32[9, 2] data %s: f32[9, 2] sparse_rows";
    let grad = |ids: &str, dy: &str| {
        format!(
            "(W@GRAD: %s) = lookup_table_v2_grad(W: %w, Ids: {ids}, Out@GRAD: {dy}) \
             {{is_sparse: true}}"
        )
    };
    let first = "\n  help: use a separate variable for each result; the first is written by op 0 \
                 lookup_table_v2_grad(W: %w, Ids: %i, Out@GRAD: %g)";
    check(
        &format!("{rows} {} {}", grad("%i", "%g"), grad("%j", "%h")),
        &[&refused(
            "expected f32[9, 2] (sparse rows, capacity 3), got f32[9, 2] (sparse rows, capacity 5)",
            "op 1 lookup_table_v2_grad(W: %w, Ids: %j, Out@GRAD: %h)",
            first,
        )
        .replace("'x'", "'s'")],
    );
    check(&format!("{rows} {} {}", grad("%i", "%g"), grad("%i", "%g")), &[]);
    // Unknown sizes may be equal, which planning checks.
    check(
        "%a: f32[-1] data %b: f32[-1] data %x: f32[-1]
         (Out: %x) = relu(X: %a) (Out: %x) = relu(X: %b)",
        &[],
    );
}

/// The check must take linear time: a comparison of all pairs of these variables takes minutes.
#[test]
fn an_op_may_have_any_number_of_variables() {
    const COUNT: usize = 60_000;
    let vars: String = (0..COUNT).map(|i| format!("%v{i}: f32[1]\n")).collect();
    let list: Vec<String> = (0..COUNT).map(|i| format!("%v{i}")).collect();
    let list = list.join(", ");
    check(
        &format!(
            "%x: f32[{COUNT}] data %y: f32[{COUNT}] {vars}
             (Out: {list}) = split(X: %x) {{num: {COUNT}}} (Out: %y) = concat(X: {list})"
        ),
        &[],
    );
}

/// Parsers limit the number of slots and attributes of an op.
#[test]
fn ops_have_fewer_parts_than_readers_allow() {
    for def in Registry::standard().defs() {
        let spec = &def.spec;
        assert!(spec.inputs.len() <= 16 && spec.outputs.len() <= 16, "slots of {}", spec.name);
        assert!(spec.attrs.len() <= 64, "attributes of {}", spec.name);
    }
}

#[test]
fn structure_comes_first() {
    check(
        "%x: f32[2] %y: f32[3] (Out: %y) = scale(X: %x)",
        &["%x is read before any op writes it\n  at op 0 scale(X: %x)\n  \
           help: feed it (data), keep it between runs (persistable), or write it earlier"],
    );
}

#[test]
fn an_op_of_another_registry_is_refused() {
    static OTHER: OpSpec = OpSpec { name: "scale", inputs: &[], outputs: &[], attrs: &[] };
    let mut program = Program::new();
    program.append_op(Program::ROOT, Op::build(&OTHER).finish().unwrap());
    let error = verify::verify(&program, Registry::standard()).unwrap_err().to_string();
    assert!(error.starts_with("op 'scale' comes from another registry"), "{error}");
}

/// With random types, shapes and attributes, which are mostly wrong, a rule must return a result or
/// an error. The cost function must accept everything that the rule accepts.
#[test]
fn no_shape_rule_panics() {
    const CASES: u64 = 400;
    let mut culprits = Vec::new();
    for (index, def) in Registry::standard().defs().iter().enumerate() {
        for case in 0..CASES {
            let mut rng = Sequence::new(index as u64, case);
            let (program, op) = random_op(&mut rng, def);
            let run = || {
                let mut ctx = InferCtx::new(&op, |var| meta(&program, var));
                let inputs: Vec<Vec<Meta>> = op
                    .inputs
                    .iter()
                    .map(|slot| slot.iter().map(|var| meta(&program, *var)).collect())
                    .collect();
                if (def.infer)(&mut ctx).is_ok() {
                    let outputs = ctx.into_outputs();
                    (def.traits.cost)(&CostCtx { op: &op, inputs: &inputs, outputs: &outputs });
                }
            };
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                culprits.push(format!("{} (case {case}):\n{program}", def.spec.name));
                break;
            }
        }
    }
    assert!(culprits.is_empty(), "these rules panic:\n{}", culprits.join("\n"));
}

fn random_op(rng: &mut Sequence, def: &'static OpDef) -> (Program, Op) {
    let mut program = Program::new();
    // Usually one common type and shape, so that rules pass their first checks.
    let common = (random_dtype(rng), random_shape(rng));
    let mut builder = Op::build(&def.spec);
    for slot in def.spec.inputs {
        let vars = random_vars(rng, &mut program, slot, common);
        builder = builder.inputs(slot.name, &vars);
    }
    for slot in def.spec.outputs {
        let vars = random_vars(rng, &mut program, slot, common);
        builder = builder.outputs(slot.name, &vars);
    }
    for attr in def.spec.attrs {
        if attr.default.is_none() || rng.below(2) == 0 {
            builder = builder.attr(attr.name, random_attr(rng, attr.kind));
        }
    }
    let op = builder.finish().expect("slots and attributes fit");
    program.append_op(Program::ROOT, op.clone());
    (program, op)
}

fn random_vars(
    rng: &mut Sequence,
    program: &mut Program,
    slot: &SlotSpec,
    common: (DType, Shape),
) -> Vec<VarId> {
    let count = match slot.arity {
        Arity::One => 1,
        Arity::Optional => rng.below(2),
        Arity::Many => rng.below(4),
    };
    let mut vars = Vec::new();
    for _ in 0..count {
        let (mut dtype, mut shape) = common;
        if rng.below(4) == 0 {
            dtype = random_dtype(rng);
        }
        if rng.below(3) == 0 {
            shape = random_shape(rng);
        }
        let kind = if rng.below(8) == 0 { VarKind::SparseRows } else { VarKind::Dense };
        let name = program.unique_name("v");
        let var = Var { kind, is_data: true, ..Var::new(name, dtype, shape) };
        vars.push(program.add_var(Program::ROOT, var).expect("a new name"));
    }
    vars
}

fn random_dtype(rng: &mut Sequence) -> DType {
    match rng.below(4) {
        0 => DType::ALL[rng.below(10) as usize],
        1 => DType::I64,
        _ => DType::F32,
    }
}

fn random_shape(rng: &mut Sequence) -> Shape {
    const DIMS: [i64; 8] = [-1, 0, 1, 2, 3, 4, 64, 1 << 40];
    let rank = if rng.below(8) == 0 { RANK_MAX as u64 } else { rng.below(6) };
    let known = if rng.below(4) == 0 { 8 } else { 7 };
    let dims: Vec<i64> = (0..rank).map(|_| DIMS[rng.below(known) as usize]).collect();
    Shape::of(&dims)
}

fn random_attr(rng: &mut Sequence, kind: AttrKind) -> Attr {
    const INTS: [i64; 10] = [0, 1, 2, 3, -1, -2, -9, 100, i64::MAX, i64::MIN];
    let int = |rng: &mut Sequence| {
        let known = if rng.below(3) == 0 { 10 } else { 6 };
        INTS[rng.below(known) as usize]
    };
    let count = rng.below(5);
    match kind {
        AttrKind::Int => Attr::Int(int(rng)),
        AttrKind::Float => Attr::Float([0.0, 0.5, -1.0, 1e300, f64::NAN][rng.below(5) as usize]),
        AttrKind::Bool => Attr::Bool(rng.below(2) == 0),
        AttrKind::Str => {
            let words = ["", "SAME", "VALID", "NCHW", "NHWC", "relu", "none", "mean", "max", "é"];
            Attr::Str(words[rng.below(10) as usize].into())
        }
        AttrKind::Ints => Attr::Ints((0..count).map(|_| int(rng)).collect()),
        AttrKind::Floats => Attr::Floats((0..count).map(|_| rng.normal()).collect()),
        AttrKind::Strs => Attr::Strs((0..count).map(|_| "a".to_string()).collect()),
        AttrKind::DType => Attr::DType(random_dtype(rng)),
        AttrKind::Block => Attr::Block(Program::ROOT),
    }
}
