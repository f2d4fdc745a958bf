//! Plots as SVG text: groups of bars, lines over a logarithmic axis, and series with their average.
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

/// Groups of horizontal bars, one group per label.
pub struct Bars {
    title: String,
    unit: String,
    names: Vec<&'static str>,
    groups: Vec<(String, Vec<f64>)>,
}

impl Bars {
    /// A plot without bars.
    pub fn new(title: &str, unit: &str, names: impl Into<Vec<&'static str>>) -> Bars {
        Bars { title: title.into(), unit: unit.into(), names: names.into(), groups: Vec::new() }
    }

    /// Adds a group, which has a value for each name.
    pub fn group(&mut self, label: &str, values: impl Into<Vec<f64>>) {
        let values = values.into();
        assert_eq!(values.len(), self.names.len(), "a group has a bar for each name");
        self.groups.push((label.into(), values));
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
        let (n, k) = (self.groups.len(), self.names.len());
        // The list of names needs room too, beside short groups.
        let height = (90 + 22 * (n * k) as u32).max(110 + 22 * k as u32);
        // About 7 pixels a letter: a long label widens the picture rather than losing its beginning.
        let letters = self.groups.iter().map(|(label, _)| label.len()).max().unwrap_or(0) as u32;
        let labels_px = (20 + 7 * letters).max(190);
        let root = SVGBackend::with_string(text, (570 + labels_px, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let values = || self.groups.iter().flat_map(|(_, v)| v);
        // Many names are a wide box: bars end beside it.
        let room = if k > 2 { 1.6 } else { 1.15 };
        let (least, most) = (values().fold(0.0f64, |a, b| a.min(*b)), values().fold(1.0f64, |a, b| a.max(*b)));
        let mut chart = ChartBuilder::on(&root)
            .caption(format!("{}, {}", self.title, self.unit), ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(45)
            .y_label_area_size(labels_px)
            .build_cartesian_2d(least * 1.15..most * room, -0.5..n as f64 - 0.5)?;
        let label = |y: &f64| {
            let i = (n as f64 - 1.0 - y).round();
            let near = (y - y.round()).abs() < 1e-6 && i >= 0.0 && (i as usize) < n;
            if near { self.groups[i as usize].0.clone() } else { String::new() }
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .label_style(FONT)
            .y_labels(2 * n + 1)
            .y_label_formatter(&label)
            .x_desc(&self.unit)
            .draw()?;
        let thick = 0.8 / k as f64;
        for (k, name) in self.names.iter().enumerate() {
            let colour = COLOURS[k % COLOURS.len()];
            let bar = |(i, (_, values)): (usize, &(String, Vec<f64>))| {
                let top = n as f64 - 1.0 - i as f64 + 0.4 - thick * k as f64;
                Rectangle::new([(0.0, top), (values[k], top - thick * 0.95)], colour.filled())
            };
            chart
                .draw_series(self.groups.iter().enumerate().map(bar))?
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
            .y_label_area_size(75)
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

/// Values over their numbers.
type Points = Vec<(f64, f64)>;

/// Values one after the other over their number: thin lines, thick lines, marked heights.
pub struct Series {
    title: String,
    across: String,
    up: String,
    highest: f64,
    lines: Vec<(String, u32, Points)>,
    marks: Vec<(String, f64)>,
}

impl Series {
    /// A plot without lines, from 0 to `highest`.
    pub fn new(title: &str, across: &str, up: &str, highest: f64) -> Series {
        let (title, across, up) = (title.into(), across.into(), up.into());
        Series { title, across, up, highest, lines: Vec::new(), marks: Vec::new() }
    }

    /// Adds a thin line.
    pub fn thin(&mut self, name: &str, points: Vec<(f64, f64)>) {
        self.lines.push((name.into(), 1, points));
    }

    /// Adds a thick line.
    pub fn thick(&mut self, name: &str, points: Vec<(f64, f64)>) {
        self.lines.push((name.into(), 3, points));
    }

    /// Marks a height.
    pub fn mark(&mut self, name: &str, height: f64) {
        self.marks.push((name.into(), height));
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
        let root = SVGBackend::with_string(text, (960, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let last = self.lines.iter().flat_map(|(_, _, points)| points).fold(1.0f64, |a, (x, _)| a.max(*x));
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(75)
            .build_cartesian_2d(0.0..last, 0.0..self.highest.max(1e-9) * 1.2)?;
        chart.configure_mesh().label_style(FONT).x_desc(&self.across).y_desc(&self.up).draw()?;
        let marks = self.marks.iter().map(|(name, y)| (name, 1, vec![(0.0, *y), (last, *y)]));
        let lines = self.lines.iter().map(|(name, width, points)| (name, *width, points.clone()));
        for (k, (name, width, points)) in lines.chain(marks).enumerate() {
            let style = COLOURS[k % COLOURS.len()].stroke_width(width);
            let drawn = chart.draw_series(LineSeries::new(points, style))?;
            drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
        let place = SeriesLabelPosition::UpperRight;
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
        bars.group("dynamic, good", [106.0, 105.0]);
        bars.group("static, good", [44.5, 44.6]);
        let svg = bars.svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("dynamic, good") && svg.contains("paper"), "labels are drawn");
        assert_eq!(svg, bars.svg().unwrap());
        let mut lines = Lines::new("Kept", "cores", "ratio");
        lines.line("dynamic", vec![(16.0, 1.0), (256.0, 0.99)]);
        assert!(lines.svg().unwrap().contains("dynamic"));
        let mut three = Bars::new("Gain", "%", ["a", "b", "c"]);
        three.group("worse", [-3.0, 1.0, 2.0]);
        assert!(three.svg().unwrap().contains("worse"));
        let mut series = Series::new("Latency", "chunk", "ms", 7.5);
        series.thin("each", vec![(0.0, 1.0), (1.0, 7.5)]);
        series.thick("average", vec![(0.0, 1.0), (1.0, 4.25)]);
        series.mark("line", 7.0);
        let svg = series.svg().unwrap();
        assert!(["each", "average", "line"].iter().all(|name| svg.contains(name)), "each is named");
    }
}
