//! x
pub mod drive;
mod io;
