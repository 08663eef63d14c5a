"""Every command that a document shows is one that works: its program is there and knows its options, and it is run
wherever a machine without GPUs and NCCL can run it.

usage: commands_test.py BUILD_FOLDER
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from functools import cache
from pathlib import Path

import commands

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop(1)).resolve()

# What a reader has by another name: here a program of ours in its place.
STAND_INS = {
    "/tmp/": "./",  # first: the others may hold it
    "/path/to/lib/softverbs": str(BUILD / "lib/softverbs"),
    "./my-program": f"{BUILD}/bin/verbena-perf --size 4k --iters 50",
    "hostA": "127.0.0.1",
}
# Not run, but its options are looked up: why.
NOT_RUN = [
    (r"^(\./)?tools/(test|demo|tidy|coverage|lint|fuzz|setup|gpu-suite)\b", "takes minutes, or installs packages"),
    (r"^(\./)?tools/rdma-vm|^(\./)?tests/vm/run", "the virtual machine's suite runs it"),
    (r"^(\./)?tests/(packages|foreign|bench|docs)/", "the tests themselves run it"),
    (r"nccl-perf\b|--nccl\b|nccl-ib|--against\b", "needs NCCL, most of it GPUs"),
    (r"verbena-symm\b|verbena-unpack\b", "needs a GPU"),
    (r"verbena-chaos\b(?!.*--round )", "takes minutes"),
    (r"--calibrate", "takes minutes"),
    (r"^verbena-perf report\b", "the test report.browser runs it"),
    (r"^(cmake|ctest)\b", "builds or tests everything"),
    (r"^(torchrun|mpirun|examples/run|pip|apt|dpkg|docker|podman|sudo)\b", "needs what is not ours"),
    (r"\bPID\b", "stands for a process of the reader's"),
]
# In a folder of its own, so small that it ends in seconds. Which are already so is for the document to say.
SHORTENED = {"verbena-perf": "--sizes 4k:16k --iters 20"}
LIMIT_S = 60


def find_program(name: str) -> Path | None:
    """One of ours: a script of the repository or a program of the build."""
    if name.startswith("build/default/"):
        return BUILD / name.removeprefix("build/default/")
    if re.match(r"^(\./)?(tools|tests|examples)/", name):
        return ROOT / name
    if re.match(r"^(verbena|nccl)-", name):
        return BUILD / "bin" / name
    return None


@cache
def read_help(program: Path) -> str:
    ended = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return ended.stdout + ended.stderr


class CommandsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.blocks = [block for path in commands.list_documents(ROOT) for block in commands.find_blocks(path, ROOT)]

    def test_commands_are_found(self) -> None:
        """A change of the documents' form would leave the other tests nothing to do."""
        self.assertGreater(sum(len(block) for block in self.blocks), 30)

    def test_programs_know_their_options(self) -> None:
        for command in (command for block in self.blocks for command in block):
            program = find_program(command.program)
            if program is None:
                continue
            with self.subTest(command.place, command=command.text):
                self.assertTrue(os.access(program, os.X_OK), f"{program} is not there")
                for option in command.options:
                    known = re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", read_help(program))
                    self.assertTrue(known, f"{option} is not in {program.name} --help")

    def test_blocks_run(self) -> None:
        count = 0
        for block in self.blocks:
            runnable = [c for c in block if not any(re.search(why, c.text) for why, _ in NOT_RUN)]
            if any(find_program(c.program) or "./my-program" in c.text for c in runnable):
                count += 1
                with self.subTest(block[0].place, commands=[c.text for c in runnable]):
                    self.run_block(runnable)
        self.assertGreater(count, 4)

    def run_block(self, block: list[commands.Command]) -> None:
        """In one shell, as a reader would type it. A server goes on behind its client."""
        lines = ["set -e"]
        for command in block:
            text = command.text
            for theirs, ours in STAND_INS.items():
                text = text.replace(theirs, ours)
            name = Path(command.program).name
            if "--size" not in text and name in SHORTENED and not re.search(r"--(help|version|server|client)", text):
                text += " " + SHORTENED[name]
            if "--client" in text and "--size" not in text:
                text += " " + SHORTENED["verbena-perf"]
            if "--server" in text:
                text += " >server.log 2>&1 &"
            lines.append(text)
        lines.append("wait")
        with tempfile.TemporaryDirectory() as folder:
            for entry in ("tools", "tests", "examples", "docs"):
                (Path(folder) / entry).symlink_to(ROOT / entry)
            (Path(folder) / "build").mkdir()
            (Path(folder) / "build/default").symlink_to(BUILD)
            (Path(folder) / "plan.txt").write_text("delay by=0us..50us chance=0.1\n", encoding="ascii")
            environment = {
                **os.environ,
                "PATH": f"{BUILD}/bin:{os.environ['PATH']}",
                "HOME": folder,
                "SOFTVERBS_DEVICES": "2",
            }
            ended = subprocess.run(
                ["timeout", str(LIMIT_S), "bash", "-c", "\n".join(lines)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(ended.returncode, 0, f"{lines}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")


if __name__ == "__main__":
    unittest.main()
