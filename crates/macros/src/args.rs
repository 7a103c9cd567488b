//! The arguments of the attribute.
//!
//! In: `name = value`, separated by commas. Out: [`Args`], or an error for every invalid argument, at its
//! place.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, Lit, LitStr, Path, Token};

use crate::template::Template;
use crate::times::{self, MAX_HOLD_MIN, RENEW_EVERY_MIN, RETRY_INTERVAL_MIN};

/// All arguments, in the order of the error message.
const KNOWN: &str = "`key`, `keys`, `shared`, `slots`, `permits`, `locker`, `ttl`, `wait`, `unavailable_after`, `retry`, `attempts`, \
                     `renew`, `max_hold`, `min_hold`, `fencing`, `reentry`, `within_process`, \
                     `label`, `reason`, `name`, `held`, `on_late_loss`, `crate`";

/// The arguments, checked as far as possible without the function.
pub(crate) struct Args {
    /// `None` if it is missing: the error is reported at the function.
    pub(crate) target: Option<Target>,
    pub(crate) locker: Option<Expr>,
    pub(crate) label: Option<Template>,
    pub(crate) reason: Option<Template>,
    pub(crate) name: Option<LitStr>,
    pub(crate) held: Option<Ident>,
    pub(crate) on_late_loss: Option<Expr>,
    pub(crate) tenure: Option<Path>,
    /// The arguments that need no parameter of the function.
    pub(crate) setters: Vec<Setter>,
}

/// What is locked, and how.
pub(crate) enum Target {
    Key(Template, How),
    Keys(Vec<KeyOf>),
}

/// How a key is held.
pub(crate) enum How {
    Alone,
    Shared,
    Permits { slots: Box<Expr>, permits: Option<Box<Expr>> },
}

/// One of several keys.
pub(crate) struct KeyOf {
    pub(crate) template: Template,
    pub(crate) reads: bool,
}

/// A setter of the request, and its value.
pub(crate) struct Setter {
    pub(crate) name: Ident,
    pub(crate) value: Value,
}

pub(crate) enum Value {
    Nothing,
    Plain(TokenStream),
    /// A path in our crate.
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

/// The arguments so far, and their errors.
#[derive(Default)]
struct Said {
    names: Vec<Ident>,
    key: Option<Template>,
    keys: Option<Vec<KeyOf>>,
    shared: bool,
    slots: Option<Expr>,
    permits: Option<Expr>,
    locker: Option<Expr>,
    label: Option<Template>,
    reason: Option<Template>,
    name: Option<LitStr>,
    held: Option<Ident>,
    on_late_loss: Option<Expr>,
    tenure: Option<Path>,
    setters: Vec<Setter>,
    times: Vec<(&'static str, Duration, Span)>,
    flaws: Option<Error>,
}

impl Said {
    /// Reads one argument. An invalid value is recorded, so that all errors are reported together.
    fn argument(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let Ok(name) = input.call(Ident::parse_any) else {
            return Err(
                input.error("expected `name = value`, such as `key = \"order:{order_id}\"`")
            );
        };
        if name == "shared" && !input.peek(Token![=]) {
            let noted = self.must_be_new(&name).map(|()| self.shared = true);
            noted.unwrap_or_else(|flaw| self.note(flaw));
            return Ok(());
        }
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
            return Err(Error::new(name.span(), format!("`{name}` is given twice")));
        }
        self.names.push(name.clone());
        Ok(())
    }

