#[global_allocator]
static A: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
fn main() { println!("{}", std::mem::size_of::<dynamo_kv_router::RadixTree>()); }
