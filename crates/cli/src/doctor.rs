//! `tenure doctor`: what makes locks unsafe here, and what to do about it.
//!
//! In: the arguments. Out: one line per check on stdout, or JSON; the exit status is the worst verdict. The
//! checks belong to the engines (`Config::diagnose`), so that other programs can show the same.

use std::io::IsTerminal as _;

use serde::Serialize;
use tenure::doctor::{Finding, Verdict};
use unicode_width::UnicodeWidthStr;

use crate::args::{DoctorArgs, GlobalArgs};
use crate::error::CliError;
use crate::json::{SCHEMA, json};
use crate::output;
use crate::target::{Target, runtime};
use crate::text::escape;
use crate::ui::{self, Ui, wants_color};

/// The exit statuses.
const WARNING: u8 = 1;
const UNSAFE: u8 = 2;

/// Runs the checks and prints the findings.
pub(crate) fn doctor(args: &DoctorArgs, flags: &GlobalArgs, ui: &mut Ui) -> u8 {
    let findings = match diagnose(args, flags, ui) {
        Ok(findings) => findings,
        Err(trouble) => return ui.trouble(&trouble),
    };
    let colored = wants_color(flags.color, std::io::stdout().is_terminal());
    ui::data(&if args.json { as_json(&findings) } else { lines(&findings, colored) });
    ui.info(&summary(&findings));
    status(Verdict::worst(&findings))
}

fn diagnose(args: &DoctorArgs, flags: &GlobalArgs, ui: &mut Ui) -> Result<Vec<Finding>, CliError> {
    let target = Target::find(flags)?;
    let mut config = target.configured();
    if let Some(ttl) = args.ttl {
        config = config.ttl(ttl);
    }
    target.introduce(ui);
    let findings = runtime()?.block_on(config.diagnose());
    let mut findings = findings.map_err(|error| target.with_origin(&error))?;
    findings.iter_mut().for_each(|finding| finding.seen = target.scrub(&finding.seen));
    Ok(findings)
}

fn status(worst: Verdict) -> u8 {
    match worst {
        Verdict::Good | Verdict::Unknown => 0,
        Verdict::Warning => WARNING,
        Verdict::Unsafe => UNSAFE,
    }
}

fn summary(findings: &[Finding]) -> String {
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    output::checked(
        count(Verdict::Good),
        count(Verdict::Unknown),
        count(Verdict::Warning),
        count(Verdict::Unsafe),
    )
}

fn as_json(findings: &[Finding]) -> String {
    #[derive(Serialize)]
    struct Checkup<'a> {
        schema: u32,
        verdict: Verdict,
        findings: &'a [Finding],
    }
    json(&Checkup { schema: SCHEMA, verdict: Verdict::worst(findings), findings })
}

fn lines(findings: &[Finding], colored: bool) -> String {
    let columns = |finding: &Finding| {
        [
            finding.verdict.as_str().into(),
            finding.check.into(),
            escape(&finding.target).into_owned(),
        ]
    };
    let rows: Vec<[String; 3]> = findings.iter().map(columns).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let shown = rows.iter().zip(findings).map(|(row, finding)| line(row, finding, widths, colored));
    shown.collect()
}

fn line(row: &[String; 3], finding: &Finding, widths: [usize; 3], colored: bool) -> String {
    let mut cells = row.iter().zip(widths).map(|(cell, width)| padded(cell, width));
    let word = cells.next().unwrap_or_default();
    let word = if colored { painted(finding.verdict, &word) } else { word };
    let (tried, seen) = (escape(&finding.tried), escape(&finding.seen));
    let advice = finding.advice.as_deref().map(|advice| format!("; to do: {}", escape(advice)));
    let (rest, advice) = (cells.collect::<Vec<_>>().join("  "), advice.unwrap_or_default());
    format!("{word}  {rest}  {tried}: {seen}{advice}\n")
}

/// Pads by display columns: `format!` would count characters.
fn padded(cell: &str, width: usize) -> String {
    format!("{cell}{}", " ".repeat(width - cell.width()))
}

/// Colours the verdict. The text alone is enough; colour only makes it easier to find.
fn painted(verdict: Verdict, word: &str) -> String {
    let color = match verdict {
        Verdict::Good => "32",
        Verdict::Unknown => "36",
        Verdict::Warning => "33",
        Verdict::Unsafe => "1;31",
    };
    format!("\x1b[{color}m{word}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::doctor::Check;

    fn some() -> Vec<Finding> {
        let check = |name| Check::new(name, "h:6379", "INFO memory");
        vec![
            check("reachable").good("connected in 0.4ms"),
            check("clock").unknown("could not be checked: the user lacks the right"),
            check("persistence").warning("nothing is saved", "save it"),
            check("eviction").critical("`allkeys-lru`", "set `noeviction`"),
        ]
    }

    /// One line per check, in columns, with the advice at the end.
    #[test]
    fn lines_in_full() {
        assert_eq!(
            lines(&some(), false),
            "\
good     reachable    h:6379  INFO memory: connected in 0.4ms
unknown  clock        h:6379  INFO memory: could not be checked: the user lacks the right
warning  persistence  h:6379  INFO memory: nothing is saved; to do: save it
unsafe   eviction     h:6379  INFO memory: `allkeys-lru`; to do: set `noeviction`
"
        );
        let colored = lines(&some(), true);
        assert!(colored.starts_with("\x1b[32mgood   \x1b[0m  reachable"), "{colored}");
        assert_eq!(colored.matches("\x1b[0m").count(), 4);
    }

    /// The JSON with all its fields.
    #[test]
    fn json_in_full() {
        assert_eq!(
            as_json(&some()[2..3]),
            "{\"schema\":1,\"verdict\":\"warning\",\"findings\":[{\"check\":\"persistence\",\
             \"target\":\"h:6379\",\"tried\":\"INFO memory\",\"seen\":\"nothing is saved\",\
             \"verdict\":\"warning\",\"advice\":\"save it\"}]}\n"
        );
        assert!(as_json(&some()[..1]).contains("\"advice\":null"));
    }

    /// The worst verdict decides the exit status; `unknown` is not a failure.
    #[test]
    fn statuses() {
        let all = some();
        let status = |count| status(Verdict::worst(&all[..count]));
        assert_eq!([status(1), status(2), status(3), status(4)], [0, 0, 1, 2]);
        assert_eq!(summary(&all), "tenure: 4 checks: 1 unsafe, 1 warning, 1 unknown, 1 good");
        assert_eq!(summary(&all[..2]), "tenure: 2 checks: 1 unknown, 1 good");
    }
}
