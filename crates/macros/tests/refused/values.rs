//! Values of another kind.

#[tenure::lock(key = "order:{id}", attempts = 0)]
async fn no_attempt(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", renew = 0.5)]
async fn too_late(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", renew = false)]
async fn not_off(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", fencing = "no")]
async fn a_word(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", reentry = "never")]
async fn another_word(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", within_process = fail)]
async fn no_quotes(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", held = "guard")]
async fn quotes(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", label = 7)]
async fn a_number(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", on_late_loss = "keep")]
async fn no_function(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
