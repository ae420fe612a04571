//! The service's description for reflection, parsed from `proto/control.proto`.
//!
//! The file uses a part of the language, with one statement a line: messages of scalars, messages
//! and enums; enums; a service of unary calls; comments on lines of their own. Anything else is an
//! error, which a test would find.

use fleet_base::{Error, Result};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};

const SOURCE: &str = include_str!("../../proto/control.proto");
const FILE: &str = "fleet/ps/v1/control.proto";

/// Returns the file as a protobuf compiler would describe it.
pub(super) fn file() -> Result<FileDescriptorProto> {
    parse(SOURCE).map_err(|error| error.at(FILE))
}

/// The block that lines belong to.
enum Block {
    Message(DescriptorProto),
    Enum(EnumDescriptorProto),
    Service(ServiceDescriptorProto),
}

fn parse(source: &str) -> Result<FileDescriptorProto> {
    let mut file = FileDescriptorProto { name: Some(FILE.into()), ..Default::default() };
    let mut block = None;
    for (number, line) in source.lines().enumerate() {
        let line = line.trim().trim_end_matches([';', '{']).trim_end();
        let words: Vec<&str> = line.split_whitespace().collect();
        let strange = || {
            Error::internal("malformed line in the service's description")
                .got(format!("'{line}'"))
                .at(format!("line {}", number + 1))
        };
        match (&mut block, &words[..]) {
            (_, []) => {}
            (_, [first, ..]) if first.starts_with("//") => {}
            (None, ["syntax", "=", syntax]) => file.syntax = Some(syntax.trim_matches('"').into()),
            (None, ["package", package]) => file.package = Some((*package).into()),
            (None, [kind, name]) => {
                let name = Some((*name).to_string());
                block = Some(match *kind {
                    "message" => Block::Message(DescriptorProto { name, ..Default::default() }),
                    "enum" => Block::Enum(EnumDescriptorProto { name, ..Default::default() }),
                    "service" => {
                        Block::Service(ServiceDescriptorProto { name, ..Default::default() })
                    }
                    _ => return Err(strange()),
                });
            }
            (Some(_), ["}"]) => match block.take() {
                Some(Block::Message(message)) => file.message_type.push(message),
                Some(Block::Enum(values)) => file.enum_type.push(values),
                Some(Block::Service(service)) => file.service.push(service),
                None => return Err(strange()),
            },
            (Some(Block::Message(message)), words) => {
                add_field(message, words).ok_or_else(strange)?;
            }
            (Some(Block::Enum(values)), [name, "=", number]) => {
                values.value.push(EnumValueDescriptorProto {
                    name: Some((*name).into()),
                    number: Some(number.parse().map_err(|_| strange())?),
                    options: None,
                });
            }
            (Some(Block::Service(service)), ["rpc", call, "returns", answer]) => {
                let (name, request) =
                    call.trim_end_matches(')').split_once('(').ok_or_else(strange)?;
                let answer = answer.trim_matches(['(', ')']);
                service.method.push(MethodDescriptorProto {
                    name: Some(name.into()),
                    input_type: Some(request.into()),
                    output_type: Some(answer.into()),
                    ..Default::default()
                });
            }
            _ => return Err(strange()),
        }
    }
    qualify(&mut file);
    Ok(file)
}

/// Adds a field to a message: `[repeated | optional] TYPE NAME = NUMBER`.
fn add_field(message: &mut DescriptorProto, words: &[&str]) -> Option<()> {
    let (label, words) = match words {
        ["repeated", rest @ ..] => (Some(Label::Repeated), rest),
        ["optional", rest @ ..] => (Some(Label::Optional), rest),
        rest => (None, rest),
    };
    let [ty, name, "=", number] = words else { return None };
    let mut field = FieldDescriptorProto {
        name: Some((*name).into()),
        number: Some(number.parse().ok()?),
        ..Default::default()
    };
    field.set_label(label.unwrap_or(Label::Optional));
    if label == Some(Label::Optional) {
        // Presence is described as a one-of with one field.
        field.proto3_optional = Some(true);
        field.oneof_index = Some(message.oneof_decl.len() as i32);
        let name = Some(format!("_{name}"));
        message.oneof_decl.push(OneofDescriptorProto { name, options: None });
    }
    match *ty {
        "bool" => field.set_type(Type::Bool),
        "double" => field.set_type(Type::Double),
        "string" => field.set_type(Type::String),
        "uint32" => field.set_type(Type::Uint32),
        "uint64" => field.set_type(Type::Uint64),
        ty => field.type_name = Some(ty.into()),
    }
    message.field.push(field);
    Some(())
}