    fn take(&mut self, name: &Ident, value: Expr) -> Result<(), Error> {
        let argument = name.to_string();
        match argument.as_str() {
            "key" => self.key = Some(template("key", &value)?),
            "keys" => self.keys = Some(keys(&value)?),
            "shared" => {
                let what = "`shared` has no value: write `shared` alone";
                return Err(Error::new(name.span(), what));
            }
            "slots" => self.slots = Some(count("slots", value)?),
            "permits" => self.permits = Some(count("permits", value)?),
            "label" => self.label = Some(template("label", &value)?),
            "reason" => self.reason = Some(template("reason", &value)?),
            "name" => self.name = Some(text("name", "text in quotes", &value)?),
            "locker" => self.locker = Some(value),
            "held" => self.held = Some(variable(&value)?),
            "on_late_loss" => self.on_late_loss = Some(callable(value)?),
            "ttl" => self.ttl(&value)?,
            "wait" => self.wait(&value)?,
            "unavailable_after" => {
                self.time("unavailable_after", "unavailable_after", &value, Duration::ZERO)?;
            }
            "retry" => self.time("retry", "retry_interval", &value, RETRY_INTERVAL_MIN)?,
            "max_hold" => self.time("max_hold", "max_hold", &value, MAX_HOLD_MIN)?,
            "min_hold" => self.time("min_hold", "min_hold", &value, Duration::ZERO)?,
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

    /// Checks the relations that do not depend on the locker's defaults.
    fn relations(&self) -> Result<(), Error> {
        let time = |name| self.times.iter().find(|(known, ..)| *known == name);
        if let (Some((_, ttl, _)), Some((_, renew, at))) = (time("ttl"), time("renew"))
            && renew.saturating_mul(2) >= *ttl
        {
            let what = format!("`renew` ({renew:?}) must be less than half of `ttl` ({ttl:?})");
            return Err(Error::new(*at, what));
        }
        if let (Some((_, most, _)), Some((_, least, at))) = (time("max_hold"), time("min_hold"))
            && least > most
        {
            let what =
                format!("`min_hold` ({least:?}) must not be more than `max_hold` ({most:?})");
            return Err(Error::new(*at, what));
        }
        Ok(())
    }

    /// Checks that the arguments for the mode go together.
    fn modes(&self) -> Result<(), Error> {
        let refused = |name: &str, what: String| {
            let said = self.names.iter().find(|said| *said == name);
            Err(Error::new(said.map_or_else(Span::call_site, Ident::span), what))
        };
        if self.key.is_some() && self.keys.is_some() {
            return refused(
                "keys",
                "`key` and `keys` do not go together: name all keys in `keys`".into(),
            );
        }
        if self.shared && self.slots.is_some() {
            return refused(
                "slots",
                "`slots` and `shared` do not go together: a key is read, or has permits".into(),
            );
        }
        if self.permits.is_some() && self.slots.is_none() {
            return refused(
                "permits",
                "`permits` needs `slots`, the number of permits in all".into(),
            );
        }
        if self.keys.is_some() && self.shared {
            return refused(
                "shared",
                "`shared` is for one key: write `read(\"…\")` around those of `keys`".into(),
            );
        }
        if self.keys.is_some() && self.slots.is_some() {
            return refused("slots", "`slots` is for one key".into());
        }
        let number = |value: &Option<Expr>| value.as_ref().and_then(integer);
        match (number(&self.permits), number(&self.slots)) {
            (Some(permits), Some(slots)) if permits > slots => refused(
                "permits",
                format!("`permits` ({permits}) must not be more than `slots` ({slots})"),
            ),
            _ => Ok(()),
        }
    }

    /// What is locked, if a key was said.
    fn target(&mut self) -> Option<Target> {
        if let Some(keys) = self.keys.take() {
            return Some(Target::Keys(keys));
        }
        let how = match self.slots.take() {
            Some(slots) => {
                How::Permits { slots: Box::new(slots), permits: self.permits.take().map(Box::new) }
            }
            None if self.shared => How::Shared,
            None => How::Alone,
        };
        self.key.take().map(|key| Target::Key(key, how))
    }

    fn done(mut self) -> Result<Args, Error> {
        for flaw in [self.relations(), self.modes()].into_iter().filter_map(Result::err) {
            self.note(flaw);
        }
        let target = self.target();
        match self.flaws {
            None => Ok(Args {
                target,
                locker: self.locker,
                label: self.label,
                reason: self.reason,
                name: self.name,
                held: self.held,
                on_late_loss: self.on_late_loss,
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
        // A value that a `macro_rules` passes on is in a group.
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

/// A number of permits: a literal of at least 1, or an expression, which is checked when the function is called.
fn count(name: &str, value: Expr) -> Result<Expr, Error> {
    match (literal(&value), integer(&value)) {
        (Some(_), None | Some(0)) => {
            Err(expected(name, "a number, 1 or more, or an expression of type `u32`", &value))
        }
        _ => Ok(value),
    }
}

fn integer(value: &Expr) -> Option<u32> {
    match literal(value) {
        Some(Lit::Int(number)) => number.base10_parse().ok(),
        _ => None,
    }
}

fn keys(value: &Expr) -> Result<Vec<KeyOf>, Error> {
    let list = match value {
        Expr::Array(list) if !list.elems.is_empty() => list,
        _ => return Err(expected("keys", KEYS, value)),
    };
    list.elems.iter().map(key_of).collect()
}

const KEYS: &str = "a list of templates, such as `[\"acct:{from}\", read(\"rates\")]`";

/// A template, or `read("…")` around it.
fn key_of(value: &Expr) -> Result<KeyOf, Error> {
    let (reads, inside) = match value {
        Expr::Call(call) => match (&*call.func, call.args.len()) {
            (Expr::Path(path), 1) if path.path.is_ident("read") => (true, &call.args[0]),
            _ => return Err(expected("keys", KEYS, value)),
        },
        other => (false, other),
    };
    let text = text("keys", "a template in quotes, such as \"acct:{from}\"", inside)?;
    Ok(KeyOf { template: Template::parse("keys", text)?, reads })
}

fn variable(value: &Expr) -> Result<Ident, Error> {
    let ident = match value {
        Expr::Path(path) => path.path.get_ident().filter(|ident| *ident != "self").cloned(),
        _ => None,
    };
    ident.ok_or_else(|| expected("held", "a name for the held lock, such as `held`", value))
}

fn callable(value: Expr) -> Result<Expr, Error> {
    match literal(&value) {
        None => Ok(value),
        Some(_) => Err(expected("on_late_loss", "a function or `|value, error| …`", &value)),
    }
}
