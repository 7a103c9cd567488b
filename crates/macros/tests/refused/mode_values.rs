//! Arguments for the mode with values of another kind.

#[tenure::lock(key = "order:{id}", shared = true)]
async fn a_value(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", slots = 0)]
async fn no_slots(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", slots = "8")]
async fn a_text(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(key = "order:{id}", slots = 8, permits = 0)]
async fn no_permits(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(keys = "order:{id}")]
async fn no_list(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(keys = [])]
async fn no_keys(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(keys = ["order:{id}", write("rates")])]
async fn another_word(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(keys = ["order:{id}", read(7)])]
async fn a_number(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

#[tenure::lock(keys = ["order:{id}", "acct:{other}"])]
async fn no_parameter(id: u64) -> Result<(), tenure::Error> {
    Ok(())
}

fn main() {}
