#!/usr/bin/env python3
"""Power cuts at chosen moments, through the mount: what docs/contract.md promises, one scenario for each way to lose it.

usage: tests/crash/scenarios.py [--backend syncline|ext4|xfs] [--list] [NAME...]

A scenario is a generator with two yields: before the first is the set-up, which the harness makes durable; between
them are the steps, after which the power is cut; behind the second, on the recovered volume, are the assertions. Each runs twice: with
its set-up in the journal only, and with its set-up in a checkpoint. Afterwards the volume must unmount and check clean.

The commit interval is an hour, so that nothing becomes durable but by the steps' own syncs, unless a scenario says so.
"""

import argparse
import os
import sys
import time
import traceback

import cases_data
import cases_names
from volume import SetUpError, Volume, clean_up_on_signals


def all_cases():
    return cases_names.CASES + cases_data.CASES


def run_case(volume, case, checkpointed):
    volume.format()
    volume.mount(case.options)
    steps = case.function(volume)
    next(steps)
    volume.sync_all()
    if checkpointed:
        volume.unmount()
        volume.mount(case.options)
    next(steps)
    volume.cut()
    volume.mount(case.options)
    if next(steps, None) is not None:
        raise AssertionError("a scenario has two yields")
    volume.unmount()
    volume.check()


def main():
    parser = argparse.ArgumentParser(description="Crash scenarios through the mount.")
    parser.add_argument("--backend", default="syncline", choices=["syncline", "ext4", "xfs"])
    parser.add_argument("--scratch", default=os.environ.get("SCRATCH", "/var/tmp"))
    parser.add_argument("--list", action="store_true", help="tell the scenarios and what they verify")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    cases = all_cases()
    if arguments.list:
        for case in cases:
            print(f"{case.name:48} {case.about}")
        return 0
    if unknown := set(arguments.names) - {case.name for case in cases}:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    if arguments.names:
        cases = [case for case in cases if case.name in arguments.names]
    return run_all(cases, arguments)


def run_all(cases, arguments):
    clean_up_on_signals()
    passed = failed = skipped = 0
    begun = time.monotonic()
    try:
        if os.geteuid() != 0:
            raise SetUpError("needs root for special files and mounts")
        volume = Volume(arguments.backend, arguments.scratch)
    except SetUpError as error:
        print(f"skip  crash scenarios: {error}")
        print(f"0 passed, 0 failed, {len(cases)} skipped")
        return 0
    try:
        for case in cases:
            if case.only_syncline and arguments.backend != "syncline":
                skipped += 1
                continue
            for checkpointed in (False, True):
                name = f"{case.name}{' (from a checkpoint)' if checkpointed else ''}"
                try:
                    run_case(volume, case, checkpointed)
                    passed += 1
                    print(f"ok    {name}", flush=True)
                except Exception as error:
                    failed += 1
                    print(f"FAIL  {name}: {case.about}", flush=True)
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    source = [f for f in traceback.extract_tb(error.__traceback__) if "cases_" in f.filename]
                    where = source[-1] if source else where
                    print(f"      {type(error).__name__}: {str(error)[:400]}")
                    print(f"      at {os.path.basename(where.filename)}:{where.lineno}: {where.line}", flush=True)
                    volume.abandon()
    finally:
        volume.destroy()
    print(f"crash scenarios in {time.monotonic() - begun:.0f} s: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
