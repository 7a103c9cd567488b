//! What stands in braces is a parameter or its field, and nothing else.

pub struct Order {
    id: u64,
}

#[tenure::lock(key = "order:{id + 1}")]
async fn sum(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{order.id()}")]
async fn call(order: Order) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{orders[0]}")]
async fn index(orders: Vec<u64>) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{order.}")]
async fn no_field(order: Order) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{ id }")]
async fn spaces(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id:?}")]
async fn debug(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id:>08}")]
async fn padded(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
