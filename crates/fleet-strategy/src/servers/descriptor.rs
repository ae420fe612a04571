//! The documented text of a job's tables (`PSERVER_DEBUG`): `server_param { .. }` for servers and
//! `worker_param { .. }` for workers.
//!
//! The numbers of tables are those of the job. The names of classes are the documented ones, also
//! of what Fleet does in another way (`BrpcPsServer`).

use super::tables::{DenseTable, SparseTable};
use super::{Place, ServerPlan};
use fleet_table::{Accessor, CtrAccessor, Entry, Exchange, Initializer, Rule, SparseConfig};
use std::fmt::Display;

/// Number of shards and of threads in the documented text, of what has none here.
const SHARD_COUNT: usize = 256;
const SERVER_THREADS: usize = 12;
/// The documented accessor of rows that are weights and state alone.
const PLAIN: &str = "CommMergeAccessor";

impl ServerPlan {
    /// Returns the text for a server. The sizes of dense tables are those of its part.
    pub fn server_descriptor(&self, place: Place, server: usize) -> String {
        self.descriptor(["server_param", "downpour_server_param"], place, Some(server))
    }

    /// Returns the text for workers. The sizes of dense tables are those on all servers.
    pub fn worker_descriptor(&self, place: Place) -> String {
        self.descriptor(["worker_param", "downpour_worker_param"], place, None)
    }

    fn descriptor(&self, names: [&str; 2], place: Place, server: Option<usize>) -> String {
        let mut text = Text::default();
        text.inside(names[0], |text| {
            text.inside(names[1], |text| {
                if server.is_some() {
                    text.inside("service_param", add_service);
                }
                for table in &self.tables.sparse {
                    text.inside(TABLE, |text| self.add_sparse(text, place, table));
                }
                for table in &self.tables.dense {
                    text.inside(TABLE, |text| self.add_dense(text, place, server, table));
                }
                let after_dense = self.tables.sparse.len() + self.tables.dense.len();
                if let Some(id) = self.tables.steps {
                    text.inside(TABLE, |text| {
                        let class = ["GlobalStepTable", "GlobalStep"];
                        self.add_other(text, place, id as usize, class);
                    });
                }
                let barrier = after_dense + usize::from(self.tables.steps.is_some());
                text.inside(TABLE, |text| {
                    self.add_other(text, place, barrier, ["BarrierTable", "barrier_table"]);
                });
            });
        });
        text.out
    }

    fn add_sparse(&self, text: &mut Text, place: Place, table: &SparseTable) {
        let config = &table.config;
        let class: &str = if table.class.is_empty() { "CommonSparseTable" } else { &table.class };
        let id = table.table_id() as usize;
        add_head(text, id, class, config.shard_count, "PS_SPARSE_TABLE");
        if config.compress_in_save {
            text.field("compress_in_save", true);
        }
        if config.row_count_max < u64::MAX {
            text.field("row_count_max", config.row_count_max);
        }
        match &config.accessor {
            Accessor::Plain => text.inside("accessor", |text| {
                add_accessor(text, PLAIN, table.rows, config.dim);
            }),
            Accessor::Ctr(ctr) => {
                text.inside("accessor", |text| add_click(text, ctr, table.width(), config));
            }
        }
        let seed = config.seed;
        let init = match config.initializer {
            Initializer::Constant(value) => fill(value),
            Initializer::Uniform { low, high } => drawn("uniform_random", seed, low, high),
            Initializer::Gaussian { mean, std } => drawn("gaussian_random", seed, mean, std),
            Initializer::TruncatedGaussian { mean, std } => {
                drawn("truncated_gaussian_random", seed, mean, std)
            }
        };
        text.inside("common", |text| {
            self.add_common(text, place, &table.name, Some((&config.rule, config.dim, init)));
            if config.entry != Entry::None {
                text.quoted("entry", &config.entry);
            }
        });
    }

