//! A function that cannot say that there was no lock.

#[tenure::lock(key = "order:{id}")]
async fn silent(id: u64) {}

fn main() {}
