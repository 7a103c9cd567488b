//! The attribute [`lock`] of tenure, which re-exports it as `tenure::lock`.
//!
//! In: an async function and what is said about its lock. Out: the same function, whose body runs under the
//! lock; or what is wrong, said where it stands.
//!
//! The modules in the order in which an attribute passes through them: `args` (what was said, with
//! `times` and `template`) → `function` (what it was said of) → `expand`.

mod args;
mod times;
mod template;
mod function;
mod expand;

use proc_macro::TokenStream;

use args::Args;
use function::Function;

/// Runs the body of an async function under a lock.
///
/// ```
/// # #[derive(Debug)] struct AppError;
/// # impl From<tenure::Error> for AppError { fn from(_: tenure::Error) -> Self { AppError } }
/// # async fn charge(_: u64, _: u32) -> Result<u32, AppError> { Ok(7) }
/// #[tenure::lock(key = "order:{order_id}", ttl = "15s", wait = "2s")]
/// async fn pay(order_id: u64, cents: u32) -> Result<u32, AppError> {
///     charge(order_id, cents).await // by one at a time for each order, whichever machine asks
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// tenure::install(tenure::connect("memory:").await?)?;
/// assert_eq!(pay(42, 999).await.unwrap(), 7);
/// # Ok(()) }
/// ```
///
/// The function returns a `Result` whose error is `From<tenure::Error>`. If the lock is not had, the
/// body does not run; if it is lost, the body is dropped at its next await point. Either comes back as
/// the function's error. The body's own error is never replaced by one of the release.
///
/// # Arguments
///
/// | argument | value | default |
/// |---|---|---|
/// | `key` | a template; required | |
/// | `locker` | where the locker is: `self.locker`, `state.locker`, `locker` | the [installed](https://docs.rs/tenure) one |
/// | `ttl` | a time, `"15s"` | the locker's, or 10 s |
/// | `wait` | a time, or `"forever"` | the locker's, or none |
/// | `retry` | a time: the pause between looks where nobody tells | the locker's, or 50 ms |
/// | `attempts` | a number: try this often instead of queueing | |
/// | `renew` | a time, a part of the ttl such as `0.25`, or `"off"` | the locker's, or a third of the ttl |
/// | `max_hold` | a time | the locker's, or none |
/// | `at_least` | a time | none |
/// | `fencing` | `true` or `false` | the locker's, or `true` |
/// | `reentry` | `"allow"` or `"refuse"` | `"allow"` |
/// | `within_process` | `"queue"` or `"fail"` | `"queue"` |
/// | `label`, `reason` | a template: what is shown with the lock | none |
/// | `name` | the label of metrics and spans | the text of `key` |
/// | `held` | a name by which the body knows the lock (`tenure::Held`): its fence, its loss | |
/// | `crate` | the path of `tenure`, where it goes by another name | `::tenure` |
///
/// In a template `{order_id}` is a parameter, `{order.id}` and `{self.tenant}` are fields; `{{` and `}}` are
/// braces. There are no expressions and no format specifications.
///
/// # Re-entry
///
/// What the body calls in the same task re-enters the locks that it holds. Two calls that are not
/// inside one another exclude each other, unless both run in the scope of one `tenure::Owner`.
#[proc_macro_attribute]
pub fn lock(args: TokenStream, item: TokenStream) -> TokenStream {
    lock_tokens(args.into(), item.into()).into()
}

fn lock_tokens(
    args: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> proc_macro2::TokenStream {
    let function = Function::parse(item.clone());
    let args = syn::parse2::<Args>(args);
    let expanded = match (function, args) {
        (Ok(function), Ok(args)) => expand::expand(&function, &args),
        (Err(mut error), Err(other)) => {
            error.combine(other);
            Err(error)
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    };
    expanded.unwrap_or_else(|error| {
        // The function stays, so that those who call it are not told that there is none; nor are those
        // parameters unused that only the lock would have used.
        let errors = error.into_compile_error();
        quote::quote!(#errors #[allow(unused_variables)] #item)
    })
}
