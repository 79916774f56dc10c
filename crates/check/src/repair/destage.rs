//! Turns page images into extents, as recovery does.

use super::allocator::Allocator;
use super::edits::Editor;
use super::write;
use crate::CheckError;
use crate::facts::{Facts, InodeFacts};
use crate::journal::Journal;
use crate::replay::ImageAt;
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentItem, InodeItem};
use syncline_format::tree_item::OverlayItem;
use syncline_format::{BLOCK_BYTES, Key, ObjectNo, TreeId, checksum};

impl Editor<'_> {
    /// Writes every image of a file of the tree that exists to free blocks, and puts the extents into the overlay.
    pub(crate) fn destage(&mut self, facts: &Facts, allocator: &mut Allocator<'_>) -> Result<(), CheckError> {
        let images = self.replay.take_images(self.tree);
        let mut run: Vec<ImageAt> = Vec::new();
        let mut images = images.into_iter().peekable();
        while let Some(((tree, object, page), image)) = images.next() {
            run.push(image);
            let first = page + 1 - run.len() as u64;
            let goes_on = images.peek().is_some_and(|(key, _)| *key == (tree, object, page + 1))
                && run.len() < EXTENT_PAGES_MAX as usize;
            if !goes_on {
                let pages = self.pages_of(object, facts).saturating_sub(first).min(run.len() as u64);
                self.destage_run(object, first, &run[..pages as usize], allocator)?;
                run.clear();
            }
        }
        Ok(())
    }

    /// Pages of a file that images may fill; 0 if there is no such file.
    fn pages_of(&self, object: ObjectNo, facts: &Facts) -> u64 {
        let exists = facts.inodes.get(&object.0).is_some_and(InodeFacts::exists);
        let item = self.get(Key::inode(object)).filter(|_| exists);
        match item.map(|value| InodeItem::decode(&value)) {
            Some(Ok(inode)) if inode.is_regular() => inode.size.div_ceil(BLOCK_BYTES as u64),
            _ => 0,
        }
    }

    fn destage_run(
        &mut self,
        object: ObjectNo,
        first: u64,
        images: &[ImageAt],
        allocator: &mut Allocator<'_>,
    ) -> Result<(), CheckError> {
        let (mut first, mut images) = (first, images);
        while !images.is_empty() {
            let extent = self.write_images(images, allocator)?;
            let len = extent.pages();
            self.cut_extents(object, first, first + u64::from(len));
            self.put(Key::extent(object, first), extent.encode());
            first += u64::from(len);
            images = &images[len as usize..];
        }
        Ok(())
    }

    /// Writes as many of the images as one run of free blocks takes.
    fn write_images(
        &self,
        images: &[ImageAt],
        allocator: &mut Allocator<'_>,
    ) -> Result<ExtentItem, CheckError> {
        let (start, len) = allocator.data(images.len() as u32)?;
        let mut data = vec![0; len as usize * BLOCK_BYTES];
        for (page, image) in data.chunks_exact_mut(BLOCK_BYTES).zip(images) {
            let bytes = Journal::new(self.device, self.superblock).image(image)?;
            page[..bytes.len()].copy_from_slice(&bytes);
        }
        write(self.device, start, &data)?;
        let sums = data.chunks_exact(BLOCK_BYTES).map(checksum).collect();
        Ok(ExtentItem::written(start, sums).born(self.replay.forest.era()))
    }

    /// The tree is the volume tree: pages that snapshots have inherited as images become their overlays.
    pub(crate) fn settle(&mut self, allocator: &mut Allocator<'_>) -> Result<(), CheckError> {
        let snapshots: Vec<TreeId> = self.replay.forest.items.keys().copied().collect();
        for tree in snapshots {
            let taken = self.items((Key::overlay(tree, 0), Key::overlay(tree, u64::MAX)));
            let next = taken.last().map_or(0, |(key, _)| key.offset + 1);
            for (((_, object, page), image), next) in self.replay.take_images(tree).into_iter().zip(next..) {
                let extent = self.write_images(&[image], allocator)?;
                self.put(Key::overlay(tree, next), OverlayItem { object, page, extent }.encode());
            }
        }
        Ok(())
    }

    /// Removes the pages `first..end` from the extents of a file.
    pub(crate) fn cut_extents(&mut self, object: ObjectNo, first: u64, end: u64) {
        let from = first.saturating_sub(u64::from(EXTENT_PAGES_MAX));
        let range = (Key::extent(object, from), Key::extent(object, end.saturating_sub(1)));
        for (key, value) in self.items(range) {
            let Ok(extent) = ExtentItem::decode(&value) else { continue };
            let extent_end = key.offset.saturating_add(u64::from(extent.pages()));
            if extent_end <= first || key.offset >= end {
                continue;
            }
            self.delete(key);
            if key.offset < first {
                let left = extent.slice(0, (first - key.offset) as u32);
                self.put(key, left.encode());
            }
            if extent_end > end {
                let right = extent.slice((end - key.offset) as u32, (extent_end - end) as u32);
                self.put(Key::extent(object, end), right.encode());
            }
        }
    }
}
