#!/usr/bin/env python3
"""Draws the pictures of README.md in a light and a dark version: plots from tables in docs/measurements, and the layers from the table
in tools/check_layers.

usage: readme_plots.py [--check]
       writes docs/plots/NAME-light.svg and NAME-dark.svg; --check only compares them with the existing files (exit status 1: different)
"""
import importlib.machinery
import importlib.util
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/plots"
MEASUREMENTS = "docs/measurements/"
WIDTH, HEIGHT = 880, 380
LEFT, RIGHT, TOP, BOTTOM, GAP = 52, 118, 44, 46, 76
THEMES = {
    "light": {"ink": "#16191d", "soft": "#5a626c", "line": "#d9dde2", "page": "#ffffff"},
    "dark": {"ink": "#e8eaed", "soft": "#a3abb4", "line": "#363c43", "page": "#0d1117"},
}
# Okabe and Ito's colors, which people with color blindness can distinguish.
COLORS = {"Verbena": "#d55e00", "NCCL": "#56b4e9", "PyTorch": "#cc79a7", "FlashInfer": "#009e73", "SGLang": "#e69f00",
          "vLLM": "#7f7f80", "sum alone": "#7f7f80"}
# A series is the fastest of the columns whose names begin with this prefix.
OTHERS = {"NCCL": "nccl/", "PyTorch": "torch/", "FlashInfer": "flashinfer/", "SGLang": "sglang/", "vLLM": "vllm/"}


def read_size(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1])
    return int(text) if unit is None else int(text[:-1]) << unit


def read_tables(path):
    """Yields the command and the rows of each table, a dictionary by column for each row."""
    command, columns = "", []
    for line in (ROOT / path).read_text().splitlines():
        if line.startswith("$ "):
            command, columns = line, []
        elif re.match(r"#\s+operation\s+type\s+bytes", line):
            columns = re.split(r"\s{2,}", line[1:].strip())
        elif columns and not line.startswith(("#", "[")):
            cells = line.split()
            if len(cells) >= 8 and re.fullmatch(r"\d+[KMG]?", cells[2]):
                yield command, dict(zip(columns, cells))


def take(path, command_part, operation, prefix):
    """Returns the points (bytes, us) of an operation: Verbena's if the prefix is empty, else the fastest column with the prefix."""
    points = {}
    for command, row in read_tables(path):
        if command_part not in command or row["operation"] != operation:
            continue
        names = ["auto"] if not prefix else [name for name in row if name.startswith(prefix) and not name.endswith("/vllm")]
        values = [float(row[name]) for name in names if row[name] not in ("-", "")]
        if values:
            points[read_size(row["bytes"])] = min(values)
    return sorted(points.items())


def label_size(size):
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


class Panel:
    def __init__(self, title, series, left, width):
        self.title, self.series, self.left, self.width = title, series, left, width
        sizes = [x for points in series.values() for x, _ in points]
        times = [y for points in series.values() for _, y in points]
        self.sizes = (math.log2(min(sizes)), math.log2(max(sizes)))
        self.times = (math.floor(math.log2(min(times))), math.ceil(math.log2(max(times))))

    def x(self, size):
        low, high = self.sizes
        return self.left + (math.log2(size) - low) / (high - low) * self.width

    def y(self, time):
        low, high = self.times
        return HEIGHT - BOTTOM - (math.log2(time) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def draw(self, theme):
        bottom, right = HEIGHT - BOTTOM, self.left + self.width
        yield f'<text x="{self.left}" y="22" font-weight="600">{self.title}</text>'
        for power in range(self.times[0], self.times[1] + 1):
            y = self.y(2.0**power)
            yield f'<path d="M{self.left} {y:.1f}H{right}" stroke="{theme["line"]}"/>'
            yield f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{theme["soft"]}">{2.0**power:g}</text>'
        yield f'<text x="{right}" y="22" text-anchor="end" fill="{theme["soft"]}">microseconds</text>'
        for power in range(int(self.sizes[0]), int(self.sizes[1]) + 1, 4):
            x = self.x(2.0**power)
            yield f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle" fill="{theme["soft"]}">{label_size(1 << power)}</text>'
        labels = []
        for name, points in self.series.items():
            line = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
            width = 3 if name == "Verbena" else 1.6
            yield f'<polyline points="{line}" fill="none" stroke="{COLORS[name]}" stroke-width="{width}" stroke-linejoin="round"/>'
            labels.append([self.y(points[0][1]), name])
        # Labels are in the order of the lines at small sizes, where the lines are apart. A label that would overlap moves down.
        labels.sort()
        last = -math.inf
        for label in labels:
            label[0] = last = max(label[0] + 4, last + 16)
        for y, name in labels:
            yield f'<text x="{right + 10}" y="{y:.1f}" fill="{COLORS[name]}" font-weight="600">{name}</text>'


def make_picture(panels, theme, description):
    width = panels[-1].left + panels[-1].width + RIGHT
    body = "\n".join(line for panel in panels for line in panel.draw(theme))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{theme["ink"]}">\n<title>{description}</title>\n'
            f'<rect width="100%" height="100%" fill="{theme["page"]}"/>\n{body}\n</svg>\n')


