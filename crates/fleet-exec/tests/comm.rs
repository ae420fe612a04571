//! Programs that communicate, with ranks as threads: each op, the lanes of rings, and failures of a
//! rank.

use fleet_base::{ErrorKind, Result};
use fleet_exec::{ExecOptions, Executor, Interpreter, Scope};
use fleet_ir::Program;
use fleet_ops::{Registry, Services};
use fleet_tensor::Tensor;
use fleet_testkit::local::{self, World};

fn program(body: &str) -> Program {
    let text = format!("fleet program 1\nblock0 {{\n{body}\n}}");
    let program = Program::parse(&text, Registry::standard()).expect("a well-formed program");
    fleet_ops::verify::verify(&program, Registry::standard()).expect("a valid program");
    program
}

/// Returns the services of one of `ranks` ranks: rings 0 to 2, each with all ranks.
fn services(world: &World, rank: usize, ranks: usize) -> Services {
    let members: Vec<usize> = (0..ranks).collect();
    (0..3).fold(Services::none(), |services, id| {
        services.with_ring(id, world.ring(id, &members, rank))
    })
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.as_slice::<f32>().expect("floats").to_vec()
}

/// Runs the program at `ranks` ranks with the executor and the interpreter. Returns the value of
/// `y` on each rank.
fn results(ranks: usize, body: &str, x: impl Fn(usize) -> Vec<f32> + Sync) -> Vec<Vec<f32>> {
    let program = program(body);
    let outcomes = local::run(ranks, |rank, world| {
        let x = x(rank);
        let x = Tensor::from_slice(&x, [x.len() as i64])?;
        let feed = [("x", &x)];
        let services = services(world, rank, ranks);
        let mut executor = Executor::new(ExecOptions::threads(1)).services(services.clone());
        let fast = executor.run(&program, &mut Scope::new(), &feed, &["y"])?;
        let again = executor.run(&program, &mut Scope::new(), &feed, &["y"])?;
        let slow = Interpreter::new().services(services);
        let slow = slow.run(&program, &mut Scope::new(), &feed, &["y"])?;
        assert_eq!(floats(&fast[0]), floats(&slow[0]));
        assert_eq!(floats(&fast[0]), floats(&again[0]));
        Ok(floats(&fast[0]))
    });
    outcomes.into_iter().map(|outcome| outcome.expect("every rank succeeds")).collect()
}

fn by_rank(rank: usize) -> Vec<f32> {
    let r = rank as f32;
    vec![r + 1.0, 10.0 * r, -r, 0.5, 1.0, r]
}

#[test]
fn reductions() {
    let check = |op: &str, expected: [f32; 6]| {
        let body = format!("%x: f32[6] data %y: f32[6] (Out: %y) = {op}(X: %x) {{nranks: 3}}");
        for result in results(3, &body, by_rank) {
            assert_eq!(result, expected, "{op}");
        }
    };
    check("c_allreduce_sum", [6.0, 30.0, -3.0, 1.5, 3.0, 3.0]);
    check("c_allreduce_max", [3.0, 20.0, 0.0, 0.5, 1.0, 2.0]);
    check("c_allreduce_min", [1.0, 0.0, -2.0, 0.5, 1.0, 0.0]);
    check("c_allreduce_prod", [6.0, 0.0, 0.0, 0.125, 1.0, 0.0]);
    check("c_allreduce_avg", [2.0, 10.0, -1.0, 0.5, 1.0, 1.0]);
}

#[test]
fn roots() {
    let body = "%x: f32[6] data %y: f32[6] (Out: %y) = c_broadcast(X: %x) {nranks: 3, root: 2}";
    assert!(results(3, body, by_rank).iter().all(|result| *result == by_rank(2)));
    let body = "%x: f32[6] data %y: f32[6] (Out: %y) = c_reduce_sum(X: %x) {nranks: 2, root_id: 1}";
    assert_eq!(results(2, body, by_rank)[1], [3.0, 10.0, -1.0, 1.0, 2.0, 1.0]);
}

#[test]
fn pieces() {
    let body = "%x: f32[6] data %y: f32[12] (Out: %y) = c_allgather(X: %x) {nranks: 2}";
    let both = [by_rank(0), by_rank(1)].concat();
    assert!(results(2, body, by_rank).iter().all(|result| *result == both));

    let body = "%x: f32[6] data %y: f32[2] (Out: %y) = c_reducescatter(X: %x) {nranks: 3}";
    assert_eq!(results(3, body, by_rank), [[6.0, 30.0], [-3.0, 1.5], [3.0, 3.0]]);

    let body = "%x: f32[6] data %y: f32[6] (Out: %y) = alltoall(X: %x) {nranks: 2}";
    let sent = results(2, body, by_rank);
    assert_eq!(sent[0], [1.0, 0.0, 0.0, 2.0, 10.0, -1.0]);
    assert_eq!(sent[1], [0.5, 1.0, 0.0, 0.5, 1.0, 1.0]);

    // Joins columns and splits them again, which restores each rank's values.
    let body = "%x: f32[6] data %a: f32[2, 3] %b: f32[2, 6] %c: f32[2, 3] %y: f32[6]
        (Out: %a) = reshape2(X: %x) {shape: [2, 3]}
        (Out: %b) = c_concat(X: %a) {nranks: 2}
        (Out: %c) = c_split(X: %b) {nranks: 2}
        (Out: %y) = reshape2(X: %c) {shape: [6]}";
    assert_eq!(results(2, body, by_rank), [by_rank(0), by_rank(1)]);
}

