//! `syncline replica`: what is shipped to an object store, from the side of the command line.

use crate::arguments::{ReplicaAction, ReplicaArguments, ReplicaPlace};
use crate::error::Failure;
use crate::list::date_of;
use crate::output::{self, Form};
use crate::size::Size;
use crate::volume::{LOCK_PATIENCE, uuid_parse, uuid_text};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use syncline_device::{FileDevice, OpenOptions};
use syncline_format::BLOCK_BYTES;
use syncline_replica_store::{
    Address, Client, Error, Gap, Housekeeping, Keep, Lost, Options, Overview, Pruned, ReplicaError, Session,
    Target, Unfinished, image, keep, keep_house, mark, verify,
};

/// How long a claim waits for the store.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
/// A replica is begun in whatever time it takes: a year.
const SHIP_WAIT: Duration = Duration::from_secs(365 * 86_400);

pub(crate) fn run(arguments: &ReplicaArguments) -> Result<ExitCode, Failure> {
    match &arguments.action {
        ReplicaAction::Init { json, keep, url, path } => {
            init(url, path, keep.as_deref(), Form::json_if(*json))
        }
        ReplicaAction::Status(place) => status(place),
        ReplicaAction::Restore { at, take_over, place, path } => {
            restore(place, path, at.as_deref(), *take_over)
        }
        ReplicaAction::Verify(place) => verify_all(place),
        ReplicaAction::Prune { dry_run, keep, grace, place } => {
            prune(place, *dry_run, keep.as_deref(), grace.as_deref())
        }
        ReplicaAction::Fence(place) => fence(place),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn print(form: Form, value: &Value) -> Result<(), Failure> {
    output::object(form, value).map_err(Failure::io("cannot print"))
}

/// A size as people or as programs take it.
fn bytes(form: Form, bytes: u64) -> Value {
    match form {
        Form::Json => bytes.into(),
        Form::Text => Size(bytes).to_string().into(),
    }
}

/// Nanoseconds since 1970, as a date.
fn date(nanoseconds: u64) -> String {
    format!("{}Z", date_of(UNIX_EPOCH + Duration::from_nanos(nanoseconds)))
}

/// Opens the place of a replica, and finds out which volume is meant.
fn open(place: &ReplicaPlace) -> Result<(Client, [u8; 16]), Failure> {
    let uuid = place.volume.as_deref().map(uuid_parse).transpose()?;
    let address = Address::parse(&place.url)?;
    let client = Client::new(&address).map_err(Error::from)?;
    let uuid = image::volume(&client, uuid)?;
    Ok((client, uuid))
}

/// What is kept, as people write it.
fn kept(text: Option<&str>) -> Result<Option<Vec<Keep>>, Failure> {
    text.map(keep::parse).transpose().map_err(|why| Failure::Keep { why })
}

fn init(url: &str, path: &Path, keep: Option<&str>, form: Form) -> Result<(), Failure> {
    let keep = kept(keep)?;
    let device =
        syncline_source::open(path, &OpenOptions::default().wait_for_lock(LOCK_PATIENCE))?.into_device();
    let address = Address::make(url)?;
    let options = Options {
        begin: true,
        open_wait: CLAIM_WAIT,
        close_wait: SHIP_WAIT,
        housekeeping: None,
        ..Options::default()
    };
    let superblock = mark::superblock(&*device)?;
    let session = Session::open(device, &address, &options)?;
    let status = session.close().map_err(|unshipped| Error::from(unshipped.0))?;
    if keep.is_some() {
        let mut client = Client::new(&address).map_err(Error::from)?;
        let how = Housekeeping { keep, packs_only: true, ..Housekeeping::default() };
        keep_house(&mut client, superblock.uuid, &how, &|| true)?;
    }
    print(form, &json!({"claim": status.claim, "units": status.units, "bytes": bytes(form, status.bytes)}))
}

fn described(overview: &Overview, form: Form) -> Value {
    let newest = overview.newest.as_ref();
    json!({
        "volume": uuid_text(&overview.uuid),
        "size": bytes(form, overview.blocks * BLOCK_BYTES as u64),
        "claim": overview.owner.claim,
        "claimed_by": format!("process {} on {}", overview.owner.process, overview.owner.host),
        "claimed_at": date(overview.owner.time),
        "units": overview.units.len(),
        "packs": overview.packs.len(),
        "bytes": bytes(form, overview.bytes()),
        "keeps": overview.keep,
        "restores_to": newest.map(|newest| json!({
            "position": format!("{}/{}", newest.claim, newest.number),
            "time": date(newest.time),
            "lsn": newest.lsn,
        })),
    })
}

fn status(place: &ReplicaPlace) -> Result<(), Failure> {
    let (client, uuid) = open(place)?;
    let form = Form::json_if(place.json);
    print(form, &described(&Overview::of(&client, uuid)?, form))
}

fn verify_all(place: &ReplicaPlace) -> Result<(), Failure> {
    let (client, uuid) = open(place)?;
    let form = Form::json_if(place.json);
    let bar = output::bytes_of("verifying", place.json);
    let verified = verify(&client, uuid, |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let mut told = described(&verified.overview, form);
    let damage: Vec<String> = verified.lost.iter().map(lost).chain(verified.damage).collect();
    let damaged = damage.len();
    told["damage"] = damage.into();
    print(form, &told)?;
    match damaged {
        0 => Ok(()),
        damaged => Err(Failure::ReplicaDamaged { url: place.url.clone(), damaged }),
    }
}

/// What is missing, since when and until when nothing can be restored, and what to do.
fn lost(lost: &Lost) -> String {
    let Gap { claim, first, end } = lost.gap;
    let which = match end - first {
        1 => format!("unit {claim}/{first} is missing"),
        _ => format!("units {claim}/{first} to {claim}/{} are missing", end - 1),
    };
    let behind = match lost.cut_off {
        0 => String::new(),
        count => format!(", and {count} behind cannot be used for that"),
    };
    let moment = |time: Option<u64>, or: &str| time.map_or(or.to_owned(), date);
    let (from, to) = (moment(lost.from, "the beginning"), moment(lost.to, "the next unit"));
    format!(
        "{which}{behind}: no state from after {from} to {to} can be restored; begin a replica in another place by `syncline \
         replica init`, and keep this one for what it restores by `--at`"
    )
}

fn prune(place: &ReplicaPlace, dry: bool, keep: Option<&str>, grace: Option<&str>) -> Result<(), Failure> {
    let keep = kept(keep)?;
    let grace = grace.map(|text| if text == "0s" { Ok(0) } else { keep::seconds(text) });
    let grace = grace.transpose().map_err(|why| Failure::Keep { why })?;
    let (mut client, uuid) = open(place)?;
    let how = Housekeeping { dry, keep, grace, packs_only: false };
    let kept = keep_house(&mut client, uuid, &how, &|| true)?;
    let form = Form::json_if(place.json);
    let Pruned { units, packs, manifests } = &kept.deleted;
    let (packed, deleted) = if dry { ("would_pack", "would_delete") } else { ("packed", "deleted") };
    print(
        form,
        &json!({
            "keeps": keep::tell(&kept.manifest),
            "grace_seconds": grace.unwrap_or(kept.manifest.grace),
            packed: { "packs": kept.packs, "bytes": bytes(form, kept.packed_bytes) },
            "left_out": kept.dropped,
            deleted: { "units": units.len(), "packs": packs.len(), "manifests": manifests.len() },
        }),
    )
}

fn fence(place: &ReplicaPlace) -> Result<(), Failure> {
    let (mut client, uuid) = open(place)?;
    let owner = image::fence(&mut client, uuid, CLAIM_WAIT)?;
    print(Form::json_if(place.json), &json!({"claim": owner.claim}))
}

fn restore(place: &ReplicaPlace, path: &Path, at: Option<&str>, take_over: bool) -> Result<(), Failure> {
    let target = at.map_or(Ok(Target::Newest), target)?;
    if path.symlink_metadata().is_ok() {
        return Err(Failure::RestoreOver { path: path.to_owned() });
    }
    let (mut client, uuid) = open(place)?;
    let owner = match take_over {
        true => Some(image::fence(&mut client, uuid, CLAIM_WAIT)?),
        false => None,
    };
    let unfinished = Unfinished::of(path);
    let mut failed = None;
    let began = std::time::Instant::now();
    let plan = image::restore(&mut client, uuid, target, |blocks| {
        match FileDevice::create(unfinished.path(), blocks * BLOCK_BYTES as u64) {
            Ok(device) => {
                if let Some(owner) = &owner {
                    mark::write(&device, owner)?;
                }
                Ok(Arc::new(device))
            }
            Err(error) => {
                failed = Some(error);
                Err(ReplicaError::Empty.into())
            }
        }
    });
    let plan = match (plan, failed) {
        (_, Some(error)) => return Err(error.into()),
        (plan, None) => plan?,
    };
    unfinished.finish(path).map_err(Failure::io(format!("cannot name {}", path.display())))?;
    let form = Form::json_if(place.json);
    let told = json!({
        "volume": uuid_text(&uuid),
        "position": format!("{}/{}", plan.end.claim, plan.end.number),
        "time": date(plan.end.time),
        "lsn": plan.end.lsn,
        "claim": owner.map(|owner| owner.claim),
        "units": plan.units,
        "fetched": bytes(form, plan.bytes),
        "seconds": (began.elapsed().as_secs_f64() * 100.0).round() / 100.0,
    });
    print(form, &told)
}

/// A moment as people write it.
fn target(text: &str) -> Result<Target, Failure> {
    let wrong = || Failure::Moment { text: text.to_owned() };
    if let Some(lsn) = text.strip_prefix("lsn:") {
        return lsn.parse().map(Target::Lsn).map_err(|_| wrong());
    }
    if let Some((claim, unit)) = text.split_once('/') {
        let number = |text: &str| text.parse().map_err(|_| wrong());
        return Ok(Target::Position(number(claim)?, number(unit)?));
    }
    time(text).map(Target::Time).ok_or_else(wrong)
}

/// `2026-11-23T20:15:00Z`, with or without `T` and `Z`; the end of that second.
fn time(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, clock) = text.split_once(['T', ' '])?;
    let numbers = |text: &str, between: char| -> Option<[u64; 3]> {
        let numbers: Option<Vec<u64>> = text.split(between).map(|part| part.parse().ok()).collect();
        numbers?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(clock, ':')?);
    let sound = (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !sound || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // A date to days since 1970: http://howardhinnant.github.io/date_algorithms.html, days_from_civil.
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000_000 + 999_999_999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_printed() {
        for seconds in [0, 951_782_399, 951_782_400, 1_795_464_900, 9_999_999_999] {
            let printed = date(seconds * 1_000_000_000);
            assert_eq!(time(&printed), Some(seconds * 1_000_000_000 + 999_999_999), "{printed}");
        }
        assert_eq!(date(1_795_464_900 * 1_000_000_000), "2026-11-23T20:15:00Z");
        assert!(matches!(target("3/17"), Ok(Target::Position(3, 17))));
        assert!(matches!(target("lsn:99"), Ok(Target::Lsn(99))));
        for wrong in ["yesterday", "2026-13-01T00:00:00Z", "2026-01-01", "3/", "lsn:x", "2026-01-01T24:00:00"]
        {
            assert!(matches!(target(wrong), Err(Failure::Moment { .. })), "{wrong}");
        }
    }
}
