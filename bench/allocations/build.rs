//! Generates the gRPC messages of the tonic server in the folder `bench/limits`. The program `allocations` starts this
//! server in its own process.

fn main() {
    let folder = "../limits/proto";
    let files = protox::compile([format!("{folder}/rls.proto")], [folder]).expect("rls.proto compiles");
    tonic_prost_build::configure().build_client(false).compile_fds(files).expect("code is generated");
}
