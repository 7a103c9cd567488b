//! A function that is known before the program runs has nothing to lock.

#[tenure::lock(key = "order:{id}")]
const fn constant(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