#[test]
fn one_to_one() {
    let send = "%x: f32[6] data %y: f32[6] () = send_v2(X: %x) {nranks: 2, peer: 1}
        (Out: %y) = scale(X: %x)";
    let recv = "%x: f32[6] data %y: f32[6]
        (Out: %y) = recv_v2() {nranks: 2, peer: 0, out_shape: [6], dtype: f32}";
    let programs = [program(send), program(recv)];
    let outcomes = local::run(2, |rank, world| {
        let x = Tensor::from_slice(&by_rank(rank), [6])?;
        let mut executor =
            Executor::new(ExecOptions::threads(1)).services(services(world, rank, 2));
        let out = executor.run(&programs[rank], &mut Scope::new(), &[("x", &x)], &["y"])?;
        Ok(floats(&out[0]))
    });
    assert!(outcomes.into_iter().all(|outcome| outcome.unwrap() == by_rank(0)));
}

/// Two rings communicate at once, each in its lane, on outputs of the compute lane. The results
/// equal those of the sequential order.
#[test]
fn rings_run_beside_compute() {
    let body = "%x: f32[6] data %a: f32[6] %b: f32[6] %c: f32[6] %d: f32[6] %e: f32[6] %y: f32[6]
        (Out: %a) = scale(X: %x) {scale: 2.0}
        (Out: %a) = c_allreduce_sum(X: %a) {nranks: 2, ring_id: 1}
        (Out: %b) = scale(X: %x) {scale: 3.0}
        (Out: %b) = c_allreduce_sum(X: %b) {nranks: 2, ring_id: 2}
        (Out: %c) = scale(X: %x) {scale: 5.0}
        (Out: %d) = c_allreduce_max(X: %c) {nranks: 2, ring_id: 1}
        (Out: %e) = elementwise_add(X: %a, Y: %b)
        (Out: %y) = elementwise_add(X: %e, Y: %d)";
    let sum: Vec<f32> = by_rank(0).iter().zip(by_rank(1)).map(|(a, b)| a + b).collect();
    let max: Vec<f32> = by_rank(0).iter().zip(by_rank(1)).map(|(a, b)| a.max(b)).collect();
    let expected: Vec<f32> = sum.iter().zip(max).map(|(s, m)| 5.0 * s + 5.0 * m).collect();
    assert!(results(2, body, by_rank).iter().all(|result| *result == expected));
}

#[test]
fn sparse_rows_are_gathered() {
    let body = "%ids: i64[2] data %w: f32[5, 2] persistable %dy: f32[2, 2] data
        %g: f32[5, 2] sparse_rows %all: f32[5, 2] sparse_rows %lr: f32[1] persistable
        (W@GRAD: %g) = lookup_table_v2_grad(W: %w, Ids: %ids, Out@GRAD: %dy) {is_sparse: true}
        (Out: %all) = c_allgather_rows(X: %g) {nranks: 2}
        (ParamOut: %w) = sgd(Param: %w, Grad: %all, LearningRate: %lr)";
    let program = program(body);
    let outcomes = local::run(2, |rank, world| {
        let mut scope = Scope::new();
        scope.set("w", Tensor::from_slice(&[0f32; 10], [5, 2])?);
        scope.set("lr", Tensor::from_slice(&[-1f32], [1])?);
        let ids = Tensor::from_slice(&[[1i64, 3], [3, 4]][rank], [2])?;
        let dy =
            Tensor::from_slice(&[[1f32, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]][rank], [2, 2])?;
        let mut executor =
            Executor::new(ExecOptions::threads(1)).services(services(world, rank, 2));
        executor.run(&program, &mut scope, &[("ids", &ids), ("dy", &dy)], &[])?;
        Ok(floats(&scope.tensor("w")?))
    });
    for outcome in outcomes {
        assert_eq!(outcome.unwrap(), [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 13.0, 24.0, 30.0, 40.0]);
    }
}

