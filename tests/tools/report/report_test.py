#!/usr/bin/env python3
"""The page of stored results and the pictures of --plot: which results are in them, what stands beside what, what of it is HTML; drawn
by gnuplot, without which this fails.

usage: report_test.py VERBENA_PERF SAMPLE_PLUGIN
"""
import base64
import contextlib
import html.parser
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools/report"))
import stored_results  # noqa: E402

PERF, PLUGIN = map(os.path.abspath, sys.argv[1:3])


def column(name, label, unit, role, **more):
    return {"name": name, "label": label, "unit": unit, "role": role, **more}


def make_table():
    columns = [column("variant", "variant", "", "key"), column("size_bytes", "size", "B", "key"),
               column("time_us", "time", "us", "lower", statistic="median", plotted=True),
               column("time_p99_us", "time p99", "us", "lower", statistic="p99", plotted=True),
               column("busbw_GBps", "busbw", "GB/s", "higher", statistic="median", plotted=True)]
    rows = [{"variant": variant, "size_bytes": size, "time_us": 5.0 + size, "time_p99_us": 9.0 + size, "busbw_GBps": size / 2000}
            for variant in ("plugin", "it's _other_") for size in (8, 4096, 1 << 20)]
    return {"name": "all_reduce", "columns": columns, "rows": rows}


def make_result(started, time_us, sizes=(8, 4096)):
    columns = [column("size_bytes", "size", "B", "key"), column("time_us", "time", "us", "lower", statistic="median", plotted=True),
               column("path", "path", "", "note"), column("samples_us", "", "us", "samples")]
    rows = [{"size_bytes": size, "time_us": time_us, "path": "direct", "samples_us": [1.5]} for size in sizes]
    return {"schema": "verbena-result", "schema_version": 1, "tool": "verbena-perf", "version": "0.1.0", "started": started,
            "command": "verbena-perf --title '<b>&'", "machine": {"host": "one", "cpu": "Some CPU", "memory_bytes": 64 << 30},
            "setup": {"device": "softverbs0"}, "environment": {"VERBENA_UNPACK": "1"},
            "tables": [{"name": "messages", "columns": columns, "rows": rows}]}


class Elements(html.parser.HTMLParser):
    """How often each element is there."""

    def __init__(self, text):
        super().__init__()
        self.counts = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1


class Charts(unittest.TestCase):
    def test_one_for_each_unit(self):
        time, bandwidth = stored_results.list_charts(make_table())
        self.assertEqual((time["title"], time["x"], time["y"]), ("all_reduce", "size (B)", "time (us)"))
        self.assertEqual(list(time["series"]), ["plugin, time", "plugin, time p99", "it's _other_, time", "it's _other_, time p99"])
        median, p99, other = (time["series"][name] for name in ("plugin, time", "plugin, time p99", "it's _other_, time"))
        self.assertEqual(median["color"], p99["color"])
        self.assertNotEqual(median["color"], other["color"])
        self.assertEqual((median["dashed"], p99["dashed"]), (False, True))
        self.assertEqual(bandwidth["y"], "busbw (GB/s)")
        self.assertEqual([x for x, _ in bandwidth["series"]["plugin"]["points"]], [8, 4096, 1 << 20])

    def test_without_sizes_it_has_bars(self):
        columns = [column("page", "page", "B", "key"), column("kernel", "kernel", "", "key", plotted=True),
                   column("all_GBps", "in all", "GB/s", "higher", statistic="median", plotted=True)]
        rows = [{"page": page, "kernel": kernel, "all_GBps": 100} for page in ("4K", "mixed") for kernel in ("bulk", "copy")]
        chart, = stored_results.list_charts({"name": "unpacking", "columns": columns, "rows": rows})
        self.assertEqual(chart["categories"], ["4K", "mixed"])
        self.assertEqual({name: [x for x, _ in one["points"]] for name, one in chart["series"].items()}, {"bulk": [0, 1], "copy": [0, 1]})
        self.assertIn("mixed", stored_results.draw([chart]))
        self.assertEqual(list(stored_results.list_charts({"name": "none", "columns": [], "rows": []})), [])

    def test_axes(self):
        program = stored_results.write_panel(next(stored_results.list_charts(make_table())))
        for words in ("set logscale x 2", "set logscale y 10", "'4K' 4096", "'1M' 1048576", "set key below", "'it''s _other_, time p99'"):
            self.assertIn(words, program)

    def test_the_last_of_many_sizes_is_labelled(self):
        table = make_table()
        table["rows"] = [{"variant": "plugin", "size_bytes": 8 << shift, "busbw_GBps": 1} for shift in range(25)]
        program = stored_results.write_panel(next(stored_results.list_charts(table)))
        self.assertIn("'128M' ", program)
        self.assertNotIn("'64M' ", program)
        self.assertIn("unset key", program)

    def test_is_drawn(self):
        picture = stored_results.draw(list(stored_results.list_charts(make_table())))
        text = " ".join(xml.etree.ElementTree.fromstring(picture).itertext())
        for words in ("size (B)", "busbw (GB/s)", "plugin, time p99", "_other_", "1M"):
            self.assertIn(words, text)


