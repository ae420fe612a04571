//! The code of docs/parameter-server.md compiles: it is repeated here word for word.

use fleet::nn::Programs;
use fleet::prelude::*;
use fleet::servers::{
    DistributeTranspiler, DistributeTranspilerConfig, Part, Place, ServerJob, SplitMethod,
    Transpile, TranspilerMode,
};
use fleet::topology::Env;

const GUIDE: &str = include_str!("../../../../docs/parameter-server.md");
const HERE: &str = include_str!("guide.rs");

type Feed<'a> = [(&'a str, &'a Tensor)];

#[allow(dead_code, clippy::needless_borrow)] // that it compiles is the test
#[rustfmt::skip]
fn a_job<'n>(
    net: &'n Net,
    ids: Var<'n>,
    model: impl Fn(Var<'n>) -> Var<'n>,
    strategy: DistributedStrategy,
    (feed, next_feed): (&Feed<'_>, &Feed<'_>),
) -> Result<()> {
    let fleet = Fleet::from_env()?;
    let rows = ids.sparse_embedding([1_000_000_000, 16]);     // or an embedding with is_sparse
    let loss = model(rows);
    let optimizer = fleet.distributed_optimizer(Adam::new(1e-3), &strategy).rows(Adagrad::new(0.1));
    let job = optimizer.minimize_on_servers(&net, loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;                      // until the last worker has stopped
        return Ok(());
    }
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    worker.look_ahead(&next_feed)?;                           // prefetches rows of the next step
    worker.run(&feed, &[&loss.name()])?;
    worker.stop()?;
    Ok(())
}

#[allow(dead_code, unused_variables, clippy::needless_borrow)]
#[rustfmt::skip]
fn transpiled(
    net: &Net,
    loss: Var<'_>,
    (trainer_id, own): (usize, Option<&str>),
    (env, feed): (&Env, &Feed<'_>),
    options: ExecOptions,
) -> Result<()> {
    net.minimize(loss, Sgd::new(0.1))?;                           // a program that trains alone
    let config =
        DistributeTranspilerConfig { split_method: SplitMethod::HashName, ..Default::default() };
    let pservers = "10.0.0.1:6174,10.0.0.2:6174";
    let call = Transpile { trainer_id, pservers, trainers: 2.into(), ..Default::default() };
    let made = DistributeTranspiler::new(config).transpile_program(net.build()?, &call)?;
    println!("{}", made.get_pserver_program("10.0.0.1:6174")?);   // also get_trainer_program, ..
    if let Some(endpoint) = own {
        return made.serve(endpoint, &env);                        // on a server
    }
    let fleet = made.join(Part::Trainer, &env)?;                  // on a trainer
    let mut worker = made.worker(&fleet, options)?;
    worker.run(&feed, &[])?;
    worker.stop()
}

#[allow(dead_code, unused_variables, clippy::needless_borrow)]
#[rustfmt::skip]
fn nccl2(
    programs: Programs,
    (trainer_id, current_endpoint): (usize, &str),
    (env, feed): (&Env, &Feed<'_>),
    options: ExecOptions,
) -> Result<()> {
    let config =
        DistributeTranspilerConfig { mode: TranspilerMode::Nccl2, ..Default::default() };
    let trainers = "192.168.0.1:6174,192.168.0.2:6174".into();
    let call = Transpile { trainer_id, trainers, current_endpoint, ..Default::default() };
    let made = DistributeTranspiler::new(config).transpile_program(programs, &call)?;
    let fleet = made.join(Part::Trainer, &env)?;
    let mut session = made.session(&fleet, options)?;
    session.run(&feed, &[])?;
    fleet.finish()?;                                              // after the last step
    Ok(())
}

#[allow(dead_code, unused_variables, unused_mut)]
#[rustfmt::skip]
fn incremental(
    net: &Net,
    job: ServerJob,
    fleet: &Fleet,
    dir: &std::path::Path,
    options: ExecOptions,
) -> Result<()> {
    if fleet.is_server() {
        fleet.init_server_incremental(&job, dir)?.run()?;     // with the save's tables of rows
        return Ok(());
    }
    let mut worker = fleet.prepare_worker(net.build()?, &job, options)?;
    worker.load_vars(dir, &["fc_0.w_0", "fc_0.b_0"])?;        // or load_vars_where, by a predicate
    let mut worker = worker.start()?;                         // sends them to the servers
    Ok(())
}

/// Returns the guide's code blocks that begin with this line.
fn blocks(first: &str) -> Vec<&'static str> {
    let parts = GUIDE.split("```").skip(1).step_by(2);
    parts.filter_map(|part| part.strip_prefix(first)).collect()
}

#[test]
fn code_compiles() {
    let plain = |text: &str| -> Vec<String> { text.lines().map(|it| it.trim().into()).collect() };
    let here = plain(HERE).join("\n");
    let blocks = blocks("rust,ignore\n");
    assert_eq!(blocks.len(), 4);
    for block in blocks {
        let wanted = plain(block.trim_end()).join("\n");
        assert!(here.contains(&wanted), "not found in this file:\n{block}");
    }
}

#[test]
fn the_description_of_a_click_table_is_taken() -> Result<()> {
    let blocks = blocks("text\n");
    let [client, text] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    assert_eq!(DistributedStrategy::parse(client)?.fs_client_param().user(), "me");
    let strategy = DistributedStrategy::parse(text)?;
    let net = Net::new();
    let ids = net.data("ids", [-1, 2], DType::I64);
    let rows = ids.sparse_embedding(SparseEmbedding::new(1000, 3 + 16).weight("rows"));
    let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
    let job =
        ServerJob::minimize(&net, rows.mean(), &Adam::new(0.1).into(), None, &strategy, place)?;
    let text = format!("{:?}", job.tables.tables);
    assert!(
        text.contains("embedx_threshold: 10") && text.contains("show_click_decay_rate: 0.98"),
        "{text}"
    );
    Ok(())
}