#[test]
fn one_rank_needs_no_service_and_more_do() {
    let one = program("%x: f32[2] data %y: f32[2] (Out: %y) = c_allreduce_sum(X: %x)");
    let two = program("%x: f32[2] data %y: f32[2] (Out: %y) = c_allreduce_sum(X: %x) {nranks: 2}");
    let x = Tensor::from_slice(&[1f32, 2.0], [2]).unwrap();
    let mut executor = Executor::new(ExecOptions::threads(1));
    let out = executor.run(&one, &mut Scope::new(), &[("x", &x)], &["y"]).unwrap();
    assert_eq!(floats(&out[0]), [1.0, 2.0]);
    let error = executor.run(&two, &mut Scope::new(), &[("x", &x)], &["y"]).unwrap_err();
    assert!(error.to_string().contains("missing ring 0 for c_allreduce_sum"), "{error}");
    assert!(error.to_string().contains("fleetrun"), "{error}");
}

#[test]
fn a_ring_is_held_to_what_the_program_says() {
    let init = |rank: usize| {
        program(&format!("() = c_comm_init() {{ring_id: 0, nranks: 2, rank: {rank}}}"))
    };
    let run = |program: &Program, world: &World, rank: usize, ranks: usize| -> Result<()> {
        let mut executor =
            Executor::new(ExecOptions::threads(1)).services(services(world, rank, ranks));
        executor.run(program, &mut Scope::new(), &[], &[]).map(|_| ())
    };
    let world = World::default();
    run(&init(1), &world, 1, 2).unwrap();
    let error = run(&init(0), &world, 1, 2).unwrap_err().to_string();
    assert!(error.contains("another rank of ring 0: expected rank 0, got rank 1"), "{error}");
    let error = run(&init(0), &world, 0, 3).unwrap_err().to_string();
    assert!(error.contains("wrong size"), "{error}");
}

/// A rank that fails next to a collective does not leave the others waiting.
#[test]
fn a_failure_reaches_every_rank() {
    let body = "%x: f32[2] data %y: f32[2] %z: f32[2]
        (Out: %z) = log(X: %x)
        (Out: %y) = c_allreduce_sum(X: %z) {nranks: 3}";
    let program = program(body);
    let outcomes = local::run(3, |rank, world| {
        let x = Tensor::from_slice(&[if rank == 1 { -1f32 } else { 1.0 }, 1.0], [2])?;
        let options = ExecOptions { check_nan_inf: true, ..ExecOptions::threads(1) };
        let mut executor = Executor::new(options).services(services(world, rank, 3));
        executor.run(&program, &mut Scope::new(), &[("x", &x)], &["y"]).map(|_| ())
    });
    let errors: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap_err()).collect();
    assert_eq!(errors[1].kind(), ErrorKind::Numeric);
    for at in [0, 2] {
        let text = errors[at].to_string();
        assert!(text.contains("a peer has failed: rank 1"), "{text}");
        assert!(text.contains("is not finite"), "{text}");
    }
}

#[test]
fn different_calls_are_an_error_on_both() {
    let op = |name: &str| {
        program(&format!("%x: f32[2] data %y: f32[2] (Out: %y) = {name}(X: %x) {{nranks: 2}}"))
    };
    let programs = [op("c_allreduce_sum"), op("c_allreduce_max")];
    let outcomes = local::run(2, |rank, world| {
        let x = Tensor::from_slice(&[1f32, 2.0], [2])?;
        let mut executor =
            Executor::new(ExecOptions::threads(1)).services(services(world, rank, 2));
        executor.run(&programs[rank], &mut Scope::new(), &[("x", &x)], &["y"]).map(|_| ())
    });
    for outcome in outcomes {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains("c_allreduce_sum") && text.contains("c_allreduce_max"), "{text}");
    }
}

/// Invalid shapes are rejected by the verifier.
#[test]
fn shapes() {
    let check = |body: &str, expected: &str| {
        let text = format!("fleet program 1\nblock0 {{\n{body}\n}}");
        let program = Program::parse(&text, Registry::standard()).expect("a well-formed program");
        let errors = fleet_ops::verify::errors(&program, Registry::standard());
        assert!(errors.iter().any(|error| error.to_string().contains(expected)), "{errors:?}");
    };
    let vars = "%x: f32[6] data %y: f32[6] %b: bool[6] data %s: f32[6, 2] data sparse_rows";
    check(&format!("{vars} (Out: %y) = c_allreduce_sum(X: %x) {{nranks: 0}}"), "out of range");
    check(&format!("{vars} (Out: %y) = c_allreduce_sum(X: %b)"), "wrong element type");
    check(&format!("{vars} (Out: %y) = c_allreduce_sum(X: %s)"), "holds sparse rows");
    check(&format!("{vars} (Out: %y) = c_reducescatter(X: %x) {{nranks: 4}}"), "evenly");
    check(&format!("{vars} (Out: %y) = c_broadcast(X: %x) {{nranks: 2, root: 2}}"), "not a rank");
    check(&format!("{vars} () = send_v2(X: %x) {{nranks: 2, peer: 2}}"), "not a rank of the ring");
}
