"""Builds the site with tools/site: its links lead somewhere, its references have what users look for, and a browser shows it.

usage: site_test.py [FOLDER]       as of tools/site; with Chromium, FOLDER/start.png shows the start page
"""
import collections
import functools
import html
import http.server
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else ROOT / "build/site").resolve()
SITE = FOLDER / "html"
LINK = re.compile(r"""\s(?:href|src)=["']([^"']+)["']""")
# Links to nowhere: scripts make theirs, and the head of a page of Doxygen 1.9 names parts that it then leaves out.
LEFT_OUT = re.compile(r"""<script\b.*?</script>|<div class="summary">.*?</div>""", re.DOTALL)
GROUPS = ["Start", "How to", "Reference", "How it works", "Contributing"]


@functools.cache
def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


@functools.cache
def list_anchors(path):
    return {html.unescape(name) for name in re.findall(r"""\s(?:id|name)=["']([^"']+)["']""", read(path))}


def list_broken(pages):
    broken = collections.Counter()
    for page in pages:
        for link in set(LINK.findall(LEFT_OUT.sub("", read(page)))):
            link = html.unescape(link)
            if re.match(r"[a-z]+:|//|/|\?", link):
                continue
            name, _, anchor = link.partition("#")
            path = (page.parent / urllib.parse.unquote(name.partition("?")[0])).resolve() if name else page
            if not path.is_file():
                broken[f"{page.relative_to(SITE)}: {link}: leads nowhere"] += 1
            elif anchor and path.suffix == ".html" and not anchor.startswith("__") and urllib.parse.unquote(anchor) not in list_anchors(path):
                broken[f"{page.relative_to(SITE)}: {link}: no such place"] += 1
    return sorted(broken)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site and notes what was asked for in vain."""

    def log_message(self, *_):
        pass

    def send_response(self, code, message=None):
        self.server.answers[urllib.parse.urlparse(self.path).path] = code
        super().send_response(code, message)


class SiteTest(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        pages = sorted(SITE.rglob("*.html"))
        self.assertGreater(len(pages), 500)
        self.assertEqual(list_broken(pages)[:20], [])

    def test_no_markdown_is_left_as_text(self):
        left = [f"{page.relative_to(SITE)}: {paragraph[:80]}" for page in sorted(SITE.rglob("*.html")) if "cpp" not in page.parts
                for paragraph in re.findall(r"<p>(.*?)</p>", read(page), re.DOTALL)
                if re.search(r"^\s*(\||[-*] |\d+\. |#+ |```)", paragraph, re.MULTILINE)]
        self.assertEqual(left, [])

    def test_the_start_page_has_groups_and_plots(self):
        page = read(SITE / "index.html")
        tabs = [html.unescape(re.sub(r"<[^>]+>", "", tab)).strip() for tab in
                re.findall(r'<a [^>]*class="md-tabs__link".*?</a>', page, re.DOTALL)]
        self.assertEqual(tabs, ["Verbena", *GROUPS])
        for name in ("all-reduce", "all-reduce-norm", "architecture"):
            for theme in ("light", "dark"):
                self.assertIn(f"docs/plots/{name}-{theme}.svg", page)

    def test_references(self):
        ops = read(SITE / "cpp/ops_8h.html")
        self.assertRegex(ops, r'<h2 class="memtitle">.*verbena_ops_all_reduce\(\)')
        self.assertIn("cpp/ops_8h.html", read(SITE / "reference/cpp.html"))
        self.assertIn("verbena.ops.Communicator.all_reduce", list_anchors(SITE / "reference/verbena.ops.html"))
        self.assertIn("verbena.SymmetricContext.barrier", list_anchors(SITE / "reference/verbena.html"))

    def test_a_browser_shows_it(self):
        browser = shutil.which("chromium")
        if browser is None:
            self.skipTest("no chromium (tools/setup browser)")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=SITE)) as server, \
                tempfile.TemporaryDirectory() as profile:
            server.answers = {}
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                self.look(server, [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                   f"--user-data-dir={profile}", "--window-size=1280,1800",
                                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
            finally:
                server.shutdown()
                thread.join()
        failed = {path: code for path, code in server.answers.items() if code >= 400 and path != "/favicon.ico"}
        self.assertEqual(failed, {})
        self.assertIn("/docs/plots/all-reduce-light.svg", server.answers)

    def look(self, server, command):
        for name, text in (("index.html", "Which part do you need?"), ("docs/getting-started.html", "Getting started"),
                           ("reference/cpp.html", "ops.h"), ("cpp/ops_8h.html", "verbena_ops_all_reduce"),
                           ("reference/verbena.ops.html", "all_reduce")):
            page = f"http://127.0.0.1:{server.server_port}/{name}"
            shown = subprocess.run([*command, "--dump-dom", page], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   timeout=120, check=True).stdout
            self.assertIn(text, html.unescape(shown), name)
        picture = FOLDER / "start.png"
        subprocess.run([*command, f"--screenshot={picture}", f"http://127.0.0.1:{server.server_port}/index.html"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=True)
        self.assertGreater(picture.stat().st_size, 50_000, "an empty page")  # 230 kB with the plots


if __name__ == "__main__":
    status = subprocess.run([ROOT / "tools/site", FOLDER]).returncode
    if status:
        sys.exit(status)
    unittest.main()
