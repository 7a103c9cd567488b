//! Generates the function with its body under the lock.
//!
//! In: the function and the arguments. Out: the same function, which first builds the request from its
//! parameters and then runs the body in one call of `tenure::scoped::run`.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Error, ReturnType, Type, parse_quote};

use crate::args::{Args, How, KeyOf, Target, Value};
use crate::function::{Bindings, Body, Function};

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
    let target = target(function, args)?;
    let request = request(args, target, &function.bindings())?;
    let held = args.held.as_ref().map_or_else(|| quote!(_), ToTokens::to_token_stream);
    // The position of the return type: errors about this call are about that type.
    let at = Span::mixed_site().located_at(match &function.signature.output {
        ReturnType::Type(_, returned) => returned.span(),
        ReturnType::Default => Span::mixed_site(),
    });
    let tenure = tenure(args, at);
    let on_late_loss = args.on_late_loss.as_ref().map(|result| quote!(, #result));
    let (run, view) = match (target, &on_late_loss) {
        (Target::Key(..), None) => ("run", "Held"),
        (Target::Key(..), Some(_)) => ("run_keeping", "Held"),
        (Target::Keys(_), None) => ("run_all", "HeldAll"),
        (Target::Keys(_), Some(_)) => ("run_all_keeping", "HeldAll"),
    };
    let (run, view) = (Ident::new(run, at), Ident::new(view, at));
    Ok(quote_spanned! {at=>
        let request = #request;
        #tenure::scoped::#run(request, async move |#held: #tenure::#view| { #body } #on_late_loss).await
    })
}

/// The body with the function's return type, which `return`, `?` and coercions need.
fn typed(output: &ReturnType, body: &Group) -> TokenStream {
    let ReturnType::Type(_, returned) = output else { return body.to_token_stream() };
    let returned = without_impl(returned);
    // New braces, or the compiler would warn about unneeded braces around a body of one line.
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

fn target<'a>(function: &Function, args: &'a Args) -> Result<&'a Target, Error> {
    let what = "`#[lock]` needs a key, such as `key = \"order:{order_id}\"`";
    args.target.as_ref().ok_or_else(|| Error::new(function.signature.ident.span(), what))
}

/// Code for a `Result` with the request: an error if it needs the installed locker and there is none.
fn request(args: &Args, target: &Target, bindings: &Bindings) -> Result<TokenStream, Error> {
    let (tenure, setters) = (tenure(args, Span::mixed_site()), setters(args, bindings)?);
    let (function, values) = call(target, bindings)?;
    let keys = keys(target, bindings)?;
    let ask = |locker| quote!(#tenure::Locker::#function(#locker, #values) #(#keys)* #(#setters)*);
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

/// The function of the locker that makes the request, and its arguments after the locker.
fn call(target: &Target, bindings: &Bindings) -> Result<(Ident, TokenStream), Error> {
    let at = Span::mixed_site();
    let (key, how) = match target {
        Target::Key(key, how) => (key, how),
        Target::Keys(keys) => {
            let name = keys.iter().map(|key| key.template.literal().value()).collect::<Vec<_>>();
            let name = name.join(" ");
            return Ok((Ident::new("lock_all_for_macro", at), quote!(#name)));
        }
    };
    let (template, key) = (key.literal(), key.fill("format_args", bindings)?);
    Ok(match how {
        How::Alone => (Ident::new("lock_for_macro", at), quote!(#template, #key)),
        How::Shared => (Ident::new("read_for_macro", at), quote!(#template, #key)),
        How::Permits { slots, permits } => {
            let permits = permits.as_ref().map_or_else(|| quote!(1), ToTokens::to_token_stream);
            (Ident::new("permits_for_macro", at), quote!(#template, #key, #slots, #permits))
        }
    })
}

/// The calls that add the keys of a request for several.
fn keys(target: &Target, bindings: &Bindings) -> Result<Vec<TokenStream>, Error> {
    let Target::Keys(keys) = target else { return Ok(Vec::new()) };
    let add = |key: &KeyOf| {
        let (template, filled) =
            (key.template.literal(), key.template.fill("format_args", bindings)?);
        Ok(match key.reads {
            true => quote!(.read_for_macro(#template, #filled)),
            false => quote!(.key_for_macro(#template, #filled)),
        })
    };
    keys.iter().map(add).collect()
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

/// The type with `_` in place of every `impl Trait`, which is allowed only in a signature.
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
