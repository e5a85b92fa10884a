//! Generates the code of the gRPC server without protoc.

fn main() {
    let files = protox::compile(["proto/rls.proto"], ["proto"]).expect("proto/rls.proto compiles");
    tonic_prost_build::configure().build_client(false).compile_fds(files).expect("code is generated");
}
