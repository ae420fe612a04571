//! The text form: printing, round trips, and the reader's errors.

mod common;

use common::*;
use fleet_base::rng::Sequence;
use fleet_ir::{Op, OpRole, Program, Var};
use fleet_tensor::DType;

const RICH: &str = include_str!("rich.fleet");

/// The expected text is in a file; `FLEET_BLESS=1` rewrites it.
#[test]
fn a_program_prints_as_documented() {
    let printed = rich().to_string();
    if std::env::var_os("FLEET_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rich.fleet"), &printed)
            .expect("cannot write the golden file");
        return;
    }
    assert_eq!(printed, RICH);
}

#[test]
fn everything_comes_back() {
    let program = rich();
    let read = Program::parse(&program.to_string(), &TestDialect).expect("the printed text parses");
    assert_eq!(read, program);
    assert_eq!(read.seed(), u64::MAX);
    assert_eq!(read.streams(), 3);
    for ((_, a), (_, b)) in program.vars().zip(read.vars()) {
        assert_eq!(a, b);
    }
    for block in program.block_ids() {
        assert_eq!(program.block(block).parent, read.block(block).parent);
        for ((_, a), (_, b)) in program.block_ops(block).zip(read.block_ops(block)) {
            assert_eq!((a.role, &a.device, &a.source), (b.role, &b.device, &b.source));
            assert_eq!((&a.inputs, &a.outputs), (&b.inputs, &b.outputs));
            // A NaN is not equal to itself, but its text is.
            assert_eq!(format!("{:?}", a.attrs), format!("{:?}", b.attrs));
        }
    }
    assert_eq!(read.fingerprint(), program.fingerprint());
    read.verify().expect("a valid program");
}

#[test]
fn random_programs_come_back() {
    for case in 0..3000 {
        let mut rng = Sequence::new(1, case);
        let program = random(&mut rng);
        let text = program.to_string();
        let read = Program::parse(&text, &TestDialect)
            .unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
        assert_eq!(read.to_string(), text, "case {case}");
    }
}

#[test]
fn holes_close_when_a_program_is_read_back() {
    let mut p = Program::new();
    let a = add(&mut p, Program::ROOT, Var::data("a", DType::F32, [2]));
    let gone = add(&mut p, Program::ROOT, Var::new("gone", DType::F32, [2]));
    let b = add(&mut p, Program::ROOT, Var::new("b", DType::F32, [2]));
    push(&mut p, Program::ROOT, concat(&[a], gone));
    push(&mut p, Program::ROOT, concat(&[a], b));
    p.retain_ops(Program::ROOT, |_, op| op.output("Out") != [gone]);
    p.remove_var(gone);
    let read = Program::parse(&p.to_string(), &TestDialect).unwrap();
    assert_eq!(read, p);
    assert_eq!((read.var_capacity(), read.op_capacity()), (2, 1));
    assert_eq!(Program::from_bytes(&p.to_bytes(), &TestDialect).unwrap(), p);
}

#[test]
fn text_may_be_written_freely() {
    let text = "\u{feff}# a comment\nfleet program 1 block0{%a:float32[2]data # here too\r\n\
                %b:f32[2]()=send(X:%a,%\"a\")()=data()(Out:%b)=concat(X:%a){axis:0,}!loss}";
    let p = Program::parse(text, &TestDialect).unwrap();
    let ops: Vec<(&str, OpRole)> = p.root_ops().map(|(_, op)| (op.name(), op.role)).collect();
    assert_eq!(
        ops,
        [("send", OpRole(0)), ("data", OpRole(0)), ("concat", OpRole::FORWARD.with_loss())]
    );
    assert_eq!(p.seed(), 0);
}

#[test]
fn defaults_are_filled_in_and_numbers_are_coerced() {
    let p = Program::parse(
        "fleet program 1\nblock0 { %a: f32[] data %b: f32[]\n\
         (Out: %b) = dropout(X: %a) {dropout_prob: 1} }",
        &TestDialect,
    )
    .unwrap();
    let (_, op) = p.root_ops().next().unwrap();
    assert_eq!(op.attr_float("dropout_prob"), 1.0);
    assert!(!op.attr_bool("is_test"));
}

