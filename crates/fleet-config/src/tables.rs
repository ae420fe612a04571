//! Two key/value descriptions of sparse tables, and their conversion to `downpour_table_param`.

use crate::form::document::join;
use crate::problem::Problem;
use crate::reflect::{Field, Kind, Reflect, Shape, Slot};
use crate::schema::*;
use crate::value::Value::{self, Bool, Float, Int};
use crate::value::{expected_type, with_hint, wrong_value};
use fleet_base::{Error, Result};
use std::collections::BTreeSet;

/// Converts flat maps by table name, with keys such as
/// `table_parameters.NAME.accessor.embed_sgd_param.adam.learning_rate`. For a repeated message,
/// `PATH.num` gives the count; its fields may then be lists with one value per message. Keys that
/// are no path of a field are ignored with a notice.
pub fn sparse_table_configs(
    strategy: &mut DistributedStrategy,
    value: &Value,
) -> Result<Vec<Problem>> {
    let mut notices = Vec::new();
    for (name, configs) in tables(value, "sparse_table_configs")? {
        let mut table = TableParameter::default().with_table_name(name);
        let root = format!("table_parameters.{name}");
        let mut flat = Flat { configs, used: BTreeSet::new() };
        flat.message(&mut table, &root, 0)?;
        strategy.downpour_table_param.push(table);
        for (key, _) in configs.iter().filter(|(key, _)| !flat.used.contains(key.as_str())) {
            notices.push(
                Problem::warning(
                    "sparse_table_configs",
                    format!("'{key}' is not the path of a field"),
                )
                .why("the key is ignored")
                .help(format!("use paths of fields after {root}.")),
            );
        }
    }
    Ok(notices)
}

/// Limit of repeated messages in a flat description; a table has two.
const REPEATED_MAX: i128 = 1024;

struct Flat<'v> {
    configs: &'v [(String, Value)],
    used: BTreeSet<&'v str>,
}

impl<'v> Flat<'v> {
    fn find(&mut self, key: &str) -> Option<&'v Value> {
        let (key, value) = self.configs.iter().rev().find(|(known, _)| known == key)?;
        self.used.insert(key);
        Some(value)
    }

    /// Returns whether any key is a path into this message; otherwise the message stays unassigned.
    fn has_keys_in(&self, path: &str) -> bool {
        let inside = |key: &str| key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        self.configs.iter().any(|(key, _)| inside(key))
    }

    fn message(&mut self, target: &mut dyn Reflect, path: &str, index: usize) -> Result<()> {
        for field in target.shape().fields {
            let path = join(path, field.name);
            let slot = target.slot_mut(field.number);
            if !field.is_message() {
                let Some(value) = self.find(&path) else { continue };
                put_all(slot, field, value, index, &path)?;
                continue;
            }
            let count = match field.repeated {
                false => i128::from(self.has_keys_in(&path)),
                true => match self.find(&format!("{path}.num")) {
                    Some(Value::Int(count @ 0..=REPEATED_MAX)) => *count,
                    Some(other) => {
                        let limit = format!("an integer from 0 to {REPEATED_MAX}");
                        return Err(wrong_value(&format!("{path}.num"), limit, other));
                    }
                    None => 0,
                },
            };
            for index in 0..count {
                if let Some(message) = slot.open() {
                    self.message(message, &path, index as usize)?;
                }
            }
        }
        Ok(())
    }
}

/// Assigns a field: all values of a list, or the `index`-th if the field is not repeated.
fn put_all(
    slot: &mut dyn Slot,
    field: &Field,
    value: &Value,
    index: usize,
    path: &str,
) -> Result<()> {
    let values = match value {
        Value::List(values) if field.repeated => &values[..],
        Value::List(values) => std::slice::from_ref(values.get(index).unwrap_or(value)),
        value => std::slice::from_ref(value),
    };
    for value in values {
        let scalar = value.scalar(field.kind);
        slot.put(scalar.ok_or_else(|| wrong_value(path, expected_type(field.kind), value))?);
    }
    Ok(())
}

