//! Page images that recovery found live in the journal.
//!
//! On a writable volume they are destaged at once by the ordinary writeback, into free blocks (R10): batches that are
//! committed during recovery are not logged, and the checkpoint that ends it makes them durable. Those of damaged
//! files stay images: the store begins the new log with them. On a read-only volume the pages stay in memory.

use crate::content::inode::Inode;
use crate::content::pages::{PageSlot, pages_of};
use crate::limits::IMAGES_TOGETHER;
use crate::writeback::Writeback;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::ObjectNo;
use syncline_format::batch::{BATCH_HEADER_BYTES, DROP_BYTES};
use syncline_store::{Class, Estimate, PageImage, Recovery, Reservation};

impl Writeback {
    /// Takes over the live images of the tree, before recovery is finished; no more of them are in memory than
    /// destaging takes at a time, unless the volume is read-only.
    pub(crate) fn recover_images(&self, recovery: &Recovery, all: &[PageImage]) -> Result<()> {
        for images in all.chunks(IMAGES_TOGETHER) {
            let files = self.adopt_all(images, recovery.read_images(images)?)?;
            if !self.core.options.read_only {
                self.write_out_all(Class::Destage, files.into_values().collect(), true)?;
                self.content.shrink_cache();
            }
        }
        Ok(())
    }

    /// Returns the files that images were found for.
    fn adopt_all(&self, images: &[PageImage], pages: Vec<Buffer>) -> Result<BTreeMap<ObjectNo, Arc<Inode>>> {
        let mut files: BTreeMap<ObjectNo, Arc<Inode>> = BTreeMap::new();
        for (image, page) in images.iter().zip(pages) {
            let inode = match self.content.inode(image.object) {
                Ok(inode) => inode,
                Err(Error::NotFound) => {
                    self.drop_image(image)?;
                    continue;
                }
                Err(error) if self.core.is_damage(&error) => {
                    self.content.keep_unclaimed_image(image.object, image.page, page, &error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if image.page >= pages_of(inode.state.read().item.size) {
                self.drop_image(image)?;
                continue;
            }
            self.adopt(&inode, image.page, page);
            files.insert(image.object, inode);
        }
        Ok(files)
    }

    /// Caches an image as a logged page.
    pub(crate) fn adopt(&self, inode: &Arc<Inode>, page: u64, content: Buffer) {
        let block = if self.core.options.read_only { None } else { self.core.store.reserve(1).ok() };
        self.adopt_with(inode, page, content, block);
    }

    /// The same, with a block that the page is to be written to.
    pub(crate) fn adopt_with(
        &self,
        inode: &Arc<Inode>,
        page: u64,
        content: Buffer,
        block: Option<Reservation>,
    ) {
        let mut state = inode.state.write();
        state.data.discard_range(page..page + 1);
        state.data.insert_clean(&self.core.account, page, Arc::new(content));
        state.data.update(page, |slot: &mut PageSlot| slot.state.log());
        if let Some(mut block) = block {
            state.data.give_block(page, &mut block);
        }
        self.content.relist(inode, &mut state, self.core.clock.now());
    }

    /// Voids an image that no file has a place for.
    fn drop_image(&self, image: &PageImage) -> Result<()> {
        if self.core.options.read_only {
            return Ok(());
        }
        let estimate = Estimate { bytes: BATCH_HEADER_BYTES + DROP_BYTES, items: 0, images: 0 };
        let permit = self.admit(Class::Destage, estimate)?;
        let mut batch = self.content.batch();
        batch.drop_images(image.object, image.page, image.page + 1);
        self.core.store.commit(permit, batch)?;
        Ok(())
    }
}
