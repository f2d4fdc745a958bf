//! Opened by its first capability.
