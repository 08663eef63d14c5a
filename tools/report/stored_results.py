#!/usr/bin/env python3
"""Draws and compares results that the measuring tools stored with --json: makes an HTML page of a folder, an SVG file of one result
(--plot), or a comparison of one result with a stored one (--compare).

usage: stored_results.py DIR [--output FILE]     makes the page; verbena-perf report runs this
       stored_results.py --plot FILE.svg         draws the result on standard input; every tool's --plot runs this
       stored_results.py --compare FILE [--fail-below RATIO]   compares the result on standard input with FILE; every tool's
                                                 --compare runs this; exit status 3: a median is worse
       stored_results.py --check FILE            checks that FILE is a result
"""
import argparse
import base64
import html
import itertools
import json
import pathlib
import subprocess
import sys

SCHEMA, SCHEMA_VERSION = "verbena-result", 1
STATUS_FAILED, STATUS_BELOW = 1, 3
DRAW_LIMIT_S = 60
PANEL_WIDTH, PANEL_HEIGHT, CATEGORY_WIDTH = 640, 400, 90
MAX_SIZE_LABELS = 9
# Okabe and Ito's colors, which people with color blindness can distinguish.
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f80", "#8c564b"]
STYLE = """
:root { color-scheme: light dark; --page: #fff; --panel: #f6f7f9; --ink: #16191d; --soft: #5a626c; --line: #d9dde2; --link: #0b5cad;
  --good: #0a7a4b; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --panel: #1d2125; --ink: #e8eaed; --soft: #a3abb4; --line: #363c43;
  --link: #7db8f0; --good: #57c795; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 84rem; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
a { color: var(--link); } .soft, dt, summary, th span { color: var(--soft); }
section { margin: 2rem 0 0; padding: 1.2rem 0 0; border-top: 1px solid var(--line); }
pre { padding: .6rem .8rem; background: var(--panel); white-space: pre-wrap; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dd { margin: 0; overflow-wrap: anywhere; }
.facts, .charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
.charts img { width: 100%; } .beside { display: flex; flex-wrap: wrap; gap: 0 3rem; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .22rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; } th span { display: block; font-weight: 400; } th.text, td.text { text-align: left; }
.ok { color: var(--good); } .wrong { color: var(--bad); font-weight: 600; }
"""


class Problem(Exception):
    """An error that is printed as one line."""


def check_result(result, source):
    """Returns the result, or raises Problem with its source."""
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise Problem(f"{source} is not a result that a tool wrote with --json")
    if result["schema_version"] > SCHEMA_VERSION:
        raise Problem(f"{source} has schema_version {result['schema_version']}, but this release reads versions up to "
                      f"{SCHEMA_VERSION}")
    for member in ("tool", "version", "command", "started", "tables"):
        if member not in result:
            raise Problem(f"{source} lacks \"{member}\"")
    for table in result["tables"]:
        if not all(isinstance(row, dict) for row in table.get("rows", [None])) or "columns" not in table:
            raise Problem(f"{source} has a table without columns or with a row that is no object")
        for column in table["columns"]:  # columns with an unknown role are shown as notes
            column.update({"label": column["name"], "unit": "", "role": "note", **column})
    return result


def strip_controls(value):
    """Returns the texts of an untrusted file without control characters, which a terminal would obey."""
    if isinstance(value, str):
        return "".join(letter for letter in value if letter.isprintable() or letter == "\n")
    if isinstance(value, list):
        return [strip_controls(item) for item in value]
    return {strip_controls(key): strip_controls(item) for key, item in value.items()} if isinstance(value, dict) else value