def make_compared(*rows, **more):
    """Of rows (kind, size, time, speed)."""
    columns = [column("kind", "kind", "", "key"), column("size_bytes", "size", "B", "key"),
               column("time_us", "time", "us", "lower", statistic="median", plotted=True),
               column("p99_us", "p99", "us", "lower", statistic="p99", plotted=True),
               column("speed", "speed", "GB/s", "higher", statistic="median", plotted=True)]
    named = [dict(zip(("kind", "size_bytes", "time_us", "speed", "p99_us"), row)) for row in rows]
    return {**make_result("1", 1), "machine": {"host": "here", "cpu": "one"},
            "tables": [{"name": "messages", "columns": columns, "rows": named}], **more}


class Comparison(unittest.TestCase):
    def compare(self, now, then, fail_below=0.0):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            status = stored_results.compare_results(now, then, "old.json", fail_below)
        return status, said.getvalue()

    def test_matches_rows_by_keys_and_knows_what_is_better(self):
        then = make_compared(("b", 8, 1, 1), ("a", 64, 30, 10), ("a", 8, 10, 5))
        now = make_compared(("a", 8, 20, 5), ("a", 16, 1, 1), ("a", 64, 10, 40))
        status, said = self.compare(now, then)
        self.assertEqual(status, 0)
        self.assertRegex(said, r" 20\.00 +10\.00 +0\.50")
        self.assertRegex(said, r" 40\.00 +10\.00 +4\.00")
        self.assertNotIn(" 16 ", said)
        self.assertNotIn("MACHINE", said)
        status, said = self.compare(now, then, 0.9)
        self.assertEqual(status, 3, "twice the time")
        self.assertIn("--fail-below: messages, time of a, 8: 0.500 times", said)
        self.assertEqual(self.compare(now, then, 0.5)[0], 0)

    def test_only_medians_are_judged(self):
        status, said = self.compare(make_compared(("a", 8, 10, 5, 900)), make_compared(("a", 8, 10, 5, 9)), 0.9)
        self.assertEqual(status, 0)
        self.assertIn("0.01", said)

    def test_another_machine_is_said(self):
        then = make_compared(("a", 8, 1, 1), machine={"host": "here", "cpu": "two"})
        self.assertIn("NOT THE SAME MACHINE: cpu one, then two", self.compare(make_compared(("a", 8, 1, 1)), then)[1])

    def test_nothing_in_common(self):
        status, said = self.compare(make_compared(("a", 8, 1, 1)), make_compared(("a", 16, 1, 1)), 0.9)
        self.assertEqual(status, 3)
        self.assertIn("nothing to compare", said)
        self.assertIn("no common median to judge by", said)

    def test_a_missing_figure_has_no_ratio(self):
        now = make_compared(("a", 8, None, 1))
        status, said = self.compare(now, make_compared(("a", 8, 1, 2)), 0.9)
        self.assertEqual(status, 3)
        self.assertIn("speed of a, 8: 0.500 times", said)


