//! The options of the memory store that the settings choose.
//!
//! A replay needs the same options as the server, because a full store changes decisions.

use spillgate::sketch::has_memory;
use spillgate::units::format_bytes;
use spillgate::{MemoryOptions, OnFull};

use crate::command::terminal::Problem;
use crate::settings::Settings;

/// Returns the options of the memory store.
pub(crate) fn options(settings: &Settings) -> Result<MemoryOptions, Problem> {
    let memory = MemoryOptions {
        max_keys: settings.memory.max_keys,
        max_heap_bytes: settings.memory.max_heap,
        on_full: match settings.memory.on_full {
            OnFull::Sketch { .. } => OnFull::Sketch { bytes: settings.memory.sketch },
            on_full => on_full,
        },
    };
    if let OnFull::Sketch { bytes } = memory.on_full {
        // Without this check, the process would end if the operating system does not have this memory.
        if !has_memory(bytes) {
            let message = format!("the operating system has no memory for a sketch of {}", format_bytes(bytes as u64));
            return Err(Problem::new(message, "lower `memory.sketch`, or give the server more memory"));
        }
    }
    Ok(memory)
}
