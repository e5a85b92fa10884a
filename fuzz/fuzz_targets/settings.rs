//! Reads any bytes as a settings file and as an environment variable. The result must be settings, or errors that can
//! be printed.
//!
//! Settings are written by hand. Each mistake must cause an error that says how to fix it, and not a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spillgate_server::settings::{KEYS, SettingsFile, Sources, resolve};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (file, value) = text.split_once("\n=====\n").unwrap_or((text, ""));
    let key = &KEYS[data.len() % KEYS.len()];
    let environment = if value.is_empty() { Vec::new() } else { vec![(key.variable(), value.to_owned())] };
    let file = Some(SettingsFile { name: String::from("spillgate.yaml"), text: file.to_owned() });
    match resolve(&Sources { file, environment, ..Sources::default() }) {
        Ok(resolved) => assert_eq!(resolved.settings, resolved.settings.clone()),
        Err(errors) => {
            assert!(!errors.is_empty(), "invalid settings have at least one error");
            for error in errors {
                assert!(!error.to_string().is_empty() && !error.help().is_empty());
            }
        }
    }
});
