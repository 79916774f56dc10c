//! The demo's program, without a mount.

use std::process::Command;

#[test]
fn demo_without_a_mount_keeps_everything() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = Command::new(env!("CARGO_BIN_EXE_syncline-demo"))
        .args(["--embedded", "--cuts", "1", "--json", "--keep-in"])
        .arg(directory.path().join("demo"))
        .output()
        .expect("the program starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    assert_eq!(figures["wrong"].as_array().expect("a list").len(), 0);
    assert_eq!(figures["check_errors"], 0);
    assert!(figures["acknowledged"].as_u64().expect("a number") > 10, "{figures}");
    assert!(figures["device_flushes"].as_u64().expect("a number") > 0);
}
