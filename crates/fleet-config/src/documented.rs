//! Defaults of fields in Paddle's documents that differ from each other or from Fleet's.

/// A field whose default differs between documents and Fleet.
#[derive(Debug)]
pub struct DocumentedDefault {
    /// The message and the field.
    pub message: &'static str,
    /// The field's name in the message.
    pub field: &'static str,
    /// The values that documents give, with their numbers.
    pub documents: &'static str,
    /// Fleet's default; empty if it is that of a list or a behaviour.
    pub fleet: &'static str,
    /// Why Fleet has this default.
    pub why: &'static str,
}

const fn row(
    [message, field]: [&'static str; 2],
    documents: &'static str,
    fleet: &'static str,
    why: &'static str,
) -> DocumentedDefault {
    DocumentedDefault { message, field, documents, fleet, why }
}

const STRATEGY: &str = "DistributedStrategy";

/// Fields whose defaults in documents and in Fleet differ. Fleet's are those of the recorded schema
/// of version 2.6.2, which programs and files of users rely on.
///
/// ```
/// let row = fleet_config::DOCUMENTED_DEFAULTS.iter().find(|it| it.field == "decr_ratio").unwrap();
/// assert_eq!(row.fleet, "0.8");
/// ```
pub static DOCUMENTED_DEFAULTS: [DocumentedDefault; 10] = [
    row(
        ["AMPConfig", "decr_ratio"],
        "0.5 (003 and an example of 002), 0.8 (a log of 002)",
        "0.8",
        "the log shows a run, and the schema has the same value",
    ),
    row(
        ["DGCConfig", "sparsity"],
        "[0.999] (003)",
        "",
        "the schema has an empty list, which means [0.999]",
    ),
    row(
        [STRATEGY, "fuse_grad_size_in_TFLOPS"],
        "20 (000), 50 (002)",
        "50.0",
        "the schema's value; it is a number of parameters",
    ),
    row(
        [STRATEGY, "fuse_all_reduce_ops"],
        "true (000), false (001)",
        "true",
        "buckets are faster, and their sums are the same",
    ),
    row(
        [STRATEGY, "cudnn_exhaustive_search"],
        "true (000)",
        "false",
        "it has no effect: cuDNN is not used",
    ),
    row(
        [STRATEGY, "cudnn_batchnorm_spatial_persistent"],
        "true (000)",
        "false",
        "it has no effect: cuDNN is not used",
    ),
    row(
        [STRATEGY, "conv_workspace_size_limit"],
        "4000 (000)",
        "512",
        "it has no effect: scratch memory is planned",
    ),
    row(
        ["ExecutionStrategy", "num_iteration_per_drop_scope"],
        "10 (000), 1 (001)",
        "10",
        "the schema's value; unless it is assigned, plans are never dropped",
    ),
    row(
        ["ExecutionStrategy", "num_iteration_per_run"],
        "3 (000)",
        "1",
        "one call of `run` makes one step, as a training loop expects",
    ),
    row(
        ["RecomputeConfig", "checkpoints"],
        "required (002, 003)",
        "",
        "without a list, Fleet chooses checkpoints by the square-root rule",
    ),
];
