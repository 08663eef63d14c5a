"""Prints shell commands that set two environment variables, so that NCCL finds and loads this package's plugin. Run `eval "$(python -m
verbena)"`."""
import os
import pathlib
import shlex
import sys

PLUGIN = "libnccl-net-verbena.so"


def main() -> int:
    folder = pathlib.Path(__file__).resolve().parent / "lib"
    if not (folder / PLUGIN).is_file():
        print(f"verbena: {folder / PLUGIN} is missing: install the wheel that contains the plugin", file=sys.stderr)
        return 1
    others = os.environ.get("LD_LIBRARY_PATH")
    print(f"export LD_LIBRARY_PATH={shlex.quote(f'{folder}:{others}' if others else str(folder))}")
    print("export NCCL_NET_PLUGIN=verbena")
    return 0


if __name__ == "__main__":
    sys.exit(main())
