//! What the linked libraries show and need.

use crate::built::{has, libraries, skip, succeeded};
use crate::header::functions;
use std::path::Path;
use std::process::Command;

fn lines(program: &str, arguments: &[&str], file: &Path) -> Vec<String> {
    let output = Command::new(program).args(arguments).arg(file).output().expect("it runs");
    succeeded(&output);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn the_shared_library_shows_its_functions_with_their_version_and_nothing_else() {
    let name = "the_shared_library_shows_its_functions_with_their_version_and_nothing_else";
    let Some(libraries) = libraries(name) else { return };
    if !has("nm", "--version") || !has("readelf", "--version") {
        return skip(name, "nm or readelf is not installed");
    }
    let library = libraries.join("libsyncline.so.1");
    let mut shown = Vec::new();
    for line in lines("nm", &["-D", "--defined-only", "--with-symbol-versions"], &library) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The name of the version itself is an absolute symbol.
        if words[1] != "A" {
            assert_eq!(words[1], "T", "{line}");
            shown.push(words[2].to_owned());
        }
    }
    shown.sort();
    let wanted: Vec<String> = functions().into_keys().map(|name| format!("{name}@@SYNCLINE_1.0")).collect();
    assert_eq!(shown, wanted);

    let dynamic = lines("readelf", &["-dW"], &library);
    assert!(dynamic.iter().any(|line| line.contains("SONAME") && line.contains("[libsyncline.so.1]")));
    for needed in dynamic.iter().filter(|line| line.contains("NEEDED")) {
        let known = ["libc.so", "libgcc_s.so", "libm.so", "ld-linux", "libpthread.so", "libdl.so"];
        assert!(known.iter().any(|library| needed.contains(library)), "{needed}");
    }
    assert!(dynamic.iter().any(|line| line.contains("NODELETE")), "its threads outlive a dlclose");
}

#[test]
fn the_static_library_shows_its_functions_and_nothing_else() {
    let name = "the_static_library_shows_its_functions_and_nothing_else";
    let Some(libraries) = libraries(name) else { return };
    if !has("nm", "--version") {
        return skip(name, "nm is not installed");
    }
    let mut shown = lines(
        "nm",
        &["--defined-only", "--extern-only", "--format=just-symbols"],
        &libraries.join("libsyncline.a"),
    );
    shown.retain(|line| !line.is_empty() && !line.ends_with(':'));
    shown.sort();
    assert_eq!(shown, functions().into_keys().collect::<Vec<_>>());
}
