//! Programs that look up rows and push gradients, on mock tables that record all calls.

use fleet_base::Result;
use fleet_exec::{ExecOptions, Executor, Interpreter, Scope};
use fleet_ir::Program;
use fleet_ops::{LookUp, Lookup, PushRows, Registry, Services, Tables};
use fleet_tensor::Tensor;
use std::sync::{Arc, Mutex};

/// Mock tables that record all calls. A row holds its id and a tenth of the id, and dense
/// parameters are 7.
#[derive(Default)]
struct RecordingTables(Mutex<Vec<String>>);

impl RecordingTables {
    fn note(&self, what: String) -> Result<()> {
        self.0.lock().unwrap().push(what);
        Ok(())
    }
}

impl Tables for RecordingTables {
    fn lookup(&self, table: u32, lookups: &mut [Lookup<'_>], how: LookUp) -> Result<()> {
        for lookup in lookups.iter_mut() {
            for (id, row) in lookup.ids.iter().zip(lookup.rows.chunks_mut(how.width)) {
                let value = if Some(*id) == how.padding { 0.0 } else { *id as f32 };
                (row[0], row[1]) = (value, value / 10.0);
            }
        }
        let ids: Vec<&[i64]> = lookups.iter().map(|it| it.ids).collect();
        self.note(format!("lookup {table} {ids:?} training {}", how.is_training))
    }

    fn push_sparse(&self, table: u32, pushes: &[PushRows<'_>], width: usize) -> Result<()> {
        for push in pushes {
            let (ids, grads, padding) = (push.ids, push.grads, push.padding);
            let (shows, clicks) = (push.shows, push.clicks);
            self.note(format!(
                "push {table} {ids:?} {grads:?} {width} {padding:?} {shows:?} {clicks:?}"
            ))?;
        }
        Ok(())
    }

    fn send_dense(&self, table: u32, parts: &[&[f32]]) -> Result<()> {
        self.note(format!("send {table} {parts:?}"))
    }

    fn skip(&self, table: u32) -> Result<()> {
        self.note(format!("skip {table}"))
    }

    fn recv_dense(&self, table: u32, parts: &mut [&mut [f32]]) -> Result<()> {
        parts.iter_mut().for_each(|part| part.fill(7.0));
        self.note(format!("recv {table}"))
    }

    fn send_barrier(&self) -> Result<()> {
        self.note("sent".into())
    }

    fn fetch_barrier(&self) -> Result<()> {
        self.note("received".into())
    }

    fn touch(&self, table: u32, ids: &[i64]) -> Result<()> {
        self.note(format!("touch {table} {ids:?}"))
    }

    fn exchange(&self, table: u32, parts: &mut [&mut [f32]], width: Option<usize>) -> Result<()> {
        parts.iter_mut().for_each(|part| part.iter_mut().for_each(|value| *value += 1.0));
        self.note(format!("exchange {table} {width:?}"))
    }
}

fn parsed(body: &str) -> Result<Program> {
    let text = format!("fleet program 1\nblock0 {{\n{body}\n}}");
    let program = Program::parse(&text, Registry::standard())?;
    fleet_ops::verify::verify(&program, Registry::standard())?;
    Ok(program)
}

/// Runs the program with the executor and the interpreter, which must agree. Returns `y` and the
/// recorded calls.
fn run(body: &str, feed: &[(&str, &Tensor)]) -> (Vec<f32>, Vec<String>) {
    let program = parsed(body).expect("a valid program");
    let mut outcomes = Vec::new();
    for fast in [true, false] {
        let noted = Arc::new(RecordingTables::default());
        let services = Services::none().with_tables(noted.clone());
        let mut scope = Scope::new();
        scope.set("w", Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap());
        let out = match fast {
            true => Executor::new(ExecOptions::threads(1)).services(services).run(
                &program,
                &mut scope,
                feed,
                &["y"],
            ),
            false => Interpreter::new().services(services).run(&program, &mut scope, feed, &["y"]),
        };
        let y = out.unwrap()[0].to_vec::<f32>().unwrap();
        let asked = noted.0.lock().unwrap().clone();
        outcomes.push((y, asked));
    }
    assert_eq!(outcomes[0], outcomes[1]);
    outcomes.remove(0)
}

#[test]
fn rows_are_looked_up_and_their_gradients_pushed() {
    let ids = Tensor::from_slice(&[3i64, 0, 5], [3, 1]).unwrap();
    let (y, asked) = run(
        "%ids: i64[-1, 1] data %y: f32[-1, 2] %z: f32[-1, 1, 2] %show: f32[3, 1]
        (Outputs: %y) = distributed_lookup_table(Ids: %ids)
            {table_id: 4, width: 2, padding_idx: 0, lookup_table_version: \"lookup_table\"}
        (Outputs: %z) = distributed_lookup_table(Ids: %ids) {table_id: 4, width: 2, is_test: true}
        (Out: %show) = fill_constant() {shape: [3, 1], value: 2.0}
        () = distributed_push_sparse(Ids: %ids, %ids, Outputs@GRAD: %y, %z, Shows: %show)
            {table_id: 4, size: 2, padding_idx: [0, -1], use_cvm_op: true}",
        &[("ids", &ids)],
    );
    assert_eq!(y, [3.0, 0.3, 0.0, 0.0, 5.0, 0.5]);
    let shows = "Some([2.0, 2.0, 2.0]) None";
    assert_eq!(
        asked,
        [
            "lookup 4 [[3, 0, 5]] training true".to_string(),
            "lookup 4 [[3, 0, 5]] training false".to_string(),
            format!("push 4 [3, 0, 5] [9.0, 0.90000004, 0.0, 0.0, 15.0, 1.5] 2 Some(0) {shows}"),
            format!("push 4 [3, 0, 5] [9.0, 0.90000004, 0.0, 0.0, 15.0, 1.5] 2 None {shows}"),
        ]
    );
}

/// Counter columns are looked up, but not pushed.
#[test]
fn counters_are_not_pushed() {
    let ids = Tensor::from_slice(&[3i64, 5], [2, 1]).unwrap();
    let (_, asked) = run(
        "%ids: i64[-1, 1] data %y: f32[-1, 1, 2]
        (Outputs: %y) = distributed_lookup_table(Ids: %ids) {table_id: 0, width: 2}
        () = distributed_push_sparse(Ids: %ids, Outputs@GRAD: %y)
            {table_id: 0, size: 2, counter_columns: 1}",
        &[("ids", &ids)],
    );
    assert_eq!(asked[1], "push 0 [3, 5] [0.3, 0.5] 1 None None None");
}

#[test]
fn parameters_go_and_come() {
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap();
    let (y, asked) = run(
        "%x: f32[2] data %w: f32[2, 2] persistable %y: f32[2, 2]
        () = send(X: %x, %w) {table_id: 1}
        () = send_barrier()
        (Out: %w) = recv(X: %w) {table_id: 1}
        () = fetch_barrier()
        (Out: %w) = recv(X: %w) {table_id: 2, is_sparse: 1, is_geo: true}
        (Out: %y) = scale(X: %w)",
        &[("x", &x)],
    );
    assert_eq!(y, [8.0; 4]);
    let sent = "send 1 [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]";
    assert_eq!(asked, [sent, "sent", "recv 1", "received", "exchange 2 Some(2)"]);
}

#[test]
fn touched_rows_are_named() {
    let ids = Tensor::from_slice(&[1i64, 1, 0], [3]).unwrap();
    let dy = Tensor::from_slice(&[0.5f32; 6], [3, 2]).unwrap();
    let (_, asked) = run(
        "%ids: i64[3] data %y: f32[3, 2] data %w: f32[2, 2] persistable %g: f32[2, 2] sparse_rows
        (W@GRAD: %g) = lookup_table_v2_grad(W: %w, Ids: %ids, Out@GRAD: %y) {is_sparse: true}
        () = send(X: %g) {table_id: 3, is_sparse: 1}",
        &[("ids", &ids), ("y", &dy)],
    );
    assert_eq!(asked, ["touch 3 [1, 1, 0]"]);
}

/// A skipped step sends nothing, whatever the gradients are; the barrier and `recv` run as always.
#[test]
fn skipped_steps_send_nothing() {
    let ids = Tensor::from_slice(&[1i64, 1, 0], [3]).unwrap();
    let dy = Tensor::from_slice(&[f32::INFINITY; 6], [3, 2]).unwrap();
    let program = "%ids: i64[3] data %y: f32[3, 2] data %skip: bool[1] data
        %w: f32[2, 2] persistable %g: f32[2, 2] sparse_rows
        (W@GRAD: %g) = lookup_table_v2_grad(W: %w, Ids: %ids, Out@GRAD: %y) {is_sparse: true}
        () = send(X: %g, SkipUpdate: %skip) {table_id: 3, is_sparse: 1}
        () = distributed_push_sparse(Ids: %ids, Outputs@GRAD: %y, SkipUpdate: %skip)
            {table_id: 0, size: 2}
        () = send(X: %w, SkipUpdate: %skip) {table_id: 1}
        () = send_barrier()
        (Out: %w) = recv(X: %w) {table_id: 1}";
    let asked = |skip: bool| {
        let skip = Tensor::from_bools(&[skip], [1]).unwrap();
        run(program, &[("ids", &ids), ("y", &dy), ("skip", &skip)]).1
    };
    assert_eq!(asked(true), ["skip 3", "skip 0", "skip 1", "sent", "recv 1"]);
    let sent = "send 1 [[1.0, 2.0, 3.0, 4.0]]";
    let push = "push 0 [1, 1, 0] [inf, inf, inf, inf, inf, inf] 2 None None None";
    assert_eq!(asked(false), ["touch 3 [1, 1, 0]", push, sent, "sent", "recv 1"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let check = |body: &str, words: &str| {
        let error = parsed(body).unwrap_err().to_string();
        assert!(error.contains(words), "'{words}' is not in: {error}");
    };
    let lookup = |attrs: &str| {
        format!(
            "%i: i64[3, 2] data %y: f32[3, 2, 4]
            (Outputs: %y) = distributed_lookup_table(Ids: %i) {{{attrs}}}"
        )
    };
    check(&lookup("table_id: 0, width: 0"), "'width'");
    check(&lookup("table_id: -1, width: 4"), "'table_id'");
    check(&lookup("table_id: 0, width: 4, lookup_table_version: \"x\""), "lookup_table_version");
    check(
        &lookup("table_id: 0, width: 4, lookup_table_version: \"lookup_table\""),
        "dimension of 1",
    );
    check(
        "%i: i64[3] data %g: f32[3, 2] data
        () = distributed_push_sparse(Ids: %i, Outputs@GRAD: %g) {table_id: 0, size: 4}",
        "does not fit 'Ids'",
    );
    check(
        "%i: i64[3] data %g: f32[3, 2] data
        () = distributed_push_sparse(Ids: %i, %i, Outputs@GRAD: %g) {table_id: 0, size: 2}",
        "different number of variables",
    );
    check("%x: f32[3] data () = send(X: %x) {table_id: 0, is_sparse: 1}", "is dense");
    check("%x: f32[3] data () = send(X: %x, SkipUpdate: %x) {table_id: 0}", "'SkipUpdate'");
    check("%x: f32[3] data () = send(X: %x) {table_id: 0, is_sparse: 2}", "'is_sparse'");
}

#[test]
fn without_servers_the_error_says_what_to_do() {
    let program = parsed("() = send_barrier()").unwrap();
    let mut executor = Executor::new(ExecOptions::threads(1));
    let error = executor.run(&program, &mut Scope::new(), &[], &[]).unwrap_err().to_string();
    assert!(
        error.contains("no parameter servers for send_barrier") && error.contains("init_worker"),
        "{error}"
    );
}
