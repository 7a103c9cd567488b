//! The function with its body under the lock.
//!
//! In: the function and the arguments. Out: the same function, in which the request is made first, of
//! the parameters, and the body then runs in one call of `tenure::attribute::run`.

use proc_macro2::{Delimiter, Group, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Error, ReturnType, Type, parse_quote};

use crate::args::{Args, Value};
use crate::function::{Bindings, Body, Function};
use crate::template::Template;

pub(crate) fn expand(function: &Function, args: &Args) -> Result<TokenStream, Error> {
    let Function { attributes, visibility, signature, body } = function;
    let body = match body {
        Body::Async(body) => under_lock(function, args, &typed(&signature.output, body))?,
        Body::Boxed { before, parameters, inside } => {
            let inside = under_lock(function, args, &quote!(#(#inside)*))?;
            quote! {
                #(#before)*
                ::std::boxed::Box::pin(async move { #(#parameters)* #inside })
            }
        }
    };
    Ok(quote!(#(#attributes)* #visibility #signature { #body }))
}

fn under_lock(function: &Function, args: &Args, body: &TokenStream) -> Result<TokenStream, Error> {
    let request = request(args, key(function, args)?, &function.bindings())?;
    let held = args.held.as_ref().map_or_else(|| quote!(_), ToTokens::to_token_stream);
    // Where the return type stands: it is what a refusal of this call is about.
    let at = Span::mixed_site().located_at(match &function.signature.output {
        ReturnType::Type(_, returned) => returned.span(),
        ReturnType::Default => Span::mixed_site(),
    });
    let tenure = tenure(args, at);
    Ok(quote_spanned! {at=>
        let request = #request;
        #tenure::attribute::run(request, async move |#held: #tenure::Held| { #body }).await
    })
}

/// The body, told what the function returns: `return`, `?` and coercions go by that.
fn typed(output: &ReturnType, body: &Group) -> TokenStream {
    let ReturnType::Type(_, returned) = output else { return body.to_token_stream() };
    let returned = without_impl(returned);
    // Braces of our own, or a body of one line would be told that it needs none.
    let mut braces = Group::new(Delimiter::Brace, body.stream());
    braces.set_span(Span::mixed_site().located_at(body.span()));
    quote! {
        if let ::core::option::Option::Some(done) = ::core::option::Option::None::<#returned> {
            return done;
        }
        #[allow(clippy::diverging_sub_expression, clippy::let_with_type_underscore)]
        let done: #returned = #braces;
        #[allow(unreachable_code)]
        done
    }
}

fn tenure(args: &Args, at: Span) -> TokenStream {
    args.tenure.as_ref().map_or_else(|| quote_spanned!(at=> ::tenure), ToTokens::to_token_stream)
}

fn key<'a>(function: &Function, args: &'a Args) -> Result<&'a Template, Error> {
    let what = "`#[lock]` needs a key, such as `key = \"order:{order_id}\"`";
    args.key.as_ref().ok_or_else(|| Error::new(function.signature.ident.span(), what))
}

/// The request, or why there is none.
fn request(args: &Args, key: &Template, bindings: &Bindings) -> Result<TokenStream, Error> {
    let (tenure, setters) = (tenure(args, Span::mixed_site()), setters(args, bindings)?);
    let (key, template) = (key.fill("format_args", bindings)?, key.literal());
    let ask =
        |locker| quote!(#tenure::Locker::lock_by_attribute(#locker, #template, #key) #(#setters)*);
    Ok(match &args.locker {
        Some(locker) => {
            let at = Span::mixed_site().located_at(locker.span());
            let request = ask(quote_spanned!(at=> &#locker));
            quote!(::core::result::Result::Ok(#request))
        }
        None => {
            let request = ask(quote!(locker));
            quote!(#tenure::installed().map(|locker| #request))
        }
    })
}

fn setters(args: &Args, bindings: &Bindings) -> Result<Vec<TokenStream>, Error> {
    let tenure = tenure(args, Span::mixed_site());
    let mut setters: Vec<_> = args
        .setters
        .iter()
        .map(|setter| {
            let name = &setter.name;
            match &setter.value {
                Value::Nothing => quote!(.#name()),
                Value::Plain(value) => quote!(.#name(#value)),
                Value::Ours(value) => quote!(.#name(#tenure::#value)),
            }
        })
        .collect();
    if let Some(label) = &args.label {
        let label = label.fill("format", bindings)?;
        setters.push(quote!(.label(#label)));
    }
    if let Some(reason) = &args.reason {
        let reason = reason.fill("format", bindings)?;
        setters.push(quote!(.reason(#reason)));
    }
    setters.extend(args.name.as_ref().map(|name| quote!(.name(#name))));
    Ok(setters)
}

/// The type with a blank where only the signature of a function can say `impl`.
fn without_impl(ty: &Type) -> Type {
    let mut ty = ty.clone();
    Blanks.visit_type_mut(&mut ty);
    ty
}

struct Blanks;

impl VisitMut for Blanks {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        match ty {
            Type::ImplTrait(_) => *ty = parse_quote!(_),
            _ => visit_mut::visit_type_mut(self, ty),
        }
    }
}
