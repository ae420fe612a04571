//! The executor on small programs of test ops: memory sharing, lanes, errors, allocations.

use fleet_base::{Error, ErrorKind, Result};
use fleet_exec::{Device, ExecOptions, Executor, Interpreter, Scope};
use fleet_ir::{AttrConst, Op, OpRole, OpSpec, Program, Var, VarId, attr, one};
use fleet_kernels::map::{map, zip};
use fleet_ops::{Emit, Grad, InferCtx, Kernel, Lane, OpDef, OpTraits, Registry};
use fleet_tensor::{DType, Tensor};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::OnceLock;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn same_shape(i: &mut InferCtx<'_>) -> Result<()> {
    let x = i.input("X")?;
    i.set("Out", x.dtype, x.shape);
    Ok(())
}

const fn side_op(
    name: &'static str,
    lane: Lane,
    cpu: fn(&fleet_ops::PrepareCtx<'_>) -> Result<Kernel>,
) -> OpDef {
    let mut traits = OpTraits::plain();
    traits.lane = lane;
    traits.elementwise = true;
    OpDef {
        spec: OpSpec {
            name,
            inputs: const { &[one("X")] },
            outputs: const { &[one("Out")] },
            attrs: const { &[attr("k", AttrConst::Float(1.0))] },
        },
        infer: same_shape,
        grad: Grad::None,
        cpu,
        traits,
    }
}

fn add_k(p: &fleet_ops::PrepareCtx<'_>) -> Result<Kernel> {
    let add = p.op.attr_float("k") as f32;
    Ok(Kernel::new(move |k| {
        map(k.pool, k.input_or_output(0, 0), k.output::<f32>(0), |x| x + add);
        Ok(())
    }))
}

/// Delays its output, so that readers would see stale memory if they did not wait for it.
fn late_add_k(p: &fleet_ops::PrepareCtx<'_>) -> Result<Kernel> {
    let add = p.op.attr_float("k") as f32;
    Ok(Kernel::new(move |k| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        map(k.pool, k.input_or_output(0, 0), k.output::<f32>(0), |x| x + add);
        Ok(())
    }))
}

static ADD: OpDef = side_op("test_add", Lane::Compute, add_k);
static SIDE: OpDef = side_op("test_side_add", Lane::Side(0), late_add_k);
static OTHER: OpDef = side_op("test_other_add", Lane::Side(1), late_add_k);
static FAIL: OpDef = side_op("test_fail", Lane::Side(0), |_| {
    Ok(Kernel::new(|_| Err(Error::unavailable("lost the peer"))))
});
static PANIC: OpDef = side_op("test_panic", Lane::Compute, |_| Ok(Kernel::new(|_| panic!("boom"))));
/// An op whose output may share memory with either operand.
static PAIR: OpDef = OpDef {
    spec: OpSpec {
        name: "test_pair",
        inputs: const { &[one("X"), one("Y")] },
        outputs: const { &[one("Out")] },
        attrs: &[],
    },
    infer: same_shape,
    grad: Grad::None,
    cpu: |_| {
        Ok(Kernel::new(|k| {
            let inputs = [k.input_or_output(0, 0), k.input_or_output(1, 0)];
            zip(k.pool, inputs, k.output::<f32>(0), |[x, y]| 10.0 * x + y);
            Ok(())
        }))
    },
    traits: OpTraits { inplace: &[("Out", "X"), ("Out", "Y")], ..OpTraits::plain() },
};
static INF: OpDef = side_op("test_inf", Lane::Compute, |_| {
    Ok(Kernel::new(|k| {
        let out = k.output::<f32>(0);
        out.fill(0.0);
        out[1] = f32::INFINITY;
        Ok(())
    }))
});

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| Registry::with(&[&ADD, &SIDE, &OTHER, &FAIL, &PANIC, &INF, &PAIR]))
}

/// Builds a program with the input `x` and a chain of (op, k), in which each op reads the output of
/// the one before.
fn chain(ops: &[(&str, f64)]) -> Program {
    let mut program = Program::new();
    let mut at = program.add_var(Program::ROOT, Var::data("x", DType::F32, [-1])).unwrap();
    for (index, (name, k)) in ops.iter().enumerate() {
        at = call(&mut program, name, at, *k, &format!("y{index}"));
    }
    program
}

