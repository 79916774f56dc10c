//! Names and inodes: everything that changes which name leads to which inode.

mod table;

pub(crate) use table::InodeTable;
