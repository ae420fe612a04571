//! User errors: the message gives the place, the expected and the actual value. A call that fails
//! before it runs changes nothing.

use fleet::prelude::*;
use fleet::{ErrorKind, Interpreter};
use std::collections::BTreeMap;

/// A model with known source lines: `place(n)` is the n-th line of `build` below the `line!()`.
struct Fixture {
    session: Session,
    first_line: u32,
    loss: String,
}

/// A small model of two inputs, an embedding and a logarithm.
fn fixture(options: ExecOptions) -> Fixture {
    let net = Net::new();
    let first_line = line!();
    let x = net.data("x", [-1, 4], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let ids = net.data("ids", [-1, 1], DType::I64);
    let rows = ids.embedding(Embedding::new(10, 4).weight("table")).flatten(1);
    let hidden = (x + rows).fc(3);
    let score = hidden.fc(Fc::new(1).weight("last")).dropout(0.5) - y;
    let loss = score.square().log().mean();
    net.minimize(loss, Momentum::new(0.01, 0.9)).unwrap();
    let loss = loss.name();
    let session = Session::new(net.build().unwrap(), options).unwrap();
    Fixture { session, first_line, loss }
}

impl Fixture {
    /// Returns the label of a line of the model.
    fn place(&self, line: u32) -> String {
        format!("tests/bad_input.rs:{}", self.first_line + line)
    }
}

const EMBEDDING: u32 = 4;
const SUM: u32 = 5;
const LAST: u32 = 6;
const LOG: u32 = 7;

fn floats(rows: i64, width: i64, value: f32) -> Tensor {
    Tensor::from_slice(&vec![value; (rows * width) as usize], [rows, width]).unwrap()
}

fn ids(values: &[i64]) -> Tensor {
    Tensor::from_slice(values, [values.len() as i64, 1]).unwrap()
}

/// Returns everything that a scope holds.
fn contents(scope: &Scope) -> (u64, BTreeMap<String, Vec<u8>>) {
    let held = |name: &str| (name.to_string(), scope.tensor(name).unwrap().as_bytes().to_vec());
    (scope.step(), scope.names().map(held).collect())
}

fn check(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
    }
}

