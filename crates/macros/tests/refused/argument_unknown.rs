//! Arguments that there are none of.

#[tenure::lock(key = "order:{id}", tll = "15s")]
async fn misspelt(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", status = 423)]
async fn elsewhere(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
