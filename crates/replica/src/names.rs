//! Names of a replica's objects, relative to its URL.

/// Names the objects of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    volume: String,
}

impl Names {
    pub fn new(uuid: [u8; 16]) -> Names {
        Names { volume: uuid.iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    /// What the names of all claims begin with.
    pub fn claims(&self) -> String {
        format!("{}/e/", self.volume)
    }

    pub fn claim(&self, claim: u64) -> String {
        format!("{}/e/{claim:08x}", self.volume)
    }

    pub fn unit(&self, claim: u64, number: u64) -> String {
        format!("{}/u/{claim:08x}/{number:010x}", self.volume)
    }

    /// What the names of all units of a claim begin with.
    pub fn units(&self, claim: u64) -> String {
        format!("{}/u/{claim:08x}/", self.volume)
    }

    /// What the names of all manifests begin with.
    pub fn manifests(&self) -> String {
        format!("{}/m/", self.volume)
    }

    pub fn manifest(&self, number: u64) -> String {
        format!("{}/m/{number:010x}", self.volume)
    }

    pub fn pack(&self, number: u64, id: u64) -> String {
        format!("{}/p/{number:010x}-{id:016x}", self.volume)
    }

    /// What the names of all packs begin with.
    pub fn packs(&self) -> String {
        format!("{}/p/", self.volume)
    }

    /// What the names of the units of all claims begin with.
    pub fn all_units(&self) -> String {
        format!("{}/u/", self.volume)
    }

    /// What the names of all branches begin with.
    pub fn branches(&self) -> String {
        format!("{}/b/", self.volume)
    }

    /// Claim and number of a unit by its name; `None` if it is no such name.
    pub fn position_of(name: &str) -> Option<(u64, u64)> {
        let (rest, _) = name.rsplit_once('/')?;
        Some((Names::number_of(rest)?, Names::number_of(name)?))
    }

    /// The manifest's number and the random one of a pack by its name; `None` if it is no such name.
    pub fn pack_of(name: &str) -> Option<(u64, u64)> {
        let (number, id) = name.rsplit('/').next()?.split_once('-')?;
        let sound = number.len() == 10 && id.len() == 16;
        let parse = |digits| u64::from_str_radix(digits, 16).ok();
        if sound { Some((parse(number)?, parse(id)?)) } else { None }
    }

    /// The number at the end of a name of this form; `None` if it is no such name.
    pub fn number_of(name: &str) -> Option<u64> {
        let digits = name.rsplit('/').next()?;
        let plain = digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (plain && matches!(digits.len(), 8 | 10)).then(|| u64::from_str_radix(digits, 16).ok())?
    }
}

/// The largest number among names; 0 if there is none.
pub(crate) fn newest(names: &[String]) -> u64 {
    names.iter().filter_map(|name| Names::number_of(name)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_their_numbers_do_and_give_them_back() {
        let names = Names::new([0xab; 16]);
        assert_eq!(Names::position_of(&names.unit(3, 18)), Some((3, 18)));
        assert_eq!(Names::pack_of(&names.pack(5, u64::MAX)), Some((5, u64::MAX)));
        assert_eq!(Names::pack_of(&names.unit(3, 18)), None);
        assert_eq!(names.claim(17), format!("{}/e/00000011", "ab".repeat(16)));
        assert!(names.unit(1, 255) < names.unit(1, 256) && names.unit(1, 1 << 39) < names.unit(2, 0));
        assert_eq!(Names::number_of(&names.unit(3, 0xfedcba)), Some(0xfedcba));
        assert_eq!(newest(&[names.manifest(9), names.manifest(10), format!("{}x", names.manifest(99))]), 10);
        assert_eq!(Names::number_of("x/e/0000001G"), None);
    }
}
