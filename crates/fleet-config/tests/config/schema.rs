//! Numbers, types and defaults are those recorded in `vectors/schema-2.6.2.txt`; all other fields
//! are Fleet's own.

use fleet_config::{DistributedJobInfo, Field, Item, Kind, Shape};
use std::collections::BTreeMap;

const RECORDED: &str = include_str!("../vectors/schema-2.6.2.txt");
const OWN: [&str; 10] = [
    "AsyncConfig.enable_dc_asgd",
    "AsyncConfig.non_finite",
    "AsyncConfig.non_finite_limit",
    "DistributedStrategy.fp16_allreduce_dtype",
    "HybridConfig.mp_split_sequence",
    "HybridConfig.order",
    "HybridConfig.split_classes",
    "MpConfig.sync_param_name",
    "PipelineConfig.virtual_stages",
    "TableParameter.row_count_max",
];

/// Returns every message that is reachable from a job's description.
pub fn shapes() -> BTreeMap<&'static str, &'static Shape> {
    let mut found = BTreeMap::new();
    let mut open = vec![DistributedJobInfo::describe()];
    while let Some(shape) = open.pop() {
        if found.insert(shape.name, shape).is_none() {
            open.extend(shape.fields.iter().filter_map(|field| match field.kind {
                Kind::Message(nested) => Some(nested()),
                _ => None,
            }));
        }
    }
    found
}

fn line(shape: &Shape, field: &Field) -> String {
    let label = if field.repeated { "repeated" } else { "optional" };
    let default = if field.repeated { String::new() } else { default(field) };
    let line = format!(
        "{}.{} {} {label} {} {default}",
        shape.name,
        field.name,
        field.number,
        field.kind.name()
    );
    line.trim_end().to_string()
}

pub fn default(field: &Field) -> String {
    match field.default_item() {
        Some(Item::Bool(value)) => value.to_string(),
        Some(Item::Int32(value)) => match field.kind {
            Kind::Enum(shape) => shape.name_of(value).expect("a known value").to_string(),
            _ => value.to_string(),
        },
        Some(Item::Uint32(value)) => value.to_string(),
        Some(Item::Uint64(value)) => value.to_string(),
        Some(Item::Float(value)) => format!("{value:?}"),
        Some(Item::Double(value)) => format!("{value:?}"),
        Some(Item::Text(value)) => value.to_string(),
        Some(Item::Message(_)) | None => String::new(),
    }
}

#[test]
fn fields_are_the_recorded_ones() {
    let mut found: Vec<String> = Vec::new();
    for shape in shapes().values() {
        let own = |field: &&Field| !OWN.contains(&&*format!("{}.{}", shape.name, field.name));
        found.extend(shape.fields.iter().filter(own).map(|field| line(shape, field)));
    }
    let recorded: Vec<&str> = RECORDED.lines().filter(|line| !line.starts_with("enum ")).collect();
    assert_eq!(found.len(), recorded.len());
    for (found, recorded) in found.iter().zip(recorded) {
        assert_eq!(found, recorded);
    }
}

#[test]
fn enums_are_the_recorded_ones() {
    let mut found = BTreeMap::new();
    for field in shapes().values().flat_map(|shape| shape.fields) {
        if let Kind::Enum(shape) = field.kind {
            let values: Vec<String> =
                shape.values.iter().map(|(name, number)| format!("{name}={number}")).collect();
            found.insert(shape.name, format!("enum {} {}", shape.name, values.join(" ")));
        }
    }
    let recorded: Vec<&str> = RECORDED.lines().filter(|line| line.starts_with("enum ")).collect();
    assert_eq!(found.into_values().collect::<Vec<_>>(), recorded);
}

#[test]
fn fields_stand_in_order_and_say_what_they_do() {
    for shape in shapes().values() {
        assert!(!shape.doc.is_empty(), "{}", shape.name);
        assert!(shape.fields.is_sorted_by_key(|field| field.number), "{}", shape.name);
        for field in shape.fields {
            assert!(!field.doc.is_empty(), "{}.{}", shape.name, field.name);
        }
    }
}
