//! Checks single fields against the rules of the schema.

use super::{AssignedValue, walk};
use crate::allowed::*;
use crate::form::literal::float32;
use crate::problem::Problem;
use crate::reflect::Item;
use crate::schema::DistributedStrategy;
use crate::value::Value;
use std::ops::RangeBounds;

pub fn check(strategy: &DistributedStrategy, problems: &mut Vec<Problem>) {
    walk(strategy, "", &mut |seen| problems.extend(problem(seen)));
}

fn problem(seen: &AssignedValue<'_>) -> Option<Problem> {
    let text = match seen.item {
        Item::Float(value) => float32(value),
        item => Value::of(seen.field.kind, item).to_string(),
    };
    let Some(Rule { allowed, why, help }) = &seen.field.rule else {
        let not_finite = number(seen.item).is_some_and(|value| !value.is_finite());
        let message = format!("expected a finite number, got {text}");
        return not_finite.then(|| Problem::error(&*seen.path, message));
    };
    if fits(allowed, seen.item) {
        return None;
    }
    let message = format!("expected {}, got {text}", describe(allowed));
    Some(Problem::error(&*seen.path, message).why(*why).help(format!("use {help}")))
}

fn number(item: Item<'_>) -> Option<f64> {
    match item {
        Item::Int32(value) => Some(value.into()),
        Item::Uint32(value) => Some(value.into()),
        Item::Uint64(value) => Some(value as f64),
        Item::Float(value) => Some(value.into()),
        Item::Double(value) => Some(value),
        Item::Bool(_) | Item::Text(_) | Item::Message(_) => None,
    }
}

fn fits(allowed: &Allowed, item: Item<'_>) -> bool {
    match (allowed, item) {
        (OneOf(known), Item::Text(text)) => known.contains(&text),
        (Range(low, high), item) => {
            number(item).is_some_and(|value| value.is_finite() && (*low, *high).contains(&value))
        }
        _ => false,
    }
}

fn describe(allowed: &Allowed) -> String {
    let (low, high) = match allowed {
        OneOf(known) => return format!("one of {}", known.join(", ")),
        Range(low, high) => (low, high),
    };
    match (low, high) {
        (Included(low), Included(high)) => format!("{low} to {high}"),
        (Excluded(low), Included(high)) => format!("more than {low} and at most {high}"),
        (Included(low), Excluded(high)) => format!("at least {low} and less than {high}"),
        (Excluded(low), Excluded(high)) => format!("more than {low} and less than {high}"),
        (Included(low), Unbounded) => format!("at least {low}"),
        (Excluded(low), Unbounded) => format!("more than {low}"),
        (Unbounded, Included(high)) => format!("at most {high}"),
        (Unbounded, Excluded(high)) => format!("less than {high}"),
        (Unbounded, Unbounded) => "a finite number".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reflect::{Field, Kind, Reflect, Scalar, Shape};

    /// Passes every field with a rule to `visit`, with the numbers of the fields that lead to its
    /// message.
    fn each_rule(
        shape: &'static Shape,
        way: &mut Vec<u32>,
        visit: &mut dyn FnMut(&[u32], &'static Field, &'static Rule),
    ) {
        for field in shape.fields {
            if let Some(rule) = &field.rule {
                visit(way, field, rule);
            }
            if let Kind::Message(nested) = field.kind {
                way.push(field.number);
                each_rule(nested(), way, visit);
                way.pop();
            }
        }
    }

    /// Returns a value that a rule does not allow.
    fn wrong(kind: Kind, allowed: &Allowed) -> Scalar {
        let value = match allowed {
            OneOf(_) => return Scalar::Text("no such".into()),
            Range(Included(low), _) => low - 1.0,
            Range(Excluded(low), _) => *low,
            Range(Unbounded, Included(high) | Excluded(high)) => high + 1.0,
            Range(Unbounded, Unbounded) => f64::NAN,
        };
        match kind {
            Kind::Int32 => Scalar::Int32(value as i32),
            Kind::Uint32 => Scalar::Uint32(value as u32),
            Kind::Uint64 => Scalar::Uint64(value as u64),
            Kind::Float => Scalar::Float(value as f32),
            _ => Scalar::Double(value),
        }
    }

    /// Every rule allows the field's default, and reports the field, the allowed values, the
    /// reason, and help.
    #[test]
    fn every_rule_is_told() {
        let mut count = 0;
        each_rule(DistributedStrategy::describe(), &mut Vec::new(), &mut |way, field, rule| {
            let (name, Rule { allowed, why, help }) = (field.name, rule);
            assert!(!why.is_empty() && !help.is_empty());
            if let Some(item) = field.default_item().filter(|_| !field.repeated) {
                assert!(fits(allowed, item), "{name}");
            }
            let mut strategy = DistributedStrategy::new();
            let mut at: &mut dyn Reflect = &mut strategy;
            for number in way {
                at = at.slot_mut(*number).open().expect("a message");
            }
            assert!(at.slot_mut(field.number).put(wrong(field.kind, allowed)), "{name}");
            let problems = strategy.check_fields();
            let reported = problems.iter().find(|it| {
                it.is_error() && it.path.trim_end_matches("[0]").ends_with(name) && it.why == *why
            });
            let reported = reported.unwrap_or_else(|| panic!("{name}: {problems:?}"));
            let expected = format!("expected {}, got ", describe(allowed));
            assert!(
                reported.message.starts_with(&expected) && reported.help == format!("use {help}"),
                "{reported}"
            );
            count += 1;
        });
        assert!(count >= 90, "{count} rules");
    }
}