fn call(program: &mut Program, op: &str, x: VarId, k: f64, out: &str) -> VarId {
    let shape = program.var(x).shape;
    let out = program.add_var(Program::ROOT, Var::new(out, DType::F32, shape)).unwrap();
    let mut emit = Emit::new(program, registry(), OpRole::FORWARD);
    emit.named_op(op).unwrap().input("X", x).attr("k", k).output("Out", out).done().unwrap();
    emit.append();
    out
}

fn executor(options: ExecOptions) -> Executor {
    Executor::with_registry(options, registry())
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as i64]).unwrap()
}

#[test]
fn executor_equals_interpreter_on_every_lane() {
    let ops = [("test_add", 1.0), ("test_side_add", 10.0), ("test_add", 100.0)];
    let mut program = chain(&ops);
    let x = program.find_var("x").unwrap();
    // Six more ops in other lanes, which share only memory with the chain and make reuse dangerous.
    let mut branch = x;
    for i in 0..6 {
        let op = ["test_other_add", "test_add", "test_side_add"][i % 3];
        branch = call(&mut program, op, branch, 0.5, &format!("z{i}"));
    }
    let (y, z) = ("y2", "z5");
    let feed = vector(&[1.0, 2.0, 3.0]);
    let expected = Interpreter::with_registry(registry())
        .run(&program, &mut Scope::new(), &[("x", &feed)], &[y, z])
        .unwrap();
    for sequential in [false, true] {
        let mut options = ExecOptions::threads(2);
        options.build.enable_sequential_execution = sequential;
        let mut exe = executor(options);
        let mut scope = Scope::new();
        for _ in 0..20 {
            let got = exe.run(&program, &mut scope, &[("x", &feed)], &[y, z]).unwrap();
            for (a, b) in got.iter().zip(&expected) {
                assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
            }
        }
    }
}

