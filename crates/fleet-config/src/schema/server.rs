//! Messages of parameter-server jobs: exchange, tables, accessors, file systems.

use super::define::message;
use crate::reflect::EnumShape;

/// Kind of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum TableType {
    /// Rows by id.
    PsSparseTable = 0,
    /// Parameters of fixed size.
    PsDenseTable = 1,
}

pub(crate) static TABLE_TYPE: EnumShape =
    EnumShape { name: "TableType", values: &[("PS_SPARSE_TABLE", 0), ("PS_DENSE_TABLE", 1)] };

message! {
    /// How workers and servers exchange gradients and parameters.
    AsyncConfig = "AsyncConfig" {
        /// Steps between two exchanges: 0 for every step, more for GEO, -1 if no mode was chosen.
        k_steps(1): optional int32 = "-1",
            allowed [
                Range(Included(-1.0), Unbounded),
                "0 exchanges in every step, more selects GEO, -1 means no parameter server",
                "0"
            ];
        /// Number of gradients of a variable that are merged before they are sent.
        max_merge_var_num(2): optional int32 = 1,
            allowed [AT_LEAST_1, COUNT, "the number of threads that compute"];
        /// Limit of gradients of a variable that wait to be sent.
        send_queue_size(3): optional int32 = 16,
            allowed [AT_LEAST_1, "the queue needs room for gradients", "16"];
        /// Receives parameters in a separate thread.
        independent_recv_thread(4): optional bool = false;
        /// Number of gradients sent before parameters are received again.
        min_send_grad_num_before_recv(5): optional int32 = 1, allowed [AT_LEAST_1, COUNT, "1"];
        /// Number of sender threads.
        thread_pool_size(6): optional int32 = 1,
            allowed [AT_LEAST_1, "at least one thread must send", "1"];
        /// Number of times that a sender waits for more gradients to merge.
        send_wait_times(7): optional int32 = 1, allowed [AT_LEAST_0, NOT_NEGATIVE, "1"];
        /// Splits send and receive ops at run time.
        runtime_split_send_recv(8): optional bool = false,
            ignored "gradients are always split by their sender";
        /// Makes workers wait until all servers listen. If false, a server that does not listen is
        /// an error at once.
        launch_barrier(9): optional bool = true;
        /// Device label of ops that run on heterogeneous workers.
        heter_worker_device_guard(10): optional string = "cpu",
            allowed [
                OneOf(&["cpu",
                "gpu",
                "xpu",
                "npu"]),
                "it is the device label of ops on heterogeneous workers",
                "cpu"
            ],
            ignored "heterogeneous workers are not supported";
        /// Number of steps after which the server's learning rate decays.
        lr_decay_steps(11): optional int32 = 10, allowed [AT_LEAST_1, COUNT, "10"];
        /// Keeps tables in device memory.
        use_ps_gpu(12): optional int32 = 0,
            allowed [Range(Included(0.0), Included(1.0)), "it is 0 or 1", "0"],
            ignored "tables are stored in the servers' memory";
        /// Makes servers correct gradients by the changes since their worker read the parameters
        /// (DC-ASGD). A worker then waits for its own gradients. Requires a_sync and k_steps 0.
        enable_dc_asgd(1001): optional bool = false;
        /// How servers handle a gradient with NaN or infinite values. `refuse` rejects it, which is
        /// an error of its worker; `count` applies it unchanged; `clip` clamps it. Such values are
        /// counted in any case.
        non_finite(1002): optional string = "refuse",
            allowed [
                OneOf(&["refuse",
                "count",
                "clip"]),
                "these are the ways to handle NaN and infinity",
                "refuse"
            ];
        /// Limit to which `clip` clamps every value of every gradient; NaN becomes 0.
        non_finite_limit(1003): optional float = 10.0,
            allowed [ABOVE_0, "every gradient is clamped to it", "10"];
    }

    /// Output and special variables of the trainers in a parameter-server job.
    TrainerDescConfig = "TrainerDescConfig" {
        /// Output path of dumped fields.
        dump_fields_path(1): optional string;
        /// Variables to dump.
        dump_fields(2): repeated string;
        /// Parameters to dump.
        dump_param(3): repeated string;
        /// Variables with statistics.
        stat_var_names(4): repeated string;
        /// The kind of trainer.
        trainer(5): optional string;
        /// The kind of device worker.
        device_worker(6): optional string;
        /// Sparse tables that stay with the worker.
        local_sparse(7): repeated string;
        /// Sparse tables on the servers.
        remote_sparse(8): repeated string;
    }

    /// A table of the parameter server.
    TableParameter = "TableParameter" {
        /// Its number.
        table_id(1): optional uint64;
        /// Its name.
        table_name(2): optional string;
        /// Its class, such as `MemorySparseTable`.
        table_class(3): optional string;
        /// Number of its shards.
        shard_num(4): optional uint64 = 1000, allowed [AT_LEAST_1, COUNT, "1000"];
        /// Its kind.
        r#type(5): optional enumeration["TableType"];
        /// Layout and update rules of its rows.
        accessor(6): optional message(TableAccessorParameter);
        /// Compresses files of full saves (modes 0 and 3) with gzip.
        compress_in_save(7): optional bool = false;
        /// Caches hot rows.
        enable_sparse_table_cache(10): optional bool = true, ignored "all rows are in memory";
        /// Fraction of hot rows.
        sparse_table_cache_rate(11): optional double = 0.00055,
            allowed [SHARE, "it is the fraction of rows that are cached", "0.00055"],
            ignored "all rows are in memory";
        /// Number of cache files.
        sparse_table_cache_file_num(12): optional uint32 = 16,
            allowed [AT_LEAST_1, COUNT, "16"],
            ignored "all rows are in memory";
        /// Allows updates to be reverted.
        enable_revert(13): optional bool = false, ignored "a failed save is reverted automatically";
        /// Fraction of shards that are merged.
        shard_merge_rate(14): optional float = 1.0,
            allowed [SHARE, "it is a fraction of the shards", "1"],
            ignored "shards are saved one by one";
        /// Limit of rows on each server. A request for one more row is an error of the worker that
        /// sends it. 0 means that only memory limits the number.
        row_count_max(1001): optional uint64 = 0;
    }

    /// Layout and update rules of a table's rows.
    TableAccessorParameter = "TableAccessorParameter" {
        /// Its class, such as `CtrCommonAccessor`.
        accessor_class(1): optional string;
        /// Columns of a row.
        fea_dim(4): optional uint32 = 11, allowed [AT_LEAST_1, COUNT, "embedx_dim + 3"];
        /// Columns of the embedding, which is created for rows with a sufficient score.
        embedx_dim(5): optional uint32 = 8, allowed [AT_LEAST_1, COUNT, "8"];
        /// Score from which a row has the embedding.
        embedx_threshold(6): optional uint32 = 10;
        /// Scores of shows and clicks.
        ctr_accessor_param(7): optional message(CtrAccessorParameter);
        /// How rows are written.
        table_accessor_save_param(8): repeated message(TableAccessorSaveParameter),
            ignored "rows are written without conversion";
        /// Update rule of the first column.
        embed_sgd_param(10): optional message(SgdParameter);
        /// Update rule of the embedding.
        embedx_sgd_param(11): optional message(SgdParameter);
        /// Update rule of graph tables.
        graph_sgd_param(12): optional message(GraphSgdParameter),
            ignored "graph tables are not supported";
    }

    /// An update rule with its parameters.
    SgdParameter = "SGDParameter" {
        /// Name of the rule.
        name(1): optional string;
        /// Plain SGD.
        naive(2): optional message(SparseNaiveSgdRuleParameter);
        /// Adagrad.
        adagrad(3): optional message(SparseAdagradSgdRuleParameter);
        /// Adam.
        adam(4): optional message(SparseAdamSgdParameter);
    }

    /// Plain SGD.
    SparseNaiveSgdRuleParameter = "SparseNaiveSGDRuleParameter" {
        /// Learning rate.
        learning_rate(1): optional double = 0.05,
            allowed [ABOVE_0, "the table would not train", "0.05"];
        /// New rows are drawn uniformly from [-initial_range, initial_range].
        initial_range(2): optional double = 0.0001,
            allowed [AT_LEAST_0, "rows are drawn from minus this to this", "0.0001"];
        /// Minimum and maximum weight.
        weight_bounds(3): repeated[packed = "false"] float;
    }

    /// Adagrad.
    SparseAdagradSgdRuleParameter = "SparseAdagradSGDRuleParameter" {
        /// Learning rate.
        learning_rate(1): optional double = 0.05,
            allowed [ABOVE_0, "the table would not train", "0.05"];
        /// Initial sum of squares of a row.
        initial_g2sum(2): optional double = 3.0,
            allowed [AT_LEAST_0, "its square root divides the gradient", "3"];
        /// New rows are drawn uniformly from [-initial_range, initial_range].
        initial_range(3): optional double = 0.0001,
            allowed [AT_LEAST_0, "rows are drawn from minus this to this", "0.0001"];
        /// Minimum and maximum weight.
        weight_bounds(4): repeated[packed = "false"] float;
    }

    /// Adam.
    SparseAdamSgdParameter = "SparseAdamSGDParameter" {
        /// Learning rate.
        learning_rate(1): optional double = 0.001,
            allowed [ABOVE_0, "the table would not train", "0.001"];
        /// New rows are drawn uniformly from [-initial_range, initial_range].
        initial_range(2): optional double = 0.0001,
            allowed [AT_LEAST_0, "rows are drawn from minus this to this", "0.0001"];
        /// Decay of the first moment.
        beta1_decay_rate(3): optional double = 0.9,
            allowed [UNDER_1, "an average must decay", "0.9"];
        /// Decay of the second moment.
        beta2_decay_rate(4): optional double = 0.999,
            allowed [UNDER_1, "an average must decay", "0.999"];
        /// Added to the divisor.
        ada_epsilon(5): optional double = 0.00000001,
            allowed [ABOVE_0, "it keeps a divisor away from zero", "1e-8"];
        /// Minimum and maximum weight.
        weight_bounds(6): repeated[packed = "false"] float;
    }

    /// Scores of rows by shows and clicks, and thresholds for saves and deletion.
    CtrAccessorParameter = "CtrAccessorParameter" {
        /// Weight of a show without a click.
        nonclk_coeff(1): optional float = 0.1,
            allowed [AT_LEAST_0, "a show without click would count against the row", "0.1"];
        /// Weight of a click.
        click_coeff(2): optional float = 1.0,
            allowed [AT_LEAST_0, "a click would count against the row", "1"];
        /// Score from which rows are in the base model.
        base_threshold(3): optional float = 1.5,
            allowed [AT_LEAST_0, "scores are not negative", "1.5"];
        /// Change of the score from which rows are in the delta model.
        delta_threshold(4): optional float = 0.25,
            allowed [AT_LEAST_0, "scores are not negative", "0.25"];
        /// Days for which rows stay in the delta model.
        delta_keep_days(5): optional float = 16.0, allowed [AT_LEAST_0, NOT_NEGATIVE, "16"];
        /// Daily decay factor of shows and clicks.
        show_click_decay_rate(6): optional float = 0.98,
            allowed [SHARE, "shows and clicks must not grow without new events", "0.98"];
        /// Rows with a lower score are deleted.
        delete_threshold(7): optional float = 0.8,
            allowed [AT_LEAST_0, "scores are not negative", "0.8"];
        /// Days without a show after which rows are deleted.
        delete_after_unseen_days(8): optional float = 30.0,
            allowed [AT_LEAST_0, NOT_NEGATIVE, "30"];
        /// Days without a show after which rows move to disk.
        ssd_unseenday_threshold(9): optional int32 = 1,
            allowed [AT_LEAST_0, NOT_NEGATIVE, "1"],
            ignored "all rows are in memory";
        /// Divides the gradient of a row by its shows.
        show_scale(10): optional bool = true;
        /// Initialises the first column of new rows, the weight, with zero.
        zero_init(11): optional bool = true;
        /// Slots that are not loaded.
        load_filter_slots(12): repeated[packed = "false"] float,
            ignored "rows of all slots are loaded";
        /// Slots that are not saved.
        save_filter_slots(13): repeated[packed = "false"] float,
            ignored "rows of all slots are saved";
    }

    /// How rows are written.
    TableAccessorSaveParameter = "TableAccessorSaveParameter" {
        /// The save mode to which this applies.
        param(1): optional uint32;
        /// Command through which rows are piped when they are saved.
        converter(2): optional string;
        /// Command through which rows are piped when they are loaded.
        deconverter(3): optional string;
    }

    /// Update rule of graph tables.
    GraphSgdParameter = "GraphSGDParameter" {
        /// Slot of node ids.
        nodeid_slot(1): optional uint32 = 9008;
        /// Learning rate of features.
        feature_learning_rate(2): optional float = 0.05,
            allowed [ABOVE_0, "features would not train", "0.05"];
    }

    /// The Hadoop client with which workers and servers save to `hdfs://` and `afs://` folders, and
    /// load from them.
    FsClientParameter = "FsClientParameter" {
        /// Address of the file system: `-D fs.defaultFS`. By default that of the client.
        uri(1): optional string;
        /// User name: `-D hadoop.job.ugi`. By default that of the client.
        user(2): optional string;
        /// Password, after the user name.
        passwd(3): optional string;
        /// The client program; `hadoop` if it is empty.
        hadoop_bin(4): optional string;
    }
}
