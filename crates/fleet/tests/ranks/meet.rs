//! `Fleet::meet`: models that differ between ranks are averaged.

use crate::launch::{assert_success, run_in};
use crate::strategies::{NAMES, session, step};
use fleet::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the variables that the model computes with: parameters, and batch mean and variance.
fn model(session: &Session) -> Result<BTreeMap<String, Vec<f32>>> {
    let is_model = |name: &&str| {
        let ends = [".w_0", ".b_0", ".w_1", ".w_2"].iter().any(|end| name.ends_with(end));
        ends && !name.contains('@')
    };
    let names = session.scope.names().filter(is_model);
    names.map(|name| Ok((name.to_string(), session.scope.tensor(name)?.to_vec()?))).collect()
}

fn means(fleet: &Fleet, model: &BTreeMap<String, Vec<f32>>) -> Result<Vec<f64>> {
    let all: Vec<f64> = model.values().flatten().map(|value| f64::from(*value)).collect();
    fleet.util().all_reduce(&all, ReduceOp::Avg)
}

/// Runs in a rank process. The strategy is the folder's name.
pub fn compare(fleet: &Fleet, folder: &Path) -> Result<()> {
    let name = folder.to_str().unwrap_or_default();
    let mut session = session(fleet, name)?;
    (1..=5).try_for_each(|number| step(&mut session, fleet, number))?;
    let before = model(&session)?;
    let expected = means(fleet, &before)?;
    fleet.meet(&mut session)?;
    let after = model(&session)?;
    for (found, expected) in after.values().flatten().zip(&expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{name}: {found} {expected}");
    }
    let parameters_differed = before["fc_0.w_0"] != after["fc_0.w_0"];
    assert_eq!(parameters_differed, name.contains("localsgd"), "{name}");
    let statistics_differed = before["batch_norm_0.w_1"] != after["batch_norm_0.w_1"];
    assert_eq!(statistics_differed, name != "sync_batch_norm", "{name}");

    // Training continues: ranks that train alone diverge, and are averaged as scheduled in step 7.
    step(&mut session, fleet, 6)?;
    step(&mut session, fleet, 7)?;
    let own = model(&session)?;
    let own: Vec<f64> = own["fc_0.w_0"].iter().map(|value| f64::from(*value)).collect();
    let largest = fleet.util().all_reduce(&own, ReduceOp::Max)?;
    let apart = own.iter().zip(&largest).any(|(own, largest)| (own - largest).abs() > 1e-6);
    assert!(!apart || name == "adaptive_localsgd", "{name}");
    fleet.finish()
}

#[test]
fn models_become_one() {
    // Ranks that divide the parameters have no models to compare.
    const DIVIDED: [&str; 6] = [
        "sharded_parameters",
        "pipeline",
        "pipelines",
        "virtual_stages",
        "sharded_stages",
        "sharded_parameters_of_stages",
    ];
    let divides = |name: &str| DIVIDED.contains(&name);
    for name in NAMES.into_iter().filter(|name| !divides(name)) {
        assert_success(&run_in("meet", 2, name));
    }
}