    fn add_dense(&self, text: &mut Text, place: Place, server: Option<usize>, table: &DenseTable) {
        let part = |server| table.cut().count(table.len, server, place.server_count);
        let len = server.map_or(table.len, part);
        add_head(text, table.table_id as usize, "CommonDenseTable", SHARD_COUNT, "PS_DENSE_TABLE");
        text.inside("accessor", |text| add_accessor(text, PLAIN, len as u64, 1));
        text.inside("common", |text| {
            // Worker 0 sends the initial values.
            self.add_common(text, place, "MergedDense", Some((&table.rule.rule, len, fill(0.0))));
        });
    }

    fn add_other(&self, text: &mut Text, place: Place, id: usize, [class, name]: [&str; 2]) {
        add_head(text, id, class, SHARD_COUNT, "PS_OTHER_TABLE");
        text.inside("accessor", |text| add_accessor(text, PLAIN, 0, 0));
        text.inside("common", |text| self.add_common(text, place, name, None));
    }

    /// Adds the rule of a table, and for each of its numbers the size and the first value. `rule`
    /// has the rule, the number of weights and their initializer.
    fn add_common(
        &self,
        text: &mut Text,
        place: Place,
        table: &str,
        rule: Option<(&Rule, usize, String)>,
    ) {
        let adds = matches!(self.exchange, Exchange::Geo { .. });
        let (name, numbers, attr) = match rule {
            None => ("", Vec::new(), String::new()),
            Some((_, len, init)) if adds => ("sum", vec![("Param", len, init)], String::new()),
            Some((rule, len, init)) => numbers(rule, len, init),
        };
        text.quoted("name", name);
        text.quoted("table_name", table);
        text.field("trainer_num", place.worker_count);
        text.field("sync", self.exchange.is_sync());
        numbers.iter().for_each(|(name, _, _)| text.quoted("params", name));
        numbers.iter().for_each(|(_, dim, _)| text.field("dims", dim));
        numbers.iter().for_each(|(_, _, init)| text.quoted("initializers", init));
        if !attr.is_empty() {
            text.quoted("attr", attr);
        }
    }
}

const TABLE: &str = "downpour_table_param";

fn add_service(text: &mut Text) {
    text.quoted("server_class", "BrpcPsServer");
    text.quoted("client_class", "BrpcPsClient");
    text.quoted("service_class", "BrpcPsService");
    text.field("start_server_port", 0);
    text.field("server_thread_num", SERVER_THREADS);
}

fn add_head(text: &mut Text, id: usize, class: &str, shard_count: usize, kind: &str) {
    text.field("table_id", id);
    text.quoted("table_class", class);
    text.field("shard_num", shard_count);
    text.field("type", kind);
}

fn add_accessor(text: &mut Text, class: &str, fea_dim: u64, embedx_dim: usize) {
    text.quoted("accessor_class", class);
    text.field("fea_dim", fea_dim);
    text.field("embedx_dim", embedx_dim);
}

fn add_click(text: &mut Text, ctr: &CtrAccessor, width: usize, config: &SparseConfig) {
    // Servers count shows and clicks even if they are not pulled.
    match ctr.pull_show_click {
        true => add_accessor(text, "CtrCommonAccessor", width as u64, config.dim),
        false => add_accessor(text, "SparseAccessor", width as u64 + 2, config.dim),
    }
    text.field("embedx_threshold", plain(ctr.embedx_threshold));
    text.inside("ctr_accessor_param", |text| {
        text.field("nonclk_coeff", plain(ctr.nonclk_coeff));
        text.field("click_coeff", plain(ctr.click_coeff));
        text.field("base_threshold", plain(ctr.base_threshold));
        text.field("delta_threshold", plain(ctr.delta_threshold));
        text.field("delta_keep_days", ctr.delta_keep_days);
        text.field("show_click_decay_rate", plain(ctr.show_click_decay_rate));
        text.field("delete_threshold", plain(ctr.delete_threshold));
        text.field("delete_after_unseen_days", ctr.delete_after_unseen_days);
        text.field("show_scale", ctr.show_scale);
    });
    let bounds = ctr.embed_bounds.or(config.weight_bounds);
    text.inside("embed_sgd_param", |text| add_row_rule(text, &ctr.embed_rule, bounds));
    let bounds = config.weight_bounds;
    text.inside("embedx_sgd_param", |text| add_row_rule(text, &config.rule, bounds));
}

