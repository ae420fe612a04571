//! A small dialect that covers every form of op, and programs that use every feature.
#![allow(dead_code)] // each test file uses only some items

use fleet_base::rng::Sequence;
use fleet_ir::{
    Arity, Attr, AttrConst, AttrKind, BlockId, Dialect, Op, OpRole, OpSpec, Param, Program,
    Regularizer, SlotSpec, Var, VarId, VarKind, attr, many, one, optional, required,
};
use fleet_tensor::{DType, Layout, Shape};

pub struct TestDialect;

impl Dialect for TestDialect {
    fn spec(&self, name: &str) -> Option<&'static OpSpec> {
        SPECS.iter().copied().find(|spec| spec.name == name)
    }

    fn names(&self) -> Vec<&'static str> {
        SPECS.iter().map(|spec| spec.name).collect()
    }
}

pub static SPECS: &[&OpSpec] = &[&MUL, &CONCAT, &DROPOUT, &EVERY, &COND, &SEND, &NOTHING];

pub static MUL: OpSpec = OpSpec {
    name: "mul",
    inputs: &[one("X"), one("Y")],
    outputs: &[one("Out")],
    attrs: &[attr("x_num_col_dims", AttrConst::Int(1))],
};

pub static CONCAT: OpSpec = OpSpec {
    name: "concat",
    inputs: &[many("X"), optional("AxisTensor")],
    outputs: &[one("Out")],
    attrs: &[attr("axis", AttrConst::Int(0))],
};

pub static DROPOUT: OpSpec = OpSpec {
    name: "dropout",
    inputs: &[one("X")],
    outputs: &[one("Out"), optional("Mask")],
    attrs: &[
        attr("dropout_prob", AttrConst::Float(0.5)),
        attr("is_test", AttrConst::Bool(false)),
        attr("seed", AttrConst::Int(0)),
    ],
};

/// Every type of attribute, with and without a default.
pub static EVERY: OpSpec = OpSpec {
    name: "every",
    inputs: &[optional("X")],
    outputs: &[many("Out")],
    attrs: &[
        required("int", AttrKind::Int),
        required("float", AttrKind::Float),
        required("bool", AttrKind::Bool),
        required("str", AttrKind::Str),
        required("ints", AttrKind::Ints),
        required("floats", AttrKind::Floats),
        required("strs", AttrKind::Strs),
        required("dtype", AttrKind::DType),
        attr("float2", AttrConst::Float(0.0)),
        attr("str2", AttrConst::Str("sum")),
        attr("ints2", AttrConst::Ints(&[1, 1])),
        attr("floats2", AttrConst::Floats(&[1.0])),
        attr("strs2", AttrConst::Strs(&["a"])),
        attr("dtype2", AttrConst::DType(DType::F32)),
    ],
};

pub static COND: OpSpec = OpSpec {
    name: "cond",
    inputs: &[one("Cond"), many("Input")],
    outputs: &[many("Out")],
    attrs: &[required("sub_block", AttrKind::Block)],
};

pub static SEND: OpSpec = OpSpec { name: "send", inputs: &[many("X")], outputs: &[], attrs: &[] };

pub static NOTHING: OpSpec = OpSpec { name: "data", inputs: &[], outputs: &[], attrs: &[] };

