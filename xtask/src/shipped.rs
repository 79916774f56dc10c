//! What ships has no feature of tests and benchmarks: neither the switches of an experiment nor a mount that forgets.
//!
//! Cargo is asked which features it would give each crate; nothing is built.

use std::path::Path;
use std::process::Command;

/// The packages of `make build` and `make wheel`.
const PACKAGES: [&str; 4] = ["syncline-cli", "syncline-extension", "syncline-capi", "syncline-python"];
/// Features that none of their dependencies may have.
const FEATURES: [&str; 3] = ["ablation", "suite", "volatile"];

/// Adds a finding for each crate that would be shipped with such a feature.
pub fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["tree", "--offline", "--locked", "--edges", "normal,build"]);
    command.args(["--prefix", "none", "--format", "{p}|{f}"]);
    for package in PACKAGES {
        command.args(["--package", package]);
    }
    let output = command.output().map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    if !tree.contains("syncline-store") {
        return Err("cargo tree: the store is not in what ships; look at xtask/src/shipped.rs".to_owned());
    }
    findings.extend(found(&tree));
    Ok(())
}

/// Findings in lines of `package|feature,feature`.
fn found(tree: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (package, features) in tree.lines().filter_map(|line| line.split_once('|')) {
        let package = package.split(' ').next().unwrap_or(package);
        for feature in FEATURES {
            // A crate that stands for the second time has a mark behind its features.
            let has = features.split([',', ' ']).any(|one| one == feature);
            let finding = format!("Cargo.toml:1: {package} would ship with the feature {feature}");
            if package.starts_with("syncline") && has && !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_of_tests_is_found_once_and_other_crates_may_have_theirs() {
        let tree = "syncline-cli v0.1.0 (/x)|\nsyncline-fuse v0.1.0 (/x)|a,volatile\nsyncline-fuse v0.1.0 (/x)|a,volatile (*)\n\
                    other v1|volatile\nsyncline-store v0.1.0 (/x)|\n";
        assert_eq!(found(tree), ["Cargo.toml:1: syncline-fuse would ship with the feature volatile"]);
    }
}
