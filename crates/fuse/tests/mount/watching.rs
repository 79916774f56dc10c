//! What a mount tells of itself: metrics, its callers, and lines of its log.

use crate::harness::{Volume, statistics, wait_until};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

fn scrape(mut stream: impl Read + Write) -> String {
    stream.write_all(REQUEST).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a sample.
fn sample(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is missing: {metrics}")).parse().unwrap()
}

fn sync(volume: &Volume, times: usize) {
    let mut file = File::create(volume.path("f")).unwrap();
    for _ in 0..times {
        file.write_all(b"x").unwrap();
        file.sync_all().unwrap();
    }
}

/// Where the daemon says that it tells metrics.
fn address(volume: &Volume) -> String {
    let said = |log: String| {
        let line = log.lines().find(|line| line.contains("message=\"metrics are told\""))?.to_owned();
        line.split(" address=").nth(1).map(str::to_owned)
    };
    wait_until("the address", || said(volume.log()).is_some());
    said(volume.log()).unwrap()
}

#[test]
fn metrics_tell_what_the_statistics_tell() {
    let Some(mut volume) = Volume::mounted("metrics=127.0.0.1:0") else { return };
    sync(&volume, 10);
    let address = address(&volume);
    let metrics = scrape(TcpStream::connect(&address).unwrap());
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics:.40}");
    let told = statistics(&volume.root());
    assert_eq!(sample(&metrics, "syncline_sync_duration_seconds_count"), 10.0);
    assert_eq!(sample(&metrics, "syncline_sync_duration_seconds_bucket{le=\"+Inf\"}"), 10.0);
    assert_eq!(sample(&metrics, "syncline_requests_total{request=\"fsync\"}"), 10.0);
    let seconds = told["fsync_us"]["total"].as_f64().unwrap() / 1e6;
    assert!((sample(&metrics, "syncline_sync_duration_seconds_sum") - seconds).abs() < 1e-9);
    let flushes = sample(&metrics, "syncline_device_flushes_total");
    assert!(flushes >= 10.0 && flushes <= told["device"]["flushes"].as_f64().unwrap(), "{flushes}");
    volume.unmount();
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn a_socket_of_metrics_goes_with_the_mount() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics");
    let Some(mut volume) = Volume::mounted(&format!("metrics=unix:{}", path.display())) else { return };
    assert_eq!(address(&volume), format!("unix:{}", path.display()));
    let metrics = scrape(UnixStream::connect(&path).unwrap());
    assert_eq!(sample(&metrics, "syncline_volume_read_only"), 0.0);
    volume.unmount();
    assert!(!path.exists());
}

#[test]
fn an_address_that_is_taken_is_told_before_anything_is_mounted() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let Some(mut volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let address = taken.local_addr().unwrap();
    let error = volume.mount(&format!("metrics={address}")).unwrap_err();
    assert!(error.contains(&format!("metrics={address} cannot be listened on")), "{error}");
    volume.mount("").unwrap();
}

#[test]
fn syncs_are_counted_for_the_programs_that_ask() {
    let Some(volume) = Volume::mounted("") else { return };
    sync(&volume, 3);
    std::thread::scope(|scope| {
        scope.spawn(|| sync(&volume, 4));
        let script = "for i in 1 2; do echo x > \"$1/g\"; sync -d \"$1/g\"; done";
        let ended = std::process::Command::new("sh").args(["-c", script, "sh"]).arg(volume.root()).status();
        assert!(ended.unwrap().success());
    });
    let told = statistics(&volume.root());
    let callers = told["callers"].as_array().unwrap();
    let own = callers.iter().find(|caller| caller["pid"] == std::process::id()).unwrap();
    // The second thread has ended, and so has the shell's child.
    let others = callers.iter().find(|caller| caller["pid"].is_null()).unwrap();
    let (own, others) = (own["fsyncs"].as_u64().unwrap(), others["fsyncs"].as_u64().unwrap());
    assert!(own >= 3 && own + others == 9, "{told}");
}

#[test]
fn lines_of_the_log_are_keys_and_values() {
    let Some(volume) = Volume::mounted("") else { return };
    let said = || volume.log().lines().find(|line| line.contains("message=mounted")).map(str::to_owned);
    wait_until("the line", || said().is_some());
    let line = said().unwrap();
    assert!(
        line.starts_with("time=2") && line.contains(" level=info module=syncline_fuse::daemon "),
        "{line}"
    );
    assert!(line.contains(&format!(" directory={}", volume.root().display())), "{line}");
}
