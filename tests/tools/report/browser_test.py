#!/usr/bin/env python3
"""verbena-perf report in a browser: the page that two stored results make is loaded by headless Chromium, which must find its
tables and charts and complain of nothing.

usage: browser_test.py VERBENA_PERF PLUGIN [--keep FOLDER]   (exit status 77: no Chromium or no gnuplot here)
"""
import html.parser
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
LIMIT_S = 60


class Counter(html.parser.HTMLParser):
    """How often each element is there, and the text of table cells."""

    def __init__(self):
        super().__init__()
        self.counts = {}
        self.cells = []
        self.in_cell = False

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag in ("td", "th"):
            self.in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.in_cell = False

    def handle_data(self, data):
        if self.in_cell:
            self.cells[-1] += data


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def browse(chromium, profile, page, *options):
    """What the browser writes to both streams."""
    return run(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--hide-scrollbars", "--enable-logging=stderr", f"--user-data-dir={profile}", *options, "file://" + page)


def check(page_text, browsed):
    complaints = [line for line in browsed.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
    seen = Counter()
    seen.feed(browsed.stdout)
    # The overview, a table a result, and one for latency and one for bandwidth of both.
    assert seen.counts.get("table") == 1 + 2 + 2, seen.counts
    assert seen.counts.get("svg") == 2 * 2 + 2, seen.counts
    assert seen.counts.get("section") == 3, seen.counts
    for words in ("latencyus", "bandwidthGB/s", "first", "second", "64K", "bettertimes"):
        assert words in seen.cells, (words, seen.cells)
    for element in ("script", "link", "img", "iframe"):
        assert element not in seen.counts, element
    links = set(re.findall(r"https?://[^\"'\s<)]*", page_text)) - {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not links, links


def main():
    perf, plugin = map(os.path.abspath, sys.argv[1:3])
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not chromium or not shutil.which("gnuplot"):
        print("skipped: no Chromium or no gnuplot (tools/setup report test installs them)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "second"):
            run(perf, "--plugin", plugin, "--sizes", "8:64K", "--factor", "8", "--iters", "20", "--json", f"{folder}/{name}.json")
        page = f"{folder}/report.html"
        run(perf, "report", folder, "--output", page)
        with open(page, encoding="utf-8") as file:
            check(file.read(), browse(chromium, f"{folder}/profile", page, "--dump-dom"))
        if sys.argv[3:4] == ["--keep"]:
            shutil.copytree(folder, sys.argv[4], ignore=shutil.ignore_patterns("profile"), dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
