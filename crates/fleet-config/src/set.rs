//! The key/value form for bindings, command lines and configuration files. Its rules are
//! those of `paddle.distributed.fleet`; its messages are not.

use crate::compat;
use crate::form::document::join;
use crate::notices::Notices;
use crate::problem::Problem;
use crate::reflect::{Field, Item, Kind, Reflect, Shape};
use crate::schema::DistributedStrategy;
use crate::tables;
use crate::value::{Value, default_of, effective, expected_type, with_hint, wrong_value};
use fleet_base::{Error, Result};

/// The result of an assignment besides the assigned values.
#[derive(Default)]
struct Outcome {
    notices: Vec<Problem>,
    /// Error for the first value that was ignored because of its type.
    ignored: Option<Error>,
}

impl DistributedStrategy {
    /// Assigns a field by name: a switch or number, or a map for one of the messages.
    ///
    /// Scalars in a map replace, lists append, and `None` for a list is skipped. Fields of a
    /// message that are missing in the map are not changed. A path such as
    /// `amp_configs.decr_ratio` assigns one field of a message. On an error, nothing changes.
    ///
    /// Returns notices: for a switch or number of the wrong type, which is ignored, and for names
    /// of the 1.x interface, which are mapped. Notices that the caller does not read are printed.
    ///
    /// ```
    /// # use fleet_config::{DistributedStrategy, Value};
    /// let mut strategy = DistributedStrategy::new();
    /// strategy.set("amp", true)?;
    /// strategy.set("amp_configs", Value::map([("init_loss_scaling", 1024.into())]))?;
    /// strategy.set("amp_configs.decr_ratio", 0.5)?;
    /// assert_eq!(strategy.amp_configs().init_loss_scaling(), 1024.0);
    ///
    /// let configs = Value::map([("decr_ration", 0.5.into())]);
    /// let error = strategy.set("amp_configs", configs).unwrap_err();
    /// assert_eq!(error.message(), "amp_configs has no field 'decr_ration'");
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<Notices> {
        let (changed, outcome) = self.changed(key, value.into())?;
        *self = changed;
        Ok(Notices::new(outcome.notices))
    }

    /// Like [`set`](Self::set), but a value of the wrong type is an error.
    pub fn set_strictly(&mut self, key: &str, value: impl Into<Value>) -> Result<Notices> {
        let (changed, outcome) = self.changed(key, value.into())?;
        if let Some(error) = outcome.ignored {
            return Err(error);
        }
        *self = changed;
        Ok(Notices::new(outcome.notices))
    }

    /// Returns a copy in which the field is assigned.
    fn changed(&self, key: &str, value: Value) -> Result<(Self, Outcome)> {
        let (mut changed, mut outcome) = (self.clone(), Outcome::default());
        changed.assign(key, value, &mut outcome)?;
        Ok((changed, outcome))
    }

    /// Returns the assigned or default value of a field or path. Messages are maps of all their
    /// fields.
    pub fn get(&self, key: &str) -> Result<Value> {
        let mut value = None;
        let (mut shape, mut message) = (Self::describe(), Some(self as &dyn Reflect));
        for name in key.split('.') {
            let field = shape.field(name).ok_or_else(|| unknown_attribute(name, shape))?;
            value = Some(match message {
                Some(message) => effective(message, field),
                None => default_of(field),
            });
            let Kind::Message(nested) = field.kind else {
                shape = const { &Shape { name: "value", doc: &[], fields: &[] } };
                message = None;
                continue;
            };
            shape = nested();
            message = message.and_then(|message| match message.slot(field.number).first() {
                Some(Item::Message(nested)) => Some(nested),
                _ => None,
            });
        }
        value.ok_or_else(|| unknown_attribute(key, shape))
    }

    fn assign(&mut self, key: &str, value: Value, outcome: &mut Outcome) -> Result<()> {
        match key {
            "sparse_table_configs" => {
                outcome.notices.extend(tables::sparse_table_configs(self, &value)?);
                return Ok(());
            }
            "fleet_desc_configs" => return tables::fleet_desc_configs(self, &value),
            _ => {}
        }
        let (name, rest) = match key.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (key, None),
        };
        let shape = Self::describe();
        let Some(field) = shape.field(name) else {
            return self.renamed(key, name, rest, value, outcome);
        };
        if let Some(rest) = rest {
            let Kind::Message(shape) = field.kind else {
                return Err(Error::invalid(format!("{name} has no fields")).got(key));
            };
            check_path(shape(), name, rest)?;
            return self.configs(field, nested(rest, value));
        }
        match field.kind {
            Kind::Message(_) => self.configs(field, value),
            _ => self.scalar(field, value, outcome),
        }
    }

    /// Assigns through an alias, or an attribute of the 1.x interface.
    fn renamed(
        &mut self,
        key: &str,
        name: &str,
        rest: Option<&str>,
        value: Value,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let shape = Self::describe();
        let renamed =
            compat::renamed(shape.name, name).ok_or_else(|| unknown_attribute(name, shape))?;
        outcome.notices.extend(renamed.notice(key));
        // The 1.x interface accepted the settings of both strategies in one map.
        if let (None, "build_strategy" | "execution_strategy", Value::Map(entries)) =
            (rest, renamed.path.as_ref(), &value)
        {
            for (key, value) in entries {
                let path = match compat::renamed(shape.name, key) {
                    Some(inside) => inside.path.into_owned(),
                    None => format!("{}.{key}", renamed.path),
                };
                self.assign(&path, value.clone(), outcome)?;
            }
            return Ok(());
        }
        let path = match rest {
            Some(rest) => format!("{}.{rest}", renamed.path),
            None => renamed.path.into_owned(),
        };
        self.assign(&path, value, outcome)
    }

    /// Assigns a switch or a number.
    fn scalar(&mut self, field: &Field, value: Value, outcome: &mut Outcome) -> Result<()> {
        let name = field.name;
        let right = match (field.kind, &value) {
            // In Python a bool is an int; here it is an error.
            (Kind::Bool, value) => matches!(value, Value::Bool(_)),
            (_, Value::Bool(_)) => false,
            (kind, value) => value.scalar(kind).is_some(),
        };
        match name {
            "a_sync" | "adam_d2sum" | "fp16_allreduce" if !right => {
                return Err(wrong_value(name, expected_type(field.kind), &value));
            }
            "last_comm_group_size_MB" => {
                let positive = match value {
                    Value::Float(value) => value > 0.0,
                    Value::Int(value) => value > 0,
                    _ => false,
                };
                if !positive || !right {
                    return Err(wrong_value(name, "a number above 0", &value));
                }
            }
            "a_sync" => {
                self.set_a_sync(value == Value::Bool(true));
                return Ok(());
            }
            _ => {}
        }
        match value.scalar(field.kind).filter(|_| right) {
            Some(scalar) => {
                self.slot_mut(field.number).put(scalar);
            }
            None => {
                let expected = expected_type(field.kind);
                let message = format!("expected {expected}, got {value} ({})", value.type_name());
                outcome.ignored.get_or_insert(wrong_value(name, expected, &value));
                let why = "the value is ignored, and the field is unchanged";
                outcome.notices.push(Problem::warning(name, message).why(why));
            }
        }
        Ok(())
    }

    /// Assigns a map to a message; checks all keys before any value.
    fn configs(&mut self, field: &Field, value: Value) -> Result<()> {
        let Kind::Message(shape) = field.kind else { return Ok(()) };
        check_keys(shape(), field, &value)?;
        put(self, field, value, field.name)
    }
}