class Page(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def store(self, name, result):
        (self.folder / name).write_text(json.dumps(result), encoding="utf-8")

    def test_results_in_order_of_time(self):
        self.store("b.json", make_result("2026-01-01T00:00:00Z", 1))
        self.store("a.json", make_result("2026-02-01T00:00:00Z", 1))
        self.store("other.json", {})
        self.store("notes.txt", "nothing")
        results, left_out = stored_results.collect(self.folder)
        self.assertEqual([result["name"] for result in results], ["b", "a"])
        self.assertEqual(len(left_out), 1)
        self.assertIn("other.json is not a result", left_out[0])
        self.assertEqual(len(stored_results.collect(self.folder / "a.json")[0]), 1)

    def test_without_a_result_it_fails(self):
        self.assertRaises(stored_results.Problem, stored_results.collect, self.folder)
        self.assertRaises(stored_results.Problem, stored_results.collect, "/nonexistent")
        self.store("newer.json", {**make_result("1", 1), "schema_version": 2})
        self.assertRaisesRegex(stored_results.Problem, "schema_version 2", stored_results.collect, self.folder)
        broken = make_result("1", 1)
        broken["tables"][0]["rows"].append(7)
        self.store("newer.json", broken)
        self.assertRaisesRegex(stored_results.Problem, "a row that is no object", stored_results.collect, self.folder)

    def test_compares_tables_of_the_same_rows(self):
        results = [make_result("1", 10), make_result("2", 5), make_result("3", 5, (8, 64))]
        for number, result in enumerate(results):
            result["name"] = str(number)
        like, = stored_results.find_like_tables(results)
        self.assertEqual([result["name"] for result, _ in like], ["0", "1"], "the third has other sizes")

    def test_the_page_needs_nothing_else(self):
        self.store("1.json", make_result("1", 10))
        self.store("2.json", make_result("2", 5))
        page, _ = stored_results.make_page(self.folder)
        counts = Elements(page).counts
        self.assertEqual((counts["section"], counts["img"], counts["table"]), (3, 3, 1 + 2 + 1))
        for element in ("script", "link", "iframe", "b"):
            self.assertNotIn(element, counts)
        self.assertEqual(set(re.findall(r'src="([^,]*),', page)), {"data:image/svg+xml;base64"})
        self.assertEqual(re.findall(r"https?://", page), [])
        for words in ("&lt;b&gt;&amp;", "<td>2.00</td>", "<td>4K</td>", "64 GiB", "VERBENA_UNPACK", '<td class="text">direct</td>'):
            self.assertIn(words, page)
        self.assertNotIn("samples", page)
        picture = base64.b64decode(re.search(r'base64,([^"]*)"', page)[1])
        self.assertIn("time (us)", " ".join(xml.etree.ElementTree.fromstring(picture).itertext()))


class Tool(unittest.TestCase):
    """The built verbena-perf, which finds the script."""

    def run_perf(self, *arguments, **more):
        return subprocess.run([PERF, *arguments], capture_output=True, text=True, timeout=60, check=False, **more)

    def test_plot_and_report(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("first", "second"):
                done = self.run_perf("--plugin", PLUGIN, "--sizes", "8:64K", "--factor", "8", "--iters", "20", "--json", f"{folder}/{name}.json",
                                     "--plot", f"{folder}/{name}.svg")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            xml.etree.ElementTree.parse(f"{folder}/first.svg")
            done = self.run_perf("report", folder, "--output", f"{folder}/report.html")
            self.assertEqual((done.returncode, done.stdout), (0, f"{folder}/report.html: 2 results\n"), done.stderr)
            page = pathlib.Path(folder, "report.html").read_text(encoding="utf-8")
            # The overview, a table a result, and one for latency and one for bandwidth of both.
            counts = Elements(page).counts
            self.assertEqual((counts["table"], counts["img"], counts["section"]), (1 + 2 + 2, 2 * 2 + 2, 3))
            self.assertEqual(self.run_perf("report", f"{folder}/none").returncode, 1)
            self.assertEqual(self.run_perf("report").returncode, 2)

    def test_compare(self):
        with tempfile.TemporaryDirectory() as folder:
            short = ("--plugin", PLUGIN, "--sizes", "4K", "--iters", "20", "--warmup", "1")
            stored = f"{folder}/stored.json"
            self.assertEqual(self.run_perf(*short, "--json", stored).returncode, 0)
            done = self.run_perf(*short, "--compare", stored, "--fail-below", "0.000001")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"# compared with {stored}", done.stdout)
            result = json.loads(pathlib.Path(stored).read_text(encoding="utf-8"))
            for member in ("started", "command"):
                result[member] += "\x1b]0;\x07"
            result["machine"]["host"] = "\x9b31m elsewhere"
            for row in result["tables"][0]["rows"]:
                row.update({name: 1e-9 for name in row if name.startswith("latency")})
            pathlib.Path(stored).write_text(json.dumps(result), encoding="utf-8")
            done = self.run_perf(*short, "--compare", stored, "--fail-below", "0.9")
            self.assertEqual(done.returncode, 1)
            self.assertIn(" elsewhere", done.stdout)
            self.assertFalse([letter for letter in done.stdout if letter != "\n" and not letter.isprintable()], "the file controls the terminal")
            pathlib.Path(stored).write_text("{", encoding="utf-8")
            self.assertEqual(self.run_perf(*short, "--compare", stored).returncode, 2)

    def test_says_what_is_missing(self):
        done = self.run_perf("--plot", "/tmp/never.svg", env={**os.environ, "PATH": "/nonexistent"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("python3", done.stderr + done.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
