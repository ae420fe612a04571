//! Lines of charts, and charts as SVG.

use super::{Chart, Series};
use std::fmt::Write;

/// Points of a line: more are not visible.
pub const POINTS: usize = 200;

/// Returns a line of the model.
pub fn line(name: &str, points: Vec<[f64; 2]>) -> Series {
    Series { name: name.to_string(), points, is_reference: false }
}

/// Returns the line from (0, 0) to (1, 1), for comparison.
pub fn diagonal(name: &str) -> Series {
    Series { name: name.to_string(), points: vec![[0.0, 0.0], [1.0, 1.0]], is_reference: true }
}

/// Size of a chart and of its margins, in units of the SVG.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;
/// Points up to which each has a mark of its own.
const MARKS_MAX: usize = 25;
/// Lines that have a colour of their own; further ones begin again.
const COLOURS: usize = 4;

/// An axis: its ends and the distance of its ticks.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low.is_finite() { (low, high) } else { (0.0, 1.0) };
        let span = if high > low { high - low } else { low.abs().max(1.0) };
        let step = nice(span / 5.0);
        let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
        let last = if last > first { last } else { first + 1.0 };
        Axis { low: first * step, high: last * step, step }
    }

    /// Returns the share of the axis before a value.
    fn share(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = ((self.high - self.low) / self.step).round() as u32;
        let (low, step) = (self.low, self.step);
        (0..=count).map(move |tick| low + f64::from(tick) * step)
    }

    fn label(&self, value: f64) -> String {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 6.0) as usize;
        match value.abs() {
            large if large >= 10_000.0 => fleet_base::text::count(value),
            _ => format!("{value:.decimals$}"),
        }
    }
}

/// Returns 1, 2 or 5 times a power of ten, not below a value.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= value * 0.999);
    factor.unwrap_or(10.0) * power
}

/// Returns a chart as SVG. Colours are classes of the page.
pub fn svg(chart: &Chart) -> String {
    let points = || chart.series.iter().flat_map(|series| series.points.iter());
    let x = Axis::of(points().map(|point| point[0]));
    let y = Axis::of(points().map(|point| point[1]));
    let across = |value: f64| LEFT + x.share(value) * (WIDTH - LEFT - RIGHT);
    let down = |value: f64| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(&chart.title)
    );
    // Writing to a string cannot fail.
    let mut put = |text: std::fmt::Arguments<'_>| _ = out.write_fmt(text);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in y.ticks() {
        let at = down(tick);
        put(format_args!(
            "<path class=\"grid\" d=\"M{LEFT:.1} {at:.1}H{right:.1}\"/>\
             <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            LEFT - 6.0,
            at + 4.0,
            y.label(tick)
        ));
    }
    for tick in x.ticks() {
        let at = across(tick);
        put(format_args!(
            "<path class=\"grid\" d=\"M{at:.1} {TOP:.1}V{bottom:.1}\"/>\
             <text class=\"middle\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>\n",
            bottom + 16.0,
            x.label(tick)
        ));
    }
    put(format_args!(
        "<text class=\"middle axis\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n\
         <text class=\"middle axis\" transform=\"translate(14 {:.1}) rotate(-90)\">{}</text>\n",
        (LEFT + right) / 2.0,
        HEIGHT - 10.0,
        escaped(&chart.x),
        (TOP + bottom) / 2.0,
        escaped(&chart.y)
    ));
    for (index, series) in chart.series.iter().enumerate() {
        let class = class_of(index, series);
        let path: Vec<String> = series
            .points
            .iter()
            .map(|[x, y]| format!("{:.1} {:.1}", across(*x), down(*y)))
            .collect();
        put(format_args!("<path class=\"line {class}\" d=\"M{}\"/>\n", path.join("L")));
        if series.is_reference || series.points.len() > MARKS_MAX {
            continue;
        }
        for [x, y] in &series.points {
            put(format_args!(
                "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\">\
                 <title>{}: {x:.4}, {y:.4}</title></circle>\n",
                across(*x),
                down(*y),
                escaped(&series.name)
            ));
        }
    }
    out + "</svg>\n"
}

/// Returns the class of a line's colour.
pub fn class_of(index: usize, series: &Series) -> String {
    match series.is_reference {
        true => "reference".to_string(),
        false => format!("c{}", index % COLOURS),
    }
}

/// Returns text for HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        let axis = Axis::of([0.03, 0.97].into_iter());
        assert_eq!((axis.low, axis.high, axis.step), (0.0, 1.0, 0.2));
        let labels: Vec<String> = axis.ticks().map(|tick| axis.label(tick)).collect();
        assert_eq!(labels, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        let axis = Axis::of([7.0].into_iter());
        assert!(axis.low <= 7.0 && axis.high > axis.low);
        let axis = Axis::of(std::iter::empty());
        assert_eq!((axis.low, axis.high), (0.0, 1.0));
        assert_eq!(Axis::of([0.0, 670.0].into_iter()).label(200.0), "200");
    }

    #[test]
    fn charts_are_escaped() {
        let chart = Chart {
            title: "a < \"b\" & c".to_string(),
            series: vec![line("<x>", vec![[0.0, 1.0], [1.0, 2.0]])],
            ..Chart::default()
        };
        let svg = svg(&chart);
        assert!(svg.contains("aria-label=\"a &lt; &quot;b&quot; &amp; c\""), "{svg}");
        assert!(svg.contains("<title>&lt;x&gt;: 0.0000, 1.0000</title>"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
    }
}