#[test]
fn a_chain_of_temporaries_needs_two_buffers() {
    let program = chain(&[("test_add", 1.0); 12]);
    let mut exe = executor(ExecOptions::default());
    let summary =
        exe.plan(&program, &Scope::new(), &[("x", DType::F32, [1600].into())], &["y11"]).unwrap();
    assert_eq!(summary.arena_bytes_unshared, 12 * 6400);
    assert_eq!(summary.arena_bytes, 2 * 6400);
    let mut null = executor(ExecOptions { device: Device::Null, ..ExecOptions::default() });
    let planned =
        null.plan(&program, &Scope::new(), &[("x", DType::F32, [1600].into())], &["y11"]).unwrap();
    assert_eq!(planned, summary);
    let error = null.run(&program, &mut Scope::new(), &[("x", &vector(&[1.0]))], &["y11"]);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn an_output_takes_over_one_operand_only() {
    let mut program = Program::new();
    let x = program.add_var(Program::ROOT, Var::data("x", DType::F32, [-1])).unwrap();
    // The lifetime of both operands ends at the op.
    let a = call(&mut program, "test_add", x, 1.0, "a");
    let b = call(&mut program, "test_add", x, 2.0, "b");
    let mut emit = Emit::new(&mut program, registry(), OpRole::FORWARD);
    let out = emit.named_op("test_pair").unwrap().input("X", a).input("Y", b);
    out.one("Out").unwrap();
    emit.append();
    let out = program.root_ops().last().and_then(|(_, op)| op.all_outputs().next()).unwrap();
    let out = program.var_name(out).to_string();
    let found = executor(ExecOptions::default())
        .run(&program, &mut Scope::new(), &[("x", &vector(&[0.0, 5.0]))], &[&out])
        .unwrap();
    assert_eq!(found[0].to_vec::<f32>().unwrap(), [12.0, 67.0]);
}

#[test]
fn switches_of_the_plan_are_seen() {
    // In place: the output of a pair shares memory with one of its operands.
    let mut program = chain(&[("test_add", 1.0)]);
    let (x, a) = (program.find_var("x").unwrap(), program.find_var("y0").unwrap());
    let b = call(&mut program, "test_add", x, 2.0, "b");
    let mut emit = Emit::new(&mut program, registry(), OpRole::FORWARD);
    let out = emit.named_op("test_pair").unwrap().input("X", a).input("Y", b).one("Out").unwrap();
    emit.append();
    let out = program.var_name(out).to_string();
    let arena = |inplace: bool| {
        let mut options = ExecOptions::threads(1);
        options.build.enable_inplace = inplace;
        let metas = [("x", DType::F32, [1600].into())];
        executor(options).plan(&program, &Scope::new(), &metas, &[&out]).unwrap().arena_bytes
    };
    assert_eq!((arena(true), arena(false)), (2 * 6400, 3 * 6400));

    // Sequential: only the compute lane exists.
    let program = chain(&[("test_add", 1.0), ("test_side_add", 10.0), ("test_other_add", 100.0)]);
    let lanes = |sequential: bool| {
        let mut options = ExecOptions { profile: true, ..ExecOptions::threads(1) };
        options.build.enable_sequential_execution = sequential;
        let mut exe = executor(options);
        let feed = vector(&[1.0]);
        exe.run(&program, &mut Scope::new(), &[("x", &feed)], &["y2"]).unwrap();
        exe.trace().spans.iter().map(|span| span.lane).collect::<Vec<_>>()
    };
    assert_eq!((lanes(false), lanes(true)), (vec![0, 1, 2], vec![0, 0, 0]));

    for threads in [1, 2, 3] {
        assert_eq!(executor(ExecOptions::threads(threads)).threads(), threads);
    }
}

/// As with `use_prune`: ops that the fetches do not need do not run, and their feeds are not
/// required.
#[test]
fn a_pruned_program_needs_what_its_fetches_need() {
    let mut program = chain(&[("test_add", 1.0)]);
    let label = program.add_var(Program::ROOT, Var::data("label", DType::F32, [-1])).unwrap();
    let w = program.add_var(Program::ROOT, Var::persistable("w", DType::F32, [-1])).unwrap();
    let op = Op::build(&ADD.spec).input("X", label).output("Out", w).attr("k", 1.0);
    program.append_op(Program::ROOT, op.finish().unwrap());
    let (x, mut exe) = (vector(&[1.0]), executor(ExecOptions::threads(1)));
    let mut scope = Scope::new();
    let error = exe.run(&program, &mut scope, &[("x", &x)], &["y0"]).unwrap_err().to_string();
    assert!(error.contains("no value was fed for 'label'"), "{error}");
    let pruned = program.prune(&[program.var_named("y0").unwrap()]);
    let found = exe.run(&pruned, &mut scope, &[("x", &x)], &["y0"]).unwrap();
    assert_eq!(found[0].to_vec::<f32>().unwrap(), [2.0]);
    assert!(scope.is_empty(), "nothing was updated");
}

#[test]
fn what_nobody_reads_is_not_run() {
    let mut program = chain(&[("test_add", 1.0)]);
    let x = program.find_var("x").unwrap();
    call(&mut program, "test_panic", x, 0.0, "unused");
    let out = executor(ExecOptions::default())
        .run(&program, &mut Scope::new(), &[("x", &vector(&[1.0]))], &["y0"])
        .unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [2.0]);
}

#[test]
fn a_steady_step_allocates_nothing() {
    let program = chain(&[("test_add", 1.0), ("test_add", 2.0)]);
    let mut exe = executor(ExecOptions::threads(1));
    let mut scope = Scope::new();
    let feed = vector(&[0.0; 256]);
    let mut out = Vec::new();
    for _ in 0..3 {
        exe.run_into(&program, &mut scope, &[("x", &feed)], &["y1"], &mut out).unwrap();
    }
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        exe.run_into(&program, &mut scope, &[("x", &feed)], &["y1"], &mut out).unwrap();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
}

