//! Arguments that are given twice.

#[tenure::lock(key = "order:{id}", ttl = "15s", ttl = "20s")]
async fn ttl(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", key = "order:{id}")]
async fn key(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", crate = tenure, crate = ::tenure)]
async fn path(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