/// A program that uses every feature.
pub fn rich() -> Program {
    let mut p = Program::new();
    p.set_seed(u64::MAX);
    p.set_streams(3);
    let root = Program::ROOT;
    let x = add(&mut p, root, Var::data("x", DType::F32, [-1, 13]));
    let ragged = Var { lod_level: 2, ..Var::data("ragged ids", DType::I64, [-1, 1]) };
    add(&mut p, root, ragged);
    let param = Param {
        learning_rate: 0.1,
        regularizer: Some(Regularizer::L2(1e-4)),
        need_clip: false,
        is_distributed: true,
        ..Param::default()
    };
    let w = add(&mut p, root, Var::parameter("fc_0.w_0", DType::F32, [13, 400], param));
    let frozen = Param {
        trainable: false,
        regularizer: Some(Regularizer::L1(f64::MIN_POSITIVE)),
        ..Param::default()
    };
    add(&mut p, root, Var::parameter("emb/table-1", DType::BF16, [7, 2, 1], frozen));
    let warm = Var {
        stop_gradient: true,
        ..Var::parameter("warm", DType::F64, Shape::SCALAR, Param::default())
    };
    add(&mut p, root, warm);
    let moving = Var { stop_gradient: false, ..Var::persistable("bn.mean", DType::F32, [400]) };
    add(&mut p, root, moving);
    let flag = add(&mut p, root, Var::persistable("flag", DType::Bool, [1]));
    let grad = Var { kind: VarKind::SparseRows, ..Var::new("w@GRAD", DType::F32, [1000, 16]) };
    add(&mut p, root, grad);
    add(&mut p, root, Var { kind: VarKind::TensorArray, ..Var::new("steps", DType::U8, [0]) });
    let y = add(&mut p, root, Var::new("tmp_0", DType::F32, [-1, 400]));
    let z =
        add(&mut p, root, Var { stop_gradient: true, ..Var::new("tmp_1", DType::F32, [-1, 400]) });
    let filter = Var {
        layout: Layout::Filter64,
        ..Var::parameter("conv2d_0.w_0", DType::F32, [64, 3, 7, 7], Param::default())
    };
    add(&mut p, root, filter);
    let strange = "line\nbreak \"quoted\" \\ % # ünïcode \u{202e}\u{7}";
    let mask = add(&mut p, root, Var::new(strange, DType::I8, [-1, 400]));
    let outer = add(&mut p, root, Var::new("outer", DType::F32, [-1, 400]));

    let source = Some("src/model.rs:12".into());
    push(
        &mut p,
        root,
        Op::build(&MUL).input("X", x).input("Y", w).output("Out", y).source(source.clone()),
    );
    let dropout = Op::build(&DROPOUT).input("X", y).output("Out", z).output("Mask", mask);
    let dropout =
        dropout.attr("dropout_prob", 0.1).device(Some("cpu:0 \"a\"".into())).source(source);
    push(&mut p, root, dropout.role(OpRole::FORWARD.with_loss()));
    let every = Op::build(&EVERY)
        .attr("int", i64::MIN)
        .attr("float", f64::NEG_INFINITY)
        .attr("bool", true)
        .attr("str", "true")
        .attr("ints", vec![i64::MAX, -1, 0])
        .attr("floats", vec![f64::NAN, 0.1, -0.0, 1e300, 5e-324, f64::INFINITY])
        .attr("strs", Attr::Strs(vec!["a".into(), String::new(), "b\"\\\t".into()]))
        .attr("dtype", DType::BF16)
        .attr("float2", -0.0)
        .attr("str2", "mean")
        .attr("ints2", Vec::<i64>::new())
        .attr("floats2", Vec::<f64>::new())
        .attr("strs2", Vec::<String>::new())
        .attr("dtype2", DType::Bool);
    push(&mut p, root, every.role(OpRole(37).with_loss()));

    let inner = p.add_block(root);
    let innermost = p.add_block(inner);
    let t = add(&mut p, inner, Var::new("t", DType::F32, [-1, 400]));
    push(&mut p, inner, concat(&[y, z], t));
    push(
        &mut p,
        inner,
        Op::build(&COND).input("Cond", flag).output("Out", outer).attr("sub_block", innermost),
    );
    push(&mut p, innermost, concat(&[t], outer).role(OpRole::BACKWARD));
    let cond = Op::build(&COND).input("Cond", flag).inputs("Input", &[y, z]).output("Out", outer);
    push(&mut p, root, cond.attr("sub_block", inner).role(OpRole::OPTIMIZE));
    push(&mut p, root, Op::build(&SEND).inputs("X", &[outer, outer]).role(OpRole::RPC));
    push(&mut p, root, Op::build(&NOTHING).role(OpRole::LR_SCHED));
    push(&mut p, root, Op::build(&SEND).role(OpRole::DIST));
    p
}

pub fn add(program: &mut Program, block: BlockId, var: Var) -> VarId {
    program.add_var(block, var).expect("a new name")
}

pub fn push(program: &mut Program, block: BlockId, op: fleet_ir::OpBuilder) {
    let op = op.finish().expect("a well-formed op");
    program.append_op(block, op);
}

pub fn concat(inputs: &[VarId], out: VarId) -> fleet_ir::OpBuilder {
    Op::build(&CONCAT).inputs("X", inputs).output("Out", out)
}

