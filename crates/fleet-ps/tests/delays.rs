//! Late gradients are corrected by what their worker has read. A restarted server does so too:
//! reads are in its log and in its snapshots.

use fleet_ps::{
    DenseOptions, Durability, JobTables, LocalServers, NonFinite, Rule, ServerTables, TableAccess,
    TableConfig, rule::Sgd,
};
use std::sync::Arc;

fn job() -> JobTables {
    let table = TableConfig::Dense {
        table_id: 0,
        params: vec![("weight".into(), 2)],
        rule: Rule::Sgd(Sgd { lr: 0.25 }),
        non_finite: NonFinite::Refuse,
        options: DenseOptions { corrects_delay: true, ..DenseOptions::default() },
    };
    JobTables { server_count: 1, worker_count: 2, sync: false, tables: vec![table] }
}

fn values(servers: &LocalServers) -> [f32; 2] {
    let mut values = [0.0; 2];
    servers.pull_dense(0, &mut values).unwrap();
    values
}

/// Worker 0's gradient, pushed after both workers have read.
const FIRST: [f32; 2] = [2.0, -4.0];
/// Worker 1's gradient, of the parameters before that push.
const LATE: [f32; 2] = [1.0, 3.0];

fn expected() -> [f32; 2] {
    let mut now = [0.0; 2];
    for at in 0..2 {
        now[at] -= 0.25 * FIRST[at];
        now[at] -= 0.25 * (LATE[at] + LATE[at] * LATE[at] * now[at]);
    }
    now
}

#[test]
fn what_was_read_outlives_a_server() {
    let folder = std::env::temp_dir().join(format!("fleet-ps-delays-{}", std::process::id()));
    for name in ["log", "snapshot"] {
        let server = || {
            let durability = Durability::in_folder(folder.join(name));
            ServerTables::durable(&job(), 0, durability).unwrap()
        };
        let workers = |server: &Arc<ServerTables>| {
            [0, 1].map(|own| LocalServers::new(std::slice::from_ref(server), own).unwrap())
        };
        let first = server();
        let [one, other] = workers(&first);
        assert_eq!((values(&one), values(&other)), ([0.0; 2], [0.0; 2]));
        one.push_dense(0, None, &FIRST).unwrap();
        if name == "snapshot" {
            first.snapshot_now().unwrap();
        }
        drop((first, one, other));
        let [one, other] = workers(&server());
        other.push_dense(0, None, &LATE).unwrap();
        assert_eq!(values(&one), expected(), "{name}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn synchronous_jobs_have_nothing_to_correct() {
    let error = ServerTables::new(&JobTables { sync: true, ..job() }, 0).err().unwrap();
    assert!(error.to_string().contains("conflicts with a synchronous job"), "{error}");
}
