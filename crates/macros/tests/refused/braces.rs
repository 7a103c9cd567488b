//! Braces that do not match.

#[tenure::lock(key = "order:{id")]
async fn open(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:id}")]
async fn closed(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{}")]
async fn empty(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
