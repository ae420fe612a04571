//! Tables and charts of a binary task: deciles of the scores, calibration, gain, and curves.

use super::charts::{POINTS, diagonal, line};
use super::{Cell, Chart, Table};
use crate::scoring::Scored;
use fleet_base::Result;
use fleet_metrics::{RankedScores, ScoreGroup};

/// Groups of rows with neighbouring scores.
const GROUPS: usize = 10;

pub fn parts(scored: &Scored) -> Result<(Vec<Table>, Vec<Chart>)> {
    let rows: Vec<usize> = (0..scored.labels.len()).collect();
    let ranked = scored.ranked(&rows, &scored.labels)?;
    let groups = ranked.groups(GROUPS);
    let tables = vec![deciles(&ranked, &groups)];
    let mut charts = vec![calibration(&groups)];
    if ranked.positives() > 0.0 {
        charts.push(gain(&ranked, &groups));
    }
    charts.push(Chart {
        key: "roc".to_string(),
        title: "ROC curve".to_string(),
        x: "false positive rate".to_string(),
        y: "true positive rate".to_string(),
        series: vec![line("model", ranked.roc(POINTS)), diagonal("chance")],
    });
    charts.push(Chart {
        key: "precision_recall".to_string(),
        title: "Precision and recall".to_string(),
        x: "recall".to_string(),
        y: "precision".to_string(),
        series: vec![line("model", ranked.precision_recall(POINTS))],
    });
    Ok((tables, charts.into_iter().filter(|chart| !chart.series[0].points.is_empty()).collect()))
}

/// The rows in ten groups, the highest scores first.
fn deciles(ranked: &RankedScores, groups: &[ScoreGroup]) -> Table {
    let all = ranked.positives() / ranked.weight();
    let mut found = 0.0;
    let row = |(index, group): (usize, &ScoreGroup)| {
        found += group.positives;
        vec![
            Cell::text((index + 1).to_string()),
            Cell::count(group.rows),
            Cell::number(group.mean_score()),
            Cell::number(group.rate()),
            Cell::number(group.rate() / all),
            Cell::number(found / ranked.positives()),
        ]
    };
    Table {
        key: "deciles".to_string(),
        title: "Deciles of the scores".to_string(),
        about: "Rows in ten groups, the highest scores first. Lift: positives of the group \
                compared with those of all rows. Gain: share of all positives down to the group."
            .to_string(),
        columns: ["decile", "rows", "mean score", "positives", "lift", "gain"]
            .map(str::to_string)
            .to_vec(),
        rows: groups.iter().enumerate().map(row).collect(),
        brief: GROUPS,
        bars: Some(4),
    }
}

fn calibration(groups: &[ScoreGroup]) -> Chart {
    let points = groups.iter().rev().map(|group| [group.mean_score(), group.rate()]).collect();
    Chart {
        key: "calibration".to_string(),
        title: "Calibration".to_string(),
        x: "mean score of a decile".to_string(),
        y: "share of positives".to_string(),
        series: vec![line("model", points), diagonal("calibrated")],
    }
}

fn gain(ranked: &RankedScores, groups: &[ScoreGroup]) -> Chart {
    let (mut weight, mut found) = (0.0, 0.0);
    let mut points = vec![[0.0, 0.0]];
    for group in groups {
        weight += group.weight;
        found += group.positives;
        points.push([weight / ranked.weight(), found / ranked.positives()]);
    }
    Chart {
        key: "gain".to_string(),
        title: "Gain".to_string(),
        x: "share of the rows, highest scores first".to_string(),
        y: "share of all positives".to_string(),
        series: vec![line("model", points), diagonal("random order")],
    }
}
