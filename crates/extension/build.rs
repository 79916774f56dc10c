//! The extension lies in a library directory, where a library has to say its name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsyncline_sqlite.so");
}
