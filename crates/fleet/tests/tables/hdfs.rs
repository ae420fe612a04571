//! Saves in remote folders (`fs_client_param`): tables, a worker's own variables and the model,
//! through a client whose HDFS is a folder of this machine.

use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::servers::{ServerJob, Worker};
use fleet::strategy::FsClientParameter;
use fleet::topology::Env;
use fleet_testhost::hadoop::Hadoop;
use std::ops::Range;
use std::path::Path;

const URL: &str = "hdfs://host:9000/jobs/save";
/// More commands than any save or load has.
const MANY: usize = 1000;
const IDS: [i64; 6] = [1, 2, 3, 1, 30, 5];
/// A variable that is in no table.
const MEAN: &str = "batch_norm_0.w_1";

fn hadoop(name: &str) -> Hadoop {
    Hadoop::new(std::env::temp_dir().join(format!("fleet-hdfs-{name}-{}", std::process::id())))
}

fn client(hadoop: &Hadoop) -> FsClientParameter {
    FsClientParameter::default().with_hadoop_bin(hadoop.program())
}

/// A process that is the worker and the server of a job, and its network.
struct Alone {
    fleet: Fleet,
    net: Net,
    job: ServerJob,
    score: String,
}

impl Alone {
    fn new(hadoop: &Hadoop, client: FsClientParameter) -> Alone {
        let env: Env = [("TMPDIR", hadoop.temporary().display().to_string())].into_iter().collect();
        let topology = fleet::Topology::parameter_server(&env).unwrap();
        let (fleet, net) = (Fleet::init(topology, &env).unwrap(), Net::new());
        let ids = net.data("ids", [-1, 2], DType::I64);
        let table = SparseEmbedding::new(40, 4).weight(ParamAttr::from("words"));
        let hidden = ids.sparse_embedding(table).flatten(1).fc(Fc::new(6).weight("w").bias("b"));
        let score = hidden.batch_norm(BatchNorm::new()).fc(1);
        let loss = score.mse_loss(net.data("y", [-1, 1], DType::F32), Reduction::Mean);
        let strategy = DistributedStrategy::new().with_a_sync(false).with_fs_client_param(client);
        let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &strategy);
        let job = optimizer.minimize_on_servers(&net, loss).unwrap();
        let score = score.name();
        Alone { fleet, net, job, score }
    }

    fn worker(&self) -> Worker {
        let (programs, options) = (self.net.build().unwrap(), ExecOptions::threads(1));
        self.fleet.init_worker(programs, &self.job, options).unwrap()
    }

    fn trained(&self, steps: usize) -> Worker {
        let mut worker = self.worker();
        let y = Tensor::from_slice(&[1.0f32, -1.0, 0.5], [3, 1]).unwrap();
        for _ in 0..steps {
            worker.run(&[("ids", &ids()), ("y", &y)], &[]).unwrap();
        }
        worker
    }
}

fn ids() -> Tensor {
    Tensor::from_slice(&IDS, [3, 2]).unwrap()
}

fn save(worker: &mut Worker, score: &str) -> Result<()> {
    worker.save_inference_model(URL, &[score], SaveMode::All, SaveFormat::Binary).map(drop)
}

/// The state of a job: rows, a dense parameter, and a variable that only the worker has.
fn state(worker: &Worker) -> [Vec<f32>; 3] {
    let value = |name: &str| worker.session.scope.tensor(name).unwrap().to_vec().unwrap();
    [worker.read_rows("words", &IDS).unwrap(), value("w"), value(MEAN)]
}