fn unknown_attribute(name: &str, shape: &Shape) -> Error {
    let error = Error::invalid(format!("{name} is not an attribute of {}", shape.name));
    if name == "fetch_frequency" {
        return error
            .help("every run returns its fetches; a pass prints in DatasetRun::print_period");
    }
    with_hint(error, name, shape.names())
}

/// Returns the error for a name that is not a field of the message `parent`.
fn unknown_field(parent: &str, name: &str, shape: &Shape) -> Error {
    let error = Error::invalid(format!("{parent} has no field '{name}'"));
    with_hint(error, name, shape.names())
}

/// Checks that all names of a path are fields; the error names them as written.
fn check_path<'a>(mut shape: &'static Shape, mut written: &'a str, path: &'a str) -> Result<()> {
    for name in path.split('.') {
        let field = field_of(shape, name).ok_or_else(|| unknown_field(written, name, shape))?;
        written = name;
        match field.kind {
            Kind::Message(nested) => shape = nested(),
            // Names after this one are rejected when the value is assigned.
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Checks that all keys are fields, including those of nested messages.
fn check_keys(shape: &'static Shape, parent: &Field, value: &Value) -> Result<()> {
    let wrong = |key: &str| unknown_field(parent.name, key, shape);
    match value {
        Value::Map(entries) => {
            for (key, value) in entries {
                let field = field_of(shape, key).ok_or_else(|| wrong(key))?;
                if let Kind::Message(nested) = field.kind {
                    check_keys(nested(), field, value)?;
                }
            }
            Ok(())
        }
        Value::List(values) if parent.repeated => values.iter().try_for_each(|value| match value {
            Value::Map(_) => check_keys(shape, parent, value),
            _ => Ok(()),
        }),
        // A list in place of a map is treated like a map whose first key is wrong.
        Value::List(values) => match values.first() {
            Some(Value::Str(key)) => Err(wrong(key)),
            Some(other) => Err(wrong(&other.to_string())),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn field_of(shape: &'static Shape, key: &str) -> Option<&'static Field> {
    let alias = || {
        let renamed = compat::renamed(shape.name, key)?;
        shape.field(&renamed.path)
    };
    shape.field(key).or_else(alias)
}

fn put(target: &mut dyn Reflect, field: &Field, value: Value, path: &str) -> Result<()> {
    let wrong = |value: &Value, path: &str| {
        let expected = match field.repeated {
            true => format!("a list, each item {}", expected_type(field.kind)),
            false => expected_type(field.kind),
        };
        wrong_value(path, expected, value)
    };
    let slot = target.slot_mut(field.number);
    // An order of axes is replaced as a whole, not appended to.
    if field.name == "order" && matches!(value, Value::List(_)) {
        slot.clear();
    }
    let values = match (field.repeated, value) {
        (true, Value::None) => return Ok(()),
        (true, Value::List(values)) => values,
        (true, other) => return Err(wrong(&other, path)),
        // As in `check_keys`, an empty list is an empty map.
        (false, Value::List(values)) if values.is_empty() && field.is_message() => {
            vec![Value::Map(Vec::new())]
        }
        (false, value) => vec![value],
    };
    for value in values {
        match (field.kind, value) {
            (Kind::Message(shape), Value::Map(entries)) => {
                let Some(message) = slot.open() else { return Err(wrong(&Value::None, path)) };
                for (key, value) in entries {
                    let field = field_of(shape(), &key)
                        .ok_or_else(|| Error::internal("keys are checked first"))?;
                    put(message, field, value, &join(path, &key))?;
                }
            }
            (kind, value) => match value.scalar(kind) {
                Some(scalar) => {
                    slot.put(scalar);
                }
                None => return Err(wrong(&value, path)),
            },
        }
    }
    Ok(())
}

/// Converts `a.b` and a value to `{a: {b: value}}`.
fn nested(path: &str, value: Value) -> Value {
    path.rsplit('.').fold(value, |value, key| Value::map([(key, value)]))
}
