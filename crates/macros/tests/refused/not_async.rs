//! A function that is not async.

#[tenure::lock(key = "order:{id}")]
fn blocking(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}")]
pub fn by_hand(id: u64) -> impl Future<Output = Result<(), tenure::Error>> {
    async move { Ok(()) }
}

fn main() {}
