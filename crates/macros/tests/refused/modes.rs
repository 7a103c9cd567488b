//! Arguments for the mode that do not go together.

#[tenure::lock(key = "order:{id}", shared, slots = 8)]
async fn two_modes(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", slots = 2, permits = 3)]
async fn too_many(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", permits = 3)]
async fn permits_of_nothing(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", keys = ["order:{id}"])]
async fn both(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(keys = ["order:{id}"], shared)]
async fn shared_keys(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(keys = ["order:{id}"], slots = 2)]
async fn slots_of_keys(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
