"""Prints the failed tests of files that `ctest --output-junit` wrote: their names and the ends of their outputs.

usage: failed_tests.py JUNIT_FILE...
"""

import sys
import xml.etree.ElementTree as ElementTree

MAX_TESTS = 8
MAX_CHARACTERS = 2500
# A sanitizer's report comes before the test's own messages, and may be far from the end.
FINDINGS = ("Sanitizer:", "runtime error:")


def shorten(output: str) -> str:
    for finding in FINDINGS:
        if finding in output:
            begin = output.rfind("\n", 0, output.index(finding)) + 1
            return output[begin : begin + MAX_CHARACTERS]
    return output[-MAX_CHARACTERS:]


def main() -> None:
    failed = [
        case
        for path in sys.argv[1:]
        for case in ElementTree.parse(path).getroot().iter("testcase")
        if case.get("status") == "fail"
    ]
    for case in failed[:MAX_TESTS]:
        print(f"--- failed: {case.get('name')} ({float(case.get('time', 0)):.1f} s)")
        print(shorten((case.findtext("system-out") or "").strip()))
    for case in failed[MAX_TESTS:]:
        print(f"--- failed: {case.get('name')}")


main()
