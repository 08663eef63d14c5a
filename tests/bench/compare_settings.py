"""What a setting costs: verbena-perf under each of several, in turn and again, in an order drawn anew each round.

usage: python3 tests/bench/compare_settings.py [--rounds N] [--build DIR] [--set NAME=VARIABLE:VALUE[,VARIABLE:VALUE]]...
                                               -- OPTIONS OF VERBENA-PERF

The first --set is what the others are compared with. A row a setting and figure: the median over the rounds with the
quartiles, and the same of the ratio to the first setting's run of the same round. A `best` latency is the shortest message of a
run: what other programs on the machine disturb least.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

FIGURES = [("latency_min_us", "latency, best (us)"), ("latency_us", "latency, median (us)"),
           ("bandwidth_GBps", "bandwidth, median (GB/s)")]
TIMEOUT_S = 300


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/default"))
    parser.add_argument("--set", action="append", required=True, dest="settings")
    parser.add_argument("options", nargs="+")
    return parser.parse_args()


def read_setting(text: str) -> tuple[str, dict[str, str]]:
    name, _, rest = text.partition("=")
    return name, dict(part.split(":", 1) for part in rest.split(",") if part)


def run_once(build: pathlib.Path, options: list[str], variables: dict[str, str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        environment = dict(os.environ, **{key: value.replace("%d", folder) for key, value in variables.items()})
        command = [str(build / "bin/verbena-perf"), *options, "--json", str(result)]
        subprocess.run(command, env=environment, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
        row = json.loads(result.read_text())["tables"][0]["rows"][0]
        return {name: row[name] for name, _ in FIGURES if row.get(name)}


def show(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:9.4g} ({low:.4g} to {high:.4g})"


def main() -> int:
    arguments = parse_arguments()
    settings = dict(read_setting(text) for text in arguments.settings)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in settings}
    for _ in range(arguments.rounds):
        for name in random.sample(list(settings), len(settings)):
            runs[name].append(run_once(arguments.build, arguments.options, settings[name]))
    first = next(iter(settings))
    print(f"# {arguments.rounds} rounds; median (quartiles) of the rounds; ratio to `{first}` of the same round")
    for figure, title in FIGURES:
        for name in settings:
            values = [run[figure] for run in runs[name] if figure in run]
            if len(values) < 2:
                continue
            ratios = [run[figure] / base[figure] for run, base in zip(runs[name], runs[first])]
            print(f"{title:26} {name:8} {show(values):34} {show(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
