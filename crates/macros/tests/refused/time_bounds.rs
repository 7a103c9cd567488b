//! Times that no engine would keep.

#[tenure::lock(key = "order:{id}", ttl = "0s")]
async fn zero(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", ttl = "10500us")]
async fn a_fraction(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", ttl = "2years")]
async fn for_ever(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", retry = "1ms")]
async fn a_busy_loop(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", max_hold = "0s")]
async fn not_at_all(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
