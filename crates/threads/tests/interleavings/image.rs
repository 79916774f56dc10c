//! The content of a device: sparse, cheap to copy; and the device that holds one while it is formatted or judged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};

pub type Page = Arc<[u8]>;

static ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Blocks that were never written are zero.
#[derive(Clone, Default)]
pub struct Image(BTreeMap<u64, Page>);

impl Image {
    pub fn page(&self, block: u64) -> &[u8] {
        self.0.get(&block).map_or(&ZEROS, |page| &page[..])
    }

    pub fn put(&mut self, block: u64, page: Page) {
        if page[..] == ZEROS[..] {
            self.0.remove(&block);
        } else {
            self.0.insert(block, page);
        }
    }
}

/// Holds an image; everything completes at once and is durable.
pub struct ImageDevice {
    blocks: u64,
    image: Mutex<Image>,
}

impl ImageDevice {
    pub fn new(blocks: u64, image: Image) -> ImageDevice {
        ImageDevice { blocks, image: Mutex::new(image) }
    }

    pub fn into_image(self) -> Image {
        self.image.into_inner().unwrap()
    }
}

impl Device for ImageDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let image = self.image.lock().unwrap();
        for (block, page) in (at.0..).zip(into.chunks_mut(BLOCK_BYTES)) {
            page.copy_from_slice(image.page(block));
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let bytes: Vec<u8> = data.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let mut image = self.image.lock().unwrap();
        for (block, page) in (at.0..).zip(bytes.chunks(BLOCK_BYTES)) {
            image.put(block, page.into());
        }
        Ticket::completed(Ok(()))
    }

    fn submit_flush(&self) -> Ticket {
        Ticket::completed(Ok(()))
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("requests complete at once")
    }

    fn poll(&self) {}

    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}
