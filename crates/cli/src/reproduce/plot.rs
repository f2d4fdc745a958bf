//! Plots as SVG text: pairs of bars, and lines over a logarithmic axis.
//!
//! Owns: how they look. Never: knows what they show.
//! Invariant: the same figures give the same bytes.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const COLOURS: [RGBColor; 9] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(23, 190, 207),
];

const FONT: (&str, i32) = ("sans-serif", 15);

/// Pairs of horizontal bars, one pair per label.
pub struct Bars {
    title: String,
    unit: String,
    names: [&'static str; 2],
    pairs: Vec<(String, [f64; 2])>,
}

impl Bars {
    /// A plot without bars.
    pub fn new(title: &str, unit: &str, names: [&'static str; 2]) -> Bars {
        Bars { title: title.into(), unit: unit.into(), names, pairs: Vec::new() }
    }

    /// Adds a pair.
    pub fn pair(&mut self, label: &str, values: [f64; 2]) {
        self.pairs.push((label.into(), values));
    }

    /// The plot.
    ///
    /// # Errors
    /// When the plotting library refuses; the message is its own.
    pub fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|e| anyhow!("draw {}: {e}", self.title))?;
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let n = self.pairs.len();
        let root = SVGBackend::with_string(text, (760, 90 + 44 * n as u32)).into_drawing_area();
        root.fill(&WHITE)?;
        let most = self.pairs.iter().flat_map(|(_, v)| v).fold(1.0f64, |a, b| a.max(*b));
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{}, {}", self.title, self.unit), ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(190)
            .build_cartesian_2d(0.0..most * 1.15, -0.5..n as f64 - 0.5)?;
        let label = |y: &f64| {
            let i = (n as f64 - 1.0 - y).round();
            let near = (y - y.round()).abs() < 1e-6 && i >= 0.0 && (i as usize) < n;
            if near { self.pairs[i as usize].0.clone() } else { String::new() }
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .label_style(FONT)
            .y_labels(2 * n + 1)
            .y_label_formatter(&label)
            .x_desc(&self.unit)
            .draw()?;
        for (k, name) in self.names.iter().enumerate() {
            let colour = COLOURS[k];
            let bar = |(i, (_, values)): (usize, &(String, [f64; 2]))| {
                let top = n as f64 - 1.0 - i as f64 + 0.4 - 0.4 * k as f64;
                Rectangle::new([(0.0, top), (values[k], top - 0.38)], colour.filled())
            };
            chart
                .draw_series(self.pairs.iter().enumerate().map(bar))?
                .label(*name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
        }
        let place = SeriesLabelPosition::LowerRight;
        let mut names = chart.configure_series_labels();
        names.label_font(FONT).position(place).background_style(WHITE).border_style(BLACK).draw()?;
        root.present()?;
        Ok(())
    }
}

/// Lines over a logarithmic (base 2) horizontal axis, whose values are above 0; vertical values from 0 up.
pub struct Lines {
    title: String,
    across: String,
    up: String,
    lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Lines {
    /// A plot without lines.
    pub fn new(title: &str, across: &str, up: &str) -> Lines {
        Lines { title: title.into(), across: across.into(), up: up.into(), lines: Vec::new() }
    }

    /// Adds a line.
    pub fn line(&mut self, name: &str, points: Vec<(f64, f64)>) {
        self.lines.push((name.into(), points));
    }

    /// The plot.
    ///
    /// # Errors
    /// When the plotting library refuses; the message is its own.
    pub fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|e| anyhow!("draw {}: {e}", self.title))?;
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::with_string(text, (760, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let (least, most) = points().fold((f64::MAX, 1.0f64), |(a, b), (x, _)| (a.min(*x), b.max(*x)));
        let highest = points().fold(1.0f64, |a, (_, y)| a.max(*y));
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(50)
            .build_cartesian_2d(least.min(most).log2()..most.log2(), 0.0..highest * 1.1)?;
        chart
            .configure_mesh()
            .label_style(FONT)
            .x_labels(9)
            .x_desc(&self.across)
            .y_desc(&self.up)
            // Whole powers of two only.
            .x_label_formatter(&|x| if x.fract() == 0.0 { format!("{:.0}", x.exp2()) } else { String::new() })
            .draw()?;
        for (k, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[k % COLOURS.len()];
            chart
                .draw_series(
                    LineSeries::new(points.iter().map(|(x, y)| (x.log2(), *y)), colour.stroke_width(2)).point_size(3),
                )?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        let place = SeriesLabelPosition::LowerLeft;
        let mut names = chart.configure_series_labels();
        names.label_font(FONT).position(place).background_style(WHITE).border_style(BLACK).draw()?;
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_are_whole_and_repeatable() {
        let mut bars = Bars::new("Throughput", "KIOPS", ["ours", "paper"]);
        bars.pair("dynamic, good", [106.0, 105.0]);
        bars.pair("static, good", [44.5, 44.6]);
        let svg = bars.svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("dynamic, good") && svg.contains("paper"), "labels are drawn");
        assert_eq!(svg, bars.svg().unwrap());
        let mut lines = Lines::new("Kept", "cores", "ratio");
        lines.line("dynamic", vec![(16.0, 1.0), (256.0, 0.99)]);
        assert!(lines.svg().unwrap().contains("dynamic"));
    }
}
