//! What is no function, or has no body.

#[tenure::lock(key = "order")]
struct Order;

#[tenure::lock(key = "order")]
impl Order {}

trait Pay {
    #[tenure::lock(key = "order:{id}")]
    async fn pay(&self, id: u64) -> Result<(), tenure::Error>;
}

fn main() {}