#[test]
fn a_job_continues_from_a_remote_save() {
    let hadoop = hadoop("job");
    let given = client(&hadoop).with_uri("hdfs://host:9000").with_user("me").with_passwd("secret");
    let alone = Alone::new(&hadoop, given);
    let mut old = alone.trained(3);
    old.save_persistables(URL, SaveMode::All, SaveFormat::Text).unwrap();
    assert!(!hadoop.file("/jobs/save/model").exists());
    save(&mut old, &alone.score).unwrap();
    let options = " fs.defaultFS=hdfs://host:9000 hadoop.job.ugi=me,secret";
    assert!(
        hadoop.commands().iter().all(|line| line.ends_with(options)),
        "{:?}",
        hadoop.commands()
    );

    let mut new = alone.worker();
    assert_ne!(state(&new), state(&old));
    new.load_persistables(URL).unwrap();
    assert_eq!(state(&new), state(&old));
    // The folder on this machine is a save, too.
    let copy = hadoop.file("/jobs/save");
    let mut here = alone.worker();
    here.load_persistables(&copy).unwrap();
    assert_eq!(state(&here), state(&old));
    let model = fleet::load_inference_model(copy.join("model")).unwrap();
    assert_eq!(model.targets, [&*alone.score]);

    let (programs, threads) = (alone.net.build().unwrap(), ExecOptions::threads(1));
    let mut prepared =
        alone.fleet.prepare_worker(programs.clone(), &alone.job, threads.clone()).unwrap();
    prepared.load_vars(URL, &["w", MEAN]).unwrap();
    let value = |name: &str| prepared.session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap();
    assert_eq!([value("w"), value(MEAN)], state(&old)[1..]);
    let error = prepared.load_vars("hdfs://host:9000/none", &["w"]).unwrap_err().to_string();
    assert!(error.contains("hdfs://host:9000/none"), "{error}");

    let dir = Some(Path::new(URL));
    let mut infer = alone.fleet.distributed_infer(programs, &alone.job, dir, threads).unwrap();
    let mut same = old.infer().unwrap();
    let [got, want] = [&mut infer, &mut same].map(|infer| {
        infer.run(&[("ids", &ids())], &[&alone.score]).unwrap()[0].to_vec::<f32>().unwrap()
    });
    assert_eq!(got, want);
    infer.stop().unwrap();

    // One table in a folder of its own.
    let one = "hdfs://host:9000/jobs/one";
    old.save_table("words", one, SaveMode::All, SaveFormat::Binary).unwrap();
    let mut other = alone.worker();
    other.load_table("words", one).unwrap();
    assert_eq!(state(&other)[0], state(&old)[0]);
    assert!(hadoop.temporary().read_dir().unwrap().next().is_none(), "copies are deleted");
    for mut worker in [old, new, here, other] {
        worker.stop().unwrap();
    }
}

/// Without settings the client uses its own; the program's name is enough.
#[test]
fn settings_of_the_client_are_optional() {
    let hadoop = hadoop("plain");
    let alone = Alone::new(&hadoop, client(&hadoop));
    let mut worker = alone.trained(1);
    save(&mut worker, &alone.score).unwrap();
    assert!(hadoop.commands().iter().all(|line| !line.contains(' ')), "{:?}", hadoop.commands());
    worker.stop().unwrap();
    let absent = FsClientParameter::default().with_hadoop_bin("/no/hadoop");
    let mut worker = Alone::new(&hadoop, absent).trained(1);
    let error = save(&mut worker, &alone.score).unwrap_err().to_string();
    assert!(error.contains("cannot start /no/hadoop") && error.contains("help: "), "{error}");
    worker.stop().unwrap();
}

/// Saves over an older save while commands fail; returns the outcome.
fn save_while_failing(hadoop: &Hadoop, alone: &Alone, fails: Range<usize>) -> Result<()> {
    let (mut first, mut second) = (alone.trained(2), alone.trained(3));
    save(&mut first, &alone.score).unwrap();
    hadoop.fail(fails);
    let outcome = save(&mut second, &alone.score);
    hadoop.recover();
    let mut new = alone.worker();
    new.load_persistables(URL).unwrap();
    let found = state(&new);
    assert!(found == state(&first) || found == state(&second), "a part of a save: {found:?}");
    assert!(outcome.is_err() || found == state(&second));
    for mut worker in [first, second, new] {
        worker.stop().unwrap();
    }
    outcome
}

/// Whichever command fails, alone or with all later ones: tables and variables are of one save.
#[test]
fn a_client_that_fails_leaves_a_whole_save() {
    let clean = hadoop("clean");
    let alone = Alone::new(&clean, client(&clean));
    (0..2).for_each(|_| {
        clean.recover();
        save(&mut alone.trained(1), &alone.score).unwrap();
    });
    let commands = clean.commands().len();
    for lasts in [1, MANY] {
        let mut failures = 0;
        for at in 1..=commands {
            let hadoop = hadoop("fails");
            let alone = Alone::new(&hadoop, client(&hadoop));
            let Err(error) = save_while_failing(&hadoop, &alone, at..at + lasts) else { continue };
            failures += 1;
            let text = error.to_string();
            for part in [&*hadoop.program(), " failed (exit status: 1)", "refused", URL] {
                assert!(text.contains(part), "'{part}' is not in: {text}");
            }
            let mut next = alone.trained(4);
            save(&mut next, &alone.score).unwrap();
            let mut new = alone.worker();
            new.load_persistables(URL).unwrap();
            assert_eq!(state(&new), state(&next), "command {at}");
            let of_copy = fleet::load_inference_model(hadoop.file("/jobs/save/model"));
            let saved: Vec<f32> = of_copy.unwrap().scope.tensor("w").unwrap().to_vec().unwrap();
            assert_eq!(saved, state(&next)[1], "command {at}");
            assert!(hadoop.temporary().read_dir().unwrap().next().is_none());
            let is_left = |path: &String| path.contains("/worker.") || path.contains("/model.");
            assert!(!hadoop.files().iter().any(is_left), "command {at}: {:?}", hadoop.files());
            for mut worker in [next, new] {
                worker.stop().unwrap();
            }
        }
        // The servers may fail to delete files of the older save, which are harmless.
        assert_eq!(failures, if lasts == 1 { commands - 2 } else { commands });
    }
}