type Configs = [(String, Value)];

/// Returns table names with their maps.
fn tables<'v>(value: &'v Value, name: &str) -> Result<Vec<(&'v str, &'v Configs)>> {
    let wrong = |path: &str, value| wrong_value(path, "a map", value);
    let Value::Map(tables) = value else { return Err(wrong(name, value)) };
    let table = |(table, configs): &'v (String, Value)| match configs {
        Value::Map(configs) => Ok((table.as_str(), &configs[..])),
        other => Err(wrong(&join(name, table), other)),
    };
    tables.iter().map(table).collect()
}

/// Keys for a whole table: the key, the field of the table, and the key's default (or `None`).
static TABLE_KEYS: [(&str, &str, Value); 11] = [
    ("nodeid_slot", "accessor.graph_sgd_param.nodeid_slot", Int(9008)),
    ("feature_learning_rate", "accessor.graph_sgd_param.feature_learning_rate", Float(0.05)),
    ("sparse_shard_num", "shard_num", Int(1000)),
    ("sparse_compress_in_save", "compress_in_save", Value::None),
    ("sparse_enable_cache", "enable_sparse_table_cache", Bool(true)),
    ("sparse_cache_rate", "sparse_table_cache_rate", Float(0.00055)),
    ("sparse_cache_file_num", "sparse_table_cache_file_num", Int(16)),
    ("sparse_enable_revert", "enable_revert", Value::None),
    ("sparse_shard_merge_rate", "shard_merge_rate", Value::None),
    ("sparse_embedx_dim", "accessor.embedx_dim", Int(8)),
    ("sparse_embedx_threshold", "accessor.embedx_threshold", Int(10)),
];

/// Fields of `accessor.ctr_accessor_param` with the defaults of their keys. A key is the name of
/// its field after `sparse_`.
static CLICK_KEYS: [(&str, Value); 13] = [
    ("nonclk_coeff", Float(0.1)),
    ("click_coeff", Float(1.0)),
    ("base_threshold", Float(1.5)),
    ("delta_threshold", Float(0.25)),
    ("delta_keep_days", Float(16.0)),
    ("show_click_decay_rate", Float(0.98)),
    ("delete_threshold", Float(0.8)),
    ("delete_after_unseen_days", Float(30.0)),
    ("ssd_unseenday_threshold", Int(1)),
    ("show_scale", Value::None),
    ("zero_init", Value::None),
    ("load_filter_slots", Value::None),
    ("save_filter_slots", Value::None),
];

/// Keys with special handling.
const OTHER_KEYS: [&str; 4] =
    ["sparse_table_class", "sparse_accessor_class", "sparse_converter", "sparse_deconverter"];

/// Keys of an update rule; with the prefix `embed_` or `embedx_` they apply to one part of the row
/// only.
const RULE_KEYS: [&str; 8] = [
    "sparse_optimizer",
    "sparse_learning_rate",
    "sparse_initial_range",
    "sparse_initial_g2sum",
    "sparse_weight_bounds",
    "sparse_beta1_decay_rate",
    "sparse_beta2_decay_rate",
    "sparse_ada_epsilon",
];

const PARTS: [&str; 2] = ["embed_", "embedx_"];

/// Tables of other kinds, which are skipped.
const NOT_SPARSE: [&str; 2] = ["dense_table", "datanorm_table"];

/// Converts maps of short keys by table name, with their own defaults.
pub fn fleet_desc_configs(strategy: &mut DistributedStrategy, value: &Value) -> Result<()> {
    for (name, configs) in tables(value, "fleet_desc_configs")? {
        if NOT_SPARSE.contains(&name) {
            continue;
        }
        for (key, _) in configs {
            let known = known_keys();
            if !known.contains(key) {
                let error = Error::invalid(format!("unknown key '{key}' in fleet_desc_configs"));
                return Err(with_hint(error, key, known.iter().map(String::as_str)));
            }
        }
        let table = sparse_table(name, configs)
            .map_err(|error| error.at(format!("table {name} of fleet_desc_configs")))?;
        strategy.downpour_table_param.push(table);
    }
    Ok(())
}

