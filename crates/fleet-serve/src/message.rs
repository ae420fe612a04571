//! The messages of `proto/serve.proto`, written by hand so that no build needs a protobuf compiler.

use fleet_base::{Error, Result};
use fleet_job::serving::{RequestColumn, Wanted};
use prost::Message;

/// Full name of the gRPC service.
pub const SERVICE: &str = "fleet.serve.v1.Predictor";
/// The call that scores rows.
pub const PREDICT: &str = "/fleet.serve.v1.Predictor/Predict";
/// The call that recommends items.
pub const RECOMMEND: &str = "/fleet.serve.v1.Predictor/Recommend";
/// The call that describes the model.
pub const MODEL: &str = "/fleet.serve.v1.Predictor/Model";

/// Rows as columns.
#[derive(Clone, PartialEq, Message)]
pub struct PredictRequest {
    /// The columns, each with a value for each row.
    #[prost(message, repeated, tag = "1")]
    pub columns: Vec<Column>,
}

/// The values of a column: texts, numbers or integers.
#[derive(Clone, PartialEq, Message)]
pub struct Column {
    /// Name of the column.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A text for each row; the empty text is a missing value.
    #[prost(string, repeated, tag = "2")]
    pub texts: Vec<String>,
    /// A number for each row; NaN is a missing value.
    #[prost(float, repeated, tag = "3")]
    pub numbers: Vec<f32>,
    /// An integer for each row.
    #[prost(sint64, repeated, tag = "4")]
    pub integers: Vec<i64>,
    /// Lists of texts: the number of texts of each row.
    #[prost(uint32, repeated, tag = "5")]
    pub lengths: Vec<u32>,
}

/// The scores of rows.
#[derive(Clone, PartialEq, Message)]
pub struct PredictAnswer {
    /// Scores, row after row.
    #[prost(float, repeated, tag = "1")]
    pub scores: Vec<f32>,
    /// 1, or the number of classes or labels.
    #[prost(uint32, tag = "2")]
    pub scores_per_row: u32,
    /// Version of the model.
    #[prost(uint64, tag = "3")]
    pub version: u64,
}

/// Users as columns, and how many items each gets.
#[derive(Clone, PartialEq, Message)]
pub struct RecommendRequest {
    /// The columns of users, each with a value for each of them. The column `exclude` has items
    /// that are left out.
    #[prost(message, repeated, tag = "1")]
    pub columns: Vec<Column>,
    /// Items of each user; 0 for 10.
    #[prost(uint32, tag = "2")]
    pub count: u32,
    /// Whether items that a user is known to have may be recommended.
    #[prost(bool, tag = "3")]
    pub include_known: bool,
}

/// The best items for users.
#[derive(Clone, PartialEq, Message)]
pub struct RecommendAnswer {
    /// Names of the items of all users, one user after the other, best first.
    #[prost(string, repeated, tag = "1")]
    pub items: Vec<String>,
    /// Score of each item.
    #[prost(float, repeated, tag = "2")]
    pub scores: Vec<f32>,
    /// Number of items of each user.
    #[prost(uint32, repeated, tag = "3")]
    pub lengths: Vec<u32>,
    /// Version of the model.
    #[prost(uint64, tag = "4")]
    pub version: u64,
}

/// Asks for a description of the model.
#[derive(Clone, PartialEq, Message)]
pub struct ModelRequest {}

/// A description of the model.
#[derive(Clone, PartialEq, Message)]
pub struct ModelAnswer {
    /// Version of the model.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Of a task with several classes, in the order of the scores.
    #[prost(string, repeated, tag = "2")]
    pub classes: Vec<String>,
    /// Task, columns and report, as `GET /v1/model` returns them.
    #[prost(string, tag = "3")]
    pub json: String,
    /// Of a model with several labels, in the order of the scores.
    #[prost(string, repeated, tag = "4")]
    pub labels: Vec<String>,
}

/// Returns the values of columns. Fails if one has values of two kinds.
pub(crate) fn columns(columns: &[Column]) -> Result<Vec<(&str, RequestColumn<'_>)>> {
    columns.iter().map(|column| Ok((column.name.as_str(), column.values()?))).collect()
}

impl RecommendRequest {
    /// Returns what each user wants.
    pub(crate) fn wanted(&self) -> Wanted {
        let count = (self.count > 0).then_some(self.count);
        Wanted { count, includes_known: self.include_known }
    }
}

impl Column {
    fn values(&self) -> Result<RequestColumn<'_>> {
        let kinds = [
            !self.texts.is_empty() || !self.lengths.is_empty(),
            !self.numbers.is_empty(),
            !self.integers.is_empty(),
        ];
        if kinds.iter().filter(|is_used| **is_used).count() > 1 {
            return Err(Error::invalid(format!("column '{}' has values of two kinds", self.name))
                .expected("texts, numbers or integers"));
        }
        Ok(match kinds {
            [_, true, _] => RequestColumn::Numbers(&self.numbers),
            [_, _, true] => RequestColumn::Integers(&self.integers),
            _ if self.lengths.is_empty() => RequestColumn::Texts(&self.texts),
            _ => RequestColumn::Lists { texts: &self.texts, lengths: &self.lengths },
        })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    /// Each field of the messages is in the file, with its number.
    #[test]
    fn the_file_has_the_same_fields() {
        let file = include_str!("../proto/serve.proto");
        let code = include_str!("message.rs").split("#[cfg(test)]").next().unwrap_or_default();
        let lines: Vec<&str> = code.lines().map(str::trim).collect();
        let mut count = 0;
        for pair in lines.windows(2).filter(|pair| pair[0].starts_with("#[prost(")) {
            let name = pair[1].trim_start_matches("pub ").split(':').next().unwrap_or_default();
            let tag = pair[0].split('"').nth(1).unwrap_or_default();
            assert!(file.contains(&format!(" {name} = {tag};")), "{name} = {tag}");
            count += 1;
        }
        assert_eq!(count, file.matches(" = ").count() - 1);
        let column = super::Column { integers: vec![-1], ..Default::default() };
        assert_eq!(column.encode_to_vec(), [34, 1, 1]);
    }
}
