//! Arguments that are not `name = value`, separated by commas.

#[tenure::lock("order:{id}")]
async fn bare(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", ttl)]
async fn no_value(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", ttl = )]
async fn nothing_after(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}" ttl = "15s")]
async fn no_comma(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", ttl("15s"))]
async fn call(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
