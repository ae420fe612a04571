//! Messages of parameter-server jobs: exchange, tables, accessors, file systems.

use super::message;
use crate::EnumShape;

/// What a table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum TableType {
    PsSparseTable = 0,
    PsDenseTable = 1,
}

pub(crate) static TABLE_TYPE: EnumShape =
    EnumShape { name: "TableType", values: &[("PS_SPARSE_TABLE", 0), ("PS_DENSE_TABLE", 1)] };

message! {
    /// How workers and servers exchange.
    AsyncConfig = "AsyncConfig" {
        /// Steps between two exchanges: 0 for every step, more for GEO, -1 while no mode was
        /// chosen.
        k_steps(1): optional int32 = "-1";
        /// Gradients of one variable that are merged before they are sent.
        max_merge_var_num(2): optional int32 = 1;
        /// Gradients of one variable that wait to be sent, at most.
        send_queue_size(3): optional int32 = 16;
        /// Parameters are received by a thread of their own.
        independent_recv_thread(4): optional bool = false;
        /// Gradients that are sent before parameters are received again.
        min_send_grad_num_before_recv(5): optional int32 = 1;
        /// Threads that send.
        thread_pool_size(6): optional int32 = 1;
        /// How often a sender waits for more to merge.
        send_wait_times(7): optional int32 = 1;
        /// Ops of sending and receiving are split while the program runs.
        runtime_split_send_recv(8): optional bool = false, ignored "gradients are always cut where they are sent";
        /// Workers wait until all servers listen. Off: a server that does not is an error at once.
        launch_barrier(9): optional bool = true;
        /// The device label of ops that heterogeneous workers take over.
        heter_worker_device_guard(10): optional string = "cpu", ignored "there are no heterogeneous workers";
        /// Steps after which the server's learning rate decays.
        lr_decay_steps(11): optional int32 = 10;
        /// Tables live in device memory.
        use_ps_gpu(12): optional int32 = 0, ignored "tables live in the servers' memory";
        /// Servers correct gradients by what has changed since their worker read the parameters
        /// (DC-ASGD); a worker waits for its own gradients. Only with a_sync and k_steps 0.
        enable_dc_asgd(1001): optional bool = false;
        /// What servers do with a gradient in which a number is NaN or infinite: `refuse` it, which
        /// is an error of its worker; `count` it and take it as it is; or `clip` it. Such numbers
        /// are counted in any case.
        non_finite(1002): optional string = "refuse";
        /// What `clip` clamps every number of every gradient to; NaN becomes 0.
        non_finite_limit(1003): optional float = 10.0;
    }

    /// What the trainers of a parameter-server job print and treat specially.
    TrainerDescConfig = "TrainerDescConfig" {
        /// Where dumped fields go.
        dump_fields_path(1): optional string;
        /// Variables that are dumped.
        dump_fields(2): repeated string;
        /// Parameters that are dumped.
        dump_param(3): repeated string;
        /// Variables that are counted.
        stat_var_names(4): repeated string;
        /// The kind of trainer.
        trainer(5): optional string;
        /// The kind of worker.
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
        /// Parts that it is divided into.
        shard_num(4): optional uint64 = 1000;
        /// What it holds.
        r#type(5): optional enumeration["TableType"];
        /// What its rows are and how they learn.
        accessor(6): optional message(TableAccessorParameter);
        /// Files of saves of all rows (modes 0 and 3) are compressed with gzip.
        compress_in_save(7): optional bool = false;
        /// Hot rows are cached.
        enable_sparse_table_cache(10): optional bool = true, ignored "all rows are in memory";
        /// The share of rows that is hot.
        sparse_table_cache_rate(11): optional double = 0.00055, ignored "all rows are in memory";
        /// Files of the cache.
        sparse_table_cache_file_num(12): optional uint32 = 16, ignored "all rows are in memory";
        /// Updates can be taken back.
        enable_revert(13): optional bool = false, ignored "a save that fails is taken back by itself";
        /// The share of shards that are merged.
        shard_merge_rate(14): optional float = 1.0, ignored "shards are saved one by one";
        /// Rows that each server may have, however many ids come: one more is an error of who asks
        /// for it. 0: memory is the limit.
        row_count_max(1001): optional uint64 = 0;
    }

    /// What the rows of a table are and how they learn.
    TableAccessorParameter = "TableAccessorParameter" {
        /// Its class, such as `CtrCommonAccessor`.
        accessor_class(1): optional string;
        /// Columns of a row.
        fea_dim(4): optional uint32 = 11;
        /// Columns of the embedding that is made for rows seen often enough.
        embedx_dim(5): optional uint32 = 8;
        /// The score from which a row has it.
        embedx_threshold(6): optional uint32 = 10;
        /// Scores of shows and clicks.
        ctr_accessor_param(7): optional message(CtrAccessorParameter);
        /// How rows are written.
        table_accessor_save_param(8): repeated message(TableAccessorSaveParameter), ignored "rows are written as they are";
        /// The rule of the first column.
        embed_sgd_param(10): optional message(SgdParameter);
        /// The rule of the embedding.
        embedx_sgd_param(11): optional message(SgdParameter);
        /// The rule of graph tables.
        graph_sgd_param(12): optional message(GraphSgdParameter), ignored "there are no graph tables";
    }

    /// A rule of learning with its numbers.
    SgdParameter = "SGDParameter" {
        /// Which of them.
        name(1): optional string;
        /// Plain descent.
        naive(2): optional message(SparseNaiveSgdRuleParameter);
        /// Adagrad.
        adagrad(3): optional message(SparseAdagradSgdRuleParameter);
        /// Adam.
        adam(4): optional message(SparseAdamSgdParameter);
    }

    /// Plain descent.
    SparseNaiveSgdRuleParameter = "SparseNaiveSGDRuleParameter" {
        /// The learning rate.
        learning_rate(1): optional double = 0.05;
        /// New rows are drawn from minus this to this.
        initial_range(2): optional double = 0.0001;
        /// The least and the greatest weight.
        weight_bounds(3): repeated[packed = "false"] float;
    }

    /// Adagrad.
    SparseAdagradSgdRuleParameter = "SparseAdagradSGDRuleParameter" {
        /// The learning rate.
        learning_rate(1): optional double = 0.05;
        /// The sum of squares that a row starts with.
        initial_g2sum(2): optional double = 3.0;
        /// New rows are drawn from minus this to this.
        initial_range(3): optional double = 0.0001;
        /// The least and the greatest weight.
        weight_bounds(4): repeated[packed = "false"] float;
    }

    /// Adam.
    SparseAdamSgdParameter = "SparseAdamSGDParameter" {
        /// The learning rate.
        learning_rate(1): optional double = 0.001;
        /// New rows are drawn from minus this to this.
        initial_range(2): optional double = 0.0001;
        /// Decay of the first moment.
        beta1_decay_rate(3): optional double = 0.9;
        /// Decay of the second moment.
        beta2_decay_rate(4): optional double = 0.999;
        /// Added to the divisor.
        ada_epsilon(5): optional double = 0.00000001;
        /// The least and the greatest weight.
        weight_bounds(6): repeated[packed = "false"] float;
    }

    /// How shows and clicks make a row's score, and when rows go.
    CtrAccessorParameter = "CtrAccessorParameter" {
        /// The weight of a show without click.
        nonclk_coeff(1): optional float = 0.1;
        /// The weight of a click.
        click_coeff(2): optional float = 1.0;
        /// The score from which rows are in the base model.
        base_threshold(3): optional float = 1.5;
        /// The change from which rows are in the delta model.
        delta_threshold(4): optional float = 0.25;
        /// Days for which rows stay in the delta model.
        delta_keep_days(5): optional float = 16.0;
        /// What shows and clicks are multiplied with every day.
        show_click_decay_rate(6): optional float = 0.98;
        /// The score under which rows are deleted.
        delete_threshold(7): optional float = 0.8;
        /// Days without a show after which rows are deleted.
        delete_after_unseen_days(8): optional float = 30.0;
        /// Days without a show after which rows go to disk.
        ssd_unseenday_threshold(9): optional int32 = 1, ignored "all rows are in memory";
        /// Shows count as they come.
        show_scale(10): optional bool = true;
        /// New rows are zero.
        zero_init(11): optional bool = true;
        /// Slots that are not loaded.
        load_filter_slots(12): repeated[packed = "false"] float, ignored "rows of all slots are loaded";
        /// Slots that are not saved.
        save_filter_slots(13): repeated[packed = "false"] float, ignored "rows of all slots are saved";
    }

    /// How rows are written.
    TableAccessorSaveParameter = "TableAccessorSaveParameter" {
        /// The save mode that this is for.
        param(1): optional uint32;
        /// The command that rows are piped through when they are saved.
        converter(2): optional string;
        /// The command that rows are piped through when they are loaded.
        deconverter(3): optional string;
    }

    /// The rule of graph tables.
    GraphSgdParameter = "GraphSGDParameter" {
        /// The slot of node ids.
        nodeid_slot(1): optional uint32 = 9008;
        /// The learning rate of features.
        feature_learning_rate(2): optional float = 0.05;
    }

    /// The file system that tables are saved to.
    FsClientParameter = "FsClientParameter" {
        /// Its address.
        uri(1): optional string;
        /// Who asks.
        user(2): optional string;
        /// The password.
        passwd(3): optional string;
        /// The program of its client.
        hadoop_bin(4): optional string;
    }
}
