//! The run: rounds outermost, systems innermost, each result kept as soon as it is there.

use crate::ablation;
use crate::arguments::Arguments;
use crate::device::{Media, Medium, is_root};
use crate::error::BenchError;
use crate::floor::Floor;
use crate::measure::Meter;
use crate::output::{Output, tell};
use crate::page;
use crate::plan;
use crate::record::Record;
use crate::report;
use crate::row::Row;
use crate::system::{Mounted, System, take_down_left};
use crate::workload::{self, Context, Use, Workload};
use std::io;
use std::time::{Duration, Instant};

/// So many after one another, and nothing can be expected of the rest.
const FAILURES_IN_A_ROW_MAX: usize = 5;

/// A run that is to be made: its round, its workload and its system.
pub(crate) type Missing<'a> = (usize, &'a Workload, &'a System);

/// Measures what is missing in the record, prints it all and writes the page.
pub(crate) fn run(arguments: &Arguments, out: &mut Output<'_>) -> Result<(), BenchError> {
    let workloads = chosen(&arguments.workloads)?;
    let wanted = match arguments.ablation {
        true => ablation::plan(arguments, &workloads)?,
        false => {
            let systems = arguments.systems.iter().map(|name| System::parse(name));
            let systems = systems.collect::<Result<Vec<_>, _>>()?;
            workloads.iter().map(|workload| (workload, systems.clone())).collect()
        }
    };
    let mut record = Record::open(arguments)?;
    let mut missing: Vec<Missing<'_>> = Vec::new();
    for round in 0..arguments.rounds {
        for (workload, systems) in &wanted {
            for system in systems {
                if !record.holds(round, &workload.name, &system.name()) {
                    missing.push((round, *workload, system));
                }
            }
        }
    }
    if arguments.plan {
        return out.print(&plan::text(&record, &missing));
    }
    let failed = match missing.is_empty() {
        true => Vec::new(),
        false => measure_all(&missing, &mut record, arguments)?,
    };
    // Written first: the file is what was asked for, whoever reads the tables.
    if let Some(path) = &arguments.html {
        std::fs::write(path, page::page(&record, &workload::all())).map_err(BenchError::of(path))?;
    }
    out.print(&report::text(&record, &workload::all()))?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(BenchError::Failed(failed.join(", "))),
    }
}

/// Until the time is up. One that fails does not keep the others from being measured; returns which did.
fn measure_all(
    missing: &[Missing<'_>],
    record: &mut Record,
    arguments: &Arguments,
) -> Result<Vec<String>, BenchError> {
    std::fs::create_dir_all(&arguments.work).map_err(BenchError::of(&arguments.work))?;
    if let Some(cpu) = arguments.cpu {
        pin(cpu)?;
    }
    if is_root() {
        take_down_left(&arguments.work)?;
    }
    let mut media = Media::new(&arguments.work, arguments.device_mib)?;
    let floor = Floor::attach(&arguments.work)?;
    let many = missing.len();
    let began = Instant::now();
    let (mut failed, mut in_a_row) = (Vec::new(), 0);
    for (number, (round, workload, system)) in missing.iter().enumerate() {
        let elapsed = began.elapsed();
        if arguments.minutes.is_some_and(|minutes| elapsed >= Duration::from_secs(60 * minutes)) {
            tell(&format!("the time is up: {number} of {many} are measured; --resume goes on"));
            break;
        }
        let name = system.name();
        tell(&format!(
            "{}/{many}, {} min: round {}, {} on {name}",
            number + 1,
            elapsed.as_secs() / 60,
            round + 1,
            workload.name
        ));
        let begin = Instant::now();
        let medium = media.of(workload.device_mib(arguments))?;
        match measure(*round, workload, system, medium, &floor, arguments) {
            Err(error) => {
                tell(&format!("failed: {} on {name}: {error}", workload.name));
                failed.push(format!("{} on {name}", workload.name));
                in_a_row += 1;
                if in_a_row == FAILURES_IN_A_ROW_MAX {
                    break;
                }
            }
            Ok(row) => {
                in_a_row = 0;
                if let Some(why) = &row.skipped {
                    tell(&format!("skipped: {} on {name}: {why}", workload.name));
                }
                record.add(Row { took_s: Some(begin.elapsed().as_secs_f64()), ..row })?;
            }
        }
    }
    Ok(failed)
}

fn measure(
    round: usize,
    workload: &Workload,
    system: &System,
    medium: &Medium,
    floor: &Floor,
    arguments: &Arguments,
) -> io::Result<Row> {
    let mut mounted = Mounted::fresh(system, medium, arguments)?;
    let transport = mounted.transport()?;
    match workload.volume {
        Use::Engine => {}
        Use::Release => mounted.release()?,
        Use::Lend => mounted.lend()?,
    }
    let meter = Meter::begin_at(&mounted, floor)?;
    let context = Context {
        backend: mounted.backend(),
        directory: mounted.directory(),
        released: mounted.released(),
        lent: mounted.lent(),
        arguments,
        floor,
        meter: &meter,
    };
    let outcome = workload.run(&context)?;
    let spent = meter.spent()?;
    mounted.remove()?;
    let (figures, series, skipped) = match outcome.skipped {
        Some(_) => (Default::default(), Default::default(), outcome.skipped),
        None => outcome.into_figures(&spent),
    };
    let (system, workload) = (system.name(), workload.name.clone());
    Ok(Row { system, workload, round, figures, series, skipped, transport, took_s: None })
}

/// The workloads that are named, by name or by what their names begin with.
fn chosen(names: &[String]) -> Result<Vec<Workload>, BenchError> {
    let mut all = workload::all();
    if names.is_empty() {
        return Ok(all);
    }
    let meant = |workload: &Workload, name: &str| {
        workload.name == *name || workload.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    };
    let exact = |name: &str| all.iter().any(|workload| workload.name == name);
    let by_name = |workload: &Workload, name: &String| match exact(name) {
        true => workload.name == *name,
        false => meant(workload, name),
    };
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|workload| by_name(workload, name))) {
        return Err(BenchError::UnknownWorkload(unknown.clone()));
    }
    let keep: Vec<bool> =
        all.iter().map(|workload| names.iter().any(|name| by_name(workload, name))).collect();
    let mut keep = keep.into_iter();
    all.retain(|_| keep.next().unwrap_or(false));
    Ok(all)
}

/// Ties the calling thread to a CPU. Errors: `NoCpu`.
pub(crate) fn pin(cpu: usize) -> Result<(), BenchError> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(BenchError::NoCpu(cpu));
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| match error {
        rustix::io::Errno::INVAL => BenchError::NoCpu(cpu),
        error => BenchError::Io(error.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(given: &[&str]) -> Result<Vec<String>, BenchError> {
        let given: Vec<String> = given.iter().map(|&name| name.to_owned()).collect();
        Ok(chosen(&given)?.into_iter().map(|workload| workload.name).collect())
    }

    #[test]
    fn whole_name_means_one_workload_and_its_beginning_all_of_a_family() {
        assert_eq!(names(&["append"]).expect("known"), ["append"]);
        assert_eq!(names(&["pgbench"]).expect("known"), ["pgbench"]);
        assert_eq!(names(&["fio"]).expect("known").len(), 14);
        assert!(
            matches!(names(&["append", "appendix"]), Err(BenchError::UnknownWorkload(name)) if name == "appendix")
        );
    }
}