/// Checks that each mistake is reported with the expected parts of a message.
#[test]
fn mistakes_are_explained() {
    let check = |text: &str, parts: &[&str]| {
        let error = match Program::parse(text, &TestDialect) {
            Ok(_) => panic!("no error: {text}"),
            Err(error) => error.to_string(),
        };
        for part in parts {
            assert!(error.contains(part), "'{part}' is not in: {error}\nof: {text}");
        }
    };
    let body = |body: &str| {
        format!(
            "fleet program 1\nseed 0\nblock0 {{\n  %a: f32[2] data\n  %b: f32[2]\n  {body}\n}}\n"
        )
    };
    let in_block = |text: &str, parts: &[&str]| check(&body(text), parts);

    check("", &["expected 'fleet', got end of input", "line 1, column 1"]);
    check("# nothing\n", &["expected 'fleet'"]);
    check(
        "fleet program 2",
        &["unsupported version of the text format", "expected 1, got 2", "line 1, column 15"],
    );
    check("fleet program 1", &["expected 'block0'"]);
    check("fleet program 1 seed -1", &["expected a seed", "got '-1'"]);
    check("fleet program 1 block1 {}", &["expected 'block0', got 'block1'"]);
    check("fleet program 1 block0 {", &["expected a variable, an op, or '}', got end of input"]);
    check("fleet program 1 block0 {} block1 {}", &["expected 'in', got '{'"]);
    check("fleet program 1 block0 {} block1 in block1 {}", &["an earlier block"]);
    check("fleet program 1 block0 {} block1 in block7 {}", &["an earlier block"]);
    check("fleet program 1 block0 {} ~", &["unexpected character", "got '~'"]);
    let deep: String = (1..40).map(|i| format!("block{i} in block{} {{}}\n", i - 1)).collect();
    check(&format!("fleet program 1 block0 {{}}\n{deep}"), &["too deeply", "at most 32 levels"]);

    in_block("%c f32[2]", &["expected ':', got 'f32'", "line 6, column 6: %c f32[2]"]);
    in_block("%c: flaot32[2]", &["unknown element type 'flaot32'; did you mean 'float32'?"]);
    in_block(
        "(Out: %b) = send(X: %a)",
        &["op 'send' has no output slot 'Out' (it has no output slots)\n"],
    );
    in_block("() = data(X: %a)", &["op 'data' has no input slot 'X' (it has no input slots)\n"]);
    in_block(
        "() = data() {axis: 1}",
        &["op 'data' has no attribute 'axis' (it has no attributes)\n"],
    );
    in_block("%c: f32[2", &["expected ',', got '}'"]);
    in_block("%c: f32[x]", &["expected a dimension", "got 'x'"]);
    in_block("%c: f32[-2]", &["negative dimension", "got -2"]);
    in_block("%c: f32[1,1,1,1,1,1,1,1,1]", &["too many dimensions"]);
    in_block("%c: f32[2] dta", &["unknown flag 'dta' of a variable; did you mean 'data'?"]);
    in_block("%c: f32[2] data data", &["duplicate flag 'data' of a variable"]);
    in_block("%c: f32[2] frozen", &["'frozen' is only valid for parameters"]);
    in_block("%c: f32[2] param l1=1 l2=1", &["expected only one of 'l1' and 'l2'"]);
    in_block("%c: f32[2] param lr=x", &["expected a number, got 'x'"]);
    in_block("%c: f32[2] layout=nchw", &["expected row_major or filter64, got 'nchw'"]);
    in_block("%c: f32[2] lod=256", &["too many lod levels", "got 256"]);
    in_block("%a: f32[2]", &["duplicate variable name 'a'", "line 6, column 3"]);
    in_block("%\"\": f32[2]", &["empty variable name"]);
    in_block("%: f32[2]", &["missing variable name after '%'"]);
    in_block(&format!("%{}: f32[2]", "n".repeat(1025)), &["a name is too long", "1024 bytes"]);
    in_block("%\"a", &["unterminated string"]);
    in_block("%\"\\q\": f32[]", &["unknown escape"]);
    in_block("%\"\\u{d800}\": f32[]", &["unknown escape"]);

    in_block("(Out: %b) = conct(X: %a)", &["unknown op 'conct'; did you mean 'concat'?"]);
    in_block(
        "(Out: %b) = concat(Y: %a)",
        &["no input slot 'Y'", "one of X, AxisTensor", "column 22"],
    );
    in_block("(Ot: %b) = concat(X: %a)", &["no output slot 'Ot'; did you mean 'Out'?", "column 4"]);
    in_block("(Out: %bb) = concat(X: %a)", &["no variable 'bb'; did you mean 'b'?", "column 9"]);
    in_block("(Out: %b) = concat(X: %a, X: %a)", &["duplicate slot 'X'"]);
    in_block("(Out: %b) = concat(X: )", &["expected a variable, got ')'"]);
    in_block("(Out: %b) = concat(X: %a,)", &["expected a variable or a slot, got ')'"]);
    in_block(
        "(Out: %b, %a) = concat(X: %a)",
        &["output slot 'Out' of op 'concat'", "1 variable, got 2"],
    );
    in_block("(Out: %b) = mul(X: %a)", &["input slot 'Y'", "expected 1 variable, got 0"]);
    in_block("(Out: %b) = concat(X: %a) {axes: 1}", &["no attribute 'axes'; did you mean 'axis'?"]);
    in_block("(Out: %b) = concat(X: %a) {axis: 1.5}", &["expected a 64-bit integer, got '1.5'"]);
    in_block("(Out: %b) = concat(X: %a) {axis: 99999999999999999999}", &["a 64-bit integer"]);
    in_block("(Out: %b) = concat(X: %a) {axis: \"1\"}", &["expected int, got string", "column 30"]);
    in_block("(Out: %b) = concat(X: %a) {axis: one}", &["expected int, got 'one'", "quotes"]);
    in_block("(Out: %b) = concat(X: %a) {axis: [1]}", &["expected int, got list of int"]);
    in_block("(Out: %b) = concat(X: %a) {axis: 1 axis: 2}", &["expected ',', got 'axis'"]);
    in_block("(Out: %b) = concat(X: %a) {axis: 1, axis: 2}", &["duplicate attribute 'axis'"]);
    in_block("(Out: %b) = concat(X: %a) {axis: 1__0}", &["invalid number"]);
    in_block(
        "() = every() {ints: [1, \"a\"]}",
        &["wrong type of list element", "expected int, got string"],
    );
    in_block(
        "() = every() {int: 1}",
        &["missing attribute 'float' of op 'every'", "expected float"],
    );
    in_block("() = data() !bakward", &["unknown role 'bakward'; did you mean 'backward'?"]);
    in_block("() = data() !backward !optimize", &["expected only one role"]);
    in_block("() = data() !role(4294967296)", &["32 bits"]);
    in_block("() = data() device=cpu", &["a quoted label"]);
    in_block("() = data() device=\"a\" device=\"b\"", &["duplicate label 'device'"]);
    in_block(
        "() = data() devise=\"a\"",
        &["expected 'device', 'fp16_guard' or 'at', got 'devise'"],
    );
}

