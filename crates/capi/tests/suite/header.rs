//! The header says what the Rust functions are: each signature and each layout is compared by C compilers.

use crate::built::{has, include, root, skip, succeeded};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;
use syn::{FnArg, Item, ItemFn, ReturnType, Type};
use syncline_capi::abi;

/// Names of Rust types in C. The names of structures are the same.
const NAMES: &[(&str, &str)] = &[
    ("c_char", "char"),
    ("c_void", "void"),
    ("c_int", "int"),
    ("u8", "uint8_t"),
    ("u32", "uint32_t"),
    ("u64", "uint64_t"),
    ("i64", "int64_t"),
    ("usize", "size_t"),
    ("isize", "ssize_t"),
    ("timespec", "struct timespec"),
    ("syncline_callback", "syncline_callback"),
    ("syncline_change_callback", "syncline_change_callback"),
];

fn c_type(rust: &Type) -> String {
    match rust {
        Type::Ptr(pointer) => {
            let to = c_type(&pointer.elem);
            let constant = if pointer.const_token.is_some() { " const" } else { "" };
            format!("{to}{constant} *")
        }
        Type::Path(path) => {
            let name = path.path.segments.last().expect("a name").ident.to_string();
            let known = NAMES.iter().find(|(rust, _)| *rust == name);
            known.map_or_else(|| format!("struct {name}"), |(_, c)| (*c).to_owned())
        }
        other => panic!("no type of C: {}", quote::quote!(#other)),
    }
}

fn prototype(function: &ItemFn) -> String {
    let arguments: Vec<String> = function
        .sig
        .inputs
        .iter()
        .map(|argument| match argument {
            FnArg::Typed(argument) => c_type(&argument.ty),
            FnArg::Receiver(_) => panic!("a method is no function of C"),
        })
        .collect();
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    let ReturnType::Type(_, returned) = &function.sig.output else { panic!("it returns something") };
    format!("{} {}({arguments});", c_type(returned), function.sig.ident)
}

/// The functions of the library, by name, as prototypes.
pub fn functions() -> BTreeMap<String, String> {
    let mut functions = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("crates/capi/src")).expect("the sources are there") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("it is read");
        for item in syn::parse_file(&text).expect("it is Rust").items {
            let Item::Fn(function) = item else { continue };
            let exported = function.attrs.iter().any(|attribute| {
                quote::quote!(#attribute).to_string().replace(' ', "").contains("unsafe(no_mangle)")
            });
            if exported {
                let abi = function.sig.abi.as_ref().and_then(|abi| abi.name.as_ref()).map(syn::LitStr::value);
                assert_eq!(abi.as_deref(), Some("C"));
                functions.insert(function.sig.ident.to_string(), prototype(&function));
            }
        }
    }
    functions
}

/// `struct`, field, offset and size.
macro_rules! layout {
    ($($structure:ident { $($field:ident),* })*) => {
        [$((
            stringify!($structure),
            size_of::<abi::$structure>(),
            vec![$((stringify!($field), offset_of!(abi::$structure, $field))),*],
        )),*]
    };
}

fn layouts() -> Vec<String> {
    let mut asserted = Vec::new();
    let layouts = layout! {
        syncline_open_options {
            size, flags, access_times, wait_for_lock_ms, commit_interval_ms, memory_bytes_max, uid, gid, umask, reserved,
            head
        }
        syncline_create_options { size, volume_bytes, journal_bytes, label, uuid, root_uid, root_gid, root_mode, format }
        syncline_stat {
            ino, size, blocks, rdev, mode, nlink, uid, gid, accessed, modified, changed, created, flags, reserved
        }
        syncline_statvfs { blocks, blocks_free, blocks_available, id, block_bytes, name_bytes_max, reserved }
        syncline_snapshot_info { number, flags, made, uuid, name }
        syncline_change { kind, flags, path, from }
        syncline_head_info { number, flags, made, uuid, name, parent }
        syncline_dirent { ino, name_bytes, name }
    };
    for (structure, size, fields) in layouts {
        asserted.push(format!("sizeof(struct {structure}) == {size}"));
        for (field, offset) in fields {
            asserted.push(format!("offsetof(struct {structure}, {field}) == {offset}"));
        }
    }
    asserted.push(format!(
        "offsetof(struct syncline_dirent, type) == {}",
        offset_of!(abi::syncline_dirent, r#type)
    ));
    for (name, number) in [
        ("SYNCLINE_DATA", abi::SYNCLINE_DATA),
        ("SYNCLINE_OPEN_READ_ONLY", abi::SYNCLINE_OPEN_READ_ONLY),
        ("SYNCLINE_OPEN_OWNER", abi::SYNCLINE_OPEN_OWNER),
    ] {
        asserted.push(format!("{name} == {number}"));
    }
    asserted
}

/// Once more what the header says, by what Rust says: a compiler refuses a declaration that differs from the first.
#[test]
fn the_header_has_the_signatures_and_layouts_of_the_library() {
    let directory = tempfile::tempdir().expect("a directory");
    let functions = functions();
    assert!(functions.len() > 70, "the sources were not understood");
    for (compiler, standard, extension) in [("cc", "-std=c11", "c"), ("c++", "-std=c++11", "cc")] {
        if !has(compiler, "--version") {
            skip(
                "the_header_has_the_signatures_and_layouts_of_the_library",
                &format!("there is no {compiler}"),
            );
            continue;
        }
        let assert = if extension == "c" { "_Static_assert" } else { "static_assert" };
        // On its own first: it includes what it needs. Then with that of the ioctls, in either order.
        let mut text = "#include <syncline/syncline.h>\n".to_owned();
        text += "#include <syncline/ioctl.h>\n#include <syncline/syncline.h>\n";
        text += "#ifdef __cplusplus\nextern \"C\" {\n#endif\n";
        functions.values().for_each(|prototype| text += &format!("{prototype}\n"));
        text += "#ifdef __cplusplus\n}\n#endif\n";
        layouts().iter().for_each(|condition| text += &format!("{assert}({condition}, \"layout\");\n"));
        let source = directory.path().join("header").with_extension(extension);
        std::fs::write(&source, text).expect("write");
        let output = Command::new(compiler)
            .args([
                standard,
                "-D_GNU_SOURCE",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Wno-array-parameter",
                "-Werror",
                "-fsyntax-only",
                "-I",
            ])
            .arg(include())
            .arg(&source)
            .output()
            .expect("it runs");
        succeeded(&output);
    }
}

#[test]
fn every_function_is_in_the_header_and_has_a_version() {
    let functions: Vec<String> = functions().into_keys().collect();
    let words = |path: &str| -> Vec<String> {
        let text = std::fs::read_to_string(root().join(path)).expect("it is read");
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.split(|c| !is_part(c)).map(str::to_owned).collect()
    };
    let mut versioned = words("crates/capi/libsyncline.map");
    versioned.retain(|word| word.starts_with("syncline_"));
    assert_eq!(versioned, functions, "the map has each once, in order");
    let declared = words("include/syncline/syncline.h");
    for function in &functions {
        assert!(declared.contains(function), "{function} is not in the header");
    }
}

#[test]
fn the_pkg_config_file_and_the_header_tell_the_version() {
    let header = std::fs::read_to_string(include().join("syncline/syncline.h")).expect("it is read");
    assert!(header.contains(&format!("\"{}\"", env!("CARGO_PKG_VERSION"))));
    // SAFETY: a static string.
    let version = unsafe { std::ffi::CStr::from_ptr(syncline_capi::syncline_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}
