//! The annotated function, parsed as far as needed.
//!
//! In: the tokens of an item. Out: its signature, its body, and the names of its parameters.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{
    Attribute, Block, Error, Expr, ExprAsync, FnArg, Local, Pat, ReturnType, Safety, Signature,
    Stmt, Visibility,
};

const EXPECTED: &str = "`#[lock]` goes on an `async fn`";
const NO_BODY: &str =
    "`#[lock]` goes on a function with a body: where it is implemented, not declared";

/// A function whose body can run under a lock.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    /// The body of an `async fn`.
    Async(Group),
    /// `Box::pin(async move { .. })` after some statements: the expansion of an `async fn` by
    /// `#[async_trait]`. The block binds the parameters again.
    Boxed { before: Vec<Stmt>, parameters: Vec<Local>, inside: Vec<Stmt> },
}

impl Function {
    pub(crate) fn parse(item: TokenStream) -> Result<Self, Error> {
        let start = item.clone().into_iter().next().map_or_else(Span::call_site, |t| t.span());
        let (attributes, visibility, signature, rest) =
            head.parse2(item).map_err(|_| Error::new(start, EXPECTED))?;
        refuse_qualifiers(&signature)?;
        let Some(TokenTree::Group(body)) = braces(rest) else {
            return Err(Error::new(signature.ident.span(), NO_BODY));
        };
        let body = match signature.asyncness {
            Some(_) => Body::Async(body),
            None => boxed(&body).ok_or_else(|| Error::new(signature.fn_token.span, EXPECTED))?,
        };
        let function = Function { attributes, visibility, signature, body };
        function.must_return()?;
        Ok(function)
    }

    fn must_return(&self) -> Result<(), Error> {
        match self.signature.output {
            ReturnType::Default => Err(Error::new(
                self.signature.ident.span(),
                "a function under `#[lock]` must return a `Result`: the lock may be busy, or be lost",
            )),
            ReturnType::Type(..) => Ok(()),
        }
    }

    /// The names of the parameters.
    pub(crate) fn bindings(&self) -> Bindings {
        let mut names = Vec::new();
        for input in &self.signature.inputs {
            match input {
                FnArg::Receiver(receiver) => names.push(receiver.self_token.into()),
                FnArg::Typed(typed) => collect(&typed.pat, &mut names),
            }
        }
        if let Body::Boxed { parameters, .. } = &self.body {
            parameters.iter().for_each(|local| collect(&local.pat, &mut names));
        }
        Bindings { names }
    }
}

fn head(
    input: ParseStream<'_>,
) -> syn::Result<(Vec<Attribute>, Visibility, Signature, TokenStream)> {
    Ok((input.call(Attribute::parse_outer)?, input.parse()?, input.parse()?, input.parse()?))
}

fn braces(rest: TokenStream) -> Option<TokenTree> {
    let is_braces = |token: &TokenTree| matches!(token, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
    rest.into_iter().next().filter(is_braces)
}

fn refuse_qualifiers(signature: &Signature) -> Result<(), Error> {
    let refused = |span, what| {
        Err(Error::new(span, format!("`#[lock]` does not go on a function that is `{what}`")))
    };
    match signature {
        Signature { constness: Some(word), .. } => refused(word.span, "const"),
        Signature { safety: Safety::Unsafe(word), .. } => refused(word.span, "unsafe"),
        Signature { abi: Some(abi), .. } => refused(abi.extern_token.span, "extern"),
        _ => Ok(()),
    }
}

fn boxed(body: &Group) -> Option<Body> {
    let mut before = statements(body)?;
    let Some(Stmt::Expr(Expr::Call(call), None)) = before.pop() else { return None };
    let Expr::Path(callee) = &*call.func else { return None };
    let mut names = callee.path.segments.iter().rev().map(|segment| &segment.ident);
    let is_box_pin = names.next()? == "pin" && names.next()? == "Box";
    let Expr::Async(ExprAsync { block, .. }) = call.args.into_iter().next()? else { return None };
    let (mut parameters, mut inside) = (Vec::new(), Vec::new());
    for statement in block.stmts {
        match statement {
            Stmt::Local(local) if is_parameter(&local) => parameters.push(local),
            other => inside.push(other),
        }
    }
    is_box_pin.then_some(Body::Boxed { before, parameters, inside })
}

fn statements(body: &Group) -> Option<Vec<Stmt>> {
    syn::parse2::<Block>(body.to_token_stream()).ok().map(|block| block.stmts)
}

/// `let x = x;` or `let (a, b) = { …; __arg1 };`, as `#[async_trait]` generates them.
fn is_parameter(local: &Local) -> bool {
    let is_name = |value: &Expr, name: &dyn Fn(&Ident) -> bool| match value {
        Expr::Path(path) => path.path.get_ident().is_some_and(name),
        _ => false,
    };
    match (&local.pat, local.init.as_ref().map(|init| &*init.expr)) {
        (Pat::Ident(pattern), Some(value)) => is_name(value, &|name| *name == pattern.ident),
        (_, Some(Expr::Block(block))) => match block.block.stmts.last() {
            Some(Stmt::Expr(value, None)) => {
                is_name(value, &|name| name.to_string().starts_with("__arg"))
            }
            _ => false,
        },
        _ => false,
    }
}

/// The names of the parameters inside the function.
pub(crate) struct Bindings {
    names: Vec<Ident>,
}

impl Bindings {
    /// The parameter called `name`, or a text that lists the parameters.
    pub(crate) fn find(&self, name: &str) -> Result<&Ident, String> {
        let found = self.names.iter().find(|known| known.unraw() == name);
        found.ok_or_else(|| match name {
            "self" => "this function has no `self`".into(),
            _ => format!("no parameter is called `{name}`, {}", self.there_are()),
        })
    }

    fn there_are(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| format!("`{name}`")).collect();
        match names.as_slice() {
            [] => "there are none".into(),
            [only] => format!("there is {only}"),
            all => format!("there are {}", all.join(", ")),
        }
    }
}

/// Every name that a pattern binds.
fn collect(pattern: &Pat, names: &mut Vec<Ident>) {
    let mut each = |patterns: &mut dyn Iterator<Item = &Pat>| {
        patterns.for_each(|pattern| collect(pattern, names));
    };
    match pattern {
        Pat::Paren(inner) => collect(&inner.pat, names),
        Pat::Reference(inner) => collect(&inner.pat, names),
        Pat::Type(inner) => collect(&inner.pat, names),
        Pat::Tuple(inner) => each(&mut inner.elems.iter()),
        Pat::TupleStruct(inner) => each(&mut inner.elems.iter()),
        Pat::Slice(inner) => each(&mut inner.elems.iter()),
        Pat::Struct(inner) => each(&mut inner.fields.iter().map(|field| &*field.pat)),
        // All its cases bind the same names.
        Pat::Or(inner) => each(&mut inner.cases.iter().take(1)),
        Pat::Ident(inner) => {
            names.push(inner.ident.clone());
            if let Some((_, inner)) = &inner.subpat {
                collect(inner, names);
            }
        }
        _ => {}
    }
}
