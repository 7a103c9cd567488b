//! Times that are none.

#[tenure::lock(key = "order:{id}", ttl = "soon")]
async fn a_word(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", wait = "5")]
async fn no_unit(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", retry = "-50ms")]
async fn negative(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", ttl = 15)]
async fn a_number(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", wait = Duration::from_secs(5))]
async fn an_expression(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
