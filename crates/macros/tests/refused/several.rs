//! Everything that is wrong is told at once.

#[tenure::lock(key = "order:{}", ttl = "15", speed = 3)]
fn wrong(id: u64) {}

fn main() {}