def lay_out(titled_series):
    width = (WIDTH - LEFT - len(titled_series) * RIGHT - (len(titled_series) - 1) * GAP) // len(titled_series)
    return [Panel(title, series, LEFT + index * (width + RIGHT + GAP - 20), width)
            for index, (title, series) in enumerate(titled_series)]


def find_all_reduces(path):
    all_columns = "--against nccl,torch,flashinfer,sglang,vllm"
    series = {"Verbena": take(path, all_columns, "all_reduce", "")}
    for name, prefix in OTHERS.items():
        points = take(path, all_columns, "all_reduce", prefix)
        if points:
            series[name] = points
    return series


def find_norms(path):
    series = {"Verbena": take(path, "flashinfer", "all_reduce_norm", ""),
              "FlashInfer": take(path, "flashinfer", "all_reduce_norm", "flashinfer/"),
              "sum alone": take(path, "flashinfer", "all_reduce_norm", "all-reduce-alone")}
    nccl = take(path, "flashinfer", "all_reduce_norm", "nccl/")
    return {"NCCL": nccl, **series} if nccl else series


def list_pictures():
    day = MEASUREMENTS + "2026-11-27-"
    yield "all-reduce", "All-reduce latency by size, bfloat16, in CUDA graphs", [
        ("2 H200 (NVLink)", find_all_reduces(day + "h200x4-collectives-of-2.txt")),
        ("4 H200 (NVLink)", find_all_reduces(day + "h200x4-collectives.txt"))]
    yield "all-reduce-norm", "All-reduce fused with residual and RMSNorm, rows of 8,192 bfloat16 elements", [
        ("2 H200 (NVLink)", find_norms(day + "h200x2-norm.txt")),
        ("4 H200 (NVLink)", find_norms(day + "h200x4-norm.txt"))]


def read_layers():
    loader = importlib.machinery.SourceFileLoader("check_layers", str(ROOT / "tools/check_layers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_layers", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module.LAYERS


def list_levels(layers, left_out):
    """Returns the folders by level, the highest first. A folder is on the highest level below all folders that include it."""
    levels = {}

    def level_of(name):
        if name not in levels:
            above = [other for other, below in layers.items() if name in below and other not in left_out]
            levels[name] = 1 + max((level_of(other) for other in above), default=0)
        return levels[name]

    for name in layers:
        level_of(name)
    shown = {name: level for name, level in levels.items() if name not in left_out}
    return [sorted(name for name in shown if shown[name] == level) for level in sorted(set(shown.values()))]


def draw_layers(theme):
    """Draws device/ and plugin/ side by side, with applications above and devices below them."""
    layers = read_layers()
    row, gap, width, top = 30, 8, 430, 66
    houses = [("device/: device library", list_levels(layers["device"], ())),
              ("plugin/: NCCL network plugin", list_levels(layers["plugin"], ("softverbs", "abi", "crypto")))]
    height = max(len(levels) for _, levels in houses) * (row + gap)

    def box(x, y, w, text, color, weight=400):
        yield (f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{row}" rx="5" fill="{color}" fill-opacity="0.14" '
               f'stroke="{color}"/>')
        yield (f'<text x="{x + w / 2:.1f}" y="{y + row / 2 + 5}" text-anchor="middle" font-weight="{weight}">{text}</text>')

    def spread(x, y, w, names, color):
        each = (w - gap * (len(names) - 1)) / len(names)
        for index, name in enumerate(names):
            yield from box(x + index * (each + gap), y, each, name, color)

    full = 2 * width + 3 * gap
    yield from spread(gap, gap, width, ["PyTorch, vLLM, SGLang", "CUDA and Triton kernels"], "#cc79a7")
    yield from spread(2 * gap + width, gap, width, ["NCCL: training, nccl-tests"], "#cc79a7")
    for index, (title, levels) in enumerate(houses):
        x = gap + index * (width + gap)
        yield f'<text x="{x}" y="{top - 8}" fill="{theme["soft"]}">{title}</text>'
        for level, names in enumerate(levels):
            yield from spread(x, top + level * (row + gap), width, names, ("#d55e00", "#0072b2")[index])
    y = top + height + gap
    yield from spread(gap, y, full - 2 * gap, ["NVLink, PCIe: loads and stores", "libibverbs: RDMA NIC", "softverbs: software RDMA"], "#7f7f80")
    yield full, y + row + gap


def make_layers(theme):
    *lines, (width, height) = draw_layers(theme)
    body = "\n".join(lines)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="13" fill="{theme["ink"]}">\n'
            f"<title>Folders by layer; each stands above what it includes</title>\n"
            f'<rect width="100%" height="100%" fill="{theme["page"]}"/>\n{body}\n</svg>\n')


def list_files():
    for name, description, titled_series in list_pictures():
        for theme, colors in THEMES.items():
            yield FOLDER / f"{name}-{theme}.svg", make_picture(lay_out(titled_series), colors, description)
    for theme, colors in THEMES.items():
        yield FOLDER / f"architecture-{theme}.svg", make_layers(colors)


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    differing = []
    FOLDER.mkdir(exist_ok=True)
    for path, picture in list_files():
        if not arguments:
            path.write_text(picture)
        elif not path.exists() or path.read_text() != picture:
            differing.append(path)
    for path in differing:
        print(f"{path.relative_to(ROOT)} does not match its measurements: run tools/report/readme_plots.py")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
