//! Figures, and how they are shown.

use std::io::Write;

/// One figure: what we cost, what the bare thing costs, and the bar.
pub struct Figure {
    pub name: &'static str,
    pub ours: f64,
    pub bare: Option<f64>,
    pub unit: &'static str,
    pub bar: f64,
}

impl Figure {
    /// What is compared with the bar: the ratio, or the figure itself where nothing is bare.
    fn measure(&self) -> f64 {
        self.bare.map_or(self.ours, |bare| self.ours / bare)
    }

    fn is_met(&self) -> bool {
        self.measure() <= self.bar
    }

    fn row(&self) -> String {
        let bare = self.bare.map_or("-".into(), |bare| format!("{bare:.2}"));
        let ratio = self.bare.map_or("-".into(), |_| format!("{:.2}", self.measure()));
        let met = if self.is_met() { "met" } else { "MISSED" };
        let (name, ours, unit, bar) = (self.name, self.ours, self.unit, self.bar);
        format!("{name:<28} {ours:>10.2} {bare:>10} {unit:<14} {ratio:>7} {bar:>7.2}  {met}")
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name, "ours": self.ours, "bare": self.bare, "unit": self.unit,
            "ratio": self.bare.map(|_| self.measure()), "bar": self.bar, "met": self.is_met(),
        })
    }
}

/// All figures of a run.
pub struct Report {
    only: String,
    figures: Vec<Figure>,
}

impl Report {
    pub fn new(only: String) -> Self {
        Report { only, figures: Vec::new() }
    }

    /// Whether a figure is asked for.
    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    pub fn add(&mut self, figure: Figure) {
        eprintln!("{}", figure.row());
        self.figures.push(figure);
    }

    pub fn is_met(&self) -> bool {
        self.figures.iter().all(Figure::is_met)
    }

    pub fn print(&self, json: bool) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            let results: Vec<_> = self.figures.iter().map(Figure::json).collect();
            return writeln!(out, "{}", serde_json::json!({"schema": 1, "results": results}));
        }
        writeln!(
            out,
            "{:<28} {:>10} {:>10} {:<14} {:>7} {:>7}",
            "figure", "ours", "bare", "unit", "ratio", "bar"
        )?;
        self.figures.iter().try_for_each(|figure| writeln!(out, "{}", figure.row()))
    }
}

/// The middle one.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}
