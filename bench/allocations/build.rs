//! Generates the gRPC messages of the servers in the folder `limits`, because this program starts these servers too.

fn main() {
    let folder = "../limits/proto";
    let files = protox::compile([format!("{folder}/rls.proto")], [folder]).expect("rls.proto compiles");
    tonic_prost_build::configure().build_client(false).compile_fds(files).expect("code is generated");
}
