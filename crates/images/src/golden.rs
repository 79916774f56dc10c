//! Golden images: small volumes of every format version, kept under version control.
//!
//! An image is made once, by the version that introduced its format, and is never written again: later versions have
//! to open, verify, check, change and repair it as it is. So [`generate`] adds what is missing and overwrites nothing.
//! A manifest beside each image says what must be found on it.

mod recipes;

use crate::packed::SparseImage;
use crate::{manifest, session};
use std::path::{Path, PathBuf};
use std::{fs, io};
use syncline_check::{CheckOptions, Code, Report, check};

/// Largest image in the source tree.
pub const PACKED_BYTES_MAX: u64 = 100 << 10;

/// How one golden image is made.
pub struct Recipe {
    /// Its file name in `tests/golden`, without extension.
    pub name: &'static str,
    /// Codes that the check finds on the untouched image: what an unclean volume has to show, no more.
    pub findings: &'static [Code],
    make: fn() -> io::Result<SparseImage>,
}

/// Every recipe.
pub const RECIPES: &[Recipe] = recipes::ALL;

/// An image with its manifest.
pub struct Golden {
    pub image: SparseImage,
    pub manifest: String,
}

/// Where images and manifests lie.
pub fn directory() -> PathBuf {
    crate::source_root().join("tests/golden")
}

impl Recipe {
    pub fn image_path(&self) -> PathBuf {
        directory().join(self.name).with_extension("packed")
    }

    pub fn manifest_path(&self) -> PathBuf {
        directory().join(self.name).with_extension("manifest")
    }

    /// Reads image and manifest from the source tree.
    pub fn load(&self) -> io::Result<Golden> {
        let image = load_image(&self.image_path())?;
        Ok(Golden { image, manifest: fs::read_to_string(self.manifest_path())? })
    }

    /// Makes the image anew, with the manifest that a read-only look at it gives.
    ///
    /// Errors: the image is too large, or the check finds on it what the recipe does not announce.
    pub fn make(&self) -> io::Result<Golden> {
        let image = (self.make)()?;
        let report = look(&image)?;
        let mut found: Vec<Code> = report.counts.keys().copied().collect();
        found.sort();
        if found != self.findings {
            return Err(io::Error::other(format!("{}: the check finds {:?}", self.name, report.findings)));
        }
        let volume = session::open_volume(image.device(), true, 1)?;
        Ok(Golden { manifest: manifest::of(&volume)?, image })
    }
}

/// Checks an image, its file data included.
pub fn look(image: &SparseImage) -> io::Result<Report> {
    let options = CheckOptions::default().data(true);
    check(&*image.device(), options).map_err(io::Error::other)
}

/// Reads a packed image.
pub fn load_image(path: &Path) -> io::Result<SparseImage> {
    let packed = fs::read(path).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
    SparseImage::unpack(&packed).map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

/// Writes those images and manifests that are missing; tells of each.
pub fn generate(tell: &mut dyn FnMut(&str)) -> io::Result<()> {
    fs::create_dir_all(directory())?;
    for recipe in RECIPES {
        if recipe.image_path().exists() {
            tell(&format!("{}: is there and stays", recipe.name));
            continue;
        }
        let golden = recipe.make()?;
        let packed = golden.image.pack();
        if packed.len() as u64 > PACKED_BYTES_MAX {
            return Err(io::Error::other(format!("{}: {} bytes are too many", recipe.name, packed.len())));
        }
        fs::write(recipe.manifest_path(), &golden.manifest)?;
        fs::write(recipe.image_path(), &packed)?;
        tell(&format!(
            "{}: {} blocks in {} bytes, {} lines",
            recipe.name,
            golden.image.content.len(),
            packed.len(),
            golden.manifest.lines().count()
        ));
    }
    Ok(())
}
