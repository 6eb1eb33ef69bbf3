// SPDX-License-Identifier: MIT OR Apache-2.0
//! What mounts are and do in OpenMetrics 1.0 text, which Prometheus and its collectors read.

use crate::control::{MountStatus, OperationStatus};
use outrigger_layer_cache::DiskUsage;
use std::fmt::Write as _;

/// One family of samples: its name, its type, its help text, and the samples of one mount.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: fn(&MountStatus) -> Vec<Sample>,
}

/// The end of a sample's name, a label besides the mount's own, and the value.
type Sample = (&'static str, Option<(&'static str, String)>, f64);

fn one(suffix: &'static str, value: f64) -> Vec<Sample> {
    vec![(suffix, None, value)]
}

fn by_operation(status: &MountStatus, value: fn(&OperationStatus) -> u64) -> Vec<Sample> {
    let sample =
        |one: &OperationStatus| ("_total", Some(("operation", one.operation.clone())), value(one) as f64);
    status.operations.iter().map(sample).collect()
}

fn disk(status: &MountStatus, suffix: &'static str, value: fn(&DiskUsage) -> u64) -> Vec<Sample> {
    status.disk_cache.iter().map(|disk| (suffix, None, value(disk) as f64)).collect()
}

fn recovery(status: &MountStatus) -> Vec<Sample> {
    let Some(guard) = &status.guard else { return Vec::new() };
    let quantiles =
        [("0.5", guard.recovery_ms_p50), ("0.99", guard.recovery_ms_p99), ("1", guard.recovery_ms_max)];
    quantiles
        .into_iter()
        .filter_map(|(quantile, time)| Some(("", Some(("quantile", quantile.to_owned())), time? / 1e3)))
        .collect()
}

const FAMILIES: &[Family] = &[
    Family {
        name: "outrigger_uptime_seconds",
        kind: "gauge",
        help: "Time since the mount was made.",
        samples: |status| one("", status.uptime_seconds as f64),
    },
    Family {
        name: "outrigger_requests",
        kind: "counter",
        help: "Requests of the kernel, since the present server began.",
        samples: |status| by_operation(status, |operation| operation.count),
    },
    Family {
        name: "outrigger_errors",
        kind: "counter",
        help: "Requests that failed, since the present server began.",
        samples: |status| by_operation(status, |operation| operation.errors),
    },
    Family {
        name: "outrigger_in_flight",
        kind: "gauge",
        help: "Requests being worked on.",
        samples: |status| one("", status.in_flight.len() as f64),
    },
    Family {
        name: "outrigger_oldest_request_seconds",
        kind: "gauge",
        help: "Age of the oldest of them.",
        samples: |status| one("", status.in_flight.first().map_or(0.0, |oldest| oldest.age_seconds)),
    },
    Family {
        name: "outrigger_guarded",
        kind: "gauge",
        help: "1 when a death of the server would be repaired.",
        samples: |status| {
            let guarded = status.guard.as_ref().is_some_and(|guard| guard.keeper.is_some());
            one("", f64::from(u8::from(guarded)))
        },
    },
    Family {
        name: "outrigger_server_starts",
        kind: "counter",
        help: "Processes that have served the mount.",
        samples: |status| one("_total", status.guard.as_ref().map_or(1, |guard| guard.incarnations) as f64),
    },
    Family {
        name: "outrigger_server_deaths",
        kind: "counter",
        help: "How many of them died.",
        samples: |status| one("_total", status.guard.as_ref().map_or(0, |guard| guard.deaths) as f64),
    },
    Family {
        name: "outrigger_recovery_seconds",
        kind: "gauge",
        help: "From a death until requests are served again, of the latest 256.",
        samples: recovery,
    },
    Family {
        name: "outrigger_disk_cache_bytes",
        kind: "gauge",
        help: "Content on disk, of all mounts that use the directory.",
        samples: |status| disk(status, "", |disk| disk.bytes),
    },
    Family {
        name: "outrigger_disk_cache_hits",
        kind: "counter",
        help: "Reads that were answered from disk, since the present server began.",
        samples: |status| disk(status, "_total", |disk| disk.hits),
    },
    Family {
        name: "outrigger_disk_cache_misses",
        kind: "counter",
        help: "Reads of which something was not on disk.",
        samples: |status| disk(status, "_total", |disk| disk.misses),
    },
];

/// The whole text.
pub fn openmetrics(mounts: &[MountStatus]) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let Family { name, kind, help, samples } = family;
        let _ = writeln!(text, "# TYPE {name} {kind}\n# HELP {name} {help}");
        for status in mounts {
            for (suffix, label, value) in samples(status) {
                let own = format!(
                    "mountpoint=\"{}\",driver=\"{}\"",
                    escape(&status.mountpoint),
                    escape(&status.driver)
                );
                let label =
                    label.map_or_else(String::new, |(key, value)| format!(",{key}=\"{}\"", escape(&value)));
                let _ = writeln!(text, "{name}{suffix}{{{own}{label}}} {value}");
            }
        }
    }
    text.push_str("# EOF\n");
    text
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::GuardStatus;

    #[test]
    fn families_hold_the_samples_of_all_mounts() {
        let guard = GuardStatus {
            keeper: Some(7),
            incarnations: 3,
            deaths: 2,
            recovery_ms_p50: Some(1.5),
            ..GuardStatus::default()
        };
        let first = MountStatus {
            mountpoint: "/a \"b\"\\".into(),
            driver: "mem".into(),
            operations: vec![OperationStatus { operation: "read".into(), count: 5, errors: 1 }],
            guard: Some(guard),
            ..MountStatus::default()
        };
        let second =
            MountStatus { mountpoint: "/c".into(), driver: "local".into(), ..MountStatus::default() };
        let text = openmetrics(&[first, second]);
        let labels = r#"mountpoint="/a \"b\"\\",driver="mem""#;
        for line in [
            format!("outrigger_requests_total{{{labels},operation=\"read\"}} 5"),
            format!("outrigger_errors_total{{{labels},operation=\"read\"}} 1"),
            format!("outrigger_server_deaths_total{{{labels}}} 2"),
            format!("outrigger_recovery_seconds{{{labels},quantile=\"0.5\"}} 0.0015"),
            "outrigger_guarded{mountpoint=\"/c\",driver=\"local\"} 0".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nin\n{text}");
        }
        assert_eq!(text.matches("# TYPE outrigger_requests counter").count(), 1);
        assert!(text.ends_with("# EOF\n"));
    }
}
