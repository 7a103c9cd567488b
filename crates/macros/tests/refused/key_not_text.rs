//! A key that is no text in quotes, or says nothing.

#[tenure::lock(key = id)]
async fn a_name(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = format!("order:{id}"))]
async fn an_expression(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "")]
async fn empty(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order\n{id}")]
async fn control(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
