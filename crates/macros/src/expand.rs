//! The function with its body under the lock.
//!
//! In: the function and the arguments. Out: the same function, in which the request is made first, of
//! the parameters, and the body then runs in one call of `tenure::attribute::run`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::visit_mut::{self, VisitMut};
use syn::{Error, ReturnType, Type, parse_quote};

use crate::args::{Args, Value};
use crate::function::{Bindings, Body, Function};

pub(crate) fn expand(function: &Function, args: &Args) -> Result<TokenStream, Error> {
    let Function { attributes, visibility, signature, body } = function;
    let body = match body {
        Body::Async(body) => under_lock(function, args, &returned(&signature.output), body)?,
        Body::Boxed { before, parameters, inside } => {
            let inside = under_lock(function, args, &TokenStream::new(), &quote!({ #(#inside)* }))?;
            quote! {
                #(#before)*
                ::std::boxed::Box::pin(async move { #(#parameters)* #inside })
            }
        }
    };
    Ok(quote!(#(#attributes)* #visibility #signature { #body }))
}

fn under_lock(
    function: &Function,
    args: &Args,
    returned: &TokenStream,
    body: &TokenStream,
) -> Result<TokenStream, Error> {
    let tenure = tenure(args);
    let request = request(args, &function.bindings())?;
    let held = args.held.as_ref().map_or_else(|| quote!(_), ToTokens::to_token_stream);
    Ok(quote! {
        let request = #request;
        #tenure::attribute::run(request, async move |#held: #tenure::Held| #returned #body).await
    })
}

fn tenure(args: &Args) -> TokenStream {
    args.tenure.as_ref().map_or_else(|| quote!(::tenure), ToTokens::to_token_stream)
}

/// The request, or why there is none.
fn request(args: &Args, bindings: &Bindings) -> Result<TokenStream, Error> {
    let (tenure, setters) = (tenure(args), setters(args, bindings)?);
    let (key, template) = (args.key.fill(bindings)?, args.key.literal());
    let ask =
        |locker| quote!(#tenure::Locker::lock_by_attribute(#locker, #template, #key) #(#setters)*);
    Ok(match &args.locker {
        Some(locker) => {
            let request = ask(quote!(&#locker));
            quote!(::core::result::Result::Ok(#request))
        }
        None => {
            let request = ask(quote!(locker));
            quote!(#tenure::installed().map(|locker| #request))
        }
    })
}

fn setters(args: &Args, bindings: &Bindings) -> Result<Vec<TokenStream>, Error> {
    let tenure = tenure(args);
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
        let label = label.fill(bindings)?;
        setters.push(quote!(.label(#label)));
    }
    if let Some(reason) = &args.reason {
        let reason = reason.fill(bindings)?;
        setters.push(quote!(.reason(#reason)));
    }
    setters.extend(args.name.as_ref().map(|name| quote!(.name(#name))));
    Ok(setters)
}

/// The return type, with a blank where a closure cannot say what a function can.
fn returned(output: &ReturnType) -> TokenStream {
    let mut output = output.clone();
    Blanks.visit_return_type_mut(&mut output);
    output.into_token_stream()
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
