//! Ops without a translation, and why.

use fleet_ops::Registry;

const TRAINING: &str = "it updates parameters or the state of a training";
const RANKS: &str = "it communicates with other processes";
const RANDOM: &str = "ONNX does not draw the same random numbers";
const STATE: &str = "it keeps counts from one run to the next";

const LOSS: &str = "it is the loss of a training: export the features that it reads";

const REASONS: &[(&str, &[&str])] = &[
    (
        TRAINING,
        &[
            "adadelta",
            "adagrad",
            "adam",
            "adamax",
            "adamw",
            "c_lamb",
            "c_lars_momentum",
            "sum_then_adam",
            "sum_then_adamw",
            "sum_then_momentum",
            "sum_then_sgd",
            "check_finite_and_unscale",
            "dgc",
            "dgc_momentum",
            "empty",
            "fake_init",
            "fused_adam",
            "fused_adamw",
            "fused_momentum",
            "fused_sgd",
            "lamb",
            "lars_momentum",
            "lr_schedule",
            "micro_batch_slice",
            "momentum",
            "nonzero_rows",
            "rmsprop",
            "sgd",
            "update_loss_scaling",
        ],
    ),
    (
        RANKS,
        &[
            "alltoall",
            "barrier",
            "c_allgather",
            "c_allgather_rows",
            "c_allreduce_avg",
            "c_allreduce_max",
            "c_allreduce_min",
            "c_allreduce_prod",
            "c_allreduce_sum",
            "c_broadcast",
            "c_check_batch",
            "c_class_cross_entropy",
            "c_comm_init",
            "c_concat",
            "c_embedding",
            "c_gather_parts",
            "c_identity",
            "c_reduce_sum",
            "c_reducescatter",
            "c_scatter_sum",
            "c_softmax_with_cross_entropy",
            "c_split",
            "c_sync_calc_stream",
            "c_sync_comm_stream",
            "c_take_part",
            "distributed_push_sparse",
            "fetch_barrier",
            "listen_and_serv",
            "mp_allreduce_sum",
            "recv",
            "recv_v2",
            "send",
            "send_barrier",
            "send_v2",
        ],
    ),
    ("it moves values to other memory", &["offload_fetch", "offload_store"]),
    (
        RANDOM,
        &["gaussian_random", "randint", "randperm", "truncated_gaussian_random", "uniform_random"],
    ),
    (STATE, &["auc"]),
    (LOSS, &["class_cross_entropy"]),
    ("branches of cond are translated in pairs", &["conditional_block"]),
];

const GRADIENT: &str = "it computes gradients";

/// Returns why an op has no translation; `None` for other ops.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    let found = REASONS.iter().find(|(_, names)| names.contains(&name));
    match found {
        Some((reason, _)) => Some(reason),
        None => Registry::standard().forward_of(name).map(|_| GRADIENT),
    }
}

/// Returns all names of the list.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    REASONS.iter().flat_map(|(_, names)| names.iter().copied())
}
