//! The report as one page without scripts and other files, readable in light and dark.

use super::charts::{class_of, escaped, svg};
use super::{Cell, Chart, Measured, Report, Table, shown};
use fleet_base::text;
use std::fmt::Write;

const STYLE: &str = r#"
:root { color-scheme: light dark; --back: #fff; --text: #1d2430; --soft: #5c6675; --rule: #dde2e8;
  --c0: #1f6fd0; --c1: #d2601a; --c2: #2a8a4a; --c3: #8a4bbd; }
@media (prefers-color-scheme: dark) { :root { --back: #14181e; --text: #e4e8ee; --soft: #98a3b3;
  --rule: #2d3540; --c0: #6aa9f5; --c1: #f0924f; --c2: #63c787; --c3: #c090ec; } }
body { margin: 0 auto; max-width: 1020px; padding: 24px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 32px 0 4px; }
p { margin: 4px 0 12px; color: var(--soft); max-width: 720px; }
.measures { display: flex; flex-wrap: wrap; gap: 12px 36px; margin: 20px 0; }
.measures div { color: var(--soft); } .measures b { display: block; font-size: 24px;
  color: var(--text); font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr));
  gap: 8px 24px; }
figure { margin: 0; } figcaption { font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px; text-align: right; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
td.bar { width: 180px; min-width: 90px; } td.bar i { display: block; height: 10px;
  background: var(--c0); border-radius: 2px; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--soft); } svg .axis { fill: var(--text); }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--rule); } .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.reference { stroke: var(--soft); stroke-dasharray: 5 4; stroke-width: 1.5; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); } circle.c0 { fill: var(--c0); } circle.c1 { fill: var(--c1); }
circle.c2 { fill: var(--c2); } circle.c3 { fill: var(--c3); }
.legend span { margin-right: 16px; } .legend svg { width: 24px; height: 8px; margin-right: 6px; }
"#;

/// Returns the page.
pub fn page(report: &Report) -> String {
    let title = format!("{} for {}", escaped(&report.model), escaped(&report.label));
    let best = report.best_step.map(|step| format!(", best after step {step}")).unwrap_or_default();
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p>{}: {} rows trained in {:.1} s, {} steps{best}.</p>\n",
        escaped(&report.task),
        text::count(report.rows as f64),
        report.seconds,
        report.steps,
    );
    match &report.report {
        Some(measured) => measured_parts(measured, &mut out),
        None => out.push_str("<p>No rows were kept for a test or a validation.</p>\n"),
    }
    out + "</body>\n</html>\n"
}

fn measured_parts(measured: &Measured, out: &mut String) {
    // Writing to a string cannot fail.
    let mut put = |text: std::fmt::Arguments<'_>| _ = out.write_fmt(text);
    let rows = text::count(measured.measure("rows").unwrap_or_default());
    put(format_args!("<div class=\"measures\">\n"));
    put(format_args!("<div><b>{rows}</b>{} rows</div>\n", escaped(&measured.part)));
    for (_, label, value) in measured.measures() {
        put(format_args!("<div><b>{}</b>{}</div>\n", shown(value), escaped(label)));
    }
    put(format_args!("</div>\n<div class=\"charts\">\n"));
    for chart in &measured.charts {
        put(format_args!("{}", figure(chart)));
    }
    put(format_args!("</div>\n"));
    for table in measured.tables.iter().filter(|table| !table.rows.is_empty()) {
        put(format_args!("{}", table_of(table)));
    }
}

fn figure(chart: &Chart) -> String {
    let mut out = format!("<figure><figcaption>{}</figcaption>\n", escaped(&chart.title));
    out.push_str(&svg(chart));
    if chart.series.len() > 1 {
        out.push_str("<p class=\"legend\">");
        for (index, series) in chart.series.iter().enumerate() {
            let _ = write!(
                out,
                "<span><svg viewBox=\"0 0 24 8\"><path class=\"line {}\" d=\"M0 4H24\"/></svg>{}\
                 </span>",
                class_of(index, series),
                escaped(&series.name)
            );
        }
        out.push_str("</p>\n");
    }
    out + "</figure>\n"
}

fn table_of(table: &Table) -> String {
    let mut out = format!("<h2>{}</h2>\n", escaped(&table.title));
    if !table.about.is_empty() {
        let _ = writeln!(out, "<p>{}</p>", escaped(&table.about));
    }
    out.push_str("<div class=\"wide\"><table>\n<tr>");
    for name in &table.columns {
        let _ = write!(out, "<th>{}</th>", escaped(name));
    }
    if table.bars.is_some() {
        out.push_str("<th></th>");
    }
    out.push_str("</tr>\n");
    let value = |row: &[Cell]| match table.bars.and_then(|at| row.get(at)) {
        Some(Cell::Number(Some(value))) => value.max(0.0),
        Some(Cell::Count(count)) => *count as f64,
        _ => 0.0,
    };
    let most = table.rows.iter().map(|row| value(row)).fold(0.0, f64::max);
    for row in &table.rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escaped(&cell.shown()));
        }
        if table.bars.is_some() {
            let share = if most > 0.0 { 100.0 * value(row) / most } else { 0.0 };
            let _ = write!(out, "<td class=\"bar\"><i style=\"width:{share:.1}%\"></i></td>");
        }
        out.push_str("</tr>\n");
    }
    out + "</table></div>\n"
}