/// Checks that wrong feeds are rejected with these parts of a message, by the interpreter too.
fn refused(feed: &[(&str, &Tensor)], fetch: &[&str], parts: &[&str]) {
    let mut fixture = fixture(ExecOptions::threads(2));
    let before = contents(&fixture.session.scope);
    let error = fixture.session.run(feed, fetch).unwrap_err();
    check(&error, ErrorKind::Invalid, parts);
    assert_eq!(contents(&fixture.session.scope), before);
    // A repeated call gives the same error, and a correct one still works.
    assert_eq!(fixture.session.run(feed, fetch).unwrap_err(), error);
    let (x, y, rows) = (floats(2, 4, 1.0), floats(2, 1, 0.3), ids(&[0, 9]));
    fixture.session.run(&[("x", &x), ("y", &y), ("ids", &rows)], &[&fixture.loss]).unwrap();
    let Session { programs, scope, .. } = &mut fixture.session;
    let error = Interpreter::new().run(&programs.main, scope, feed, fetch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn feeds_and_fetches_that_do_not_fit() {
    let (x, y, rows) = (floats(2, 4, 1.0), floats(2, 1, 0.3), ids(&[0, 9]));
    let (wide, tall) = (floats(2, 5, 1.0), floats(3, 4, 1.0));
    let whole = Tensor::from_slice(&[1i64; 8], [2, 4]).unwrap();
    let flat = Tensor::from_slice(&[1.0f32; 8], [8]).unwrap();

    let wrong = "the value fed for 'x' has the wrong type or shape: expected f32[-1, 4], got ";
    refused(&[("x", &wide), ("y", &y), ("ids", &rows)], &[], &[wrong, "f32[2, 5]"]);
    refused(&[("x", &flat), ("y", &y), ("ids", &rows)], &[], &[wrong, "f32[8]"]);
    refused(&[("x", &whole), ("y", &y), ("ids", &rows)], &[], &[wrong, "i64[2, 4]"]);
    refused(&[("x", &x), ("y", &y)], &[], &["no value was fed for 'ids'", "i64[-1, 1]"]);
    refused(&[], &[], &["no value was fed for"]);
    let feed = [("x", &x), ("y", &y), ("ids", &rows), ("z", &x)];
    refused(&feed, &[], &["has no input 'z'", "one of x, y, ids"]);
    let feed = [("x", &x), ("y", &y), ("ids", &rows)];
    refused(&feed, &["fc_0.w_"], &["no variable 'fc_0.w_'; did you mean 'fc_0.w_", "fetch list"]);
    // The parameters would become NaN.
    let (none, no_rows) = (floats(0, 4, 1.0), ids(&[]));
    let feed = [("x", &none), ("y", &floats(0, 1, 0.3)), ("ids", &no_rows)];
    refused(&feed, &[], &["the batch fed for 'x' is empty", "got f32[0, 4]"]);
    // Each feed is valid by itself, but their sizes do not match.
    let place = fixture(ExecOptions::threads(1)).place(SUM);
    let parts = ["elementwise_add(X: %x", place.as_str()];
    refused(&[("x", &tall), ("y", &y), ("ids", &rows)], &[], &parts);
}

/// Inference of no rows has no rows.
#[test]
fn an_empty_batch_can_be_evaluated() {
    let net = Net::new();
    let y = net.data("x", [-1, 4], DType::F32).fc(2);
    net.minimize(y.mean(), Sgd::new(0.1)).unwrap();
    let y = y.name();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let out = session.evaluate(&[("x", &floats(0, 4, 1.0))], &[&y]).unwrap();
    assert_eq!(out[0].shape(), &Shape::from([0, 2]));
}

#[test]
fn parameters_of_another_shape() {
    let (x, y, rows) = (floats(2, 4, 1.0), floats(2, 1, 0.3), ids(&[0, 9]));
    let feed = [("x", &x), ("y", &y), ("ids", &rows)];
    for planned in [false, true] {
        let mut fixture = fixture(ExecOptions::threads(2));
        let session = &mut fixture.session;
        if planned {
            session.run(&feed, &[]).unwrap();
        }
        let fine = session.scope.tensor("last").unwrap();
        session.scope.set("last", floats(4, 1, 0.0));
        let before = contents(&session.scope);
        let error = session.run(&feed, &[]).unwrap_err();
        let parts = ["variable 'last' in the scope", "expected f32[3, 1], got f32[4, 1]"];
        check(&error, ErrorKind::Invalid, &parts);
        assert_eq!(contents(&session.scope), before);
        let plain = Interpreter::new();
        let error = plain.run(&session.programs.main, &mut session.scope, &feed, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");

        session.scope.set("last", Tensor::from_slice(&[1i64, 2, 3], [3, 1]).unwrap());
        let error = session.run(&feed, &[]).unwrap_err();
        check(&error, ErrorKind::Invalid, &["'last'", "expected f32[3, 1], got i64[3, 1]"]);

        session.scope.set("last", fine);
        session.run(&feed, &[]).unwrap();
    }
}

#[test]
fn a_scope_without_parameters() {
    let (x, y, rows) = (floats(2, 4, 1.0), floats(2, 1, 0.3), ids(&[0, 9]));
    let feed = [("x", &x), ("y", &y), ("ids", &rows)];
    let fixture = fixture(ExecOptions::threads(2));
    let mut executor = Executor::new(ExecOptions::threads(2));
    let mut scope = Scope::new();
    let main = &fixture.session.programs.main;
    let error = executor.run(main, &mut scope, &feed, &[]).unwrap_err();
    check(&error, ErrorKind::Invalid, &["the scope has no variable", "run the startup program"]);
    assert!(scope.is_empty() && scope.step() == 0);
}

#[test]
fn the_op_that_makes_a_nan_is_named() {
    let options = ExecOptions { check_nan_inf: true, ..ExecOptions::threads(2) };
    let mut fixture = fixture(options);
    let (x, y, rows) = (floats(2, 4, 1.0), floats(2, 1, f32::NAN), ids(&[0, 9]));
    let fine = floats(2, 1, 0.3);
    let before = contents(&fixture.session.scope).1;
    let error = fixture.session.run(&[("x", &x), ("y", &y), ("ids", &rows)], &[]).unwrap_err();
    let last = fixture.place(LAST);
    check(
        &error,
        ErrorKind::Numeric,
        &["elementwise_sub", "is not finite", "NaN at element", &last],
    );
    // Updates run last: the parameters have not changed.
    assert_eq!(contents(&fixture.session.scope).1, before);

    // Logarithm of zero: the score is 0 - 0 in a test program whose last layer is 0.
    let zero = floats(2, 1, 0.0);
    let last = fixture.session.scope.tensor("last").unwrap();
    fixture.session.scope.set("last", floats(3, 1, 0.0));
    let loss = fixture.loss.clone();
    let feed = [("x", &x), ("y", &zero), ("ids", &rows)];
    let error = fixture.session.evaluate(&feed, &[&loss]).unwrap_err();
    let log = fixture.place(LOG);
    check(&error, ErrorKind::Numeric, &["log", "-inf at element 0", &log]);
    fixture.session.scope.set("last", last);
    fixture.session.run(&[("x", &x), ("y", &fine), ("ids", &rows)], &[]).unwrap();
}

#[test]
fn ids_outside_the_table() {
    for (bad, shown) in [(10, "10"), (-1, "-1"), (i64::MAX, "9223372036854775807")] {
        let mut fixture = fixture(ExecOptions::threads(2));
        let (x, y, rows) = (floats(2, 4, 1.0), floats(2, 1, 0.3), ids(&[3, bad]));
        let feed = [("x", &x), ("y", &y), ("ids", &rows)];
        let before = contents(&fixture.session.scope).1;
        let error = fixture.session.run(&feed, &[]).unwrap_err();
        let place = fixture.place(EMBEDDING);
        check(&error, ErrorKind::Invalid, &["lookup_table_v2", "%ids", shown, &place]);
        assert_eq!(contents(&fixture.session.scope).1, before);
        let Session { programs, scope, .. } = &mut fixture.session;
        let error = Interpreter::new().run(&programs.main, scope, &feed, &[]).unwrap_err();
        check(&error, ErrorKind::Invalid, &["lookup_table_v2", shown, &place]);
    }
}

#[test]
fn labels_outside_the_classes() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let line = line!() + 1;
    let loss = x.fc(3).cross_entropy(label);
    net.minimize(loss, Sgd::new(0.1)).unwrap();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(2)).unwrap();
    let before = contents(&session.scope).1;
    let (x, label) = (floats(2, 4, 1.0), ids(&[2, 3]));
    let error = session.run(&[("x", &x), ("label", &label)], &[]).unwrap_err();
    let place = format!("tests/bad_input.rs:{line}");
    check(&error, ErrorKind::Invalid, &["softmax_with_cross_entropy", "3", &place]);
    assert_eq!(contents(&session.scope).1, before);
}

#[test]
fn a_network_with_a_mistake_is_never_run() {
    let net = Net::new();
    let x = net.data("x", [-1, 4], DType::F32);
    let line = line!() + 1;
    let y = x.matmul(net.data("y", [5, 2], DType::F32)).mean();
    let error = net.minimize(y, Sgd::new(0.1)).err().unwrap();
    let place = format!("tests/bad_input.rs:{line}");
    check(&error, ErrorKind::Invalid, &["matmul", "4", "5", &place]);
    assert_eq!(net.build().err().unwrap(), error);
}
