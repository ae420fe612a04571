//! Names of columns within nested records: `user.age` is the field `age` of `user`, or a field with
//! this whole name.

use super::category_hash;

/// The fields of nested records that lead to columns.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTree {
    nodes: Vec<Node>,
}

/// The known fields of a record.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Sorted by the hash of the name.
    fields: Vec<(u64, NamedField)>,
}

/// A field by its name: a column, a record with further fields, or both.
#[derive(Clone, Debug)]
pub(super) struct NamedField {
    name: Box<[u8]>,
    /// The place of the column among those to be read.
    pub column: Option<usize>,
    /// The record of the fields below.
    pub below: Option<usize>,
}

impl NameTree {
    /// The record that contains all others.
    pub const ROOT: usize = 0;

    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> NameTree {
        let mut tree = NameTree { nodes: vec![Node::default()] };
        for (column, name) in names.into_iter().enumerate() {
            tree.field(NameTree::ROOT, name).column = Some(column);
            let mut parts = name.split('.').peekable();
            let mut node = NameTree::ROOT;
            while let Some(part) = parts.next() {
                if parts.peek().is_none() {
                    tree.field(node, part).column = Some(column);
                    break;
                }
                let next = tree.nodes.len();
                let below = *tree.field(node, part).below.get_or_insert(next);
                if below == next {
                    tree.nodes.push(Node::default());
                }
                node = below;
            }
        }
        tree
    }

    /// Returns the field of a record with this name, if it is known.
    pub fn find(&self, node: usize, name: &[u8]) -> Option<&NamedField> {
        let (fields, hash) = (&self.nodes[node].fields, category_hash(name));
        let first = fields.partition_point(|(other, _)| *other < hash);
        let same = fields[first..].iter().take_while(|(other, _)| *other == hash);
        same.map(|(_, field)| field).find(|field| *field.name == *name)
    }

    /// Returns the field of a record with this name, and adds it if it is new.
    fn field(&mut self, node: usize, name: &str) -> &mut NamedField {
        let (fields, hash) = (&mut self.nodes[node].fields, category_hash(name.as_bytes()));
        let known = fields.iter().position(|(_, field)| *field.name == *name.as_bytes());
        let at = known.unwrap_or_else(|| {
            let at = fields.partition_point(|(other, _)| *other < hash);
            let field = NamedField { name: name.as_bytes().into(), column: None, below: None };
            fields.insert(at, (hash, field));
            at
        });
        &mut fields[at].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_records() {
        let tree = NameTree::new(["age", "user.age", "user.home.city", "user"]);
        let column = |node: usize, name: &str| tree.find(node, name.as_bytes())?.column;
        let below = |node: usize, name: &str| tree.find(node, name.as_bytes())?.below;
        let user = below(NameTree::ROOT, "user").unwrap();
        let home = below(user, "home").unwrap();
        assert_eq!(column(NameTree::ROOT, "age"), Some(0));
        assert_eq!(column(NameTree::ROOT, "user"), Some(3));
        assert_eq!(column(NameTree::ROOT, "user.age"), Some(1));
        assert_eq!((column(user, "age"), column(home, "city")), (Some(1), Some(2)));
        assert_eq!((column(user, "city"), below(home, "city")), (None, None));
    }
}
