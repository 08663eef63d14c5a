#!/usr/bin/env python3
"""Prints the sizes at which the fastest algorithm changes: the thresholds of device/ops/choice.cc.

    thresholds.py TUNING_FILE
    thresholds.py --estimate TABLE RANKS MAX_ONE_SHOT TABLE RANKS MAX_ONE_SHOT

The first form reads what `verbena-bench coll --calibrate` has measured. It prints a row for each operation, GPU and number of ranks, with
the largest size up to which each algorithm is the fastest one.

The second form estimates up to which size an all-reduce in one shot is faster than in two shots, for numbers of ranks that were not
measured. Each TABLE is an output of `verbena-bench coll` with the library's choices between RANKS ranks, which are one-shot up to
MAX_ONE_SHOT bytes and two-shot above. The model of a time is c0 + c1 * peers + c2 * bytes that a rank sends, fitted by least squares of
relative errors to 32 KiB and more in one shot, and to up to 16 MiB in two shots.
"""
import json
import re
import sys

MI = 1 << 20

UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def format_size(length_bytes):
    for unit, letter in UNITS:
        if length_bytes >= unit:
            return f"{length_bytes / unit:g}{letter}"
    return f"{length_bytes:g}"


def find_thresholds(measurements):
    """Returns {(operation, GPU, ranks): [(algorithm, largest bytes), ...]}, by size."""
    fastest = {}
    for one in measurements:
        sizes = fastest.setdefault((one["operation"], one["gpu"], one["ranks"]), {})
        for length_bytes, _, microseconds in one["points"]:
            best = sizes.get(length_bytes)
            if best is None or microseconds < best[0]:
                sizes[length_bytes] = (microseconds, one["algorithm"])
    thresholds = {}
    for call, sizes in fastest.items():
        rows = thresholds[call] = []
        for length_bytes in sorted(sizes):
            algorithm = sizes[length_bytes][1]
            if rows and rows[-1][0] == algorithm:
                rows.pop()
            rows.append((algorithm, length_bytes))
    return thresholds


def parse_size(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]


def read_times(path):
    """Returns [(bytes, microseconds), ...] of the bfloat16 all-reduces."""
    with open(path, encoding="utf-8") as file:
        found = re.findall(r"^ +all_reduce +bf16 +(\d+[KM]) +([\d.]+) ", file.read(), re.MULTILINE)
    return [(parse_size(size), float(time)) for size, time in found]


def fit(points, count_sent):
    """Returns c0, c1, c2 for points (ranks, bytes, microseconds), and the largest relative error."""
    rows = [(1 / us, (ranks - 1) / us, count_sent(ranks, size) / MI / us) for ranks, size, us in points]
    # Normal equations, solved by elimination.
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(3)] + [sum(row[i] for row in rows)] for i in range(3)]
    for i in range(3):
        for j in range(3):
            if i != j:
                factor = matrix[j][i] / matrix[i][i]
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i])]
    solution = [matrix[i][3] / matrix[i][i] for i in range(3)]
    return solution, max(abs(sum(a * b for a, b in zip(row, solution)) - 1) for row in rows)


def count_one_shot(ranks, size):
    return (ranks - 1) * size


def count_two_shot(ranks, size):
    return 2 * (ranks - 1) / ranks * size


def estimate(tables):
    """Prints the fits, and the estimates for 3 to 16 ranks."""
    one, two = [], []
    for path, ranks, most in tables:
        times = [(ranks, size, us) for size, us in read_times(path)]
        one += [point for point in times if 32 << 10 <= point[1] <= most]
        two += [point for point in times if most < point[1] <= 16 * MI]
    (a, error_one), (b, error_two) = fit(one, count_one_shot), fit(two, count_two_shot)
    for name, (base, peer, sent), error in (("one-shot", a, error_one), ("two-shot", b, error_two)):
        print(f"{name}: {base:.2f} us + {peer:.2f} us per peer + {sent:.2f} us per MiB sent; largest error {100 * error:.1f} %")
    measured = max(ranks for _, ranks, _ in tables)
    for ranks in (3, 4, 5, 6, 7, 8, 16):
        slope = a[2] * count_one_shot(ranks, 1) - b[2] * count_two_shot(ranks, 1)
        linear = b[0] + b[1] * (ranks - 1)
        # Two shots may also wait for each further peer no longer than twice as long as one shot.
        least = min(linear, b[0] + b[1] * (measured - 1) + 2 * a[1] * (ranks - measured)) if ranks > measured else linear
        sizes = sorted((base - a[0] - a[1] * (ranks - 1)) / slope * 1024 for base in (least, linear))
        print(f"{ranks} ranks: one-shot up to {sizes[0]:.0f} to {sizes[1]:.0f} KiB")


def main():
    if len(sys.argv) == 8 and sys.argv[1] == "--estimate":
        words = sys.argv[2:]
        return estimate([(words[i], int(words[i + 1]), int(words[i + 2])) for i in (0, 3)])
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        measurements = json.load(file)["ops"]
    for (operation, gpu, ranks), rows in sorted(find_thresholds(measurements).items()):
        print(f"{operation} {ranks} {gpu}: " + ", ".join(f"{name} up to {format_size(size)}" for name, size in rows))


if __name__ == "__main__":
    main()
