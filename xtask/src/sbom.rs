//! The bill of materials of what ships: every crate that is compiled into the commands, the libraries and the wheel,
//! with version, licence and checksum, in SPDX 2.3 (JSON).
//!
//! The same commit and lock file give the same bytes: the time is the commit's.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What ships, and what it is.
const SHIPPED: &[(&str, &str)] = &[
    ("syncline-cli", "APPLICATION"),
    ("syncline-bench", "APPLICATION"),
    ("syncline-demo", "APPLICATION"),
    ("syncline-extension", "LIBRARY"),
    ("syncline-capi", "LIBRARY"),
    ("syncline-python", "LIBRARY"),
];
/// What all of them run on.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Writes the document to a file.
pub fn write(root: &Path, file: &Path) -> Result<(), String> {
    let metadata = metadata(root)?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))?;
    let (commit, time) = commit(root);
    let document = document(&metadata, &checksums(&lock), &commit, &time)?;
    let text = serde_json::to_string_pretty(&document).map_err(|error| error.to_string())?;
    fs::write(file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))
}

fn metadata(root: &Path) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["metadata", "--format-version=1", "--locked"]);
    let output = command
        .args(["--filter-platform", PLATFORM])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// The last commit and its time; sources without a history have neither, and get the beginning of time.
fn commit(root: &Path) -> (String, String) {
    let mut command = Command::new("git");
    command.current_dir(root).env("TZ", "UTC").args(["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"]);
    let told = command.arg("--format=%H %cd").output().ok().filter(|output| output.status.success());
    let told = told.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match told.as_deref().and_then(|told| told.split_once(' ')) {
        Some((commit, time)) => (commit.to_owned(), time.to_owned()),
        None => ("sources".to_owned(), "1970-01-01T00:00:00Z".to_owned()),
    }
}

/// SHA-256 of the package of each crate of a lock file, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for entry in lock.split("[[package]]") {
        let value = |key: &str| {
            let mut lines = entry.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        if let (Some(name), Some(version), Some(sum)) = (value("name"), value("version"), value("checksum")) {
            found.insert((name.to_owned(), version.to_owned()), sum.to_owned());
        }
    }
    found
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn document(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    commit: &str,
    time: &str,
) -> Result<Value, String> {
    let packages: BTreeMap<&str, &Value> =
        list(&metadata["packages"]).iter().map(|package| (text(package, "id"), package)).collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).iter().map(|node| (text(node, "id"), node)).collect();
    let mut roots = Vec::new();
    for (name, _) in SHIPPED {
        let package = packages.values().find(|package| text(package, "name") == *name);
        let package = package.ok_or_else(|| format!("{name} is no crate of the workspace"))?;
        roots.push(text(package, "id"));
    }
    let (reached, arrows) = reached(&roots, &nodes);
    let spdx_id = |id: &str| {
        let package = packages[id];
        format!("SPDXRef-{}-{}", idstring(text(package, "name")), idstring(text(package, "version")))
    };
    let described: Vec<Value> =
        reached.iter().map(|id| told(packages[id], &spdx_id(id), checksums)).collect();
    let mut relationships: Vec<Value> =
        roots.iter().map(|id| relationship("SPDXRef-DOCUMENT", "DESCRIBES", &spdx_id(id))).collect();
    let ids = arrows.iter().map(|(from, to)| (spdx_id(from), spdx_id(to))).collect::<BTreeSet<_>>();
    relationships.extend(ids.iter().map(|(from, to)| relationship(from, "DEPENDS_ON", to)));
    let version = env!("CARGO_PKG_VERSION");
    Ok(json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("syncline-{version}"),
        "documentNamespace": format!("urn:syncline:sbom:{version}:{commit}"),
        "creationInfo": {"created": time, "creators": [format!("Tool: syncline-xtask-{version}")]},
        "documentDescribes": roots.iter().map(|id| spdx_id(id)).collect::<Vec<_>>(),
        "packages": described,
        "relationships": relationships,
    }))
}

/// What the roots depend on, themselves included, and the arrows between. What only tests need is left out.
fn reached<'a>(
    roots: &[&'a str],
    nodes: &BTreeMap<&'a str, &'a Value>,
) -> (BTreeSet<&'a str>, BTreeSet<(&'a str, &'a str)>) {
    let (mut reached, mut arrows) = (BTreeSet::new(), BTreeSet::new());
    let mut pending = roots.to_vec();
    while let Some(id) = pending.pop() {
        if !reached.insert(id) {
            continue;
        }
        for dependency in nodes.get(id).map_or(&[][..], |node| list(&node["deps"])) {
            let ships = list(&dependency["dep_kinds"]).iter().any(|kind| text(kind, "kind") != "dev");
            if ships {
                arrows.insert((id, text(dependency, "pkg")));
                pending.push(text(dependency, "pkg"));
            }
        }
    }
    (reached, arrows)
}

/// Letters, digits, dots and hyphens are all that an identifier may have.
fn idstring(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '-' }).collect()
}

fn relationship(from: &str, kind: &str, to: &str) -> Value {
    json!({"spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to})
}

fn told(package: &Value, id: &str, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(package, "name"), text(package, "version"));
    let purpose = SHIPPED.iter().find(|(shipped, _)| *shipped == name).map_or("LIBRARY", |(_, kind)| kind);
    let mut told = json!({
        "name": name,
        "SPDXID": id,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": false,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence(text(package, "license")),
        "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": purpose,
    });
    if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        told["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": sum}]);
        told["externalRefs"] = json!([{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": format!("pkg:cargo/{name}@{}", version.replace('+', "%2B")),
        }]);
    }
    told
}

/// As an expression of SPDX: before there were such, crates wrote a slash for "or".
fn licence(declared: &str) -> String {
    match declared {
        "" => "NOASSERTION".to_owned(),
        _ => declared.split('/').map(str::trim).collect::<Vec<_>>().join(" OR "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
    }

    #[test]
    fn all_that_ships_is_told_with_its_licence_and_checksum_and_nothing_of_tests() {
        let lock = fs::read_to_string(root().join("Cargo.lock")).expect("the lock file");
        let metadata = metadata(root()).expect("cargo metadata");
        let made = document(&metadata, &checksums(&lock), "0", "2026-01-01T00:00:00Z").expect("made");
        let packages = list(&made["packages"]);
        let named = |name: &str| packages.iter().find(|package| package["name"] == name);
        for (name, _) in SHIPPED {
            assert!(named(name).is_some(), "{name}");
        }
        assert!(named("clap").is_some() && named("pyo3").is_some() && named("syncline-store").is_some());
        assert!(named("proptest").is_none() && named("tempfile").is_none_or(|one| one["name"] != "loom"));
        for package in packages {
            let (name, licence) = (text(package, "name"), text(package, "licenseDeclared"));
            assert!(!licence.contains('/') && licence != "NOASSERTION", "{name}: {licence}");
            let is_ours = name.starts_with("syncline") || name == "fusering";
            assert!(is_ours != package["checksums"].is_array(), "{name}");
        }
        let ids: BTreeSet<&str> = packages.iter().map(|package| text(package, "SPDXID")).collect();
        assert_eq!(ids.len(), packages.len());
        for arrow in list(&made["relationships"]) {
            assert!(ids.contains(text(arrow, "relatedSpdxElement")), "{arrow}");
        }
    }

    #[test]
    fn licences_of_older_crates_become_expressions() {
        assert_eq!(licence("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(licence("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(licence("Unlicense OR MIT"), "Unlicense OR MIT");
        assert_eq!(licence(""), "NOASSERTION");
    }
}