#[test]
fn persistable_variables_live_in_the_scope() {
    let mut program = Program::new();
    let w = program.add_var(Program::ROOT, Var::persistable("w", DType::F32, [2])).unwrap();
    let op = Op::build(&ADD.spec).input("X", w).output("Out", w).attr("k", 1.5).finish().unwrap();
    program.append_op(Program::ROOT, op);
    let mut exe = executor(ExecOptions { num_iteration_per_run: 3, ..ExecOptions::default() });
    let mut scope = Scope::new();
    let error = exe.run(&program, &mut scope, &[], &[]).unwrap_err().to_string();
    assert!(error.contains("no variable 'w'") && error.contains("startup"), "{error}");
    scope.set("w", vector(&[1.0, 2.0]));
    exe.run(&program, &mut scope, &[], &[]).unwrap();
    assert_eq!(scope.tensor("w").unwrap().to_vec::<f32>().unwrap(), [5.5, 6.5]);
    // A new tensor under the same name has another address. A tensor of another shape is rejected.
    scope.set("w", vector(&[0.0, 0.0]));
    exe.run(&program, &mut scope, &[], &[]).unwrap();
    assert_eq!(scope.tensor("w").unwrap().to_vec::<f32>().unwrap(), [4.5, 4.5]);
    scope.set("w", vector(&[0.0]));
    let error = exe.run(&program, &mut scope, &[], &[]).unwrap_err().to_string();
    assert!(error.contains("expected f32[2], got f32[1]"), "{error}");
}

/// A plan that was bound before its scope was shared must not write to the shared tensor.
#[test]
fn shared_tensors_are_copied_before_programs_write_them() {
    let mut program = Program::new();
    let w = program.add_var(Program::ROOT, Var::persistable("w", DType::F32, [2])).unwrap();
    let op = Op::build(&ADD.spec).input("X", w).output("Out", w).attr("k", 1.0).finish().unwrap();
    program.append_op(Program::ROOT, op);
    let value = |scope: &Scope| scope.tensor("w").unwrap().to_vec::<f32>().unwrap();
    let mut scopes = vec![Scope::new()];
    scopes[0].set("w", vector(&[0.0, 5.0]));
    let mut exe = executor(ExecOptions::default());
    exe.run(&program, &mut scopes[0], &[], &[]).unwrap();
    let (second, third) = (scopes[0].share(), scopes[0].share());
    scopes.extend([second, third]);
    exe.run(&program, &mut scopes[0], &[], &[]).unwrap();
    let interpreter = Interpreter::with_registry(registry());
    interpreter.run(&program, &mut scopes[1], &[], &[]).unwrap();
    let mut other = executor(ExecOptions::default());
    (0..2).for_each(|_| drop(other.run(&program, &mut scopes[1], &[], &[]).unwrap()));
    let values: Vec<Vec<f32>> = scopes.iter().map(value).collect();
    assert_eq!(values, [[2.0, 7.0], [4.0, 9.0], [1.0, 6.0]]);
    assert_eq!(scopes[2].remove("w").unwrap().to_vec::<f32>().unwrap(), [1.0, 6.0]);
}

#[test]
fn mistakes_are_named() {
    let program = chain(&[("test_add", 1.0)]);
    let mut exe = executor(ExecOptions::default());
    let mut scope = Scope::new();
    let feed = vector(&[1.0]);
    let ints = Tensor::from_slice(&[1i64], [1]).unwrap();
    type Case<'a> = (&'a [(&'a str, &'a Tensor)], &'a str, &'a str);
    let cases: [Case<'_>; 5] = [
        (&[], "y0", "no value was fed for 'x': expected f32[-1]"),
        (&[("xx", &feed)], "y0", "has no input 'xx'; did you mean 'x'?"),
        (&[("x", &ints)], "y0", "expected f32[-1], got i64[1]"),
        (&[("x", &feed), ("x", &feed)], "y0", "duplicate feed 'x'"),
        (&[("x", &feed)], "y1", "no variable 'y1'; did you mean 'y0'?"),
    ];
    for (feed, fetch, message) in cases {
        let error = exe.run(&program, &mut scope, feed, &[fetch]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(message), "{error}");
    }
}

