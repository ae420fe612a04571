//! Programs that could write outside their memory, or overwrite a value that is still needed. Each
//! is rejected, or gives the interpreter's results.

use fleet_base::{ErrorKind, Result};
use fleet_exec::{ExecOptions, Executor, Interpreter, Memory, Scope};
use fleet_ir::Program;
use fleet_ops::Registry;
use fleet_tensor::{Layout, Tensor};

/// A program with its inputs and initial state.
struct Case {
    program: Program,
    feed: Vec<(&'static str, Tensor)>,
    state: Vec<(&'static str, Tensor)>,
    fetch: Vec<&'static str>,
}

impl Case {
    fn new(body: &str) -> Case {
        let text = format!("fleet program 1\nblock0 {{\n{body}\n}}");
        let program = Program::parse(&text, Registry::standard()).expect("well formed");
        Case { program, feed: Vec::new(), state: Vec::new(), fetch: Vec::new() }
    }

    fn feed(mut self, name: &'static str, tensor: Tensor) -> Case {
        self.feed.push((name, tensor));
        self
    }

    fn state(mut self, name: &'static str, tensor: Tensor) -> Case {
        self.state.push((name, tensor));
        self
    }

    fn fetch(mut self, names: &[&'static str]) -> Case {
        self.fetch = names.to_vec();
        self
    }

    fn scope(&self) -> Scope {
        let mut scope = Scope::new();
        for (name, tensor) in &self.state {
            scope.set(*name, tensor.try_clone().unwrap());
        }
        scope
    }

    fn feeds(&self) -> Vec<(&str, &Tensor)> {
        self.feed.iter().map(|(name, tensor)| (*name, tensor)).collect()
    }

    fn interpreted(&self) -> Result<Vec<Tensor>> {
        Interpreter::new().run(&self.program, &mut self.scope(), &self.feeds(), &self.fetch)
    }

    fn executed(&self, memory: Memory) -> Result<Vec<Tensor>> {
        let options = ExecOptions { memory, ..ExecOptions::threads(1) };
        let mut executor = Executor::new(options);
        executor.run(&self.program, &mut self.scope(), &self.feeds(), &self.fetch)
    }

    /// Checks that the executor and the interpreter reject the program, with `parts` in the
    /// message.
    fn refused(&self, parts: &[&str]) {
        let runs =
            [self.executed(Memory::Packed), self.executed(Memory::Separate), self.interpreted()];
        for run in runs {
            let error = run.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            for part in parts {
                assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
            }
        }
    }

    /// Checks that the executor and the interpreter give the same results.
    fn agreed(&self) {
        let expected = self.interpreted().expect("it runs");
        for memory in [Memory::Packed, Memory::Separate] {
            let found = self.executed(memory).expect("it runs");
            for ((name, found), expected) in self.fetch.iter().zip(found).zip(&expected) {
                assert_eq!(found.as_bytes(), expected.as_bytes(), "{name} with {memory:?}");
            }
        }
    }
}

fn ones(count: usize) -> Tensor {
    Tensor::from_slice(&vec![1.0f32; count], [count as i64]).unwrap()
}

fn matrix(rows: usize, width: usize) -> Tensor {
    let values: Vec<f32> = (0..rows * width).map(|i| i as f32 / 8.0 - 1.0).collect();
    Tensor::from_slice(&values, [rows as i64, width as i64]).unwrap()
}

/// A kernel prepared for the first size would overrun memory of the second.
#[test]
fn a_second_write_of_another_size_is_refused() {
    let head = "%a: f32[-1] data %b: f32[-1] data %x: f32[-1] %y: f32[-1] %z: f32[-1]";
    let text = format!(
        "{head}
         (Out: %x) = relu(X: %a) at=\"m.rs:3\"
         (Out: %y) = relu(X: %x)
         (Out: %x) = relu(X: %b) at=\"m.rs:5\"
         (Out: %z) = relu(X: %x)"
    );
    let case = |a: usize, b: usize| {
        Case::new(&text).feed("a", ones(a)).feed("b", ones(b)).fetch(&["y", "z", "x"])
    };
    let words = "'x' is written twice with different sizes: expected f32[1000], got f32[2]\n  \
                 at op 2 relu(X: %b) at m.rs:5\n  help: use a separate variable for each result; \
                 the first is written by op 0 relu(X: %a) at m.rs:3";
    case(1000, 2).refused(&[words]);
    case(2, 1000).refused(&["expected f32[2], got f32[1000]"]);
    case(0, 1).refused(&["expected f32[0], got f32[1]"]);
    case(7, 7).agreed();
}

#[test]
fn a_second_size_in_a_conditional_part_is_refused() {
    let text = "%a: f32[-1] data %b: f32[-1] data %c: bool[1] data %x: f32[-1] %y: f32[-1]
         (Out: %x) = relu(X: %a)
         () = conditional_block(Cond: %c) {sub_block: block1}
         (Out: %y) = relu(X: %x)
         }
         block1 in block0 { (Out: %x) = tanh(X: %b)";
    // Whether the conditional part runs or not.
    for holds in [false, true] {
        let case = |b: usize| {
            let holds = Tensor::from_bools(&[holds], [1]).unwrap();
            let case = Case::new(text).feed("a", ones(1000)).feed("b", ones(b)).feed("c", holds);
            case.fetch(&["y"])
        };
        case(2)
            .refused(&["'x' is written twice with different sizes", "at block1 op 0 tanh(X: %b)"]);
        case(1000).agreed();
    }
}

/// Both branches of `cond` write its result in this way.
#[test]
fn branches_may_write_one_variable_of_one_size() {
    let text =
        "%a: f32[-1] data %b: f32[-1] data %c: bool[1] data %n: bool[1] %x: f32[-1] %y: f32[-1]
         (Out: %n) = logical_not(X: %c)
         () = conditional_block(Cond: %c) {sub_block: block1}
         () = conditional_block(Cond: %n) {sub_block: block2}
         (Out: %y) = relu(X: %x)
         }
         block1 in block0 { (Out: %x) = tanh(X: %a) }
         block2 in block0 { (Out: %x) = scale(X: %b) {scale: 3.0}";
    for holds in [false, true] {
        let case = |b: usize| {
            let holds = Tensor::from_bools(&[holds], [1]).unwrap();
            let case = Case::new(text).feed("a", ones(40)).feed("b", ones(b)).feed("c", holds);
            case.fetch(&["y"])
        };
        case(40).agreed();
        case(41)
            .refused(&["'x' is written twice with different sizes: expected f32[40], got f32[41]"]);
    }
}

#[test]
fn sparse_rows_of_two_capacities_are_refused() {
    let text = "%i: i64[-1] data %j: i64[-1] data %g: f32[-1, 2] data %h: f32[-1, 2] data
         %w: f32[9, 2] data %s: f32[9, 2] sparse_rows %t: f32[9, 2] sparse_rows
         (W@GRAD: %s) = lookup_table_v2_grad(W: %w, Ids: %i, Out@GRAD: %g) {is_sparse: true}
         (Out: %t) = scale(X: %s)
         (W@GRAD: %s) = lookup_table_v2_grad(W: %w, Ids: %j, Out@GRAD: %h) {is_sparse: true}";
    let ids = |count: usize| Tensor::from_slice(&vec![3i64; count], [count as i64]).unwrap();
    let case = |first: usize, second: usize| {
        let case = Case::new(text).feed("i", ids(first)).feed("g", matrix(first, 2));
        let case = case.feed("j", ids(second)).feed("h", matrix(second, 2));
        case.feed("w", matrix(9, 2)).fetch(&["t", "s"])
    };
    case(100, 1).refused(&[
        "'s' is written twice with different sizes",
        "capacity 100",
        "capacity 1)",
    ]);
    case(4, 4).agreed();
}

/// A variable that is dense in one op and sparse in another would have two lengths.
#[test]
fn a_variable_is_dense_or_holds_rows() {
    let text = |rows: &str| {
        format!(
            "%i: i64[-1] data %g: f32[-1, 2] data %w: f32[9, 2] data %s: f32[9, 2] {rows}
             (W@GRAD: %s) = lookup_table_v2_grad(W: %w, Ids: %i, Out@GRAD: %g) {{is_sparse: true}}"
        )
    };
    let case = |rows: &str| {
        let case = Case::new(&text(rows)).feed("i", Tensor::from_slice(&[3i64], [1]).unwrap());
        case.feed("g", matrix(1, 2)).feed("w", matrix(9, 2)).fetch(&["s"])
    };
    case("sparse_rows").agreed();
    let parts =
        ["output 's' does not match its declared type or shape", "got f32[9, 2] (sparse rows"];
    case("").refused(&parts);
    case("persistable sparse_rows").refused(&["'s' cannot be persistable"]);
}

#[test]
fn state_keeps_the_size_that_the_scope_holds() {
    let case = |held: usize| {
        Case::new("%a: f32[-1] data %w: f32[-1] persistable (Out: %w) = relu(X: %a)")
            .feed("a", ones(1000))
            .state("w", ones(held))
            .fetch(&["w"])
    };
    let parts = ["output 'w' does not match its shape in the scope", "f32[2], got f32[1000]"];
    case(2).refused(&parts);
    case(1000).agreed();
}

/// The executor reads only one byte of a condition.
/// The limit counts what is in the scope, what a run creates there, temporaries and fed tensors.
#[test]
fn a_program_that_needs_more_than_the_limit_is_refused() {
    let case = Case::new(
        "%x: f32[1024, 256] data
         %w: f32[1024, 256] persistable
         %y: f32[1024, 256]
         (Out: %y) = relu(X: %x)
         (Out: %w) = tanh(X: %y)",
    )
    .feed("x", matrix(1024, 256))
    .state("w", matrix(1024, 256));
    let run = |limit: u64| {
        let options = ExecOptions { memory_limit: Some(limit), ..ExecOptions::threads(1) };
        Executor::new(options).run(&case.program, &mut case.scope(), &case.feeds(), &["w"])
    };
    let needed = 3 << 20; // x, y and w
    assert!(run(needed).is_ok());
    let error = run(needed - 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    let text = error.to_string();
    for part in ["at most 3 MiB, got more than 3 MiB", "1 MiB of parameters", "1 MiB of fed"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn conditions_are_one_bool() {
    let text = |condition: &str| {
        format!(
            "%a: f32[-1] data %c: {condition} data %x: f32[-1] %d: bool[-1]
             (Out: %d) = assign(X: %c)
             (Out: %x) = relu(X: %a)
             () = conditional_block(Cond: %d) {{sub_block: block1}}
             }}
             block1 in block0 {{ (Out: %x) = tanh(X: %a)"
        )
    };
    let case = |count: usize| {
        let bools = Tensor::from_bools(&vec![true; count], [count as i64]).unwrap();
        Case::new(&text("bool[-1]")).feed("a", ones(3)).feed("c", bools).fetch(&["x"])
    };
    case(1).agreed();
    case(0).refused(&["'d' is not a condition: expected bool of one element, got bool[0]"]);
    case(2).refused(&["'d' is not a condition"]);
    let never = "%a: f32[-1] data %x: f32[-1] %d: bool[1]
         (Out: %x) = relu(X: %a) () = conditional_block(Cond: %d) {sub_block: block1}
         }
         block1 in block0 { (Out: %x) = tanh(X: %a)";
    Case::new(never)
        .feed("a", ones(3))
        .fetch(&["x"])
        .refused(&["'d' is read before it is written"]);
}

/// Optimizer state without an output would give the kernel a null pointer or a missing argument.
#[test]
fn optimizer_state_that_is_given_has_an_output() {
    Case::new(
        "%w: f32[3] persistable %g: f32[3] data %r: f32[1] data %m: f32[3] persistable
         (ParamOut: %w, MeanSquareOut: %m, MomentOut: %m2) =
             rmsprop(Param: %w, Grad: %g, LearningRate: %r, MeanSquare: %m, Moment: %g,
                     MeanGrad: %g)
         %m2: f32[3]",
    )
    .feed("g", ones(3))
    .feed("r", ones(1))
    .state("w", ones(3))
    .state("m", ones(3))
    .fetch(&["w"])
    .refused(&["missing output 'MeanGradOut' of rmsprop for input 'MeanGrad'"]);
}

/// An in-place sum must not copy the rows onto themselves.
#[test]
fn a_sum_of_rows_may_stay_in_its_place() {
    Case::new(
        "%i: i64[-1] data %g: f32[-1, 2] data %w: f32[9, 2] data %s: f32[9, 2] sparse_rows
         (W@GRAD: %s) = lookup_table_v2_grad(W: %w, Ids: %i, Out@GRAD: %g) {is_sparse: true}
         (Out: %s) = sum(X: %s)",
    )
    .feed("i", Tensor::from_slice(&[3i64, 1, 3], [3]).unwrap())
    .feed("g", matrix(3, 2))
    .feed("w", matrix(9, 2))
    .fetch(&["s"])
    .agreed();
}

/// In an embedding with as many rows as ids, the dense gradient of the table has the size of the
/// incoming gradient. The two must not share memory.
#[test]
fn a_dense_gradient_of_an_embedding_has_memory_of_its_own() {
    let ids: Vec<i64> = (0..32).map(|i| i * 7 % 5).collect();
    Case::new(
        "%i: i64[-1] data %g: f32[-1, 8] data %w: f32[32, 8] data %d: f32[-1, 8] %s: f32[32, 8]
         (Out: %d) = scale(X: %g) {scale: 2.0}
         (W@GRAD: %s) = lookup_table_v2_grad(W: %w, Ids: %i, Out@GRAD: %d)",
    )
    .feed("i", Tensor::from_slice(&ids, [32]).unwrap())
    .feed("g", matrix(32, 8))
    .feed("w", matrix(32, 8))
    .fetch(&["s"])
    .agreed();
}

/// Returns deterministic values for a shape.
fn numbers(dims: &[i64]) -> Tensor {
    let count: i64 = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i * 7 % 13) as f32 / 4.0 - 1.5).collect();
    Tensor::from_slice(&values, fleet_tensor::Shape::of(dims)).unwrap()
}

/// Checks that the rewritten program gives the interpreter's results up to rounding.
fn agreed_nearly(case: &Case) {
    let expected = case.interpreted().unwrap();
    for (expected, found) in expected.iter().zip(case.executed(Memory::Separate).unwrap()) {
        assert_eq!(expected.shape(), found.shape());
        let pairs = expected.as_slice::<f32>().unwrap().iter().zip(found.as_slice().unwrap());
        for (a, b) in pairs {
            assert!((a - b).abs() <= 1e-4 * a.abs().max(1.0), "{a} {b} in {}", case.program);
        }
    }
}

/// A packed filter is longer than its shape implies, so other ops on the filter must not see the
/// packed layout.
#[test]
fn a_filter_that_is_copied_stays_row_major() {
    for op in ["assign(X: %w)", "tanh(X: %w)", "elementwise_mul(X: %w, Y: %b)", "sum(X: %w)"] {
        let text = format!(
            "%x: f32[-1, 3, 8, 8] data %w: f32[4, 3, 3, 3] persistable %b: f32[3] persistable
             %y: f32[-1, 4, 6, 6] %c: f32[-1, -1, 3, 3]
             (Output: %y) = conv2d(Input: %x, Filter: %w)
             (Out: %c) = {op}"
        );
        let case = Case::new(&text).feed("x", numbers(&[2, 3, 8, 8])).fetch(&["y", "c"]);
        agreed_nearly(&case.state("w", numbers(&[4, 3, 3, 3])).state("b", numbers(&[3])));
    }
}

#[test]
fn a_filter_that_is_also_the_image_stays_row_major() {
    let text = "%x: f32[-1, 3, 8, 8] data %f: f32[4, 3, 3, 3] persistable
        %w: f32[4, 3, 3, 3] persistable %y: f32[4, 1, 1, 4] %z: f32[-1, 4, 6, 6]
        (Output: %y) = conv2d(Input: %w, Filter: %w) {data_format: \"NHWC\"}
        (Output: %z) = conv2d(Input: %x, Filter: %f)";
    let case = Case::new(text).feed("x", numbers(&[2, 3, 8, 8])).fetch(&["y", "z"]);
    agreed_nearly(&case.state("w", numbers(&[4, 3, 3, 3])).state("f", numbers(&[4, 3, 3, 3])));
}

/// Pooling must use the format that its image has.
#[test]
fn an_image_that_lives_in_the_scope_keeps_its_format() {
    let text = "%x: f32[-1, 3, 8, 8] data %w: f32[4, 3, 3, 3] persistable
        %y: f32[-1, 4, 6, 6] %p: f32[4, 3, 2, 2] %q: f32[4, 3, 3, 3] persistable
        (Output: %y) = conv2d(Input: %x, Filter: %w)
        (Out: %p) = pool2d(X: %w) {ksize: [2, 2]}
        (Out: %q) = pool2d(X: %x) {ksize: [6, 6], strides: [1, 1]}";
    let case = Case::new(text).feed("x", numbers(&[4, 3, 8, 8])).fetch(&["y", "p", "q"]);
    agreed_nearly(&case.state("w", numbers(&[4, 3, 3, 3])));
}

/// A conditional part that does not run leaves the image unchanged, in its current format.
#[test]
fn an_image_written_by_a_conditional_part_keeps_its_value() {
    let text = "%x: f32[-1, 3, 8, 8] data %c: bool[1] data %w: f32[3, 3, 1, 1] persistable
        %y: f32[-1, 3, 8, 8] %z: f32[-1, 3, 8, 8]
        (Output: %y) = conv2d(Input: %x, Filter: %w)
        () = conditional_block(Cond: %c) {sub_block: block1}
        (Out: %z) = relu(X: %y)
        }
        block1 in block0 { (Out: %y) = scale(X: %x) {scale: 2.0}";
    for holds in [false, true] {
        let holds = Tensor::from_bools(&[holds], [1]).unwrap();
        let case = Case::new(text).feed("x", numbers(&[2, 3, 8, 8])).feed("c", holds);
        agreed_nearly(&case.state("w", numbers(&[3, 3, 1, 1])).fetch(&["z", "y"]));
    }
}

/// The size check precedes the joining of variables, which computes sizes without overflow checks.
#[test]
fn variables_that_no_memory_holds_are_refused() {
    let text = "%a: f32[2] data %x: f32[4611686018427387904, 2] %y: f32[4611686018427387904, 2]
        %w: f32[4611686018427387904, 2] persistable
        (Out: %x) = tanh(X: %w)
        (Out: %y) = tanh(X: %x)";
    let program = Case::new(text).program;
    let options = ExecOptions::threads(1);
    let error = Executor::new(options).run(&program, &mut Scope::new(), &[], &["y"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.to_string().contains("too large to plan"), "{error}");
}

/// The length of a tensor in another layout may not match its shape.
#[test]
fn fed_tensors_are_row_major() {
    let packed = matrix(8, 9).reshaped([8, 1, 3, 3]).unwrap().to_layout(Layout::Filter64).unwrap();
    Case::new("%a: f32[8, 1, 3, 3] data %x: f32[8, 1, 3, 3] (Out: %x) = relu(X: %a)")
        .feed("a", packed)
        .fetch(&["x"])
        .refused(&["the value fed for 'a' has the wrong layout or size", "row_major", "filter64"]);
}

/// The offload store holds nothing before the program stores a value.
#[test]
fn a_slot_that_was_never_stored_is_refused() {
    Case::new("%a: f32[-1] data %x: f32[-1] (Out: %x) = offload_fetch(X: %a) {slot: 2}")
        .feed("a", ones(3))
        .fetch(&["x"])
        .refused(&["slot 2 of the offload file has another size", "got nothing"]);
}

/// Each output would be written before the other outputs have read it as an input.
#[test]
fn outputs_that_are_inputs_of_each_other_are_refused() {
    let pair = || Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap();
    for body in [
        "%a: f32[2] param %b: f32[2] param
        (Out: %b, %a) = c_allreduce_sum(X: %a, %b)",
        "%a: f32[2] param %b: f32[2] param %c: f32[2]
        (Out: %c, %a) = c_allreduce_sum(X: %a, %b)",
    ] {
        let case = Case::new(body).state("a", pair()).state("b", pair()).fetch(&["a"]);
        for outcome in [case.interpreted(), case.executed(Memory::Packed)] {
            let error = outcome.expect_err("an order of its own").to_string();
            assert!(
                error.contains("output 'Out' of c_allreduce_sum is the same variable as input"),
                "{error}"
            );
        }
    }
    let body = "%a: f32[2] param %b: f32[2] param
        (Out: %a, %b) = c_allreduce_sum(X: %a, %b)";
    let case = Case::new(body).state("a", pair()).state("b", pair()).fetch(&["a"]);
    assert_eq!(case.executed(Memory::Packed).unwrap()[0].to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

/// The fused op runs at the position of the activation, and reads the values at that point.
#[test]
fn a_sum_and_its_relu_are_not_fused_over_another_write() {
    for body in [
        "%x: f32[2] data %y: f32[2] data %sum: f32[2] %z: f32[2]
        (Out: %sum) = elementwise_add(X: %x, Y: %y)
        (Out: %sum) = scale(X: %x) {scale: 3.0}
        (Out: %z) = relu(X: %sum)",
        "%x: f32[2] data %y: f32[2] data %a: f32[2] %sum: f32[2] %z: f32[2]
        (Out: %a) = scale(X: %x) {scale: 2.0}
        (Out: %sum) = elementwise_add(X: %a, Y: %y)
        (Out: %a) = scale(X: %x) {scale: 5.0}
        (Out: %z) = relu(X: %sum)",
    ] {
        let of = |values: [f32; 2]| Tensor::from_slice(&values, [2]).unwrap();
        let case = Case::new(body).feed("x", of([1.0, -2.0])).feed("y", of([10.0, 20.0]));
        let case = case.fetch(&["z"]);
        let (plain, fast) = (case.interpreted().unwrap(), case.executed(Memory::Packed).unwrap());
        assert_eq!(plain[0].as_bytes(), fast[0].as_bytes(), "{body}");
    }
}
