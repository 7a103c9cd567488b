//! Placeholders that name no parameter.

struct Orders;

#[tenure::lock(key = "order:{order}")]
async fn misspelt(order_id: u64, body: String) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{order_id}")]
async fn none() -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{self.tenant}")]
async fn no_self(tenant: &str) -> Result<(), tenure::Error> {
    Ok(())
}

impl Orders {
    #[tenure::lock(key = "order:{id}")]
    async fn method(&self, (a, b): (u64, u64)) -> Result<(), tenure::Error> {
        Ok(())
    }

    #[tenure::lock(key = "order", reason = "paying {id}")]
    async fn in_the_reason(&self) -> Result<(), tenure::Error> {
        Ok(())
    }
}

fn main() {}
