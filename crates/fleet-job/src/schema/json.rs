//! The JSON schema of job files, by which editors check and complete them.

use super::{JOB, Kind, Table};
use serde_json::{Map, Value, json};

/// Returns the JSON schema (draft 2020-12).
pub fn json_schema() -> Value {
    let mut schema = table(&JOB);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!("Fleet job file");
    schema
}

fn table(of: &Table) -> Value {
    let mut properties = Map::new();
    for field in of.fields {
        let mut value = kind(&field.kind);
        value["description"] = match field.default {
            "" => json!(field.about),
            default => json!(format!("{} (default: {default})", field.about)),
        };
        properties.insert(field.name.to_string(), value);
    }
    let required: Vec<&str> =
        of.fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn kind(of: &Kind) -> Value {
    match of {
        Kind::Text => json!({ "type": "string" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int(min, i64::MAX) => json!({ "type": "integer", "minimum": min }),
        Kind::Int(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Number(min, max) => {
            let mut value = json!({ "type": "number" });
            for (key, limit) in [("minimum", min), ("maximum", max)] {
                if limit.is_finite() {
                    value[key] = json!(limit);
                }
            }
            value
        }
        Kind::Choice(choices) => {
            let choices =
                choices.iter().map(|(name, about)| json!({ "const": name, "description": about }));
            json!({ "oneOf": choices.collect::<Vec<_>>() })
        }
        Kind::List(item, least) => {
            json!({ "type": "array", "items": kind(item), "minItems": least })
        }
        Kind::Table(of) => table(of),
        Kind::Map(value) => json!({ "type": "object", "additionalProperties": kind(value) }),
        Kind::Any => json!({}),
        Kind::Either(kinds) => json!({ "anyOf": kinds.iter().map(kind).collect::<Vec<_>>() }),
    }
}
