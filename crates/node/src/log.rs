//! Structured logs on stderr.
//!
//! Owns: the subscriber of the process. Never: logs secrets; types with secrets hide them in their debug form.
//! Invariant: one event is one line, in text and in JSON.

use crate::config::{LogFormat, LogLevel};
use tracing_subscriber::filter::LevelFilter;

/// Starts logging for the process. A second call changes nothing.
pub fn start(level: LogLevel, format: LogFormat) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_ansi(false);
    // Fails only when logging was started before, as tests in one process do.
    drop(match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    });
}