/// These errors are found even without the verifier.
#[test]
fn what_cannot_be_planned_is_refused() {
    let check = |text: &str, expected: &str| {
        let program = Program::parse(text, registry()).unwrap();
        let (x, mut exe) = (vector(&[1.0, 2.0]), executor(ExecOptions::threads(1)));
        let error = exe.run(&program, &mut Scope::new(), &[("x", &x)], &["y"]).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    };
    check(
        "fleet program 1 block0 { %x: f32[2] data %y: f32[2]
            (Out: %x) = test_add(X: %x) (Out: %y) = test_add(X: %x) }",
        "the op writes 'x', a fed variable\n  at op 0 test_add(X: %x)",
    );
    check(
        "fleet program 1 block0 { %x: f32[2] data persistable %y: f32[2]
            (Out: %y) = test_add(X: %x) }",
        "variable 'x' is both fed and kept between runs",
    );
    check(
        "fleet program 1 block0 { %x: f32[2] data
            %w: f32[2,1,1,1] persistable layout=filter64 %y: f32[2]
            (Out: %y) = test_add(X: %x) }",
        "'w' has an explicit layout: expected row_major, got filter64",
    );
    // Sizes whose product overflows, and sizes whose sum no machine can hold.
    for size in
        ["9223372036854775807, 9223372036854775807", "4611686018427387904, 2", "1099511627776, 64"]
    {
        let text = format!(
            "fleet program 1 block0 {{ %x: f32[2] data %w: f32[{size}] persistable
                %v: f32[{size}] %y: f32[2]
                (Out: %v) = test_add(X: %w) (Out: %w) = test_add(X: %v)
                (Out: %y) = test_add(X: %x) }}"
        );
        check(&text, "too large to plan: expected at most 256 TiB, got more, starting with '");
    }
}

#[test]
fn a_failing_lane_stops_the_run_and_the_executor_lives_on() {
    let failing = chain(&[("test_add", 1.0), ("test_fail", 0.0), ("test_add", 1.0)]);
    let panicking = chain(&[("test_side_add", 1.0), ("test_panic", 0.0), ("test_add", 1.0)]);
    let fine = chain(&[("test_side_add", 1.0)]);
    let mut exe = executor(ExecOptions::default());
    let mut scope = Scope::new();
    let feed = vector(&[1.0]);
    let error = exe.run(&failing, &mut scope, &[("x", &feed)], &["y2"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("op 1 test_fail(X: %y0)"), "{error}");
    let error = exe.run(&panicking, &mut scope, &[("x", &feed)], &["y2"]).unwrap_err();
    assert!(error.to_string().contains("boom"), "{error}");
    let out = exe.run(&fine, &mut scope, &[("x", &feed)], &["y0"]).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [2.0]);
}

