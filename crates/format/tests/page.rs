//! The page about the format tells what the code does.

use syncline_format::range::{ALL, Field};

/// A number as people write it: what is large as a power of two, less a little.
fn text(number: u64) -> String {
    const PLAIN_MAX: u64 = 1 << 17;
    let number = u128::from(number);
    let (above, less) = (number.next_power_of_two().trailing_zeros(), number.next_power_of_two() - number);
    match less {
        _ if number < u128::from(PLAIN_MAX) => number.to_string(),
        0 => format!("2^{above}"),
        1..1000 => format!("2^{above} - {less}"),
        less if less.is_power_of_two() => format!("2^{above} - 2^{}", less.trailing_zeros()),
        _ => number.to_string(),
    }
}

fn row(field: &Field) -> String {
    let (least, most) = (text(field.least), text(field.most));
    let range = match field.least == field.most {
        true => least,
        false => format!("{least} to {most}"),
    };
    let what =
        format!("| {} | {} | {} | {} | {range} |", field.structure.name(), field.name, field.at, field.bytes);
    match field.note {
        "" => format!("{what} |"),
        note => format!("{what} {note} |"),
    }
}

#[test]
fn the_page_has_the_table_of_ranges_row_by_row() {
    let page = include_str!("../../../docs/format.md");
    let (_, rest) = page.split_once("| structure | field | at | size | range | note |\n").expect("the table");
    let found: Vec<&str> = rest.lines().skip(1).take_while(|line| line.starts_with('|')).collect();
    // What may have any value needs no row.
    let bounded =
        ALL.iter().filter(|field| field.least > 0 || field.most < u64::MAX >> (64 - 8 * field.bytes));
    let wanted: Vec<String> = bounded.map(row).collect();
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found, wanted);
    }
    assert_eq!(found.len(), wanted.len(), "{}", wanted.join("\n"));
}