/// Generates a program, the same for the same sequence. It is well formed, but not always valid.
pub fn random(rng: &mut Sequence) -> Program {
    let mut p = Program::new();
    p.set_seed(rng.next_u64());
    p.set_streams(rng.below(3));
    let mut blocks = vec![Program::ROOT];
    let mut vars = Vec::new();
    for _ in 0..rng.below(12) {
        let block = blocks[rng.below(blocks.len() as u64) as usize];
        let name = random_text(rng);
        if let Ok(id) = p.add_var(block, random_var(rng, name)) {
            vars.push(id);
        }
    }
    for _ in 0..rng.below(12) {
        let block = blocks[rng.below(blocks.len() as u64) as usize];
        let spec = SPECS[rng.below(SPECS.len() as u64) as usize];
        let mut op = Op::build(spec);
        for slot in spec.inputs {
            op = op.inputs(slot.name, &random_vars(rng, slot, &vars));
        }
        for slot in spec.outputs {
            op = op.outputs(slot.name, &random_vars(rng, slot, &vars));
        }
        for attr in spec.attrs {
            if attr.kind == AttrKind::Block {
                let inner = p.add_block(block);
                blocks.push(inner);
                op = op.attr(attr.name, inner);
            } else if attr.default.is_none() || rng.below(2) == 0 {
                op = op.attr(attr.name, random_attr(rng, attr.kind));
            }
        }
        let label = |rng: &mut Sequence| (rng.below(3) == 0).then(|| random_text(rng).into());
        let op = op.role(OpRole(rng.below(6) as u32 | (rng.below(2) as u32) << 8));
        let op = op.device(label(rng)).source(label(rng));
        if let Ok(op) = op.finish() {
            p.append_op(block, op);
        }
    }
    p
}

fn random_vars(rng: &mut Sequence, slot: &SlotSpec, vars: &[VarId]) -> Vec<VarId> {
    let count = match slot.arity {
        Arity::One => 1,
        Arity::Optional => rng.below(2),
        Arity::Many => rng.below(4),
    };
    let pick = |rng: &mut Sequence| vars[rng.below(vars.len() as u64) as usize];
    if vars.is_empty() { Vec::new() } else { (0..count).map(|_| pick(rng)).collect() }
}

fn random_var(rng: &mut Sequence, name: String) -> Var {
    let dims: Vec<i64> = (0..rng.below(4)).map(|_| rng.below(5) as i64 - 1).collect();
    let dtype = DType::ALL[rng.below(10) as usize];
    let mut coin = || rng.below(2) == 0;
    let param = Param {
        trainable: coin(),
        learning_rate: if coin() { 1.0 } else { 0.3 },
        regularizer: if coin() { None } else { Some(Regularizer::L1(1e-9)) },
        need_clip: coin(),
        is_distributed: coin(),
    };
    Var {
        persistable: coin(),
        stop_gradient: coin(),
        is_data: coin(),
        param: coin().then_some(param),
        kind: if coin() { VarKind::Dense } else { VarKind::SparseRows },
        lod_level: if coin() { 0 } else { 255 },
        ..Var::new(name, dtype, Shape::of(&dims))
    }
}

fn random_attr(rng: &mut Sequence, kind: AttrKind) -> Attr {
    let count = rng.below(4);
    match kind {
        AttrKind::Int => Attr::Int(rng.next_u64() as i64),
        AttrKind::Float => Attr::Float(f64::from_bits(rng.next_u64())),
        AttrKind::Bool => Attr::Bool(rng.below(2) == 0),
        AttrKind::Str => Attr::Str(random_text(rng)),
        AttrKind::Ints => Attr::Ints((0..count).map(|_| rng.below(9) as i64 - 4).collect()),
        AttrKind::Floats => Attr::Floats((0..count).map(|_| rng.normal()).collect()),
        AttrKind::Strs => Attr::Strs((0..count).map(|_| random_text(rng)).collect()),
        AttrKind::DType => Attr::DType(DType::ALL[rng.below(10) as usize]),
        AttrKind::Block => Attr::Block(Program::ROOT),
    }
}

/// Generates text from an alphabet with every character that could confuse a reader.
pub fn random_text(rng: &mut Sequence) -> String {
    let alphabet: Vec<char> =
        "ab0_.@/-% \"\\\n#{}()[]:,=!é\u{202e}\u{0}\u{1f600}".chars().collect();
    let plain = rng.below(2) == 0;
    let limit = if plain { 8 } else { alphabet.len() as u64 };
    (0..1 + rng.below(6)).map(|_| alphabet[rng.below(limit) as usize]).collect()
}
