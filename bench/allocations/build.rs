//! Generates the messages for the server of `limits`, which this program starts too.

fn main() {
    let folder = "../limits/proto";
    let files = protox::compile([format!("{folder}/rls.proto")], [folder]).expect("rls.proto compiles");
    tonic_prost_build::configure().build_client(false).compile_fds(files).expect("code is generated");
}