/// Returns the keys for a whole table, with the path and the default of each.
fn table_keys() -> impl Iterator<Item = (String, String, &'static Value)> {
    let own =
        TABLE_KEYS.iter().map(|(key, path, default)| (key.to_string(), path.to_string(), default));
    let click = CLICK_KEYS.iter().map(|(field, default)| {
        (format!("sparse_{field}"), format!("accessor.ctr_accessor_param.{field}"), default)
    });
    own.chain(click)
}

fn known_keys() -> BTreeSet<String> {
    let table = table_keys().map(|(key, ..)| key);
    let other = OTHER_KEYS.iter().map(|key| key.to_string());
    let rules = RULE_KEYS.iter().flat_map(|key| {
        [key.to_string(), format!("{}{key}", PARTS[0]), format!("{}{key}", PARTS[1])]
    });
    table.chain(other).chain(rules).collect()
}

/// Returns the last value of a key.
fn last<'v>(configs: &'v Configs, key: &str) -> Option<&'v Value> {
    configs.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value)
}

fn sparse_table(name: &str, configs: &Configs) -> Result<TableParameter> {
    let find = |key: &str| last(configs, key);
    let text = |key: &str, default: &str| match find(key) {
        None => Ok(default.to_string()),
        Some(Value::Str(text)) => Ok(text.clone()),
        Some(other) => Err(wrong_value(key, "a string", other)),
    };
    let mut table = TableParameter::default().with_table_name(name);
    table.set_table_class(table_class(&text("sparse_table_class", "DownpourSparseTable")?)?);
    let accessor = text("sparse_accessor_class", "DownpourCtrAccessor")?;
    table.accessor_mut().set_accessor_class(accessor_class(&accessor)?);
    for (key, path, default) in table_keys() {
        let value = find(&key).or(Some(default).filter(|default| **default != Value::None));
        if let Some(value) = value {
            assign(&mut table, TableParameter::describe(), &path, value, &key)?;
        }
    }
    let dim = table.accessor().embedx_dim();
    let accessor_param = table.accessor_mut();
    // The embedding, its first column, shows and clicks.
    accessor_param.set_fea_dim(dim.saturating_add(3));
    let param = accessor_param.ctr_accessor_param_mut();
    param.show_scale.get_or_insert(accessor != "DownpourUnitAccessor");
    for mode in [1, 2] {
        let save = TableAccessorSaveParameter::default()
            .with_param(mode)
            .with_converter(text("sparse_converter", "")?)
            .with_deconverter(text("sparse_deconverter", "")?);
        accessor_param.table_accessor_save_param.push(save);
    }
    let is_split = !["DownpourCtrAccessor", "DownpourCtrDoubleAccessor"].contains(&&*accessor);
    accessor_param.set_embed_sgd_param(rule(configs, PARTS[0], is_split)?);
    accessor_param.set_embedx_sgd_param(rule(configs, PARTS[1], is_split)?);
    Ok(table)
}

fn table_class(name: &str) -> Result<&'static str> {
    match name {
        "DownpourSparseTable" => Ok("MemorySparseTable"),
        "DownpourSparseSSDTable" => Ok("SSDSparseTable"),
        other => Err(Error::invalid("unknown sparse_table_class")
            .expected("DownpourSparseTable or DownpourSparseSSDTable")
            .got(other)),
    }
}

