//! Compiles the files of `proto/` to Rust, and to the descriptors that gRPC reflection serves. Nobody has to install
//! protoc, because the crate protox does its work.

use std::path::PathBuf;
use std::{env, error, fs};

fn main() -> Result<(), Box<dyn error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_file("envoy/service/ratelimit/v3/rls.proto")?;
    fs::write(out.join("rls.fds"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .build_server(false)
        .emit_rerun_if_changed(false)
        .include_file("rls.rs")
        .compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
