//! `syncline probe`: what a device holds, in the words that udev keeps of it (`ID_FS_...`), as blkid tells of the file
//! systems that it knows.
//!
//! A label and a UUID are whoever's made the volume, and udev hands them to shells and file names: what is not plainly
//! harmless is escaped or replaced, as udev itself does it.

use crate::arguments::ProbeArguments;
use crate::error::Failure;
use crate::output::{self, Form};
use crate::size::Size;
use crate::volume::{open_to_read, superblocks, uuid_text};
use serde_json::{Map, Value};
use std::process::ExitCode;
use syncline_format::BLOCK_BYTES;

/// What udev leaves as it is, of ASCII, in addition to letters and digits.
const HARMLESS: &str = "#+-.:=@_";

pub(crate) fn run(arguments: &ProbeArguments) -> Result<ExitCode, Failure> {
    let path = &arguments.path;
    let found = superblocks(&*open_to_read(path)?, path)?;
    let superblock = found.require(path)?;
    let uuid = uuid_text(&superblock.uuid);
    let version = if superblock.trees.is_some() { "2" } else { "1" };
    let mut words = vec![
        ("ID_FS_TYPE", "syncline".to_owned()),
        ("ID_FS_USAGE", "filesystem".to_owned()),
        ("ID_FS_VERSION", version.to_owned()),
        ("ID_FS_UUID", uuid.clone()),
        ("ID_FS_UUID_ENC", uuid),
    ];
    if !superblock.label.is_empty() {
        words.push(("ID_FS_LABEL", safe(&superblock.label)));
        words.push(("ID_FS_LABEL_ENC", encoded(&superblock.label)));
    }
    words.push(("ID_FS_SIZE", Size::of_blocks(superblock.layout.blocks).0.to_string()));
    words.push(("ID_FS_BLOCKSIZE", BLOCK_BYTES.to_string()));
    if arguments.json {
        let object: Map<String, Value> =
            words.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        output::object(Form::Json, &Value::from(object)).map_err(Failure::io("cannot print"))?;
    } else {
        for (name, value) in words {
            output::line(&format!("{name}={value}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_harmless(c: char) -> bool {
    c.is_ascii_alphanumeric() || HARMLESS.contains(c)
}

/// Readable: spaces become `_`, and so does what is not harmless. Letters beyond ASCII stay.
fn safe(label: &str) -> String {
    let replaced = |c: char| if is_harmless(c) || (!c.is_ascii() && c.is_alphanumeric()) { c } else { '_' };
    label.trim_end().chars().map(replaced).collect()
}

/// Reversible: what is not harmless becomes `\x20`, byte by byte. Characters beyond ASCII stay, but for those that a
/// terminal would obey.
fn encoded(label: &str) -> String {
    let mut text = String::new();
    for c in label.chars() {
        if is_harmless(c) || (!c.is_ascii() && !c.is_control()) {
            text.push(c);
            continue;
        }
        let mut bytes = [0; 4];
        text.extend(c.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_harmless_to_shells_and_in_paths() {
        let label = "my data/$(reboot)\n\u{1b}é";
        assert_eq!(safe(label), "my_data___reboot___é");
        assert_eq!(encoded(label), "my\\x20data\\x2f\\x24\\x28reboot\\x29\\x0a\\x1bé");
        assert_eq!((safe("a.b-c_1"), encoded("a.b-c_1")), ("a.b-c_1".to_owned(), "a.b-c_1".to_owned()));
    }
}
