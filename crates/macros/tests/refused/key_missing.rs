//! A lock without a key.

#[tenure::lock]
async fn nothing_said(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(ttl = "15s")]
async fn no_key(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
