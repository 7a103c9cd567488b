//! All mistakes are reported at once.

#[tenure::lock(key = "order:{}", ttl = "15", speed = 3)]
fn wrong(id: u64) {}

fn main() {}
