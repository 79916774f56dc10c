//! What tracers read of this very program.

use std::io::Write;
use std::process::Command;

/// Fired where nobody looks: nothing happens.
#[inline(never)]
fn fire_all(number: u64) {
    syncline_probes::sync_start(number as u32);
    syncline_probes::seal(number, 2 * number);
    syncline_probes::flush_end(number);
    syncline_probes::reply(number as u32, number);
}

#[test]
fn tracers_find_each_probe_with_its_arguments() {
    for number in 0..1000 {
        fire_all(std::hint::black_box(number));
    }
    let program = std::env::current_exe().unwrap();
    let Ok(output) = Command::new("readelf").args(["--notes", "--wide"]).arg(&program).output() else {
        let line = "skipped: tracers_find_each_probe_with_its_arguments: there is no readelf";
        writeln!(std::io::stderr(), "{line}").unwrap();
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return assert!(!text.contains("syncline"), "{text}");
    }
    for (name, arguments) in [("sync_start", 1), ("seal", 2), ("flush_end", 1), ("reply", 2)] {
        let note = text.split("Provider: syncline").find(|note| note.contains(&format!("Name: {name}\n")));
        let note = note.unwrap_or_else(|| panic!("{name} is missing: {text}"));
        let told = note.lines().find(|line| line.contains("Arguments:")).unwrap_or_default();
        assert_eq!(told.matches("8@").count(), arguments, "{name}: {told}");
        assert!(note.contains("Semaphore: 0x0000000000000000"), "{note}");
        assert!(!note.contains("Location: 0x0000000000000000"), "{note}");
    }
}