fn add_row_rule(text: &mut Text, rule: &Rule, bounds: Option<[f32; 2]>) {
    let (name, part, facts): (_, _, Vec<(&str, f32)>) = match rule {
        Rule::Sgd(rule) => ("SparseNaiveSGDRule", "naive", vec![("learning_rate", rule.lr)]),
        Rule::CtrAdagrad(rule) => (
            "SparseAdaGradSGDRule",
            "adagrad",
            vec![("learning_rate", rule.lr), ("initial_g2sum", rule.initial_g2sum)],
        ),
        Rule::StdAdagrad(rule) => (
            "StdAdaGradSGDRule",
            "adagrad",
            vec![("learning_rate", rule.lr), ("initial_g2sum", rule.initial_g2sum)],
        ),
        Rule::Adam(rule) => {
            ("SparseAdamSGDRule", "adam", adam_facts(rule.lr, rule.beta1, rule.beta2, rule.epsilon))
        }
        Rule::SharedAdam(rule) => (
            "SparseSharedAdamSGDRule",
            "adam",
            adam_facts(rule.lr, rule.beta1, rule.beta2, rule.epsilon),
        ),
        // The optimizer's own rule, for which the documents have no name.
        Rule::Momentum(it) => (rule.name(), rule.name(), vec![("learning_rate", it.lr)]),
        Rule::Adagrad(it) => (rule.name(), rule.name(), vec![("learning_rate", it.lr)]),
    };
    text.quoted("name", name);
    text.inside(part, |text| {
        facts.iter().for_each(|(name, value)| text.field(name, plain(*value)));
        for bound in bounds.into_iter().flatten() {
            text.field("weight_bounds", plain(bound));
        }
    });
}

fn adam_facts(lr: f32, beta1: f32, beta2: f32, epsilon: f32) -> Vec<(&'static str, f32)> {
    vec![
        ("learning_rate", lr),
        ("beta1_decay_rate", beta1),
        ("beta2_decay_rate", beta2),
        ("ada_epsilon", epsilon),
    ]
}