#[test]
fn the_first_infinity_is_named() {
    let program = chain(&[("test_add", 1.0), ("test_inf", 0.0), ("test_add", 1.0)]);
    let options = ExecOptions { check_nan_inf: true, ..ExecOptions::default() };
    let feed = vector(&[1.0, 2.0]);
    let error =
        executor(options).run(&program, &mut Scope::new(), &[("x", &feed)], &["y2"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Numeric);
    let text = error.to_string();
    assert!(text.contains("output 'y1' of test_inf") && text.contains("element 1"), "{text}");
}

#[test]
fn a_conditional_block_runs_when_its_condition_holds() {
    let mut program = Program::new();
    let root = Program::ROOT;
    let cond = program.add_var(root, Var::data("cond", DType::Bool, [1])).unwrap();
    let w = program.add_var(root, Var::persistable("w", DType::F32, [1])).unwrap();
    let inner = program.add_block(root);
    let add = Op::build(&ADD.spec).input("X", w).output("Out", w).finish().unwrap();
    program.append_op(inner, add);
    let spec = &registry().get("conditional_block").unwrap().spec;
    let block = Op::build(spec).input("Cond", cond).attr("sub_block", inner).finish().unwrap();
    program.append_op(root, block);
    let mut scope = Scope::new();
    scope.set("w", vector(&[0.0]));
    let mut exe = executor(ExecOptions::default());
    let interpreter = Interpreter::with_registry(registry());
    for (round, holds) in [true, false, true, true, false].into_iter().enumerate() {
        let cond = Tensor::from_bools(&[holds], [1]).unwrap();
        match round % 2 {
            0 => exe.run(&program, &mut scope, &[("cond", &cond)], &[]).unwrap(),
            _ => interpreter.run(&program, &mut scope, &[("cond", &cond)], &[]).unwrap(),
        };
    }
    assert_eq!(scope.tensor("w").unwrap().to_vec::<f32>().unwrap(), [3.0]);
}

/// Ops of other lanes inside conditional blocks, one of which is nested, and between two blocks.
#[test]
fn conditional_blocks_keep_their_lanes() {
    let text = "fleet program 1
block0 {
    %outer: bool[1] data %inner: bool[1] data %x: f32[2] data
    %a: f32[2] %w: f32[2] persistable %v: f32[2] persistable %y: f32[2]
    (Out: %a) = test_add(X: %x) {k: 1.0}
    () = conditional_block(Cond: %outer) {sub_block: block1}
    (Out: %a) = test_add(X: %w) {k: 100.0}
    () = conditional_block(Cond: %outer) {sub_block: block3}
    (Out: %y) = test_add(X: %a) {k: 0.5}
}
block1 in block0 {
    (Out: %w) = test_side_add(X: %a) {k: 10.0}
    () = conditional_block(Cond: %inner) {sub_block: block2}
}
block2 in block1 {
    (Out: %w) = test_other_add(X: %w) {k: 1000.0}
}
block3 in block0 {
    (Out: %v) = test_other_add(X: %w) {k: 2.0}
    (Out: %a) = test_side_add(X: %a) {k: 3.0}
}";
    let program = Program::parse(text, registry()).unwrap();
    let mut options = ExecOptions { profile: true, ..ExecOptions::threads(1) };
    options.build.enable_inplace = true;
    let mut exe = executor(options);
    let interpreter = Interpreter::with_registry(registry());
    let scope = || {
        let mut scope = Scope::new();
        scope.set("w", vector(&[0.0, 0.0]));
        scope.set("v", vector(&[0.0, 0.0]));
        scope
    };
    let (mut fast, mut slow) = (scope(), scope());
    let mut lanes = Vec::new();
    let bools = |holds: bool| Tensor::from_bools(&[holds], [1]).unwrap();
    let mut rng = fleet_base::rng::Sequence::new(3, 0);
    for round in 0..30 {
        let (outer, inner) = (bools(rng.below(2) == 0), bools(rng.below(2) == 0));
        let x = vector(&[round as f32, 0.25]);
        let feed = [("outer", &outer), ("inner", &inner), ("x", &x)];
        let got = exe.run(&program, &mut fast, &feed, &["y"]).unwrap();
        let expected = interpreter.run(&program, &mut slow, &feed, &["y"]).unwrap();
        assert_eq!(got[0].to_vec::<f32>().unwrap(), expected[0].to_vec::<f32>().unwrap());
        for name in ["v", "w"] {
            let held = |scope: &Scope| scope.tensor(name).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(held(&fast), held(&slow), "{name} in round {round}");
        }
        lanes.extend(exe.trace().spans.iter().map(|span| (span.op.clone(), span.lane != 0)));
    }
    assert!(lanes.iter().all(|(op, beside)| *beside == (op != "test_add")), "{lanes:?}");
    assert!(lanes.iter().any(|(_, beside)| *beside));
}

#[test]
fn unused_plans_are_dropped() {
    let program = chain(&[("test_add", 1.0)]);
    let options = ExecOptions { num_iteration_per_drop_scope: 2, ..ExecOptions::default() };
    let mut exe = executor(options);
    let mut scope = Scope::new();
    for len in 1..6 {
        exe.run(&program, &mut scope, &[("x", &vector(&vec![0.0; len]))], &["y0"]).unwrap();
        assert!(exe.plan_count() <= 2);
    }
}

#[test]
fn a_trace_tells_what_ran_where_and_when() {
    let program = chain(&[("test_add", 1.0), ("test_side_add", 10.0), ("test_add", 100.0)]);
    let mut options = ExecOptions { profile: true, ..ExecOptions::threads(1) };
    let feed = vector(&[1.0, 2.0]);
    let mut exe = executor(options.clone());
    let mut scope = Scope::new();
    for _ in 0..3 {
        exe.run(&program, &mut scope, &[("x", &feed)], &["y2"]).unwrap();
    }
    let trace = exe.trace();
    let ran: Vec<_> = trace.spans.iter().map(|span| (span.op.as_str(), span.lane)).collect();
    assert_eq!(ran, [("test_add", 0), ("test_side_add", 1), ("test_add", 0)]);
    // Each op waits for the one before.
    assert!(trace.spans.windows(2).all(|pair| pair[0].end_us <= pair[1].begin_us));
    assert!(trace.exposed_us() < trace.duration_us());

    options.profile = false;
    let mut exe = executor(options);
    exe.run(&program, &mut scope, &[("x", &feed)], &["y2"]).unwrap();
    assert!(exe.trace().spans.is_empty());
}
