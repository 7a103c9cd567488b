//! The attribute [`lock`] of tenure, which re-exports it as `tenure::lock`.
//!
//! In: an async function and the arguments for its lock. Out: the same function, whose body runs under the
//! lock; or compile errors at the place of each mistake.
//!
//! The modules, in the order in which an attribute passes through them: `args` (the arguments, with `times`
//! and `template`) → `function` (the annotated function) → `expand`.

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
///     charge(order_id, cents).await // one at a time for each order, on all machines
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tenure::Error> {
/// tenure::install(tenure::connect("memory:").await?)?;
/// assert_eq!(pay(42, 999).await.unwrap(), 7);
/// # Ok(()) }
/// ```
///
/// The function returns a `Result` whose error is `From<tenure::Error>`. If the lock is not acquired, the
/// body does not run. If the lock is lost, the body is dropped at its next await point. Both are returned as
/// the function's error. The body's own error is never replaced by an error of the release. If the loss is
/// found after the body succeeded, `is_late_loss()` of the error is true and the body's value is dropped, unless
/// `on_late_loss` decides what to return.
///
/// # Arguments
///
/// | argument | value | default |
/// |---|---|---|
/// | `key` | a template; it or `keys` is required | |
/// | `shared` | no value: holds the key together with other readers | alone |
/// | `slots` | a number, or an expression of type `u32`: holds one of so many permits | alone |
/// | `permits` | with `slots`: how many of the permits | 1, which is numbered |
/// | `keys` | a list of templates, some in `read("…")`: holds all keys, or none | |
/// | `locker` | an expression: `self.locker`, `state.locker`, `locker` | the [installed](https://docs.rs/tenure) one |
/// | `ttl` | a time, `"15s"` | the locker's, or 10 s |
/// | `wait` | a time, or `"forever"` | the locker's, or none |
/// | `unavailable_after` | a time: how long the engine may send no reply | the locker's, or as long as the wait |
/// | `retry` | a time: the pause between polls if the engine sends no notification | the locker's, or 50 ms |
/// | `attempts` | a number: try this many times instead of queueing | |
/// | `renew` | a time, a fraction of the ttl such as `0.25`, or `"off"` | the locker's, or a third of the ttl |
/// | `max_hold` | a time | the locker's, or none |
/// | `min_hold` | a time | none |
/// | `fencing` | `true` or `false` | the locker's, or `true` |
/// | `reentry` | `"allow"` or `"refuse"` | `"allow"` |
/// | `within_process` | `"queue"` or `"fail"` | the locker's, or `"queue"` |
/// | `label`, `reason` | a template: shown with the lock | none |
/// | `name` | the label of metrics and spans | the text of `key` |
/// | `held` | a name for the lock (`tenure::Held`) in the body: its fence, slot, loss; with `keys` a `HeldAll` | |
/// | `on_late_loss` | a function or closure `(value, error) -> Result` for a loss after success | the error |
/// | `crate` | the path of `tenure`, if it has another name | `::tenure` |
///
/// In a template `{order_id}` is a parameter, `{order.id}` and `{self.tenant}` are fields; `{{` and `}}` are
/// braces. There are no expressions and no format specifications.
///
/// # Re-entry
///
/// Functions that the body calls in the same task re-enter the locks that it holds. Two calls that are not
/// nested exclude each other, unless both run in the scope of one `tenure::Owner`.
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
        // The function itself is kept, so that its callers get no error about a missing function. Parameters
        // that only the lock would have used get no warning.
        let errors = error.into_compile_error();
        quote::quote!(#errors #[allow(unused_variables)] #item)
    })
}
