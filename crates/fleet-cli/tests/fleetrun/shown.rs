//! What is shown of a job.

use crate::Place;

#[test]
fn all_logs_with_prefixes_or_none() {
    let place = Place::new("follow", "echo from $PADDLE_TRAINER_ID; printf unended");
    let said = place.run("--nproc_per_node 2 --follow all job.py");
    for line in ["[worker 0] from 0", "[worker 1] from 1", "[worker 1] unended"] {
        assert!(said.out.lines().any(|it| it == line), "{line}: {}", said.out);
    }
    assert!(!said.out.contains('\x1b'), "no colours where there is no terminal");
    assert_eq!(place.run("--follow none job.py").out, "");
    assert_eq!(place.run("--log_level error job.py").err, "");
}

#[test]
fn the_tables_of_the_documents() {
    let place = Place::new("verbose", "echo $FLEET_TOKEN > token; echo my token is $FLEET_TOKEN");
    let said = place.run("-v --nproc_per_node 2 job.py x");
    said.check(0, &[
        "-----------  Configuration Arguments -----------\n",
        "nproc_per_node: 2\n",
        "training_script_args: ['x']\n",
        "launch train in CPU mode\n",
        "Local start 2 processes. First process distributed environment info (Only For Debug): \n    +====",
        "|                        Distributed Envs                      Value                    |",
        "details about PADDLE_TRAINER_ENDPOINTS can be found in log/endpoints.log, and detail running logs maybe found in log/workerlog.0",
        "launch proc_id:",
    ]);
    let token = place.read("token").trim().to_string();
    assert_eq!(token.len(), 64);
    assert!(!said.err.contains(&token) && !said.out.contains(&token), "the secret is not shown");
    assert!(said.out.contains("my token is ***"), "{}", said.out);
}