def read_result(path):
    try:
        result = check_result(strip_controls(json.loads(path.read_text(encoding="utf-8"))), path)
    except (OSError, ValueError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error
    return {**result, "name": path.stem}


def is_figure(column):
    return column["role"] in ("lower", "higher")


def list_keys(table):
    return [column for column in table["columns"] if column["role"] == "key"]


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def format_value(value):
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def format_size(size_bytes):
    for shift, letter in ((30, "G"), (20, "M"), (10, "K")):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{letter}"
    return str(size_bytes)


def format_figure(value):
    size = abs(value)
    if 0 < size < 0.001:
        return f"{value:.1e}"
    return f"{value:.{4 if 0 < size < 0.1 else 2 if size < 100 else 1 if size < 1000 else 0}f}"


# -- charts

def describe(row, keys):
    """Returns a row's name from its keys; numbers get their label: "page 4096, bulk"."""
    return ", ".join((f"{key['label']} " if is_number(row.get(key["name"])) else "") + format_value(row.get(key["name"])) for key in keys)


def list_charts(table):
    """Returns one chart for each unit among the plotted columns: lines over sizes, or bars if there is at most one size."""
    figures = [column for column in table["columns"] if is_figure(column) and column.get("plotted")]
    varied = [key for key in list_keys(table) if len({format_value(row.get(key["name"])) for row in table["rows"]}) > 1]
    over = next((key for key in varied if key["name"] == "size_bytes"), None)
    # The plotted key distinguishes bars in a group; the other keys name the group.
    series_keys = [key for key in varied if key is not over and (over or key.get("plotted"))]
    place_keys = [key for key in varied if key is not over and key not in series_keys]
    for unit in dict.fromkeys(column["unit"] for column in figures):
        columns = [column for column in figures if column["unit"] == unit]
        named = next((c for c in columns if len(columns) == 1 or c.get("statistic") == "median"), None)
        chart = {"title": table["name"], "x": f"{over['label']} ({over['unit']})" if over else "",
                 "y": f"{named['label']} ({unit})" if named else unit, "categories": [], "series": {}}
        groups = []
        for row, column in itertools.product(table["rows"], columns):
            if not is_number(row.get(column["name"])):
                continue
            group = describe(row, series_keys)
            if group not in groups:
                groups.append(group)
            place = describe(row, place_keys) or table["name"]
            if not over and place not in chart["categories"]:
                chart["categories"].append(place)
            # With only one group, the column's label says more: "latency p99".
            name = ", ".join(filter(None, [group, column["label"] if len(columns) > 1 or not group else ""]))
            series = chart["series"].setdefault(name, {
                "color": COLORS[groups.index(group) % len(COLORS)], "points": [],
                "dashed": column.get("statistic") != "median" and len(columns) > 1})
            series["points"].append((row[over["name"]] if over else chart["categories"].index(place), row[column["name"]]))
        if chart["series"]:
            yield chart


def quote(text):
    return "'" + text.replace("'", "''").replace("\n", " ") + "'"


def write_ticks(labels, rotation=0):
    return f"set xtics nomirror rotate by {rotation} (" + ", ".join(f"{quote(text)} {place}" for place, text in labels) + ")\n"


def write_panel(chart):
    """Returns gnuplot's commands for one chart."""
    series = list(chart["series"].items())
    points = [point for _, one in series for point in one["points"]]
    text = "".join(f"$series{i} << EOD\n" + "".join(f"{x} {y}\n" for x, y in one["points"]) + "EOD\n" for i, (_, one) in enumerate(series))
    text += f"set title {quote(chart['title'])} noenhanced\nset xlabel {quote(chart['x'])} offset 0,0.6 noenhanced\n"
    text += f"set ylabel {quote(chart['y'])} noenhanced\nset autoscale x\n"
    text += "set key below height 1 noenhanced\n" if len(series) > 1 else "unset key\n"
    if chart["categories"]:
        count, width = len(chart["categories"]), 0.8 / len(series)
        text += f"unset logscale\nset yrange [0:*]\nset xrange [-0.6:{count - 0.4}]\n"
        text += write_ticks(enumerate(chart["categories"]), -25 if count > 3 else 0)
        lines = [f"$series{i} using ($1+{(i + 0.5) * width - 0.4}):2:({width * 0.92}) with boxes fs solid {0.45 if one['dashed'] else 0.9} "
                 f"noborder lc rgb '{one['color']}' title {quote(name)}" for i, (name, one) in enumerate(series)]
    else:
        sizes = sorted({x for x, _ in points})
        step = -(-len(sizes) // MAX_SIZE_LABELS)  # the last size always has a label
        text += "unset logscale x\n" if 0 in sizes else "set logscale x 2\n"
        text += "set logscale y 10\nset yrange [*:*]\n" if all(y > 0 for _, y in points) else "unset logscale y\nset yrange [0:*]\n"
        text += write_ticks((size, format_size(size)) for size in sizes[::-1][::step][::-1])
        lines = [f"$series{i} using 1:2 with linespoints lw 2 pt {6 if one['dashed'] else 7} ps 0.5 dt {2 if one['dashed'] else 1} "
                 f"lc rgb '{one['color']}' title {quote(name)}" for i, (name, one) in enumerate(series)]
    return text + "plot " + ", ".join(lines) + "\n"


def draw(charts):
    """Draws the charts into one SVG, two per row."""
    columns = min(2, len(charts))
    rows = -(-len(charts) // columns)
    width = max([PANEL_WIDTH] + [CATEGORY_WIDTH * len(chart["categories"]) for chart in charts])
    program = f"set terminal svg size {width * columns},{PANEL_HEIGHT * rows} dynamic enhanced font 'sans-serif,13' background 'white'\n"
    program += "set border 3\nset grid lc rgb '#d0d1d2' lt 1\nset ytics nomirror\nset format y '%g'\n"
    program += f"set multiplot layout {rows},{columns}\n" + "".join(map(write_panel, charts)) + "unset multiplot\n"
    try:
        drawn = subprocess.run(["gnuplot"], input=program, capture_output=True, text=True, timeout=DRAW_LIMIT_S, check=False)
    except FileNotFoundError as error:
        raise Problem("no gnuplot in the PATH (Debian and Ubuntu: gnuplot-nox)") from error
    except subprocess.TimeoutExpired as error:
        raise Problem(f"gnuplot: no picture after {DRAW_LIMIT_S} s") from error
    if drawn.returncode != 0 or "<svg" not in drawn.stdout:
        raise Problem(f"gnuplot: {drawn.stderr.strip()}")
    return drawn.stdout


def plot_result(result, output):
    charts = [chart for table in result["tables"] for chart in list_charts(table)]
    if not charts:
        raise Problem(f"cannot draw {output}: there is no figure to draw")
    for chart in charts:
        chart["title"] = f"{result['tool']}: {chart['title']}"
    write(output, draw(charts))


# -- two results beside each other

def compute_ratio(column, now, then):
    """Returns the factor by which `now` is better than `then`, whether lower or higher is better; None without both figures."""
    values = now.get(column["name"]), then.get(column["name"])
    if not all(is_number(value) and value > 0 for value in values):
        return None
    return values[1] / values[0] if column["role"] == "lower" else values[0] / values[1]


def find_rows(table):
    """Returns the rows by their keys."""
    keys = list_keys(table)
    return {tuple(format_value(row.get(key["name"])) for key in keys): row for row in table["rows"]}


def compare_tables(now, then):
    """Returns the lines of a table's comparison, and (ratio, row) of each median. Only medians are stable enough to judge by."""
    figures = [column for column in now["columns"] if is_figure(column) and column.get("plotted")]
    others, lines, judged = find_rows(then), [], []
    for key, row in find_rows(now).items():
        if key not in others:
            continue
        cells = list(key)
        for figure in figures:
            ratio = compute_ratio(figure, row, others[key])
            values = (row.get(figure["name"]), others[key].get(figure["name"]), ratio)
            cells += [format_figure(value) if is_number(value) else "-" for value in values]
            if ratio and figure.get("statistic") == "median":
                judged.append((ratio, f"{now['name']}, {figure['label']} of {', '.join(key)}"))
        lines.append(cells)
    if not lines:
        return [], []
    labels = [(key["label"], key["unit"]) for key in list_keys(now)]
    for figure in figures:
        labels += [(figure["label"], figure["unit"]), ("then", figure["unit"]), ("better", "times")]
    rows = [[label for label, _ in labels], [f"({unit})" if unit else "" for _, unit in labels], *lines]
    widths = [max(9, *(len(row[index]) + 1 for row in rows)) for index in range(len(labels))]
    text = ["".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    return [f"# {now['name']}; better: above 1 is better now", "#" + text[0][1:], "#" + text[1][1:], *text[2:]], judged


def compare_results(now, then, source, fail_below):
    """Prints the comparison; returns the exit status."""
    print(f"#\n# compared with {source} of {then['started']}: {then['command']}")
    for member in ("host", "cpu"):
        here, there = (result.get("machine", {}).get(member, "?") for result in (now, then))
        if here != there:
            print(f"# NOT THE SAME MACHINE: {member} {here}, then {there}")
    judged, any_row = [], False
    for table in now["tables"]:
        for other in (other for other in then["tables"] if other["name"] == table["name"]):
            lines, medians = compare_tables(table, other)
            any_row = any_row or bool(lines)
            judged += medians
            print("\n".join(lines))
    if not any_row:
        print("# nothing to compare: the stored result has none of these rows")
    worst = min(judged, default=(0, "the two results have no common median to judge by"))
    if worst[0] >= fail_below:
        return 0
    print(f"{now['tool']}: --fail-below: {worst[1]}" + (f": {worst[0]:.3f} times" if judged else ""))
    return STATUS_BELOW


# -- the page

def escape(text):
    return html.escape("".join(letter for letter in str(text) if letter >= " " or letter == "\n"))


def format_cell(row, column):
    value = row.get(column["name"])
    if value is None:
        return "–"
    if is_figure(column) and is_number(value):
        return format_figure(value)
    return format_size(value) if column["role"] == "key" and column["unit"] == "B" and isinstance(value, int) else format_value(value)


def format_table(columns, rows):
    """Returns an HTML table. `columns` is a list of (label, unit, has numbers). Escapes the cells."""
    classes = ["" if holds_numbers else ' class="text"' for _, _, holds_numbers in columns]
    head = "".join(f"<th{kind}>{escape(label)}{f'<span>{escape(unit)}</span>' if unit else ''}</th>"
                   for kind, (label, unit, _) in zip(classes, columns))
    body = "".join("<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(classes, row)) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n'


def format_charts(table):
    pictures = (base64.b64encode(draw([chart]).encode()).decode() for chart in list_charts(table))
    images = "".join(f'<img alt="{escape(table["name"])}" src="data:image/svg+xml;base64,{picture}">\n' for picture in pictures)
    return f'<div class="charts">{images}</div>\n'


def describe_column(table, column):
    return column["label"], column["unit"], all(is_number(row.get(column["name"], 0)) for row in table["rows"])


def format_facts(title, facts):
    if not facts:
        return ""
    shown = {("memory" if name == "memory_bytes" else name): (f"{value >> 30} GiB" if name == "memory_bytes" else format_value(value))
             for name, value in facts.items()}
    return f"{title}<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in shown.items()) + "</dl>\n"


def format_status(result):
    status = result.get("status", "ok")
    return f'<span class="{"ok" if status == "ok" else "wrong"}">{escape(status)}</span>'


def format_result(result, number):
    text = f'<section class="result" id="result-{number}"><h2>{escape(result["name"])}</h2>\n<p class="soft">'
    text += escape(f"{result['tool']} {result['version']}, {result['started']}, took {result.get('duration_s', 0):.1f} s, ")
    text += f'{format_status(result)}</p>\n<pre>{escape(result["command"])}</pre>\n<div class="facts"><div>'
    text += format_facts("<h3>Measured</h3>", result.get("setup")) + "</div><div>" + format_facts("<h3>Machine</h3>", result.get("machine"))
    text += "</div></div>\n"
    if result.get("environment"):
        text += "<details>" + format_facts("<summary>Environment</summary>", result["environment"]) + "</details>\n"
    for table in result["tables"]:
        columns = [column for column in table["columns"] if column["role"] != "samples"]
        text += f"<h3>{escape(table['name'])}</h3>\n{format_charts(table)}" + format_table(
            [describe_column(table, column) for column in columns], [[format_cell(row, column) for column in columns] for row in table["rows"]])
    return text + "</section>\n"


def find_like_tables(results):
    """Returns [(result, table), ...] for each table that several results share, with the same rows."""
    likes = {}
    for result in results:
        seen = set()
        for table in result["tables"]:
            shape = (result["tool"], table["name"], tuple(key["name"] for key in list_keys(table)), frozenset(find_rows(table)))
            if table["rows"] and shape not in seen:  # does not compare a result with itself
                likes.setdefault(shape, []).append((result, table))
            seen.add(shape)
    return [like for like in likes.values() if len(like) > 1]


def format_compared_figure(like, figure):
    """Returns one column per result, with the factor by which it is better than the first result."""
    first = like[0][1]
    keys = list_keys(first)
    columns = [describe_column(first, key) for key in keys]
    for number, (result, _) in enumerate(like):
        columns += [(result["name"], figure["unit"], True)] + ([("better", "times", True)] if number else [])
    others = [find_rows(table) for _, table in like]
    rows = []
    for key, row in find_rows(first).items():
        cells = [format_cell(row, column) for column in keys]
        for number, other in enumerate(others):
            cells.append(format_cell(other[key], figure))
            ratio = compute_ratio(figure, other[key], row) if number else None
            cells += [format_figure(ratio) if ratio else "–"] if number else []
        rows.append(cells)
    return f"<div><h3>{escape(figure['label'])}, median</h3>\n{format_table(columns, rows)}</div>\n"


def format_comparison(like):
    first_result, first = like[0]
    joined = {"name": first["name"], "columns": [{"name": "result", "label": "result", "unit": "", "role": "key", "plotted": True}]
              + first["columns"], "rows": [{**row, "result": result["name"]} for result, table in like for row in table["rows"]]}
    medians = [c for c in first["columns"] if is_figure(c) and c.get("plotted") and c.get("statistic") == "median"]
    return (f'<section class="comparison"><h2>Compared: {escape(first_result["tool"] + ", " + first["name"])}</h2>\n<p class="soft">Times better '
            f'than {escape(first_result["name"])}, the first one: above 1 is better, whether lower or higher is.</p>\n{format_charts(joined)}'
            '<div class="beside">' + "".join(format_compared_figure(like, figure) for figure in medians) + "</div></section>\n")


def format_overview(results):
    rows = ""
    for number, result in enumerate(results):
        machine = result.get("machine", {})
        cells = [f'<a href="#result-{number}">{escape(result["name"])}</a>', escape(f"{result['tool']} {result['version']}"),
                 escape(result["started"]), escape(f"{machine.get('host', '')}, {machine.get('cpu', '')}"), format_status(result)]
        rows += "<tr>" + "".join(f'<td class="text">{cell}</td>' for cell in cells) + "</tr>\n"
    head = "".join(f'<th class="text">{label}</th>' for label in ("result", "tool", "started (UTC)", "machine", "status"))
    return f'<nav><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div></nav>\n'


def collect(folder):
    """Returns the results in order of time, and a message for each file that is not a result."""
    path = pathlib.Path(folder)
    if not path.exists():
        raise Problem(f"{folder} cannot be read: there is no such folder or file")
    results, left_out = [], []
    for file in [path] if path.is_file() else sorted(path.glob("*.json")):
        try:
            results.append(read_result(file))
        except Problem as problem:
            left_out.append(str(problem))
    if not results:
        raise Problem(f"{folder} contains no result that a tool wrote with --json" + (f" ({left_out[0]})" if left_out else ""))
    return sorted(results, key=lambda result: result["started"]), left_out


def make_page(folder):
    results, left_out = collect(folder)
    for reason in left_out:
        print(f"verbena-perf report: left out: {reason}", file=sys.stderr)
    page = ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n<meta name="viewport" content="width=device-width, '
            f'initial-scale=1">\n<title>Verbena: measurements</title>\n<style>{STYLE}</style></head><body>\n<header><h1>Verbena: measurements'
            f'</h1>\n<p class="soft">{len(results)} results of {escape(folder)}</p></header>\n' + format_overview(results))
    page += "".join(f'<p class="soft">Left out: {escape(reason)}</p>\n' for reason in left_out)
    page += "".join(format_comparison(like) for like in find_like_tables(results))
    page += "".join(format_result(result, number) for number, result in enumerate(results))
    return page + "</body></html>\n", len(results)


def write(target, text):
    try:
        if target == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            pathlib.Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Problem(f"cannot write {target}: {error.strerror}") from error


def main():
    parser = argparse.ArgumentParser(
        prog="verbena-perf report", description="Makes one HTML page from the results that the tools have written into a folder with --json.")
    parser.add_argument("folder", metavar="DIR", nargs="?", help="the folder that contains the *.json files, or one of these files")
    parser.add_argument("--output", "-o", metavar="FILE", default="report.html", help="the page (default: %(default)s)")
    for name in ("--plot", "--compare", "--check"):
        parser.add_argument(name, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--fail-below", type=float, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not (options.plot or options.compare or options.check or options.folder):
        parser.error("DIR is missing: the folder that contains the *.json files, or one of these files")
    try:
        if options.plot:
            plot_result(check_result(json.load(sys.stdin), "standard input"), options.plot)
        elif options.compare:
            then = read_result(pathlib.Path(options.compare))
            return compare_results(check_result(json.load(sys.stdin), "standard input"), then, options.compare, options.fail_below)
        elif options.check:
            read_result(pathlib.Path(options.check))
        else:
            page, count = make_page(options.folder)
            write(options.output, page)
            print(f"{options.output}: {count} results", file=sys.stderr if options.output == "-" else sys.stdout)
    except Problem as problem:
        print(f"verbena-perf report: {problem}" if options.folder else problem, file=sys.stderr)
        return STATUS_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