/// Completes the names of types, and sets whether they are messages or enums.
fn qualify(file: &mut FileDescriptorProto) {
    let package = file.package.clone().unwrap_or_default();
    let full = |name: &mut Option<String>| {
        if let Some(name) = name {
            *name = format!(".{package}.{name}");
        }
    };
    let enums: Vec<Option<String>> = file.enum_type.iter().map(|it| it.name.clone()).collect();
    for field in file.message_type.iter_mut().flat_map(|message| &mut message.field) {
        if field.type_name.is_some() {
            let is_enum = enums.contains(&field.type_name);
            field.set_type(if is_enum { Type::Enum } else { Type::Message });
            full(&mut field.type_name);
        }
    }
    for method in file.service.iter_mut().flat_map(|service| &mut service.method) {
        full(&mut method.input_type);
        full(&mut method.output_type);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::message;
    use std::collections::BTreeSet;

    /// Message, number, label, type, name.
    type Field = (String, i32, String, String, String);

    #[test]
    fn the_documented_messages_are_the_written_ones() {
        let file = file().unwrap();
        let described: BTreeSet<Field> = file
            .message_type
            .iter()
            .flat_map(|message| message.field.iter().map(|field| described(message.name(), field)))
            .chain(file.enum_type.iter().flat_map(|values| {
                values.value.iter().map(|value| {
                    let name = value.name().replace('_', "").to_lowercase();
                    let (label, ty) = (String::new(), String::new());
                    (values.name().to_string(), value.number(), label, ty, name)
                })
            }))
            .collect();
        let written = written(include_str!("message.rs"));
        assert!(described.len() > 40, "{described:#?}");
        assert_eq!(described, written);
    }

    fn described(message: &str, field: &FieldDescriptorProto) -> Field {
        let own = field.type_name().rsplit('.').next().unwrap_or_default();
        let ty = match field.r#type() {
            Type::Message | Type::Enum => own.to_string(),
            other => other.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
        };
        let label = match (field.label(), field.r#type(), field.proto3_optional()) {
            (Label::Repeated, ..) => "repeated",
            (_, Type::Message, _) | (.., true) => "optional",
            _ => "",
        };
        (message.into(), field.number(), label.into(), ty, field.name().into())
    }

    /// Parses the fields from the attributes in `message.rs`.
    fn written(source: &str) -> BTreeSet<Field> {
        let (mut fields, mut message) = (BTreeSet::new(), "");
        let lines: Vec<&str> = source.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let words: Vec<&str> = line.trim_end_matches([',', '{', ' ']).split(' ').collect();
            if let ["pub", "struct" | "enum", name, ..] = words[..] {
                message = name;
            } else if let [name, "=", number] = words[..] {
                let number = number.parse().unwrap();
                let entry = (message.into(), number, String::new(), String::new());
                fields.insert((entry.0, entry.1, entry.2, entry.3, name.to_lowercase()));
            } else if let Some(field) = line.strip_prefix("#[prost(") {
                let (kind, tag) = field.trim_end_matches(")]").split_once(", tag = ").unwrap();
                let (name, inner) = lines[at + 1]["pub ".len()..].split_once(": ").unwrap();
                let inner = inner.rsplit('<').next().unwrap().trim_end_matches(['>', ',']);
                let mut parts = kind.split(", ");
                let ty = match parts.next().unwrap() {
                    "message" => inner,
                    ty => ty.trim_start_matches("enumeration = ").trim_matches('"'),
                };
                let label = parts.next().unwrap_or_default();
                let number = tag.trim_matches('"').parse().unwrap();
                fields.insert((message.into(), number, label.into(), ty.into(), name.into()));
            }
        }
        fields
    }

    #[test]
    fn calls_have_the_paths_that_the_server_knows() {
        let file = file().unwrap();
        let service = &file.service[0];
        let name = format!("{}.{}", file.package(), service.name());
        assert_eq!(name, message::SERVICE);
        let paths = service.method.iter().map(|method| format!("/{name}/{}", method.name()));
        let known = [message::STATISTICS, message::SAVE, message::LOAD, message::SHRINK];
        assert!(paths.eq(known.map(String::from)));
        for method in &service.method {
            for ty in [method.input_type(), method.output_type()] {
                let is_own =
                    |it: &DescriptorProto| ty == format!(".{}.{}", file.package(), it.name());
                assert!(file.message_type.iter().any(is_own), "{ty}");
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for line in
            ["import \"a.proto\";", "message A {\n map<a, b> c = 1;\n}", "service A {\n x\n}"]
        {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains("malformed line"), "{error}");
        }
    }
}