#[test]
fn blocks_are_a_tree() {
    let check = |blocks: &str, part: &str| {
        let text = format!("fleet program 1\n{blocks}");
        let error = Program::parse(&text, &TestDialect).expect_err("not a tree").to_string();
        assert!(error.contains(part), "{error}");
    };
    let op = |n: u32| format!("() = cond(Cond: %c) {{sub_block: block{n}}}");
    let root = |ops: &str| format!("block0 {{ %c: bool[1] data\n{ops} }}");
    check(&root(&op(0)), "block0 is not a child of block0: expected parent block0, got no parent");
    check(&root(&op(9)), "the program has no block9");
    check(
        &format!("{} block1 in block0 {{ {} }}", root(&op(1)), op(1)),
        "block1 is not a child of block1",
    );
    check(&format!("{} block1 in block0 {{ {} }}", root(&op(1)), op(0)), "expected parent block1");
    check(
        &format!("{} block1 in block0 {{}}", root(&format!("{} {}", op(1), op(1)))),
        "belongs to two",
    );
}

#[test]
fn programs_that_print_the_same_are_equal() {
    let (a, mut b) = (rich(), rich());
    assert_eq!(a, b);
    b.set_seed(1);
    assert_ne!(a, b);
    let mut c = rich();
    let first = c.root_ops().next().map(|(id, _)| id).unwrap();
    c.op_mut(first).set_attr("x_num_col_dims", 2i64).unwrap();
    assert_ne!(a, c);
    assert_eq!(Op::build(&SEND).finish().unwrap().name(), "send");
}

/// The length of a hostile file alone does not bound its cost, so counts are limited too.
#[test]
fn programs_have_limits() {
    let check = |text: &str, part: &str| {
        let error = Program::parse(text, &TestDialect).expect_err("too much").to_string();
        assert!(error.contains(part), "{} for {part}", &error[..error.len().min(300)]);
    };
    let in_block = |line: &str, part: &str| {
        check(&format!("fleet program 1 block0 {{ %a: f32[2] %b: f32[2] {line} }}"), part);
    };
    // The reader compares each name with all earlier ones: without a limit, these would take
    // minutes.
    let names = |count: usize, form: &str| -> String {
        (0..count).map(|i| form.replace('#', &i.to_string())).collect::<Vec<_>>().join(", ")
    };
    for count in [65, 300_000] {
        let (slots, attrs) = (names(count, "s#: %a"), names(count, "a#: 1"));
        let part = "too many slots on one side of an op: expected at most 64, got 65";
        in_block(&format!("(Out: %b) = concat({slots})"), part);
        in_block(&format!("({slots}) = concat(X: %a)"), part);
        let part = "too many attributes of an op: expected at most 64, got 65";
        in_block(&format!("(Out: %b) = concat(X: %a) {{{attrs}}}"), part);
    }
    // A slot may have any number of variables.
    let many = vec!["%a"; 100_000].join(", ");
    let text =
        format!("fleet program 1 block0 {{ %a: f32[2] %b: f32[2] (Out: %b) = concat(X: {many}) }}");
    assert!(Program::parse(&text, &TestDialect).is_ok());
    let ops = "() = data()\n".repeat((1 << 20) + 1);
    in_block(&ops, "too many ops: expected at most 1048576, got 1048577");
    let blocks: String = (1..=1 << 16).map(|i| format!("block{i} in block0 {{}}\n")).collect();
    check(
        &format!("fleet program 1 block0 {{}}\n{blocks}"),
        "too many blocks: expected at most 65536, got 65537",
    );
    check(&"#".repeat(70 << 20), "the program is too large: expected at most 64 MiB, got 70 MiB");
}
