//! The segue command.
fn main() {}
