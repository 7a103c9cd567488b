//! Times that do not go together.

#[tenure::lock(key = "order:{id}", ttl = "15s", renew = "10s")]
async fn late(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", max_hold = "5s", min_hold = "10s")]
async fn odd(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
