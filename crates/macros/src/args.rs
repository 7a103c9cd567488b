//! What is said about a lock: the arguments of the attribute.
//!
//! In: `name = value`, separated by commas. Out: [`Args`], or every argument that makes no sense, each at
//! its place.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Lit, LitStr, Path, Token};

use crate::template::Template;
use crate::times::{self, MAX_HOLD_MIN, RENEW_EVERY_MIN, RETRY_INTERVAL_MIN};

/// Every argument there is, in the order in which they are told.
const KNOWN: &str = "`key`, `locker`, `ttl`, `wait`, `retry`, `attempts`, `renew`, `max_hold`, \
                     `at_least`, `fencing`, `reentry`, `within_process`, `label`, `reason`, `name`, \
                     `held`, `crate`";

/// What was said, checked as far as it can be without the function.
pub(crate) struct Args {
    /// `None` if none was said: that is told where the function is.
    pub(crate) key: Option<Template>,
    pub(crate) locker: Option<Expr>,
    pub(crate) label: Option<Template>,
    pub(crate) reason: Option<Template>,
    pub(crate) name: Option<LitStr>,
    pub(crate) held: Option<Ident>,
    pub(crate) tenure: Option<Path>,
    /// What needs no parameter of the function.
    pub(crate) setters: Vec<Setter>,
}

/// A setter of the request, and what it is given.
pub(crate) struct Setter {
    pub(crate) name: Ident,
    pub(crate) value: Value,
}

pub(crate) enum Value {
    Nothing,
    Plain(TokenStream),
    /// Named in our crate.
    Ours(TokenStream),
}

impl Parse for Args {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut said = Said::default();
        while !input.is_empty() {
            said.argument(input)?;
            if !input.is_empty() && input.parse::<Token![,]>().is_err() {
                return Err(input.error("expected `,` between two arguments"));
            }
        }
        said.done()
    }
}

/// What was said so far, and what is wrong with it.
#[derive(Default)]
struct Said {
    names: Vec<Ident>,
    key: Option<Template>,
    locker: Option<Expr>,
    label: Option<Template>,
    reason: Option<Template>,
    name: Option<LitStr>,
    held: Option<Ident>,
    tenure: Option<Path>,
    setters: Vec<Setter>,
    times: Vec<(&'static str, Duration, Span)>,
    flaws: Option<Error>,
}

impl Said {
    /// One argument. Those whose value makes no sense are noted, so that all of them are told.
    fn argument(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let Ok(name) = input.call(Ident::parse_any) else {
            return Err(
                input.error("expected `name = value`, such as `key = \"order:{order_id}\"`")
            );
        };
        if input.parse::<Token![=]>().is_err() {
            let what = format!("`{name}`: expected a value, `{name} = …`");
            return Err(Error::new(name.span(), what));
        }
        if name == "crate" {
            self.must_be_new(&name)?;
            self.tenure = Some(input.call(Path::parse_mod_style)?);
            return Ok(());
        }
        let value = input.parse::<Expr>().map_err(|_| {
            Error::new(name.span(), format!("`{name}`: expected a value after `=`"))
        })?;
        let noted = self.must_be_new(&name).and_then(|()| self.take(&name, value));
        noted.unwrap_or_else(|flaw| self.note(flaw));
        Ok(())
    }

    fn must_be_new(&mut self, name: &Ident) -> Result<(), Error> {
        if self.names.contains(name) {
            return Err(Error::new(name.span(), format!("`{name}` is said twice")));
        }
        self.names.push(name.clone());
        Ok(())
    }

    fn take(&mut self, name: &Ident, value: Expr) -> Result<(), Error> {
        let argument = name.to_string();
        match argument.as_str() {
            "key" => self.key = Some(template("key", &value)?),
            "label" => self.label = Some(template("label", &value)?),
            "reason" => self.reason = Some(template("reason", &value)?),
            "name" => self.name = Some(text("name", "text in quotes", &value)?),
            "locker" => self.locker = Some(value),
            "held" => self.held = Some(variable(&value)?),
            "ttl" => self.ttl(&value)?,
            "wait" => self.wait(&value)?,
            "retry" => self.time("retry", "retry_interval", &value, RETRY_INTERVAL_MIN)?,
            "max_hold" => self.time("max_hold", "max_hold", &value, MAX_HOLD_MIN)?,
            "at_least" => self.time("at_least", "at_least", &value, Duration::ZERO)?,
            "attempts" => self.attempts(&value)?,
            "renew" => self.renew(&value)?,
            "fencing" => self.fencing(&value)?,
            "reentry" => self.word("reentry", REENTRY, &value)?,
            "within_process" => self.word("within_process", WITHIN_PROCESS, &value)?,
            _ => {
                let what = format!("unknown argument `{name}`, expected one of {KNOWN}");
                return Err(Error::new(name.span(), what));
            }
        }
        Ok(())
    }

    fn ttl(&mut self, value: &Expr) -> Result<(), Error> {
        let text = text("ttl", A_TIME, value)?;
        let ttl = times::ttl(&text)?;
        self.times.push(("ttl", ttl, text.span()));
        self.set("ttl", Value::Plain(times::tokens(ttl)));
        Ok(())
    }

    fn wait(&mut self, value: &Expr) -> Result<(), Error> {
        let text = text("wait", "a time in quotes, such as \"5s\", or \"forever\"", value)?;
        if text.value() == "forever" {
            self.set("wait_forever", Value::Nothing);
            return Ok(());
        }
        let wait = times::time("wait", &text, Duration::ZERO)?;
        self.set("wait", Value::Plain(times::tokens(wait)));
        Ok(())
    }