fn accessor_class(name: &str) -> Result<&'static str> {
    match name {
        "DownpourCtrDoubleAccessor" | "DownpourDoubleUnitAccessor" => Ok("CtrDoubleAccessor"),
        "DownpourCtrDymfAccessor" => Ok("CtrDymfAccessor"),
        "DownpourSparseValueAccessor" | "DownpourCtrAccessor" | "DownpourUnitAccessor" => {
            Ok("CtrCommonAccessor")
        }
        other => Err(Error::invalid("unknown sparse_accessor_class")
            .expected(
                "DownpourSparseValueAccessor, DownpourCtrAccessor, DownpourCtrDoubleAccessor, \
                 DownpourUnitAccessor, DownpourDoubleUnitAccessor or DownpourCtrDymfAccessor",
            )
            .got(other)),
    }
}

/// Returns the rule of one part of the row, from its own keys, the common keys, and the defaults.
fn rule(configs: &Configs, part: &str, is_split: bool) -> Result<SgdParameter> {
    let own = |key: &str| last(configs, &format!("{part}{key}"));
    let find = |key: &str| own(key).or_else(|| last(configs, key)).cloned();
    let optimizer = match find("sparse_optimizer") {
        None => "adagrad".to_string(),
        Some(Value::Str(name)) => name,
        Some(other) => return Err(wrong_value("sparse_optimizer", "a string", &other)),
    };
    let (name, message) = match optimizer.as_str() {
        "naive" => ("SparseNaiveSGDRule", "naive"),
        "adagrad" => ("SparseAdaGradSGDRule", "adagrad"),
        "adagrad_v2" => ("SparseAdaGradV2SGDRule", "adagrad"),
        "std_adagrad" => ("StdAdaGradSGDRule", "adagrad"),
        "adam" => ("SparseAdamSGDRule", "adam"),
        "shared_adam" => ("SparseSharedAdamSGDRule", "adam"),
        other => {
            return Err(Error::invalid("unknown sparse_optimizer")
                .expected("naive, adagrad, adagrad_v2, std_adagrad, adam or shared_adam")
                .got(other));
        }
    };
    // With Adagrad, the first column of a row starts at zero if the accessor treats it separately.
    let range = if message == "adagrad" && part == PARTS[0] && is_split { 0.0 } else { 1e-4 };
    let rate = if message == "adam" { 0.001 } else { 0.05 };
    let defaults: &[(&str, &str, Value)] = &[
        ("sparse_learning_rate", "learning_rate", rate.into()),
        ("sparse_initial_range", "initial_range", range.into()),
        ("sparse_initial_g2sum", "initial_g2sum", 3.0.into()),
        ("sparse_beta1_decay_rate", "beta1_decay_rate", 0.9.into()),
        ("sparse_beta2_decay_rate", "beta2_decay_rate", 0.999.into()),
        ("sparse_ada_epsilon", "ada_epsilon", 1e-8.into()),
        ("sparse_weight_bounds", "weight_bounds", [-10.0, 10.0].into()),
    ];
    let mut rule = SgdParameter::default().with_name(name);
    let shape = SgdParameter::describe();
    let nested = shape.field(message).map(|field| field.kind);
    for (key, field, default) in defaults {
        if matches!(nested, Some(Kind::Message(nested)) if nested().field(field).is_some()) {
            let value = find(key).unwrap_or_else(|| default.clone());
            assign(&mut rule, shape, &join(message, field), &value, key)?;
        }
    }
    Ok(rule)
}

/// Assigns the field at the end of a path, which the caller knows to exist.
fn assign(
    target: &mut dyn Reflect,
    shape: &'static Shape,
    path: &str,
    value: &Value,
    key: &str,
) -> Result<()> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let missing = || Error::internal(format!("{} has no field {name}", shape.name));
    let field = shape.field(name).ok_or_else(missing)?;
    let slot = target.slot_mut(field.number);
    if let (Some(rest), Kind::Message(shape)) = (rest, field.kind) {
        return assign(slot.open().ok_or_else(missing)?, shape(), rest, value, key);
    }
    put_all(slot, field, value, 0, key)
}
