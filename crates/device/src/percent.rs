//! Percent-encoding, for devices whose names are addresses.

use std::fmt::Write;

/// Undoes percent-encoding; `None` for what is neither that nor text without NUL.
pub fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
        rest = tail;
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

/// Encodes all but letters and digits of ASCII, `-._~`, and what is to be kept of ASCII besides.
pub fn percent_encoded(text: &str, kept: &[u8]) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            true => encoded.push(char::from(byte)),
            // Writing to memory does not fail.
            false => drop(write!(encoded, "%{byte:02X}")),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let text = "a/b c%?é\u{1}~";
        assert_eq!(percent_encoded(text, b"/"), "a/b%20c%25%3F%C3%A9%01~");
        assert_eq!(percent_decoded(&percent_encoded(text, b"")).as_deref(), Some(text));
        for wrong in ["%", "%4", "%zz", "%00", "%ff", "a%"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }
}