/// Name, size and initializer of each of a rule's numbers.
type Numbers = Vec<(&'static str, usize, String)>;

/// Returns the documented name of a rule, its numbers for `len` weights, and its attributes.
fn numbers(rule: &Rule, len: usize, init: String) -> (&'static str, Numbers, String) {
    let param = ("Param", len, init);
    let rate = |lr| ("LearningRate", 1, fill(lr));
    let adam = |lr, beta1, beta2, epsilon, moment_len: usize| {
        let numbers = vec![
            param.clone(),
            ("Moment1", moment_len, fill(0.0)),
            ("Moment2", moment_len, fill(0.0)),
            ("Beta1Pow", 1, fill(beta1)),
            ("Beta2Pow", 1, fill(beta2)),
            rate(lr),
        ];
        let (beta1, beta2, epsilon) = (plain(beta1), plain(beta2), plain(epsilon));
        (numbers, format!("beta1&{beta1}#beta2&{beta2}#epsilon&{epsilon}"))
    };
    let (name, (numbers, attr)) = match rule {
        Rule::Sgd(it) => ("sgd", (vec![param, rate(it.lr)], String::new())),
        Rule::Momentum(it) => {
            let attr = format!("mu&{}#use_nesterov&{}", plain(it.mu), it.nesterov);
            ("momentum", (vec![param, ("Velocity", len, fill(0.0)), rate(it.lr)], attr))
        }
        Rule::Adagrad(it) => {
            let moment = ("Moment", len, fill(it.initial_accumulator));
            (
                "adagrad",
                (vec![param, moment, rate(it.lr)], format!("epsilon&{}", plain(it.epsilon))),
            )
        }
        Rule::CtrAdagrad(it) => {
            let attr = format!("initial_g2sum&{}", plain(it.initial_g2sum));
            ("naive_adagrad", (vec![param, ("G2Sum", 1, fill(0.0)), rate(it.lr)], attr))
        }
        Rule::StdAdagrad(it) => {
            let attr = format!("initial_g2sum&{}", plain(it.initial_g2sum));
            ("std_adagrad", (vec![param, ("G2Sum", len, fill(0.0)), rate(it.lr)], attr))
        }
        Rule::Adam(it) => ("adam", adam(it.lr, it.beta1, it.beta2, it.epsilon, len)),
        Rule::SharedAdam(it) => ("shared_adam", adam(it.lr, it.beta1, it.beta2, it.epsilon, 1)),
    };
    (name, numbers, attr)
}

fn fill(value: f32) -> String {
    format!("fill_constant&{}", twelve_digits(value))
}

fn drawn(name: &str, seed: u64, first: f32, second: f32) -> String {
    format!("{name}&{seed}&{}&{}", twelve_digits(first), twelve_digits(second))
}

/// Shows a number with the digits that tell it from others: 0.9, 1e-08.
fn plain(value: f32) -> String {
    python(&format!("{value:e}"))
}

/// Shows the value of a number in memory with 12 digits, as the documents do: 0.899999976158.
fn twelve_digits(value: f32) -> String {
    let text = python(&format!("{:.11e}", f64::from(value)));
    if text.contains(['.', 'e', 'n']) { text } else { text + ".0" }
}

/// Returns a number in scientific form as Python shows it.
fn python(scientific: &str) -> String {
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific.to_string();
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa),
    };
    let digits = mantissa.replace('.', "");
    let digits = match digits.trim_end_matches('0') {
        "" => "0",
        digits => digits,
    };
    if !(-4..12).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let (minus, size) = (if exponent < 0 { '-' } else { '+' }, exponent.abs());
        return format!("{sign}{first}{point}{rest}e{minus}{size:02}");
    }
    if exponent < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1));
    }
    let whole = exponent as usize + 1;
    match digits.split_at_checked(whole) {
        Some((whole, "")) => format!("{sign}{whole}"),
        Some((whole, rest)) => format!("{sign}{whole}.{rest}"),
        None => format!("{sign}{digits:0<whole$}"),
    }
}

/// Text with a field a line.
#[derive(Default)]
struct Text {
    out: String,
    depth: usize,
}

impl Text {
    fn line(&mut self, line: impl Display) {
        self.out += &format!("{:indent$}{line}\n", "", indent = self.depth * 2);
    }

    fn field(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name}: {value}"));
    }

    fn quoted(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name}: {:?}", value.to_string()));
    }

    fn inside(&mut self, name: &str, add: impl FnOnce(&mut Text)) {
        self.line(format_args!("{name} {{"));
        self.depth += 1;
        add(self);
        self.depth -= 1;
        self.line("}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_documented() {
        let values = [0.0, 0.9, 0.999, 1e-4, 0.072_932_5, -1.5, 1e20, 12.0];
        let words = [
            "0.0",
            "0.899999976158",
            "0.999000012875",
            "9.99999974738e-05",
            "0.0729324966669",
            "-1.5",
            "1.00000002004e+20",
            "12.0",
        ];
        assert_eq!(values.map(twelve_digits), words);
        let values = [0.0, 0.9, 1e-8, 3e-5, 10.0, -0.25, 123_456.7];
        let words = ["0", "0.9", "1e-08", "3e-05", "10", "-0.25", "123456.7"];
        assert_eq!(values.map(plain), words);
    }
}