    fn time(
        &mut self,
        name: &'static str,
        setter: &str,
        value: &Expr,
        min: Duration,
    ) -> Result<(), Error> {
        let text = text(name, A_TIME, value)?;
        let time = times::time(name, &text, min)?;
        self.times.push((name, time, text.span()));
        self.set(setter, Value::Plain(times::tokens(time)));
        Ok(())
    }

    fn attempts(&mut self, value: &Expr) -> Result<(), Error> {
        let most = match literal(value) {
            Some(Lit::Int(number)) => number.base10_parse::<u32>().ok().filter(|most| *most > 0),
            _ => None,
        };
        let most = most.ok_or_else(|| expected("attempts", "a number, 1 or more", value))?;
        self.set("attempts", Value::Plain(quote!(#most)));
        Ok(())
    }

    fn renew(&mut self, value: &Expr) -> Result<(), Error> {
        const FORM: &str = "a time in quotes, \"off\", or a part of the ttl between 0 and 0.5";
        let renew = match literal(value) {
            Some(Lit::Float(ratio)) => {
                let ratio = ratio.base10_parse::<f64>().ok().filter(|r| *r > 0.0 && *r < 0.5);
                let ratio = ratio.ok_or_else(|| expected("renew", FORM, value))?;
                quote!(Renew::Ratio(#ratio))
            }
            Some(Lit::Str(text)) if text.value() == "off" => quote!(Renew::Off),
            Some(Lit::Str(text)) => {
                let every = times::time("renew", text, RENEW_EVERY_MIN)?;
                self.times.push(("renew", every, text.span()));
                let every = times::tokens(every);
                quote!(Renew::Every(#every))
            }
            _ => return Err(expected("renew", FORM, value)),
        };
        self.set("renew", Value::Ours(renew));
        Ok(())
    }

    fn fencing(&mut self, value: &Expr) -> Result<(), Error> {
        let Some(Lit::Bool(fencing)) = literal(value) else {
            return Err(expected("fencing", "`true` or `false`", value));
        };
        self.set("fencing", Value::Plain(quote!(#fencing)));
        Ok(())
    }

    /// One of two words.
    fn word(&mut self, name: &str, words: [(&str, &str); 2], value: &Expr) -> Result<(), Error> {
        let [(one, _), (other, _)] = words;
        let form = format!("\"{one}\" or \"{other}\"");
        let text = text(name, &form, value)?.value();
        let meant = words.iter().find(|(word, _)| *word == text);
        let (_, meant) = meant.ok_or_else(|| expected(name, &form, value))?;
        self.set(name, Value::Ours(syn::parse_str(meant)?));
        Ok(())
    }

    fn set(&mut self, setter: &str, value: Value) {
        self.setters.push(Setter { name: format_ident!("{setter}"), value });
    }

    fn note(&mut self, flaw: Error) {
        match &mut self.flaws {
            Some(flaws) => flaws.combine(flaw),
            None => self.flaws = Some(flaw),
        }
    }

    /// The relations that hold whatever the locker's defaults are.
    fn relations(&self) -> Result<(), Error> {
        let time = |name| self.times.iter().find(|(known, ..)| *known == name);
        if let (Some((_, ttl, _)), Some((_, renew, at))) = (time("ttl"), time("renew"))
            && renew.saturating_mul(2) >= *ttl
        {
            let what = format!("`renew` ({renew:?}) must be less than half of `ttl` ({ttl:?})");
            return Err(Error::new(*at, what));
        }
        if let (Some((_, most, _)), Some((_, least, at))) = (time("max_hold"), time("at_least"))
            && least > most
        {
            let what =
                format!("`at_least` ({least:?}) must not be more than `max_hold` ({most:?})");
            return Err(Error::new(*at, what));
        }
        Ok(())
    }

    fn done(mut self) -> Result<Args, Error> {
        if let Err(flaw) = self.relations() {
            self.note(flaw);
        }
        match self.flaws {
            None => Ok(Args {
                key: self.key,
                locker: self.locker,
                label: self.label,
                reason: self.reason,
                name: self.name,
                held: self.held,
                tenure: self.tenure,
                setters: self.setters,
            }),
            Some(flaws) => Err(flaws),
        }
    }
}

const A_TIME: &str = "a time in quotes, such as \"15s\"";
const REENTRY: [(&str, &str); 2] = [("allow", "Reentry::Allow"), ("refuse", "Reentry::Refuse")];
const WITHIN_PROCESS: [(&str, &str); 2] =
    [("queue", "WithinProcess::Queue"), ("fail", "WithinProcess::Fail")];

fn expected(name: &str, form: &str, value: &Expr) -> Error {
    Error::new_spanned(value, format!("`{name}`: expected {form}"))
}

fn literal(value: &Expr) -> Option<&Lit> {
    match value {
        Expr::Lit(literal) => Some(&literal.lit),
        // What a `macro_rules` passes on comes in a group.
        Expr::Group(group) => literal(&group.expr),
        _ => None,
    }
}

fn text(name: &str, form: &str, value: &Expr) -> Result<LitStr, Error> {
    match literal(value) {
        Some(Lit::Str(text)) => Ok(text.clone()),
        _ => Err(expected(name, form, value)),
    }
}

fn template(name: &str, value: &Expr) -> Result<Template, Error> {
    Template::parse(name, text(name, "a template in quotes, such as \"order:{order_id}\"", value)?)
}

fn variable(value: &Expr) -> Result<Ident, Error> {
    let ident = match value {
        Expr::Path(path) => path.path.get_ident().filter(|ident| *ident != "self").cloned(),
        _ => None,
    };
    ident.ok_or_else(|| expected("held", "a name for the held lock, such as `held`", value))
}
