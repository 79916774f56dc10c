//! `syncline inspect`: what a volume stores, straight from the device.
//!
//! Nothing is replayed and nothing is repaired: the trees are shown as the last checkpoint wrote them, the journal as
//! it lies in its ring. A damaged structure is shown as damage, and what can still be reached is shown all the same.

mod journal;
mod path;
mod superblock;
mod tree;
mod trees;

use crate::arguments::{InspectArguments, Subject};
use crate::error::Failure;
use crate::output::Form;
use crate::volume::{Superblocks, open_to_read, superblocks};
use std::process::ExitCode;
use syncline_device::Device;
use syncline_format::ObjectNo;

/// What every subject needs.
struct Inspection<'a> {
    arguments: &'a InspectArguments,
    device: &'a dyn Device,
    superblocks: Superblocks,
    form: Form,
}

impl Inspection<'_> {
    fn device(&self) -> &dyn Device {
        self.device
    }

    /// The inode that was asked for, by its number or its path.
    fn inode(&self) -> Result<Option<ObjectNo>, Failure> {
        match &self.arguments.file {
            Some(file) => path::find(self, file).map(Some),
            None => Ok(self.arguments.inode.map(ObjectNo)),
        }
    }
}

/// For `map_err` on writes to standard output.
fn printing(source: std::io::Error) -> Failure {
    Failure::Io { doing: "cannot print".to_owned(), source }
}

/// Runs the command. Exit code: 1 if damage was met.
pub(crate) fn run(arguments: &InspectArguments) -> Result<ExitCode, Failure> {
    let names_one = arguments.inode.is_some() || arguments.file.is_some();
    match arguments.subject {
        Subject::Inode if !names_one => return Err(Failure::InodeNeeded),
        Subject::Journal | Subject::Tree if names_one && arguments.items => {}
        Subject::Super | Subject::Journal | Subject::Tree | Subject::Trees if names_one => {
            return Err(Failure::InodeUnused);
        }
        _ => {}
    }
    let device = open_to_read(&arguments.path)?;
    let superblocks = superblocks(&*device, &arguments.path)?;
    let form = Form::json_if(arguments.json);
    let inspection = Inspection { arguments, device: &*device, superblocks, form };
    let sound = match arguments.subject {
        Subject::Super => superblock::show(&inspection)?,
        Subject::Journal => journal::show(&inspection)?,
        Subject::Tree => tree::show_nodes(&inspection)?,
        Subject::Trees => trees::show(&inspection)?,
        Subject::Inode => tree::show_inode(&inspection)?,
        Subject::Extents => tree::show_extents(&inspection)?,
    };
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
