//! Functions that are more than async.

#[tenure::lock(key = "order:{id}")]
async unsafe fn dangerous(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}")]
async extern "C" fn foreign(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
