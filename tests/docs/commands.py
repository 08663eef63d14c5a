"""The shell commands that the documents show: found in their code blocks and between backticks."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

# A line that begins with one of these is a command; all lines of such a block are. Others are code or output.
PROGRAMS = re.compile(
    r"^(\./|tools/|tests/|examples/|build/|verbena-|nccl-perf|cmake |ctest |export |torchrun |mpirun |pip |python3 |"
    r"head |kill |echo |apt |dpkg |docker |podman |[A-Z][A-Z_]+=|host[A-Z]\$ )"
)
HOST = re.compile(r"^host([A-Z])\$ ")


@dataclass
class Command:
    place: str
    text: str  # without its comment and its host
    host: str = ""
    words: list[str] = field(default_factory=list)

    @property
    def program(self) -> str:
        """The first word that is no assignment."""
        return next((word for word in self.words if not re.match(r"^[A-Z_]+=", word)), "")

    @property
    def options(self) -> list[str]:
        """What follows ` -- ` is another program's."""
        words = self.words[: self.words.index("--")] if "--" in self.words else self.words
        return [word.split("=")[0] for word in words if re.match(r"^--?[a-z][a-z-]*(=|$)", word)]


def parse(place: str, line: str) -> Command:
    host = HOST.match(line)
    text = HOST.sub("", line)
    words = shlex.split(text, comments=True)
    # As it was written, so that the shell sees its quotes, but without what shlex took for a comment.
    text = re.split(r"\s+# ", text)[0].strip()
    return Command(place, text, host[1] if host else "", words)


def find_blocks(path: Path, root: Path) -> list[list[Command]]:
    """The blocks of a document that are a shell's, each a list of commands."""
    blocks: list[list[Command]] = []
    block: list[tuple[str, str]] = []
    is_fenced = False

    def end() -> None:
        if block and PROGRAMS.match(block[0][1]):
            blocks.append([parse(place, line) for place, line in block if not line.startswith("#")])
        block.clear()

    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            is_fenced = not is_fenced
            end()
        elif is_fenced or line.startswith("    "):
            if line.strip():
                block.append((f"{path.relative_to(root)}:{number}", line.strip()))
        else:
            end()
            for span in re.findall(r"`([^`]+)`", line):
                if PROGRAMS.match(span) and " -" in span and not re.search(r"\.\.\.|[*]", span):
                    blocks.append([parse(f"{path.relative_to(root)}:{number}", span)])
    end()
    return blocks


def list_documents(root: Path) -> list[Path]:
    chosen = [root / name for name in ("README.md", "CONTRIBUTING.md")]
    for folder in ("docs", "tools", "tests", "examples", "packaging", "python", "include"):
        chosen += sorted((root / folder).rglob("*.md"))
    return [path for path in chosen if path.exists()]
