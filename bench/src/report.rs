//! Figures, and how they are shown.
//!
//! The JSON is stable: fields may be added, but none changes its meaning without a new `schema`.

use std::fmt;

use serde::Serialize;

/// The version of the JSON.
const SCHEMA: u32 = 1;
const HEAD: [&str; COLUMNS] =
    ["FIGURE", "OURS", "BARE", "RATIO", "SPREAD", "BAR", "CPU", "CPU BARE", ""];
const COLUMNS: usize = 9;

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) enum Measure {
    /// The time of one cycle, and the quartiles of the ratio over the rounds.
    Time { ours: Cycle, bare: Cycle, spread: (f64, f64) },
    /// Our use of the processors, in µs per second.
    Cpu { ours: f64 },
    /// A count.
    Count { ours: f64, bare: f64 },
    /// A time in µs, and the time of the other side, if there is one.
    Span { ours: f64, bare: Option<f64> },
}

/// The time of one cycle in µs: by the clock, and of this process's processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycle {
    pub(crate) took: f64,
    pub(crate) cpu: f64,
}

/// The bar of a figure that is only for comparison.
pub(crate) const NO_BAR: f64 = f64::INFINITY;

/// One figure and its bar, which it must not exceed.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) measure: Measure,
    pub(crate) bar: f64,
}

/// A second of one core, in µs, to which our use of the processors is compared.
const CORE: f64 = 1e6;

impl Figure {
    fn ratio(&self) -> Option<f64> {
        match self.measure {
            Measure::Time { ours, bare, .. } => Some(ours.took / bare.took),
            Measure::Count { ours, bare } => Some(ours / bare),
            Measure::Cpu { ours } => Some(ours / CORE),
            Measure::Span { ours, bare } => bare.map(|bare| ours / bare),
        }
    }

    /// Our time in µs, if the figure is a time.
    fn ours_us(&self) -> Option<f64> {
        match self.measure {
            Measure::Time { ours, .. } => Some(ours.took),
            Measure::Cpu { ours } | Measure::Span { ours, .. } => Some(ours),
            Measure::Count { .. } => None,
        }
    }

    fn bare_us(&self) -> Option<f64> {
        match self.measure {
            Measure::Time { bare, .. } => Some(bare.took),
            Measure::Cpu { .. } => Some(CORE),
            Measure::Span { bare, .. } => bare,
            Measure::Count { .. } => None,
        }
    }

    /// The bar applies to the ratio, or to our time if there is no bare side.
    fn is_met(&self) -> bool {
        self.ratio().or(self.ours_us()).is_some_and(|measured| measured <= self.bar)
    }

    fn row(&self) -> [String; COLUMNS] {
        let none = || "-".to_string();
        let (ours, bare) = match self.measure {
            Measure::Time { ours, bare, .. } => (micros(ours.took), micros(bare.took)),
            Measure::Cpu { ours } => (format!("{:.2} %", ours / CORE * 100.0), "a core".into()),
            Measure::Count { ours, bare } => (format!("{ours:.2}"), format!("{bare:.2}")),
            Measure::Span { ours, bare } => (micros(ours), bare.map_or_else(none, micros)),
        };
        let [spread, cpu, cpu_bare] = match self.measure {
            Measure::Time { ours, bare, spread: (low, high) } => {
                [format!("{low:.2}–{high:.2}"), micros(ours.cpu), micros(bare.cpu)]
            }
            _ => [none(), none(), none()],
        };
        let ratio = self.ratio().map_or_else(none, |ratio| format!("{ratio:.2}"));
        let bar = match self.ratio() {
            _ if self.bar == NO_BAR => none(),
            Some(_) => format!("{:.2}", self.bar),
            None => micros(self.bar),
        };
        let met = if self.is_met() { "" } else { "missed" };
        [self.name.into(), ours, bare, ratio, spread, bar, cpu, cpu_bare, met.into()]
    }
}

fn micros(time: f64) -> String {
    match time {
        time if time < 1e3 => format!("{time:.2} µs"),
        time => format!("{:.2} ms", time / 1e3),
    }
}

/// All figures of a run.
#[derive(Clone, Debug)]
pub struct Report {
    backend: &'static str,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(backend: &'static str) -> Self {
        Report { backend, figures: Vec::new() }
    }

    pub(crate) fn add(&mut self, figures: impl IntoIterator<Item = Figure>) {
        self.figures.extend(figures);
    }

    /// The names of the figures that miss their bar.
    pub fn missed(&self) -> Vec<&'static str> {
        let missed = self.figures.iter().filter(|figure| !figure.is_met());
        missed.map(|figure| figure.name).collect()
    }

    /// One line of JSON. `ratio` is ours ÷ bare; `bar` is the maximum of it, or, where `ratio` is `null`, the
    /// maximum of `ours_us`; `bar` is `null` for a figure without a bar. Counts have no times.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Listing {
            schema: u32,
            backend: &'static str,
            results: Vec<Result>,
        }
        #[derive(Serialize)]
        struct Result {
            name: &'static str,
            ratio: Option<f64>,
            ours_us: Option<f64>,
            bare_us: Option<f64>,
            bar: f64,
        }
        let results = self.figures.iter().map(|figure| Result {
            name: figure.name,
            ratio: figure.ratio(),
            ours_us: figure.ours_us(),
            bare_us: figure.bare_us(),
            bar: figure.bar,
        });
        let listing = Listing { schema: SCHEMA, backend: self.backend, results: results.collect() };
        // Only strings and numbers, so this cannot fail.
        serde_json::to_string(&listing).unwrap_or_default() + "\n"
    }
}

/// A table for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = HEAD.map(String::from);
        let rows: Vec<_> =
            std::iter::once(head).chain(self.figures.iter().map(Figure::row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
        rows.iter().try_for_each(|row| writeln!(f, "{}", line(row, &widths)))
    }
}

/// Names are aligned to the left, figures to the right.
fn line(row: &[String; COLUMNS], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
        0 => format!("{cell:<width$}"),
        _ => format!("  {cell:>width$}"),
    });
    cells.collect::<String>().trim_end().into()
}
