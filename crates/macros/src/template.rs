//! Templates: text with `{parameter}` and `{parameter.field}` in it.
//!
//! In: a literal. Out: a [`Template`], and the code that fills it in with the [`Bindings`] of one function.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{Error, Index, LitStr, Member};

use crate::function::Bindings;

/// A parsed template.
pub(crate) struct Template {
    literal: LitStr,
    pieces: Vec<Piece>,
}

enum Piece {
    Text(String),
    Place(Place),
}

/// A placeholder: a parameter, and possibly its fields.
struct Place {
    shown: String,
    parameter: String,
    fields: Vec<Member>,
}

impl Template {
    /// Parses `literal`, the value of the argument `argument`.
    pub(crate) fn parse(argument: &str, literal: LitStr) -> Result<Self, Error> {
        let text = literal.value();
        let refused = |what| Error::new(literal.span(), format!("`{argument}`: {what}"));
        if text.is_empty() {
            return Err(refused("the template is empty".into()));
        }
        if let Some(control) = text.chars().find(|c| c.is_control()) {
            let shown = control.escape_debug();
            return Err(refused(format!("the template has the control character `{shown}`")));
        }
        let pieces = pieces(&text, literal.span()).map_err(refused)?;
        Ok(Template { literal, pieces })
    }

    /// The text as it was written.
    pub(crate) fn literal(&self) -> &LitStr {
        &self.literal
    }

    /// The code for the filled-in text: `macro_name!("order:{}", order_id)`.
    pub(crate) fn fill(&self, macro_name: &str, bindings: &Bindings) -> Result<TokenStream, Error> {
        let (mut format, mut values) = (String::new(), Vec::new());
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => format.push_str(&text.replace('{', "{{").replace('}', "}}")),
                Piece::Place(place) => {
                    format.push_str("{}");
                    values.push(place.value(bindings, self.literal.span())?);
                }
            }
        }
        let format = LitStr::new(&format, self.literal.span());
        let macro_name = Ident::new(macro_name, self.literal.span());
        Ok(quote_spanned!(self.literal.span()=> ::std::#macro_name!(#format #(, #values)*)))
    }
}

impl Place {
    fn value(&self, bindings: &Bindings, at: Span) -> Result<TokenStream, Error> {
        let parameter = bindings.find(&self.parameter).map_err(|there_are| {
            let shown = &self.shown;
            Error::new(at, format!("`{{{shown}}}`: {there_are}"))
        })?;
        // The name resolves at the parameter, and errors point to the template.
        let mut parameter = parameter.clone();
        parameter.set_span(parameter.span().located_at(at));
        let fields = &self.fields;
        Ok(quote!(#parameter #(. #fields)*))
    }
}

fn pieces(text: &str, at: Span) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut plain) = (Vec::new(), String::new());
    let mut rest = text;
    while let Some(found) = rest.find(['{', '}']) {
        let (before, after) = rest.split_at(found);
        let (brace, after) = after.split_at(1);
        plain.push_str(before);
        if let Some(after) = after.strip_prefix(brace) {
            plain.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err("`}` closes nothing, write `}}` for a brace".into());
        }
        let (inside, after) = after
            .split_once('}')
            .ok_or_else(|| format!("`{{{after}` is not closed, write `{{{{` for a brace"))?;
        pieces.push(Piece::Text(std::mem::take(&mut plain)));
        pieces.push(Piece::Place(place(inside, at)?));
        rest = after;
    }
    plain.push_str(rest);
    pieces.push(Piece::Text(plain));
    Ok(pieces)
}

fn place(inside: &str, at: Span) -> Result<Place, String> {
    if inside.is_empty() {
        return Err("`{}` names nothing, expected a parameter such as `{order_id}`".into());
    }
    let mut words = inside.split('.');
    let parameter = words.next().filter(|word| is_name(word));
    let fields: Option<Vec<Member>> = words.map(|word| member(word, at)).collect();
    match (parameter, fields) {
        (Some(parameter), Some(fields)) => {
            Ok(Place { shown: inside.into(), parameter: parameter.into(), fields })
        }
        _ if inside.contains(':') => Err(format!(
            "`{{{inside}}}` has a format specification, expected a plain `{{parameter}}`"
        )),
        _ => Err(format!(
            "`{{{inside}}}` is an expression, expected a parameter or its field, such as `{{order}}` or `{{order.id}}`"
        )),
    }
}

fn member(word: &str, at: Span) -> Option<Member> {
    match word.parse() {
        Ok(index) => Some(Member::Unnamed(Index { index, span: at })),
        Err(_) if is_name(word) => Some(Member::Named(name(word, at))),
        Err(_) => None,
    }
}

/// An identifier; a raw one if it is a keyword.
fn name(word: &str, at: Span) -> Ident {
    match syn::parse_str::<Ident>(word) {
        Ok(_) => Ident::new(word, at),
        Err(_) => Ident::new_raw(word, at),
    }
}

fn is_name(word: &str) -> bool {
    // These cannot even be raw identifiers. `self` is a parameter, and never a field.
    const NEVER: [&str; 4] = ["crate", "super", "Self", "_"];
    let mut letters = word.chars();
    let starts = letters.next().is_some_and(|c| c == '_' || c.is_alphabetic());
    starts && letters.all(|c| c == '_' || c.is_alphanumeric()) && !NEVER.contains(&word)
}
